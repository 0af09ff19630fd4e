"""A consumption window, end to end: plan, claim, run, commit, dispatch (the steps are numbered in ``commit.py``).

The engine is a function from tasks to results, so where the tasks run (this process, a Spark session, a Spark Connect
server) is the caller's choice and changes nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from rmq_store.commit.claim import Taken
from rmq_store.commit.ctl import Action, Proposal
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.pull import Slice, cover
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.table import tables
from rmq_store.lake.table.evidence import tally_of, tally_of_range
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consume_job import ConsumeJob, ConsumeTask, TaskResult
from rmq_store.lake.window.consume_slice import refuse_unknown_columns, run_task
from rmq_store.lake.window.duplicates import Absorbed, consume_absorbing, duplicate_outcomes
from rmq_store.lake.window.engine import Engine
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.lake.window.retry_rows import RetryPolicy
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import (
    WindowReport,
    committed_window,
    consume_proposal,
    ends_at_ms,
    finished_part,
    held_of,
    listener_of,
    next_window,
    orderly_rules,
    refuse_holes,
    shares,
    subscriptions_of,
    wish,
)
from rmq_store.window.plan import LIVE, ConsumeRequest, Plan, Planner, Scope
from rmq_store.window.ranges import window_id

TASKS_PER_SLOT = 2
LEAST_TASK_ROWS = 250_000
MOST_TASK_ROWS = 2_000_000


def task_rows(rows: int, slots: int) -> int:
    """How many messages a task of a window of ``rows`` gets: few tasks, since each costs tens of milliseconds, but
    enough that slots end together, and none so long that its retry would hurt."""
    return min(max(-(-rows // (slots * TASKS_PER_SLOT)), LEAST_TASK_ROWS), MOST_TASK_ROWS)


def consume_window(
    store: LakeStore,
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    engine_of: Callable[[Plan], Engine],
    host: Host,
    scope: Scope = LIVE,
) -> WindowReport:
    """One window of a request. ``engine_of`` is asked only when there is work, so an empty window starts no JVM.

    Raises the errors of planning, HeldByAnother, ListenerError, StaleAttempt and the other errors of ``commit``.
    """
    started_ms = host.now_ms()
    # 1. Plan.
    shard.commitlog.refresh()
    plan = _plan(shard, group, request, started_ms, scope)
    if isinstance(plan, WindowReport):
        return plan
    reached("1.planned")
    refuse_unknown_columns(listener_of(group))
    engine = engine_of(plan)
    # 2. Claim.
    with claimed(shard, wish(plan, request), host) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        # What was committed until the claim was ours counts.
        plan = _plan(shard, group, request, started_ms, scope, plan, claim.taken)
        if isinstance(plan, WindowReport):
            claim.release()
            return plan
        # 3. Run.
        job, tasks, gaps = _job(store, shard, plan, host, engine.slots, started_ms)
        done = _done(shard, job, group, tasks, engine, started_ms)
        proposal = _proposal(shard, job, plan, request, done, gaps)
        reached("3.staged")
        claim.stop_renewing()
        # 4. Decide. 5. Commit. 6. Read back.
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    # 7. Follow up.
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    held = held_of(plan, claim.taken)
    report = committed_window(shard.name, engine.name, committed.ctl, committed.version, held)
    return replace(report, warnings=warnings)


def _plan(
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    now_ms: int,
    scope: Scope,
    before: Plan | None = None,
    taken: Taken | None = None,
) -> Plan | WindowReport:
    """The next window of the request, or the report that it has none left."""
    parts = shard.ctls_of_request(request.request_id, group.name, Action.CONSUME)
    planner = Planner(ShardLookup(shard), group, now_ms, scope)
    return next_window(planner, request, parts, partial(segments_of, shard), before=before, taken=taken)


def _done(
    shard: Shard, job: ConsumeJob, group: GroupSettings, tasks: list[ConsumeTask], engine: Engine, started_ms: int
) -> Absorbed:
    """The tasks' results, by number. A group that absorbs duplicates has several turns."""

    def run(some: Sequence[ConsumeTask]) -> list[TaskResult]:
        return sorted(engine(run_task, job, some), key=lambda result: result.number) if some else []

    rule = group.absorb_duplicates
    return Absorbed(run(tasks)) if rule is None else consume_absorbing(shard, job, rule, tasks, started_ms, run)


# --- the work --------------------------------------------------------------------------------------------------------


def _job(
    store: LakeStore, shard: Shard, plan: Plan, host: Host, slots: int, started_ms: int
) -> tuple[ConsumeJob, list[ConsumeTask], list[QueueRange]]:
    """The tasks of the window, and the ranges that no file holds (they are lost)."""
    group = plan.group
    ranges = [planned.range for planned in plan.ranges]
    segments = segments_of(shard, ranges)
    slices: dict[MessageQueue, list[Slice]] = {}
    gaps: list[QueueRange] = []
    for range_ in ranges:
        slices[range_.queue], holes = cover(range_, segments.get(range_.queue, ()))
        gaps += holes
    refuse_holes(group, gaps)
    job = ConsumeJob(
        root=shard.root,
        table=shard.commitlog.path,
        commit_id=host.new_commit_id(),
        group=group.name,
        epoch=plan.epoch,
        window_id=window_id(group.name, plan.epoch, plan.ranges),
        listener=group.listener,
        batch_max_size=group.consume_message_batch_max_size,
        all_or_nothing=group.all_or_nothing,
        subscriptions=subscriptions_of(group),
        passes={planned.queue: planned.pass_ for planned in plan.ranges},
        retry=RetryPolicy(
            group.name,
            group.max_reconsume_times,
            group.retry_queue_nums,
            store.levels,
            shard.local_broker,
            shard.lane(group.name),
            group.retry_policy,
            in_order=group.mode == "orderly",
        ),
        broadcasting=group.broadcasting,
        in_order=orderly_rules(group),
        tried=plan.tried,
        absorbs=group.absorb_duplicates is not None,
        consume_timeout_ms=group.consume_timeout_ms,
        now_ms=host.now_ms,
        ends_at_ms=ends_at_ms(group, started_ms),
        deleted=plan.deleted,
    )
    return job, _tasks(group, slices, slots), gaps


def _tasks(group: GroupSettings, slices: dict[MessageQueue, list[Slice]], slots: int) -> list[ConsumeTask]:
    """Allocate queues to consumers as RocketMQ does, topic by topic, and cut each consumer's work into tasks."""
    tasks: list[ConsumeTask] = []
    most = task_rows(sum(len(slice_) for of_queue in slices.values() for slice_ in of_queue), slots)
    whole = group.mode == "orderly" or group.max_minutes is not None
    for consumer, queues in shares(group, slices, slots):
        if whole:  # a queue is one piece, however long: what is done of it is its beginning
            pieces = [slices[queue] for queue in queues if slices[queue]]
        else:
            pieces = [[piece] for queue in queues for slice_ in slices[queue] for piece in slice_.cut(most)]
        for bin_ in _packed(pieces, most):
            tasks.append(ConsumeTask(len(tasks), consumer, tuple(bin_)))
    return tasks


def _packed(pieces: Sequence[Sequence[Slice]], most: int) -> Iterable[list[Slice]]:
    """Neighbours together, in shares of about the same size, of about ``most`` rows at the most; no piece is cut."""
    sizes = [sum(map(len, piece)) for piece in pieces]
    total = sum(sizes)
    shares_ = -(-total // most)
    bin_: list[Slice] = []
    rows = done = 0
    for piece, size in zip(pieces, sizes, strict=True):
        bin_ += piece
        rows += size
        if rows * shares_ >= total * (done + 1):
            yield bin_
            bin_, done = [], done + 1


# --- the commit ------------------------------------------------------------------------------------------------------


def _proposal(
    shard: Shard,
    job: ConsumeJob,
    plan: Plan,
    request: ConsumeRequest,
    absorbed: Absorbed,
    gaps: Sequence[QueueRange],
) -> Proposal:
    """What the window did, as a commit: its evidence, its files, and the positions that it read and moves."""
    results = absorbed.results
    waits = {queue: offset for result in results for queue, offset in result.waits.items()}
    lost = finished_part([*gaps, *(planned.lost for planned in plan.ranges if planned.lost)], waits)
    files = [file for result in results for file in result.files] + list(absorbed.files)
    exceptions = [(range_, Outcome.LOST, "no message is there") for range_ in lost]
    exceptions += [(item.range, Outcome.DROPPED, item.reason) for result in results for item in result.dropped]
    outcomes = [_outcomes(job, exceptions)] if exceptions else []
    if (rule := plan.group.absorb_duplicates) and absorbed.duplicates:
        outcomes.append(duplicate_outcomes(job, absorbed.duplicates, rule.reason))
    if outcomes:
        table = pa.concat_tables(outcomes)
        files.append(stage(shard.root, shard.commitlog.path, "outcome", job.commit_id, table, tables.COMMITLOG_STATS))
    return consume_proposal(
        plan,
        request,
        commit_id=job.commit_id,
        window_id=job.window_id,
        tallies=_tallies(absorbed, lost),
        produced=[segment for result in results for segment in result.produced],
        files=files,
        waits=waits,
        blocked=[blocked for result in results for blocked in result.blocked],
        keys=absorbed.keys,
    )


def _tallies(absorbed: Absorbed, lost: Sequence[QueueRange]) -> dict[MessageQueue, dict[Outcome, Tally]]:
    """Everything that happened, per queue."""
    found: dict[MessageQueue, dict[Outcome, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for result in absorbed.results:
        for done in result.done:
            for outcome, tally in done.tallies.items():
                found[done.range.queue][outcome] += tally
    for queue, offsets in absorbed.duplicates.items():
        found[queue][Outcome.DUPLICATE] += tally_of(offsets)
    for range_ in lost:
        found[range_.queue][Outcome.LOST] += tally_of_range(range_)
    return found


def _outcomes(job: ConsumeJob, exceptions: Sequence[tuple[QueueRange, Outcome, str]]) -> pa.Table:
    """What nobody can read any more, or was given up, with the reason."""
    count = len(exceptions)
    ranges = [range_ for range_, _, _ in exceptions]
    columns: dict[str, Sequence[object]] = {
        "commit_id": [job.commit_id] * count,
        "part": [None] * count,
        "rel": [None] * count,
        "topic": [range_.queue.topic for range_ in ranges],
        "broker_name": [range_.queue.broker_name for range_ in ranges],
        "queue_id": [range_.queue.queue_id for range_ in ranges],
        "group_name": [job.group] * count,
        "pass": [job.passes[range_.queue] for range_ in ranges],
        "window_id": [job.window_id] * count,
        "begin_offset": [range_.begin for range_ in ranges],
        "end_offset": [range_.end for range_ in ranges],
        "outcome": [str(outcome) for _, outcome, _ in exceptions],
        "reason": [reason for _, _, reason in exceptions],
    }
    return pa.table(columns, schema=tables.OUTCOME)
