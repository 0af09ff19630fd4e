"""The rules of a consumption window around its listener: the next plan, the claim, the allocation to tasks, the commit, the
report.

Reading, calling the listener and writing are the engine's (``rmq_store/lake/window/``); the steps of a window are numbered
in ``rmq_store/lake/commit/commit.py``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.commit.claim import Held, Taken, Wish, held_by_another
from rmq_store.commit.ctl import Action, Blocked, Consumed, Ctl, Produced, Proposal, StagedFile
from rmq_store.commit.positions import (
    ABSENT,
    Outcome,
    Positions,
    QueueRange,
    Tally,
    blk_id,
    grp_id,
    min_id,
    off_id,
    own_id,
    own_queue_id,
    pas_id,
    sub_id,
)
from rmq_store.commit.request import Status, refuse_other_request
from rmq_store.consumer.allocate import allocate_by_topic
from rmq_store.consumer.consume_orderly import OrderlyRules
from rmq_store.consumer.listener import ListenerKind
from rmq_store.consumer.start import StartRule
from rmq_store.errors import ListenerError, OffsetOutOfRange, StaleAttempt, WrongUse
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import uuid7_ms
from rmq_store.window.consume_request import (
    RETRIES_ONLY,
    ConsumeRequest,
    bounds_of,
    identity_parameters,
    messages_remaining,
)
from rmq_store.window.due import SegmentsOf, WaitingRetries, waiting_retries
from rmq_store.window.plan import Plan, Planner, request_parameters
from rmq_store.window.ranges import blocked_offsets, left_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowReport:
    """What a window did."""

    status: Status
    """``COMMITTED``, ``ALREADY_COMMITTED`` or ``EMPTY``."""
    shard: str
    group: str
    request_id: str
    engine: str
    """Where its tasks ran; ``none`` for a window without work."""
    window_id: str | None = None
    commit_id: str | None = None
    version: int | None = None
    """The version of the commit log table that the commit made."""
    complete: bool = True
    """Whether the request is complete."""
    consumed: tuple[Consumed, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    """The messages that block queues of an orderly group."""
    unread: tuple[QueueRange, ...] = ()
    """What all windows of the request up to this one leave unread in blocked queues, by offset. Of a request that was committed
    before: as far as it is still unread and blocked."""
    held: tuple[Held, ...] = ()
    """The claims of other requests on queues that this request wants too."""
    idle: str = ""
    """Why this consumer has no queue; empty when it has one."""
    waiting: WaitingRetries | None = None
    """The group's retries that are not delivered yet; only for an empty window."""
    delayed: tuple[Produced, ...] = ()
    """The segments of retries that it wrote to delay levels."""
    warnings: tuple[str, ...] = ()
    """What the time range of a replay has lost, of its first window; and what failed after the commit."""

    @property
    def is_last(self) -> bool:
        """Whether the request has no further window in this shard."""
        return self.complete or self.status != Status.COMMITTED

    def counts(self) -> dict[Outcome, int]:
        """Messages per outcome."""
        return {outcome: sum(c.tally(outcome).count for c in self.consumed) for outcome in Outcome}

    def messages(self) -> int:
        return sum(self.counts().values())


def wish(plan: Plan, request: ConsumeRequest) -> Wish:
    """The claims that a window asks for: one per queue, and one on the whole group if it absorbs duplicates, so that one
    window at a time looks up keys. A window that chooses where queues begin needs all of them: a queue that it left out would
    have no start, and look as if it had appeared later."""
    group = plan.group
    whole = (own_id(group.name),) if group.absorb_duplicates else ()
    queues = tuple(own_queue_id(group.name, planned.queue) for planned in plan.ranges)
    return Wish(
        request.request_id,
        request.actor,
        group.name,
        needed=(*whole, *queues) if plan.chooses else whole,
        queues=() if plan.chooses else queues,
        client_id=request.client_id,
    )


def held_of(plan: Plan, taken: Taken) -> tuple[Held, ...]:
    """The claims of other requests on queues in which this request wants more."""
    return tuple(held for held in taken.held if held.queue in plan.unfinished)


def _refuse_other(request: ConsumeRequest, parts: Sequence[Ctl]) -> None:
    """Raise WrongUse when the request's parts had other limits or another consumer: a complete request would answer that all
    is consumed, although it is not what was requested now."""
    if not parts:
        return
    requested = {RETRIES_ONLY: None} | identity_parameters(request)
    refuse_other_request(request.request_id, json.loads(parts[0].parameters), requested)
    client_id = parts[0].parameter("client_id")
    if None not in (client_id, request.client_id) and client_id != request.client_id:
        raise WrongUse(
            f"request {request.request_id} was started by client {client_id}: use a request id of its own for client "
            f"{request.client_id}"
        )


def _refuse_unclaimed(shard: str, plan: Plan, taken: Taken) -> None:
    """Raise for a plan whose work is only in queues that the claim did not get: HeldByAnother, or StaleAttempt when no other
    request holds them and they had no work before the claim."""
    if held := held_of(plan, taken):
        raise held_by_another(shard, held)
    if plan.unfinished:
        raise StaleAttempt(
            f"offsets of group {plan.group.name} were moved while this window claimed its queues: "
            f"{', '.join(map(str, sorted(plan.unfinished)))}. Run the request again."
        )


def next_window(
    planner: Planner,
    request: ConsumeRequest,
    parts: Sequence[Ctl],
    segments_of: SegmentsOf,
    *,
    before: Plan | None = None,
    taken: Taken | None = None,
) -> Plan | WindowReport:
    """The plan of the request's next window, or the report that there is nothing more to do.

    ``parts``: the windows that the request has committed. After the claim, ``before`` is the plan that it was made for, and
    ``taken`` what it got. Raises the errors of ``Planner.plan``; WrongUse for a request id that was used with other limits
    or by another client; HeldByAnother and StaleAttempt when all queues with work are not claimed.
    """
    shard, group = planner.shard, planner.group
    _refuse_other(request, parts)
    if any(part.request_complete for part in parts):
        return _nothing_to_do(shard.name, group.name, request, parts, unread=_unread(planner.positions, request, parts))
    plan = planner.plan(request, parts, before, None if taken is None else taken.queues())
    if plan.ranges:
        return plan
    if taken is not None:
        _refuse_unclaimed(shard.name, plan, taken)
    waiting = None if parts else waiting_retries(plan.positions, segments_of, group.name)
    unread = _unread(plan.positions, request, parts)
    return _nothing_to_do(shard.name, group.name, request, parts, unread=unread, idle=plan.idle, waiting=waiting)


def _unread(positions: Positions, request: ConsumeRequest, parts: Sequence[Ctl]) -> tuple[QueueRange, ...]:
    """What the windows of the request have left unread in queues that are blocked now. Another request may have read on."""
    if not parts:
        return ()
    stops = blocked_offsets(positions, parts[0].group or "", parts)
    return left_behind(stops, bounds_of(parts[0]), messages_remaining(request.max_messages, parts))


def _nothing_to_do(
    shard: str,
    group: str,
    request: ConsumeRequest,
    parts: Sequence[Ctl],
    *,
    unread: tuple[QueueRange, ...],
    idle: str = "",
    waiting: WaitingRetries | None = None,
) -> WindowReport:
    """The report of a request that needs no further window: what its ``parts`` did, or that it is empty."""
    last = parts[-1] if parts else None
    return WindowReport(
        status=Status.ALREADY_COMMITTED if parts else Status.EMPTY,
        shard=shard,
        group=group,
        request_id=request.request_id,
        engine="none",
        window_id=last.window_id if last else None,
        commit_id=last.commit_id if last else None,
        consumed=tuple(consumed for part in parts for consumed in part.consumed),
        blocked=tuple(blocked for part in parts for blocked in part.blocked),
        unread=unread,
        delayed=tuple(segment for part in parts for segment in _delayed(part)),
        idle=idle,
        waiting=waiting,
    )


def committed_window(
    shard: str, engine: str, plan: Plan, ctl: Ctl, version: int, held: tuple[Held, ...]
) -> WindowReport:
    """The report of a window that has just been committed. ``version``: the table version that the commit made."""
    queues = {one.range.queue for one in ctl.blocked}
    stops = dict(plan.blocked_before)
    for one in ctl.consumed:
        stops.pop(one.range.queue, None)
        if one.range.queue in queues:
            stops[one.range.queue] = one.range.end
    limit = None if plan.limit is None else plan.limit - sum(one.messages for one in ctl.consumed)
    return WindowReport(
        status=Status.COMMITTED,
        shard=shard,
        group=ctl.group or "",
        request_id=ctl.request_id,
        engine=engine,
        window_id=ctl.window_id,
        commit_id=ctl.commit_id,
        version=version,
        complete=ctl.request_complete,
        consumed=ctl.consumed,
        blocked=ctl.blocked,
        unread=left_behind(stops, plan.bounds, limit),
        held=held,
        delayed=_delayed(ctl),
    )


def _delayed(ctl: Ctl) -> tuple[Produced, ...]:
    return tuple(segment for segment in ctl.produced if segment.queue.topic == SCHEDULE_TOPIC)


def refuse_batches_in_order(group: GroupSettings, kind: ListenerKind) -> None:
    """Raise ListenerError for a listener of record batches in an orderly group."""
    if group.mode == "orderly" and kind is ListenerKind.BATCH:
        raise ListenerError(
            f"listener {group.listener} takes Arrow batches, but group {group.name} is orderly, where one status is for the "
            'whole batch: use a listener with consume_message, or set mode = "concurrently"'
        )


def orderly_rules(group: GroupSettings) -> OrderlyRules | None:
    """The rules of an orderly group; None for a concurrent one."""
    if group.mode != "orderly":
        return None
    return OrderlyRules(
        group.name, group.consume_message_batch_max_size, group.max_reconsume_times, group.suspend_tries_per_window
    )


def subscriptions_of(group: GroupSettings) -> dict[str, SubscriptionData]:
    """The group's subscriptions by topic. A group always subscribes to all of its own retry topic
    (DefaultMQPushConsumerImpl#resetRetryAndNamespace, rules 10.6)."""
    retries = retry_topic(group.name)
    own = {subscription.topic: subscription for subscription in group.subscriptions}
    return own | {retries: build_subscription_data(retries, "*")}


def refuse_holes(group: GroupSettings, holes: Sequence[QueueRange]) -> None:
    """Raise OffsetOutOfRange for offsets without a message, unless the group's settings record them as lost."""
    if holes and group.on_offset_out_of_range != "skip":
        listed = ", ".join(f"[{hole.begin}, {hole.end}) of {hole.queue}" for hole in holes[:5])
        raise OffsetOutOfRange(
            f"group {group.name} cannot read {listed}: there is no message (lost in a salvage, or removed on the broker). "
            'Set on_offset_out_of_range = "skip" to go on and record them as lost.'
        )


def ends_at_ms(group: GroupSettings, started_ms: int) -> int | None:
    """The time (UTC ms) after which a window calls its listener no more; None: no limit."""
    return None if group.max_minutes is None else started_ms + group.max_minutes * 60_000


def finished_part(ranges: Iterable[QueueRange], waits: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """The ranges, cut at the offsets at which queues wait: the window does not cover what comes after."""
    ends = ((range_, min(range_.end, waits.get(range_.queue, range_.end))) for range_ in ranges)
    return [QueueRange(range_.queue, range_.begin, end) for range_, end in ends if end > range_.begin]


def shares(group: GroupSettings, queues: Iterable[MessageQueue], slots: int) -> list[tuple[str, list[MessageQueue]]]:
    """Each consumer of the window with its queues, allocated topic by topic (RebalanceImpl#rebalanceByTopic, rules 6.1).

    ``slots``: how many consumers there are if the group's settings do not say it.
    """
    consumers = [f"consumer-{number:05d}" for number in range(group.consumers or slots)]
    strategy, all_queues = group.allocate_strategy.among_tasks(), list(queues)
    return [(cid, allocate_by_topic(strategy, group.name, cid, all_queues, consumers)) for cid in consumers]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """What the tasks of a window did, to be committed."""

    tallies: Mapping[MessageQueue, Mapping[Outcome, Tally]]
    """The evidence, per queue and outcome."""
    produced: Sequence[Produced]
    """The segments of the copies in ``files``."""
    files: Sequence[StagedFile]
    waits: Mapping[MessageQueue, int]
    """The queues that stop before the end of their planned range, with the offset at which they stop."""
    blocked: Sequence[Blocked]
    """The messages because of which orderly queues stop."""
    keys: Tally | None
    """The tally of the acked keys, in a group that absorbs duplicates."""
    task_ms: int | None = None
    """How long the tasks took, the sum over them in ms of wall time; None: there was none, or it was not measured."""
    listener_versions: Sequence[str] = ()
    """Those that ran, sorted: more than one if the workers of a cluster have different code."""


def consume_proposal(
    plan: Plan, request: ConsumeRequest, result: WindowResult, *, commit_id: str, window_id: str
) -> Proposal:
    """The commit of a window: its evidence, its files, and the positions that it expects and moves."""
    group = plan.group
    ends = {planned.queue: planned.range.end for planned in plan.ranges} | dict(result.waits)
    blocked_queues = {one.range.queue for one in result.blocked}
    consumed = tuple(
        Consumed(
            QueueRange(planned.queue, planned.begin, ends[planned.queue]),
            planned.pass_,
            result.tallies.get(planned.queue, {}),
            planned.start_rule,
        )
        for planned in plan.ranges
    )
    ctl = Ctl(
        commit_id=commit_id,
        action=Action.CONSUME,
        actor=request.actor,
        reason=request.reason,
        request_id=request.request_id,
        request_part=plan.part,
        request_complete=plan.unfinished | set(result.waits) <= blocked_queues,
        group=group.name,
        epoch=plan.epoch,
        window_id=window_id,
        parameters=request_parameters(plan, request, result.keys, result.task_ms, result.listener_versions),
        subscription=plan.subscription,
        subscription_version=None if plan.subscription is None else group.subscription_version,
        listener=group.listener,
        consumed=consumed,
        produced=tuple(result.produced),
        blocked=tuple(result.blocked),
    )
    expect, advance = _positions(plan, ends, blocked_queues, commit_id)
    # Retention does not wait for a group without an offset, so it may remove what comes after the group's first window.
    begins = {
        min_id(planned.queue): ends[planned.queue]
        for planned in plan.ranges
        if planned.start_rule not in (StartRule.STORED, StartRule.REPLAY)
    }
    return Proposal(ctl, expect, advance, tuple(result.files), begins=begins)


def _positions(
    plan: Plan, ends: Mapping[MessageQueue, int], blocked_queues: Collection[MessageQueue], commit_id: str
) -> tuple[dict[str, int | None], dict[str, int]]:
    """The positions that the commit expects, and those that it writes. ``ends``: where the window ends in each queue."""
    name, positions = plan.group.name, plan.positions
    grp, sub = grp_id(name), sub_id(name)
    expect: dict[str, int | None] = {grp: positions.get(grp), sub: positions.get(sub)}
    advance = {grp: plan.epoch, sub: plan.sub_version.packed() if plan.sub_version else ABSENT}
    for planned in plan.ranges:
        off, blk = off_id(name, planned.queue), blk_id(name, planned.queue)
        expect[off] = positions.get(off)
        advance[off] = ends[planned.queue]
        if planned.queue in blocked_queues:
            advance[blk] = uuid7_ms(commit_id)
        elif positions.get(blk) is not None:
            advance[blk] = ABSENT
        if planned.start_rule != StartRule.STORED and plan.epoch:
            advance[pas_id(name, planned.queue)] = plan.epoch
    return expect, advance
