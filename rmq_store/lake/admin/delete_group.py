"""Delete of a group in the lake, one commit per shard. ``rmq_store/admin/delete_group.py`` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rmq_store.admin.delete_group import MADE_AGAIN, DeleteGroupRequest, is_gone
from rmq_store.admin.offset_moves import MoveReport
from rmq_store.commit.ctl import Action
from rmq_store.commit.request import Status
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.utils.host import Host


def delete_group(
    shards: Sequence[Shard],
    request: DeleteGroupRequest,
    host: Host,
    *,
    every: Sequence[Shard] = (),
    finished: Callable[[MoveReport], None] | None = None,
) -> list[MoveReport]:
    """Delete the group in every shard that has something of it, or in which this request has deleted it before.

    ``every``, ``finished``: see ``move_in_all``. Raises WrongUse when there is no such shard, and the errors of
    ``move_in_all``. After an error, the same request run again reports what was deleted before it. A group that windows have
    made again since is left alone there, with a note.
    """
    concerned = [shard for shard in shards if _is_concerned(shard, request)] or shards[:1]  # the first one raises
    reports = move_in_all([(shard, request) for shard in concerned], host, every=every, finished=finished)
    return [_noted(shard, report) for shard, report in zip(concerned, reports, strict=True)]


def _noted(shard: Shard, report: MoveReport) -> MoveReport:
    if report.status != Status.ALREADY_COMMITTED or is_gone(shard.positions(), report.group):
        return report
    return replace(report, notes=(*report.notes, MADE_AGAIN))


def _is_concerned(shard: Shard, request: DeleteGroupRequest) -> bool:
    if request.has_something(ShardLookup(shard), shard.positions()):
        return True
    return bool(shard.ctls_of_request(request.request_id, request.group, Action.DELETE))
