"""Resetting a group's offsets, in one commit; ``rmq_store/reset.py`` says where to."""

from __future__ import annotations

from rmq_store.host import Host
from rmq_store.lake.commit import commit
from rmq_store.lake.dispatch import dispatch
from rmq_store.lake.plan import ShardLookup
from rmq_store.lake.shard import Shard
from rmq_store.reset import ResetReport, ResetRequest, ResetTo, reset_moves, reset_proposal
from rmq_store.store import Action

__all__ = ["ResetReport", "ResetRequest", "ResetTo", "reset"]


def reset(shard: Shard, request: ResetRequest, host: Host) -> ResetReport:
    """Move the group's offsets of one topic.

    Raises WrongUse (unknown topic or queue, an offset outside the queue) and the errors of ``commit``; StaleAttempt
    when a window committed in between: then the same request can be given again.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    said = (shard.name, request.group, request.request_id)
    done = [c for c in shard.ctls_of_request(request.request_id, request.group) if c.action is Action.RESET]
    if done:
        return ResetReport("already_committed", *said, done[0].moved, done[0].commit_id)
    positions = shard.positions()
    moves = reset_moves(ShardLookup(shard), positions, request)
    if request.dry_run:
        return ResetReport("dry_run", *said, moves)
    proposal = reset_proposal(host.new_commit_id(), request, positions, moves)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    dispatch(shard, host, fresh=False)
    return ResetReport("committed", *said, moves, committed.ctl.commit_id)
