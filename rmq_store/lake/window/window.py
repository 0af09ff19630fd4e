"""A consumption window from plan to commit. The steps are numbered in ``rmq_store/lake/commit/commit.py``.

The engine is a function from tasks to results, so where the tasks run (this process, a Spark session, a Spark Connect
server) is the caller's choice and changes nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from rmq_store.commit.claim import Taken
from rmq_store.commit.ctl import Action, Proposal
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.listener_death import refuse_deaths_only
from rmq_store.consumer.pull import Slice, cover
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.cursor import refuse_rolled_back
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.listener.task_listener import listener_kind
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.table.evidence import tally_of, tally_of_range
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consume_job import ConsumeJob, ConsumeTask, TaskResult
from rmq_store.lake.window.consume_slice import run_task
from rmq_store.lake.window.duplicates import Absorbed, consume_absorbing, duplicate_outcomes
from rmq_store.lake.window.engine import Engine
from rmq_store.lake.window.outcome_ranges import NO_MESSAGE, outcome_ranges
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.lake.window.range_notes import removed_of_replay
from rmq_store.lake.window.window_tasks import rows_per_ms, tasks_of
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import (
    WindowReport,
    WindowResult,
    committed_window,
    consume_proposal,
    ends_at_ms,
    finished_part,
    held_of,
    next_window,
    refuse_holes,
    wish,
)
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.plan import Plan, Planner
from rmq_store.window.ranges import window_id


def consume_window(
    store: LakeStore,
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    engine_of: Callable[[Plan], Engine],
    host: Host,
    scope: Scope = LIVE,
) -> WindowReport:
    """Plan, run and commit one window of a request.

    ``engine_of`` is called only when there is work, so an empty window starts no JVM. Raises the errors of
    ``Planner.plan``, HeldByAnother, ListenerError, StaleAttempt and the other errors of ``commit``.
    """

    started_ms = host.now_ms()

    def planner() -> Planner:
        return Planner(ShardLookup(shard), group, started_ms, scope)

    # 1. Plan.
    shard.refresh("commitlog")
    plan = plan_window(shard, planner(), request)
    if isinstance(plan, WindowReport):
        return plan
    shard.refresh("consumequeue", "offsets")
    refuse_rolled_back(shard)
    reached("1.planned")
    listener_kind(group, host.now_ms)
    engine = engine_of(plan)
    planned_at = shard.commitlog.version
    # 2. Claim.
    with claimed(shard, wish(plan, request), host) as claim:
        reached("2.claimed")
        if claim.taken.held or not plan.is_claimed_as_next(planned_at, shard.commitlog.version):
            plan = plan_window(shard, planner(), request, before=plan, taken=claim.taken)
            if isinstance(plan, WindowReport):
                claim.release()
                return plan
        # What a replay cannot read is said once, by its first window.
        removed = removed_of_replay(shard, group, request, scope) if plan.part == 1 else []
        # 3. Run.
        work = work_of(store, shard, plan, request, engine, host, started_ms=started_ms)
        proposal = run_work(shard, work)
        reached("3.staged")
        claim.stop_renewing()
        # 4. Decide. 5. Put. 6. Settle.
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    # 7. Follow up.
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    held = held_of(plan, claim.taken)
    report = committed_window(shard.name, engine.name, plan, committed.ctl, committed.version, held)
    return replace(report, warnings=(*removed, *warnings))


def plan_window(
    shard: Shard,
    planner: Planner,
    request: ConsumeRequest,
    *,
    before: Plan | None = None,
    taken: Taken | None = None,
) -> Plan | WindowReport:
    """The plan of the request's next window, or the report that there is nothing more to do. Raises as ``next_window``."""
    parts = shard.ctls_of_request(request.request_id, planner.group.name, Action.CONSUME)
    return next_window(planner, request, parts, partial(segments_of, shard), before=before, taken=taken)


# --- the work --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a window does between its claim and its commit."""

    plan: Plan
    request: ConsumeRequest
    engine: Engine
    started_ms: int
    """When the window was planned, UTC ms."""
    job: ConsumeJob
    tasks: Sequence[ConsumeTask]
    holes: Sequence[QueueRange]
    """The ranges without messages."""


def work_of(
    store: LakeStore,
    shard: Shard,
    plan: Plan,
    request: ConsumeRequest,
    engine: Engine,
    host: Host,
    *,
    started_ms: int,
) -> Work:
    """The work of a plan that has been claimed. ``started_ms``: when it was planned, UTC ms.

    Raises OffsetOutOfRange for offsets without a message, unless the group skips them.
    """
    group = plan.group
    slices, holes = slices_of(shard, plan)
    job = ConsumeJob(
        root=shard.root,
        table=shard.commitlog.path,
        commit_id=host.new_commit_id(),
        group=group,
        window_id=window_id(group.name, plan.epoch, plan.ranges),
        epoch=plan.epoch,
        passes={planned.queue: planned.pass_ for planned in plan.ranges},
        levels=store.levels,
        local_broker=shard.local_broker,
        lane=shard.lane(group.name),
        tried=plan.tried,
        deleted=plan.deleted,
        ends_at_ms=ends_at_ms(group, started_ms),
        now_ms=host.now_ms,
    )
    slots, kind = engine.slots, listener_kind(group, host.now_ms)
    last = shard.newest_ctl(group.name, Action.CONSUME) if slots > 1 else None  # a single slot gets few tasks anyway
    tasks = tasks_of(group, slices, slots, kind, rows_per_ms(kind, group.listener, last))
    return Work(plan=plan, request=request, engine=engine, started_ms=started_ms, job=job, tasks=tasks, holes=holes)


def slices_of(shard: Shard, plan: Plan) -> tuple[dict[MessageQueue, list[Slice]], list[QueueRange]]:
    """The slices of each queue of a plan, and the ranges without messages.

    Raises OffsetOutOfRange for offsets without a message, unless the group skips them.
    """
    ranges = [planned.range for planned in plan.ranges]
    segments = segments_of(shard, ranges)
    slices: dict[MessageQueue, list[Slice]] = {}
    holes: list[QueueRange] = []
    for range_ in ranges:
        slices[range_.queue], missing = cover(range_, segments.get(range_.queue, ()))
        holes += missing
    refuse_holes(plan.group, holes)
    return slices, holes


def run_work(shard: Shard, work: Work) -> Proposal:
    """Run the tasks and stage the rows of their outcomes: the commit of the window.

    Raises the errors of its tasks, and ListenerError if the listener has only ended its process in all of them.
    """
    absorbed = _run(shard, work)
    refuse_deaths_only(work.job.group.listener, (result.deaths for result in absorbed.results))
    return _proposal(shard, work, absorbed)


def _run(shard: Shard, work: Work) -> Absorbed:
    """Run the tasks. Their results are in the order of their numbers. A group that absorbs duplicates has several turns."""
    job, engine = work.job, work.engine

    def run(some: Sequence[ConsumeTask]) -> list[TaskResult]:
        return sorted(engine(run_task, job, some), key=lambda result: result.number) if some else []

    rule = job.group.absorb_duplicates
    if rule is None:
        return Absorbed(run(work.tasks))
    return consume_absorbing(shard, job, rule, work.tasks, run, engine=engine, started_ms=work.started_ms)


# --- the commit ------------------------------------------------------------------------------------------------------


def _proposal(shard: Shard, work: Work, absorbed: Absorbed) -> Proposal:
    """The commit of the window, with the rows of its outcomes staged."""
    job, plan = work.job, work.plan
    results = absorbed.results
    waits = {queue: offset for result in results for queue, offset in result.waits.items()}
    lost = finished_part([*work.holes, *(planned.lost for planned in plan.ranges if planned.lost)], waits)
    files = [file for result in results for file in result.files] + list(absorbed.files)
    exceptions = [(range_, Outcome.LOST, NO_MESSAGE) for range_ in lost]
    exceptions += [(item.range, Outcome.DROPPED, item.reason) for result in results for item in result.dropped]
    outcomes = []
    if exceptions:
        outcomes.append(outcome_ranges(job.commit_id, job.group.name, job.passes, job.window_id, exceptions))
    if (rule := plan.group.absorb_duplicates) and absorbed.duplicates:
        outcomes.append(duplicate_outcomes(job, absorbed.duplicates, rule.reason))
    if outcomes:
        table = pa.concat_tables(outcomes)
        file = NewFile(kind="outcome", name=job.commit_id, rows=table)
        files.append(stage(shard.root, shard.commitlog.path, file))
    result = WindowResult(
        tallies=_tallies(absorbed, lost),
        produced=[segment for result in results for segment in result.produced],
        files=files,
        waits=waits,
        blocked=[blocked for result in results for blocked in result.blocked],
        keys=absorbed.keys,
        task_ms=sum(result.took_ms for result in results) if results else None,
        listener_versions=tuple(sorted({result.listener_version for result in results} - {""})),
    )
    return consume_proposal(plan, work.request, result, commit_id=job.commit_id, window_id=job.window_id)


def _tallies(absorbed: Absorbed, lost: Sequence[QueueRange]) -> dict[MessageQueue, dict[Outcome, Tally]]:
    """The evidence of the window, per queue and outcome."""
    tallies: dict[MessageQueue, dict[Outcome, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for result in absorbed.results:
        for consumed in result.ranges:
            for outcome, tally in consumed.tallies.items():
                tallies[consumed.range.queue][outcome] += tally
    for queue, offsets in absorbed.duplicates.items():
        tallies[queue][Outcome.DUPLICATE] += tally_of(offsets)
    for range_ in lost:
        tallies[range_.queue][Outcome.LOST] += tally_of_range(range_)
    return tallies
