"""The segments of queues: from ``consumequeue`` and, for what is not dispatched yet, from the ctl rows themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow.compute as pc

from rmq_store.lake import tables
from rmq_store.lake.dispatch import consumequeue_rows, undispatched
from rmq_store.lake.shard import Shard
from rmq_store.message import MessageQueue
from rmq_store.offsets import QueueRange
from rmq_store.store import Produced


def segments_of(shard: Shard, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, list[Produced]]:
    """The segments that overlap the ranges, by queue, in offset order. Files are chosen by their statistics."""
    wanted = {range_.queue: range_ for range_ in ranges if len(range_)}
    found: dict[MessageQueue, list[Produced]] = defaultdict(list)
    if not wanted:
        return found
    table = shard.consumequeue
    table.refresh()
    rows = [
        *_dispatched(shard, wanted.values()),
        *(r for ctl in undispatched(shard, table) for r in consumequeue_rows(ctl)),
    ]
    for row in rows:
        queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
        range_ = wanted.get(queue)
        if range_ and row["base_offset"] < range_.end and row["end_offset"] > range_.begin:
            found[queue].append(tables.produced_from_row(row | {"count": row["end_offset"] - row["base_offset"]}))
    for segments in found.values():
        segments.sort(key=lambda segment: segment.base or 0)
    return found


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
        may_hold = (
            (pc.field("min.topic") <= topic)
            & (pc.field("max.topic") >= topic)
            & (pc.field("min.base_offset") < end)
            & (pc.field("max.end_offset") > begin)
        )
        paths = table.files(may_hold).column("path").to_pylist()
        overlaps = (pc.field("topic") == topic) & (pc.field("base_offset") < end) & (pc.field("end_offset") > begin)
        rows += table.read(paths, where=overlaps).to_pylist()
    return rows
