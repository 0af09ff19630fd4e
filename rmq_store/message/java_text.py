"""Java's text functions where Python's differ: blank characters, lengths, numbers, UTF-8. Java counts UTF-16 units: a
character above U+FFFF is two."""

from __future__ import annotations

import re
from typing import Final

JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What ``String.trim`` removes: U+0000 to U+0020, and no other white space."""

JAVA_WHITESPACE: Final = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
"""``Character.isWhitespace``: without the three no-break spaces (U+00A0, U+2007, U+202F), and without U+0085."""

_NUMBER: Final = re.compile(r"([+-]?)0*((?:(?![\U00010000-\U0010ffff])\d){1,19})")

_HALF_CHARACTER: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decoded(utf8: bytes) -> str:
    """``new String(bytes, UTF_8)``: invalid bytes are replaced by U+FFFD; an encoded surrogate by one, not by three."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return _HALF_CHARACTER.sub(b"\xff", utf8).decode("utf-8", "replace")


def is_blank(text: str | None) -> bool:
    """``StringUtils.isBlank``: None, "" or white space only."""
    return not (text and text.strip(JAVA_WHITESPACE))


def utf16_length(text: str) -> int:
    """``String.length``."""
    return len(text.encode("utf-16-be", "surrogatepass")) // 2


def parse_number(text: str, bits: int) -> int | None:
    """``Integer.parseInt`` (32 bits) and ``Long.parseLong`` (64): an optional sign, then digits of any script.

    None where Java throws: for any other text, and for a number that needs more bits.
    """
    matched = _NUMBER.fullmatch(text)
    number = int(matched[1] + matched[2]) if matched else 1 << bits
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def wrapped(number: int, bits: int) -> int:
    """Java's integer overflow: the low ``bits`` bits of a number, the highest of them as the sign."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half
