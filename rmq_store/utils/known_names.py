"""What there is, in the message of an error about a name that is not among it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """``, did you mean 'orders'?``, or nothing when no known name is near."""
    close = get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def listed(names: Sequence[str], most: int = 30) -> str:
    """The names with commas between, the first ``most`` of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
