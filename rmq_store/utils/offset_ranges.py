"""Some offsets of a queue as half-open ranges, which ascend and do not touch."""

from __future__ import annotations

from collections.abc import Sequence

OffsetRange = tuple[int, int]
"""Offsets ``[begin, end)`` of a queue."""


def runs(offsets: Sequence[int]) -> list[OffsetRange]:
    """Ascending offsets as ranges that do not touch: 3, 4, 7 are [3, 5) and [7, 8)."""
    ranges: list[OffsetRange] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def without(ranges: Sequence[OffsetRange], removed: Sequence[OffsetRange]) -> list[OffsetRange]:
    """``ranges`` minus ``removed``; both ascend: [0, 10) without [3, 5) is [0, 3) and [5, 10)."""
    rest, first = [], 0
    for begin, end in ranges:
        while first < len(removed) and removed[first][1] <= begin:
            first += 1
        at = first
        while begin < end:
            hole = removed[at] if at < len(removed) else (end, end)
            if begin < min(hole[0], end):
                rest.append((begin, min(hole[0], end)))
            begin, at = max(begin, hole[1]), at + 1
    return rest
