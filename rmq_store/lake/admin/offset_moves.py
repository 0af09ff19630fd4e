"""Every reset, skip, clone and import of offsets in the lake, one commit per shard.

``rmq_store/admin/offset_moves.py`` has the rules that they share.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.offset_moves import MoveReport, MoveRequest, earlier_commit, move_report
from rmq_store.commit.request import Status
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.utils.host import Host


def move_in_all(requests: Sequence[tuple[Shard, MoveRequest]], host: Host) -> list[MoveReport]:
    """Carry out a request in several shards, with a commit in each. All are checked before the first commit: when one shard
    refuses its part, nothing is moved in the others either. Raises the errors of ``move_offsets``."""
    if len(requests) > 1:  # a single one is checked by its own move
        for shard, request in requests:
            move_offsets(shard, request, host, dry_run=True)
    return [move_offsets(shard, request, host) for shard, request in requests]


def move_offsets(shard: Shard, request: MoveRequest, host: Host, *, dry_run: bool = False) -> MoveReport:
    """Carry out the request in one shard. ``dry_run``: report what it would move, as if the request were a dry run.

    Raises the WrongUse of ``request.moves`` and the errors of ``commit``. After StaleAttempt, when a window committed in
    between, the same request can be run again.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    commits = shard.ctls_of_request(request.request_id, request.group, request.action)
    if earlier := earlier_commit(request, commits):
        return move_report(Status.ALREADY_COMMITTED, shard.name, earlier)
    refuse_other_history(shard, shard.consumequeue)
    positions = shard.positions()
    moves = request.moves(ShardLookup(shard), positions)
    proposal = request.proposal(host.new_commit_id(), positions, moves)
    if request.dry_run or dry_run:
        return move_report(Status.DRY_RUN, shard.name, proposal.ctl)
    committed = commit(shard, proposal, host, started_ms=started_ms)
    return move_report(Status.COMMITTED, shard.name, committed.ctl, follow_up(shard, host))
