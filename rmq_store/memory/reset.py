"""Resetting a group's offsets, in one commit; ``rmq_store/reset.py`` says where to."""

from __future__ import annotations

from rmq_store.host import Host
from rmq_store.memory.commit import commit
from rmq_store.memory.shard import MemoryShard
from rmq_store.reset import ResetReport, ResetRequest, reset_moves, reset_proposal
from rmq_store.store import Action


def reset(shard: MemoryShard, request: ResetRequest, host: Host) -> ResetReport:
    """Move the group's offsets of one topic.

    Raises WrongUse (unknown topic or queue, an offset outside the queue) and the errors of ``commit``; StaleAttempt
    when a window committed in between: then the same request can be given again.
    """
    started_ms = host.now_ms()
    said = (shard.name, request.group, request.request_id)
    if done := shard.ctls_of_request(request.request_id, request.group, Action.RESET):
        return ResetReport("already_committed", *said, done[0].moved, done[0].commit_id)
    positions = shard.positions()
    moves = reset_moves(shard, positions, request)
    if request.dry_run:
        return ResetReport("dry_run", *said, moves)
    proposal = reset_proposal(host.new_commit_id(), request, positions, moves)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    return ResetReport("committed", *said, moves, committed.ctl.commit_id)
