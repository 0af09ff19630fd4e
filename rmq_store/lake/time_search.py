"""Offsets by time (S2.3): the first offset stored at or after a moment, without reading more than one segment a queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmq_store.errors import BadData
from rmq_store.lake.segments import segments_of
from rmq_store.lake.shard import Shard
from rmq_store.message import MessageQueue
from rmq_store.offsets import Positions, QueueRange
from rmq_store.store import Produced


def search_offsets(
    shard: Shard, positions: Positions, queues: Sequence[MessageQueue], time_ms: int, *, upper: bool = False
) -> dict[MessageQueue, int]:
    """LOWER: the smallest offset with store time >= ``time_ms``, the queue's end if none. UPPER: the largest with store
    time <= ``time_ms``, the queue's first if none. Both lie in [min, max]; an empty queue answers 0 (S2.3)."""
    ranges = [QueueRange(q, positions.min_offset(q), positions.max_offset(q)) for q in queues]
    segments = segments_of(shard, ranges)
    found = {}
    for range_ in ranges:
        lower = _lower(shard, range_, segments.get(range_.queue, []), time_ms + 1 if upper else time_ms)
        found[range_.queue] = max(lower - 1, range_.begin) if upper else lower
    return found


def _lower(shard: Shard, range_: QueueRange, segments: Sequence[Produced], time_ms: int) -> int:
    """The lower bound over the rows. Store times of a queue do not fall, so the segment's bounds choose it."""
    if not len(range_):
        return range_.end
    for segment in segments:
        if segment.max_store_timestamp is None or segment.base is None:
            raise BadData(
                f"segment of {range_.queue} at {segment.base} has no store times: its consume queue row is damaged"
            )
        if segment.max_store_timestamp < time_ms:
            continue
        offset = segment.base + _row_at(shard, segment, time_ms)
        return min(max(offset, range_.begin), range_.end)
    return range_.end


def _row_at(shard: Shard, segment: Produced, time_ms: int) -> int:
    """How many rows of the segment are before the moment."""
    if segment.min_store_timestamp is None or segment.min_store_timestamp >= time_ms:
        return 0
    rows = shard.commitlog.rows(segment.file, segment.first_row, segment.count, ["store_timestamp"])
    times = rows.column("store_timestamp").to_numpy()
    return int(np.argmax(times >= time_ms))
