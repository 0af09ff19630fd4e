"""Step 1, plan: what a request of a group does in one shard, from the positions of one snapshot.

Both engines plan with this; what they must look up (offsets by time, what imports saw) they hand in as a ``ShardView``.
Which offsets a window takes from there is ``window.py``'s decision, where a first offset lies ``consumer/start.py``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from rmq_store.absorb import key_parameters
from rmq_store.consumer.start import ConsumeFromWhere, QueueToStart, StartRule, compute_pull_from_where, start_rule
from rmq_store.errors import WrongUse
from rmq_store.message import MessageQueue, retry_topic
from rmq_store.offsets import Positions, Tally, blk_id, cutover_id, grp_id
from rmq_store.settings import GroupSettings
from rmq_store.store import Actor, Blocked, Ctl, Observed, canonical_json
from rmq_store.window import PlannedRange, Start, plan_ranges, starts

CONSUME_TIMESTAMP_BACK_MS = 30 * 60_000
"""Without a consumeTimestamp, CONSUME_FROM_TIMESTAMP means half an hour ago (S5.2)."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What somebody asks for. ``request_id`` starts with its UTC date, ``YYYY-MM-DD``; the same id is the same request.

    ``until_ms``: consume what was stored before it (UTC ms). ``max_messages``: at most so many in all. ``parameters``:
    what else is to be recorded with it.
    """

    request_id: str
    actor: Actor
    reason: str = ""
    until_ms: int | None = None
    max_messages: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """One window. ``bounds`` are those of the whole request; ``part`` counts its windows from 1. ``left``: the queues
    in which the request wants more than this window takes. ``tried``: what holds up the queues of an orderly group."""

    group: GroupSettings
    positions: Positions
    epoch: int
    ranges: tuple[PlannedRange, ...]
    bounds: Mapping[MessageQueue, int]
    part: int
    left: frozenset[MessageQueue] = frozenset()
    tried: tuple[Blocked, ...] = ()


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

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        """Per queue the first offset stored at or after a moment (UTC ms), its end if there is none (S2.3)."""
        ...

    def observed(self) -> Iterable[Observed]:
        """What the imports saw of the brokers' own offsets, oldest first."""
        ...

    def has_consumed(self, group: str) -> bool:
        """Whether a window of the group was ever committed."""
        ...

    def windows_since(self, group: str, ms: int) -> Iterable[Ctl]:
        """The group's windows that were made at a moment (UTC ms) or later, oldest first."""
        ...


class Planner:
    """Plans requests of one group in one shard, from one snapshot."""

    def __init__(self, shard: ShardView, group: GroupSettings, now_ms: int, scope: Scope = LIVE) -> None:
        if group.broadcasting and "@" not in group.name:
            raise WrongUse(
                f"group {group.name} is broadcasting: each client gets all messages, at offsets of its own. Name the "
                f"client: {group.name}@CLIENT"
            )
        self._shard = shard
        self._group = group
        self._now_ms = now_ms
        self._scope = scope
        self.positions = shard.positions()

    def plan(self, request: ConsumeRequest, parts: Sequence[Ctl]) -> Plan:
        """The next window of the request; ``parts`` are the ones it has committed. No ranges: nothing to do.

        Raises OffsetOutOfRange, BadData (an offset beyond its queue) and WrongUse (an unknown topic).
        """
        group, positions = self._group, self.positions
        known, unknown = starts(group.name, self.queues(), positions)
        start_of = known | {queue: self._first_start(queue) for queue in unknown}
        epoch = positions.get(grp_id(group.name)) or 0
        if parts:
            bounds = bounds_of(parts[0])
            held_up = {blocked.range.queue for part in parts for blocked in part.blocked}  # till the next request
            start_of = {queue: start for queue, start in start_of.items() if queue in bounds and queue not in held_up}
            done = sum(len(consumed.range) for part in parts for consumed in part.consumed)
            left = None if request.max_messages is None else request.max_messages - done
        else:
            bounds = self._bounds(request, start_of)
            start_of = {queue: start for queue, start in start_of.items() if queue in bounds}
            left = request.max_messages
        lost_is_skipped = group.on_offset_out_of_range == "skip"
        cap = min((n for n in (left, group.max_messages) if n is not None), default=None)
        wanted = plan_ranges(
            group.name, positions, start_of, bounds, max_messages=left, lost_is_skipped=lost_is_skipped
        )
        ranges = plan_ranges(group.name, positions, start_of, bounds, max_messages=cap, lost_is_skipped=lost_is_skipped)
        takes = {p.queue: len(p.range) for p in ranges}
        more = frozenset(p.queue for p in wanted if len(p.range) > takes.get(p.queue, 0))
        return Plan(group, positions, epoch, tuple(ranges), bounds, len(parts) + 1, more, self._tried(ranges))

    def _tried(self, ranges: Iterable[PlannedRange]) -> tuple[Blocked, ...]:
        """What the last window of a queue left in it, unless an operator has moved the queue since."""
        blk = {p.queue: self.positions.get(blk_id(self._group.name, p.queue)) for p in ranges}
        since = min((ms for ms in blk.values() if ms is not None), default=None)
        if since is None or self._group.mode != "orderly":
            return ()
        found: dict[MessageQueue, tuple[Blocked, ...]] = {}
        stands = {(p.queue, p.begin, p.pass_) for p in ranges}
        for ctl in self._shard.windows_since(self._group.name, since):
            for done in ctl.consumed:
                queue = done.range.queue
                left = tuple(_dated(b, ctl) for b in ctl.blocked if b.range.queue == queue)
                found[queue] = left if (queue, done.range.end, done.pass_) in stands else ()
        return tuple(blocked for _, several in sorted(found.items()) for blocked in several)

    def queues(self) -> list[MessageQueue]:
        """All queues that the group reads here: of its topics, and of its retry topic once they belong to the lake."""
        retries = [q for q in self.positions.queues_of(retry_topic(self._group.name)) if self._belongs_here(q)]
        if self._scope.retries_only:
            return retries
        topics = [subscription.topic for subscription in self._group.subscriptions]
        found = [queue for topic in topics for queue in self.positions.queues_of(topic)]
        missing = sorted(set(topics) - {queue.topic for queue in found})
        if len(missing) == len(topics):
            raise WrongUse(
                f"shard {self._shard.name} has none of the topics of group {self._group.name}: {', '.join(missing)}"
            )
        return [*found, *retries]

    def _belongs_here(self, queue: MessageQueue) -> bool:
        """A living broker delivers its own retries; they become ours by ``rmq cutover`` (design 3)."""
        return queue.broker_name == self._shard.local_broker or bool(self.positions.get(cutover_id(queue.broker_name)))

    def _bounds(self, request: ConsumeRequest, start_of: Mapping[MessageQueue, Start]) -> dict[MessageQueue, int]:
        queues = list(start_of)
        if self._scope.bounds is not None:
            return {queue: end for queue, end in self._scope.bounds.items() if queue in start_of}
        if request.until_ms is None:
            return {queue: self.positions.max_offset(queue) for queue in queues}
        return self._shard.search_offsets(self.positions, queues, request.until_ms)

    def _first_start(self, queue: MessageQueue) -> Start:
        """Where a queue without a stored offset begins: where the broker knew the group, else ConsumeFromWhere (S5)."""
        if self._scope.from_ms is not None and queue.topic != retry_topic(self._group.name):
            return Start(self._search(queue, self._scope.from_ms), "replay")
        seed = self._observed.get(queue)
        if seed is not None:
            return Start(seed, "observed")
        where = ConsumeFromWhere(self._group.consume_from_where)
        state = QueueToStart(
            queue.topic,
            -1,
            self.positions.min_offset(queue),
            self.positions.max_offset(queue),
            lake_born=queue.broker_name.startswith(self._shard.local_broker),
            later=self._had_a_window,
        )
        found = None
        if start_rule(where, state, self._group.start_switches) is StartRule.TIMESTAMP:
            since = self._group.consume_timestamp_ms
            found = self._search(queue, self._now_ms - CONSUME_TIMESTAMP_BACK_MS if since is None else since)
        return compute_pull_from_where(where, state, found, self._group.start_switches)

    def _search(self, queue: MessageQueue, time_ms: int) -> int:
        return self._shard.search_offsets(self.positions, [queue], time_ms)[queue]

    @cached_property
    def _had_a_window(self) -> bool:
        """Whether this is a later window of the group. An epoch of 0 says so: a window writes it as it is, an operator's
        action raises it. Above 0 only the log knows whether there was more than such actions."""
        epoch = self.positions.get(grp_id(self._group.name))
        return epoch == 0 or (epoch is not None and self._shard.has_consumed(self._group.name))

    @cached_property
    def _observed(self) -> dict[MessageQueue, int]:
        """The offsets that the newest import of each broker saw for this group."""
        return {seen.queue: seen.offset for seen in self._shard.observed() if seen.group == self._group.name}


def _dated(blocked: Blocked, ctl: Ctl) -> Blocked:
    return blocked if blocked.first_failed_at else replace(blocked, first_failed_at=ctl.store_timestamp)


# --- what a request says in its ctl rows -----------------------------------------------------------------------------


def request_parameters(plan: Plan, request: ConsumeRequest, keys: Tally | None = None) -> str:
    """Canonical JSON: what was asked, and the bounds it was resolved to (in part 1). ``keys``: of a window that absorbs
    duplicates, those that it acked."""
    parameters: dict[str, Any] = {"until_ms": request.until_ms, "max_messages": request.max_messages}
    parameters |= dict(request.parameters)
    if plan.part == 1:
        parameters["bounds"] = [[q.topic, q.broker_name, q.queue_id, end] for q, end in sorted(plan.bounds.items())]
    if keys is not None:
        parameters |= key_parameters(keys)
    return canonical_json(parameters)


def bounds_of(first_part: Ctl) -> dict[MessageQueue, int]:
    """Where a request ends, as its part 1 says."""
    return {
        MessageQueue(topic, broker, queue_id): end for topic, broker, queue_id, end in first_part.parameter("bounds")
    }
