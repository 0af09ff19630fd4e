"""Attempts of a replay in memory. ``rmq_store/admin/replay.py`` has the rules."""

from __future__ import annotations

from rmq_store.admin.replay import as_attempt, attempt_proposal, next_attempt
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope
from tests.oracle.memory.commit import commit
from tests.oracle.memory.shard import MemoryShard


def begin_attempt(
    shard: MemoryShard, group: GroupSettings, request: ConsumeRequest, host: Host
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """Begin another attempt of a replay, unless this request did so before. ``group``: the replay group's settings.

    Returns the arguments of ``consume_window``, to be called until its report is complete. ``request.reason`` is needed.
    Raises WrongUse (see ``next_attempt``) and the errors of ``commit``.
    """
    started_ms = host.now_ms()
    commits = [ctl for ctl in shard.ctls() if ctl.group == group.name]
    attempt = next_attempt(group.name, request, commits)
    arguments = as_attempt(group, attempt, request)
    if attempt.begun is None:
        proposal = attempt_proposal(host.new_commit_id(), group.name, attempt, request, shard.positions())
        commit(shard, proposal, host, started_ms=started_ms)
    return arguments
