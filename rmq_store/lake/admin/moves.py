"""An operator's move of a group's offsets, in one commit; ``rmq_store/admin/moves.py`` says what they have in common."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.moves import MoveReport, MoveRequest, done_before
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.utils.host import Host


def move_in_all(asked: Sequence[tuple[Shard, MoveRequest]], host: Host) -> list[MoveReport]:
    """Do a request in several shards, in a commit each. All are looked at before the first commit: one that cannot be done
    in a shard moves nothing in the others either. Raises as ``move_offsets`` does."""
    if len(asked) > 1:  # one alone is looked at by its own move
        for shard, request in asked:
            move_offsets(shard, request, host, dry_run=True)
    return [move_offsets(shard, request, host) for shard, request in asked]


def move_offsets(shard: Shard, request: MoveRequest, host: Host, *, dry_run: bool = False) -> MoveReport:
    """Do what the request says in one shard; ``dry_run``: only say what that is, as if the request were one.

    Raises WrongUse as its ``moves`` does, and the errors of ``commit``; StaleAttempt when a window committed in
    between: then the same request can be given again.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    said = (shard.name, request.group, request.request_id)
    if done := done_before(request, shard.ctls_of_request(request.request_id, request.group, request.action)):
        return MoveReport("already_committed", *said, done.moved, done.commit_id, done.parameters)
    refuse_other_history(shard, shard.consumequeue)
    positions = shard.positions()
    moves = request.moves(ShardLookup(shard), positions)
    proposal = request.proposal(host.new_commit_id(), positions, moves)
    if request.dry_run or dry_run:
        return MoveReport("dry_run", *said, moves, parameters=proposal.ctl.parameters)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    return MoveReport("committed", *said, moves, committed.ctl.commit_id, committed.ctl.parameters, warnings)
