"""Rows of messages before the min offsets of their queues: retention has removed these messages, their rows are still stored.

Files that have none but such rows leave the table as they are. Others are written again without them, once they are half of
the file: so a row is written a few times at most. A copy of a failed message is the evidence of its outcome, which the audit
checks (``docs/invariants.md``, P2). So an outcome row takes its place. A message that a rule keeps in the archive becomes a row
of the partition ``kind=archive``, in the commit that takes it out of its queue's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
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


@dataclass(frozen=True, slots=True)
class Expired:
    """Rows of a file before the min offsets of their queues."""

    rows: int = 0
    archived: int = 0
    """Those of them that go to the archive."""


@dataclass(frozen=True, slots=True)
class Parted:
    """What becomes of rows."""

    rows: pa.Table
    """Those that stay, and their segments."""
    segments: list[Produced]
    outcomes: pa.Table
    """What is left of copies that do not stay (schema OUTCOME)."""
    archived: pa.Table
    """Those that go to the archive."""


def expired_rows(shard: Shard) -> Mapping[str, Expired]:
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
            "archived_to": [min(positions.archived_to(queue), offset) for queue, offset in least.items()],
        }
    )
    rows = rows.join(of_queue, _QUEUE, join_type="inner", use_threads=False)
    rows = rows.filter(pc.field("base_offset") < pc.field("least"))
    counts = {
        name: pc.max_element_wise(
            pc.subtract(pc.min_element_wise(rows.column("end_offset"), rows.column(name)), rows.column("base_offset")),
            0,
        )
        for name in ("least", "archived_to")
    }
    by_file = pa.table({"file": rows.column("file"), **counts}).group_by("file")
    sums = by_file.aggregate([(name, "sum") for name in counts])
    columns = (sums.column(name).to_pylist() for name in ("file", "least_sum", "archived_to_sum"))
    return {file: Expired(expired, archived) for file, expired, archived in zip(*columns, strict=True)}


def without_expired(rows: pa.Table, segments: Sequence[Produced], positions: Positions) -> Parted:
    """``segments``: of the first rows, in their order; the rows behind them are in no queue, and stay."""
    expired = np.array([_before(positions.min_offset(one.queue), one) for one in segments], dtype=np.int64)
    gone = _first_of_each(segments, expired, rows.num_rows)
    if not gone.any():
        return Parted(rows, list(segments), tables.OUTCOME.empty_table(), rows.slice(0, 0))
    kept = np.array([_before(positions.archived_to(one.queue), one) for one in segments], dtype=np.int64)
    archived = _first_of_each(segments, np.minimum(kept, expired), rows.num_rows)
    trimmed = [
        replace(segment, base=(segment.base or 0) + number, count=segment.count - number)
        for segment, number in zip(segments, expired.tolist(), strict=True)
        if number < segment.count
    ]
    outcomes = outcomes_of(rows.filter(pa.array(gone)))
    return Parted(rows.filter(pa.array(~gone)), trimmed, outcomes, rows.filter(pa.array(archived)))


def _before(offset: int, segment: Produced) -> int:
    """How many messages of the segment are before the offset."""
    return min(max(offset - (segment.base or 0), 0), segment.count)


def _first_of_each(segments: Sequence[Produced], numbers: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.bool_]:
    """For each row whether it is among the first ``numbers`` of its segment."""
    counts = np.array([segment.count for segment in segments], dtype=np.int64)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    first = np.zeros(rows, dtype=bool)
    first[: len(starts)] = np.arange(len(starts)) - starts < np.repeat(numbers, counts)
    return first


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
