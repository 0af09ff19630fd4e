"""Setting a group's offsets to those of a file: of a broadcasting client
(``LocalFileOffsetStore``, rules 4), or of a broker for a group of it (``ConsumerOffsetManager``, rules 3.1).

An operator's move like a reset, queue by queue. An offset outside its queue is refused, not rounded into the queue's
range: the group would read other messages than the file says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmq_store.admin.offset_moves import move_proposal, need_reason, next_epoch
from rmq_store.admin.replay import refuse_replay
from rmq_store.admin.reset import checked_offset
from rmq_store.commit.ctl import Action, Actor, Moved, Proposal, canonical_json
from rmq_store.commit.positions import Positions, max_id, off_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.suggestions import listed
from rmq_store.window.shard_view import ShardView

FILE = "file"
"""What the parameter ``to`` of such a reset says; see ``ResetTo`` for the others."""


def digest_of(offsets: Mapping[MessageQueue, int]) -> str:
    """By which a repeated request is known, as its record has it."""
    text = canonical_json({str(queue): offset for queue, offset in offsets.items()})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SetOffsetsRequest:
    """An import of a group's offsets from a file."""

    group: str
    offsets: Mapping[MessageQueue, int]
    """Per queue the next offset to read."""
    source: str
    """The name of the file."""
    request_id: str
    actor: Actor
    reason: str
    dry_run: bool = False

    def __post_init__(self) -> None:
        need_reason("an import of offsets", self.reason)
        refuse_replay("import offsets of", self.group)

    @property
    def action(self) -> Action:
        return Action.RESET

    @property
    def parameters(self) -> str:
        return canonical_json({"to": FILE, "value": self.source, "offsets": digest_of(self.offsets)})

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        """Raises WrongUse: a queue that the shard does not have, an offset outside its queue."""
        unknown = unknown_queues(self.offsets, [positions])
        if unknown:
            raise WrongUse(f"shard {shard.name} has no queue {listed([str(queue) for queue in unknown])}")
        epoch = next_epoch(positions, self.group)
        return tuple(
            Moved(
                self.group,
                queue,
                positions.get(off_id(self.group, queue)),
                checked_offset(positions, queue, offset),
                epoch,
            )
            for queue, offset in sorted(self.offsets.items())
        )

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        return move_proposal(commit_id, self, positions, moves)


def unknown_queues(queues: Mapping[MessageQueue, int], shards: Sequence[Positions]) -> list[MessageQueue]:
    """The queues that no shard has, in RocketMQ's order."""
    return sorted(queue for queue in queues if all(positions.get(max_id(queue)) is None for positions in shards))
