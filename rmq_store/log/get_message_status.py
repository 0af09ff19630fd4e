"""A broker's answer to a pull at an offset, and the corrected offset (``DefaultMessageStore#getMessage``, rules 7.1).

A window reads ranges of rows and pulls nothing, but it meets the same cases when it begins at a group's offset. It never
moves that offset silently, as a client does when it is corrected:

| status                | the offset is                | corrected to  | a window                                         |
|-----------------------|------------------------------|---------------|--------------------------------------------------|
| FOUND                 | readable                     | behind what was found | reads from there                         |
| OFFSET_OVERFLOW_ONE   | the end                      | the end       | has nothing to do                                |
| OFFSET_OVERFLOW_BADLY | beyond the end               | the end       | is refused, and says how to move it              |
| OFFSET_TOO_SMALL      | below the first readable one | that one      | stops, or goes on and records what is ``lost``   |
| NO_MESSAGE_IN_QUEUE   | in a queue that never had one | 0            | has nothing to do, or is refused beyond offset 0 |

The other statuses follow from what lies behind a readable offset, where a window goes on in one sweep: NO_MATCHED_MESSAGE
is ``filtered``, MESSAGE_WAS_REMOVING and OFFSET_FOUND_NULL are holes, which are ``lost``. Nor has a window an answer that
could be full: ``get_message`` says where a broker's pull ends (rules 7.2), for tests that compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class GetMessageStatus(StrEnum):
    """Of the broker's store."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


class PullStatus(StrEnum):
    """Of the client."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


def get_message_status(offset: int, min_offset: int, max_offset: int) -> tuple[GetMessageStatus, int]:
    """The status of a pull at ``offset`` of a queue that holds ``[min_offset, max_offset)``, and the corrected offset; for
    FOUND the offset itself, since what comes next depends on what is found."""
    if max_offset == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < min_offset:
        return GetMessageStatus.OFFSET_TOO_SMALL, min_offset
    if offset == max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, max_offset
    return GetMessageStatus.FOUND, offset


_TOLD = {
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
    """What the client is told. Of a queue without messages only offset 0 is legal."""
    return _TOLD.get(status, PullStatus.OFFSET_ILLEGAL if offset else PullStatus.NO_NEW_MSG)


# --- how much one answer holds (rules 7.2) ---------------------------------------------------------------------------

UNIT_BYTES = 20
"""Of a consume queue entry."""

MAX_FILTER_MESSAGE_BYTES = 16_000
"""Of the consume queue that one pull looks through (``maxFilterMessageSize``), or what was asked for if that is more."""

ENTRIES_PER_FILE = 300_000
"""Of a consume queue file (``mappedFileSizeConsumeQueue``), if the broker's settings say nothing else."""


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """What one answer holds at the most, besides what was asked for; its first message is in it whatever its size."""

    messages: int
    bytes: int


IN_MEMORY = TransferLimits(32, 256 << 10)
ON_DISK = TransferLimits(8, 64 << 10)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in its queue. ``size``: of its record, in bytes; ``passes``: the broker's filter."""

    queue_offset: int
    size: int
    passes: bool = True


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """``found``: the offsets of the messages that are sent; ``next_begin_offset``: where the next pull goes on."""

    status: GetMessageStatus
    next_begin_offset: int
    found: tuple[int, ...] = ()


def get_message(
    entries: Iterable[Entry],
    offset: int,
    max_msg_nums: int = 32,
    limits: TransferLimits = IN_MEMORY,
    entries_per_file: int = ENTRIES_PER_FILE,
) -> GetMessageResult:
    """The answer to a pull at a readable offset. ``entries``: those of the queue from it on, ascending.

    A pull reads one consume queue file (``travelCqFileNumWhenGetMessage``), so its answer ends where that ends.
    """
    found: list[int] = []
    total, after = 0, offset
    next_file = offset - offset % entries_per_file + entries_per_file
    for entry in entries:
        if entry.queue_offset >= next_file:
            break
        looked_through = (entry.queue_offset - offset) * UNIT_BYTES
        if looked_through >= max(MAX_FILTER_MESSAGE_BYTES, max_msg_nums * UNIT_BYTES):
            break
        is_full = len(found) >= min(max_msg_nums, limits.messages) or total + entry.size > limits.bytes
        if found and is_full:
            break
        after = entry.queue_offset + 1
        if entry.passes:
            found.append(entry.queue_offset)
            total += entry.size
    status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(status, after, tuple(found))
