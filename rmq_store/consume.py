"""A consumption window around its listener: who gets which queue, what it reports, and what it proposes to commit.

The steps are numbered as in the commit protocol (design 3.3); the engines (``lake``, ``memory``) do the reading, the
asking and the writing between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.consumer.allocate import strategy_named
from rmq_store.consumer.consume_orderly import OrderlyRules
from rmq_store.consumer.listener import Listener, ListenerKind, load_listener
from rmq_store.errors import ListenerError, OffsetOutOfRange
from rmq_store.host import uuid7_ms
from rmq_store.message import MessageQueue, retry_topic
from rmq_store.offsets import ABSENT, Claim, Outcome, QueueRange, Tally, blk_id, grp_id, off_id, pas_id
from rmq_store.plan import ConsumeRequest, Plan, request_parameters
from rmq_store.settings import GroupSettings
from rmq_store.store import Action, Blocked, Consumed, Ctl, Produced, Proposal, StagedFile, canonical_json
from rmq_store.subscription import SubscriptionData, build_subscription_data
from rmq_store.window import STORED


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What a window did. ``status``: committed, already_committed, or empty (nothing to do, no row was written).

    ``complete``: whether nothing of the request is left. ``blocked``: what queues of an orderly group wait at.
    """

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
    blocked: tuple[Blocked, ...] = ()

    def counts(self) -> dict[Outcome, int]:
        """Messages per outcome."""
        return {outcome: sum(c.tally(outcome).count for c in self.consumed) for outcome in Outcome}

    def messages(self) -> int:
        return sum(self.counts().values())


def nothing_to_do(shard: str, group: str, request: ConsumeRequest, parts: Sequence[Ctl]) -> WindowReport:
    """The report of a request that has no window left: the sum of what its ``parts`` did, or that there were none."""
    last = parts[-1] if parts else None
    return WindowReport(
        "already_committed" if parts else "empty",
        shard,
        group,
        request.request_id,
        "none",
        last.window_id if last else None,
        last.commit_id if last else None,
        consumed=tuple(consumed for part in parts for consumed in part.consumed),
        blocked=tuple(blocked for part in parts for blocked in part.blocked),
    )


def committed_window(shard: str, request: ConsumeRequest, engine: str, ctl: Ctl, version: int) -> WindowReport:
    """The report of a window that has just been committed."""
    return WindowReport(
        "committed",
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


def done_part(ranges: Iterable[QueueRange], waits: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """What lies below the offsets at which queues wait: nothing is said yet of what comes after."""
    ends = ((range_, min(range_.end, waits.get(range_.queue, range_.end))) for range_ in ranges)
    return [QueueRange(range_.queue, range_.begin, end) for range_, end in ends if end > range_.begin]


def shares(group: GroupSettings, queues: Iterable[MessageQueue], slots: int) -> list[tuple[str, list[MessageQueue]]]:
    """Each consumer's queues, allocated as RocketMQ does, topic by topic (S6). ``slots``: consumers if none are set."""
    consumers = [f"consumer-{number:05d}" for number in range(group.consumers or slots)]
    by_topic: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        by_topic[queue.topic].append(queue)
    strategy = strategy_named(group.allocate_strategy)
    return [
        (cid, [queue for topic in sorted(by_topic) for queue in strategy(group.name, cid, by_topic[topic], consumers)])
        for cid in consumers
    ]


def consume_proposal(
    plan: Plan,
    request: ConsumeRequest,
    *,
    commit_id: str,
    window_id: str,
    claim_id: str,
    claim: Claim,
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
    expect: dict[str, int | None] = {grp: positions.get(grp), claim_id: claim.packed()}
    advance = {grp: plan.epoch, claim_id: Claim(claim.number, 0).packed()}
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
        if planned.start_rule != STORED and plan.epoch:
            advance[pas_id(group.name, planned.queue)] = plan.epoch
    ctl = Ctl(
        commit_id=commit_id,
        action=Action.CONSUME,
        actor=request.actor,
        reason=request.reason,
        request_id=request.request_id,
        request_part=plan.part,
        request_complete=plan.left <= held_up,
        group=group.name,
        epoch=plan.epoch,
        window_id=window_id,
        parameters=request_parameters(plan, request, keys),
        subscription=canonical_json({s.topic: {s.expression_type: s.expression} for s in group.subscriptions}),
        subscription_version=group.subscription_version,
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
