"""What a delivery moves: RocketMQ's ScheduleMessageService (rules 11.3) and TimerMessageStore (rules 11.4), as one decision
over positions and segments.

A queue of a delay level or of the timer is in the order of due times, and a segment of it is due as a whole. Progress is
the offset of a system group, and moves in the commit that makes the delivered copies visible. So each message is delivered
once, oldest first, and never early by the clock of the host that commits. A message that leaves a slot of the timer before
it is due goes on to the queue of its second (``Step``).
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
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC

CAP = 100_000
"""The most messages that one commit delivers; the next commit delivers the rest."""

CAUSE = "deliver"

SegmentsOf = Callable[[Sequence[QueueRange]], Mapping[MessageQueue, Sequence[Produced]]]
"""The segments that overlap some ranges, by queue."""


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """A request to deliver what is due in one shard, by one commit."""

    request_id: str
    actor: Actor
    now_ms: int
    """What is due at this time (UTC ms) is delivered."""
    cap: int = CAP
    """The most messages to deliver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverReport:
    """What one commit of a delivery did."""

    status: Status
    """``COMMITTED``, ``ALREADY_COMMITTED`` or ``EMPTY``."""
    shard: str
    request_id: str
    delivered: int
    """Messages that reached their real topic."""
    more: bool
    """Whether the cap left messages that are due already."""
    next_due_ms: int | None
    """When the next waiting message is due (UTC ms); None when nothing waits."""
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()
    """What failed after the commit."""


@dataclass(frozen=True, slots=True)
class Due:
    """What to move from one queue."""

    queue: MessageQueue
    slices: tuple[tuple[int, Slice], ...]
    """In offset order, each with the time (UTC ms) at which it is due."""
    next_due_ms: int | None
    """When the first segment that is not due yet will be (UTC ms)."""
    capped: bool
    """Whether the cap left something that is due."""

    @property
    def range(self) -> QueueRange:
        return QueueRange(self.queue, self.slices[0][1].begin, self.slices[-1][1].end)


def select_due(
    positions: Positions,
    segments_of: SegmentsOf,
    local_broker: str,
    levels: DelayLevels,
    *,
    now_ms: int,
    cap: int,
    clock_ms: int | None = None,
) -> list[Due]:
    """Per waiting queue what is due at ``now_ms`` (UTC ms), oldest first over all queues, up to ``cap`` messages.

    A due time further ahead than the longest delay counts as due, as in
    ScheduleMessageService.DeliverDelayedMessageTimerTask#correctDeliverTimestamp (rules 11.3). ``clock_ms``: the real time,
    if ``now_ms`` is another one; the later of the two is compared, so that a delivery "as of yesterday" does not deliver
    everything. Another host's clock may be ahead by ``MAX_SKEW_MS``, as at every commit.

    Raises BadData for a hole in a waiting queue.
    """
    latest_ms = max(now_ms, clock_ms or now_ms) + MAX_SKEW_MS
    waiting = {queue: _waiting_range(positions, queue) for queue in waiting_queues(positions, local_broker)}
    segments = segments_of(list(waiting.values()))
    due: list[tuple[int, int, Slice]] = []
    next_due: dict[MessageQueue, int | None] = {}
    for queue, range_ in waiting.items():
        longest_ms, next_due[queue], reached = longest_wait_ms(queue, levels), None, 0
        for due_at, slice_ in _with_due(range_, segments.get(queue, ())):
            if now_ms < due_at <= latest_ms + longest_ms:
                next_due[queue] = due_at
                break
            # Within a queue the order of offsets wins over due times that fall: its offset can only move forwards.
            reached = max(reached, due_at)
            due.append((reached, due_at, slice_))
    return _capped(due, next_due, cap)


def waiting_queues(positions: Positions, local_broker: str) -> list[MessageQueue]:
    """The queues that the lake delivers: those of its lanes, and a broker's own level queues after the broker's cut-over.

    A broker's own timer queue is not among them: it is in no order, and only the broker's timer log knows what of it was
    delivered.
    """
    lanes = lane(local_broker, "")
    levels = [
        queue
        for queue in positions.queues_of(SCHEDULE_TOPIC)
        if queue.broker_name.startswith(lanes) or positions.get(cutover_id(queue.broker_name))
    ]
    return levels + [queue for queue in positions.queues_of(TIMER_TOPIC) if queue.broker_name.startswith(lanes)]


def delayed(positions: Positions, group: str) -> list[QueueRange]:
    """The ranges that wait in a group's lane, per queue.

    A broker's own level queues are not among them, also after its cut-over: they hold the messages of all groups.
    """
    queues = [
        queue
        for topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        for lane_name in sorted(positions.brokers_of(topic))
        if lane_name.partition("~")[2] == group
        for queue in positions.queues_of(topic, lane_name)
    ]
    ranges = (_waiting_range(positions, queue) for queue in queues)
    return [range_ for range_ in ranges if len(range_)]


@dataclass(frozen=True, slots=True)
class WaitingRetries:
    """The retries of a group that are not delivered yet."""

    retries: int
    next_due_ms: int
    """When the first of them is due (UTC ms); it may be past, as a delivery has to run."""


def waiting_retries(positions: Positions, segments_of: SegmentsOf, group: str) -> WaitingRetries | None:
    """The group's retries that wait; None: there are none. The first message of each queue is the first one due in it."""
    waiting = delayed(positions, group)
    if not waiting:
        return None
    heads = [replace(range_, end=range_.begin + 1) for range_ in waiting]
    segments = segments_of(heads)
    due = [due_at for head in heads for due_at, _ in _with_due(head, segments.get(head.queue, ()))]
    return WaitingRetries(sum(map(len, waiting)), min(due))


def next_due_ms(due: Sequence[Due]) -> int | None:
    """When the next waiting message is due (UTC ms); None: nothing waits."""
    return min((one.next_due_ms for one in due if one.next_due_ms is not None), default=None)


def deliver_proposal(
    request: DeliverRequest,
    positions: Positions,
    due: Sequence[Due],
    *,
    commit_id: str,
    produced: Sequence[Produced],
    files: Sequence[StagedFile],
    tally_of_range: Callable[[QueueRange], Tally],
) -> Proposal:
    """The commit of a delivery. ``produced``, ``files``: the copies of what is ``due``.

    It records whether the cap left something, so that another attempt of the request goes on after it.
    """
    moving = [one for one in due if one.slices]
    grp = grp_id(SCHEDULE_GROUP)
    offsets = {off_id(SCHEDULE_GROUP, one.queue): one.range for one in moving}
    expect = {grp: positions.get(grp)}
    advance = {grp: positions.get(grp) or 0}
    ctl = Ctl(
        commit_id=commit_id,
        action=Action.DELIVER,
        actor=request.actor,
        request_id=request.request_id,
        group=SCHEDULE_GROUP,
        epoch=positions.get(grp) or 0,
        parameters=canonical_json({"now_ms": request.now_ms, "more": _more(due)}),
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
    """The report of a delivery that has just been committed."""
    rolled = [segment.deliver_at for segment in ctl.produced if segment.queue.topic == TIMER_TOPIC]
    next_ms = min((at for at in (next_due_ms(due), *rolled) if at is not None), default=None)
    return DeliverReport(
        status=Status.COMMITTED,
        shard=shard,
        request_id=ctl.request_id,
        delivered=_messages(ctl),
        more=_more(due),
        next_due_ms=next_ms,
        commit_id=ctl.commit_id,
    )


def already_delivered(shard: str, ctl: Ctl) -> DeliverReport:
    """The report of a delivery that an earlier attempt has committed."""
    return DeliverReport(
        status=Status.ALREADY_COMMITTED,
        shard=shard,
        request_id=ctl.request_id,
        delivered=_messages(ctl),
        more=bool(ctl.parameter("more")),
        next_due_ms=None,
        commit_id=ctl.commit_id,
    )


def _more(due: Sequence[Due]) -> bool:
    return any(one.capped for one in due)


def _messages(ctl: Ctl) -> int:
    """The messages that reached their real topic; those that moved within the timer do not count."""
    return sum(segment.count for segment in ctl.produced if segment.queue.topic != TIMER_TOPIC)


def nothing_due(shard: str, request_id: str, due: Sequence[Due]) -> DeliverReport:
    """The report of a delivery when nothing is due."""
    return DeliverReport(
        status=Status.EMPTY, shard=shard, request_id=request_id, delivered=0, more=False, next_due_ms=next_due_ms(due)
    )


def deliver_all(
    request_id: str,
    deliver_part: Callable[[str], DeliverReport],
    finished: Callable[[DeliverReport], None] | None = None,
) -> list[DeliverReport]:
    """Commit after commit until nothing more is due. Returns at least one report.

    ``deliver_part`` makes one commit under the id that it gets. Each commit has an id of its own, so that another attempt
    of the request goes on where the last one stopped. ``finished`` is called with each report.
    """
    reports: list[DeliverReport] = []
    while not reports or reports[-1].more:
        reports.append(deliver_part(part_id(request_id, len(reports) + 1)))
        if finished is not None:
            finished(reports[-1])
    return reports


# --- where a message goes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """Where a message goes when it leaves its queue."""

    due_ms: int
    """When it is due for its consumers (UTC ms)."""
    queue: MessageQueue | None
    """The queue of the timer in which it waits until then; None: it goes to its REAL_TOPIC and REAL_QID."""
    edits: PropertyEdits


def step(slice_: Slice, due_ms: int, timer_out: str | None, now_ms: int) -> Step:
    """Where a message of the slice goes, and with which properties.

    ``due_ms``: when the slice is due (UTC ms). ``timer_out``: the message's TIMER_OUT_MS, which matters in the slots of the
    timer only. Raises BadData for a TIMER_OUT_MS that is no time.
    """
    queue, stored_ms = slice_.queue, slice_.store_timestamp or 0
    if is_coarse(queue):
        due_ms = deliver_at_of(timer_out, queue)
        if rolls(due_ms, now_ms):
            slot = wheel_slot(due_ms, now_ms)
            return Step(due_ms, MessageQueue(queue.topic, queue.broker_name, slot.queue_id), rolled_edits(stored_ms))
    return Step(due_ms, None, delivered_edits(queue.topic, stored_ms, now_ms))


def moved_to(queue: MessageQueue, count: int, first_row: int, file: str, due_ms: int) -> Produced:
    """The segment of one queue in the file of a delivery. ``due_ms`` is when all of it is due, if the queue is one of the
    timer: such a queue has the messages of one second."""
    return Produced(queue, 0, count, first_row, file, deliver_at=due_ms if queue.topic == TIMER_TOPIC else None)


def _start(positions: Positions, queue: MessageQueue) -> Start:
    """Where the system group goes on in a queue; in a new queue at its first message."""
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


def _capped(due: list[tuple[int, int, Slice]], next_due: Mapping[MessageQueue, int | None], cap: int) -> list[Due]:
    chosen: dict[MessageQueue, list[tuple[int, Slice]]] = defaultdict(list)
    capped: set[MessageQueue] = set()
    rest = cap
    for _, due_at, slice_ in sorted(due, key=lambda item: (item[0], item[2].queue, item[2].begin)):
        if rest <= 0:
            capped.add(slice_.queue)
            continue
        head = slice_.cut(rest)[0]
        if len(head) < len(slice_):
            capped.add(slice_.queue)
        chosen[slice_.queue].append((due_at, head))
        rest -= len(head)
    return [Due(queue, tuple(chosen[queue]), at, queue in capped) for queue, at in sorted(next_due.items())]
