"""What a broker has delivered of its delay levels, derived from its log: ``ScheduleMessageService`` (rules 11.3).

A broker delivers a level queue in order and saves its progress only every ten seconds, so after it was killed
``delayOffset.json`` is behind. But each delivered message has a copy in the log that still carries its REAL_TOPIC and
REAL_QID. What is not certain counts as not delivered: it is delivered again, at least once, as on the broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from rmq_store.consumer.delay import queue_id_to_delay_level


class CopyKey(NamedTuple):
    """What a delayed message and its delivered copy have in common: ``ScheduleMessageService#messageTimeUp``."""

    unique_key: str | None
    """None: which message a copy is of is not certain. A client that sends a ``Message`` again with another body keeps it
    (``MessageClientIDSetter#setUniqID``)."""
    real_topic: str | None
    real_queue_id: int | None
    reconsume_times: int
    body_crc: int | None
    born_timestamp: int | None

    @property
    def is_certain(self) -> bool:
        return None not in (self.unique_key, self.real_topic, self.real_queue_id)


@dataclass(frozen=True, slots=True)
class Delayed:
    """A message of a level queue."""

    queue_id: int
    queue_offset: int
    key: CopyKey
    place: int
    """Where its record begins in the commit log."""
    store_timestamp: int
    deliver_at: int | None = None
    """When the broker delivers it at the earliest, in UTC ms. None: it is not known."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A message in its real queue whose properties say that it was delayed."""

    key: CopyKey
    place: int
    store_timestamp: int


CLOCKS_MS = 86_400_000
"""By so many ms the clocks of producers, of brokers and of this store may differ."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Messages of level queues that are not here, although the broker may have delivered them, and their copies are here."""

    begin: int
    """The place in the commit log from which on they may lie."""
    until_ms: int
    """When a salvage left them out, or retention here removed them, in UTC ms: the broker had stored all of them before."""


@dataclass(frozen=True, slots=True)
class LevelProgress:
    """How far one delay level was delivered."""

    level: int
    recorded: int
    """The level's offset in ``delayOffset.json``, or the begin of its queue."""
    delivered: int
    """How many messages from there on have a copy in the log, one after the other."""
    waiting: int
    """How many messages follow these."""
    uncertain: int = 0
    """How many of the waiting ones have a copy too, but after one that waits, or one that may be another message's, also of one
    that is not here, or may have had one that was removed. They are delivered again."""
    lost: int = 0
    """How many offsets between the delivered ones have no message, as a salvage has left it out."""

    @property
    def next_offset(self) -> int:
        return self.recorded + self.delivered + self.lost


class Verdict(Enum):
    """What the log shows of a message of a level queue."""

    DELIVERED = auto()
    UNCERTAIN = auto()
    WAITING = auto()


def level_progress(
    ranges: Mapping[int, tuple[int, int]],
    delayed: Collection[Delayed],
    copies: Iterable[Copy],
    removed_to: Mapping[tuple[str | None, int | None], int],
    *,
    others: Collection[Delayed] = (),
    left_out: Collection[LeftOut] = (),
    is_whole: bool = True,
) -> tuple[LevelProgress, ...]:
    """How far each level queue was delivered.

    ``ranges``: the offsets [recorded, end) to look at, by level queue. ``delayed``: their messages, and all others in any
    level queue that share a key with one of them; an offset without one has no message. ``others``: those that share a key
    under another name of the log. ``copies``: all with such a key. In any order. ``removed_to``: by real topic and queue the
    place in the commit log before which messages of the queue were removed, where any were. ``left_out``, ``is_whole``: as
    ``verdict`` takes them.
    """
    rows_of, copies_of = defaultdict(list), defaultdict(list)
    for row in (*delayed, *others):
        rows_of[row.key].append(row)
    for copy in copies:
        copies_of[copy.key].append(copy)
    verdicts: dict[int, list[tuple[int, Verdict]]] = defaultdict(list)
    for row in sorted(delayed, key=lambda row: row.queue_offset):
        if row.queue_offset in range(*ranges.get(row.queue_id, (0, 0))):
            place = removed_to.get((row.key.real_topic, row.key.real_queue_id), 0)
            of_row = verdict(row, rows_of[row.key], copies_of[row.key], place, left_out=left_out, is_whole=is_whole)
            verdicts[row.queue_id].append((row.queue_offset, of_row))
    return tuple(_progress(queue_id, begin, verdicts[queue_id]) for queue_id, (begin, _) in sorted(ranges.items()))


def verdict(
    row: Delayed,
    rows: Iterable[Delayed],
    copies: Iterable[Copy],
    removed_to: int,
    *,
    left_out: Iterable[LeftOut] = (),
    is_whole: bool = True,
) -> Verdict:
    """``rows``, ``copies``: all with the key of ``row`` that are here. The first copy that was stored after it is its own if no
    other message with the key was stored before that copy; otherwise it may be the copy of the other one. ``removed_to``: the
    place before which messages of the real queue were removed: where there is no copy, one of them may have been it.
    ``left_out``: what may be missing among ``rows``; ``is_whole``: the log was imported from its first message on, so that
    nothing else is."""
    later = [copy for copy in copies if copy.place > row.place and copy.store_timestamp >= row.store_timestamp]
    if not later:
        return Verdict.UNCERTAIN if row.place < removed_to else Verdict.WAITING
    if not row.key.is_certain:
        return Verdict.UNCERTAIN
    first = min(later, key=lambda copy: copy.place)
    alone = sum(other.place < first.place for other in rows) == 1
    is_own = alone and not _may_be_of_missing(row, first, left_out, is_whole=is_whole)
    return Verdict.DELIVERED if is_own else Verdict.UNCERTAIN


def _may_be_of_missing(row: Delayed, copy: Copy, left_out: Iterable[LeftOut], *, is_whole: bool) -> bool:
    """Whether the copy may be that of a message that has the key of ``row`` and is not here.

    It was born when ``row`` was, so it is not among those that were left out long before. What the broker had removed before
    the first import it delivered before its retention: then ``row`` was not due, unless the broker was behind for as long.
    """
    born = min(row.store_timestamp, row.key.born_timestamp or row.store_timestamp)  # a producer's clock may be ahead
    if any(one.begin < copy.place and born <= one.until_ms + CLOCKS_MS for one in left_out):
        return True
    # Such a copy is its own only where the broker's clock was set back, or its table of levels was changed.
    return not is_whole and row.deliver_at is not None and copy.store_timestamp < row.deliver_at


def _progress(queue_id: int, begin: int, verdicts: Sequence[tuple[int, Verdict]]) -> LevelProgress:
    """``verdicts``: of the messages by offset, ascending. Offsets without a message are a gap of a salvage, of any length."""
    delivered = next((n for n, (_, one) in enumerate(verdicts) if one is not Verdict.DELIVERED), len(verdicts))
    reached = verdicts[delivered - 1][0] + 1 if delivered else begin
    rest = [one for _, one in verdicts[delivered:]]
    uncertain = sum(one is not Verdict.WAITING for one in rest)
    lost = reached - begin - delivered
    return LevelProgress(queue_id_to_delay_level(queue_id), begin, delivered, len(rest), uncertain, lost)
