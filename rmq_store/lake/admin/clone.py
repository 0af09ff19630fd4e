"""Clone of a group's offsets in the lake, one commit per shard. ``rmq_store/admin/clone.py`` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.offset_moves import MoveReport, commit_elsewhere
from rmq_store.admin.repeated_moves import MOVING, Made, first_time, later_move, refuse_rest
from rmq_store.commit.ctl import Ctl
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host


def clone(
    shards: Sequence[Shard],
    request: CloneRequest,
    host: Host,
    settings: GroupSettings | None = None,
    *,
    every: Sequence[Shard] = (),
    finished: Callable[[MoveReport], None] | None = None,
) -> list[MoveReport]:
    """Clone in every shard that has offsets of the source, or in which this request has cloned them before.

    ``shards``: at least one. ``every``: all shards of the store. ``settings``, ``finished``: see ``move_in_all``. Raises
    WrongUse when there is no such shard, and when the request is committed in some shards and the source has lost its offsets
    in another one since (``refuse_rest``); and the errors of ``move_in_all``.
    """
    commits = {
        shard.name: commit_elsewhere(request, shard.ctls_of_request(request.request_id, request.group, request.action))
        for shard in {one.name: one for one in (*every, *shards)}.values()
    }
    made = {name: Made(ctl) for name, ctl in commits.items() if ctl is not None}
    having = {shard.name for shard in shards if request.source_offsets(ShardLookup(shard), shard.positions())}
    rest: dict[str, Ctl | None] = {}
    for shard in shards if made else ():
        if shard.name in made:
            continue
        if shard.name in having:
            rest[shard.name] = None  # what moved the target there since, ``move_in_all`` looks for
        elif loss := _loss_of_source(shard, request, first_time(made.values())):
            rest[shard.name] = loss
    refuse_rest(request.request_id, made, rest)
    concerned = [shard for shard in shards if shard.name in having | made.keys()] or shards[:1]  # the first one raises
    return move_in_all([(shard, request) for shard in concerned], host, settings, every=every, finished=finished)


def _loss_of_source(shard: Shard, request: CloneRequest, first_ms: int) -> Ctl | None:
    """The last commit after ``first_ms`` that took offsets of the source; None: it had none then either."""
    lookup = ShardLookup(shard)
    commits = [ctl for ctl in shard.ctls_stored_after(first_ms, MOVING) if request.takes_source(lookup, ctl)]
    return later_move(first_ms, commits, request.source)
