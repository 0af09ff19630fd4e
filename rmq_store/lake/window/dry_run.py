"""Dry runs of windows: what they would read, counted from the tables. Nothing is written. The listener is loaded, as
before a window's claim, and not called.

The plan is that of the windows (``next_window``), the slices are theirs (``slices_of``), and so is the filter
(``chosen_rows``). Only what the counts need is read: the sizes of the bodies, what the filter looks at, and how often a
message has been retried. Columns that have one value in a row group are not read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.admin.sentences import blocked_warnings
from rmq_store.commit.claim import Taken, take
from rmq_store.commit.ctl import Action, Blocked, Ctl, Proposal
from rmq_store.commit.positions import QueueRange
from rmq_store.commit.request import Status
from rmq_store.consumer.pull import Slice
from rmq_store.errors import NothingThere, RmqError
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.commit.cursor import refuse_rolled_back
from rmq_store.lake.listener.task_listener import listener_kind
from rmq_store.lake.read.body_sizes import SIZE
from rmq_store.lake.read.filter import filter_columns
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader, slices_by_file
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.chosen_rows import chosen_rows
from rmq_store.lake.window.consume_job import Offsets
from rmq_store.lake.window.consumption import shards_of
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.lake.window.void_rows import with_epoch
from rmq_store.lake.window.window import slices_of
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport, held_of, next_window, subscriptions_of, wish
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.dry_run import (
    AfterCommits,
    ConsumePlan,
    Counts,
    QueuePlan,
    Retries,
    ShardPlan,
    WindowPlan,
    commit_as_planned,
    is_last_attempt,
)
from rmq_store.window.due import delayed, next_due_ms, select_due
from rmq_store.window.estimate import SAMPLED_WINDOWS, estimate_of, sample_of, time_limit_notes
from rmq_store.window.plan import Plan, Planner

_TIMES = "reconsume_times"


def plan_request(
    store: LakeStore,
    shards: Sequence[Shard],
    group: GroupSettings,
    request: ConsumeRequest,
    host: Host,
    scope: Scope = LIVE,
    *,
    before: Mapping[str, Proposal] | None = None,
    notes: Sequence[str] = (),
) -> ConsumePlan:
    """What ``consume_window``, called until the request is complete, would do in each of these shards, as of their handles.

    ``before``: by shard a commit that the request makes before its windows. An error with which the request would end is in the
    plan; it is raised where it would come before the first window.
    """
    first = before or {}
    plans = tuple(plan_in_shard(store, shard, group, request, host, scope, first.get(shard.name)) for shard in shards)
    if not any(plan.windows for plan in plans):
        for plan in plans:
            if plan.error is not None:
                raise plan.error
    sampled = request.parameters.get("replay_of") or group.name
    windows = last_windows(shards, sampled)
    sample = sample_of(sampled, windows)
    unread = [range_ for plan in plans for range_ in plan.unread]
    most = max((window.counts.messages for plan in plans for window in plan.windows), default=0)
    return ConsumePlan(
        group=group.name,
        request_id=request.request_id,
        shards=plans,
        estimate=estimate_of(sum(plan.counts.messages for plan in plans), sample),
        sampled=len(windows),
        notes=(
            *notes,
            *blocked_warnings(group.name, unread),
            *time_limit_notes(estimate_of(most, sample), group.max_minutes),
        ),
    )


def plan_in_shard(
    store: LakeStore,
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    host: Host,
    scope: Scope = LIVE,
    before: Proposal | None = None,
) -> ShardPlan:
    """The windows of the request in one shard, as they would be committed on the snapshot of its handle."""
    windows: list[WindowPlan] = []
    status, idle, error = Status.DRY_RUN, "", None
    unread: tuple[QueueRange, ...] = ()
    retries = Retries()
    try:
        retries = _waiting(store, shard, group.name, host.now_ms())
        for window in _windows(store, shard, group, request, host, scope, before):
            if isinstance(window, WindowPlan):
                windows.append(window)
            elif not windows:
                status, idle, unread = window.status, window.idle, window.unread
    except RmqError as problem:
        error = problem
    topic = retry_topic(group.name)
    read = sum(q.counts.messages for window in windows for q in window.queues if q.range.queue.topic == topic)
    return ShardPlan(
        shard=shard.name,
        status=status,
        windows=tuple(windows),
        retries=retries + Retries(read=read),
        idle=idle,
        unread=unread,
        error=error,
    )


def _windows(
    store: LakeStore,
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    host: Host,
    scope: Scope,
    before: Proposal | None,
) -> Iterator[WindowPlan | WindowReport]:
    """Window after window; last the report of what does nothing more. Raises the errors with which a window would end."""
    now_ms, segments = host.now_ms(), partial(segments_of, shard)
    parts = shard.ctls_of_request(request.request_id, group.name, Action.CONSUME)
    view = AfterCommits(ShardLookup(shard), () if before is None else (before,))
    while True:
        plan = next_window(Planner(view, group, now_ms, scope), request, parts, segments)
        if isinstance(plan, WindowReport):
            yield plan
            return
        refuse_rolled_back(shard)
        listener_kind(group, host.now_ms)
        taken = _taken(shard, plan, request, host)
        if taken.held:
            planner = Planner(view, group, now_ms, scope)
            plan = next_window(planner, request, parts, segments, before=plan, taken=taken)
            if isinstance(plan, WindowReport):
                yield plan
                return
        queues = _counted(store, shard, plan)
        lost = {queue.range.queue: queue.counts.lost for queue in queues}
        proposal = commit_as_planned(plan, request, lost, host.new_commit_id())
        complete = proposal.ctl.request_complete
        yield WindowPlan(part=plan.part, complete=complete, queues=queues, held=held_of(plan, taken))
        if complete:
            return
        view = AfterCommits(view.shard, (*view.commits, proposal))
        parts = [*parts, proposal.ctl]


def plan_all(
    store: LakeStore, groups: Sequence[GroupSettings], request: ConsumeRequest, host: Host, *, shard: str | None = None
) -> list[ConsumePlan | RmqError]:
    """What ``consume_all`` would do for each of these groups, or the error with which the group would end."""
    opened = store.shards()
    plans: list[ConsumePlan | RmqError] = []
    for group in groups:
        try:
            shards = shards_of(store, group, chosen=shard, opened=opened)
            plans.append(plan_request(store, shards, group, request, host))
        except NothingThere:
            plans.append(ConsumePlan(group=group.name, request_id=request.request_id, shards=()))
        except RmqError as error:
            plans.append(error)
    return plans


def _taken(shard: Shard, plan: Plan, request: ConsumeRequest, host: Host) -> Taken:
    """The claims that the window would get. Raises HeldByAnother."""
    ctls_since = partial(shard.ctls_since, group=plan.group.name)
    return take(wish(plan, request), host.new_commit_id(), shard.name, plan.positions, ctls_since, now_ms=host.now_ms())


def _waiting(store: LakeStore, shard: Shard, group: str, now_ms: int) -> Retries:
    """The group's retries that are not delivered yet."""
    positions = shard.positions()
    ranges = delayed(positions, group)
    if not ranges:
        return Retries()
    due = select_due(
        positions,
        partial(segments_of, shard),
        shard.local_broker,
        store.levels,
        now_ms=now_ms,
        cap=sys.maxsize,
        queues=[range_.queue for range_ in ranges],
    )
    messages = sum(len(one.range) for one in due if one.slices)
    return Retries(due=messages, waiting=sum(map(len, ranges)) - messages, next_due_ms=next_due_ms(due))


def last_windows(shards: Sequence[Shard], group: str) -> list[Ctl]:
    """The last windows of the group, at most ``SAMPLED_WINDOWS``, to estimate a time from."""
    windows = [ctl for shard in shards for ctl in shard.newest_ctls(group, Action.CONSUME, SAMPLED_WINDOWS)]
    return sorted(windows, key=lambda ctl: ctl.commit_id)[-SAMPLED_WINDOWS:]


# --- counting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rules:
    """What decides about the messages of one queue."""

    subscription: SubscriptionData
    void_before: int | None
    is_last: Callable[[int], bool]
    tried: Sequence[Blocked]


def _counted(store: LakeStore, shard: Shard, plan: Plan) -> tuple[QueuePlan, ...]:
    """The queues of a window with their counts. Raises OffsetOutOfRange as the window would."""
    slices, holes = slices_of(shard, plan)
    group, subscriptions = plan.group, subscriptions_of(plan.group)
    rules = {
        queue: _Rules(
            subscriptions[queue.topic],
            plan.deleted if queue.topic == retry_topic(group.name) else None,
            cache(partial(is_last_attempt, group, queue, store.levels)),
            [blocked for blocked in plan.tried if blocked.range.queue == queue],
        )
        for queue in slices
    }
    counts = {planned.queue: Counts(lost=len(planned.lost or ())) for planned in plan.ranges}
    for hole in holes:
        counts[hole.queue] += Counts(lost=len(hole))
    several = slices_by_file(slice_ for of_queue in slices.values() for slice_ in of_queue)
    for of_file in in_parallel(shard.root, partial(_count_file, shard, rules), several):
        for queue, of_slice in of_file:
            counts[queue] += of_slice
    return tuple(
        QueuePlan(
            QueueRange(planned.queue, planned.begin, planned.range.end), planned.start_rule, counts[planned.queue]
        )
        for planned in plan.ranges
    )


def _count_file(
    shard: Shard, rules: Mapping[MessageQueue, _Rules], slices: Sequence[Slice]
) -> list[tuple[MessageQueue, Counts]]:
    """The counts of the slices of one file."""
    files = OpenFiles(shard.root)
    table = shard.commitlog.path
    return [(one.queue, _count_slice(SliceReader(shard.root, table, one, files), rules[one.queue])) for one in slices]


def _count_slice(reader: SliceReader, rules: _Rules) -> Counts:
    columns = with_epoch([*filter_columns(rules.subscription), SIZE, _TIMES], rules.void_before)
    counts = Counts()
    for offsets, batch in reader.batches(columns):
        chosen = chosen_rows(offsets, batch, rules.subscription, rules.void_before)
        counts += Counts(
            messages=len(offsets),
            bytes=pc.sum(batch.column(SIZE)).as_py() or 0,
            matched=len(chosen.offsets),
            filtered=len(chosen.filtered),
            dropped=len(chosen.void),
            last_attempts=_last_attempts(rules, chosen.offsets, chosen.rows.column(_TIMES)),
        )
    return counts


def _last_attempts(rules: _Rules, offsets: Offsets, column: pa.Array) -> int:
    times = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    for blocked in rules.tried:  # these tries are not in the message yet
        times += np.where((blocked.range.begin <= offsets) & (offsets < blocked.range.end), blocked.attempts, 0)
    values, counts = np.unique(times, return_counts=True)
    return sum(count for value, count in zip(values.tolist(), counts.tolist(), strict=True) if rules.is_last(value))
