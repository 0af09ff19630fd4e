"""What checks of one file are made of.

A check yields None for each thing that is as RocketMQ says, a text for each that is not, and a :class:`NotChecked` for
each that no rule of the project answers yet.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from rmq_store.errors import RmqError

Line = dict[str, Any]
Outcome = str | None
Outcomes = Iterator[Outcome]
P = ParamSpec("P")

SHOWN_CHARS = 160


class NotChecked(str):
    """Why something is not checked yet."""

    __slots__ = ()


def read_lines(path: Path) -> list[Any]:
    """The values of a file of one JSON value a line, packed or not.

    :raises ValueError: a line is no JSON; it says which.
    """
    data = path.read_bytes()
    values = []
    for number, line in enumerate((gzip.decompress(data) if path.suffix == ".gz" else data).splitlines(), 1):
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number} of {path.name} is no JSON: {error}") from error
    return values


def same(what: object, found: object, wanted: object) -> Outcome:
    """Whether our answer is RocketMQ's."""
    return None if found == wanted else f"{what}: found {shown(found)}, RocketMQ says {shown(wanted)}"


def refused(what: object, error: type[RmqError], call: Callable[[], object], words: str = "") -> Outcome:
    """Whether a call is refused with such an error, whose text holds ``words``."""
    try:
        answer = call()
    except error as refusal:
        return None if words in str(refusal) else f"{what}: refused with {shown(str(refusal))}, not with {words!r}"
    return f"{what}: found {shown(answer)}, it should be refused"


def shown(value: object) -> str:
    """A value, short enough for one line."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"


def per_line(check_line: Callable[Concatenate[Any, P], Outcomes]) -> Callable[Concatenate[Sequence[Any], P], Outcomes]:
    """A check of lines from a check of one: a failure names its line, and an error is one."""

    def check(lines: Sequence[Any], /, *args: P.args, **kwargs: P.kwargs) -> Outcomes:
        for number, line in enumerate(lines, 1):
            try:
                for outcome in check_line(line, *args, **kwargs):
                    is_failure = outcome is not None and not isinstance(outcome, NotChecked)
                    yield f"line {number}: {outcome}" if is_failure else outcome
            except Exception as error:
                yield f"line {number}: {type(error).__name__}: {shown(str(error))}"

    return check


def by_kind(
    checks: Mapping[str | None, Callable[Concatenate[Line, P], Outcomes] | str],
) -> Callable[Concatenate[Sequence[Line], P], Outcomes]:
    """A check of a file whose lines have a ``kind``; a text instead of a check says why there is none."""

    def check_line(line: Line, /, *args: P.args, **kwargs: P.kwargs) -> Outcomes:
        kind = line.get("kind")
        check = checks.get(kind)
        if check is None:
            yield f"unknown kind of line {kind!r}"
        elif isinstance(check, str):
            yield NotChecked(f"{kind}: {check}")
        else:
            yield from check(line, *args, **kwargs)

    return per_line(check_line)


def passed(outcomes: Iterable[Outcome]) -> int:
    """How many things were checked. For tests: raises AssertionError with the first failures; what no rule answers yet
    does not count."""
    count, failures = 0, []
    for outcome in outcomes:
        if outcome is None:
            count += 1
        elif not isinstance(outcome, NotChecked):
            failures.append(outcome)
    assert not failures, "\n".join([f"{len(failures)} failed", *failures[:5]])
    assert count, "nothing was checked"
    return count
