"""A consumption window around its listener: who gets which queue, what it reports, and what it proposes to commit.

The steps are numbered as in the commit protocol (design 3.3); the engines (``lake``, ``memory``) do the reading, the
asking and the writing between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.commit.claim import Held, Taken, Wish, held_by_another
from rmq_store.commit.ctl import Action, Blocked, Consumed, Ctl, Produced, Proposal, StagedFile
from rmq_store.commit.positions import (
    ABSENT,
    Outcome,
    QueueRange,
    Tally,
    blk_id,
    grp_id,
    off_id,
    own_id,
    own_queue_id,
    pas_id,
    sub_id,
)
from rmq_store.commit.request import Status, refuse_other_request
from rmq_store.consumer.allocate import allocate_by_topic
from rmq_store.consumer.consume_orderly import OrderlyRules
from rmq_store.consumer.listener import Listener, ListenerKind, load_listener
from rmq_store.consumer.start import StartRule
from rmq_store.errors import ListenerError, OffsetOutOfRange, StaleAttempt, WrongUse
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.message.message import MessageQueue, retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import uuid7_ms
from rmq_store.window.deliver import SegmentsOf, WaitingRetries, waiting_retries
from rmq_store.window.plan import ConsumeRequest, Plan, Planner, identity_parameters, request_parameters


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What a window did. ``status``: committed, already_committed, or empty (nothing to do, no row was written).

    ``complete``: whether nothing of the request is left. ``blocked``: what queues of an orderly group wait at. ``held``:
    the claims of other runs on queues that the request wants too. ``idle``: why this consumer has no queue. ``waiting``:
    of an empty window, the retries of the group that are not delivered yet. ``warnings``: what went wrong after the commit.
    """

    status: Status
    shard: str
    group: str
    request_id: str
    engine: str
    window_id: str | None = None
    commit_id: str | None = None
    version: int | None = None
    complete: bool = True
    consumed: tuple[Consumed, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    held: tuple[Held, ...] = ()
    idle: str = ""
    waiting: WaitingRetries | None = None
    warnings: tuple[str, ...] = ()

    def counts(self) -> dict[Outcome, int]:
        """Messages per outcome."""
        return {outcome: sum(c.tally(outcome).count for c in self.consumed) for outcome in Outcome}

    def messages(self) -> int:
        return sum(self.counts().values())


def wish(plan: Plan, request: ConsumeRequest) -> Wish:
    """What a window claims: its queues; all of the group too if it absorbs duplicates, of which one window at a time may
    ask about a key."""
    group = plan.group
    return Wish(
        request.request_id,
        request.actor,
        group.name,
        needed=(own_id(group.name),) if group.absorb_duplicates else (),
        queues=tuple(own_queue_id(group.name, planned.queue) for planned in plan.ranges),
        client_id=request.client_id,
    )


def held_of(plan: Plan, taken: Taken) -> tuple[Held, ...]:
    """The claims of others because of which the request is not complete."""
    return tuple(one for one in taken.held if one.queue in plan.unfinished)


def _refuse_other(request: ConsumeRequest, parts: Sequence[Ctl]) -> None:
    """Raise WrongUse for a request that began as another one, with other bounds or by another consumer: it would be told
    that all is done, and leave its messages."""
    if not parts:
        return
    refuse_other_request(request.request_id, json.loads(parts[0].parameters), identity_parameters(request))
    begun = parts[0].parameter("client_id")
    if None not in (begun, request.client_id) and begun != request.client_id:
        raise WrongUse(
            f"request {request.request_id} is that of client {begun}: give client {request.client_id} one of its own"
        )


def _refuse_unclaimed(shard: str, plan: Plan, taken: Taken) -> None:
    """Raise for a plan of which only queues are left that were not claimed: HeldByAnother, or StaleAttempt when they have
    got work only now."""
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
    """The next window of the request, or the report that it has none left. ``parts``: what it has committed.

    Once more after the claim: ``before`` is the plan that it was taken for, ``taken`` what it got. Raises the errors of
    planning, WrongUse for a request that began as another one, and those of ``_refuse_unclaimed``.
    """
    shard, group = planner.shard, planner.group
    _refuse_other(request, parts)
    if any(part.request_complete for part in parts):
        return _nothing_to_do(shard.name, group.name, request, parts)
    plan = planner.plan(request, parts, before, None if taken is None else taken.queues())
    if plan.ranges:
        return plan
    if taken is not None:
        _refuse_unclaimed(shard.name, plan, taken)
    waiting = None if parts else waiting_retries(plan.positions, segments_of, group.name)
    return _nothing_to_do(shard.name, group.name, request, parts, plan.idle, waiting)


def _nothing_to_do(
    shard: str,
    group: str,
    request: ConsumeRequest,
    parts: Sequence[Ctl],
    idle: str = "",
    waiting: WaitingRetries | None = None,
) -> WindowReport:
    """The report of a request that has no window left: the sum of what its ``parts`` did, or that there were none."""
    last = parts[-1] if parts else None
    return WindowReport(
        Status.ALREADY_COMMITTED if parts else Status.EMPTY,
        shard,
        group,
        request.request_id,
        "none",
        last.window_id if last else None,
        last.commit_id if last else None,
        consumed=tuple(consumed for part in parts for consumed in part.consumed),
        blocked=tuple(blocked for part in parts for blocked in part.blocked),
        idle=idle,
        waiting=waiting,
    )


def committed_window(
    shard: str, request: ConsumeRequest, engine: str, ctl: Ctl, version: int, held: tuple[Held, ...]
) -> WindowReport:
    """The report of a window that has just been committed."""
    return WindowReport(
        Status.COMMITTED,
        shard,
        ctl.group or "",
        request.request_id,
        engine,
        ctl.window_id,
        ctl.commit_id,
        version,
        ctl.request_complete,
        ctl.consumed,
        ctl.blocked,
        held,
    )


def listener_of(group: GroupSettings) -> Listener:
    """Raises ListenerError for one that cannot be had, or that the group's mode cannot ask."""
    listener = load_listener(group.listener)
    if group.mode == "orderly" and listener.kind is ListenerKind.BATCH:
        raise ListenerError(
            f"listener {group.listener} takes Arrow batches, and group {group.name} consumes in order, where one status "
            'stands for a whole batch: give it a consume_message, or set mode = "concurrently"'
        )
    return listener


def orderly_rules(group: GroupSettings) -> OrderlyRules | None:
    """None for a group that does not consume in order."""
    if group.mode != "orderly":
        return None
    return OrderlyRules(
        group.name, group.consume_message_batch_max_size, group.max_reconsume_times, group.suspend_tries_per_window
    )


def subscriptions_of(group: GroupSettings) -> dict[str, SubscriptionData]:
    """By topic; a group reads its own retry topic whole, by itself (S10.6)."""
    retries = retry_topic(group.name)
    own = {subscription.topic: subscription for subscription in group.subscriptions}
    return own | {retries: build_subscription_data(retries, "*")}


def refuse_holes(group: GroupSettings, holes: Sequence[QueueRange]) -> None:
    """Raise OffsetOutOfRange for offsets that hold no message, unless the group goes on and records them as lost."""
    if holes and group.on_offset_out_of_range != "skip":
        listed = ", ".join(f"[{hole.begin}, {hole.end}) of {hole.queue}" for hole in holes[:5])
        raise OffsetOutOfRange(
            f"group {group.name} cannot read {listed}: no message is there (a salvaged log, or removed on the broker). "
            'Set on_offset_out_of_range = "skip" to go on and record them as lost.'
        )


def ends_at_ms(group: GroupSettings, started_ms: int) -> int | None:
    """The moment (UTC ms) after which a window asks its listener nothing more; None: there is none."""
    return None if group.max_minutes is None else started_ms + group.max_minutes * 60_000


def done_part(ranges: Iterable[QueueRange], waits: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """What lies below the offsets at which queues wait: nothing is said yet of what comes after."""
    ends = ((range_, min(range_.end, waits.get(range_.queue, range_.end))) for range_ in ranges)
    return [QueueRange(range_.queue, range_.begin, end) for range_, end in ends if end > range_.begin]


def shares(group: GroupSettings, queues: Iterable[MessageQueue], slots: int) -> list[tuple[str, list[MessageQueue]]]:
    """Each consumer's queues, allocated as RocketMQ does, topic by topic (S6). ``slots``: consumers if none are set."""
    consumers = [f"consumer-{number:05d}" for number in range(group.consumers or slots)]
    strategy, all_queues = group.allocate_strategy.among_tasks(), list(queues)
    return [(cid, allocate_by_topic(strategy, group.name, cid, all_queues, consumers)) for cid in consumers]


def consume_proposal(
    plan: Plan,
    request: ConsumeRequest,
    *,
    commit_id: str,
    window_id: str,
    tallies: Mapping[MessageQueue, Mapping[Outcome, Tally]],
    produced: Sequence[Produced],
    files: Sequence[StagedFile],
    waits: Mapping[MessageQueue, int] | None = None,
    blocked: Sequence[Blocked] = (),
    keys: Tally | None = None,
) -> Proposal:
    """What the window did, as a commit: its evidence, its files, and the positions that it read and moves.

    ``waits``: the queues that do not reach the end of their planned range, and how far they come. ``blocked``: why.
    ``keys``: those that were acked, in a group that absorbs duplicates.
    """
    group, positions = plan.group, plan.positions
    grp = grp_id(group.name)
    expect: dict[str, int | None] = {grp: positions.get(grp)}
    advance = {grp: plan.epoch}
    sub = sub_id(group.name)
    expect[sub], advance[sub] = positions.get(sub), plan.sub_version.packed() if plan.sub_version else ABSENT
    ends = {planned.queue: planned.range.end for planned in plan.ranges} | dict(waits or {})
    held_up = {item.range.queue for item in blocked}
    for planned in plan.ranges:
        off, blk = off_id(group.name, planned.queue), blk_id(group.name, planned.queue)
        expect[off] = positions.get(off)
        advance[off] = ends[planned.queue]
        if planned.queue in held_up:
            advance[blk] = uuid7_ms(commit_id)
        elif positions.get(blk) is not None:
            advance[blk] = ABSENT
        if planned.start_rule != StartRule.STORED and plan.epoch:
            advance[pas_id(group.name, planned.queue)] = plan.epoch
    ctl = Ctl(
        commit_id=commit_id,
        action=Action.CONSUME,
        actor=request.actor,
        reason=request.reason,
        request_id=request.request_id,
        request_part=plan.part,
        request_complete=plan.unfinished | set(waits or ()) <= held_up,
        group=group.name,
        epoch=plan.epoch,
        window_id=window_id,
        parameters=request_parameters(plan, request, keys),
        subscription=plan.subscription,
        subscription_version=None if plan.subscription is None else group.subscription_version,
        listener=group.listener,
        consumed=tuple(
            Consumed(
                QueueRange(planned.queue, planned.begin, ends[planned.queue]),
                planned.pass_,
                tallies.get(planned.queue, {}),
                planned.start_rule,
            )
            for planned in plan.ranges
        ),
        produced=tuple(produced),
        blocked=tuple(blocked),
    )
    return Proposal(ctl, expect, advance, tuple(files))
