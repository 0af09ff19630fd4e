"""JSON that is kept as text, so that it is sent and recorded as it was written: a parser and a writer would round long numbers,
shorten ``12.50`` to ``12.5`` and drop a member whose name occurs twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

_BLANKS = re.compile(r"[ \t\n\r]*")
# Numbers as text: Python refuses to convert one of very many digits.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value as its text."""

    text: str

    @classmethod
    def parse(cls, text: str) -> JsonText:
        """The text without blanks around it. Raises ValueError when it is not JSON (RFC 8259) that can be written in UTF-8, or
        nested too deep for Python."""
        try:
            value = json.loads(text, parse_constant=refuse_constant, parse_int=str, parse_float=str)
            json.dumps(value, ensure_ascii=False).encode()  # \ud800 is a half of a character
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        return cls(text.strip(" \t\n\r"))

    @classmethod
    def of(cls, value: Any) -> JsonText:
        """The text of a value of dicts, lists, text, numbers, booleans and None. A float is written with the digits that
        identify it (``12.50`` is ``12.5``), a Decimal with all of its digits; a JsonText stays as it is.

        Raises TypeError, ValueError or RecursionError for a value that JSON in UTF-8 does not have, such as NaN.
        """
        return value if isinstance(value, cls) else cls.parse(_written(value))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def refuse_constant(name: str) -> Any:
    """For ``parse_constant``: NaN and Infinity, which Python reads and JSON does not have. Raises ValueError."""
    raise ValueError(f"JSON has no {name}")


def _written(value: Any) -> str:
    if isinstance(value, JsonText):
        return value.text
    if isinstance(value, Decimal):
        return str(value)  # NaN and Infinity are refused when the text is parsed
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_name(name)}: {_written(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r:.100} of a member is not text")
    return json.dumps(name, ensure_ascii=False)


class Item(NamedTuple):
    """A member of an object or an element of an array, with its place in the text, ``[begin, end)``. It begins with the name of
    a member; ``at``: where the value begins."""

    name: str
    """That of the member, or the number of the element."""
    begin: int
    at: int
    end: int


def skip_blanks(text: str, at: int) -> int:
    """The first place from ``at`` on that is not blank."""
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def value_end(text: str, at: int) -> int:
    """Where the value ends that begins at ``at``."""
    return _DECODER.raw_decode(text, at)[1]


def items(text: str, at: int = 0) -> Iterator[Item]:
    """The members of the object, or elements of the array, that begins at ``at`` in a text that is JSON."""
    is_object = text[at] == "{"
    at = skip_blanks(text, at + 1)
    number = 0
    while text[at] not in "}]":
        begin, name = at, str(number)
        if is_object:
            name, at = _DECODER.raw_decode(text, at)
            at = skip_blanks(text, skip_blanks(text, at) + 1)  # the colon
        end = value_end(text, at)
        yield Item(name, begin, at, end)
        at = skip_blanks(text, end)
        if text[at] == ",":
            at = skip_blanks(text, at + 1)
        number += 1
