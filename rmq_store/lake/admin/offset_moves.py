"""Every reset, skip, clone and import of offsets in the lake, one commit per shard.

``rmq_store/admin/offset_moves.py`` has the rules that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rmq_store.admin.move_sizes import move_notes
from rmq_store.admin.offset_moves import (
    MoveReport,
    MoveRequest,
    add_reports,
    commit_elsewhere,
    earlier_commit,
    move_report,
)
from rmq_store.admin.repeated_moves import (
    MOVING,
    Made,
    came_after,
    first_time,
    later_move,
    overtaken_note,
    refuse_overtaken,
    refuse_rest,
)
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.admin.undo import MOVES, UndoRequest, is_last_move
from rmq_store.commit.ctl import Action, Ctl, Moved
from rmq_store.commit.positions import Positions
from rmq_store.commit.request import Status
from rmq_store.errors import RmqError, StaleAttempt
from rmq_store.lake.admin.last_action import last_action_in
from rmq_store.lake.admin.move_sizes import move_sizes, state_before
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.lake.window.range_notes import notes_of_times
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host


def move_in_all(
    requests: Sequence[tuple[Shard, MoveRequest]],
    host: Host,
    settings: GroupSettings | None = None,
    *,
    every: Sequence[Shard] = (),
    beside: Sequence[tuple[Shard, int]] = (),
    finished: Callable[[MoveReport], None] | None = None,
) -> list[MoveReport]:
    """Carry out a request in several shards, with a commit in each. All are checked before the first commit: when one shard
    refuses its part, nothing is moved in the others either. Each commit expects that no other move of the group came since the
    check: two moves at once would else leave the group at the offsets of one in some shards, and of the other in the rest.

    ``every``: all shards of the store, in which the request may have been committed before; none for a new request. Raises the
    errors of ``move_offsets``, and WrongUse when the request is committed in some shards and not in one of ``requests``, and
    another move of the group came after it (``refuse_rest``).

    ``beside``: shards in which the request has nothing to do, with the epoch that the group had there when that was seen: they
    are looked at as its own are.

    ``finished``: called with each report, as soon as its shard is done; first with those of the shards that were done before.
    What was done before an error stays; the ``reports`` of an RmqError have it.
    """
    named = {shard.name for shard, _ in requests}
    others = [shard for shard in every if shard.name not in named]
    seen: dict[str, int] = {}
    rest = [*requests]
    reports: dict[str, MoveReport] = {}
    if len(requests) > 1 or others:  # else it is checked by its own move
        made = {shard.name: _made(shard, request) for shard, request in requests}
        # As of these looks, which all come before the first commit: of two moves that overlap, a shard refuses one.
        seen = {shard.name: shard.positions().epoch(request.group) for shard, request in requests}
        reports = {
            shard.name: _made_before(shard, one) for shard, _ in requests if (one := made[shard.name]) is not None
        }
        rest = [(shard, request) for shard, request in requests if shard.name not in reports]
        if rest:
            _, request = rest[0]
            made |= {shard.name: _made(shard, request, commit_elsewhere) for shard in others}
            _refuse_rest([shard for shard, _ in rest], request, made)
    if finished is not None:
        for report in reports.values():
            finished(report)
    try:
        for shard, request in rest if len(requests) > 1 else ():
            _planned(shard, request)
        parts = [*beside]
        for number, (shard, request) in enumerate(rest, 1):
            report = move_offsets(shard, request, host, settings, seen.get(shard.name), parts)
            if report.status == Status.COMMITTED and number == len(rest):
                report = replace(report, notes=(*report.notes, *_overtaken_in(parts, request)))
            if report.status == Status.COMMITTED and shard.name in seen:
                parts.append((shard, seen[shard.name] + 1))
            reports[shard.name] = report
            if finished is not None:
                finished(report)
    except RmqError as error:
        add_reports(error, rest[0][1].action, reports.values())
        raise
    return [reports[shard.name] for shard, _ in requests]


def move_offsets(
    shard: Shard,
    request: MoveRequest,
    host: Host,
    settings: GroupSettings | None = None,
    seen: int | None = None,
    parts: Sequence[tuple[Shard, int]] = (),
) -> MoveReport:
    """Carry out the request in one shard. ``settings``: those of the group, None when there are none; they say where it starts,
    from which a dry run counts. ``seen``: the epoch that the group must still have; None: any. ``parts``: the shards in which
    the request was carried out just before, with the epoch that the group must still have there: an undo of that part does not
    know of the rest.

    Raises the WrongUse of ``request.moves``, StaleAttempt as ``refuse_overtaken`` and the errors of ``commit``. After
    StaleAttempt, when a window committed in between, the same request can be run again.
    """
    started_ms = host.now_ms()
    if made := _made(shard, request):
        return _made_before(shard, made)
    positions, moves = _planned(shard, request, seen)
    for other, epoch in _moved_elsewhere(parts, request):
        refuse_overtaken(request, epoch, last_action_in(other, request.group, MOVES), other.name)
    proposal = request.proposal(host.new_commit_id(), positions, moves)
    notes = (*_time_notes(shard, request, started_ms), *move_notes(positions, moves))
    if request.dry_run:
        sizes = move_sizes(shard, state_before(shard, request.group, settings), moves)
        return replace(move_report(Status.DRY_RUN, shard.name, proposal.ctl), sizes=sizes, notes=notes)
    try:
        committed = commit(shard, proposal, host, started_ms=started_ms)
    except StaleAttempt:
        if made := _made(shard, request):  # another process has carried out the same request meanwhile
            return _made_before(shard, made)
        raise
    report = move_report(Status.COMMITTED, shard.name, committed.ctl, follow_up(shard, host))
    return replace(report, notes=notes)


def _moved_elsewhere(parts: Sequence[tuple[Shard, int]], request: MoveRequest) -> list[tuple[Shard, int]]:
    """Those of the shards in which the group's epoch is not the one beside it any more."""
    for shard, _ in parts:
        shard.commitlog.refresh()
    return [(shard, epoch) for shard, epoch in parts if shard.positions().epoch(request.group) != epoch]


def _overtaken_in(parts: Sequence[tuple[Shard, int]], request: MoveRequest) -> list[str]:
    return [
        overtaken_note(request, epoch, last_action_in(shard, request.group, MOVES), shard.name)
        for shard, epoch in _moved_elsewhere(parts, request)
    ]


def _made(shard: Shard, request: MoveRequest, commit_of: Callable[..., Ctl | None] = earlier_commit) -> Made | None:
    """What the request has committed in the shard, as of now. ``commit_of``: ``commit_elsewhere`` in a shard in which it is not
    to be carried out now."""
    shard.commitlog.refresh()
    made = commit_of(request, shard.ctls_of_request(request.request_id, request.group, request.action))
    if made is None:
        return None
    if is_last_move(made, shard.positions()):
        return Made(made)
    return Made(made, came_after(made, last_action_in(shard, request.group, MOVES)))


def _refuse_rest(rest: Sequence[Shard], request: MoveRequest, made: Mapping[str, Made | None]) -> None:
    """``refuse_rest`` of the shards that lack the request. ``made``: by shard of the store."""
    before = {name: one for name, one in made.items() if one is not None}
    if not before:
        return
    first_ms = first_time(before.values())
    later: dict[str, Ctl | None] = {shard.name: None for shard in rest}
    if request.action is not Action.UNDO:  # the rest of an undo has its own rule: ``refuse_other_undo``
        for shard in rest:
            later[shard.name] = later_move(first_ms, shard.ctls_stored_after(first_ms, MOVING), request.group)
    refuse_rest(request.request_id, before, later)


def _made_before(shard: Shard, made: Made) -> MoveReport:
    return replace(move_report(Status.ALREADY_COMMITTED, shard.name, made.ctl), notes=made.notes)


def _planned(shard: Shard, request: MoveRequest, seen: int | None = None) -> tuple[Positions, tuple[Moved, ...]]:
    """The moves of the request, and the positions that they were planned from. ``seen``: as in ``move_offsets``. Raises
    WrongUse, and StaleAttempt where another move of the group came since, or since the action of an undo."""
    refuse_other_history(shard, shard.consumequeue)
    positions = shard.positions()
    if isinstance(request, UndoRequest):
        seen = request.undone.epoch or 0
    if seen is not None and positions.epoch(request.group) != seen:  # what is equal here is what the proposal expects
        refuse_overtaken(request, seen, last_action_in(shard, request.group, MOVES), shard.name)
    return positions, request.moves(ShardLookup(shard), positions)


def _time_notes(shard: Shard, request: MoveRequest, now_ms: int) -> list[str]:
    if not isinstance(request, ResetRequest) or request.to is not ResetTo.TIME:
        return []
    queues = request.queues or shard.positions().queues_of(request.topic)
    return notes_of_times([(shard, queues)], request.value or 0, None, now_ms, is_reset=True)
