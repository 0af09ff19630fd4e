"""Delivery of what is due (S11.3): RocketMQ's ScheduleMessageService, as one commit per shard over all levels.

A level queue is in due order, and a segment of it is due as a whole. Progress is the offset of a system group, moved in
the commit that makes the delivered copies visible: once, never early by this host's clock, oldest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.consumer.delay import DelayLevels, queue_id_to_delay_level
from rmq_store.consumer.pull import Slice, cover
from rmq_store.consumer.retry import DELIVERED_EDITS
from rmq_store.errors import BadData
from rmq_store.host import Host
from rmq_store.lake import tables
from rmq_store.lake.arrow_maps import edit_maps
from rmq_store.lake.claim import HeldClaim, claimed
from rmq_store.lake.commit import commit, reached
from rmq_store.lake.dispatch import dispatch
from rmq_store.lake.evidence import tally_of_range
from rmq_store.lake.segments import segments_of
from rmq_store.lake.shard import Shard
from rmq_store.lake.slice_reader import SliceReader
from rmq_store.lake.stage import stage
from rmq_store.lake.store import LakeStore
from rmq_store.message import SCHEDULE_TOPIC, MessageConst, MessageQueue
from rmq_store.offsets import Claim, Outcome, Positions, QueueRange, cutover_id, grp_id, off_id
from rmq_store.store import SCHEDULE_GROUP, Action, Actor, Consumed, Ctl, Produced, Proposal, canonical_json

CAP = 100_000
"""Messages a commit delivers at most; what is left is delivered by the next one."""

CAUSE = "deliver"


@dataclass(frozen=True, slots=True)
class DeliverReport:
    """``status``: committed, already_committed or empty. ``more``: something else is due already.

    ``next_due_ms``: when the next waiting message is due (UTC ms), None when nothing waits.
    """

    status: str
    shard: str
    request_id: str
    delivered: int
    more: bool
    next_due_ms: int | None
    commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Due:
    """What to move from one level queue (slices, each with the time it is due at), and when the next one is due."""

    queue: MessageQueue
    slices: tuple[tuple[int, Slice], ...]
    next_due_ms: int | None
    capped: bool

    @property
    def range(self) -> QueueRange:
        return QueueRange(self.queue, self.slices[0][1].begin, self.slices[-1][1].end)


def deliver(
    store: LakeStore,
    shard: Shard,
    request_id: str,
    actor: Actor,
    host: Host,
    *,
    now_ms: int | None = None,
    cap: int = CAP,
) -> DeliverReport:
    """Move everything due at ``now_ms`` (default: this host's clock) to its real topic, in one commit.

    Raises HeldByAnother when another delivery of the shard runs, and the errors of ``commit``.
    """
    started_ms = host.now_ms()
    now_ms = started_ms if now_ms is None else now_ms
    shard.commitlog.refresh()
    due = _plan(store, shard, request_id, now_ms, cap)
    if isinstance(due, DeliverReport):
        return due
    reached("1.planned")
    with claimed(shard, ("~deliver",), request_id, actor, host, group=SCHEDULE_GROUP) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        positions = shard.positions()
        due = _plan(store, shard, request_id, now_ms, cap)  # what was delivered until the claim was ours counts
        if isinstance(due, DeliverReport):
            claim.release()
            return due
        moving = [one for one in due if one.slices]
        proposal = _proposal(shard, positions, moving, request_id, actor, now_ms, host, claim)
        reached("3.staged")
        claim.stop_renewing()
        committed = commit(shard, proposal, host, started_ms=started_ms)
    dispatch(shard, host, fresh=False)
    reached("7.dispatched")
    delivered = sum(len(one.range) for one in moving)
    more = any(one.capped for one in due)
    return DeliverReport("committed", shard.name, request_id, delivered, more, _next_due(due), committed.ctl.commit_id)


def _plan(store: LakeStore, shard: Shard, request_id: str, now_ms: int, cap: int) -> list[_Due] | DeliverReport:
    """What is due, or the report that there is nothing to do for this request."""
    done = [c for c in shard.ctls_of_request(request_id, SCHEDULE_GROUP) if c.action is Action.DELIVER]
    if done:
        delivered = sum(len(consumed.range) for consumed in done[0].consumed)
        return DeliverReport("already_committed", shard.name, request_id, delivered, False, None, done[0].commit_id)
    due = _due(shard, shard.positions(), store.levels, now_ms, cap)
    if any(one.slices for one in due):
        return due
    return DeliverReport("empty", shard.name, request_id, 0, False, _next_due(due))


def waiting_queues(shard: Shard, positions: Positions) -> list[MessageQueue]:
    """The level queues that are ours to deliver: those of the lake's lanes, and a broker's own after its cut-over."""
    return [
        queue
        for queue in positions.queues_of(SCHEDULE_TOPIC)
        if queue.broker_name.startswith(f"{shard.local_broker}~") or positions.get(cutover_id(queue.broker_name))
    ]


def _due(shard: Shard, positions: Positions, levels: DelayLevels, now_ms: int, cap: int) -> list[_Due]:
    """Per level queue what is due, oldest first over all queues up to the cap."""
    waiting = {queue: _waiting_range(positions, queue) for queue in waiting_queues(shard, positions)}
    segments = segments_of(shard, list(waiting.values()))
    ripe: list[tuple[int, int, Slice]] = []
    next_due: dict[MessageQueue, int | None] = {}
    for queue, range_ in waiting.items():
        level = queue_id_to_delay_level(queue.queue_id)
        slices, holes = cover(range_, segments.get(queue, ()))
        if holes:
            raise BadData(f"{queue} has no message at [{holes[0].begin}, {holes[0].end}): nothing was delivered")
        due_at = {segment.base: segment.deliver_at or 0 for segment in segments.get(queue, ())}
        next_due[queue], reached = None, 0
        for slice_, at in _with_due(slices, due_at):
            if not levels.is_due(at, level, now_ms):
                next_due[queue] = at
                break
            # A queue is never overtaken by itself, whatever its due times say: its offset can only move forwards.
            reached = max(reached, at)
            ripe.append((reached, at, slice_))
    return _capped(ripe, next_due, cap)


def _waiting_range(positions: Positions, queue: MessageQueue) -> QueueRange:
    begin = positions.get(off_id(SCHEDULE_GROUP, queue))
    return QueueRange(queue, positions.min_offset(queue) if begin is None else begin, positions.max_offset(queue))


def _with_due(slices: Sequence[Slice], due_at: dict[int | None, int]) -> Iterator[tuple[Slice, int]]:
    bases = sorted(base for base in due_at if base is not None)
    for slice_ in slices:
        base = max(base for base in bases if base <= slice_.begin)
        yield slice_, due_at[base]


def _capped(ripe: list[tuple[int, int, Slice]], next_due: dict[MessageQueue, int | None], cap: int) -> list[_Due]:
    chosen: dict[MessageQueue, list[tuple[int, Slice]]] = defaultdict(list)
    capped: set[MessageQueue] = set()
    left = cap
    for _, at, slice_ in sorted(ripe, key=lambda item: (item[0], item[2].queue, item[2].begin)):
        if left <= 0 or slice_.queue in capped:
            capped.add(slice_.queue)
            continue
        piece = slice_.cut(left)[0]
        if len(piece) < len(slice_):
            capped.add(slice_.queue)
        chosen[slice_.queue].append((at, piece))
        left -= len(piece)
    return [_Due(queue, tuple(chosen[queue]), at, queue in capped) for queue, at in sorted(next_due.items())]


def _next_due(due: Sequence[_Due]) -> int | None:
    return min((one.next_due_ms for one in due if one.next_due_ms is not None), default=None)


# --- the commit ------------------------------------------------------------------------------------------------------


def _proposal(
    shard: Shard,
    positions: Positions,
    due: Sequence[_Due],
    request_id: str,
    actor: Actor,
    now_ms: int,
    host: Host,
    claim: HeldClaim,
) -> Proposal:
    commit_id = host.new_commit_id()
    rows, runs = _delivered(shard, due, commit_id)
    file = stage(shard.root, shard.commitlog.path, "msg", f"{commit_id}-00000", rows, tables.COMMITLOG_STATS)
    grp = grp_id(SCHEDULE_GROUP)
    offsets = {off_id(SCHEDULE_GROUP, one.queue): one.range for one in due}
    expect = {grp: positions.get(grp), claim.app_id: claim.claim.packed()}
    advance = {grp: positions.get(grp) or 0, claim.app_id: Claim(claim.claim.number, 0).packed()}
    ctl = Ctl(
        commit_id,
        Action.DELIVER,
        actor,
        request_id=request_id,
        group=SCHEDULE_GROUP,
        epoch=positions.get(grp) or 0,
        parameters=canonical_json({"now_ms": now_ms}),
        consumed=tuple(Consumed(one.range, 0, {Outcome.ACKED: tally_of_range(one.range)}) for one in due),
        produced=tuple(
            Produced(queue, 0, count, first_row, file.path, first_rel=first_row) for queue, first_row, count in runs
        ),
    )
    return Proposal(
        ctl,
        expect | {app_id: positions.get(app_id) for app_id in offsets},
        advance | {app_id: range_.end for app_id, range_ in offsets.items()},
        (file,),
    )


def _delivered(
    shard: Shard, due: Sequence[_Due], commit_id: str
) -> tuple[pa.Table, list[tuple[MessageQueue, int, int]]]:
    """The copies for the real topics, sorted by queue and then by when they were due, and their runs of rows."""
    copies = pa.concat_tables([_copies(shard, at, slice_) for one in due for at, slice_ in one.slices])
    copies = copies.sort_by([(name, "ascending") for name in _DELIVERED_ORDER])
    runs, row = [], 0
    grouped = copies.group_by(["topic", "broker_name", "queue_id"], use_threads=False).aggregate(
        [("deliver_at", "count")]
    )
    for group in grouped.to_pylist():
        count = group["deliver_at_count"]
        runs.append((MessageQueue(group["topic"], group["broker_name"], group["queue_id"]), row, count))
        row += count
    constant = {"commit_id": commit_id, "part": 0}
    columns = {name: copies.column(name) for name in copies.column_names} | {"rel": pa.array(np.arange(row))}
    columns |= {name: pa.repeat(pa.scalar(value, tables.MSG.field(name).type), row) for name, value in constant.items()}
    columns["deliver_at"] = pa.nulls(row, pa.int64())
    return pa.table({name: columns[name] for name in tables.MSG.names}).cast(tables.MSG), runs


_DELIVERED_ORDER = (
    "topic", "broker_name", "queue_id", "deliver_at", "origin_topic", "origin_broker_name", "origin_queue_id",
    "origin_queue_offset",
)  # fmt: skip


def _copies(shard: Shard, due_at: int, slice_: Slice) -> pa.Table:
    """The copies of one slice of a level queue: to REAL_TOPIC and REAL_QID, on the lake's own broker."""
    offsets = np.arange(slice_.begin, slice_.end)
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets)
    n, maps = rows.num_rows, rows.column("properties").combine_chunks()
    topics = pc.map_lookup(maps, pa.scalar(MessageConst.REAL_TOPIC), "last")
    queue_ids = pc.map_lookup(maps, pa.scalar(MessageConst.REAL_QUEUE_ID), "last")
    if topics.null_count or queue_ids.null_count:
        raise BadData(
            f"{slice_.queue} [{slice_.begin}, {slice_.end}): a message does not say its REAL_TOPIC and REAL_QID"
        )
    columns = {name: rows.column(name) for name in rows.column_names}
    columns |= {field.name: pa.nulls(n, field.type) for field in tables.MSG if field.name not in columns}
    of_the_store = ("queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp", "store_size", "store_host")
    columns |= {name: pa.nulls(n, tables.MSG.field(name).type) for name in of_the_store}
    constant = {
        "broker_name": shard.local_broker,
        "group_name": SCHEDULE_GROUP,
        "pass": 0,
        "origin_topic": slice_.queue.topic,
        "origin_broker_name": slice_.queue.broker_name,
        "origin_queue_id": slice_.queue.queue_id,
        "cause": CAUSE,
    }
    columns |= {name: pa.repeat(pa.scalar(value, tables.MSG.field(name).type), n) for name, value in constant.items()}
    edited = edit_maps(maps, DELIVERED_EDITS.put, DELIVERED_EDITS.put_if_absent, DELIVERED_EDITS.remove)
    return pa.table(
        columns
        | {
            "topic": topics,
            "queue_id": queue_ids.cast(pa.int32()),
            "origin_queue_offset": pa.array(offsets),
            "attempt": rows.column("reconsume_times"),
            "deliver_at": pa.repeat(pa.scalar(due_at, pa.int64()), n),
            "properties": edited,
        }
    )
