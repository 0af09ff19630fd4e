"""Operators' moves of offsets (reset, clone, import of offsets, delete): their common request, report and commit.

The operator always wins: a move raises the group's epoch, so a window that was planned before cannot commit after it
(``docs/invariants.md``, P3), and it begins a new pass of every queue it names. A move is one commit per shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rmq_store.admin.move_sizes import Direction, MoveSize
from rmq_store.commit.ctl import Action, Actor, Ctl, Moved, Proposal
from rmq_store.commit.positions import ABSENT, Positions, grp_id, min_id, off_id, pas_id
from rmq_store.commit.request import Status, refuse_other_request
from rmq_store.errors import RmqError, WrongUse
from rmq_store.window.shard_view import ShardView


class MoveRequest(Protocol):
    """An operator's request to move the offsets of a group."""

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
    def parameters(self) -> str:
        """What was requested, as canonical JSON."""
        ...

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        """The moves in a shard. Raises WrongUse when they are not possible."""
        ...

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        """The moves as a commit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """What a move did in a shard."""

    status: Status
    shard: str
    group: str
    request_id: str
    moves: tuple[Moved, ...]
    commit_id: str | None = None
    parameters: str = "{}"
    """Those of the commit, canonical JSON: what was requested and found."""
    warnings: tuple[str, ...] = ()
    """Errors after the commit, such as a failed dispatch."""
    sizes: tuple[MoveSize, ...] = ()
    """Only of a dry run: the messages and bytes that are read again or skipped, for each queue of which the start is known."""
    notes: tuple[str, ...] = ()
    """What is unusual about the move, in words: a time in the future, messages that are not kept, no change."""

    @property
    def messages(self) -> int:
        """How many more messages the group will read; negative: fewer. Exact in a dry run; else offsets without a message count
        too."""
        if self.sizes:
            return sum(size.more for size in self.sizes)
        return sum((move.from_offset or 0) - move.to_offset for move in self.moves if move.to_offset != ABSENT)

    def total(self, direction: Direction) -> tuple[int, int]:
        """Of a dry run the messages, and the bytes of their bodies, that are read again or skipped."""
        sizes = [size for size in self.sizes if size.direction is direction]
        return sum(size.messages for size in sizes), sum(size.bytes for size in sizes)

    def rows(self) -> list[dict[str, Any]]:
        """A row per queue. ``direction``, ``messages`` (read again or skipped) and ``bytes`` are those of ``sizes``;
        None where not known."""
        sizes = {size.queue: size for size in self.sizes}
        return [
            {
                "shard": self.shard,
                "topic": move.queue.topic,
                "broker_name": move.queue.broker_name,
                "queue_id": move.queue.queue_id,
                "from_offset": move.from_offset,
                "to_offset": None if move.to_offset == ABSENT else move.to_offset,
                "direction": size and str(size.direction),
                "messages": size and size.messages,
                "bytes": size and size.bytes,
            }
            for move in self.moves
            for size in [sizes.get(move.queue)]
        ]


def earlier_commit(request: MoveRequest, commits: Iterable[Ctl]) -> Ctl | None:
    """The commit that this request made before, None: it made none. ``commits``: those of its group and action with its id.

    Raises WrongUse when the id was used for another move.
    """
    earlier = next(iter(commits), None)
    if earlier is not None:
        refuse_other_request(request.request_id, json.loads(earlier.parameters), json.loads(request.parameters))
    return earlier


_OF_SHARD = frozenset({"queues", "offsets", "undoes", "undoes_action", "undoes_commit"})
"""Parameters that differ between the shards of one request."""


def commit_elsewhere(request: MoveRequest, commits: Iterable[Ctl]) -> Ctl | None:
    """As ``earlier_commit``, of the commits in a shard that is not among those of ``request``. What differs between the shards
    of a request is not compared."""
    earlier = next(iter(commits), None)
    if earlier is not None:
        requested = json.loads(request.parameters)
        common = {name: value for name, value in requested.items() if name not in _OF_SHARD}
        refuse_other_request(request.request_id, json.loads(earlier.parameters), common)
    return earlier


def move_report(status: Status, shard: str, ctl: Ctl, warnings: tuple[str, ...] = ()) -> MoveReport:
    """The report of a move with this ctl row: committed, or proposed by a dry run."""
    return MoveReport(
        status=status,
        shard=shard,
        group=ctl.group or "",
        request_id=ctl.request_id,
        moves=ctl.moved,
        commit_id=None if status == Status.DRY_RUN else ctl.commit_id,
        parameters=ctl.parameters,
        warnings=warnings,
    )


def add_reports(error: RmqError, action: Action, reports: Iterable[MoveReport]) -> None:
    """Have an error say what the move that it ended had done before, in other shards: in its ``reports`` and at the end of its
    text. Nothing of a dry run, which has done nothing. What is wrong use now is so at each repetition: its text says what to do
    instead."""
    before = tuple(report for report in reports if report.status != Status.DRY_RUN)
    if before:
        names = ", ".join(report.shard for report in before)
        rest = (
            ", and stays. The rest is not done as long as this is so"
            if isinstance(error, WrongUse)
            else ": the same request, run again, does the rest unless another move of the group came after it"
        )
        error.add_done(f"Before that the {action} was done in shard {names}{rest}", before)


def next_epoch(positions: Positions, group: str) -> int:
    """The group's epoch after an operator's action."""
    return positions.epoch(group) + 1


def move_proposal(commit_id: str, request: MoveRequest, positions: Positions, moves: Sequence[Moved]) -> Proposal:
    """The moves as a commit. It expects the offsets and the epoch that they were planned from, and that no retention has
    removed the messages that the group goes back to."""
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
    return Proposal(ctl, expect, advance, begins=first_offsets(positions, moves))


def first_offsets(positions: Positions, moves: Iterable[Moved]) -> dict[str, int]:
    """The ``begins`` of a proposal: per MIN position the smallest offset that a move sets in the queue. An offset that was
    already before the first message is left out: the group's next window reports it."""
    begins: dict[str, int] = {}
    for move in moves:
        if move.to_offset >= positions.min_offset(move.queue):
            begins[min_id(move.queue)] = min(move.to_offset, begins.get(min_id(move.queue), move.to_offset))
    return begins


def need_reason(what: str, reason: str) -> None:
    """Raise WrongUse for an operator's action without a reason: nothing would explain it later."""
    if not reason.strip():
        raise WrongUse(f"{what} needs a reason (--reason); it is recorded permanently in the offset history")
