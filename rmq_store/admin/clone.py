"""Cloning a group's offsets (``ConsumerOffsetManager#cloneOffset``, rules 13.6): another group goes on where this one stands.

All topics of the group, or one of them; its retry topic is its own and stays. Two differences from RocketMQ's tool, on
purpose: a queue of which the source has no offset is left as it is (the tool writes 0, which nobody has said), and an
offset beyond the queue's end is refused (a broker copies it, and the target could not go on).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_store.admin.moves import move_proposal, need_reason, next_epoch
from rmq_store.commit.ctl import Action, Actor, Moved, Proposal, canonical_json
from rmq_store.commit.positions import Positions, off_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue, retry_topic
from rmq_store.window.plan import ShardView, observed_offsets


@dataclass(frozen=True, slots=True)
class CloneRequest:
    """``group``: whose offsets are written; ``source``: whose are read. ``topic`` None: all of the source's."""

    group: str
    source: str
    request_id: str
    actor: Actor
    reason: str
    topic: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        need_reason("a clone", self.reason)
        if self.group == self.source:
            raise WrongUse(f"a clone needs two different groups; both are {self.group}")

    @property
    def action(self) -> Action:
        return Action.CLONE

    @property
    def parameters(self) -> str:
        return canonical_json({"source": self.source, "topic": self.topic})

    def wanted(self, shard: ShardView, positions: Positions) -> dict[MessageQueue, int]:
        """Where the source stands in the queues that are asked for, its retry topic aside: by its own offsets, else by
        those that its living broker was last seen with."""
        found = observed_offsets(shard, positions, self.source) | positions.offsets_of(self.source)
        return {q: o for q, o in found.items() if self.topic in (None, q.topic) and q.topic != retry_topic(self.source)}

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        return clone_moves(shard, positions, self)

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        return move_proposal(commit_id, self, positions, moves)


def clone_moves(shard: ShardView, positions: Positions, request: CloneRequest) -> tuple[Moved, ...]:
    """What the clone would move: every queue of which the source has an offset.

    Raises WrongUse when the source has none, or one beyond its queue's end.
    """
    wanted = request.wanted(shard, positions)
    if not wanted:
        of_topic = "" if request.topic is None else f" of topic {request.topic}"
        raise WrongUse(f"group {request.source} has no offsets{of_topic} in shard {shard.name}: nothing to clone")
    epoch = next_epoch(positions, request.group)
    moves = []
    for queue, offset in sorted(wanted.items()):
        most = positions.max_offset(queue)
        if offset > most:
            raise WrongUse(
                f"group {request.source} stands at {offset} of {queue}, beyond its end {most}; reset it there first"
            )
        moves.append(Moved(request.group, queue, positions.get(off_id(request.group, queue)), offset, epoch))
    return tuple(moves)
