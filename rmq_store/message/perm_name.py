"""The permissions of a topic or a broker as a number (``PermName``): 4 read, 2 write, 1 inherit."""

from __future__ import annotations

from typing import Final

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

_LETTERS: Final = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))


def perm_text(perm: int) -> str:
    """``RW-`` for 6; higher bits are not shown (``perm2String``)."""
    return "".join(letter if perm & bit else "-" for bit, letter in _LETTERS)


def is_readable(perm: int) -> bool:
    return bool(perm & PERM_READ)


def is_writeable(perm: int) -> bool:
    return bool(perm & PERM_WRITE)


def is_inherited(perm: int) -> bool:
    """Whether new topics take their settings from it, as from TBW102 and the topics named after broker and cluster."""
    return bool(perm & PERM_INHERIT)


def is_valid(perm: int) -> bool:
    """Whether it has no other bits."""
    return 0 <= perm < 8
