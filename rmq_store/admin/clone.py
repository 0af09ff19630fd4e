"""Clone of a group's offsets (``ConsumerOffsetManager#cloneOffset``, rules 13.6): another group continues at the same offsets.

It covers all topics of the source group, or one of them, but never its retry topic. It differs from RocketMQ's tool in two
ways on purpose. A queue without an offset of the source is not touched: the tool writes 0 there, which the source never
had. An offset beyond the queue's end is refused: a broker copies it, and the target could not consume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_store.admin.offset_moves import move_proposal, need_reason, next_epoch
from rmq_store.admin.replay import refuse_replay
from rmq_store.commit.ctl import Action, Actor, Ctl, Moved, Proposal, canonical_json
from rmq_store.commit.positions import ABSENT, Positions, off_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.window.shard_view import ShardView, observed_offsets


@dataclass(frozen=True, slots=True)
class CloneRequest:
    """A clone of the offsets of one group to another."""

    group: str
    """The group whose offsets are written."""
    source: str
    """The group whose offsets are read."""
    request_id: str
    actor: Actor
    reason: str
    topic: str | None = None
    """None: all topics of the source."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        need_reason("a clone", self.reason)
        refuse_replay("clone to", self.group)
        if self.group == self.source:
            raise WrongUse(f"a clone needs two different groups; both are {self.group}")

    @property
    def action(self) -> Action:
        return Action.CLONE

    @property
    def parameters(self) -> str:
        return canonical_json({"source": self.source, "topic": self.topic})

    def source_offsets(self, shard: ShardView, positions: Positions) -> dict[MessageQueue, int]:
        """The source's offsets to copy: those committed here, else those that the newest import observed."""
        offsets = observed_offsets(shard, positions, self.source) | positions.offsets_of(self.source)
        return {queue: offset for queue, offset in offsets.items() if self._copies(queue)}

    def takes_source(self, shard: ShardView, ctl: Ctl) -> bool:
        """Whether a commit took offsets of the source that would have been copied: it deleted them, or those that an import
        observed stopped counting with it."""
        queues = [move.queue for move in ctl.moved if move.group == self.source and move.to_offset == ABSENT]
        if ctl.action is Action.DELETE and ctl.group == self.source:
            queues += [observed.queue for observed in shard.observed() if observed.group == self.source]
        return any(map(self._copies, queues))

    def _copies(self, queue: MessageQueue) -> bool:
        return self.topic in (None, queue.topic) and queue.topic != retry_topic(self.source)

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        return clone_moves(shard, positions, self)

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        return move_proposal(commit_id, self, positions, moves)


def clone_moves(shard: ShardView, positions: Positions, request: CloneRequest) -> tuple[Moved, ...]:
    """The moves of the clone: one per queue in which the source has an offset.

    Raises WrongUse when the source has no offset, or one beyond its queue's end.
    """
    offsets = request.source_offsets(shard, positions)
    if not offsets:
        of_topic = "" if request.topic is None else f" of topic {request.topic}"
        raise WrongUse(f"group {request.source} has no offsets{of_topic} in shard {shard.name}: nothing to clone")
    epoch = next_epoch(positions, request.group)
    moves = []
    for queue, offset in sorted(offsets.items()):
        most = positions.max_offset(queue)
        if offset > most:
            raise WrongUse(
                f"group {request.source} stands at {offset} of {queue}, beyond its end {most}; reset it there first"
            )
        moves.append(Moved(request.group, queue, positions.get(off_id(request.group, queue)), offset, epoch))
    return tuple(moves)
