"""Operators' moves of a group's offsets in memory. ``rmq_store/admin/offset_moves.py`` has the rules."""

from __future__ import annotations

from rmq_store.admin.offset_moves import MoveReport, MoveRequest, earlier_commit, move_report
from rmq_store.commit.request import Status
from rmq_store.utils.host import Host
from tests.oracle.memory.commit import commit
from tests.oracle.memory.shard import MemoryShard


def move_offsets(shard: MemoryShard, request: MoveRequest, host: Host) -> MoveReport:
    """Carry out the request in one shard.

    Raises the WrongUse of ``request.moves`` and the errors of ``commit``. After StaleAttempt, when a window committed in
    between, the same request can be run again.
    """
    started_ms = host.now_ms()
    commits = shard.ctls_of_request(request.request_id, request.group, request.action)
    if earlier := earlier_commit(request, commits):
        return move_report(Status.ALREADY_COMMITTED, shard.name, earlier)
    positions = shard.positions()
    moves = request.moves(shard, positions)
    proposal = request.proposal(host.new_commit_id(), positions, moves)
    if request.dry_run:
        return move_report(Status.DRY_RUN, shard.name, proposal.ctl)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    return move_report(Status.COMMITTED, shard.name, committed.ctl)
