"""The segments of queues: from ``consumequeue``, and from the ctl rows of commits that are not dispatched yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.pull import cover
from rmq_store.lake.commit.derived_tables import QUEUES
from rmq_store.lake.commit.holes import refuse_missing
from rmq_store.lake.commit.tail import current_rows, undispatched
from rmq_store.lake.read.slice_rows import rows_of_slices
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import LONGEST_STATISTIC
from rmq_store.message.message import MessageQueue

_QUEUE = ["topic", "broker_name", "queue_id"]
_COLUMNS = [field.name for field in tables.CONSUMEQUEUE if field.name not in ("action", "store_timestamp", "store_day")]


def segments_of(shard: Shard, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, list[Produced]]:
    """The segments that overlap the ranges, by queue, in offset order. Files are chosen by their statistics.

    Raises DerivedTableDamaged when ``consumequeue`` lacks segments that the commit log has.
    """
    by_queue = {range_.queue: range_ for range_ in ranges if len(range_)}
    segments: dict[MessageQueue, list[Produced]] = defaultdict(list)
    if not by_queue:
        return segments
    table = shard.consumequeue
    table.refresh_unless_fresh()
    tail = undispatched(shard, table)
    dispatched = _dispatched(shard, list(by_queue.values()))
    for row in [*current_rows(dispatched, tail.replaced), *tail.rows(QUEUES)]:
        queue = tables.queue_of_row(row)
        range_ = by_queue.get(queue)
        if range_ and row["base_offset"] < range_.end and row["end_offset"] > range_.begin:
            segments[queue].append(tables.produced_from_row(row | {"count": row["end_offset"] - row["base_offset"]}))
    for of_queue in segments.values():
        of_queue.sort(key=lambda segment: segment.base or 0)
    holes = [hole for range_ in by_queue.values() for hole in cover(range_, segments.get(range_.queue, ()))[1]]
    if holes:
        refuse_missing(shard, holes)
    return segments


def _dispatched(shard: Shard, ranges: Sequence[QueueRange]) -> list[dict[str, Any]]:
    table = shard.consumequeue
    if not table.files().num_rows:
        return []
    by_topic: dict[str, list[QueueRange]] = defaultdict(list)
    for range_ in ranges:
        by_topic[range_.queue.topic].append(range_)
    paths = {path: None for topic, of_topic in by_topic.items() for path in _files_with(table, topic, of_topic)}
    return list(_overlapping(table.read(paths, _COLUMNS), ranges).to_pylist())


def _overlapping(rows: pa.Table, ranges: Sequence[QueueRange]) -> pa.Table:
    """The rows of ``consumequeue`` with offsets of one of the ranges."""
    of_queue = pa.table(
        {
            "topic": [range_.queue.topic for range_ in ranges],
            "broker_name": [range_.queue.broker_name for range_ in ranges],
            "queue_id": pa.array([range_.queue.queue_id for range_ in ranges], pa.int32()),
            "begin": [range_.begin for range_ in ranges],
            "end": [range_.end for range_ in ranges],
        }
    )
    rows = rows.combine_chunks()  # many files have one row
    places = rows.select([*_QUEUE, "base_offset", "end_offset"]).append_column(
        "row", pa.array(np.arange(rows.num_rows))
    )
    pairs = places.join(of_queue, _QUEUE, join_type="inner", use_threads=False)
    pairs = pairs.filter((pc.field("base_offset") < pc.field("end")) & (pc.field("end_offset") > pc.field("begin")))
    return rows.take(pairs.column("row"))


_Key: TypeAlias = tuple[str | None, int | None]
"""Of a file: its broker name, as much as a statistic keeps of it, and its queue id; None: several."""


def _files_with(table: LakeTable, topic: str, ranges: Sequence[QueueRange]) -> list[str]:
    """The files whose statistics allow a segment of one of the ranges, which are all of the topic.

    A file of one queue is compared with the range of that queue only: the queues of a topic have very different offsets, most
    of all the schedule queues of different groups.
    """
    of_key: dict[_Key, list[QueueRange]] = defaultdict(list)
    for range_ in ranges:
        broker, queue_id = range_.queue.broker_name[:LONGEST_STATISTIC], range_.queue.queue_id
        keys: list[_Key] = [(broker, queue_id), (broker, None), (None, queue_id), (None, None)]
        for key in keys:
            of_key[key].append(range_)
    files = table.files((pc.field("min.topic") <= topic) & (pc.field("max.topic") >= topic))
    begins, ends = files.column("min.base_offset").to_numpy(), files.column("max.end_offset").to_numpy()
    overlapping = np.zeros(files.num_rows, bool)
    for key, numbers in _by_key(files):
        if key in of_key:
            range_begins, range_ends = np.array(_disjoint(of_key[key])).T
            nearest = np.searchsorted(range_ends, begins[numbers], side="right")
            overlapping[numbers] = np.append(range_begins, np.iinfo(np.int64).max)[nearest] < ends[numbers]
    return list(files.column("path").filter(pa.array(overlapping)).to_pylist())


def _by_key(files: pa.Table) -> Iterator[tuple[_Key, npt.NDArray[np.int64]]]:
    """The numbers of the files with each key."""
    if not files.num_rows:
        return
    least, most = (
        pc.utf8_slice_codeunits(files.column(f"{bound}.broker_name"), 0, LONGEST_STATISTIC) for bound in ("min", "max")
    )
    keys = pa.table(
        {
            "broker": _only_value(least, most),
            "queue_id": _only_value(files.column("min.queue_id"), files.column("max.queue_id")),
            "number": np.arange(files.num_rows),
        }
    )
    groups = keys.group_by(["broker", "queue_id"], use_threads=False).aggregate([("number", "list")])
    numbers = groups.column("number_list").combine_chunks()
    of_groups = np.split(numbers.flatten().to_numpy(), numbers.offsets.to_numpy()[1:-1])
    yield from zip(
        zip(groups.column("broker").to_pylist(), groups.column("queue_id").to_pylist(), strict=True),
        of_groups,
        strict=True,
    )


def _only_value(least: pa.ChunkedArray, most: pa.ChunkedArray) -> pa.ChunkedArray:
    """Per row the value that both columns have, null where they differ."""
    return pc.if_else(pc.equal(least, most), least, None)


def _disjoint(ranges: Iterable[QueueRange]) -> list[tuple[int, int]]:
    """The offsets of all ranges together, ascending."""
    joined: list[tuple[int, int]] = []
    for range_ in sorted(ranges, key=lambda r: r.begin):
        begin, end = joined.pop() if joined and range_.begin <= joined[-1][1] else (range_.begin, range_.end)
        joined.append((begin, max(end, range_.end)))
    return joined


def waiting_segments(shard: Shard, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, list[Produced]]:
    """As ``segments_of``, for level queues: each segment is due as a whole at its ``deliver_at``.

    That is so for segments born in the lake. The messages of a broker's own level queue were stored one after the other:
    their segments are split by the second in which messages are due, each part due with its last message. Raises MissingFile
    or BadData where one cannot be read.
    """
    range_of = {range_.queue: range_ for range_ in ranges}
    return {
        queue: [part for segment in segments for part in _by_second(shard, segment, range_of[queue])]
        for queue, segments in segments_of(shard, ranges).items()
    }


def _by_second(shard: Shard, segment: Produced, range_: QueueRange) -> list[Produced]:
    """The parts of the segment that overlap the range."""
    if segment.min_store_timestamp == segment.max_store_timestamp:
        return [segment]
    base = segment.base or 0
    slices, _ = cover(QueueRange(segment.queue, base, base + segment.count), [segment])
    rows = rows_of_slices(shard.root, shard.commitlog.path, slices, ["deliver_at"])
    due_at = rows.column("deliver_at").to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(due_at // 1000)) + 1, [len(due_at)]])
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
