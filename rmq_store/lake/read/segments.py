"""The segments of queues: from ``consumequeue``, and from the ctl rows of commits that are not dispatched yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.pull import cover
from rmq_store.lake.commit.dispatch import consumequeue_rows, undispatched
from rmq_store.lake.commit.holes import refuse_missing
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue

_COLUMNS = [field.name for field in tables.CONSUMEQUEUE if field.name not in ("action", "store_timestamp", "store_day")]


def segments_of(
    shard: Shard, ranges: Sequence[QueueRange], *, fresh: bool = True
) -> Mapping[MessageQueue, list[Produced]]:
    """The segments that overlap the ranges, by queue, in offset order. Files are chosen by their statistics.

    ``fresh`` False: the handle of ``consumequeue`` has just been refreshed.
    Raises DerivedTableDamaged when ``consumequeue`` lacks segments that the commit log has.
    """
    by_queue = {range_.queue: range_ for range_ in ranges if len(range_)}
    segments: dict[MessageQueue, list[Produced]] = defaultdict(list)
    if not by_queue:
        return segments
    table = shard.consumequeue
    if fresh:
        table.refresh()
    rows = [
        *_dispatched(shard, by_queue.values()),
        *(r for ctl in undispatched(shard, table) for r in consumequeue_rows(ctl)),
    ]
    for row in rows:
        queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
        range_ = by_queue.get(queue)
        if range_ and row["base_offset"] < range_.end and row["end_offset"] > range_.begin:
            segments[queue].append(tables.produced_from_row(row | {"count": row["end_offset"] - row["base_offset"]}))
    for of_queue in segments.values():
        of_queue.sort(key=lambda segment: segment.base or 0)
    holes = [hole for range_ in by_queue.values() for hole in cover(range_, segments.get(range_.queue, ()))[1]]
    if holes:
        refuse_missing(shard, holes)
    return segments


def _dispatched(shard: Shard, ranges: Iterable[QueueRange]) -> list[dict[str, object]]:
    table = shard.consumequeue
    if not table.files().num_rows:
        return []
    by_topic: dict[str, list[QueueRange]] = defaultdict(list)
    for range_ in ranges:
        by_topic[range_.queue.topic].append(range_)
    rows = []
    for topic, of_topic in by_topic.items():
        begin, end = min(r.begin for r in of_topic), max(r.end for r in of_topic)
        overlaps = (pc.field("topic") == topic) & (pc.field("base_offset") < end) & (pc.field("end_offset") > begin)
        # Many files have one row, and a filter is slow on many chunks.
        rows += table.read(_files_with(table, topic, of_topic), _COLUMNS).combine_chunks().filter(overlaps).to_pylist()
    return rows


def _files_with(table: LakeTable, topic: str, ranges: Iterable[QueueRange]) -> list[str]:
    """The files whose statistics allow a segment of one of the ranges. Files between the ranges are left out: the queues of
    a topic have very different offsets, most of all the schedule queues of different groups."""
    files = table.files((pc.field("min.topic") <= topic) & (pc.field("max.topic") >= topic))
    begins, ends = np.array(_disjoint(ranges)).T
    first, last = files.column("min.base_offset").to_numpy(), files.column("max.end_offset").to_numpy()
    nearest = np.searchsorted(ends, first, side="right")
    overlaps = np.append(begins, np.iinfo(np.int64).max)[nearest] < last
    return list(files.column("path").filter(pa.array(overlaps)).to_pylist())


def _disjoint(ranges: Iterable[QueueRange]) -> list[tuple[int, int]]:
    """The offsets of all ranges together, ascending."""
    joined: list[tuple[int, int]] = []
    for range_ in sorted(ranges, key=lambda r: r.begin):
        begin, end = joined.pop() if joined and range_.begin <= joined[-1][1] else (range_.begin, range_.end)
        joined.append((begin, max(end, range_.end)))
    return joined


def waiting_segments(shard: Shard, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, list[Produced]]:
    """As ``segments_of``, for level queues: each segment is due as a whole at its ``deliver_at``. The handle of
    ``consumequeue`` has just been refreshed.

    That is so for segments born in the lake. The messages of a broker's own level queue were stored one after the other:
    their segments are split by the second in which messages are due, each part due with its last message.
    """
    range_of = {range_.queue: range_ for range_ in ranges}
    return {
        queue: [part for segment in segments for part in _by_second(shard, segment, range_of[queue])]
        for queue, segments in segments_of(shard, ranges, fresh=False).items()
    }


def _by_second(shard: Shard, segment: Produced, range_: QueueRange) -> list[Produced]:
    """The parts of the segment that overlap the range."""
    if segment.min_store_timestamp == segment.max_store_timestamp:
        return [segment]
    rows = shard.commitlog.rows(segment.file, segment.first_row, segment.count, ["deliver_at"])
    due_at = rows.column("deliver_at").to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(due_at // 1000)) + 1, [len(due_at)]])
    base = segment.base or 0
    first = max(np.searchsorted(starts, range_.begin - base, side="right") - 1, 0)
    last = np.searchsorted(starts, range_.end - base, side="left")
    return [
        replace(
            segment,
            base=base + begin,
            count=end - begin,
            first_row=segment.first_row + begin,
            deliver_at=int(due_at[begin:end].max()),
        )
        for begin, end in pairwise(starts[first : last + 1].tolist())
    ]
