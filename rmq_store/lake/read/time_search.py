"""Offsets by time: ``ConsumeQueueStore#getOffsetInQueueByTime`` (rules 2.3), reading at most one segment per queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.errors import BadData
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue


def search_offsets(
    shard: Shard, positions: Positions, queues: Sequence[MessageQueue], time_ms: int, *, upper: bool = False
) -> dict[MessageQueue, int]:
    """LOWER: the smallest offset with store time >= ``time_ms``, the queue's end if none. UPPER: the largest with store
    time <= ``time_ms``, the queue's first if none. Both are in [min, max]; an empty queue answers 0."""
    ranges = [QueueRange(q, positions.min_offset(q), positions.max_offset(q)) for q in queues]
    segments = segments_of(shard, ranges)
    return {
        range_.queue: offset_at(shard, range_, segments.get(range_.queue, []), time_ms, upper=upper)
        for range_ in ranges
    }


def offset_at(
    shard: Shard, range_: QueueRange, segments: Sequence[Produced], time_ms: int, *, upper: bool = False
) -> int:
    """``search_offsets`` for the readable offsets of one queue and their segments, in offset order."""
    segments = dated(range_, segments)
    lower = _lower(shard, range_, segments, time_ms + 1 if upper else time_ms)
    return max(lower - 1, _last(shard, range_, segments, time_ms)) if upper else lower


def dated(range_: QueueRange, segments: Sequence[Produced]) -> Sequence[Produced]:
    """The segments of a queue. Raises BadData where one has no store times."""
    for segment in segments:
        if segment.max_store_timestamp is None or segment.base is None:
            raise BadData(
                f"the segment of {range_.queue} at offset {segment.base} has no store times: its row in consumequeue is "
                "damaged. Make the derived tables again with 'rmq dispatch --rebuild'"
            )
    return segments


def _lower(shard: Shard, range_: QueueRange, segments: Sequence[Produced], time_ms: int) -> int:
    """The first offset of the range stored at or after the time, its end if there is none. Segments whose messages were all
    stored before are not opened."""
    for segment in segments:
        if (segment.max_store_timestamp or 0) < time_ms:
            continue
        first, rows = _rows(range_, segment)
        if (segment.min_store_timestamp or 0) >= time_ms:
            return first
        after = _times(shard, segment)[rows] >= time_ms
        if after.any():
            return first + int(np.argmax(after))
    return range_.end


def _last(shard: Shard, range_: QueueRange, segments: Sequence[Produced], time_ms: int) -> int:
    """The last offset of the range stored at or before the time, its begin if there is none. Messages before it may have
    later times, where a broker's clock was set back."""
    for segment in reversed(segments):
        if (segment.min_store_timestamp or 0) > time_ms:
            continue
        first, rows = _rows(range_, segment)
        if (segment.max_store_timestamp or 0) <= time_ms:
            return min(_end(segment), range_.end) - 1
        before = np.flatnonzero(_times(shard, segment)[rows] <= time_ms)
        if before.size:
            return first + int(before[-1])
    return range_.begin


def _rows(range_: QueueRange, segment: Produced) -> tuple[int, slice]:
    """The first offset of a segment that is in the range, and the slice of its rows in the range."""
    base = segment.base or 0
    first = max(base, range_.begin)
    return first, slice(first - base, min(_end(segment), range_.end) - base)


def _end(segment: Produced) -> int:
    return (segment.base or 0) + segment.count


def _times(shard: Shard, segment: Produced) -> Any:
    """The store times of a segment, one for each row."""
    rows = shard.commitlog.rows(segment.file, segment.first_row, segment.count, ["store_timestamp"])
    return rows.column("store_timestamp").to_numpy()
