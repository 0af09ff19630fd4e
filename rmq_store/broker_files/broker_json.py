"""JSON as RocketMQ's brokers and clients write and read it, which is not quite JSON (S3.1, S4, Appendix E, C10).

Reading takes, beside JSON: unquoted integers and objects as keys, single quotes, a trailing comma. An object with an
object as key occurs in a broadcasting client's offset file. Writing is that of 5.5.0, with integer keys unquoted: the
pretty form of its files with tabs, one entry per line and arrays of numbers on one line, or all on one line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from rmq_store.errors import BadData
from rmq_store.numbers import whole_number

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PLAIN: Final = re.compile(r"[^\"'\\]*")
_HEX4: Final = re.compile(r"[0-9a-fA-F]{4}")
_WORDS: Final = {"true": True, "false": False, "null": None}
_UNESCAPED: Final = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_ESCAPED: Final = {code: f"\\u{code:04x}" for code in range(0x20)} | {
    ord(char): f"\\{escape}" for escape, char in _UNESCAPED.items() if escape not in "'/"
}


def parse(text: str) -> Any:
    """The value of a text. An object is a dict; a key that is an object is the tuple of its items.

    :raises BadData: it cannot be read; says at which character.
    """
    parser = _Parser(text)
    value = parser.value()
    parser.skip_space()
    if parser.at < len(text):
        parser.fail("nothing more")
    return value


def render(value: Any, indent: str = "") -> str:
    """The pretty text of a value of dicts, lists, strings, numbers, booleans and None; the order is kept."""
    deeper = indent + "\t"
    match value:
        case Mapping() if value:
            entries = (f"{deeper}{_render_key(key, deeper)}:{render(item, deeper)}" for key, item in value.items())
            return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
        case Mapping():
            return "{}"
        case list() if any(not isinstance(item, int | float) for item in value):
            return "[\n" + ",\n".join(deeper + render(item, deeper) for item in value) + f"\n{indent}]"
        case list():
            return "[" + ",".join(map(render, value)) + "]"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case str():
            return '"' + value.translate(_ESCAPED) + '"'
        case _:
            return str(value)


def render_compact(value: Any) -> str:
    """As ``render``, without any white space."""
    match value:
        case Mapping():
            entries = (f"{render_compact(_as_value(key))}:{render_compact(item)}" for key, item in value.items())
            return "{" + ",".join(entries) + "}"
        case list():
            return "[" + ",".join(map(render_compact, value)) + "]"
        case _:
            return render(value)


def _render_key(key: Any, indent: str) -> str:
    return render(_as_value(key), indent)


def _as_value(key: Any) -> Any:
    return dict(key) if isinstance(key, tuple) else key


def object_of(value: Any) -> dict[Any, Any]:
    """The object that a value has to be; null is an empty one.

    :raises BadData: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadData(f"an object was expected, {type(value).__name__} found")
    return value


def numbers_of(value: Any, bits: int) -> dict[int, int]:
    """An object of ints as keys and numbers of ``bits`` as values. Raises as ``object_of`` and ``number_of``."""
    return {number_of(key, 32): number_of(number, bits) for key, number in object_of(value).items()}


def number_of(value: Any, bits: int) -> int:
    """A Java int or long: RocketMQ's reader takes "2" as 2 and 1.5 as 1.

    :raises BadData: it is no number, or too large.
    """
    number = None
    if isinstance(value, str):
        number = whole_number(value, signed=True)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        number = int(value)
    if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1:
        return number
    raise BadData(f"{value!r} is no number of {bits} bits")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, wanted: str) -> None:
        found = repr(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "the end"
        raise BadData(f"at character {self.at}: {wanted} expected, {found} found")

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def take(self, char: str) -> bool:
        """Step over ``char`` if it is next."""
        self.skip_space()
        if not self.text.startswith(char, self.at):
            return False
        self.at += len(char)
        return True

    def value(self) -> Any:
        if self.take("{"):
            return self.object()
        if self.take("["):
            return self.array()
        for quote in ('"', "'"):
            if self.take(quote):
                return self.string(quote)
        for word, value in _WORDS.items():
            if self.take(word):
                return value
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            self.fail("a value")
            return None
        self.at = number.end()
        try:
            return float(number[0]) if number[1] or number[2] else int(number[0])
        except ValueError:  # more digits than Python converts
            self.at = number.start()
            self.fail("a number of fewer digits")

    def object(self) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        while not self.take("}"):
            key = self.value()
            if isinstance(key, dict):
                key = tuple(key.items())
            elif isinstance(key, bool | float | list) or key is None:
                self.fail("a key before this point")
            if not self.take(":"):
                self.fail("':'")
            items[key] = self.value()
            if not self.take(",") and not self.text.startswith("}", self.at):
                self.fail("',' or '}'")
        return items

    def array(self) -> list[Any]:
        items: list[Any] = []
        while not self.take("]"):
            items.append(self.value())
            if not self.take(",") and not self.text.startswith("]", self.at):
                self.fail("',' or ']'")
        return items

    def string(self, quote: str) -> str:
        pieces = []
        while True:
            plain = _PLAIN.match(self.text, self.at)
            assert plain is not None
            pieces.append(plain[0])
            self.at = plain.end()
            char = self.text[self.at : self.at + 1]
            self.at += 1
            if char == quote:
                # A character beyond U+FFFF may come as two escapes.
                return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            pieces.append(self.escape() if char == "\\" else char)
            if not char:
                self.fail(f"the closing {quote}")

    def escape(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char == "u":
            digits = _HEX4.match(self.text, self.at)
            if digits is None:
                self.fail("four hex digits")
                return ""
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if char not in _UNESCAPED or not char:
            self.fail("an escape")
        return _UNESCAPED[char]
