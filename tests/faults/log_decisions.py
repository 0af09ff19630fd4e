"""The real decisions of the search, on positions: ``decide_in_turn`` of windows, deletes and compactions, ``take`` of a claim,
and ``Content.conflicts`` of two entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from rmq_store.admin.delete_group import DeleteGroupRequest, delete_moves
from rmq_store.commit.claim import LEASE_S, Wish, take
from rmq_store.commit.ctl import Action, Actor, Ctl, Produced, Proposal, canonical_json
from rmq_store.commit.decide import Clocks, Decided, decide_in_turn
from rmq_store.commit.positions import ABSENT, Claim, Positions, grp_id, max_id, off_id, own_queue_id
from rmq_store.errors import HeldByAnother, RmqError, StaleAttempt
from rmq_store.lake.table.delta_entry import Entry as DeltaEntry
from rmq_store.lake.table.delta_log import Content
from rmq_store.message.message import MessageQueue

MESSAGES = 1
SOURCES, _SHARED = [MessageQueue("T", "b", n) for n in range(3)], MessageQueue("out", "lake-s", 0)
MAX = max_id(_SHARED)
COMPACTIONS = "cmp/"
"""The id that all compactions share."""
SMALL_FILE = "small"
"""The file that every compaction wants to replace."""
_NOW_MS = 1_795_132_800_000
"""2026-11-20, the day of the request ids."""
_CLOCKS = Clocks(_NOW_MS, _NOW_MS)
LONG_AFTER_MS = 10 * LEASE_S * 1000

Numbers = tuple[tuple[int, int], ...]
"""Queues by number, each with a value."""
Values = tuple[int, ...]
"""Positions, in the order of ``log_entries.Contents.ids``."""


class Work(NamedTuple):
    """What a request does: a window over ``queues`` of ``group``, a delete of the group, or a compaction."""

    request: str
    group: str = "g"
    queues: tuple[int, ...] = (0,)
    kind: str = "window"


class Member(NamedTuple):
    """A planned request. ``epoch``, ``off``, ``own``: what the plan read (ABSENT: no offset) and what was claimed."""

    work: Work
    commit_id: str
    planned: int
    epoch: int | None
    off: Numbers
    own: Numbers = ()
    rest: bool = False
    """Another window of the request has to follow, for queues whose claim another request held."""
    files: tuple[str, ...] = ()


def number_of(value: int) -> int | None:
    return None if value == ABSENT else value


def _proposal(member: Member, checked: frozenset[str], closed: bool) -> Proposal:
    """What a member proposes. Only what is in ``checked`` is expected."""
    group, epoch, off, own = member.work.group, member.epoch, member.off, member.own
    if member.work.kind == "compaction":
        ctl = Ctl(member.commit_id, Action.IMPORT, Actor("", ""))
        proposal = Proposal(ctl, {COMPACTIONS: epoch}, {COMPACTIONS: (epoch or 0) + 1})
    elif member.work.kind == "delete":
        values = {off_id(group, SOURCES[n]): at for n, at in off}
        planned = Positions(0, values if epoch is None else {grp_id(group): epoch, **values})
        request = DeleteGroupRequest(group, "2026-11-20-delete", Actor("", ""), "old")
        proposal = request.proposal(member.commit_id, planned, delete_moves(planned, group))
        return proposal if closed else replace(proposal, closed=())
    else:
        ctl = Ctl(member.commit_id, Action.CONSUME, Actor("", ""), produced=(Produced(_SHARED, 0, 1, 0, "file"),))
        ids = {n: off_id(group, SOURCES[n]) for n, _ in off}
        owns = {own_queue_id(group, SOURCES[n]): claim for n, claim in own}
        expect = {grp_id(group): epoch} | {ids[n]: number_of(at) for n, at in off} | owns
        ended = {app_id: Claim(Claim.of(claim).number, 0).packed() for app_id, claim in owns.items()}
        advance = {grp_id(group): epoch or 0} | {ids[n]: MESSAGES for n, _ in off} | ended
        proposal = Proposal(ctl, expect, advance)
    return replace(proposal, expect={id_: value for id_, value in proposal.expect.items() if id_ in checked})


Moves = tuple[tuple[str, int], ...]
"""The positions that a commit writes, by id."""


@cache
def decided(
    members: Sequence[Member],
    checked: frozenset[str],
    closed: bool,
    in_turn: bool,
    ids: tuple[str, ...],
    values: Values,
) -> tuple[Moves | None, ...]:
    """What every member of an entry writes, of ``ids``; None: it was overtaken. ``in_turn`` False: all decide on the same
    positions."""
    proposals = [_proposal(member, checked, closed) for member in members]
    positions = Positions(0, dict(zip(ids, values, strict=True)))
    groups = [proposals] if in_turn else [[proposal] for proposal in proposals]
    outcomes = [outcome for group in groups for outcome in decide_in_turn(group, positions, _CLOCKS)]
    return tuple(_moves(outcome, ids) for outcome in outcomes)


def _moves(outcome: Decided | RmqError, ids: tuple[str, ...]) -> Moves | None:
    if isinstance(outcome, StaleAttempt):
        return None
    assert isinstance(outcome, Decided), outcome
    return tuple((id_, value) for id_, value in outcome.positions.items() if id_ in ids)


def conflicts(
    mine: Sequence[str],
    closed: Sequence[str],
    removed: Sequence[str],
    others: Sequence[str],
    others_removed: Sequence[str],
) -> bool:
    """Whether an entry that sets and removes what ``others`` says makes a new decision necessary."""
    content = Content(b"", mine, closed, removed)
    return content.conflicts(DeltaEntry(0, removed=tuple(others_removed), positions=dict.fromkeys(others, 0)))


@cache
def taken(group: str, current: Numbers, holders: tuple[str | None, ...], request: str, now_ms: int) -> Numbers:
    """What the request gets of what it wishes."""
    owns = {own_queue_id(group, SOURCES[n]): (n, own) for n, own in current}
    claims = [
        Ctl("", Action.CLAIM, Actor("", ""), request_id=who, parameters=_claims(app_id, own))
        for (app_id, (_, own)), who in zip(owns.items(), holders, strict=True)
        if who is not None
    ]
    wish = Wish(request, Actor("", ""), group, queues=tuple(owns))
    positions = Positions(0, {app_id: own for app_id, (_, own) in owns.items()})
    try:
        taken = take(wish, "", "s", positions, lambda _: claims, now_ms)
    except HeldByAnother:
        return ()
    # The lease ends after the same time for all: only whether it has begun counts here.
    return tuple((owns[id_][0], Claim(claim.number, LEASE_S).packed()) for id_, claim in taken.claims.items())


def _claims(own: str, value: int) -> str:
    return canonical_json({"claims": {own: Claim.of(value).number}})
