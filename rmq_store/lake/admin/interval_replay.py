"""Replays of intervals in the lake, shard by shard. ``rmq_store/admin/interval_replay.py`` has the rules."""

from __future__ import annotations

from dataclasses import replace

from rmq_store.admin.interval_replay import IntervalReplay
from rmq_store.admin.replay import first_window
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import grp_id
from rmq_store.lake.admin.replay import begin_attempt
from rmq_store.lake.table.shard import Shard
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope


def begin_interval(
    shard: Shard, group: GroupSettings, interval: IntervalReplay, host: Host
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """The arguments of ``consume_window``, to be called until its report is complete.

    With ``reprocess`` another attempt begins, unless this reason began one before; where the interval was not replayed yet,
    it is the first one. Raises WrongUse (see ``next_attempt``) and the errors of ``commit``.
    """
    shard.commitlog.refresh()
    replaying, request, scope = interval.arguments(group)
    if not interval.reprocess or shard.positions().get(grp_id(replaying.name)) is None:
        return replaying, request, scope
    windows = shard.ctls_since(0, group=replaying.name, action=Action.CONSUME)
    if first_window(replaying.name, windows).request_id == request.request_id:
        return replaying, request, scope
    return begin_attempt(shard, replace(group, name=replaying.name), replace(interval.request(), parameters={}), host)
