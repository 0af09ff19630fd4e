"""What waits, and what of it is due: decided from positions and segments.

A queue of a delay level or of the timer is in the order of due times, and a segment of it is due as a whole. So its first
message tells whether anything in it is due, and a queue is read only up to its first segment that is not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rmq_store.commit.ctl import SCHEDULE_GROUP, Produced, is_born_here, lane
from rmq_store.commit.decide import MAX_SKEW_MS
from rmq_store.commit.positions import Positions, QueueRange, cutover_id, off_id
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.pull import Slice, cover
from rmq_store.consumer.start import Start, StartRule
from rmq_store.consumer.timer import longest_wait_ms
from rmq_store.errors import BadData
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC

SegmentsOf = Callable[[Sequence[QueueRange]], Mapping[MessageQueue, Sequence[Produced]]]
"""The segments that overlap some ranges, by queue, in offset order."""

GapsOf = Callable[[MessageQueue], Sequence[QueueRange]]
"""The offsets of a queue in which salvages found no message."""


def no_gaps(queue: MessageQueue) -> Sequence[QueueRange]:
    """The ``GapsOf`` of queues that nothing was salvaged into."""
    return ()


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """A message that is due and does not say where it goes. Its queue waits at it: its offset can only move forwards."""

    queue: MessageQueue
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Due:
    """What to move from one queue."""

    queue: MessageQueue
    begin: int
    """The first offset that waits."""
    slices: tuple[tuple[int, Slice], ...]
    """In offset order, each with the time (UTC ms) at which it is due."""
    next_due_ms: int | None
    """When the first segment that is not due yet will be (UTC ms). None: there is none, or more than the cap is due."""
    capped: bool
    """Whether the cap left something that is due."""
    undeliverable: Undeliverable | None = None
    """The message at which the queue waits; what is before it moves."""

    @property
    def range(self) -> QueueRange:
        """What the delivery passes, with what is lost before a message that moves."""
        return QueueRange(self.queue, self.begin, self.slices[-1][1].end)

    @property
    def lost(self) -> tuple[QueueRange, ...]:
        """The parts of ``range`` without a message."""
        reached = [self.begin, *(slice_.end for _, slice_ in self.slices)]
        pairs = zip(reached, (slice_.begin for _, slice_ in self.slices), strict=False)
        return tuple(QueueRange(self.queue, end, begin) for end, begin in pairs if end < begin)


def select_due(
    positions: Positions,
    segments_of: SegmentsOf,
    local_broker: str,
    levels: DelayLevels,
    *,
    now_ms: int,
    cap: int,
    clock_ms: int | None = None,
    queues: Sequence[MessageQueue] | None = None,
    gaps_of: GapsOf = no_gaps,
    undeliverable: Mapping[MessageQueue, Undeliverable] = MappingProxyType({}),
) -> list[Due]:
    """Per waiting queue what is due at ``now_ms`` (UTC ms), oldest first over all queues, up to ``cap`` messages.

    A due time further ahead than the longest delay counts as due, as in
    ScheduleMessageService.DeliverDelayedMessageTimerTask#correctDeliverTimestamp (rules 11.3). ``clock_ms``: the real time,
    if ``now_ms`` is another one; the later of the two is compared, so that a delivery "as of yesterday" does not deliver
    everything. Another host's clock may be ahead by ``MAX_SKEW_MS``, as at every commit.

    ``queues``: only these; None: all ``waiting_queues``. ``segments_of`` is called with the first message of each queue, then
    with more of the queues in which all of that is due. ``gaps_of`` is asked at a hole: the gap of a salvage is passed over, as
    RocketMQ passes over an entry whose message it does not find (rules 11.3). Raises BadData for another hole in a queue before
    its first message that is not due.

    ``undeliverable``: by queue the first message that cannot be delivered, where one is known. Nothing is chosen from it on, so
    what waits behind it does not count towards ``cap``.
    """
    latest_ms = max(now_ms, clock_ms or now_ms) + MAX_SKEW_MS
    chosen = waiting_queues(positions, local_broker) if queues is None else queues
    ranges = [_before(_waiting_range(positions, queue), undeliverable.get(queue)) for queue in chosen]
    waiting = [
        _WaitingQueue(r.begin, r, now_ms, latest_ms + longest_wait_ms(r.queue, levels), cap, gaps_of)
        for r in ranges
        if len(r)
    ]
    while unread := [queue for queue in waiting if len(queue.unread)]:
        segments = segments_of([queue.next_piece() for queue in unread])
        for queue in unread:
            queue.look_at(segments.get(queue.unread.queue, ()))
    begins = {range_.queue: range_.begin for range_ in ranges}
    nothing = {queue: Due(queue, begins[queue], (), None, capped=False) for queue in undeliverable}
    due = nothing | {one.queue: one for one in _capped(waiting, cap)}
    return [replace(due[queue], undeliverable=undeliverable.get(queue)) for queue in sorted(due)]


def _before(range_: QueueRange, undeliverable: Undeliverable | None) -> QueueRange:
    return range_ if undeliverable is None else replace(range_, end=undeliverable.offset)


@dataclass(slots=True)
class _WaitingQueue:
    """What is known of a queue while it is read from its first message to the first one that is not due."""

    begin: int
    unread: QueueRange
    """What is not looked at yet; empty when the first message that is not due is known."""
    now_ms: int
    furthest_ms: int
    """A due time (UTC ms) after this one can only come from a wrong clock."""
    cap: int
    gaps_of: GapsOf
    due: list[tuple[int, int, Slice]] = field(default_factory=list)
    """In offset order: (latest due time so far, its own due time, slice)."""
    messages: int = 0
    """How many messages are in ``due``."""
    next_due_ms: int | None = None

    def next_piece(self) -> QueueRange:
        """The first message, then each time as many as were due so far."""
        begin, end = self.unread.begin, self.unread.end
        return replace(self.unread, end=min(begin + max(1, self.messages), end))

    def look_at(self, segments: Sequence[Produced]) -> None:
        """``segments``: those that overlap ``next_piece``. Raises BadData for a hole that is no gap of a salvage."""
        end = max([self.next_piece().end, *(_end(segment) for segment in segments[-1:])])
        piece = replace(self.unread, end=min(end, self.unread.end))
        nothing = replace(self.unread, begin=self.unread.end)
        while piece.begin < piece.end:
            due, hole = _with_due(piece, segments)
            for due_at, slice_ in due:
                if self.now_ms < due_at <= self.furthest_ms:
                    self.unread, self.next_due_ms = nothing, due_at
                    return
                # Within a queue the order of offsets wins over due times that fall: its offset can only move forwards.
                reached = max(due_at, self.due[-1][0]) if self.due else due_at
                self.due.append((reached, due_at, slice_))
                self.messages += len(slice_)
                if self.messages > self.cap:
                    self.unread = nothing
                    return
            begin = piece.end if hole is None else self._end_of_gap(hole)
            self.unread = replace(self.unread, begin=begin)
            piece = replace(piece, begin=begin, end=max(begin, piece.end))

    def _end_of_gap(self, hole: QueueRange) -> int:
        """Where the gap ends that a hole begins in. It may be far longer than what was looked at."""
        ends = [gap.end for gap in self.gaps_of(hole.queue) if gap.begin <= hole.begin < gap.end]
        if not ends:
            raise _not_found(hole)
        return min(ends[0], self.unread.end)


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
    first = []
    for head in heads:
        due, hole = _with_due(head, segments.get(head.queue, ()))
        if hole is not None:
            raise _not_found(hole)
        first += [due_at for due_at, _ in due]
    return WaitingRetries(sum(map(len, waiting)), min(first))


def next_due_ms(due: Sequence[Due]) -> int | None:
    """When the next waiting message is due (UTC ms); None: nothing waits."""
    return min((one.next_due_ms for one in due if one.next_due_ms is not None), default=None)


def first_due(
    positions: Positions,
    segments_of: SegmentsOf,
    local_broker: str,
    levels: DelayLevels,
    clock_ms: int,
    gaps_of: GapsOf = no_gaps,
) -> int | None:
    """When the first waiting message is due (UTC ms); it may be past, as a delivery has to run. None: nothing waits; 0: one has
    a due time that no delay reaches, and is due now. The arguments are those of ``select_due``, and so is BadData."""
    heads = select_due(
        positions, segments_of, local_broker, levels, now_ms=0, cap=1, clock_ms=clock_ms, gaps_of=gaps_of
    )
    return 0 if any(one.slices for one in heads) else next_due_ms(heads)


def still_due(positions: Positions, due: Sequence[Due]) -> bool:
    """Whether everything in ``due`` is still the first that waits in its queue: no other delivery has moved any of it, and no
    hand-back has given a queue back to its broker."""
    return all(
        start_in(positions, one.queue).offset == one.range.begin and _is_delivered_here(positions, one.queue)
        for one in due
        if one.slices
    )


def _is_delivered_here(positions: Positions, queue: MessageQueue) -> bool:
    return is_born_here(queue.broker_name) or bool(positions.get(cutover_id(queue.broker_name)))


def start_in(positions: Positions, queue: MessageQueue) -> Start:
    """Where the system group goes on in a queue: at its first message where it has no offset, or one before that message, as
    ScheduleMessageService#correctDelayOffset (rules 3.4). Retention removes nothing that waits: the broker had removed it."""
    stored, first = positions.get(off_id(SCHEDULE_GROUP, queue)), positions.min_offset(queue)
    if stored is None or stored < first:
        return Start(first, StartRule.FIRST_OFFSET)
    return Start(stored, StartRule.STORED)


def _waiting_range(positions: Positions, queue: MessageQueue) -> QueueRange:
    return QueueRange(queue, start_in(positions, queue).offset, positions.max_offset(queue))


def _with_due(range_: QueueRange, segments: Sequence[Produced]) -> tuple[list[tuple[int, Slice]], QueueRange | None]:
    """The slices of a range up to its first hole, in offset order, each with its due time (UTC ms); and that hole.
    ``segments``: in offset order."""
    slices, holes = cover(range_, segments)
    bases = [segment.base or 0 for segment in segments]
    hole = holes[0] if holes else None
    before = [slice_ for slice_ in slices if hole is None or slice_.begin < hole.begin]
    return [(segments[bisect_right(bases, slice_.begin) - 1].deliver_at or 0, slice_) for slice_ in before], hole


def _not_found(hole: QueueRange) -> BadData:
    return BadData(f"{hole.queue} has no message at [{hole.begin}, {hole.end}): nothing was delivered")


def _end(segment: Produced) -> int:
    return (segment.base or 0) + segment.count


def _capped(queues: Sequence[_WaitingQueue], cap: int) -> list[Due]:
    chosen: dict[MessageQueue, list[tuple[int, Slice]]] = defaultdict(list)
    capped: set[MessageQueue] = set()
    rest = cap
    due = [item for queue in queues for item in queue.due]
    for _, due_at, slice_ in sorted(due, key=lambda item: (item[0], item[2].queue, item[2].begin)):
        if rest <= 0:
            capped.add(slice_.queue)
            continue
        head = slice_.cut(rest)[0]
        if len(head) < len(slice_):
            capped.add(slice_.queue)
        chosen[slice_.queue].append((due_at, head))
        rest -= len(head)
    waiting = {one.unread.queue: one for one in queues}
    return [
        Due(queue, waiting[queue].begin, tuple(chosen[queue]), waiting[queue].next_due_ms, queue in capped)
        for queue in sorted(waiting)
    ]
