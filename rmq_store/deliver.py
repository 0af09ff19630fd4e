"""What a delivery moves (S11.3): RocketMQ's ScheduleMessageService as a decision over positions and segments.

A level queue is in due order, and a segment of it is due as a whole. Progress is the offset of a system group, moved in
the commit that makes the delivered copies visible: once, never early by the committing host's clock, oldest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.consumer.delay import DelayLevels, queue_id_to_delay_level
from rmq_store.consumer.pull import Slice, cover
from rmq_store.consumer.start import StartRule
from rmq_store.errors import BadData
from rmq_store.message import SCHEDULE_TOPIC, MessageQueue
from rmq_store.offsets import Claim, Outcome, Positions, QueueRange, Tally, cutover_id, grp_id, off_id
from rmq_store.store import (
    SCHEDULE_GROUP,
    Action,
    Actor,
    Consumed,
    Ctl,
    Produced,
    Proposal,
    StagedFile,
    canonical_json,
)
from rmq_store.window import STORED, Start

CAP = 100_000
"""Messages a commit delivers at most; what is left is delivered by the next one."""

CAUSE = "deliver"

SegmentsOf = Callable[[Sequence[QueueRange]], Mapping[MessageQueue, Sequence[Produced]]]
"""The segments that overlap some ranges, by queue."""


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
class Due:
    """What to move from one level queue: slices with the time (UTC ms) they are due at, in offset order.

    ``next_due_ms``: when the first segment that is not due yet will be. ``capped``: something due is left for later.
    """

    queue: MessageQueue
    slices: tuple[tuple[int, Slice], ...]
    next_due_ms: int | None
    capped: bool

    @property
    def range(self) -> QueueRange:
        return QueueRange(self.queue, self.slices[0][1].begin, self.slices[-1][1].end)


def select_due(
    positions: Positions,
    segments_of: SegmentsOf,
    local_broker: str,
    levels: DelayLevels,
    now_ms: int,
    cap: int,
    clock_ms: int | None = None,
) -> list[Due]:
    """Per level queue what is due at ``now_ms``, oldest first over all queues up to ``cap`` messages.

    ``clock_ms``: the real time where ``now_ms`` is another one; whether a due time lies impossibly far ahead is judged
    by the later of the two, so that a delivery "as of yesterday" does not take everything for a mistake.
    Raises BadData when a waiting message cannot be found.
    """
    latest_ms = max(now_ms, clock_ms or now_ms)
    waiting = {queue: _waiting_range(positions, queue) for queue in waiting_queues(positions, local_broker)}
    segments = segments_of(list(waiting.values()))
    ripe: list[tuple[int, int, Slice]] = []
    next_due: dict[MessageQueue, int | None] = {}
    for queue, range_ in waiting.items():
        level, next_due[queue], reached = queue_id_to_delay_level(queue.queue_id), None, 0
        for due_at, slice_ in _with_due(range_, segments.get(queue, ())):
            if now_ms < due_at <= latest_ms + levels.delay_ms(level):
                next_due[queue] = due_at
                break
            # A queue is never overtaken by itself, whatever its due times say: an offset can only move forwards.
            reached = max(reached, due_at)
            ripe.append((reached, due_at, slice_))
    return _capped(ripe, next_due, cap)


def waiting_queues(positions: Positions, local_broker: str) -> list[MessageQueue]:
    """The level queues that are ours to deliver: those of the lake's lanes, and a broker's own after its cut-over."""
    return [
        queue
        for queue in positions.queues_of(SCHEDULE_TOPIC)
        if queue.broker_name.startswith(f"{local_broker}~") or positions.get(cutover_id(queue.broker_name))
    ]


def next_due_ms(due: Sequence[Due]) -> int | None:
    """When the next message that waits is due."""
    return min((one.next_due_ms for one in due if one.next_due_ms is not None), default=None)


def deliver_proposal(
    commit_id: str,
    request_id: str,
    actor: Actor,
    now_ms: int,
    positions: Positions,
    due: Sequence[Due],
    produced: Sequence[Produced],
    files: Sequence[StagedFile],
    claim_id: str,
    claim: Claim,
    tally_of_range: Callable[[QueueRange], Tally],
) -> Proposal:
    """A delivery as a commit. ``due``: queues with something to move; ``produced``, ``files``: the copies."""
    grp = grp_id(SCHEDULE_GROUP)
    offsets = {off_id(SCHEDULE_GROUP, one.queue): one.range for one in due}
    expect = {grp: positions.get(grp), claim_id: claim.packed()}
    advance = {grp: positions.get(grp) or 0, claim_id: Claim(claim.number, 0).packed()}
    ctl = Ctl(
        commit_id,
        Action.DELIVER,
        actor,
        request_id=request_id,
        group=SCHEDULE_GROUP,
        epoch=positions.get(grp) or 0,
        parameters=canonical_json({"now_ms": now_ms}),
        consumed=tuple(
            Consumed(one.range, 0, {Outcome.ACKED: tally_of_range(one.range)}, _start(positions, one.queue).rule)
            for one in due
        ),
        produced=tuple(produced),
    )
    return Proposal(
        ctl,
        expect | {app_id: positions.get(app_id) for app_id in offsets},
        advance | {app_id: range_.end for app_id, range_ in offsets.items()},
        tuple(files),
    )


def delivered(status: str, shard: str, ctl: Ctl, due: Sequence[Due] = ()) -> DeliverReport:
    """The report of a delivery that stands in the log. ``due``: what was looked at, if it has just been made."""
    messages = sum(len(consumed.range) for consumed in ctl.consumed)
    more = any(one.capped for one in due)
    return DeliverReport(status, shard, ctl.request_id, messages, more, next_due_ms(due), ctl.commit_id)


def nothing_due(shard: str, request_id: str, due: Sequence[Due]) -> DeliverReport:
    """The report when none of ``due`` has anything to move."""
    return DeliverReport("empty", shard, request_id, 0, False, next_due_ms(due))


def _start(positions: Positions, queue: MessageQueue) -> Start:
    """Where the system group goes on in a level queue: in a new one at its first message."""
    stored = positions.get(off_id(SCHEDULE_GROUP, queue))
    return Start(positions.min_offset(queue), StartRule.FIRST_OFFSET) if stored is None else Start(stored, STORED)


def _waiting_range(positions: Positions, queue: MessageQueue) -> QueueRange:
    return QueueRange(queue, _start(positions, queue).offset, positions.max_offset(queue))


def _with_due(range_: QueueRange, segments: Sequence[Produced]) -> list[tuple[int, Slice]]:
    slices, holes = cover(range_, segments)
    if holes:
        raise BadData(f"{range_.queue} has no message at [{holes[0].begin}, {holes[0].end}): nothing was delivered")
    due_at = {segment.base or 0: segment.deliver_at or 0 for segment in segments}
    return [(due_at[max(base for base in due_at if base <= slice_.begin)], slice_) for slice_ in slices]


def _capped(ripe: list[tuple[int, int, Slice]], next_due: Mapping[MessageQueue, int | None], cap: int) -> list[Due]:
    chosen: dict[MessageQueue, list[tuple[int, Slice]]] = defaultdict(list)
    capped: set[MessageQueue] = set()
    left = cap
    for _, due_at, slice_ in sorted(ripe, key=lambda item: (item[0], item[2].queue, item[2].begin)):
        if left <= 0:
            capped.add(slice_.queue)
            continue
        piece = slice_.cut(left)[0]
        if len(piece) < len(slice_):
            capped.add(slice_.queue)
        chosen[slice_.queue].append((due_at, piece))
        left -= len(piece)
    return [Due(queue, tuple(chosen[queue]), at, queue in capped) for queue, at in sorted(next_due.items())]
