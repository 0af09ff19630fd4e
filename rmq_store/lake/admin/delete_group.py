"""Deleting a group, one commit per shard; ``rmq_store/admin/delete_group.py`` says what becomes void."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.moves import MoveReport
from rmq_store.commit.ctl import Action
from rmq_store.lake.admin.moves import move_offsets
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.utils.host import Host


def delete_group(shards: Sequence[Shard], request: DeleteGroupRequest, host: Host) -> list[MoveReport]:
    """Delete the group in every one of the shards that has something of it, or had until this very request.

    Raises WrongUse when none has (for the first), and the errors of ``move_offsets``; what was deleted before an error is
    said by the same request given again.
    """
    having = [shard for shard in shards if _is_concerned(shard, request)] or shards[:1]
    return [move_offsets(shard, request, host) for shard in having]


def _is_concerned(shard: Shard, request: DeleteGroupRequest) -> bool:
    if request.has_something(ShardLookup(shard), shard.positions()):
        return True
    return bool(shard.ctls_of_request(request.request_id, request.group, Action.DELETE))
