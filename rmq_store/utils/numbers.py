"""Whole numbers in texts from outside: ASCII digits and nothing else.

Python's ``int`` reads more ("1_0", " 1", "+1", the digits of every script) and gives up at very many digits.
"""

from __future__ import annotations

import re

_DIGITS = re.compile(r"[0-9]{1,20}")


def whole_number(text: str, *, signed: bool = False) -> int | None:
    """The number, None for a text that is none. ``signed``: a minus may stand before it."""
    digits = text.removeprefix("-") if signed else text
    return int(text) if _DIGITS.fullmatch(digits) else None
