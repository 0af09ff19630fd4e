"""Comparison of two attempts of a replay in the lake. ``rmq_store/admin/diff.py`` has the rules."""

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
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import filter_columns, matching
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.sql.sql import open_duckdb
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from rmq_store.utils.offset_ranges import runs


def diff(
    store: LakeStore,
    shards: Sequence[Shard],
    name: str,
    numbers: tuple[int, int] | None = None,
    limit: int = LISTED,
) -> list[DiffReport]:
    """Two attempts of a replay in each of the shards that it has read; default: the last two. At most ``limit`` messages
    are listed over all shards.

    Raises WrongUse for a group without a replay, or an attempt that no shard has.
    """
    commits = [shard.ctls_since(0, group=name) for shard in shards]
    attempts = [attempts_of(name, of_shard) for of_shard in commits]
    pair = chosen(name, numbers, max(len(of_shard) for of_shard in attempts))
    reports: list[DiffReport] = []
    for shard, of_group, of_shard in zip(shards, commits, attempts, strict=True):
        first, second = (of_shard[n - 1] if n <= len(of_shard) else AttemptDone(n) for n in pair)
        room = limit - sum(len(report.listed) for report in reports)
        rows = _Rows(store, shard)
        reports.append(compare(shard.name, name, of_group, rows, first=first, second=second, limit=room))
    return reports


class _Rows:
    """The rows of a shard that a comparison reads."""

    def __init__(self, store: LakeStore, shard: Shard) -> None:
        self._store = store
        self._shard = shard

    def failures(self, group: str) -> Failures:
        """Raises WrongUse when retention has removed copies: then it is not known how their messages ended."""
        self._refuse_removed(group)
        of_group = f"shard = {quoted(self._shard.name)} AND group_name = {quoted(group)}"
        delivered = (
            f"shard = {quoted(self._shard.name)} AND group_name = {quoted(SCHEDULE_GROUP)} AND cause = 'deliver'"
            f" AND topic IN ({quoted(retry_topic(group))}, {quoted(TIMER_TOPIC)})"
        )
        places = ", ".join(f"{prefix}{name}" for prefix in _PREFIXES for name in _PLACE)
        with open_duckdb(self._store, ("message_rows", "outcome_ranges")) as connection:

            def rows(text: str) -> list[dict[str, Any]]:
                answer: list[dict[str, Any]] = connection.sql(text).to_arrow_table().to_pylist()
                return answer

            copies = rows(f"SELECT {places}, pass, error_type, error_text FROM message_rows WHERE {of_group}")
            deliveries = rows(f"SELECT {places} FROM message_rows WHERE {delivered}")
            ranges = rows(f"SELECT * FROM outcome_ranges WHERE {of_group} AND outcome <> 'redrive_failed'")
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

    def _refuse_removed(self, group: str) -> None:
        positions, lane = self._shard.positions(), self._shard.lane(group)
        queues = [queue for topic in (SCHEDULE_TOPIC, TIMER_TOPIC) for queue in positions.queues_of(topic, lane)]
        queues += [queue for topic in (retry_topic(group), dlq_topic(group)) for queue in positions.queues_of(topic)]
        if removed := [queue for queue in queues if positions.min_offset(queue)]:
            raise WrongUse(
                f"retention has removed messages of {removed[0]}, so it is not known how the failed messages of {group} ended: "
                "its attempts cannot be compared. Keep such topics longer ([[retention]] in the settings), or replay again"
            )

    def filtered(self, range_: QueueRange, subscription: SubscriptionData) -> Iterator[tuple[int, int]]:
        columns = filter_columns(subscription)
        for slice_ in self._slices(range_):
            for offsets, rows in SliceReader(self._shard.root, self._shard.commitlog.path, slice_).batches(columns):
                selected = matching(rows, subscription)
                if selected is not None:
                    yield from runs(offsets[~selected].tolist())

    def named(self, ranges: Sequence[QueueRange]) -> Mapping[Place, Named]:
        offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        for range_ in ranges:
            offsets[range_.queue] += range(range_.begin, range_.end)
        named: dict[Place, Named] = {}
        for queue, of_queue in offsets.items():
            for slice_ in self._slices(QueueRange(queue, of_queue[0], of_queue[-1] + 1)):
                of_slice = np.array(
                    [offset for offset in of_queue if slice_.begin <= offset < slice_.end], dtype=np.int64
                )
                if len(of_slice):
                    reader = SliceReader(self._shard.root, self._shard.commitlog.path, slice_)
                    names = reader.rows(of_slice, list(Named._fields)).to_pylist()
                    named |= {Place(queue, o): Named(**row) for o, row in zip(of_slice.tolist(), names, strict=True)}
        return named

    def _slices(self, range_: QueueRange) -> list[Slice]:
        """The readable slices of a range."""
        least = min(max(range_.begin, self._shard.positions().min_offset(range_.queue)), range_.end)
        readable = QueueRange(range_.queue, least, range_.end)
        return list(cover(readable, segments_of(self._shard, [readable]).get(range_.queue, ()))[0])


_PREFIXES = ("origin_", "")
_PLACE = ("topic", "broker_name", "queue_id", "queue_offset")


_one_queue = lru_cache(maxsize=None)(MessageQueue)
"""Cached, since many rows name the same queue."""


def _queue(row: Mapping[str, Any], prefix: str = "") -> MessageQueue:
    return _one_queue(row[f"{prefix}topic"], row[f"{prefix}broker_name"], row[f"{prefix}queue_id"])


def _place(row: Mapping[str, Any]) -> Place:
    return Place(_queue(row), row["queue_offset"])


def _origin(row: Mapping[str, Any]) -> Place:
    return Place(_queue(row, "origin_"), row["origin_queue_offset"])
