"""Rows of messages before the min offsets of their queues: retention has removed these messages, their rows are still stored.

Files that have none but such rows leave the table as they are. Others are written again without them, once they are half of
the file: so a row is written a few times at most. A copy of a failed message is the evidence of its outcome, which the audit
checks (``docs/invariants.md``, P2). So an outcome row takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import PositionKind, Positions, queue_of
from rmq_store.lake.table import tables
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX
from rmq_store.settings.retention_settings import WAITING_TOPICS

_QUEUE = ["topic", "broker_name", "queue_id"]
_SAME = (
    "commit_id",
    "part",
    "rel",
    "group_name",
    "pass",
    "window_id",
    "attempt",
    "error_type",
    "error_text",
    "unique_key",
)


def expired_rows(shard: Shard) -> Mapping[str, int]:
    """By file how many of its rows are of such messages, where there are any."""
    positions, table = shard.positions(), shard.consumequeue
    least = {queue_of(app_id): offset for app_id, offset in positions.of_kind(PositionKind.MIN) if offset}
    if not least:
        return {}
    files = table.files(pc.field("min.base_offset") < max(least.values()))
    rows = table.read(files.column("path").to_pylist(), [*_QUEUE, "base_offset", "end_offset", "file"])
    of_queue = pa.table(
        {
            "topic": [queue.topic for queue in least],
            "broker_name": [queue.broker_name for queue in least],
            "queue_id": pa.array([queue.queue_id for queue in least], pa.int32()),
            "least": list(least.values()),
        }
    )
    rows = rows.join(of_queue, _QUEUE, join_type="inner", use_threads=False)
    rows = rows.filter(pc.field("base_offset") < pc.field("least"))
    counts = pc.subtract(
        pc.min_element_wise(rows.column("end_offset"), rows.column("least")), rows.column("base_offset")
    )
    by_file = pa.table({"file": rows.column("file"), "rows": counts}).group_by("file").aggregate([("rows", "sum")])
    return dict(zip(by_file.column("file").to_pylist(), by_file.column("rows_sum").to_pylist(), strict=True))


def without_expired(
    rows: pa.Table, segments: Sequence[Produced], positions: Positions
) -> tuple[pa.Table, list[Produced], pa.Table]:
    """The rows and segments that stay, and the outcome rows (schema OUTCOME) of the copies that do not.

    ``segments``: of the first rows, in their order; the rows behind them are in no queue, and stay.
    """
    counts = np.array([segment.count for segment in segments], dtype=np.int64)
    expired = np.array(
        [min(max(positions.min_offset(segment.queue) - (segment.base or 0), 0), segment.count) for segment in segments],
        dtype=np.int64,
    )
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    stays = np.ones(rows.num_rows, dtype=bool)
    stays[: len(starts)] = np.arange(len(starts)) - starts >= np.repeat(expired, counts)
    if stays.all():
        return rows, list(segments), tables.OUTCOME.empty_table()
    mask = pa.array(stays)
    trimmed = [
        replace(segment, base=(segment.base or 0) + gone, count=segment.count - gone)
        for segment, gone in zip(segments, expired.tolist(), strict=True)
        if gone < segment.count
    ]
    return rows.filter(mask), trimmed, outcomes_of(rows.filter(pc.invert(mask)))


def outcomes_of(copies: pa.Table) -> pa.Table:
    """The outcomes (schema OUTCOME) that copies prove: retried, dead, delivered or redriven; none of other messages."""
    topic, cause = copies.column("topic"), copies.column("cause")
    waits = pc.is_in(topic, pa.array(sorted(WAITING_TOPICS)))
    outcome = pc.case_when(
        pc.make_struct(
            pc.equal(cause, "deliver"),
            pc.equal(cause, "redrive"),
            pc.starts_with(topic, DLQ_GROUP_TOPIC_PREFIX),
            waits,
        ),
        "delivered",
        "redriven",
        "dead",
        "retried",
        pa.scalar(None, pa.string()),
    )
    columns = {name: copies.column(name) for name in _SAME}
    columns |= {name: copies.column(f"origin_{name}") for name in _QUEUE}
    begins = copies.column("origin_queue_offset")
    columns |= {"begin_offset": begins, "end_offset": pc.add(begins, 1), "outcome": outcome, "reason": cause}
    rows = pa.table([columns[name] for name in tables.OUTCOME.names], schema=tables.OUTCOME)
    return rows.filter(pc.and_(pc.is_valid(rows.column("group_name")), pc.is_valid(rows.column("outcome"))))
