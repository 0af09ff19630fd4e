"""A consumption window from plan to commit, in lists and dicts. The rules of ``consumer/`` are called message by message."""

from __future__ import annotations

from rmq_store.commit.claim import Taken
from rmq_store.commit.ctl import Action
from rmq_store.consumer.listener import Listener, ListenerKind, load_listener
from rmq_store.errors import ListenerError
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport, committed_window, held_of, next_window, refuse_batches_in_order, wish
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.plan import Plan, Planner
from tests.oracle.memory.claim import claimed
from tests.oracle.memory.commit import commit
from tests.oracle.memory.run import Run
from tests.oracle.memory.shard import MemoryShard
from tests.oracle.memory.store import MemoryStore


def consume_window(
    store: MemoryStore,
    shard: MemoryShard,
    group: GroupSettings,
    request: ConsumeRequest,
    host: Host,
    scope: Scope = LIVE,
) -> WindowReport:
    """One window of a request.

    Raises the errors of planning, HeldByAnother, ListenerError, StaleAttempt and the other errors of ``commit``.
    """
    started_ms = host.now_ms()

    def planner() -> Planner:
        return Planner(shard, group, started_ms, scope)

    # 1. Plan.
    plan = _next_window(shard, planner(), request)
    if isinstance(plan, WindowReport):
        return plan
    shard.on_step("1.planned")
    listener = _message_listener(group)
    # 2. Claim.
    with claimed(shard, wish(plan, request), host) as claim:
        shard.on_step("2.claimed")
        # Others may have committed before this window got its claim.
        plan = _next_window(shard, planner(), request, before=plan, taken=claim.taken)
        if isinstance(plan, WindowReport):
            claim.release()
            return plan
        # 3. Run.
        proposal = Run(store, shard, plan, listener, host, started_ms=started_ms).proposal(request)
        shard.on_step("3.staged")
        # 4. Decide. 5. Commit. 6. Read back.
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    held = held_of(plan, claim.taken)
    return committed_window(shard.name, "memory", plan, committed.ctl, committed.version, held)


def _next_window(
    shard: MemoryShard,
    planner: Planner,
    request: ConsumeRequest,
    *,
    before: Plan | None = None,
    taken: Taken | None = None,
) -> Plan | WindowReport:
    """The plan of the request's next window, or the report that there is nothing more to do."""
    parts = shard.ctls_of_request(request.request_id, planner.group.name, Action.CONSUME)
    return next_window(planner, request, parts, shard.segments_of, before=before, taken=taken)


def _message_listener(group: GroupSettings) -> Listener:
    listener = load_listener(group.listener)
    refuse_batches_in_order(group, listener.kind)
    if listener.kind is ListenerKind.BATCH:
        raise ListenerError(
            f"listener {group.listener} takes Arrow batches, which the memory engine does not have: use consume_message"
        )
    return listener
