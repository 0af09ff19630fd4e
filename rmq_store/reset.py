"""Resetting a group's offsets (S13.1): what is asked, where it goes, and what it proposes.

The operator always wins: a reset raises the group's epoch, so a window that was planned before cannot commit after it
(promise P3), and it opens a new pass of every queue it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.errors import WrongUse
from rmq_store.message import MessageQueue
from rmq_store.offsets import Positions, grp_id, off_id, pas_id
from rmq_store.plan import ShardView
from rmq_store.store import Action, Actor, Ctl, Moved, Proposal, canonical_json


class ResetTo(StrEnum):
    """Where to: the first message stored at or after a time (UTC ms), an offset, the first readable one, the end."""

    TIME = "time"
    OFFSET = "offset"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """``queues`` empty: all of the topic. ``value``: the time or the offset. ``reason`` is asked of everybody."""

    group: str
    topic: str
    to: ResetTo
    request_id: str
    actor: Actor
    reason: str
    value: int | None = None
    queues: tuple[MessageQueue, ...] = ()
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise WrongUse("a reset needs a reason (--reason): it stands in the offset history for good")
        if (self.value is None) == (self.to in (ResetTo.TIME, ResetTo.OFFSET)):
            raise WrongUse(f"reset to {self.to}: {'give the value' if self.value is None else 'takes no value'}")


@dataclass(frozen=True, slots=True)
class ResetReport:
    """``status``: committed, already_committed or dry_run. ``messages``: how many more (or fewer) will be read."""

    status: str
    shard: str
    group: str
    request_id: str
    moves: tuple[Moved, ...]
    commit_id: str | None = None

    @property
    def messages(self) -> int:
        return sum((move.from_offset or 0) - move.to_offset for move in self.moves)


def reset_moves(shard: ShardView, positions: Positions, request: ResetRequest) -> tuple[Moved, ...]:
    """What the reset would move. Raises WrongUse: an unknown topic or queue, an offset outside the queue."""
    epoch = (positions.get(grp_id(request.group)) or 0) + 1
    return tuple(
        Moved(request.group, queue, positions.get(off_id(request.group, queue)), target, epoch)
        for queue, target in _targets(shard, positions, request).items()
    )


def reset_proposal(commit_id: str, request: ResetRequest, positions: Positions, moves: Sequence[Moved]) -> Proposal:
    """The moves as a commit: it expects the offsets and the epoch that the moves were made from."""
    grp = grp_id(request.group)
    epoch = (positions.get(grp) or 0) + 1
    expect: dict[str, int | None] = {grp: positions.get(grp)}
    advance = {grp: epoch}
    for move in moves:
        expect[off_id(request.group, move.queue)] = move.from_offset
        advance |= {off_id(request.group, move.queue): move.to_offset, pas_id(request.group, move.queue): move.pass_}
    ctl = Ctl(
        commit_id,
        Action.RESET,
        request.actor,
        reason=request.reason,
        request_id=request.request_id,
        group=request.group,
        epoch=epoch,
        parameters=canonical_json({"topic": request.topic, "to": str(request.to), "value": request.value}),
        moved=tuple(moves),
    )
    return Proposal(ctl, expect, advance)


def _targets(shard: ShardView, positions: Positions, request: ResetRequest) -> dict[MessageQueue, int]:
    known = positions.queues_of(request.topic)
    if not known:
        raise WrongUse(f"shard {shard.name} has no topic {request.topic}")
    queues = request.queues or known
    strange = sorted(set(queues) - set(known))
    if strange:
        listed = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in known)
        raise WrongUse(f"{strange[0]} does not exist in shard {shard.name}; topic {request.topic} has {listed}")
    match request.to:
        case ResetTo.MIN:
            return {queue: positions.min_offset(queue) for queue in queues}
        case ResetTo.MAX:
            return {queue: positions.max_offset(queue) for queue in queues}
        case ResetTo.TIME:
            return shard.search_offsets(positions, queues, request.value or 0)
        case ResetTo.OFFSET:
            return {queue: _checked(positions, queue, request.value or 0) for queue in queues}


def _checked(positions: Positions, queue: MessageQueue, offset: int) -> int:
    least, most = positions.min_offset(queue), positions.max_offset(queue)
    if not least <= offset <= most:
        raise WrongUse(f"target offset {offset} not in consume queue range [{least}-{most}] of {queue}")
    return offset
