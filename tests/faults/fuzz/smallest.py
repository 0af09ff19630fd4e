"""The smallest case that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.faults.fuzz.cases import Case

Fails = Callable[[Case], bool]
"""Whether a case still fails in the same way."""


def smallest(case: Case, fails: Fails, tries: int) -> Case:
    """The case without what it does not need, in at most so many tries."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(case):
            if tries <= 0:
                return case
            tries -= 1
            if fails(smaller):
                case, is_smaller = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with a bit less, the largest steps first."""
    commands = case.commands
    for cut in (slice(0, len(commands) // 2), slice(0, len(commands) - 1)):
        if 0 < len(commands[cut]) < len(commands):
            yield replace(case, commands=commands[cut])
    for at in range(len(commands)):
        if len(commands) > 1:
            yield replace(case, commands=(*commands[:at], *commands[at + 1 :]))
    for name in case.files:
        yield replace(case, files={key: data for key, data in case.files.items() if key != name})
    if case.stdin or case.variables:
        yield replace(case, stdin=b"", variables={})
    for at, line in enumerate(commands):
        for size in (2, 1):
            for word in range(1, len(line) - size + 1):
                less = (*line[:word], *line[word + size :])
                yield replace(case, commands=(*commands[:at], less, *commands[at + 1 :]))
    for name, data in case.files.items():
        for less_data in _shorter(data):
            yield replace(case, files={**case.files, name: less_data})
    for at, line in enumerate(commands):
        for word in range(1, len(line)):
            for text in _shorter_text(line[word]):
                less = (*line[:word], text, *line[word + 1 :])
                yield replace(case, commands=(*commands[:at], less, *commands[at + 1 :]))


def _shorter(data: bytes) -> Iterator[bytes]:
    """Without a line, or without a half, a quarter, ... of it."""
    lines = data.split(b"\n")
    if 1 < len(lines) <= 60:
        for at in range(len(lines)):
            yield b"\n".join([*lines[:at], *lines[at + 1 :]])
    parts = 2
    while parts <= 8 and len(data) >= parts:
        size = len(data) // parts
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        parts *= 2


def _shorter_text(text: str) -> Iterator[str]:
    if len(text) > 3:
        half = len(text) // 2
        yield text[:half]
        yield text[half:]
