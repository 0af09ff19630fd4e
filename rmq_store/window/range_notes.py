"""What is unusual about a range that is chosen by time, in words: a time in the future, a range without messages, messages that
are no longer kept. Messages are the unit of a replay or a reset, and a time only finds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmq_store.commit.ctl import Produced
from rmq_store.message.message import MessageQueue
from rmq_store.utils.times import format_time


@dataclass(frozen=True, slots=True)
class Removed:
    """How many messages of a range are no longer kept in a queue."""

    messages: int
    is_exact: bool = True
    """False: there may be fewer, as the store times of some are not known."""


def removed_of(least: int, segments: Iterable[Produced], from_ms: int, until_ms: int | None) -> Removed:
    """What ``[from_ms, until_ms)`` (UTC ms) has lost of the messages before ``least``, the first readable offset of a queue.

    ``segments``: those of the queue that are known and begin before it, by offset. A segment has the store times of its first
    and its last message; what is in none was stored between its neighbours.
    """
    messages, is_exact, end, before_ms = 0, True, 0, 0
    for segment in segments:
        base, first_ms, last_ms = segment.base or 0, segment.min_store_timestamp or 0, segment.max_store_timestamp or 0
        if base > end and first_ms >= from_ms and (until_ms is None or before_ms < until_ms):
            messages, is_exact = messages + base - end, False
        if last_ms >= from_ms and (until_ms is None or first_ms < until_ms):
            messages += min(base + segment.count, least) - max(base, end)
            is_exact &= first_ms >= from_ms and (until_ms is None or last_ms < until_ms)
        end, before_ms = min(base + segment.count, least), last_ms
    if end < least and (until_ms is None or before_ms < until_ms):
        messages, is_exact = messages + least - end, False
    return Removed(messages, is_exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRange:
    """A range ``[begin, end)`` of one queue that was found by time."""

    queue: MessageQueue
    begin: int
    end: int
    least: int
    """The first readable offset."""
    most: int
    """The end of the queue."""
    first_ms: int | None
    """When the first readable message was stored (UTC ms); None: there is none, or the range does not begin at it."""
    last_ms: int | None
    """When the newest message was stored (UTC ms); None: the queue never had one, or it is not known."""
    removed: Removed
    """What the range has lost of the messages before ``least``."""


def range_notes(
    ranges: Sequence[TimedRange], from_ms: int, until_ms: int | None, now_ms: int, *, is_reset: bool
) -> list[str]:
    """A sentence for each unusual thing, none when nothing is. ``until_ms`` None: no end was given."""
    notes = []
    if is_reset and from_ms > now_ms:
        notes.append(
            f"{format_time(from_ms)} is in the future: the group moves to the end of each queue, as in RocketMQ, and reads "
            "what is stored from now on, also before that time"
        )
    elif all(one.begin >= one.most for one in ranges):
        newest_ms = max((one.last_ms for one in ranges if one.last_ms), default=None)
        newest = "" if newest_ms is None else f"; the newest is of {format_time(newest_ms)}"
        goes = ": the group moves to the end of each queue" if is_reset else ": there is nothing to replay"
        stored = f"no message was stored at {format_time(from_ms)} or later{newest}"
        kept = f"no message from {format_time(from_ms)} on is kept"
        notes.append((kept if _emptied(ranges, from_ms) else stored) + goes)
    elif until_ms is not None and all(one.begin >= one.end for one in ranges):
        span = f"from {format_time(from_ms)} to {format_time(until_ms)}"
        stored, kept = f"no message was stored {span}", f"no message {span} is kept"
        notes.append((kept if removed_notes(ranges, from_ms) else stored) + ": there is nothing to replay")
    notes += removed_notes(ranges, from_ms)
    if until_ms is not None:
        notes += until_notes(until_ms, now_ms)
    return notes


def until_notes(until_ms: int, now_ms: int) -> list[str]:
    """A sentence for an end in the future, which the end of a window does not wait for."""
    if until_ms <= now_ms:
        return []
    return [
        f"{format_time(until_ms)} is in the future: the request ends with what is stored when its first window is planned"
    ]


def removed_notes(ranges: Sequence[TimedRange], from_ms: int) -> list[str]:
    """A sentence where a range has lost messages: of queues that begin at their first readable message, which is not their
    first and was stored later than ``from_ms``; and of those that held later messages, and hold none any more."""
    cut = [
        one
        for one in ranges
        if one.removed.messages and one.begin <= one.least and one.first_ms is not None and one.first_ms > from_ms
    ]
    emptied = _emptied(ranges, from_ms)
    if cut:
        one = min(cut, key=lambda one: (-(one.first_ms or 0), one.queue))
        begins = f"{one.queue} begins at offset {one.least}, stored at {format_time(one.first_ms or 0)}"
    elif emptied:
        begins = f"{emptied[0].queue} holds none any more"
    else:
        return []
    gone = cut + emptied
    queues = "1 queue" if len(gone) == 1 else f"{len(gone):,} queues"
    count, is_exact = sum(one.removed.messages for one in gone), all(one.removed.is_exact for one in gone)
    messages = "1 message" if count == 1 else f"{count:,} messages"
    kept = f"{'' if is_exact else 'up to '}{messages} of {queues} {'is' if count == 1 else 'are'} no longer kept"
    return [f"messages from {format_time(from_ms)} on may be missing: {begins}; {kept}"]


def _emptied(ranges: Sequence[TimedRange], from_ms: int) -> list[TimedRange]:
    """The queues of which no message is kept, and which have lost some of the range: the newest was stored at ``from_ms`` or
    later."""
    return [
        one
        for one in ranges
        if one.removed.messages and one.most <= one.least and one.last_ms is not None and one.last_ms >= from_ms
    ]
