"""Whole numbers in texts from outside: ASCII digits and nothing else.

Python's ``int`` accepts more ("1_0", " 1", "+1", the digits of every script) and raises for very many digits.
"""

from __future__ import annotations

import re

_DIGITS = re.compile(r"[0-9]{1,20}")


def whole_number(text: str, *, signed: bool = False) -> int | None:
    """The number of at most 20 digits, None for any other text. ``signed``: a minus may come first."""
    digits = text.removeprefix("-") if signed else text
    return int(text) if _DIGITS.fullmatch(digits) else None
