"""Two attempts of a replay side by side; ``rmq_store/admin/diff.py`` says how messages ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rmq_store.admin.diff import (
    LISTED,
    AttemptDone,
    DiffReport,
    FailedCopy,
    Failures,
    Named,
    Place,
    WithoutCopy,
    attempts_of,
    chosen,
    compare,
)
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.pull import Slice, cover
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import filter_columns, matching
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.sql.sql import open_duckdb
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import TIMER_TOPIC, MessageQueue, retry_topic
from rmq_store.utils.offset_ranges import runs


def diff(
    store: LakeStore,
    shards: Sequence[Shard],
    name: str,
    asked: tuple[int, int] | None = None,
    limit: int = LISTED,
) -> list[DiffReport]:
    """Two attempts of a replay in each of the shards that it has read; default: the last two. At most ``limit`` messages
    are listed in all.

    Raises WrongUse: a group that has replayed nothing, an attempt that is in none of the shards.
    """
    commits = [shard.ctls_since(0, group=name) for shard in shards]
    attempts = [attempts_of(name, of_shard) for of_shard in commits]
    numbers = chosen(name, asked, max(len(of_shard) for of_shard in attempts))
    reports: list[DiffReport] = []
    for shard, of_group, done in zip(shards, commits, attempts, strict=True):
        first, second = (done[n - 1] if n <= len(done) else AttemptDone(n) for n in numbers)
        left = limit - sum(len(report.listed) for report in reports)
        reports.append(compare(shard.name, name, of_group, _Rows(store, shard), first, second, left))
    return reports


class _Rows:
    """The rows of a shard, as a comparison asks for them."""

    def __init__(self, store: LakeStore, shard: Shard) -> None:
        self._store = store
        self._shard = shard

    def failures(self, group: str) -> Failures:
        of_group = f"shard = {quoted(self._shard.name)} AND group_name = {quoted(group)}"
        delivered = (
            f"shard = {quoted(self._shard.name)} AND group_name = {quoted(SCHEDULE_GROUP)} AND cause = 'deliver'"
            f" AND topic IN ({quoted(retry_topic(group))}, {quoted(TIMER_TOPIC)})"
        )
        places = ", ".join(f"{prefix}{name}" for prefix in _PREFIXES for name in _PLACE)
        with open_duckdb(self._store, ("message_rows", "outcome_ranges")) as connection:

            def rows(text: str) -> list[dict[str, Any]]:
                found: list[dict[str, Any]] = connection.sql(text).to_arrow_table().to_pylist()
                return found

            copies = rows(f"SELECT {places}, pass, error_type, error_text FROM message_rows WHERE {of_group}")
            deliveries = rows(f"SELECT {places} FROM message_rows WHERE {delivered}")
            ranges = rows(f"SELECT * FROM outcome_ranges WHERE {of_group}")
        return Failures(
            [FailedCopy(_origin(r), r["pass"], _place(r), r["error_type"], r["error_text"]) for r in copies],
            [
                WithoutCopy(
                    QueueRange(_queue(r), r["begin_offset"], r["end_offset"]), r["pass"], r["outcome"], r["reason"]
                )
                for r in ranges
            ],
            {_origin(r): _place(r) for r in deliveries},
        )

    def filtered(self, range_: QueueRange, subscription: SubscriptionData) -> Iterator[tuple[int, int]]:
        columns = filter_columns(subscription)
        for slice_ in self._slices(range_):
            for offsets, rows in SliceReader(self._shard.root, self._shard.commitlog.path, slice_).batches(columns):
                wanted = matching(rows, subscription)
                if wanted is not None:
                    yield from runs(offsets[~wanted].tolist())

    def named(self, ranges: Sequence[QueueRange]) -> Mapping[Place, Named]:
        offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        for range_ in ranges:
            offsets[range_.queue] += range(range_.begin, range_.end)
        found: dict[Place, Named] = {}
        for queue, wanted in offsets.items():
            for slice_ in self._slices(QueueRange(queue, wanted[0], wanted[-1] + 1)):
                here = np.array([offset for offset in wanted if slice_.begin <= offset < slice_.end], dtype=np.int64)
                if len(here):
                    reader = SliceReader(self._shard.root, self._shard.commitlog.path, slice_)
                    names = reader.rows(here, list(Named._fields)).to_pylist()
                    found |= {Place(queue, o): Named(**row) for o, row in zip(here.tolist(), names, strict=True)}
        return found

    def _slices(self, range_: QueueRange) -> list[Slice]:
        """What can be read of a range."""
        least = min(max(range_.begin, self._shard.positions().min_offset(range_.queue)), range_.end)
        readable = QueueRange(range_.queue, least, range_.end)
        return list(cover(readable, segments_of(self._shard, [readable]).get(range_.queue, ()))[0])


_PREFIXES = ("origin_", "")
_PLACE = ("topic", "broker_name", "queue_id", "queue_offset")


_one_queue = lru_cache(maxsize=None)(MessageQueue)
"""A queue is named by many rows."""


def _queue(row: Mapping[str, Any], prefix: str = "") -> MessageQueue:
    return _one_queue(row[f"{prefix}topic"], row[f"{prefix}broker_name"], row[f"{prefix}queue_id"])


def _place(row: Mapping[str, Any]) -> Place:
    return Place(_queue(row), row["queue_offset"])


def _origin(row: Mapping[str, Any]) -> Place:
    return Place(_queue(row, "origin_"), row["origin_queue_offset"])
