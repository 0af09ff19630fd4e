"""What operators and maintenance do in the search of ``proposal_explorer.py``: moves of offsets, retention, compactions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.offset_moves import MoveRequest
from rmq_store.admin.replay import attempt_proposal, next_attempt
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.admin.undo import ACTIONS, UndoRequest, last_action
from rmq_store.commit.ctl import (
    Action,
    Ctl,
    Proposal,
    canonical_json,
)
from rmq_store.errors import WrongUse
from rmq_store.lake.maintain.retention import RetentionRequest, offsets_of_groups, retention_proposal
from rmq_store.maintain.retention import Limit, RetainedQueue, removal
from rmq_store.message.message import MessageQueue
from rmq_store.window.consume_request import ConsumeRequest
from tests.faults.proposal_operations import ANA, DAY, Draft, Moment, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Operation):
    """A reset, a clone or a delete."""

    request: MoveRequest

    def draft(self, moment: Moment) -> Draft | None:
        request, positions = self.request, moment.view.stored
        if moment.view.parts(request.request_id, request.action):
            return None
        moves = request.moves(moment.view, positions)
        proposal = request.proposal(moment.commit_id, positions, moves)
        return Draft(proposal, "delete" if request.action is Action.DELETE else "move")


def reset(name: str, group: str, topic: str, to: int | None = 0, queues: tuple[MessageQueue, ...] = ()) -> Move:
    """To an offset; None: to the end. ``queues``: only these."""
    request_id = f"{DAY}-{name}"
    where = ResetTo.MAX if to is None else ResetTo.OFFSET
    return Move(name=name, request=ResetRequest(group, topic, where, request_id, ANA, "again", to, queues))


def clone(name: str, group: str, source: str) -> Move:
    return Move(name=name, request=CloneRequest(group, source, f"{DAY}-{name}", ANA, "again"))


def delete(name: str, group: str) -> Move:
    return Move(name=name, request=DeleteGroupRequest(group, f"{DAY}-{name}", ANA, "old"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo(Operation):
    """Of the last action on a group. ``force``: also after windows."""

    group: str
    force: bool = False

    def draft(self, moment: Moment) -> Draft | None:
        view = moment.view
        if view.parts(self.request_id, Action.UNDO):
            return None
        last = last_action(ctl for ctl in view.ctls if ctl.group == self.group and ctl.action in ACTIONS)
        if last is None:
            return None
        request = UndoRequest(
            group=self.group, undone=last, request_id=self.request_id, actor=ANA, reason="wrong group", force=self.force
        )
        try:
            moves = request.moves(view, view.stored)
        except WrongUse:
            return None
        return Draft(request.proposal(moment.commit_id, view.stored, moves), "undo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Operation):
    """The next attempt of a replay."""

    group: str

    def draft(self, moment: Moment) -> Draft | None:
        request = ConsumeRequest(self.request_id, ANA, "again")
        commits = [ctl for ctl in moment.view.ctls if ctl.group == self.group]
        attempt = next_attempt(self.group, request, commits)
        if attempt.begun:
            return None
        proposal = attempt_proposal(moment.commit_id, self.group, attempt, request, moment.view.stored)
        return Draft(proposal, "attempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain(Operation):
    """``removable``: per queue the first offset that may stay; ``unconsumed``: whether also what a group has not read goes."""

    removable: tuple[tuple[MessageQueue, int], ...]
    unconsumed: bool = False
    archive: bool = False

    def draft(self, moment: Moment) -> Draft | None:
        positions = moment.view.stored
        limit = Limit.MAX_UNCONSUMED_AGE if self.unconsumed else Limit.MAX_AGE
        topics: dict[str, list[MessageQueue]] = {}
        for queue in positions.all_queues():
            topics.setdefault(queue.topic, []).append(queue)
        offsets = offsets_of_groups(positions, topics)
        retained = [
            RetainedQueue(
                queue=queue,
                min_offset=positions.min_offset(queue),
                max_offset=positions.max_offset(queue),
                removable={limit: end},
                offsets=offsets.get(queue, {}),
                archive=self.archive,
            )
            for queue, end in self.removable
        ]
        removals = [one for one in map(removal, retained) if one and len(one.range)]
        if not removals:
            return None
        request = RetentionRequest(request_id=f"{self.request_id}-{moment.commit_id}", actor=ANA, rules=())
        return Draft(retention_proposal(request, removals, positions, moment.commit_id), "retention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(Operation):
    """Joins the live files of messages that have these parts of requests."""

    def draft(self, moment: Moment) -> Draft | None:
        paths = sorted(moment.view.live)
        if len(paths) < 2:
            return None
        produced = [
            replace(segment, file=moment.file)
            for ctl in moment.view.ctls
            for segment in ctl.produced
            if segment.file in moment.view.live
        ]
        ctl = Ctl(
            moment.commit_id,
            Action.COMPACT,
            ANA,
            request_id=f"{self.request_id}-{moment.commit_id}",
            parameters=canonical_json({"replaced": paths}),
            produced=tuple(produced),
        )
        return Draft(Proposal(ctl, {}, {}, files=(moment.staged(),), removed=tuple(paths)), "compact")
