"""SQL92 expressions: which ones parse, how they are printed, and their value for every set of properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq_store.sql92 import BooleanExpression, evaluate
from rmq_store.sql92_parser import InvalidSelector, parse
from rmq_store.sql92_values import EvaluationError


def check(lines: Sequence[dict[str, Any]]) -> Iterator[str | None]:
    """One answer per expression of ``sql92.jsonl.gz``: None, or what differs. Its first line holds the property sets."""
    first, *expressions = lines
    for line in expressions:
        found, wanted = _answers(line["expression"], first["contexts"]), _wanted(line)
        yield None if found == wanted else f"{line['expression']!r}: {found}, RocketMQ: {wanted}"


def _wanted(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return (line["canonical"], line["values"]) if line["parse"] == "ok" else ("does not parse",)


def _answers(expression: str, contexts: Sequence[Mapping[str, str]]) -> tuple[Any, ...]:
    try:
        tree = parse(expression).tree
    except InvalidSelector:
        return ("does not parse",)
    return str(tree), [_value(tree, properties) for properties in contexts]


def _value(tree: BooleanExpression, properties: Mapping[str, str]) -> bool | str | None:
    try:
        return evaluate(tree, properties)
    except EvaluationError as error:
        return f"error: {error.java_type}"
