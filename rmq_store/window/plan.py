"""Step 1, plan: what a request of a group does in one shard, from the positions of one snapshot.

Both engines plan with this; what they must look up (offsets by time, what imports saw) they hand in as a ``ShardView``.
Which offsets a window takes from there is ``ranges.py``'s decision, where a first offset lies ``consumer/start.py``'s.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from rmq_store.commit.ctl import Actor, Blocked, Ctl, Observed, canonical_json
from rmq_store.commit.decide import MAX_RUN_AGE_MS
from rmq_store.commit.positions import (
    Positions,
    QueueRange,
    SubVersion,
    Tally,
    blk_id,
    cutover_id,
    del_id,
    grp_id,
    sub_id,
)
from rmq_store.consumer.allocate import allocate_by_topic, sort_client_ids
from rmq_store.consumer.duplicates import key_parameters
from rmq_store.consumer.start import (
    ConsumeFromWhere,
    QueueToStart,
    Start,
    StartRule,
    compute_pull_from_where,
    start_rule,
)
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue, retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.ranges import PlannedRange, capped_by_bytes, plan_ranges, starts
from rmq_store.window.sub_version import is_recorder, next_sub_version, subscription_text

_CLIENT_ID = re.compile(r"""[^\s,"'\\]{1,255}""")
"""RocketMQ's own look like 10.0.0.7@worker-1. They stand in JSON that SQL takes apart."""

CONSUME_TIMESTAMP_BACK_MS = 30 * 60_000
"""Without a consumeTimestamp, CONSUME_FROM_TIMESTAMP means half an hour ago (S5.2)."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What somebody asks for. ``request_id`` starts with its UTC date, ``YYYY-MM-DD``; the same id is the same request.

    ``until_ms``: consume what was stored before it (UTC ms). ``max_messages``: at most so many in all. ``parameters``:
    what else is to be recorded with it. ``client_ids``: all consumers of the group that run now, when several share its
    work; ``client_id``: for which of them this is. Raises WrongUse when only one of the two is given.
    """

    request_id: str
    actor: Actor
    reason: str = ""
    until_ms: int | None = None
    max_messages: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    client_id: str | None = None
    client_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.client_id is None) != (not self.client_ids):
            raise WrongUse(
                "consumers that share a group's work need both: the id of this one, and the ids of all that run now"
            )
        for client_id in (self.client_id, *self.client_ids) if self.client_id is not None else ():
            if not _CLIENT_ID.fullmatch(client_id or ""):
                raise WrongUse(f"{client_id!r} is no client id: it needs characters, and no space, comma or quote")


@dataclass(frozen=True, slots=True)
class Plan:
    """One window. ``bounds`` are those of the whole request; ``part`` counts its windows from 1. ``left``: the queues
    in which the request wants more than this window takes. ``tried``: what holds up the queues of an orderly group.
    ``idle``: why this consumer gets no queue, if it gets none. ``subscription``: the text of what it reads, None for
    retries only; ``sub_version``: what its commit records of it."""

    group: GroupSettings
    positions: Positions
    epoch: int
    ranges: tuple[PlannedRange, ...]
    bounds: Mapping[MessageQueue, int]
    part: int
    left: frozenset[MessageQueue] = frozenset()
    tried: tuple[Blocked, ...] = ()
    idle: str = ""
    subscription: str | None = None
    sub_version: SubVersion | None = None

    @property
    def deleted(self) -> int | None:
        """The group's epoch at its last delete: what waited then is dropped."""
        return self.positions.get(del_id(self.group.name))


@dataclass(frozen=True, slots=True)
class Scope:
    """What a window may look at, where it is not an ordinary one.

    ``from_ms``: a replay, which starts at the first message stored at or after it (UTC ms). ``retries_only``: what
    comes after a replay, its own retries. ``bounds``: another attempt of a replay, which ends where the first one did.
    """

    from_ms: int | None = None
    retries_only: bool = False
    bounds: Mapping[MessageQueue, int] | None = None


LIVE = Scope()


class ShardView(Protocol):
    """What planning asks of a shard besides its positions."""

    @property
    def name(self) -> str: ...

    @property
    def local_broker(self) -> str:
        """The broker name of queues born in the lake."""
        ...

    def positions(self) -> Positions: ...

    def others(self) -> Iterable[ShardView]:
        """The other shards of the store."""
        ...

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        """Per queue the first offset stored at or after a moment (UTC ms), its end if there is none (S2.3)."""
        ...

    def body_sizes(self, range_: QueueRange) -> Iterable[tuple[int, int]]:
        """The messages of a range in order: (offset, bytes of the body), read as far as somebody asks."""
        ...

    def observed(self) -> Iterable[Observed]:
        """What the imports saw of the brokers' own offsets, oldest first."""
        ...

    def has_consumed(self, group: str, epoch: int) -> bool:
        """Whether a window of the group was committed in this epoch or a later one."""
        ...

    def windows_since(self, group: str | None, ms: int) -> Iterable[Ctl]:
        """The windows of the group (None: of all) that were made at a moment (UTC ms) or later, oldest first."""
        ...


class Planner:
    """Plans requests of one group in one shard, from one snapshot."""

    def __init__(self, shard: ShardView, group: GroupSettings, now_ms: int, scope: Scope = LIVE) -> None:
        if group.broadcasting and "@" not in group.name:
            raise WrongUse(
                f"group {group.name} is broadcasting: each client gets all messages, at offsets of its own. Name the "
                f"client: {group.name}@CLIENT"
            )
        self.shard = shard
        self.group = group
        self._now_ms = now_ms
        self._scope = scope
        self.positions = shard.positions()

    def plan(
        self,
        request: ConsumeRequest,
        parts: Sequence[Ctl],
        before: Plan | None = None,
        claimed: Collection[MessageQueue] | None = None,
    ) -> Plan:
        """The next window of the request; ``parts`` are the ones it has committed. No ranges: nothing to do.

        Once more after the claim: ``before`` is the plan that it was taken for, whose bounds stay, and ``claimed`` are
        the queues that it got: others are left. Raises OffsetOutOfRange, BadData (an offset beyond its queue) and
        WrongUse (an unknown topic, a subscription that is older or other than the recorded one, consumers that share a
        broadcasting group).
        """
        group, positions = self.group, self.positions
        subscription = None if self._scope.retries_only else subscription_text(group.subscriptions)
        sub_version = checked_subscription(self.shard, positions, group, subscription)
        queues = self.queues()
        chooses = request.client_id is not None and not parts and before is None
        mine = self._allocated(request, queues) if chooses else queues
        known, unknown = starts(group.name, mine, positions)
        start_of = known | {queue: self._first_start(queue) for queue in unknown}
        epoch = positions.get(grp_id(group.name)) or 0
        if parts:
            bounds: Mapping[MessageQueue, int] = bounds_of(parts[0])
            held_up = {blocked.range.queue for part in parts for blocked in part.blocked}  # till the next request
            start_of = {queue: start for queue, start in start_of.items() if queue in bounds and queue not in held_up}
            done = sum(consumed.messages for part in parts for consumed in part.consumed)
            left = None if request.max_messages is None else max(request.max_messages - done, 0)
        else:
            bounds = self._bounds(request, start_of) if before is None else before.bounds
            if mine and chooses:
                for_others = self._starts_for_others(set(queues) - set(mine))
                start_of |= for_others
                bounds = {**bounds, **{queue: start.offset for queue, start in for_others.items()}}
            start_of = {queue: start for queue, start in start_of.items() if queue in bounds}
            left = request.max_messages
        lost_is_skipped = group.on_offset_out_of_range == "skip"
        cap = min((n for n in (left, group.max_messages) if n is not None), default=None)

        def planned(of: Mapping[MessageQueue, Start], most: int | None) -> list[PlannedRange]:
            return plan_ranges(group.name, positions, of, bounds, max_messages=most, lost_is_skipped=lost_is_skipped)

        ours = {queue: start for queue, start in start_of.items() if claimed is None or queue in claimed}
        wanted, ranges = planned(ours, left), planned(ours, cap)
        if group.max_bytes is not None:
            ranges = capped_by_bytes(ranges, group.max_bytes, self.shard.body_sizes)
        takes = {p.queue: len(p.range) for p in ranges}
        more = {p.queue for p in wanted if len(p.range) > takes.get(p.queue, 0)}
        rest = None if left is None else left - sum(takes.values())
        held = {queue: start for queue, start in start_of.items() if queue not in ours}
        more |= {p.queue for p in planned(held, rest) if len(p.range) or p.lost}
        return Plan(
            group,
            positions,
            epoch,
            tuple(ranges),
            bounds,
            len(parts) + 1,
            frozenset(more),
            self._tried(ranges),
            "" if mine else self._idle(request),
            subscription,
            sub_version,
        )

    def _allocated(self, request: ConsumeRequest, here: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues of this consumer here, among all that run now (S6). Those of a topic are shared out over all shards, as
        RocketMQ does over all brokers: else topics of one queue per shard would all go to the first consumer."""
        group = self.group
        if group.broadcasting:
            raise WrongUse(f"group {group.name} is broadcasting: every client gets all queues, none are shared")
        others = [shard for shard in self.shard.others() if group.shards is None or shard.name in group.shards]
        elsewhere = {queue for shard in others for queue in self._readable(shard, shard.positions())}
        mine = allocate_by_topic(
            group.allocate_strategy.among_clients(),
            group.name,
            request.client_id or "",
            {*here, *elsewhere},
            set(request.client_ids),
        )
        return [queue for queue in mine if queue not in elsewhere]

    def _idle(self, request: ConsumeRequest) -> str:
        """Why it has none."""
        clients = ", ".join(sort_client_ids(set(request.client_ids)))
        if request.client_id not in request.client_ids:
            return f"client {request.client_id} is none of the consumers {clients}, so it gets no queue"
        strategy = self.group.allocate_strategy
        gives = "gives it none" if strategy.may_leave_queues else f"gives them to others of {clients}"
        return f"client {request.client_id} gets no queue here: {strategy} {gives}"

    def _starts_for_others(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Start]:
        """ConsumeFromWhere is about the queues that are there at the group's first window. So this chooses for other
        consumers too where they begin: a queue that only they have would look to them as if it had come later."""
        if self._had_a_window:
            return {}
        _, unknown = starts(self.group.name, sorted(queues), self.positions)
        chosen = {queue: self._first_start(queue) for queue in unknown}
        return {queue: start for queue, start in chosen.items() if start.offset > self.positions.min_offset(queue)}

    def _tried(self, ranges: Iterable[PlannedRange]) -> tuple[Blocked, ...]:
        """What the last window of a queue left in it, unless an operator has moved the queue since."""
        blk = {p.queue: self.positions.get(blk_id(self.group.name, p.queue)) for p in ranges}
        since = min((ms for ms in blk.values() if ms is not None), default=None)
        if since is None or self.group.mode != "orderly":
            return ()
        found: dict[MessageQueue, tuple[Blocked, ...]] = {}
        stands = {(p.queue, p.begin, p.pass_) for p in ranges}
        for ctl in self.shard.windows_since(self.group.name, since):
            for done in ctl.consumed:
                queue = done.range.queue
                left = tuple(_dated(b, ctl) for b in ctl.blocked if b.range.queue == queue)
                found[queue] = left if (queue, done.range.end, done.pass_) in stands else ()
        return tuple(blocked for _, several in sorted(found.items()) for blocked in several)

    def queues(self) -> list[MessageQueue]:
        """All queues that the group reads here: of its topics, and of its retry topic once they belong to the lake."""
        found = self._readable(self.shard, self.positions)
        topics = {subscription.topic for subscription in self.group.subscriptions}
        if not self._scope.retries_only and not any(queue.topic in topics for queue in found):
            raise WrongUse(
                f"shard {self.shard.name} has none of the topics of group {self.group.name}: {', '.join(sorted(topics))}"
            )
        return found

    def _readable(self, shard: ShardView, positions: Positions) -> list[MessageQueue]:
        """Those of a shard. A living broker delivers its own retries; they become ours by ``rmq cutover`` (design 3)."""
        retries = [
            queue
            for queue in positions.queues_of(retry_topic(self.group.name))
            if queue.broker_name == shard.local_broker or positions.get(cutover_id(queue.broker_name))
        ]
        if self._scope.retries_only:
            return retries
        topics = [subscription.topic for subscription in self.group.subscriptions]
        return [*(queue for topic in topics for queue in positions.queues_of(topic)), *retries]

    def _bounds(self, request: ConsumeRequest, start_of: Mapping[MessageQueue, Start]) -> dict[MessageQueue, int]:
        queues = list(start_of)
        if self._scope.bounds is not None:
            return {queue: end for queue, end in self._scope.bounds.items() if queue in start_of}
        if request.until_ms is None:
            return {queue: self.positions.max_offset(queue) for queue in queues}
        return self.shard.search_offsets(self.positions, queues, request.until_ms)

    def _first_start(self, queue: MessageQueue) -> Start:
        """Where a queue without a stored offset begins: where the broker knew the group, else ConsumeFromWhere (S5)."""
        if self._scope.from_ms is not None and queue.topic != retry_topic(self.group.name):
            return Start(self._search(queue, self._scope.from_ms), "replay")
        seed = self._observed.get(queue)
        if seed is not None:
            return Start(seed, "observed")
        where = ConsumeFromWhere(self.group.consume_from_where)
        state = QueueToStart(
            queue.topic,
            -1,
            self.positions.min_offset(queue),
            self.positions.max_offset(queue),
            lake_born=queue.broker_name.startswith(self.shard.local_broker),
            later=self._had_a_window,
        )
        found = None
        if start_rule(where, state, self.group.start_switches) is StartRule.TIMESTAMP:
            since = self.group.consume_timestamp_ms
            found = self._search(queue, self._now_ms - CONSUME_TIMESTAMP_BACK_MS if since is None else since)
        return compute_pull_from_where(where, state, found, self.group.start_switches)

    def _search(self, queue: MessageQueue, time_ms: int) -> int:
        return self.shard.search_offsets(self.positions, [queue], time_ms)[queue]

    @cached_property
    def _had_a_window(self) -> bool:
        """Whether this is a later window of the group. An epoch of 0 says so: a window writes it as it is, an operator's
        action raises it. Above 0 only the log knows whether there was more than such actions. What was before a delete
        does not count."""
        name = self.group.name
        epoch, deleted = self.positions.get(grp_id(name)), self.positions.get(del_id(name))
        return epoch == 0 or (epoch is not None and self.shard.has_consumed(name, deleted or 0))

    @cached_property
    def _observed(self) -> dict[MessageQueue, int]:
        return observed_offsets(self.shard, self.positions, self.group.name)


def _dated(blocked: Blocked, ctl: Ctl) -> Blocked:
    return blocked if blocked.first_failed_at else replace(blocked, first_failed_at=ctl.store_timestamp)


# --- one subscription per group and topic ----------------------------------------------------------------------------


def checked_subscription(
    shard: ShardView, positions: Positions, group: GroupSettings, text: str | None
) -> SubVersion | None:
    """What a window with a subscription of this text records (None: nothing), see ``sub_version``. Raises WrongUse when it
    is older or other than the recorded one."""
    app_id = sub_id(group.name)
    recorded = SubVersion.of(positions.get(app_id))

    def recorder() -> Ctl | None:
        """The newest window that recorded it, perhaps of another client. It is no older than a run may be before the
        position was written last, unless only retries were consumed since."""
        whose = None if group.broadcasting else group.name
        for since in (positions.updated_ms.get(app_id, 0) - MAX_RUN_AGE_MS, 0):
            windows = [ctl for ctl in shard.windows_since(whose, since) if sub_id(ctl.group or "") == app_id]
            if recorded and (found := [ctl for ctl in windows if is_recorder(ctl, recorded)]):
                return found[-1]
        return None

    return next_sub_version(group.name, group.subscription_version, text, recorded, shard.name, recorder)


# --- what a request says in its ctl rows -----------------------------------------------------------------------------


def asked_parameters(request: ConsumeRequest) -> dict[str, Any]:
    """What makes it this request: its bounds, and of a replay what it replays. Which rule gave the bound, and which attempt
    it is, follow from them."""
    parameters: dict[str, Any] = {"until_ms": request.until_ms, "max_messages": request.max_messages}
    return parameters | {name: value for name, value in request.parameters.items() if name in ("topic", "from_ms")}


def request_parameters(plan: Plan, request: ConsumeRequest, keys: Tally | None = None) -> str:
    """Canonical JSON: what was asked, and the bounds it was resolved to (in part 1). ``keys``: of a window that absorbs
    duplicates, those that it acked."""
    parameters = asked_parameters(request) | dict(request.parameters)
    if request.client_id is not None:
        parameters |= {"client_id": request.client_id, "client_ids": sort_client_ids(set(request.client_ids))}
    if plan.part == 1:
        parameters["bounds"] = [[q.topic, q.broker_name, q.queue_id, end] for q, end in sorted(plan.bounds.items())]
    if keys is not None:
        parameters |= key_parameters(keys)
    return canonical_json(parameters)


def observed_offsets(shard: ShardView, positions: Positions, group: str) -> dict[MessageQueue, int]:
    """The offsets that the newest import of each broker saw for a group; void for one that was deleted here."""
    if positions.get(del_id(group)) is not None:
        return {}
    return {seen.queue: seen.offset for seen in shard.observed() if seen.group == group}


def bounds_of(first_part: Ctl) -> dict[MessageQueue, int]:
    """Where a request ends, as its part 1 says."""
    return {
        MessageQueue(topic, broker, queue_id): end for topic, broker, queue_id, end in first_part.parameter("bounds")
    }
