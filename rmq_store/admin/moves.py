"""What operators' moves of offsets have in common (reset, clone): a request says where to, one commit per shard does it.

The operator always wins: a move raises the group's epoch, so a window that was planned before cannot commit after it
(``docs/invariants.md``, P3), and it opens a new pass of every queue it names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rmq_store.commit.ctl import Action, Actor, Ctl, Moved, Proposal
from rmq_store.commit.positions import ABSENT, Positions, grp_id, off_id, pas_id
from rmq_store.commit.request import refuse_other_request
from rmq_store.errors import WrongUse
from rmq_store.window.plan import ShardView


class MoveRequest(Protocol):
    """Who moves the offsets of which group, and why. ``parameters``: what was asked, as canonical JSON."""

    @property
    def action(self) -> Action: ...

    @property
    def group(self) -> str: ...

    @property
    def request_id(self) -> str: ...

    @property
    def actor(self) -> Actor: ...

    @property
    def reason(self) -> str: ...

    @property
    def dry_run(self) -> bool: ...

    @property
    def parameters(self) -> str: ...

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        """What it would move in a shard. Raises WrongUse when that cannot be done."""
        ...

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        """The moves as a commit."""
        ...


@dataclass(frozen=True, slots=True)
class MoveReport:
    """``status``: committed, already_committed or dry_run. ``messages``: how many more (or fewer) will be read.

    ``parameters``: what was asked and found, as the commit says it (canonical JSON). ``warnings``: what went wrong after
    the commit.
    """

    status: str
    shard: str
    group: str
    request_id: str
    moves: tuple[Moved, ...]
    commit_id: str | None = None
    parameters: str = "{}"
    warnings: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        return sum((move.from_offset or 0) - move.to_offset for move in self.moves if move.to_offset != ABSENT)


def done_before(request: MoveRequest, commits: Iterable[Ctl]) -> Ctl | None:
    """What this very request has committed, None if nothing. ``commits``: those of its group and action with its id.

    Raises WrongUse when that was another move under the same id.
    """
    done = next(iter(commits), None)
    if done is not None:
        refuse_other_request(request.request_id, json.loads(done.parameters), json.loads(request.parameters))
    return done


def next_epoch(positions: Positions, group: str) -> int:
    """The epoch that an operator's action gives to the group."""
    return (positions.get(grp_id(group)) or 0) + 1


def move_proposal(commit_id: str, request: MoveRequest, positions: Positions, moves: Sequence[Moved]) -> Proposal:
    """The moves as a commit: it expects the offsets and the epoch that they were made from."""
    group, epoch = request.group, next_epoch(positions, request.group)
    expect: dict[str, int | None] = {grp_id(group): positions.get(grp_id(group))}
    advance = {grp_id(group): epoch}
    for move in moves:
        expect[off_id(group, move.queue)] = move.from_offset
        advance |= {off_id(group, move.queue): move.to_offset, pas_id(group, move.queue): move.pass_}
    ctl = Ctl(
        commit_id,
        request.action,
        request.actor,
        reason=request.reason,
        request_id=request.request_id,
        group=group,
        epoch=epoch,
        parameters=request.parameters,
        moved=tuple(moves),
    )
    return Proposal(ctl, expect, advance)


def need_reason(what: str, reason: str) -> None:
    """Raise WrongUse for an operator's action without a reason: nothing would explain it later."""
    if not reason.strip():
        raise WrongUse(f"{what} needs a reason (--reason); it is recorded permanently in the offset history")
