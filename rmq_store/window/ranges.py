"""Which offsets of its queues a window takes, between where it starts and the bounds of its request.

A window begins at the committed offset; a request gives only its upper bound (``docs/architecture.md``, 4). Caps leave each
queue a fair share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from rmq_store.commit.ctl import Ctl
from rmq_store.commit.positions import Positions, QueueRange, blk_id, grp_id, off_id, pas_id
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.consumer.start import Start, StartRule
from rmq_store.errors import BadData, OffsetOutOfRange
from rmq_store.log.get_message_status import get_message_status
from rmq_store.message.message import MessageQueue

Bounds = Mapping[MessageQueue, int]
"""Per queue the offset before which a request ends."""

SizesOf = Callable[[QueueRange], Iterable[tuple[int, int]]]
"""The messages of a range in order: (offset, bytes of the body). Holes are left out."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What a window does with one queue."""

    range: QueueRange
    """The offsets that it reads, ``[begin, end)``; may be empty."""
    lost: QueueRange | None
    """The offsets before ``range`` that are below the queue's first readable offset."""
    pass_: int
    """The group's epoch at which an operator last moved the queue; 0: none did."""
    start_rule: str
    """The rule that chose where the window begins; ``stored`` for a committed offset."""

    @property
    def queue(self) -> MessageQueue:
        return self.range.queue

    @property
    def begin(self) -> int:
        return self.lost.begin if self.lost else self.range.begin


def stored_starts(
    group: str, queues: Sequence[MessageQueue], positions: Positions
) -> tuple[dict[MessageQueue, Start], list[MessageQueue]]:
    """The queues that have a committed offset, as starts, and the queues that have none yet."""
    stored = {queue: positions.get(off_id(group, queue)) for queue in queues}
    starts = {queue: Start(offset, StartRule.STORED) for queue, offset in stored.items() if offset is not None}
    return starts, [queue for queue in queues if stored[queue] is None]


def plan_ranges(
    group: str,
    positions: Positions,
    start_of: Mapping[MessageQueue, Start],
    bounds: Bounds,
    *,
    max_messages: int | None = None,
    lost_is_skipped: bool = False,
) -> list[PlannedRange]:
    """The ranges of one window, in queue order. A queue with nothing to read is left out, unless the group starts in it.

    ``max_messages``: the most that the window reads. ``lost_is_skipped``: whether offsets that retention removed before the
    group read them are recorded as lost; otherwise they raise OffsetOutOfRange. Raises BadData for an offset beyond the
    queue's end, where a broker answers OFFSET_OVERFLOW_BADLY and corrects it (DefaultMessageStore#getMessage, rules 7.1):
    here offsets never move silently.
    """
    if beyond := [queue for queue in sorted(start_of) if start_of[queue].offset > positions.max_offset(queue)]:
        raise _beyond(group, positions, start_of, beyond)
    planned = []
    for queue in sorted(start_of):
        start = start_of[queue]
        least, most = positions.min_offset(queue), positions.max_offset(queue)
        status, _ = get_message_status(start.offset, least, most)
        lost = None
        begin = start.offset
        if begin < least:
            if not lost_is_skipped:
                raise OffsetOutOfRange(
                    f"the offset of group {group} in {queue} is {begin}, but retention removed [{begin}, {least}) ({status}). "
                    f"{_ways_on(group, queue.topic)}"
                )
            lost = QueueRange(queue, begin, least)
            begin = least
        end = max(begin, min(bounds.get(queue, most), most))
        # A start that was just chosen is recorded even when there is nothing to read yet: otherwise the next window would
        # choose again, and skip what was stored in between.
        if lost or end > begin or start.rule != StartRule.STORED:
            # A first start begins the pass of the last operator's action; this window's commit records it in ``pas/``.
            pass_ = positions.get(pas_id(group, queue) if start.rule == StartRule.STORED else grp_id(group)) or 0
            planned.append(PlannedRange(QueueRange(queue, begin, end), lost, pass_, start.rule))
    return planned if max_messages is None else _capped(planned, max_messages)


def _ways_on(group: str, topic: str) -> str:
    """What to do about a range that retention removed in part. A reset refuses a replay group."""
    replayed = replayed_group(group)
    if replayed is None:
        return 'Set on_offset_out_of_range = "skip" to go on and record it as lost, or reset the group to --to-min.'
    return (
        f'{group} is a replay of {replayed}: set on_offset_out_of_range = "skip" in the settings of {replayed} and run the '
        f"same request again, which records it as lost; or replay what is kept: rmq replay --group "
        f"{quote(replayed)} --topic {quote(topic)} --from TIME"
    )


def _beyond(
    group: str, positions: Positions, start_of: Mapping[MessageQueue, Start], beyond: Sequence[MessageQueue]
) -> BadData:
    """The error for queues whose offset is beyond their end, with the command that moves all those of one topic."""
    queue, start = beyond[0], start_of[beyond[0]]
    most = positions.max_offset(queue)
    status, _ = get_message_status(start.offset, positions.min_offset(queue), most)
    others = f", and likewise in {len(beyond) - 1} more queues" if len(beyond) > 1 else ""
    options = " ".join(f"--queue {quote(q.broker_name)}:{q.queue_id}" for q in beyond if q.topic == queue.topic)
    replayed = replayed_group(group)
    way_on = (
        f"Move it: rmq reset --group {quote(group)} --topic {quote(queue.topic)} {options} --to-max --reason ..."
        if replayed is None
        else f"Replay it again: rmq replay --group {quote(replayed)} --topic {quote(queue.topic)} --from TIME"
    )
    return BadData(
        f"the offset of group {group} in {queue} is {start.offset}, beyond the queue's end {most} "
        f"({start.rule}; {status}){others}. {way_on}"
    )


def blocked_offsets(positions: Positions, group: str, windows: Iterable[Ctl]) -> dict[MessageQueue, int]:
    """The offsets at which the queues stay that these windows of an orderly group left blocked, or where they begin since
    retention has removed those. ``windows``: oldest first. Later ones may have read on, or freed a queue; one that an operator
    has moved since, which begins another pass, is not blocked."""
    blocked: set[MessageQueue] = set()
    passes: dict[MessageQueue, int] = {}
    for window in windows:
        blocked |= {one.range.queue for one in window.blocked}
        passes |= {one.range.queue: one.pass_ for one in window.consumed}
    offsets: dict[MessageQueue, int] = {}
    for queue in sorted(blocked):
        offset, is_blocked = positions.get(off_id(group, queue)), positions.get(blk_id(group, queue)) is not None
        if offset is not None and is_blocked and (positions.get(pas_id(group, queue)) or 0) == passes.get(queue):
            offsets[queue] = max(offset, positions.min_offset(queue))
    return offsets


def left_behind(
    stops: Mapping[MessageQueue, int], bounds: Bounds, max_messages: int | None = None
) -> tuple[QueueRange, ...]:
    """What a request leaves unread in blocked queues, of each at least the message that blocks it. ``stops``: where these
    queues stopped; behind its bound, another request has read on. ``max_messages``: how many messages the request could still
    read; None: no limit."""
    rests = [QueueRange(q, stop, bounds[q]) for q, stop in sorted(stops.items()) if stop < bounds.get(q, stop)]
    if max_messages is None:
        return tuple(rests)
    capped = _capped([PlannedRange(rest, None, 0, StartRule.STORED) for rest in rests], max_messages)
    ends = {one.queue: one.range.end for one in capped}
    return tuple(replace(rest, end=ends.get(rest.queue, rest.begin + 1)) for rest in rests)


def _capped(planned: list[PlannedRange], max_messages: int) -> list[PlannedRange]:
    """A fair share for every queue: the smallest first, and what they do not need goes to the others."""
    rest = max_messages
    capped = []
    for number, item in enumerate(sorted(planned, key=lambda p: (len(p.range), p.queue))):
        queues = len(planned) - number
        share = min(len(item.range), rest // queues + (rest % queues > 0))
        rest -= share
        range_ = QueueRange(item.queue, item.range.begin, item.range.begin + share)
        if share or item.lost or item.start_rule != StartRule.STORED:
            capped.append(PlannedRange(range_, item.lost, item.pass_, item.start_rule))
    return sorted(capped, key=lambda p: p.queue)


def capped_by_bytes(planned: Sequence[PlannedRange], max_bytes: int, sizes_of: SizesOf) -> list[PlannedRange]:
    """The same ranges, cut so that their bodies have about ``max_bytes`` bytes in all, a fair share for every queue.

    The first message of a queue is taken whatever its size, as every answer of a broker holds at least one
    (DefaultMessageStore#getMessage, rules 7.2).
    """
    rest = max_bytes
    capped = []
    for number, item in enumerate(sorted(planned, key=lambda p: (len(p.range), p.queue))):
        share = max(rest, 0) // (len(planned) - number)
        end, used = item.range.end, 0
        for place, (offset, size) in enumerate(sizes_of(item.range)):
            if place and used + size > share:
                end = offset
                break
            used += size
        rest -= used
        capped.append(replace(item, range=QueueRange(item.queue, item.range.begin, end)))
    return sorted(capped, key=lambda p: p.queue)


def window_id(group: str, epoch: int, planned: Sequence[PlannedRange]) -> str:
    """A name for what a window takes, the same for the same ranges. It is recorded, and decides nothing."""
    text = ";".join(f"{p.queue}[{p.begin},{p.range.end})" for p in planned)
    return f"{group}-{epoch}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
