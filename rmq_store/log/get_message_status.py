"""A broker's answer to a pull at an offset, and the corrected offset (``DefaultMessageStore#getMessage``, rules 7.1).

A window reads ranges of rows and pulls nothing, but it has the same cases when it begins at a group's offset. It never
moves that offset silently, as a client does after a correction:

| status                | the offset is              | corrected to   | a window                                       |
|-----------------------|----------------------------|----------------|------------------------------------------------|
| FOUND                 | readable                   | after the read | reads from there                               |
| OFFSET_OVERFLOW_ONE   | max                        | max            | has nothing to do                              |
| OFFSET_OVERFLOW_BADLY | above max                  | max            | is refused and says how to move the offset     |
| OFFSET_TOO_SMALL      | below min                  | min            | stops, or goes on and records what is ``lost`` |
| NO_MESSAGE_IN_QUEUE   | in a queue without history | 0              | has nothing to do, or is refused above 0       |

The other statuses depend on what comes after a readable offset. A window reads on there: NO_MATCHED_MESSAGE is
``filtered``; MESSAGE_WAS_REMOVING and OFFSET_FOUND_NULL are holes, which are ``lost``.
"""

from __future__ import annotations

from enum import StrEnum


class GetMessageStatus(StrEnum):
    """The status that the broker's store answers (``GetMessageStatus``)."""

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


def get_message_status(offset: int, min_offset: int, max_offset: int) -> tuple[GetMessageStatus, int]:
    """The status of a pull at ``offset`` of a queue with the messages ``[min_offset, max_offset)``, and the corrected
    offset: for FOUND the offset itself, since the next one depends on what is read."""
    if max_offset == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < min_offset:
        return GetMessageStatus.OFFSET_TOO_SMALL, min_offset
    if offset == max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, max_offset
    return GetMessageStatus.FOUND, offset
