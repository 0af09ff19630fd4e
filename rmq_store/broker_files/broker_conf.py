"""A broker's ``broker.conf``: read as ``java.util.Properties`` does, for its delay levels (rules 11.1)."""

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
    """The file's ``messageDelayLevel``; None where it is not set, so that RocketMQ's default applies.

    Raises WrongUse when the file cannot be read, or is not text.
    """
    try:
        text = read_small_file(path).decode("iso-8859-1")
    except OSError as error:
        raise WrongUse(f"{path} cannot be read: {error.strerror or error}") from error
    if "\0" in text:
        raise WrongUse(f"{path} is not a text file: give the broker.conf that the broker was started with")
    return parse_properties(text).get("messageDelayLevel")


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of a properties file; the last value of a repeated key counts."""
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match:
            properties[_unescaped(match[1])] = _unescaped(match[2])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Without comments and blank lines; a line that ends with an odd number of backslashes continues on the next one."""
    lines: list[str] = []
    continues = False
    for natural in _LINES.split(text):
        line = natural.lstrip(_BLANKS)
        if continues:
            lines[-1] += line
        elif line and line[0] not in "#!":
            lines.append(line)
        else:
            continue
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if continues:
            lines[-1] = lines[-1][:-1]
    return lines


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _character(match[1] or ""), text)


def _character(escape: str) -> str:
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)
