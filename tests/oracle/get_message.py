"""RocketMQ's answer to a pull: where it ends (``DefaultMessageStore#getMessage``, rules 7.2), and the status that the
client sees (rules 7.1).

A window pulls nothing, so the product has neither. The conformance run compares them with a real broker's answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.log.consume_queue import UNIT_BYTES
from rmq_store.log.get_message_status import GetMessageStatus


class PullStatus(StrEnum):
    """The client's status of a pull (``PullStatus``)."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_PULL_STATUSES = {
    GetMessageStatus.FOUND: PullStatus.FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE: PullStatus.NO_MATCHED_MSG,
    GetMessageStatus.MESSAGE_WAS_REMOVING: PullStatus.NO_MATCHED_MSG,
    GetMessageStatus.OFFSET_FOUND_NULL: PullStatus.NO_NEW_MSG,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: PullStatus.NO_NEW_MSG,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: PullStatus.OFFSET_ILLEGAL,
    GetMessageStatus.OFFSET_TOO_SMALL: PullStatus.OFFSET_ILLEGAL,
    GetMessageStatus.OFFSET_RESET: PullStatus.OFFSET_ILLEGAL,
}


def pull_status(status: GetMessageStatus, offset: int) -> PullStatus:
    """The client's status for the store's. In a queue without messages only offset 0 is legal."""
    return _PULL_STATUSES.get(status, PullStatus.OFFSET_ILLEGAL if offset else PullStatus.NO_NEW_MSG)


# --- how much one answer holds ---------------------------------------------------------------------------------------

MAX_FILTER_MESSAGE_BYTES = 16_000
"""So much of the consume queue one pull examines (``maxFilterMessageSize``), or as much as it asks for if that is
more."""

ENTRIES_PER_FILE = 300_000
"""Entries of a consume queue file (``mappedFileSizeConsumeQueue``) by default."""


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """The most that one answer holds, however much the request asks for; it holds its first message whatever its
    size."""

    messages: int
    bytes: int


IN_MEMORY = TransferLimits(32, 256 << 10)
ON_DISK = TransferLimits(8, 64 << 10)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in its queue."""

    queue_offset: int
    size: int
    """Bytes of its record."""
    passes: bool = True
    """Whether it passes the broker's filter."""


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    status: GetMessageStatus
    next_begin_offset: int
    """Where the next pull begins."""
    offsets: tuple[int, ...] = ()
    """Queue offsets of the messages in the answer."""


def get_message(
    entries: Iterable[Entry],
    offset: int,
    max_msg_nums: int = 32,
    limits: TransferLimits = IN_MEMORY,
    entries_per_file: int = ENTRIES_PER_FILE,
) -> GetMessageResult:
    """The answer to a pull at a readable offset. ``entries``: of the queue, from that offset on, ascending.

    A pull reads one consume queue file (``travelCqFileNumWhenGetMessage``), so its answer ends where the file ends.
    """
    offsets: list[int] = []
    total, after = 0, offset
    next_file = offset - offset % entries_per_file + entries_per_file
    for entry in entries:
        if entry.queue_offset >= next_file:
            break
        examined = (entry.queue_offset - offset) * UNIT_BYTES
        if examined >= max(MAX_FILTER_MESSAGE_BYTES, max_msg_nums * UNIT_BYTES):
            break
        is_full = len(offsets) >= min(max_msg_nums, limits.messages) or total + entry.size > limits.bytes
        if offsets and is_full:
            break
        after = entry.queue_offset + 1
        if entry.passes:
            offsets.append(entry.queue_offset)
            total += entry.size
    status = GetMessageStatus.FOUND if offsets else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(status, after, tuple(offsets))
