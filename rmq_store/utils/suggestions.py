"""Suggestions for error messages about unknown names."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """``, did you mean 'orders'?``, or "" when no known name is similar."""
    close = get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def listed(names: Sequence[str], most: int = 30) -> str:
    """The first ``most`` names with commas between them and how many more there are, or "none"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
