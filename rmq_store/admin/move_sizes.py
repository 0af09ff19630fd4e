"""What lies between the offset of a group and the one that an operator moves it to: which messages it reads again, or skips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.commit.ctl import SCHEDULE_GROUP, Moved, is_born_here
from rmq_store.commit.positions import ABSENT, Positions, QueueRange
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.utils.suggestions import listed
from rmq_store.window.due import start_in


class Direction(StrEnum):
    """What a move does with the messages between two offsets."""

    AGAIN = "again"
    """The group goes back: it reads them, for the first time or again."""
    SKIPPED = "skipped"
    """The group goes forward: it does not read them."""
    NONE = "none"
    """There is no message between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSize:
    """The messages between where a group is in a queue and where it goes, those that are no longer kept left out."""

    queue: MessageQueue
    direction: Direction
    messages: int
    bytes: int
    """Of their bodies as they are stored: the column ``stored_body_size``."""

    @property
    def more(self) -> int:
        """How many messages more the group will read; negative: fewer."""
        return -self.messages if self.direction is Direction.SKIPPED else self.messages


@dataclass(frozen=True, slots=True)
class StateBefore:
    """A shard before a move."""

    positions: Positions
    observed: Mapping[MessageQueue, int]
    """The group's offsets that the last import read from a running broker."""
    later_queues_start_at_min: bool
    """Whether the group starts at the first message of a queue that is newer than the group."""

    def start(self, move: Moved) -> int | None:
        """The offset from which the group would read on without the move; None where its settings decide."""
        return self.first_start(move.group, move.queue) if move.from_offset is None else move.from_offset

    def first_start(self, group: str, queue: MessageQueue) -> int | None:
        """The offset from which the group would start without a committed one; None where its settings decide."""
        if group == SCHEDULE_GROUP:
            return start_in(self.positions, queue).offset
        if queue in self.observed:
            return self.observed[queue]
        is_later = self.later_queues_start_at_min and is_born_here(queue.broker_name)
        return self.positions.min_offset(queue) if is_later or queue.topic == retry_topic(group) else None

    def readable(self, queue: MessageQueue, offset: int) -> int:
        """The offset, limited to the readable range."""
        return min(max(offset, self.positions.min_offset(queue)), self.positions.max_offset(queue))

    def between(self, move: Moved) -> tuple[Direction, QueueRange] | None:
        """The readable offsets between the start and the target of a move. None: one of the two is not known."""
        start, queue = self.start(move), move.queue
        if start is None or move.to_offset == ABSENT:
            return None
        begin, end = self.readable(queue, start), self.readable(queue, move.to_offset)
        direction = Direction.NONE if begin == end else Direction.SKIPPED if begin < end else Direction.AGAIN
        return direction, QueueRange(queue, min(begin, end), max(begin, end))


def move_notes(positions: Positions, moves: Sequence[Moved]) -> list[str]:
    """A sentence for what is unusual about moves: no offset changes, or one goes before the first message that is kept."""
    notes = []
    if moves and all(move.from_offset == move.to_offset for move in moves):
        notes.append("the group is already there: no offset changes")
    if removed := not_kept(positions, moves):
        notes.append(
            f"older messages are not kept in {listed(removed, 3)}: the group's next window ends with OffsetOutOfRange, or "
            'records them as lost where on_offset_out_of_range is "skip"'
        )
    return notes


def not_kept(positions: Positions, moves: Iterable[Moved]) -> list[str]:
    """The queues whose move goes before the first message that is kept, in words."""
    return [
        f"{move.queue} (to {move.to_offset}, its first message is {positions.min_offset(move.queue)})"
        for move in moves
        if ABSENT < move.to_offset < positions.min_offset(move.queue)
    ]
