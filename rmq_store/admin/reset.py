"""Reset of a group's offsets (``AdminBrokerProcessor#resetOffsetInner``, rules 13.1) and skip to the end
(skipAccumulatedMessage, rules 13.2): the request, and the target offset of each queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.admin.offset_moves import move_proposal, need_reason, next_epoch
from rmq_store.admin.replay import refuse_replay
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Moved, Proposal, canonical_json
from rmq_store.commit.positions import Positions, cutover_id, off_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.settings.retention_settings import NO_GROUP_READS, WAITING_TOPICS
from rmq_store.window.due import start_in
from rmq_store.window.shard_view import ShardView


class ResetTo(StrEnum):
    """The target of a reset."""

    TIME = "time"
    """The first message stored at or after a time."""
    OFFSET = "offset"
    """A given offset."""
    MIN = "min"
    """The first readable message."""
    MAX = "max"
    """The end of the queue."""


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """A reset of a group's offsets of one topic."""

    group: str
    topic: str
    to: ResetTo
    request_id: str
    actor: Actor
    reason: str
    value: int | None = None
    """The time (UTC ms) or the offset; None for MIN and MAX."""
    queues: tuple[MessageQueue, ...] = ()
    """Empty: all queues of the topic."""
    shown: Mapping[MessageQueue, int] | None = None
    """The new offsets that a dry run of this request has shown: they are set in these queues and no others, whatever the time,
    the first message or the end is by now. None: nothing was shown."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        need_reason("a reset", self.reason)
        refuse_replay("reset", self.group)
        if (self.value is None) == (self.to in (ResetTo.TIME, ResetTo.OFFSET)):
            raise WrongUse(f"a reset to {self.to} {'needs a value' if self.value is None else 'takes no value'}")

    @property
    def passes_delayed(self) -> bool:
        """Whether it moves the delivery's own group to an offset of a delay topic: it passes over messages that cannot be
        delivered."""
        return self.group == SCHEDULE_GROUP and self.topic in WAITING_TOPICS and self.to is ResetTo.OFFSET

    @property
    def action(self) -> Action:
        return Action.RESET

    @property
    def parameters(self) -> str:
        queues = sorted(f"{queue.broker_name}:{queue.queue_id}" for queue in self.queues) or None
        return canonical_json({"topic": self.topic, "to": str(self.to), "value": self.value, "queues": queues})

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        return reset_moves(shard, positions, self)

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        return move_proposal(commit_id, self, positions, moves)


def reset_moves(shard: ShardView, positions: Positions, request: ResetRequest) -> tuple[Moved, ...]:
    """The moves of the reset, one per queue. Raises WrongUse for an unknown topic or queue, or an offset outside the queue."""
    epoch = next_epoch(positions, request.group)
    return tuple(
        Moved(request.group, queue, positions.get(off_id(request.group, queue)), target, epoch)
        for queue, target in _targets(shard, positions, request).items()
    )


def _targets(shard: ShardView, positions: Positions, request: ResetRequest) -> dict[MessageQueue, int]:
    if request.topic in WAITING_TOPICS and not request.passes_delayed:
        raise WrongUse(f"{request.topic} {NO_GROUP_READS}")
    known = positions.queues_of(request.topic)
    if not known:
        raise WrongUse(f"shard {shard.name} has no topic {request.topic}")
    queues = request.queues or known
    unknown = sorted(set(queues) - set(known))
    if unknown:
        listed = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in known)
        raise WrongUse(f"{unknown[0]} does not exist in shard {shard.name}; topic {request.topic} has {listed}")
    if request.passes_delayed:
        _refuse_other_pass(positions, request)
    if request.shown is not None:
        shown = request.shown
        return {queue: checked_offset(positions, queue, shown[queue]) for queue in queues if queue in shown}
    match request.to:
        case ResetTo.MIN:
            return {queue: positions.min_offset(queue) for queue in queues}
        case ResetTo.MAX:
            return {queue: positions.max_offset(queue) for queue in queues}
        case ResetTo.TIME:
            return shard.search_offsets(positions, queues, request.value or 0)
        case ResetTo.OFFSET:
            return {queue: checked_offset(positions, queue, request.value or 0) for queue in queues}


def _refuse_other_pass(positions: Positions, request: ResetRequest) -> None:
    """Raise WrongUse unless the request names queues, all delay levels of brokers that are cut over, and an offset behind what
    was delivered there: a message would be delivered a second time. What waits in a lane of the store was stored whole here,
    and the audit follows it to its delivery."""
    if not request.queues:
        raise WrongUse(f"a reset of {request.group} passes over delayed messages: name the queue in which they wait")
    for queue in request.queues:
        if queue.topic != SCHEDULE_TOPIC or not positions.get(cutover_id(queue.broker_name)):
            raise WrongUse(
                f"{queue} is no delay level of a broker that is cut over: only in these a reset passes over messages"
            )
        begin = start_in(positions, queue).offset
        if (request.value or 0) <= begin:
            raise WrongUse(
                f"{queue} is delivered up to offset {begin}: what is before it is not delivered again, and a reset passes over "
                f"messages from it on. Give an offset after {begin}"
            )


def checked_offset(positions: Positions, queue: MessageQueue, offset: int) -> int:
    """The offset. Raises WrongUse when it lies outside the queue, as
    ``AdminBrokerProcessor#resetOffsetInner`` refuses it (rules 13.1)."""
    least, most = positions.min_offset(queue), positions.max_offset(queue)
    if not least <= offset <= most:
        raise WrongUse(
            f"target offset {offset} not in consume queue range [{least}-{most}] of {queue}; {least} is its first readable "
            f"message, {most} its end"
        )
    return offset
