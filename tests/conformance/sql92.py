"""SQL92 expressions: which ones parse, how they are printed, and their value for every set of properties.

Of the printed text a decimal number is compared by its value: a Java below 19 prints some with more digits than say it.
An expression that is nested too deep for us has to have that many operators and parentheses, more is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rmq_store.filter.sql92 import BooleanExpression, evaluate
from rmq_store.filter.sql92_parser import MOST_NESTED, InvalidSelector, TooDeep, parse
from rmq_store.filter.sql92_values import EvaluationError

_DECIMAL: Final = re.compile(r"[0-9]+\.[0-9]+(?:E-?[0-9]+)?")
_NESTS: Final = re.compile(r"[(<>=+-]|\b(?:NOT|IS|BETWEEN)\b", re.IGNORECASE)
_TOO_DEEP: Final = ("nested too deep",)


def check(lines: Sequence[dict[str, Any]]) -> Iterator[str | None]:
    """One answer per expression of ``sql92.jsonl.gz``: None, or what differs. Its first line holds the property sets."""
    first, *expressions = lines
    for line in expressions:
        found, wanted = _answers(line["expression"], first["contexts"]), _wanted(line)
        if found == _TOO_DEEP and len(_NESTS.findall(line["expression"])) + 2 > MOST_NESTED:
            wanted = _TOO_DEEP
        yield None if found == wanted else f"{line['expression']!r}: {found}, RocketMQ: {wanted}"


def _wanted(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return (_printed(line["canonical"]), line["values"]) if line["parse"] == "ok" else ("does not parse",)


def _answers(expression: str, contexts: Sequence[Mapping[str, str]]) -> tuple[Any, ...]:
    try:
        tree = parse(expression).tree
    except TooDeep:
        return _TOO_DEEP
    except InvalidSelector:
        return ("does not parse",)
    return _printed(str(tree)), [_value(tree, properties) for properties in contexts]


def _printed(text: str) -> str:
    return _DECIMAL.sub(lambda found: repr(float(found[0])), text)


def _value(tree: BooleanExpression, properties: Mapping[str, str]) -> bool | str | None:
    try:
        return evaluate(tree, properties)
    except EvaluationError as error:
        return f"error: {error.java_type}"
