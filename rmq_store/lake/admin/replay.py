"""Replays in the lake: their shards and attempts. ``rmq_store/admin/replay.py`` has the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmq_store.admin.replay import as_attempt, attempt_proposal, next_attempt, unread_in_blocked
from rmq_store.commit.ctl import Proposal
from rmq_store.commit.positions import PositionKind, QueueRange, ids_of, queue_of
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consumption import has_windows, shards_of, shards_with_windows
from rmq_store.lake.window.dry_run import plan_request
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.lake.window.range_notes import notes_of_times, queues_of_topics
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope
from rmq_store.window.dry_run import AfterCommits, ConsumePlan, joined_plans
from rmq_store.window.plan import Planner


def shards_replayed(store: LakeStore, name: str, chosen: str | None = None) -> list[Shard]:
    """The shards in which a replay group has had windows. Raises WrongUse when there is none."""
    return shards_with_windows(store.shards(chosen), name)


def replay_notes(
    shards: Sequence[Shard], group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope
) -> list[str]:
    """What is unusual about the range of a replay in these shards, in words. The arguments are those of ``as_replay``; for any
    other request there is nothing to say, nor of a shard that was replayed before: what it lacks now went later."""
    if scope.from_ms is None:
        return []
    queues = [(shard, queues_of_topics(shard, group)) for shard in shards if not has_windows(shard, group.name)]
    if not queues:
        return []
    return notes_of_times(queues, scope.from_ms, request.until_ms, host.now_ms())


def plan_retries(
    store: LakeStore, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope
) -> ConsumePlan:
    """What the follow-up of a replay would do, in all shards; its ``retries`` has also those that are not delivered yet. The
    arguments are those of ``group_settings`` for the replay group."""
    shards = shards_of(store, group, scope)
    for shard in shards:
        shard.refresh("commitlog", "consumequeue")
    return plan_request(store, shards, group, request, host, scope)


def retries_left(
    store: LakeStore, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope
) -> dict[str, int]:
    """How many retries a replay group has, delivered or not, by shard; of shards without any nothing. The arguments are those
    of ``plan_retries``; a group without windows has none."""
    if not any(has_windows(shard, group.name) for shard in store.shards()):
        return {}
    plan = plan_retries(store, group, request, host, scope)
    return {shard.shard: shard.retries.left for shard in plan.shards if shard.retries.left}


def has_messages(shard: Shard, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope) -> bool:
    """Whether a replay has messages in the shard, or was run there before. Reads only."""
    shard.commitlog.refresh()
    if has_windows(shard, group.name):
        return True
    ranges = Planner(ShardLookup(shard), group, host.now_ms(), scope).plan(request, []).ranges
    return any(len(planned.range) for planned in ranges)


def late_ranges(
    shard: Shard, group: GroupSettings, bounds: Mapping[MessageQueue, int], from_ms: int, until_ms: int
) -> list[QueueRange]:
    """What the topics of a group have in ``[from_ms, until_ms)`` (UTC ms) behind the bounds of a replay of that time, by queue;
    of a queue without a bound all."""
    positions = shard.positions()
    queues = queues_of_topics(shard, group)
    begins, ends = (search_offsets(shard, positions, queues, time_ms) for time_ms in (from_ms, until_ms))
    late = {queue: max(begins[queue], bounds.get(queue, 0)) for queue in queues}
    return [QueueRange(queue, begin, ends[queue]) for queue, begin in late.items() if begin < ends[queue]]


def left_in_blocked(shard: Shard, name: str) -> tuple[QueueRange, ...]:
    """What the newest attempt of a replay leaves unread in blocked queues of the shard; nothing where it has had no windows.
    Reads only."""
    shard.commitlog.refresh()
    positions = shard.positions()
    blocked = positions.prefixed(ids_of(PositionKind.BLOCKED, name))
    if all(queue_of(app_id).topic == retry_topic(name) for app_id, _ in blocked):
        return ()
    return unread_in_blocked(name, shard.ctls_since(0, group=name), positions)


def begin_attempt(
    shard: Shard, group: GroupSettings, request: ConsumeRequest, host: Host, from_ms: int | None = None
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """Begin another attempt of a replay, unless this request did so before. ``group``: the replay group's settings.
    ``from_ms``: the replay is of ``[from_ms, request.until_ms)`` (UTC ms), and the attempt also reads what has come into that
    since.

    Returns the arguments of ``consume_window``, to be called until its report is complete. ``request.reason`` is needed.
    Raises WrongUse (see ``next_attempt``), before it is begun the errors of planning its first window, and those of
    ``commit``.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    arguments, proposal = _attempt(shard, group, request, host, from_ms)
    if proposal is not None:
        _refuse_unreadable(shard, arguments, proposal, host)
        commit(shard, proposal, host, started_ms=started_ms)
        follow_up(shard, host)  # its warnings are left to the attempt's first window, which dispatches too
    return arguments


def check_attempt(
    shards: Sequence[Shard], group: GroupSettings, request: ConsumeRequest, host: Host, from_ms: int | None = None
) -> None:
    """Raise as ``begin_attempt`` would in any of these shards where the attempt has not begun: so none begins it before one
    that refuses it. Reads only."""
    for shard in shards:
        shard.commitlog.refresh()
        arguments, proposal = _attempt(shard, group, request, host, from_ms)
        if proposal is not None:
            _refuse_unreadable(shard, arguments, proposal, host)


def _refuse_unreadable(
    shard: Shard, arguments: tuple[GroupSettings, ConsumeRequest, Scope], begins: Proposal, host: Host
) -> None:
    """Raise what planning the first window after the commit that begins an attempt raises: OffsetOutOfRange, where retention
    has removed a part of its range."""
    group, request, scope = arguments
    Planner(AfterCommits(ShardLookup(shard), (begins,)), group, host.now_ms(), scope).plan(request, [])


def plan_attempt(
    store: LakeStore, shards: Sequence[Shard], group: GroupSettings, request: ConsumeRequest, host: Host
) -> ConsumePlan:
    """What another attempt of a replay would do in these shards; nothing is written. Raises as ``check_attempt``."""
    check_attempt(shards, group, request, host)
    plans = []
    for shard in shards:
        (settings, recorded, scope), proposal = _attempt(shard, group, request, host)
        before = {} if proposal is None else {shard.name: proposal}
        plans.append(plan_request(store, [shard], settings, recorded, host, scope, before=before))
    return joined_plans(plans)


def _attempt(
    shard: Shard, group: GroupSettings, request: ConsumeRequest, host: Host, from_ms: int | None = None
) -> tuple[tuple[GroupSettings, ConsumeRequest, Scope], Proposal | None]:
    """The arguments of the attempt's windows, and the commit that begins it; None: it has begun."""

    def late(bounds: Mapping[MessageQueue, int]) -> list[QueueRange]:
        if from_ms is None or request.until_ms is None:
            return []
        return late_ranges(shard, group, bounds, from_ms, request.until_ms)

    attempt = next_attempt(group.name, request, shard.ctls_since(0, group=group.name), late)
    arguments = as_attempt(group, attempt, request)
    if attempt.begun is not None:
        return arguments, None
    return arguments, attempt_proposal(host.new_commit_id(), group.name, attempt, request, shard.positions())
