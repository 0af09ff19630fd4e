"""The segments of messages that were written into another file, sorted by queue and offset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmq_store.commit.ctl import FEW_TAGS_CODES, Produced


def joined_segments(segments: Iterable[Produced], file: str) -> list[Produced]:
    """The segments as they lie in ``file``, one after the other from row 0 on, neighbours joined into one.

    ``segments``: with bases, in the order of the file's rows. Neighbours are of one queue, follow one another, and are due
    at the same time: a waiting segment is due as a whole.
    """
    joined: list[Produced] = []
    row = 0
    for segment in segments:
        placed = replace(segment, file=file, part=0, first_row=row)
        row += segment.count
        if joined and _are_neighbours(joined[-1], placed):
            joined[-1] = _together(joined[-1], placed)
        else:
            joined.append(placed)
    return joined


def _are_neighbours(before: Produced, after: Produced) -> bool:
    follows = before.base is not None and before.base + before.count == after.base
    return follows and (before.queue, before.deliver_at) == (after.queue, after.deliver_at)


def _together(before: Produced, after: Produced) -> Produced:
    times = [
        before.min_store_timestamp,
        after.min_store_timestamp,
        before.max_store_timestamp,
        after.max_store_timestamp,
    ]
    known = [time for time in times if time is not None]
    return replace(
        before,
        count=before.count + after.count,
        min_store_timestamp=min(known, default=None),
        max_store_timestamp=max(known, default=None),
        tags_codes=_few(before.tags_codes, after.tags_codes),
    )


def _few(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if before is None or after is None:
        return None
    codes = tuple(sorted({*before, *after}))
    return codes if len(codes) <= FEW_TAGS_CODES else None
