"""Consume queues: the entry of a message, the readable range of a queue, and the offset at a time (rules 2).

An entry has 20 bytes: commit log offset (8), size of the whole record (4), tags code (8). The entry of queue offset n
is at byte ``20 * n`` of the queue, counted over its files.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Final

from rmq_store.log.record import Bytes, Record, parse_level
from rmq_store.message.java_text import wrapped
from rmq_store.message.message_const import SCHEDULE_TOPIC, MessageConst
from rmq_store.message.properties import tags_code
from rmq_store.message.sys_flag import MessageSysFlag

UNIT_BYTES: Final = 20
_UNIT: Final = struct.Struct(">qiq")

UNLISTED_LEVEL_MS: Final = 1000
"""The delay of a level that the table does not have (``ScheduleMessageService#computeDeliverTimestamp``)."""


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntry:
    """Where the record of a message is in the commit log."""

    commit_log_offset: int
    size: int
    """Bytes of the whole record."""
    tags_code: int
    """Hash of the tag; in a schedule queue the time when the message is due, epoch ms."""

    def encode(self) -> bytes:
        """The 20 bytes."""
        return _UNIT.pack(self.commit_log_offset, self.size, self.tags_code)

    @property
    def is_written(self) -> bool:
        """False for the zeros behind the last entry of a file (``ConsumeQueue#recover``)."""
        return self.commit_log_offset >= 0 and self.size > 0


FILLER: Final = ConsumeQueueEntry(0, 0x7FFFFFFF, 0)
"""The content of the slots before the first entry, when a queue's first file does not begin at byte 0 (rules 2.2)."""


class BoundaryType(Enum):
    """LOWER: the first message at or after the time; UPPER: the last at or before it (``BoundaryType``)."""

    LOWER = "lower"
    UPPER = "upper"

    @classmethod
    def of(cls, text: str | None) -> BoundaryType:
        """``getType``: "upper" in any case; everything else, also nothing, is LOWER."""
        return cls.UPPER if text is not None and text.upper() == "UPPER" else cls.LOWER


def decode_entries(data: Bytes) -> Iterator[ConsumeQueueEntry]:
    """The entries of whole units; the caller cuts ``data`` to a multiple of 20 bytes."""
    return (ConsumeQueueEntry(*unit) for unit in _UNIT.iter_unpack(data))


def is_indexed(sys_flag: int) -> bool:
    """Whether the message gets an entry: every one without the PREPARED and ROLLBACK bits does (rules 1.7)."""
    return MessageSysFlag.transaction_type(sys_flag) in (
        MessageSysFlag.TRANSACTION_NOT_TYPE,
        MessageSysFlag.TRANSACTION_COMMIT_TYPE,
    )


def entry_tags_code(
    topic: str, properties: Mapping[str, str], store_timestamp: int, delay_levels: Mapping[int, int]
) -> int:
    """The tags code of an entry: the tag's hash, or in the schedule topic the due time, epoch ms (rules 2.1).

    ``delay_levels``: from level to ms, RocketMQ's delayLevelTable.
    """
    if topic == SCHEDULE_TOPIC:
        delay_ms = schedule_delay_ms(properties.get(MessageConst.DELAY_TIME_LEVEL), delay_levels)
        if delay_ms is not None:
            return wrapped(store_timestamp + delay_ms, 64)
    return tags_code(properties.get(MessageConst.TAGS))


def schedule_delay_ms(level_text: str | None, delay_levels: Mapping[int, int]) -> int | None:
    """The delay (ms) for a DELAY property, levels above the highest clamped; None for no delay."""
    level = None if level_text is None else parse_level(level_text)
    if level is None:
        return None
    level = min(level, max(delay_levels, default=0))
    return delay_levels.get(level, UNLISTED_LEVEL_MS) if level > 0 else None


def entry_of(record: Record, delay_levels: Mapping[int, int]) -> ConsumeQueueEntry | None:
    """The entry of a record in its queue at its queue offset; None when it gets none."""
    if not is_indexed(record.sys_flag):
        return None
    code = entry_tags_code(record.topic, record.properties, record.store_timestamp, delay_levels)
    return ConsumeQueueEntry(record.commit_log_offset, record.store_size, code)


def min_offset(written: range, entry_at: Callable[[int], ConsumeQueueEntry], log_min_offset: int) -> int:
    """The first queue offset that is still readable (``ConsumeQueue#correctMinOffset``), by binary search.

    :param written: the queue offsets with entries.
    :param log_min_offset: where the commit log begins after retention.
    :returns: the end of ``written`` when its last message is gone: the max offset never falls.
    """
    return written.start + bisect_left(written, log_min_offset, key=lambda offset: entry_at(offset).commit_log_offset)


def max_offset(written: range, entry_at: Callable[[int], ConsumeQueueEntry], log_max_offset: int) -> int:
    """The next queue offset to write, once entries beyond a log that was cut are dropped (``truncateDirtyLogicFiles``).

    :param log_max_offset: where the commit log ends, exclusive.
    """

    def record_end(offset: int) -> int:
        entry = entry_at(offset)
        return entry.commit_log_offset + entry.size

    return written.start + bisect_right(written, log_max_offset, key=record_end)


def offset_by_time(
    readable: range,
    store_timestamp_at: Callable[[int], int],
    timestamp: int,
    boundary: BoundaryType = BoundaryType.LOWER,
) -> int:
    """The queue offset at a time, by binary search (``ConsumeQueueStore#getOffsetInQueueByTime``, rules 2.3).

    LOWER: the smallest offset whose store time >= ``timestamp``, else the max offset. UPPER: the largest one whose
    store time <= ``timestamp``, else the min offset. An empty queue answers its min.

    :param readable: min to max offset of the queue.
    :param store_timestamp_at: epoch ms of a queue offset, not decreasing. Where a broker's clock stepped back, search
        :func:`latest_so_far` for LOWER and :func:`earliest_from_here` for UPPER: the result is then the bound over all
        messages (RocketMQ's own is arbitrary there).
    """
    if boundary is BoundaryType.LOWER:
        return readable.start + bisect_left(readable, timestamp, key=store_timestamp_at)
    return max(readable.start + bisect_right(readable, timestamp, key=store_timestamp_at) - 1, readable.start)


def latest_so_far(store_timestamps: Sequence[int]) -> list[int]:
    """For each message the latest store time up to it, ascending. Its first value >= t is at the first message >= t."""
    return list(accumulate(store_timestamps, max))


def earliest_from_here(store_timestamps: Sequence[int]) -> list[int]:
    """For each message the earliest store time from it on, ascending. Its last value <= t is at the last message <=
    t."""
    return list(accumulate(reversed(store_timestamps), min))[::-1]
