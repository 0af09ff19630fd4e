"""Copies and the messages that they name: the same unique key, body and properties of users, the number of attempts that
follows, and the queue for which the message was meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import SCHEDULE_GROUP, lane
from rmq_store.consumer.retry import Cause
from rmq_store.lake.audit.file_content import COPIES, OF_COMMIT, ORIGIN, ORIGINALS, PLACE, differ, sums_of
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.tables import origin_of_row
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX
from rmq_store.settings.retention_settings import WAITING_TOPICS
from rmq_store.window.deliver import CAUSE as DELIVERED

_REDRIVEN = "redrive"

COMMITS = """
SELECT c.*, t.window_id, t.epoch, f.commit_id IS NOT NULL AS has_epochs FROM (
    SELECT DISTINCT shard, commit_id, group_name, pass,
        topic AS origin_topic, broker_name AS origin_broker_name, queue_id AS origin_queue_id
    FROM ctl_consumed WHERE action = 'redrive' OR action = 'consume' AND retried + dead > 0
) c
JOIN ctl t ON t.shard = c.shard AND t.commit_id = c.commit_id
LEFT JOIN (SELECT DISTINCT shard, commit_id FROM ctl_files) f ON f.shard = c.shard AND f.commit_id = c.commit_id
"""
"""What the copies have that a commit made of the messages of a queue. Those of an earlier version, which recorded no files, may
have no epoch."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The result for a shard."""

    findings: list[Finding]
    copies: int
    without_message: int
    """Copies of messages that retention has removed."""


def compare_copies(
    shard: Shard,
    copies: Sequence[pa.Table],
    originals: Sequence[pa.Table],
    commits: pa.Table,
    least: Mapping[MessageQueue, int],
    failed: Collection[MessageQueue],
) -> Compared:
    """Compare each copy with the message that it names, and with the record of its commit.

    ``commits``: the rows of ``COMMITS``.
    ``least``: the first offsets of queues; messages before them are removed. ``failed``: queues with messages in a file that
    is damaged, of which no finding is made twice.
    """
    every = pa.concat_tables([COPIES.empty_table(), *copies])
    messages = pa.concat_tables([ORIGINALS.empty_table(), *originals])
    renamed = {name: f"message_{name}" for name in ("key", "body", "properties", "kept", "reconsume_times", "epoch")}
    renamed |= dict(zip([*PLACE, "queue_offset"], ORIGIN.names, strict=True))
    messages = messages.rename_columns([renamed.get(name, name) for name in messages.column_names])
    messages = messages.append_column("stored", pa.repeat(pa.scalar(True), len(messages)))
    joined = every.join(messages, ORIGIN.names, join_type="left outer", use_threads=False)
    findings = [*_of_another_group(shard, every), *_of_another_commit(shard, every, commits)]
    removed = 0
    absent = joined.filter(pc.is_null(joined.column("stored")))
    for row in absent.to_pylist():
        origin = origin_of_row(row)
        offset = row["origin_queue_offset"]
        if offset is not None and offset < least.get(origin, 0):
            removed += 1
        elif origin not in failed:
            findings.append(_finding(shard, Problem.COPY_OF_ANOTHER_MESSAGE, row, "there is no such message"))
    both = joined.filter(pc.is_valid(joined.column("stored")))
    for problem, mask in _problems(both):
        for row in both.filter(mask).to_pylist():
            target = f"the message is for {row['real_topic']}, queue {row['real_queue_id']}"
            detail = target if problem is Problem.COPY_IN_ANOTHER_TOPIC else None
            findings.append(_finding(shard, problem, row, detail))
    return Compared(findings, len(every), removed)


def _problems(both: pa.Table) -> Iterator[tuple[Problem, pa.ChunkedArray]]:
    yield Problem.COPY_OF_ANOTHER_MESSAGE, pc.not_equal(both.column("key"), both.column("message_key"))
    yield Problem.COPY_BODY_DIFFERS, _differs(both, "body")
    others = [_differs(both, "properties"), _differs(both, "kept"), _other_attempts(both), _other_epochs(both)]
    yield Problem.COPY_PROPERTIES_DIFFER, reduce(pc.or_, others)
    leaves = pc.and_(
        _is_of(both, DELIVERED),
        pc.invert(pc.is_in(both.column("topic"), pa.array(sorted(WAITING_TOPICS)))),
    )
    stays = pc.and_kleene(
        pc.equal(both.column("topic"), both.column("real_topic")),
        pc.equal(both.column("queue_id").cast(pa.string()), both.column("real_queue_id")),
    )
    yield Problem.COPY_IN_ANOTHER_TOPIC, pc.and_(leaves, pc.invert(pc.fill_null(stays, False)))


def _is_of(both: pa.Table, cause: str) -> pa.ChunkedArray:
    return _equal(both.column("cause"), cause)


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray | str) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(left, right), False)


def _differs(both: pa.Table, name: str) -> pa.ChunkedArray:
    """Copies whose sum is not that of their message; of a redriven one it is that after the edits."""
    expected = pc.if_else(_is_of(both, _REDRIVEN), both.column(f"edited_{name}"), both.column(f"message_{name}"))
    return pc.fill_null(pc.not_equal(both.column(name), expected), True)


def _other_attempts(both: pa.Table) -> pa.ChunkedArray:
    """Copies with another number of attempts than follows from their message: the same when it is delivered, 0 when it is
    redriven, else one more. A message in order is tried several times without a copy, and its dead letter has a property with
    their number."""
    times, before = (pc.fill_null(both.column(name), 0) for name in ("reconsume_times", "message_reconsume_times"))
    more = pc.add(before, pa.scalar(1, pa.int32()))  # a Java int, which wraps
    expected = pc.if_else(_is_of(both, _REDRIVEN), 0, pc.if_else(_is_of(both, DELIVERED), before, more))
    in_order = pc.and_(
        pc.invert(pc.is_in(both.column("cause"), pa.array([DELIVERED, _REDRIVEN, str(Cause.RETRY)]))),
        pc.and_(pc.greater(times, more), _equal(both.column("tries"), times.cast(pa.string()))),
    )
    wrong = pc.and_(pc.not_equal(times, expected), pc.invert(in_order))
    return pc.or_(wrong, pc.invert(_equal(pc.coalesce(both.column("attempt"), times), times)))


def _other_epochs(both: pa.Table) -> pa.ChunkedArray:
    """Delivered copies with another epoch than their message: a delivery keeps it."""
    return pc.and_(_is_of(both, DELIVERED), differ(both.column("epoch"), both.column("message_epoch")))


def _of_another_commit(shard: Shard, copies: pa.Table, commits: pa.Table) -> Iterator[Finding]:
    """Copies that have not what their commit gave them. A delivery is no window of a group, and its copies keep their epoch."""
    columns = {name: commits.column(name).combine_chunks() for name in (*OF_COMMIT, "has_epochs")}
    older = {name: column.filter(pc.invert(columns["has_epochs"])) for name, column in columns.items()}
    older["epoch"] = pa.nulls(len(older["epoch"]), pa.int64())
    delivery = [pa.array([SCHEDULE_GROUP]), pa.array([0]), pa.nulls(1, pa.string())]
    known = [sums_of([every[name] for name in OF_COMMIT]) for every in (columns, older)]
    is_known = pc.is_in(copies.column("of_commit"), pa.array(np.concatenate([*known, sums_of(delivery)])))
    for row in copies.filter(pc.invert(is_known)).to_pylist():
        yield _finding(shard, Problem.MESSAGE_DIFFERS_FROM_COMMIT, row, f"of one of {', '.join(OF_COMMIT)}")


def _of_another_group(shard: Shard, copies: pa.Table) -> Iterator[Finding]:
    """Copies of failed messages that wait in the lane of another group, or are dead letters of another one."""
    failed = copies.filter(
        pc.invert(pc.is_in(copies.column("cause"), pa.array([DELIVERED, _REDRIVEN])))  # those have a rule of their own
    )
    places = failed.group_by(["group_name", "topic", "broker_name"]).aggregate([])
    for place in places.to_pylist():
        group, topic = place["group_name"], place["topic"]
        if None not in place.values():
            waits = topic in WAITING_TOPICS and place["broker_name"].endswith(lane("", group))
            if waits or topic == f"{DLQ_GROUP_TOPIC_PREFIX}{group}":
                continue
        same = (pc.field(name).is_null() if value is None else pc.field(name) == value for name, value in place.items())
        for row in failed.filter(reduce(and_, same)).to_pylist():
            yield _finding(shard, Problem.COPY_IN_ANOTHER_TOPIC, row, None)


def _finding(shard: Shard, problem: Problem, row: Mapping[str, object], detail: str | None) -> Finding:
    """A finding at the place of the copy."""
    offset = int(row["queue_offset"])  # type: ignore[call-overload]
    origin = f"it names {origin_of_row(row)}, offset {row['origin_queue_offset']}"
    return Finding(
        shard=shard.name,
        problem=problem,
        group_name=row["group_name"],  # type: ignore[arg-type]
        **{name: row[name] for name in PLACE},  # type: ignore[arg-type]
        begin_offset=offset,
        end_offset=offset + 1,
        detail=f"{origin}; {detail}" if detail else origin,
    )
