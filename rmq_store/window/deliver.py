"""What a delivery moves (S11.3, S11.4): RocketMQ's ScheduleMessageService and TimerMessageStore as one decision over
positions and segments.

A level queue or a queue of the timer is in due order, and a segment of it is due as a whole. Progress is the offset of a
system group, moved in the commit that makes the delivered copies visible: once, never early by the committing host's
clock, oldest first. What leaves a slot of the timer before it is due goes on to the queue of its second (``Step``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rmq_store.commit.ctl import (
    SCHEDULE_GROUP,
    Action,
    Actor,
    Consumed,
    Ctl,
    Produced,
    Proposal,
    StagedFile,
    canonical_json,
    lane,
)
from rmq_store.commit.decide import MAX_SKEW_MS
from rmq_store.commit.positions import Outcome, Positions, QueueRange, Tally, cutover_id, grp_id, off_id
from rmq_store.commit.request import Status, part_id
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.pull import Slice, cover
from rmq_store.consumer.retry import PropertyEdits, delivered_edits, rolled_edits
from rmq_store.consumer.start import Start, StartRule
from rmq_store.consumer.timer import deliver_at_of, is_coarse, longest_wait_ms, rolls, wheel_slot
from rmq_store.errors import BadData
from rmq_store.message.message import SCHEDULE_TOPIC, TIMER_TOPIC, MessageQueue

CAP = 100_000
"""Messages a commit delivers at most; what is left is delivered by the next one."""

CAUSE = "deliver"

SegmentsOf = Callable[[Sequence[QueueRange]], Mapping[MessageQueue, Sequence[Produced]]]
"""The segments that overlap some ranges, by queue."""


@dataclass(frozen=True, slots=True)
class DeliverReport:
    """``status``: committed, already_committed or empty. ``more``: something else is due already.

    ``next_due_ms``: when the next waiting message is due (UTC ms), None when nothing waits. ``warnings``: what went wrong
    after the commit.
    """

    status: Status
    shard: str
    request_id: str
    delivered: int
    more: bool
    next_due_ms: int | None
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """What to move from one queue: slices with the time (UTC ms) they are due at, in offset order.

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
    """Per waiting queue what is due at ``now_ms``, oldest first over all queues up to ``cap`` messages.

    ``clock_ms``: the real time where ``now_ms`` is another one; whether a due time lies impossibly far ahead is judged
    by the later of the two, so that a delivery "as of yesterday" does not take everything for a mistake. Another host's
    clock may be ahead by ``MAX_SKEW_MS``, as at every commit, without being wrong.
    Raises BadData when a waiting message cannot be found.
    """
    latest_ms = max(now_ms, clock_ms or now_ms) + MAX_SKEW_MS
    waiting = {queue: _waiting_range(positions, queue) for queue in waiting_queues(positions, local_broker)}
    segments = segments_of(list(waiting.values()))
    ripe: list[tuple[int, int, Slice]] = []
    next_due: dict[MessageQueue, int | None] = {}
    for queue, range_ in waiting.items():
        longest_ms, next_due[queue], reached = longest_wait_ms(queue, levels), None, 0
        for due_at, slice_ in _with_due(range_, segments.get(queue, ())):
            if now_ms < due_at <= latest_ms + longest_ms:
                next_due[queue] = due_at
                break
            # A queue is never overtaken by itself, whatever its due times say: an offset can only move forwards.
            reached = max(reached, due_at)
            ripe.append((reached, due_at, slice_))
    return _capped(ripe, next_due, cap)


def waiting_queues(positions: Positions, local_broker: str) -> list[MessageQueue]:
    """The queues that are ours to deliver: those of the lake's lanes, and a broker's own level queues after its cut-over.
    A broker's own timer queue is in no order, and what of it was delivered stands in its timer log."""
    lanes = lane(local_broker, "")
    levels = [
        queue
        for queue in positions.queues_of(SCHEDULE_TOPIC)
        if queue.broker_name.startswith(lanes) or positions.get(cutover_id(queue.broker_name))
    ]
    return levels + [queue for queue in positions.queues_of(TIMER_TOPIC) if queue.broker_name.startswith(lanes)]


def delayed(positions: Positions, group: str) -> list[QueueRange]:
    """What waits in a group's lane, queue by queue. What waits in a broker's own level queues after its cut-over is not
    among it: they hold all its groups together, and only the messages say of which they are."""
    queues = (*positions.queues_of(SCHEDULE_TOPIC), *positions.queues_of(TIMER_TOPIC))
    ranges = (_waiting_range(positions, queue) for queue in queues if queue.broker_name.partition("~")[2] == group)
    return [range_ for range_ in ranges if len(range_)]


@dataclass(frozen=True, slots=True)
class WaitingRetries:
    """The retries of a group that wait. ``next_due_ms``: when the first of them is due (UTC ms); past that it waits on,
    until it is delivered."""

    retries: int
    next_due_ms: int


def waiting_retries(positions: Positions, segments_of: SegmentsOf, group: str) -> WaitingRetries | None:
    """What is ``delayed`` of a group, None: nothing. Of each queue, which is in due order, the first message is looked up."""
    waiting = delayed(positions, group)
    if not waiting:
        return None
    heads = [replace(range_, end=range_.begin + 1) for range_ in waiting]
    segments = segments_of(heads)
    due = [due_at for head in heads for due_at, _ in _with_due(head, segments.get(head.queue, ()))]
    return WaitingRetries(sum(map(len, waiting)), min(due))


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
    tally_of_range: Callable[[QueueRange], Tally],
) -> Proposal:
    """A delivery as a commit. ``produced``, ``files``: the copies of what is ``due``. Whether the cap left something for
    the next commit is recorded: the same request goes on there."""
    moving = [one for one in due if one.slices]
    grp = grp_id(SCHEDULE_GROUP)
    offsets = {off_id(SCHEDULE_GROUP, one.queue): one.range for one in moving}
    expect = {grp: positions.get(grp)}
    advance = {grp: positions.get(grp) or 0}
    ctl = Ctl(
        commit_id,
        Action.DELIVER,
        actor,
        request_id=request_id,
        group=SCHEDULE_GROUP,
        epoch=positions.get(grp) or 0,
        parameters=canonical_json({"now_ms": now_ms, "more": _more(due)}),
        consumed=tuple(
            Consumed(one.range, 0, {Outcome.ACKED: tally_of_range(one.range)}, _start(positions, one.queue).rule)
            for one in moving
        ),
        produced=tuple(produced),
    )
    return Proposal(
        ctl,
        expect | {app_id: positions.get(app_id) for app_id in offsets},
        advance | {app_id: range_.end for app_id, range_ in offsets.items()},
        tuple(files),
    )


def committed_delivery(shard: str, ctl: Ctl, due: Sequence[Due]) -> DeliverReport:
    """The report of a delivery that has just been made of ``due``."""
    rolled = [segment.deliver_at for segment in ctl.produced if segment.queue.topic == TIMER_TOPIC]
    next_ms = min((at for at in (next_due_ms(due), *rolled) if at is not None), default=None)
    return DeliverReport(Status.COMMITTED, shard, ctl.request_id, _messages(ctl), _more(due), next_ms, ctl.commit_id)


def already_delivered(shard: str, ctl: Ctl) -> DeliverReport:
    """The report of a delivery that stands in the log."""
    more = bool(ctl.parameter("more"))
    return DeliverReport(Status.ALREADY_COMMITTED, shard, ctl.request_id, _messages(ctl), more, None, ctl.commit_id)


def _more(due: Sequence[Due]) -> bool:
    return any(one.capped for one in due)


def _messages(ctl: Ctl) -> int:
    """What reached its real topic."""
    return sum(segment.count for segment in ctl.produced if segment.queue.topic != TIMER_TOPIC)


def nothing_due(shard: str, request_id: str, due: Sequence[Due]) -> DeliverReport:
    """The report when none of ``due`` has anything to move."""
    return DeliverReport(Status.EMPTY, shard, request_id, 0, False, next_due_ms(due))


def deliver_all(
    request_id: str,
    deliver_part: Callable[[str], DeliverReport],
    finished: Callable[[DeliverReport], None] | None = None,
) -> list[DeliverReport]:
    """Commit after commit until nothing that is due is left; there is at least one report. Each part has an id of its
    own, with which ``deliver_part`` does it, so that the same request goes on where it stopped; ``finished`` is told of
    each."""
    reports: list[DeliverReport] = []
    while not reports or reports[-1].more:
        reports.append(deliver_part(part_id(request_id, len(reports) + 1)))
        if finished is not None:
            finished(reports[-1])
    return reports


# --- where a message goes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a message that leaves its queue.

    ``due_ms``: when it is due for its consumers. ``queue``: where it goes on to, to wait until then; None: out, to its
    REAL_TOPIC and REAL_QID.
    """

    due_ms: int
    queue: MessageQueue | None
    edits: PropertyEdits


def step(slice_: Slice, due_ms: int, timer_out: str | None, now_ms: int) -> Step:
    """``due_ms``: of the slice. ``timer_out``: the message's TIMER_OUT_MS, which counts in the slots of the timer only.

    Raises BadData for one that is no time.
    """
    queue, stored_ms = slice_.queue, slice_.store_timestamp or 0
    if is_coarse(queue):
        due_ms = deliver_at_of(timer_out, queue)
        if rolls(due_ms, now_ms):
            slot = wheel_slot(due_ms, now_ms)
            return Step(due_ms, MessageQueue(queue.topic, queue.broker_name, slot.queue_id), rolled_edits(stored_ms))
    return Step(due_ms, None, delivered_edits(queue.topic, stored_ms, now_ms))


def moved_to(queue: MessageQueue, count: int, first_row: int, file: str, due_ms: int) -> Produced:
    """The copies of one queue in the file of a delivery. In the timer they wait until ``due_ms``, which is that of all
    of them, as a queue of the wheel takes only one second at a time."""
    return Produced(queue, 0, count, first_row, file, deliver_at=due_ms if queue.topic == TIMER_TOPIC else None)


def _start(positions: Positions, queue: MessageQueue) -> Start:
    """Where the system group goes on in a queue: in a new one at its first message."""
    stored = positions.get(off_id(SCHEDULE_GROUP, queue))
    return (
        Start(positions.min_offset(queue), StartRule.FIRST_OFFSET)
        if stored is None
        else Start(stored, StartRule.STORED)
    )


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
