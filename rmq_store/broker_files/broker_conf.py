"""A broker's ``broker.conf``: what ``java.util.Properties`` reads from it, and the delay levels that it sets (rules 11.1)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from rmq_store.errors import WrongUse
from rmq_store.utils.small_file import read_small_file

_BLANKS: Final = " \t\f"
_LINES: Final = re.compile(r"\r\n|\r|\n")
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)?", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def message_delay_level(path: Path) -> str | None:
    """The delay levels that the file sets; None where it does not, and the broker has RocketMQ's own.

    Raises WrongUse when it cannot be read, or is no text.
    """
    try:
        text = read_small_file(path).decode("iso-8859-1")
    except OSError as error:
        raise WrongUse(f"{path} cannot be read: {error.strerror or error}") from error
    if "\0" in text:
        raise WrongUse(f"{path} is no text: give the broker.conf that the broker is started with")
    return parse_properties(text).get("messageDelayLevel")


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of a properties file; of a key that comes twice the last value counts."""
    found = {}
    for line in _logical_lines(text):
        matched = _KEY.fullmatch(line)
        if matched:
            found[_unescaped(matched[1])] = _unescaped(matched[2])
    return found


def _logical_lines(text: str) -> list[str]:
    """Without comments and blank lines; a line that ends with an odd number of backslashes goes on in the next one."""
    lines: list[str] = []
    goes_on = False
    for natural in _LINES.split(text):
        line = natural.lstrip(_BLANKS)
        if goes_on:
            lines[-1] += line
        elif line and line[0] not in "#!":
            lines.append(line)
        else:
            continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if goes_on:
            lines[-1] = lines[-1][:-1]
    return lines


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda matched: _character(matched[1] or ""), text)


def _character(escape: str) -> str:
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)
