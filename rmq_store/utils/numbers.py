"""Whole numbers in texts from outside: ASCII digits and nothing else.

Python's ``int`` accepts more ("1_0", " 1", "+1", the digits of every script) and raises for very many digits.
"""

from __future__ import annotations

import re

from rmq_store.errors import WrongUse

_DIGITS = re.compile(r"[0-9]{1,20}")
_SIZE = re.compile(r"([0-9]{1,12})(B|KiB|MiB|GiB|TiB)")
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}


def whole_number(text: str, *, signed: bool = False) -> int | None:
    """The number of at most 20 digits, None for any other text. ``signed``: a minus may come first."""
    digits = text.removeprefix("-") if signed else text
    return int(text) if _DIGITS.fullmatch(digits) else None


def parse_size(text: str) -> int:
    """A size in bytes: a whole number with a unit, like ``512MiB`` or ``4GiB``.

    Raises WrongUse.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise WrongUse(f"invalid size {text!r}: write a whole number with B, KiB, MiB, GiB or TiB, like 512MiB")
    return int(match[1]) * _UNITS[match[2]]
