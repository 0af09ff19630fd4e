"""Delete of a group (RocketMQ's ``deleteSubGroup -r``, rules 13.8). Its name can then be reused like a new one.

One commit per shard. It voids every offset of the group, except in its own retry topic: there it moves each offset to
the current end of the queue. What waits in the group's delay levels is still delivered later and gets the outcome
``dropped`` then, since its epoch is older than ``del/`` (``consumer/consume_result.py``). Dead letters stay.
``docs/decisions/0007-delete-a-group.md`` says why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rmq_store.admin.offset_moves import MoveReport, move_proposal, need_reason, next_epoch
from rmq_store.admin.replay import refuse_replay
from rmq_store.commit.ctl import Action, Actor, Moved, Proposal, canonical_json, is_born_here
from rmq_store.commit.positions import (
    ABSENT,
    PositionKind,
    Positions,
    cutover_id,
    del_id,
    ids_of,
    off_id,
    sub_id,
)
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import dlq_topic, retry_topic
from rmq_store.message.validators import is_system_group
from rmq_store.utils.times import format_time
from rmq_store.window.due import delayed
from rmq_store.window.first_window import first_windows
from rmq_store.window.shard_view import ShardView

MADE_AGAIN = "the group was made again here after this delete, and was left alone. Delete it with a new request id"
"""A note on a repeated delete."""


@dataclass(frozen=True, slots=True)
class DeleteGroupRequest:
    """A delete of a group."""

    group: str
    """Of a broadcasting group one client, ``group@client``."""
    request_id: str
    actor: Actor
    reason: str
    dry_run: bool = False

    def __post_init__(self) -> None:
        need_reason("a delete", self.reason)
        if is_system_group(self.group):
            raise WrongUse(f"cannot delete the system group {self.group}")
        refuse_replay("delete", self.group)

    @property
    def action(self) -> Action:
        return Action.DELETE

    @property
    def parameters(self) -> str:
        return "{}"

    def has_something(self, shard: ShardView, positions: Positions) -> bool:
        """Whether the shard has an offset of the group that a delete would change, or the group's first window in another shard
        chose where it starts here."""
        if any(move.from_offset != move.to_offset for move in delete_moves(positions, self.group)):
            return True
        if positions.get(del_id(self.group)) is None and any(one.group == self.group for one in shard.observed()):
            return True
        return first_windows([shard, *shard.others()], self.group).holds_for(shard.name)

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        if not self.has_something(shard, positions):
            raise WrongUse(_nothing(shard.name, positions, self.group))
        return delete_moves(positions, self.group)

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        """The delete as a commit. ``closed`` refuses it when the group got an offset in another queue in between, or another
        queue was blocked, which no expected position would show."""
        proposal = move_proposal(commit_id, self, positions, moves)
        ends = {app_id: ABSENT for app_id, _ in positions.prefixed(ids_of(PositionKind.BLOCKED, self.group))}
        if "@" not in self.group and positions.get(sub_id(self.group)) is not None:  # other clients still read with it
            ends[sub_id(self.group)] = ABSENT
        ends[del_id(self.group)] = next_epoch(positions, self.group)
        return replace(
            proposal,
            ctl=replace(proposal.ctl, parameters=canonical_json(what_waits(positions, self.group).parameters())),
            expect={**proposal.expect, **{app_id: positions.get(app_id) for app_id in ends}},
            advance={**proposal.advance, **ends},
            closed=(ids_of(PositionKind.OFFSET, self.group), ids_of(PositionKind.BLOCKED, self.group)),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages of a group in one shard that it has not consumed."""

    retries: int = 0
    """In its retry queues, at or after its offsets."""
    delayed: int = 0
    """In its delay levels and its timer."""
    dead_letters: int = 0

    def __add__(self, other: Waiting) -> Waiting:
        return Waiting(
            self.retries + other.retries, self.delayed + other.delayed, self.dead_letters + other.dead_letters
        )

    def parameters(self) -> dict[str, int]:
        """For the ctl row."""
        return {"retries": self.retries, "delayed": self.delayed, "dead_letters": self.dead_letters}


def delete_moves(positions: Positions, group: str) -> tuple[Moved, ...]:
    """The moves of a delete: each offset is deleted, or in the group's retry topic moved to the end of the queue."""
    epoch, retries = next_epoch(positions, group), retry_topic(group)
    offsets = positions.offsets_of(group)
    deleted = {queue: ABSENT for queue in offsets if queue.topic != retries}
    ends = {queue: positions.max_offset(queue) for queue in positions.queues_of(retries)}
    return tuple(Moved(group, queue, offsets.get(queue), to, epoch) for queue, to in sorted((deleted | ends).items()))


def what_waits(positions: Positions, group: str) -> Waiting:
    """What a delete would drop, and the dead letters that it would keep.

    A broker's retry queues count only after the cut-over, when they belong to the lake. Its delay levels never count: they
    are shared by all groups, and only the messages say which group they are for.
    """
    retries = {
        q: positions.get(off_id(group, q)) for q in positions.queues_of(retry_topic(group)) if _is_of_lake(positions, q)
    }
    dead = dict.fromkeys(positions.queues_of(dlq_topic(group)))
    waiting, dead_letters = (
        sum(positions.max_offset(q) - max(positions.min_offset(q), at or 0) for q, at in several.items())
        for several in (retries, dead)
    )
    return Waiting(waiting, sum(map(len, delayed(positions, group))), dead_letters)


def _is_of_lake(positions: Positions, queue: MessageQueue) -> bool:
    return is_born_here(queue.broker_name) or bool(positions.get(cutover_id(queue.broker_name)))


def waiting_of(report: MoveReport) -> Waiting:
    """The counts that a delete's commit, or its dry run, recorded."""
    return Waiting(**json.loads(report.parameters))


def is_gone(positions: Positions, group: str) -> bool:
    """Whether the group was deleted and has not been created again: it has offsets in its retry topic only."""
    retries = retry_topic(group)
    return positions.get(del_id(group)) is not None and all(q.topic == retries for q in positions.offsets_of(group))


def _nothing(shard: str, positions: Positions, group: str) -> str:
    names = positions.names(PositionKind.OFFSET)
    of_group = (name for name in names if name.startswith(f"{group}@") and replayed_group(name) is None)
    if clients := sorted(name for name in of_group if not is_gone(positions, name)):
        return (
            f"group {group} is broadcasting: each client has its own offsets. Delete the clients: {', '.join(clients)}"
        )
    if positions.get(del_id(group)) is not None:
        at = format_time(positions.updated_ms(del_id(group)))
        return f"group {group} was deleted in shard {shard} at {at} and has not been created again: nothing to delete"
    return f"group {group} has nothing to delete in shard {shard}"
