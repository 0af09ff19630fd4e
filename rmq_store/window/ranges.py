"""Which offsets a consumption window takes: the decision of step 1, as pure functions.

A live window always begins at the committed offset; a request gives only its upper bound (design 4). Caps cut a request
into parts: its bounds are resolved once, stand in the ctl row of part 1, and are reused by later parts and attempts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rmq_store.commit.positions import Positions, QueueRange, grp_id, off_id, pas_id
from rmq_store.consumer.start import Start, StartRule
from rmq_store.errors import BadData, OffsetOutOfRange
from rmq_store.log.get_message_status import get_message_status
from rmq_store.message.message import MessageQueue

Bounds = Mapping[MessageQueue, int]
"""Per queue the offset before which a request ends."""

SizesOf = Callable[[QueueRange], Iterable[tuple[int, int]]]
"""The messages of a range in order: (offset, bytes of the body). What is not there is left out."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What a window does with one queue: ``lost`` is below the first readable offset, ``range`` is read."""

    range: QueueRange
    lost: QueueRange | None
    pass_: int
    start_rule: str

    @property
    def queue(self) -> MessageQueue:
        return self.range.queue

    @property
    def begin(self) -> int:
        return self.lost.begin if self.lost else self.range.begin


def starts(
    group: str, queues: Sequence[MessageQueue], positions: Positions
) -> tuple[dict[MessageQueue, Start], list[MessageQueue]]:
    """The stored starts, and the queues that have none yet."""
    stored = {queue: positions.get(off_id(group, queue)) for queue in queues}
    known = {queue: Start(offset, StartRule.STORED) for queue, offset in stored.items() if offset is not None}
    return known, [queue for queue in queues if stored[queue] is None]


def plan_ranges(
    group: str,
    positions: Positions,
    start_of: Mapping[MessageQueue, Start],
    bounds: Bounds,
    *,
    max_messages: int | None = None,
    lost_is_skipped: bool = False,
) -> list[PlannedRange]:
    """The ranges of one window, in queue order; queues with nothing to do are left out, those that start are kept.

    Raises OffsetOutOfRange when messages were removed before the group read them (unless ``lost_is_skipped``) and
    BadData when an offset lies beyond the queue's end (S7.1 OFFSET_OVERFLOW_BADLY): offsets never move silently.
    """
    planned = []
    if beyond := [queue for queue in sorted(start_of) if start_of[queue].offset > positions.max_offset(queue)]:
        raise _beyond(group, positions, start_of, beyond)
    for queue in sorted(start_of):
        start = start_of[queue]
        least, most = positions.min_offset(queue), positions.max_offset(queue)
        status, _ = get_message_status(start.offset, least, most)
        lost = None
        begin = start.offset
        if begin < least:
            if not lost_is_skipped:
                raise OffsetOutOfRange(
                    f"group {group} stands at {begin} of {queue}, but [{begin}, {least}) was removed by retention ({status}). "
                    'Set on_offset_out_of_range = "skip" to go on and record it as lost, or reset the group to --to-min.'
                )
            lost = QueueRange(queue, begin, least)
            begin = least
        end = max(begin, min(bounds.get(queue, most), most))
        # A start that was just chosen is recorded even when there is nothing to read yet: else the next window would
        # choose again, and skip what came in between.
        if lost or end > begin or start.rule != StartRule.STORED:
            # A first start opens the pass of the action before it, as ``pas/`` will say from this window on.
            pass_ = positions.get(pas_id(group, queue) if start.rule == StartRule.STORED else grp_id(group)) or 0
            planned.append(PlannedRange(QueueRange(queue, begin, end), lost, pass_, start.rule))
    return planned if max_messages is None else _capped(planned, max_messages)


def _beyond(
    group: str, positions: Positions, start_of: Mapping[MessageQueue, Start], beyond: Sequence[MessageQueue]
) -> BadData:
    """Of these queues, with the command that moves all of one topic."""
    queue, start = beyond[0], start_of[beyond[0]]
    most = positions.max_offset(queue)
    status, _ = get_message_status(start.offset, positions.min_offset(queue), most)
    others = f", and beyond that of {len(beyond) - 1} more" if len(beyond) > 1 else ""
    named = " ".join(f"--queue {q.broker_name}:{q.queue_id}" for q in beyond if q.topic == queue.topic)
    return BadData(
        f"group {group} stands at {start.offset} of {queue}, beyond its end {most} ({start.rule}; {status}){others}. Move it: "
        f"rmq reset --group {group} --topic {queue.topic} {named} --to-max --reason ..."
    )


def _capped(planned: list[PlannedRange], max_messages: int) -> list[PlannedRange]:
    """A fair share for every queue: the smallest first, what they leave goes to the others."""
    left = max_messages
    capped = []
    for done, item in enumerate(sorted(planned, key=lambda p: (len(p.range), p.queue))):
        share = min(len(item.range), left // (len(planned) - done) + (left % (len(planned) - done) > 0))
        left -= share
        range_ = QueueRange(item.queue, item.range.begin, item.range.begin + share)
        if share or item.lost or item.start_rule != StartRule.STORED:
            capped.append(PlannedRange(range_, item.lost, item.pass_, item.start_rule))
    return sorted(capped, key=lambda p: p.queue)


def capped_by_bytes(planned: Sequence[PlannedRange], max_bytes: int, sizes_of: SizesOf) -> list[PlannedRange]:
    """As many of the messages as have bodies of ``max_bytes`` in all, a fair share for every queue. The first message of a
    queue is taken whatever its size, as a broker's answer holds one (S7.2)."""
    left = max_bytes
    capped = []
    for done, item in enumerate(sorted(planned, key=lambda p: (len(p.range), p.queue))):
        share = max(left, 0) // (len(planned) - done)
        end, taken = item.range.end, 0
        for number, (offset, size) in enumerate(sizes_of(item.range)):
            if number and taken + size > share:
                end = offset
                break
            taken += size
        left -= taken
        capped.append(replace(item, range=QueueRange(item.queue, item.range.begin, end)))
    return sorted(capped, key=lambda p: p.queue)


def window_id(group: str, epoch: int, planned: Sequence[PlannedRange]) -> str:
    """A name for what a window does; it never decides anything."""
    text = ";".join(f"{p.queue}[{p.begin},{p.range.end})" for p in planned)
    return f"{group}-{epoch}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
