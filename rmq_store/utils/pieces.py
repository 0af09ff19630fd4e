"""Some offsets of a queue, as pieces: ranges that ascend and do not touch."""

from __future__ import annotations

from collections.abc import Sequence

Piece = tuple[int, int]
"""Offsets ``[begin, end)`` of a queue."""


def runs(offsets: Sequence[int]) -> list[Piece]:
    """Offsets, which ascend, as pieces that do not touch."""
    found: list[Piece] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def without(pieces: Sequence[Piece], taken: Sequence[Piece]) -> list[Piece]:
    """What is left of some pieces when others are taken away; both ascend."""
    found, at = [], 0
    for begin, end in pieces:
        while at < len(taken) and taken[at][1] <= begin:
            at += 1
        here = at
        while begin < end:
            hole = taken[here] if here < len(taken) else (end, end)
            if begin < min(hole[0], end):
                found.append((begin, min(hole[0], end)))
            begin, here = max(begin, hole[1]), here + 1
    return found
