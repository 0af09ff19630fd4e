"""An operator's move of a group's offsets, in one commit; ``rmq_store/moves.py`` says what they have in common."""

from __future__ import annotations

from rmq_store.host import Host
from rmq_store.lake.commit import commit
from rmq_store.lake.dispatch import dispatch
from rmq_store.lake.plan import ShardLookup
from rmq_store.lake.shard import Shard
from rmq_store.moves import MoveReport, MoveRequest


def move_offsets(shard: Shard, request: MoveRequest, host: Host) -> MoveReport:
    """Do what the request says in one shard.

    Raises WrongUse as its ``moves`` does, and the errors of ``commit``; StaleAttempt when a window committed in
    between: then the same request can be given again.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    said = (shard.name, request.group, request.request_id)
    if done := shard.ctls_of_request(request.request_id, request.group, request.action):
        return MoveReport("already_committed", *said, done[0].moved, done[0].commit_id, done[0].parameters)
    positions = shard.positions()
    moves = request.moves(ShardLookup(shard), positions)
    proposal = request.proposal(host.new_commit_id(), positions, moves)
    if request.dry_run:
        return MoveReport("dry_run", *said, moves, parameters=proposal.ctl.parameters)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    dispatch(shard, host, fresh=False)
    return MoveReport("committed", *said, moves, committed.ctl.commit_id, committed.ctl.parameters)
