"""Copies and the messages that they name: the same unique key, the same body, and the queue for which the message was meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import lane
from rmq_store.lake.audit.file_content import COPIES, ORIGIN, ORIGINALS, PLACE
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.tables import origin_of_row
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX
from rmq_store.settings.retention_settings import WAITING_TOPICS
from rmq_store.window.deliver import CAUSE as DELIVERED

_REDRIVEN = "redrive"


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
    least: Mapping[MessageQueue, int],
    failed: Collection[MessageQueue],
) -> Compared:
    """Compare each copy with the message that it names.

    ``least``: the first offsets of queues; messages before them are removed. ``failed``: queues with messages in a file that
    is damaged, of which no finding is made twice.
    """
    every = pa.concat_tables([COPIES.empty_table(), *copies])
    messages = pa.concat_tables([ORIGINALS.empty_table(), *originals])
    renamed = {"key": "message_key", "body": "message_body"} | dict(
        zip([*PLACE, "queue_offset"], ORIGIN.names, strict=True)
    )
    messages = messages.rename_columns([renamed.get(name, name) for name in messages.column_names])
    messages = messages.append_column("stored", pa.repeat(pa.scalar(True), len(messages)))
    joined = every.join(messages, ORIGIN.names, join_type="left outer", use_threads=False)
    findings = list(_of_another_group(shard, every))
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
    yield Problem.COPY_BODY_DIFFERS, pc.not_equal(both.column("body"), both.column("message_body"))
    leaves = pc.and_(
        pc.equal(both.column("cause"), DELIVERED),
        pc.invert(pc.is_in(both.column("topic"), pa.array(sorted(WAITING_TOPICS)))),
    )
    stays = pc.and_kleene(
        pc.equal(both.column("topic"), both.column("real_topic")),
        pc.equal(both.column("queue_id").cast(pa.string()), both.column("real_queue_id")),
    )
    yield Problem.COPY_IN_ANOTHER_TOPIC, pc.and_(leaves, pc.invert(pc.fill_null(stays, False)))


def _of_another_group(shard: Shard, copies: pa.Table) -> Iterator[Finding]:
    """Copies of failed messages that wait in the lane of another group, or are dead letters of another one."""
    failed = copies.filter(
        pc.invert(pc.is_in(copies.column("cause"), pa.array([DELIVERED, _REDRIVEN])))  # those have a rule of their own
    )
    places = failed.group_by(["group_name", "topic", "broker_name"]).aggregate([])
    for place in places.to_pylist():
        group, topic = place["group_name"], place["topic"]
        waits = topic in WAITING_TOPICS and place["broker_name"].endswith(lane("", group))
        if waits or topic == f"{DLQ_GROUP_TOPIC_PREFIX}{group}":
            continue
        same = (pc.field("group_name") == group) & (pc.field("topic") == topic)
        for row in failed.filter(same & (pc.field("broker_name") == place["broker_name"])).to_pylist():
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
