"""An operator's move of a group's offsets, in one commit; ``rmq_store/admin/moves.py`` says what they have in common."""

from __future__ import annotations

from rmq_store.admin.moves import MoveReport, MoveRequest, done_before
from rmq_store.utils.host import Host
from tests.oracle.memory.commit import commit
from tests.oracle.memory.shard import MemoryShard


def move_offsets(shard: MemoryShard, request: MoveRequest, host: Host) -> MoveReport:
    """Do what the request says in one shard.

    Raises WrongUse as its ``moves`` does, and the errors of ``commit``; StaleAttempt when a window committed in
    between: then the same request can be given again.
    """
    started_ms = host.now_ms()
    said = (shard.name, request.group, request.request_id)
    if done := done_before(request, shard.ctls_of_request(request.request_id, request.group, request.action)):
        return MoveReport("already_committed", *said, done.moved, done.commit_id, done.parameters)
    positions = shard.positions()
    moves = request.moves(shard, positions)
    proposal = request.proposal(host.new_commit_id(), positions, moves)
    if request.dry_run:
        return MoveReport("dry_run", *said, moves, parameters=proposal.ctl.parameters)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    return MoveReport("committed", *said, moves, committed.ctl.commit_id, committed.ctl.parameters)
