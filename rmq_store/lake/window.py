"""A consumption window, end to end: plan, claim, run, commit, dispatch (the steps are numbered in ``commit.py``).

The engine is a function from tasks to results, so where the tasks run (this process, a Spark session, a Spark Connect
server) is the caller's choice and changes nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.consumer.allocate import strategy_named
from rmq_store.consumer.listener import load_listener
from rmq_store.consumer.pull import Slice, cover
from rmq_store.errors import OffsetOutOfRange
from rmq_store.host import Host
from rmq_store.lake import tables
from rmq_store.lake.claim import HeldClaim, claimed
from rmq_store.lake.commit import commit, reached
from rmq_store.lake.consume_slice import ConsumeJob, ConsumeTask, TaskResult, run_task
from rmq_store.lake.dispatch import dispatch
from rmq_store.lake.engine import Engine
from rmq_store.lake.evidence import tally_of_range
from rmq_store.lake.plan import LIVE, ConsumeRequest, Plan, Planner, Scope, request_parameters
from rmq_store.lake.retry_rows import RetryPolicy
from rmq_store.lake.segments import segments_of
from rmq_store.lake.shard import Shard
from rmq_store.lake.stage import stage
from rmq_store.lake.store import LakeStore
from rmq_store.message import MessageQueue, retry_topic
from rmq_store.offsets import Claim, Outcome, QueueRange, Tally, grp_id, off_id, pas_id
from rmq_store.settings import GroupSettings
from rmq_store.store import Action, Consumed, Ctl, Proposal, StagedFile, canonical_json
from rmq_store.subscription import build_subscription_data
from rmq_store.window import STORED, window_id

TASK_ROWS = 500_000
"""A task is cut at so many messages: long enough to be worth a Python worker, short enough to balance."""


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What a window did. ``status``: committed, already_committed, or empty (nothing to do, no row was written)."""

    status: str
    shard: str
    group: str
    request_id: str
    engine: str
    window_id: str | None = None
    commit_id: str | None = None
    version: int | None = None
    complete: bool = True
    consumed: tuple[Consumed, ...] = ()

    def counts(self) -> dict[Outcome, int]:
        """Messages per outcome."""
        return {outcome: sum(c.tally(outcome).count for c in self.consumed) for outcome in Outcome}

    def messages(self) -> int:
        return sum(self.counts().values())


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
    load_listener(group.listener)
    engine = engine_of(plan)
    # 2. Claim.
    with claimed(shard, (group.name,), request.request_id, request.actor, host, group=group.name) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        plan = _plan(shard, group, request, started_ms, scope)  # what was committed until the claim was ours counts
        if isinstance(plan, WindowReport):
            claim.release()
            return plan
        # 3. Run.
        job, tasks, gaps = _job(store, shard, plan, host, engine.slots)
        results = sorted(engine(run_task, job, tasks), key=lambda result: result.number) if tasks else []
        proposal = _proposal(shard, job, plan, request, results, gaps, claim)
        reached("3.staged")
        claim.stop_renewing()
        # 4. Decide. 5. Commit. 6. Read back.
        committed = commit(shard, proposal, host, started_ms=started_ms)
    # 7. Follow up.
    dispatch(shard, host, fresh=False)
    reached("7.dispatched")
    return _report("committed", shard, group, request, engine.name, [committed.ctl], committed.version)


def _plan(
    shard: Shard, group: GroupSettings, request: ConsumeRequest, now_ms: int, scope: Scope
) -> Plan | WindowReport:
    """The next window of the request, or the report that it has none left."""
    parts = [c for c in shard.ctls_of_request(request.request_id, group.name) if c.action is Action.CONSUME]
    if any(part.request_complete for part in parts):
        return _report("already_committed", shard, group, request, "none", parts)
    plan = Planner(shard, group, now_ms, scope).plan(request, parts)
    if plan.ranges:
        return plan
    return _report("already_committed" if parts else "empty", shard, group, request, "none", parts)


def _report(
    status: str,
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    engine: str,
    parts: Sequence[Ctl],
    version: int | None = None,
) -> WindowReport:
    last = parts[-1] if parts else None
    return WindowReport(
        status,
        shard.name,
        group.name,
        request.request_id,
        engine,
        last.window_id if last else None,
        last.commit_id if last else None,
        version,
        status != "committed" or parts[-1].request_complete,
        tuple(consumed for part in parts for consumed in part.consumed),
    )


# --- the work --------------------------------------------------------------------------------------------------------


def _job(
    store: LakeStore, shard: Shard, plan: Plan, host: Host, slots: int
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
    if gaps and group.on_offset_out_of_range != "skip":
        listed = ", ".join(f"[{gap.begin}, {gap.end}) of {gap.queue}" for gap in gaps[:5])
        raise OffsetOutOfRange(
            f"group {group.name} cannot read {listed}: no message is there (a salvaged log, or removed on the broker). "
            'Set on_offset_out_of_range = "skip" to go on and record them as lost.'
        )
    retries = retry_topic(group.name)
    subscriptions = {subscription.topic: subscription for subscription in group.subscriptions}
    subscriptions[retries] = build_subscription_data(retries, "*")
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
        subscriptions=subscriptions,
        passes={planned.queue: planned.pass_ for planned in plan.ranges},
        retry=RetryPolicy(
            group.name,
            group.max_reconsume_times,
            group.retry_queue_nums,
            store.levels,
            shard.local_broker,
            shard.lane(group.name),
        ),
    )
    return job, _tasks(group, slices, slots), gaps


def _tasks(group: GroupSettings, slices: dict[MessageQueue, list[Slice]], slots: int) -> list[ConsumeTask]:
    """Allocate queues to consumers as RocketMQ does, topic by topic, and cut each consumer's work into tasks."""
    consumers = [f"consumer-{number:05d}" for number in range(group.consumers or slots)]
    by_topic: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(slices):
        by_topic[queue.topic].append(queue)
    strategy = strategy_named(group.allocate_strategy)
    tasks: list[ConsumeTask] = []
    for consumer in consumers:
        queues = [
            queue for topic in sorted(by_topic) for queue in strategy(group.name, consumer, by_topic[topic], consumers)
        ]
        pieces = [piece for queue in queues for slice_ in slices[queue] for piece in slice_.cut(TASK_ROWS)]
        for bin_ in _packed(pieces):
            tasks.append(ConsumeTask(len(tasks), consumer, tuple(bin_)))
    return tasks


def _packed(pieces: Iterable[Slice]) -> Iterable[list[Slice]]:
    """Neighbours together, up to TASK_ROWS."""
    bin_: list[Slice] = []
    rows = 0
    for piece in pieces:
        if bin_ and rows + len(piece) > TASK_ROWS:
            yield bin_
            bin_, rows = [], 0
        bin_.append(piece)
        rows += len(piece)
    if bin_:
        yield bin_


# --- the commit ------------------------------------------------------------------------------------------------------


def _proposal(
    shard: Shard,
    job: ConsumeJob,
    plan: Plan,
    request: ConsumeRequest,
    results: Sequence[TaskResult],
    gaps: Sequence[QueueRange],
    claim: HeldClaim,
) -> Proposal:
    """What the window did, as a commit: its evidence, its files, and the positions that it read and moves."""
    group, positions = plan.group, plan.positions
    lost = [*gaps, *(planned.lost for planned in plan.ranges if planned.lost)]
    tallies = _tallies(results, lost)
    grp = grp_id(group.name)
    expect: dict[str, int | None] = {grp: positions.get(grp), claim.app_id: claim.claim.packed()}
    advance = {grp: plan.epoch, claim.app_id: Claim(claim.claim.number, 0).packed()}
    for planned in plan.ranges:
        off = off_id(group.name, planned.queue)
        expect[off] = positions.get(off)
        advance[off] = planned.range.end
        if planned.start_rule != STORED and plan.epoch:
            advance[pas_id(group.name, planned.queue)] = plan.epoch
    ctl = Ctl(
        commit_id=job.commit_id,
        action=Action.CONSUME,
        actor=request.actor,
        reason=request.reason,
        request_id=request.request_id,
        request_part=plan.part,
        request_complete=plan.completes,
        group=group.name,
        epoch=plan.epoch,
        window_id=job.window_id,
        parameters=request_parameters(plan, request),
        subscription=canonical_json({s.topic: s.expression for s in group.subscriptions}),
        subscription_version=group.subscription_version,
        listener=group.listener,
        consumed=tuple(
            Consumed(
                QueueRange(planned.queue, planned.begin, planned.range.end),
                planned.pass_,
                tallies.get(planned.queue, {}),
                planned.start_rule,
            )
            for planned in plan.ranges
        ),
        produced=tuple(segment for result in results for segment in result.produced),
    )
    files = [file for result in results for file in result.files]
    if lost:
        files.append(_stage_lost(shard, job, lost))
    return Proposal(ctl, expect, advance, tuple(files))


def _tallies(results: Sequence[TaskResult], lost: Sequence[QueueRange]) -> dict[MessageQueue, dict[Outcome, Tally]]:
    """Everything that happened, per queue."""
    found: dict[MessageQueue, dict[Outcome, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for result in results:
        for done in result.done:
            for outcome, tally in done.tallies.items():
                found[done.range.queue][outcome] += tally
    for range_ in lost:
        found[range_.queue][Outcome.LOST] += tally_of_range(range_)
    return found


def _stage_lost(shard: Shard, job: ConsumeJob, lost: Sequence[QueueRange]) -> StagedFile:
    """The ranges that nobody can read any more, as ``outcome`` rows."""
    rows = [
        {
            "commit_id": job.commit_id,
            "topic": range_.queue.topic,
            "broker_name": range_.queue.broker_name,
            "queue_id": range_.queue.queue_id,
            "group_name": job.group,
            "pass": job.passes[range_.queue],
            "window_id": job.window_id,
            "begin_offset": range_.begin,
            "end_offset": range_.end,
            "outcome": str(Outcome.LOST),
            "reason": "no message is there",
        }
        for range_ in lost
    ]
    table = pa.Table.from_pylist(rows, schema=tables.OUTCOME)
    return stage(shard.root, shard.commitlog.path, "outcome", job.commit_id, table, tables.COMMITLOG_STATS)
