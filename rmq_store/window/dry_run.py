"""What the windows of a request would do, before they run: its values, and the rules behind its numbers.

A dry run plans with ``next_window``, as the windows do, and assumes of each window only that it is committed as planned:
``AfterCommits`` is the shard as it will be then, in which the next window is planned. So the numbers are those of the run that
follows on unchanged data. What a listener answers is not known: an orderly queue that it blocks ends early, and so does a
window with ``max_minutes``. ``rmq_store/lake/window/dry_run.py`` reads the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from rmq_store.commit.claim import Held
from rmq_store.commit.ctl import Ctl, Observed, Proposal
from rmq_store.commit.positions import Outcome, Positions, QueueRange, Tally
from rmq_store.commit.request import Status, overall
from rmq_store.consumer.consume_result_orderly import OrderlyMessage, messages_over_limit
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.listener import ConsumeOrderlyStatus
from rmq_store.consumer.retry import retry_queue_id, route
from rmq_store.errors import RmqError
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import WindowResult, consume_proposal
from rmq_store.window.consume_request import ConsumeRequest, of_retries_only
from rmq_store.window.estimate import Estimate, Sample, estimate_of, no_estimate
from rmq_store.window.plan import Plan
from rmq_store.window.ranges import window_id
from rmq_store.window.shard_view import ShardView

# --- the values ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counts:
    """What would become of some offsets of a queue."""

    messages: int = 0
    """Messages to read: ``matched``, ``filtered`` and ``dropped`` together."""
    bytes: int = 0
    """Of the bodies of these messages, as they are stored: the column ``stored_body_size``. Keys and properties do not count; a
    body that its producer compressed counts compressed."""
    matched: int = 0
    """Messages for the listener. In a group that absorbs duplicates, duplicates are among them."""
    filtered: int = 0
    """Messages that the group's tags or its SQL92 expression leave out."""
    dropped: int = 0
    """Retries from before a delete of the group."""
    lost: int = 0
    """Offsets without a message, which the window records as lost."""
    last_attempts: int = 0
    """Matched messages at ``max_reconsume_times``: each becomes a dead letter if it fails."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + others for mine, others in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """What a window would do with one queue."""

    range: QueueRange
    """``[begin, end)``: from the group's offset, lost offsets included."""
    start_rule: str
    """The rule that chooses the begin; ``stored`` for a committed offset."""
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """One window: a part of the request, and one commit."""

    part: int
    """Its number in the request, from 1."""
    complete: bool
    """Whether it would be the last one."""
    queues: tuple[QueuePlan, ...]
    held: tuple[Held, ...] = ()
    """The claims of other requests on queues that this one wants too: the window would skip them."""

    @property
    def counts(self) -> Counts:
        return sum((queue.counts for queue in self.queues), Counts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The retries of a group in one shard, or in several."""

    read: int = 0
    """In the windows of the plan: 'rmq deliver' has delivered them."""
    due: int = 0
    """Due now and not delivered yet: 'rmq deliver' delivers them, and the windows after it read them."""
    waiting: int = 0
    """Not due yet."""
    next_due_ms: int | None = None
    """When the first of the ``waiting`` is due (UTC ms); None: none waits."""

    @property
    def left(self) -> int:
        """How many there are."""
        return self.read + self.due + self.waiting

    def __add__(self, other: Retries) -> Retries:
        times = [ms for ms in (self.next_due_ms, other.next_due_ms) if ms is not None]
        return Retries(
            read=self.read + other.read,
            due=self.due + other.due,
            waiting=self.waiting + other.waiting,
            next_due_ms=min(times, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """What a request would do in one shard."""

    shard: str
    status: Status
    """``DRY_RUN``; ``EMPTY`` when there is nothing to do, ``ALREADY_COMMITTED`` when the request is complete."""
    windows: tuple[WindowPlan, ...] = ()
    retries: Retries = Retries()
    idle: str = ""
    """Why this consumer has no queue; empty when it has one."""
    unread: tuple[QueueRange, ...] = ()
    """Of a request that is complete: what it left unread in queues that are blocked now, by offset."""
    error: RmqError | None = None
    """The error with which the request would end after the windows."""

    @property
    def counts(self) -> Counts:
        return sum((window.counts for window in self.windows), Counts())

    def ends(self) -> dict[MessageQueue, int]:
        """Where the request would end, by queue."""
        return {queue.range.queue: queue.range.end for window in self.windows for queue in window.queues}

    @property
    def has_work(self) -> bool:
        """Whether the request has messages to read or lost offsets to record here, or would report: an error, or what it has
        committed before."""
        counts, is_complete = self.counts, self.status == Status.ALREADY_COMMITTED
        return is_complete or self.error is not None or bool(counts.messages or counts.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumePlan:
    """What a request of a group would do, in all its shards. Nothing was written, and no listener was started."""

    group: str
    """For a replay: the replay group."""
    request_id: str
    shards: tuple[ShardPlan, ...]
    estimate: Estimate | None = None
    """None: the group's last windows had no messages, it has no windows yet, or there is nothing to do."""
    sampled: int = 0
    """How many of the group's last windows were looked at for the estimate."""
    notes: tuple[str, ...] = ()
    """What is unusual about the range, in words."""

    @property
    def status(self) -> Status:
        """dry_run, or as every report: already_committed, empty."""
        return overall(shard.status for shard in self.shards)

    @property
    def counts(self) -> Counts:
        return sum((shard.counts for shard in self.shards), Counts())

    @property
    def retries(self) -> Retries:
        return sum((shard.retries for shard in self.shards), Retries())

    @property
    def error(self) -> RmqError | None:
        """The error with which the request would end: that of its first shard with one."""
        return next((shard.error for shard in self.shards if shard.error is not None), None)

    @property
    def time(self) -> str:
        """The estimate in words, with the sample it comes from."""
        return str(self.estimate or no_estimate(self.counts.messages, self.sampled))

    def queue_rows(self) -> list[dict[str, Any]]:
        """A row per queue, all its windows together: its offsets ``[begin_offset, end_offset)`` and its counts."""
        ranges: dict[tuple[str, MessageQueue], tuple[int, int, Counts]] = {}
        for shard in self.shards:
            for one in (queue for window in shard.windows for queue in window.queues):
                place, range_ = (shard.shard, one.range.queue), one.range
                begin, _, counts = ranges.get(place, (range_.begin, range_.end, Counts()))
                ranges[place] = (begin, range_.end, counts + one.counts)
        return [
            {
                "shard": shard,
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "begin_offset": begin,
                "end_offset": end,
                **_counts(counts),
            }
            for (shard, queue), (begin, end, counts) in sorted(ranges.items())
        ]

    def summary(self) -> dict[str, Any]:
        """A JSON value: in all, per shard, and per window with its queues."""
        return {
            "status": self.status,
            "group": self.group,
            "request_id": self.request_id,
            **_counts(self.counts),
            "retries": _retries(self.retries),
            "estimate": _estimate(self.estimate),
            "shards": [_shard(shard) for shard in self.shards],
            "windows": [_window(shard.shard, window) for shard in self.shards for window in shard.windows],
            "notes": list(self.notes),
        }


def _counts(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in Counts.__slots__}


def _retries(retries: Retries) -> dict[str, int | None]:
    return {name: getattr(retries, name) for name in Retries.__slots__}


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    sample = {name: getattr(estimate.sample, name) for name in Sample.__slots__}
    return {"seconds": estimate.seconds, "messages": estimate.messages, "sample": sample}


def _shard(plan: ShardPlan) -> dict[str, Any]:
    return {
        "shard": plan.shard,
        "status": plan.status,
        "windows": len(plan.windows),
        **_counts(plan.counts),
        "retries": _retries(plan.retries),
        "idle": plan.idle or None,
        "error": None if plan.error is None else type(plan.error).__name__,
        "message": None if plan.error is None else str(plan.error),
    }


def _window(shard: str, window: WindowPlan) -> dict[str, Any]:
    return {
        "shard": shard,
        "part": window.part,
        "complete": window.complete,
        **_counts(window.counts),
        "ranges": [
            {
                "topic": queue.range.queue.topic,
                "broker_name": queue.range.queue.broker_name,
                "queue_id": queue.range.queue.queue_id,
                "begin_offset": queue.range.begin,
                "end_offset": queue.range.end,
                "start_rule": queue.start_rule,
                **_counts(queue.counts),
            }
            for queue in window.queues
        ],
        "held": [
            {
                "topic": held.queue.topic,
                "broker_name": held.queue.broker_name,
                "queue_id": held.queue.queue_id,
                "request_id": held.holder.request_id if held.holder else None,
                "seconds_left": held.remaining_s,
            }
            for held in window.held
            if held.queue is not None
        ],
    }


def joined_plans(plans: Sequence[ConsumePlan]) -> ConsumePlan:
    """The plans of one request in different shards, at least one, as one."""
    messages = sum(plan.counts.messages for plan in plans)
    samples = [plan.estimate.sample for plan in plans if plan.estimate is not None]
    return replace(
        plans[0],
        shards=tuple(shard for plan in plans for shard in plan.shards),
        estimate=estimate_of(messages, max(samples, key=lambda sample: sample.messages, default=None)),
        notes=tuple(dict.fromkeys(note for plan in plans for note in plan.notes)),
    )


# --- window after window ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AfterCommits:
    """A shard as it will be after some commits: a ``ShardView`` over it."""

    shard: ShardView
    commits: tuple[Proposal, ...] = ()

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def local_broker(self) -> str:
        return self.shard.local_broker

    def positions(self) -> Positions:
        positions = self.shard.positions()
        for proposal in self.commits:
            positions = positions.advanced(positions.version, proposal.advance, {})
        return positions

    def others(self) -> Iterable[ShardView]:
        return self.shard.others()

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        return self.shard.search_offsets(positions, queues, time_ms)

    def body_sizes(self, range_: QueueRange) -> Iterable[tuple[int, int]]:
        return self.shard.body_sizes(range_)

    def observed(self) -> Iterable[Observed]:
        return self.shard.observed()

    def incomplete_imports(self) -> Mapping[str, int]:
        return self.shard.incomplete_imports()

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        windows = (ctl for ctl in self._windows() if ctl.group == group and not (topics and of_retries_only(ctl)))
        return any((ctl.epoch or 0) >= epoch for ctl in windows) or self.shard.has_consumed(group, epoch, topics=topics)

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        windows = (ctl for ctl in self._windows() if ctl.group == group and (ctl.epoch or 0) >= epoch)
        return self.shard.first_window(group, epoch) or next(windows, None)

    def delete_epochs(self, group: str) -> Iterable[int]:
        return self.shard.delete_epochs(group)

    def windows_since(self, group: str | None, ms: int) -> Iterable[Ctl]:
        windows = (ctl for ctl in self._windows() if group in (None, ctl.group))
        return [*self.shard.windows_since(group, ms), *windows]

    def _windows(self) -> list[Ctl]:
        return [proposal.ctl for proposal in self.commits if proposal.ctl.consumed]


def commit_as_planned(
    plan: Plan, request: ConsumeRequest, lost: Mapping[MessageQueue, int], commit_id: str
) -> Proposal:
    """The commit of a window that does all of its plan. ``lost``: how many offsets of each queue have no message."""
    tallies = {queue: {Outcome.LOST: Tally(count)} for queue, count in lost.items() if count}
    result = WindowResult(tallies=tallies, produced=(), files=(), waits={}, blocked=(), keys=None)
    name = window_id(plan.group.name, plan.epoch, plan.ranges)
    return consume_proposal(plan, request, result, commit_id=commit_id, window_id=name)


# --- the last attempt ------------------------------------------------------------------------------------------------


def is_last_attempt(group: GroupSettings, queue: MessageQueue, levels: DelayLevels, reconsume_times: int) -> bool:
    """Whether a message of the queue with this ``reconsume_times`` becomes a dead letter if it fails, by the rules of RocketMQ
    (rules 10.2 and 10.5), for a listener that names no level."""
    if group.broadcasting:
        return False
    if group.mode == "orderly":
        suspend = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return bool(messages_over_limit(suspend, [OrderlyMessage(0, reconsume_times)], group.max_reconsume_times))
    retry_queue = retry_queue_id(queue.topic, queue.broker_name, queue.queue_id, 0, group.retry_queue_nums)
    return route(
        group.name,
        delay_level=0,
        reconsume_times=reconsume_times,
        max_reconsume_times=group.max_reconsume_times,
        retry_queue=retry_queue,
        levels=levels,
        policy=group.retry_policy,
    ).dead
