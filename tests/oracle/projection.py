"""The projection: what a group did to its messages, without how it was done (docs/invariants.md, P5). Two stores in which
the same request ran have equal projections, whatever crashed, waited or was repeated on the way; ``==`` compares them.

It has the group, and per pass and queue the consumed ranges with the outcomes of their offsets; every copy of a failed
message with its origin, outcome, attempt, level, target and content; the ranges with an outcome and no copy; the offsets
that were reached. Left out, because each may differ between two correct runs:

- ids and names of commits, windows, requests, files; parts; times, and the properties that have one
- the bounds between commits: ranges of a pass that touch are one range
- the order in a queue that the lake itself fills. Copies get their offsets there in the order of commits, parts and tasks,
  so with more cores or another cap the same message may have another offset. Therefore the origin of a copy is where its
  chain of retries *began*, and the ranges of such a queue have the number of offsets with an outcome, not their hash sum:
  the copies show which offsets they are
- the id of a message born in the lake, which names a commit (ORIGIN_MESSAGE_ID): the origin identifies it
- the texts of errors, which the listener chooses
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow.compute as pc

from rmq_store.admin.redrive import CAUSE
from rmq_store.commit.ctl import SCHEDULE_GROUP, Ctl, lake_message_id
from rmq_store.commit.positions import Outcome, Tally, queue_of, split_id
from rmq_store.consumer.delay import queue_id_to_delay_level
from rmq_store.errors import BadData
from rmq_store.lake.table import tables
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, MessageConst, dlq_topic

TIME_BEARING = frozenset(
    {
        MessageConst.CONSUME_START_TIMESTAMP,
        MessageConst.TIMER_OUT_MS,
        MessageConst.TIMER_ENQUEUE_MS,
        MessageConst.TIMER_DEQUEUE_MS,
    }
)
"""Properties whose value is a time at which the message was handled."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ConsumedRange:
    """Offsets ``[begin, end)`` of a queue that a pass consumed."""

    pass_: int
    queue: MessageQueue
    begin: int
    end: int
    outcomes: tuple[tuple[str, int, int | None], ...]
    """Name, count, and hash sum of the offsets (None for a queue that the lake fills), of every outcome that occurs."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class OutcomeRange:
    """Offsets of a queue with an outcome and no copy."""

    pass_: int
    queue: MessageQueue
    begin: int
    end: int
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Copy:
    """A message that was stored because the one at its origin was retried, dead, or delivered."""

    origin: MessageQueue
    origin_offset: int
    pass_: int
    attempt: int
    outcome: str
    level: int
    """The delay level; 0: no delay."""
    target_topic: str
    properties: tuple[tuple[str, str], ...]
    body_sha256: str
    """"" for a message without a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The projection of a group; every field is sorted."""

    group: str
    ranges: tuple[ConsumedRange, ...]
    outcomes: tuple[OutcomeRange, ...]
    copies: tuple[Copy, ...]
    offsets: tuple[tuple[MessageQueue, int], ...]
    """The next offset of every queue in which the group has a position."""


def projection(shard: Shard, group: str) -> Projection:
    """The projection of a group in one shard, as the commit log's handle sees it. It reads every copy of the group.

    Raises BadData when the chain of a copy leads to an offset of a lake queue that has no copy.
    """
    ctls = shard.ctls_since(0, group=group)
    positions = shard.positions()
    offsets = [(app_id, offset) for app_id, offset in positions.prefixed("off/") if split_id(app_id)[1] == group]
    return Projection(
        group=group,
        ranges=tuple(sorted(_ranges(shard, ctls))),
        outcomes=tuple(sorted(_outcomes(shard, group))),
        copies=tuple(sorted(_copies(shard, group))),
        offsets=tuple(sorted((queue_of(app_id), offset) for app_id, offset in offsets)),
    )


def _filled_by_the_lake(shard: Shard, queue: MessageQueue) -> bool:
    return queue.broker_name == shard.local_broker or queue.broker_name.startswith(shard.lane(""))


# --- ranges ----------------------------------------------------------------------------------------------------------


def _ranges(shard: Shard, ctls: Iterable[Ctl]) -> Iterator[ConsumedRange]:
    """The consumed ranges in commit order, those that touch as one; an overlap or a gap stays visible."""
    by_queue: dict[tuple[int, MessageQueue], list[tuple[int, int, dict[Outcome, Tally]]]] = defaultdict(list)
    for consumed in (consumed for ctl in ctls for consumed in ctl.consumed):
        ranges, range_ = by_queue[consumed.pass_, consumed.range.queue], consumed.range
        begin, before = range_.begin, {outcome: Tally() for outcome in Outcome}
        if ranges and ranges[-1][1] == range_.begin:
            begin, _, before = ranges.pop()
        ranges.append((begin, range_.end, {outcome: before[outcome] + consumed.tally(outcome) for outcome in Outcome}))
    for (pass_, queue), ranges in by_queue.items():
        by_count = _filled_by_the_lake(shard, queue)
        for begin, end, tallies in ranges:
            outcomes = tuple(
                (str(outcome), tally.count, None if by_count else tally.hash_sum)
                for outcome, tally in sorted(tallies.items())
                if tally.count
            )
            yield ConsumedRange(pass_=pass_, queue=queue, begin=begin, end=end, outcomes=outcomes)


def _outcomes(shard: Shard, group: str) -> Iterator[OutcomeRange]:
    """The ``outcome`` rows, those that touch as one."""
    rows = sorted(
        OutcomeRange(
            pass_=row["pass"],
            queue=MessageQueue(row["topic"], row["broker_name"], row["queue_id"]),
            begin=row["begin_offset"],
            end=row["end_offset"],
            outcome=row["outcome"],
            reason=row["reason"],
        )
        for row in _rows(shard, "outcome", tables.OUTCOME.names, {group})
    )
    for _, of_queue in groupby(rows, lambda r: (r.pass_, r.queue, r.outcome, r.reason)):
        joined, *later = of_queue
        for row in later:
            if row.begin == joined.end:
                joined = replace(joined, end=row.end)
            else:
                yield joined
                joined = row
        yield joined


# --- copies ----------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    queue: MessageQueue
    offset: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A message row with a provenance."""

    group: str
    origin: _Place
    own_id: str
    """The id that follows from where the row is stored."""
    columns: dict[str, Any]


def _copies(shard: Shard, group: str) -> Iterator[Copy]:
    groups = {group, SCHEDULE_GROUP}
    if group == SCHEDULE_GROUP:  # it delivers for all groups, so their chains are needed
        groups |= {ctl.group for ctl in shard.ctls_since(0) if ctl.group}
    rows, at = _placed(shard, groups)
    for row in rows:
        if row.group == group:
            origin, ids = _first_origin(shard, row, at)
            yield _copy(row, origin, ids)


def _placed(shard: Shard, groups: set[str]) -> tuple[list[_Row], dict[_Place, _Row]]:
    """The copies of some groups, and the same by their place."""
    segments = {
        (ctl.commit_id, segment.part, segment.queue, segment.first_row + n): segment.base + n
        for group in groups
        for ctl in shard.ctls_since(0, group=group)
        for segment in ctl.produced
        if segment.base is not None
        for n in range(segment.count)
    }
    rows, at = [], {}
    for columns in _rows(shard, "msg", tables.MSG.names, groups):
        queue = MessageQueue(columns["topic"], columns["broker_name"], columns["queue_id"])
        commit_id, part, rel = columns["commit_id"], columns["part"], columns["rel"]
        origin = MessageQueue(columns["origin_topic"], columns["origin_broker_name"], columns["origin_queue_id"])
        row = _Row(
            columns["group_name"],
            _Place(origin, columns["origin_queue_offset"]),
            lake_message_id(commit_id, part, rel),
            columns,
        )
        rows.append(row)
        offset = segments.get((commit_id, part, queue, rel))
        if offset is not None:
            at[_Place(queue, offset)] = row
    return rows, at


def _first_origin(shard: Shard, row: _Row, at: dict[_Place, _Row]) -> tuple[_Place, set[str]]:
    """Where the chain of copies began, and the ids that the copies before this one had."""
    origin, ids = row.origin, set()
    while _filled_by_the_lake(shard, origin.queue):
        before = at.get(origin)
        if before is None:
            raise BadData(f"a copy has the origin {origin.queue} offset {origin.offset}, where there is no message")
        ids.add(before.own_id)
        origin = before.origin
    return origin, ids


def _copy(row: _Row, origin: _Place, ids: set[str]) -> Copy:
    columns = row.columns
    properties = dict(columns["properties"] or ())
    waits = columns["topic"] in (SCHEDULE_TOPIC, TIMER_TOPIC)
    target = properties.get(MessageConst.REAL_TOPIC, "") if waits else columns["topic"]
    kept = {name: text for name, text in properties.items() if name not in TIME_BEARING}
    if kept.get(MessageConst.ORIGIN_MESSAGE_ID) in ids:
        del kept[MessageConst.ORIGIN_MESSAGE_ID]
    body = columns["body"]
    return Copy(
        origin=origin.queue,
        origin_offset=origin.offset,
        pass_=columns["pass"],
        attempt=columns["attempt"],
        outcome=str(_outcome(row)),
        level=queue_id_to_delay_level(columns["queue_id"]) if columns["topic"] == SCHEDULE_TOPIC else 0,
        target_topic=target,
        properties=tuple(sorted(kept.items())),
        body_sha256="" if body is None else hashlib.sha256(body).hexdigest(),
    )


def _outcome(row: _Row) -> Outcome:
    """The outcome of the copy's origin: a delivery has consumed the message of the level queue, a redrive the dead
    letter."""
    if row.group == SCHEDULE_GROUP or row.columns["cause"] == CAUSE:
        return Outcome.ACKED
    return Outcome.DEAD if row.columns["topic"] == dlq_topic(row.group) else Outcome.RETRIED


def _rows(shard: Shard, kind: str, names: list[str], groups: set[str]) -> Iterator[dict[str, Any]]:
    """The rows of one kind that have one of the groups."""
    where = pc.field("partition.kind") == kind
    where &= (pc.field("min.group_name") <= max(groups)) & (pc.field("max.group_name") >= min(groups))
    paths = shard.commitlog.files(where).column("path").to_pylist()
    for row in shard.commitlog.read(paths, names).to_pylist():
        if row["group_name"] in groups:
            yield row
