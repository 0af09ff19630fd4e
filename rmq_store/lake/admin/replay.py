"""Replays in the lake: their shards and attempts. ``rmq_store/admin/replay.py`` has the rules."""

from __future__ import annotations

from rmq_store.admin.replay import as_attempt, attempt_proposal, next_attempt
from rmq_store.commit.positions import grp_id
from rmq_store.errors import WrongUse
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope


def shards_replayed(store: LakeStore, name: str, chosen: str | None = None) -> list[Shard]:
    """The shards in which a replay group has had windows. Raises WrongUse when there is none."""
    shards = [shard for shard in store.shards(chosen) if shard.positions().get(grp_id(name)) is not None]
    if not shards:
        raise WrongUse(f"{name} has replayed nothing here: give the group name that 'rmq replay' printed")
    return shards


def begin_attempt(
    shard: Shard, group: GroupSettings, request: ConsumeRequest, host: Host
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """Begin another attempt of a replay, unless this request did so before. ``group``: the replay group's settings.

    Returns the arguments of ``consume_window``, to be called until its report is complete. ``request.reason`` is needed.
    Raises WrongUse (see ``next_attempt``) and the errors of ``commit``.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    attempt = next_attempt(group.name, request, shard.ctls_since(0, group=group.name))
    arguments = as_attempt(group, attempt, request)
    if attempt.begun is None:
        proposal = attempt_proposal(host.new_commit_id(), group.name, attempt, request, shard.positions())
        commit(shard, proposal, host, started_ms=started_ms)
        follow_up(shard, host)  # its warnings are left to the attempt's first window, which dispatches too
    return arguments
