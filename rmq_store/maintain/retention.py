"""Retention: how far the oldest messages of a queue may be removed, and who still needs them.

As at a broker, messages are removed from the beginning of a queue, by age and by size (``CommitLog#deleteExpiredFile``, rules
2.2), and the queue's min offset moves. A broker does not ask its consumers. Here a message stays until

- every group that consumes its queue is past it, unless it is older than ``max_unconsumed_age``: then it is removed, and is
  *lost* for the groups that have not read it;
- it was delivered, if it waits in a schedule queue. No age changes that.

A dead letter is removed only by a rule that names its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rmq_store.commit.positions import QueueRange
from rmq_store.message.message import MessageQueue
from rmq_store.settings.retention_settings import WAITING_TOPICS


class Limit(StrEnum):
    """Which limit of a rule a message exceeds."""

    MAX_AGE = "max_age"
    MAX_BYTES = "max_bytes"
    MAX_UNCONSUMED_AGE = "max_unconsumed_age"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedQueue:
    """A queue, the offsets up to which a rule's limits would remove messages, and those of its groups."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    removable: Mapping[Limit, int]
    """By limit the first offset that it lets stay."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """The next offsets of the groups that consume the queue."""
    archive: bool = False
    """Whether its rule keeps removed messages in the archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What retention removes from a queue, and what holds back the rest."""

    range: QueueRange
    """The offsets that are removed; empty where groups need all."""
    limit: Limit
    """The limit that reached furthest."""
    held_to: int
    """Without groups, the offsets before this one would be removed."""
    held_by: str | None = None
    """The slowest group, where messages stay that it has not consumed."""
    lost: Mapping[str, QueueRange] = field(default_factory=dict)
    """By group the messages that it has not consumed."""
    archive: bool = False
    """Whether the messages go to the archive."""


def removal(queue: RetainedQueue) -> Removal | None:
    """What may be removed; None where no message exceeds a limit.

    The min offset never moves past that of a group, unless ``max_unconsumed_age`` says so.
    """

    def up_to(limit: Limit) -> int:
        return min(max(queue.removable.get(limit, 0), queue.min_offset), queue.max_offset)

    limit = max((Limit.MAX_AGE, Limit.MAX_BYTES), key=up_to)
    held_to, slowest = up_to(limit), min(queue.offsets.values(), default=queue.max_offset)
    overdue_to = queue.min_offset if queue.queue.topic in WAITING_TOPICS else up_to(Limit.MAX_UNCONSUMED_AGE)
    end = max(min(held_to, slowest), overdue_to, queue.min_offset)
    held_to = max(held_to, end)
    if held_to == queue.min_offset:
        return None
    lost = {
        group: QueueRange(queue.queue, max(offset, queue.min_offset), end)
        for group, offset in sorted(queue.offsets.items())
        if max(offset, queue.min_offset) < end
    }
    return Removal(
        range=QueueRange(queue.queue, queue.min_offset, end),
        limit=Limit.MAX_UNCONSUMED_AGE if lost else limit,
        held_to=held_to,
        held_by=min(queue.offsets, key=lambda group: (queue.offsets[group], group)) if end < held_to else None,
        lost=lost,
        archive=queue.archive,
    )


@dataclass(frozen=True, slots=True)
class SizedSegment:
    """Messages ``[begin, end)`` of a queue that are stored together."""

    queue: MessageQueue
    begin: int
    end: int
    size: int
    """bytes"""
    newest_ms: int
    """When the last of them was stored, UTC ms."""


def removable_by_age(segments: Iterable[SizedSegment], before_ms: int) -> dict[MessageQueue, int]:
    """By queue the first offset that stays when every segment at its beginning is removed of which all messages were stored
    before a time (UTC ms). Messages go with the youngest of their segment, so no file has to be opened; a segment has those of
    a day at most. Queues without an offset keep all."""
    removable: dict[MessageQueue, int] = {}
    kept: set[MessageQueue] = set()
    for segment in sorted(segments, key=lambda one: (one.queue, one.begin)):
        if segment.newest_ms >= before_ms:
            kept.add(segment.queue)
        elif segment.queue not in kept:
            removable[segment.queue] = segment.end
    return removable


def removable_by_size(segments: Sequence[SizedSegment], max_bytes: int) -> dict[MessageQueue, int]:
    """By queue the first offset that stays when the oldest messages are removed until all have at most ``max_bytes``.

    ``segments``: of one topic, with all its queues. Each message of a segment has the same share of its size. Queues without an
    offset keep all.
    """
    room, removable = max_bytes, dict[MessageQueue, int]()
    for segment in sorted(segments, key=lambda one: (one.newest_ms, one.queue, one.begin), reverse=True):
        if segment.size > room:
            first = segment.end - room * (segment.end - segment.begin) // segment.size
            removable[segment.queue] = max(removable.get(segment.queue, 0), first)
        room = max(room - segment.size, 0)
    return removable
