"""JSON as RocketMQ's brokers and clients write and read it, which is not quite JSON (rules 3.1, 3.2, 4).

Reading accepts what fastjson2 accepts beside JSON: unquoted numbers and objects as keys, single quotes, a trailing comma, a
missing one, comments after a brace or before a number, numbers like ``+1``, ``01``, ``.5`` and ``7L``, more escapes,
zeros after the end. An object with an object as key occurs in a broadcasting client's offset file. Writing is that of
5.5.0, with integer keys unquoted: either the pretty form of its files, with tabs, one entry per line and arrays of
numbers on one line, or everything on one line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NoReturn

from rmq_store.errors import BadData

_SPACE: Final = re.compile(r"[ \t\r\n\f\b\xa0]*")
_SPACE_AND_COMMENTS: Final = re.compile(r"(?:[ \t\r\n\f\b\xa0]|//[^\n]*|/\*(?s:.*?)\*/)*")
_BEGIN: Final = re.compile(r"\ufeff?\0*")
_END: Final = re.compile(r"(?:[ \t\r\n\f\b\xa0,\0]|//[^\n]*|/\*(?s:.*?)\*/)*")
_POWER: Final = r"(?:[eE][+-]?[0-9]+)?"
_NUMBER: Final = re.compile(rf"(?P<whole>[+-]?[0-9]+)(?P<part>(?:\.[0-9]*)?{_POWER})|[+-]?\.[0-9]+{_POWER}")
_EXACT_DIGITS: Final = 15
_MOST_NESTED: Final = 200
"""Deeper than any file of RocketMQ's. Python's own limit depends on the depth of the caller."""
_SUFFIX: Final = re.compile(r"[LSBDF]?")
_PLAIN: Final = re.compile(r"[^\"'\\]*")
_HEX: Final = {"u": re.compile(r"[0-9a-fA-F]{4}"), "x": re.compile(r"[0-9a-fA-F]{2}")}
_WORDS: Final = {"true": True, "false": False, "null": None}
_WRITTEN: Final = {'"': '"', "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_UNESCAPED: Final = (
    _WRITTEN
    | {"F": "\f", "v": "\v"}
    | {char: char for char in "'/#&()*+,-.:<=>@[]_"}
    | {str(code): chr(code) for code in range(8)}
)
_ESCAPED: Final = {code: f"\\u{code:04x}" for code in range(0x20)} | {
    ord(char): f"\\{escape}" for escape, char in _WRITTEN.items()
}


def parse(text: str, known: Collection[str] | None = None) -> Any:
    """The value of a text. An object is a dict; a key that is an object is the tuple of its items.

    ``known``: the field names of the class that RocketMQ reads the text into. It skips every other field, and is stricter
    there: keys are quoted, and exactly one comma stands between two entries.

    :raises BadData: the text cannot be read; the message names the character.
    """
    parser = _Parser(text, known)
    value = parser.whole()
    if parser.at < len(text):
        parser.fail("the end of the text")
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


def key_text(key: Any) -> str:
    """The text of a key, converted as RocketMQ does where it needs a text."""
    return key if isinstance(key, str) else render_compact(_as_value(key))


def object_of(value: Any) -> dict[Any, Any]:
    """The value as an object; null is an empty one.

    :raises BadData: the value is not an object.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadData(f"expected an object, found {type(value).__name__}")
    return value


def numbers_of(value: Any, bits: int) -> dict[int, int]:
    """An object of ints as keys and numbers of ``bits`` as values. Raises as ``object_of`` and ``number_of``."""
    return {number_of(key, 32): number_of(number, bits) for key, number in object_of(value).items()}


def number_of(value: Any, bits: int) -> int:
    """A Java int or long: RocketMQ's reader reads "2" as 2, 1.5 as 1, true as 1 and [3] as 3. A decimal number that is too
    large becomes the largest, as in Java; a whole one is refused.

    :raises BadData: the value is not a number, or too large.
    """
    most = (1 << bits - 1) - 1
    number = value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        number = {"true": True, "false": False}.get(value) if match is None else _number(match)
    if isinstance(number, float):
        return int(min(max(number, -most - 1), most))
    if isinstance(number, int) and -most - 1 <= number <= most:
        return int(number)
    raise BadData(f"{value!r} is not a {bits}-bit number")


def _number(match: re.Match[str]) -> int | float | None:
    """None: more digits than Python converts. A decimal number with more digits than a float keeps is read as whole."""
    whole, part = match["whole"], match["part"]
    is_decimal = not whole or "e" in part.lower() or (part and len(whole) <= _EXACT_DIGITS)
    try:
        return float(match[0]) if is_decimal else int(whole)
    except ValueError:
        return None


class _Parser:
    def __init__(self, text: str, known: Collection[str] | None = None) -> None:
        self.text = text
        self.at = 0
        self.known = known
        self.depth = 0
        self.skips = False
        """Whether this is the value of an unknown field."""

    def fail(self, expected: str) -> NoReturn:
        text = repr(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "the end"
        raise BadData(f"at character {self.at}: expected {expected}, found {text}")

    def skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def take(self, char: str) -> bool:
        """Step over ``char`` if it is next."""
        self.skip(_SPACE)
        if not self.text.startswith(char, self.at):
            return False
        self.at += len(char)
        return True

    def whole(self) -> Any:
        """The value, and what may stand before and after it."""
        self.skip(_BEGIN)
        self.skip(_SPACE_AND_COMMENTS)
        value = self.object(self.known) if self.known is not None and self.take("{") else self.value()
        self.skip(_END)
        return value

    def value(self, before_number: re.Pattern[str] = _SPACE) -> Any:
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
        self.skip(before_number)
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self.fail("a value")
        number = _number(match)
        if number is None:
            self.fail("a number of fewer digits")
        self.at = match.end()
        self.skip(_SUFFIX)
        return number

    def object(self, known: Collection[str] | None = None) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        self.deeper()
        self.skip(_SPACE_AND_COMMENTS)
        while not self.take("}"):
            key = self.key(quoted=self.skips or known is not None)
            if not self.take(":"):
                self.fail("':'")
            skips, self.skips = self.skips, self.skips or (known is not None and key not in known)
            items[key] = self.value(_SPACE if self.skips else _SPACE_AND_COMMENTS)
            self.between("}")
            self.skips = skips
        self.depth -= 1
        return items

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _MOST_NESTED:
            self.fail(f"at most {_MOST_NESTED} nested levels")

    def key(self, *, quoted: bool) -> Any:
        key = self.value()
        if isinstance(key, dict) and not quoted:
            return self.object_as_key(key)
        if not isinstance(key, str if quoted else str | int | float):
            self.fail("a key before this point")
        return key

    def object_as_key(self, key: dict[Any, Any]) -> tuple[tuple[Any, Any], ...]:
        if any(isinstance(item, dict | list) for item in key.values()):
            self.fail("a key without lists and objects in it before this point")
        return tuple(key.items())

    def between(self, end: str) -> None:
        """What stands between two entries; after an object up to two commas. A skipped value needs its comma, and none after
        the last one."""
        is_object = self.text[self.at - 1] == "}"
        self.skip(_SPACE_AND_COMMENTS if is_object else _SPACE)
        comma = self.take(",")
        if comma and is_object and not self.skips:
            self.take(",")
        self.skip(_SPACE_AND_COMMENTS if is_object or self.skips else _SPACE)
        if self.skips and comma == self.text.startswith(end, self.at):
            self.fail("an entry" if comma else f"',' or '{end}'")

    def array(self) -> list[Any]:
        items: list[Any] = []
        self.deeper()
        while not self.take("]"):
            items.append(self.value())
            self.between("]")
        self.depth -= 1
        return items

    def string(self, quote: str) -> str:
        parts = []
        while True:
            plain = _PLAIN.match(self.text, self.at)
            assert plain is not None
            parts.append(plain[0])
            self.at = plain.end()
            char = self.text[self.at : self.at + 1]
            self.at += 1
            if char == quote:
                # A character beyond U+FFFF may come as two escapes.
                return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            parts.append(self.escape() if char == "\\" else char)
            if not char:
                self.fail(f"the closing {quote}")

    def escape(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in ("u", "x"):
            digits = _HEX[char].match(self.text, self.at)
            if digits is None:
                self.fail("hex digits")
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if char not in _UNESCAPED or not char:
            self.fail("an escape")
        return _UNESCAPED[char]
