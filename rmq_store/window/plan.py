"""Planning a window: which offsets a request of a consumer group takes next in one shard.

``Planner.plan`` decides, in four steps: subscription, queues, bounds, ranges. It reads one snapshot of the positions;
everything else (offsets by time, observed offsets) comes from a ``ShardView``. ``consumer/start.py`` has the rule for
a group's first offset in a queue, ``ranges.py`` cuts ranges by bounds and caps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rmq_store.commit.ctl import Blocked, Ctl, canonical_json
from rmq_store.commit.positions import (
    Positions,
    SubVersion,
    Tally,
    blk_id,
    cutover_id,
    del_id,
    grp_id,
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
from rmq_store.errors import NothingThere, StaleAttempt, WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.times import format_time
from rmq_store.window.consume_request import (
    BOUNDS,
    LIVE,
    RETRIES_ONLY,
    ConsumeRequest,
    Scope,
    bounds_of,
    bounds_parameter,
    identity_parameters,
    messages_remaining,
)
from rmq_store.window.first_window import (
    LEFT_TO_BROKERS,
    STARTS_ELSEWHERE,
    ChosenStarts,
    FirstWindows,
    ShardStarts,
    first_windows,
    starts_parameter,
)
from rmq_store.window.ranges import PlannedRange, blocked_offsets, capped_by_bytes, plan_ranges, stored_starts
from rmq_store.window.shard_view import ShardView, observed_offsets
from rmq_store.window.sub_version import checked_subscription, subscription_text

CONSUME_TIMESTAMP_BACK_MS = 30 * 60_000
"""Without a consumeTimestamp, CONSUME_FROM_TIMESTAMP means half an hour ago (DefaultMQPushConsumer, rules 5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One window of a request, before it runs."""

    group: GroupSettings
    positions: Positions
    epoch: int
    """The group's epoch. A commit of an older epoch is refused."""
    ranges: tuple[PlannedRange, ...]
    """What the window takes, by queue; empty when there is nothing to do."""
    bounds: Mapping[MessageQueue, int]
    """Per queue the offset before which the whole request ends."""
    part: int
    """The number of the window in its request, from 1."""
    chooses: bool = False
    """Whether it chooses where queues begin: it is the group's first window in this shard, or the first one of topics after
    windows of retries only that left queues to a broker."""
    elsewhere: Mapping[str, ShardStarts] | None = None
    """What the other shards have for the group, by their names; None: it is not the group's first window in this shard."""
    left_to_brokers: frozenset[str] = frozenset()
    """Of a first window: see ``LEFT_TO_BROKERS``."""
    others: frozenset[MessageQueue] = frozenset()
    """The queues of other consumers whose first start the window records, without reading them."""
    unfinished: frozenset[MessageQueue] = frozenset()
    """The queues in which the request wants more than this window takes."""
    tried: tuple[Blocked, ...] = ()
    """What blocks the queues of an orderly group, and how often it was tried."""
    limit: int | None = None
    """How many messages the request may still consume, those of this window too; None: no limit."""
    blocked_before: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Where the queues stay that earlier windows of the request left blocked, as far as the log knows when the window is
    planned."""
    idle: str = ""
    """Why this consumer has no queue; empty when it has one."""
    subscription: str | None = None
    """The text of the subscription; None for a window that reads retries only."""
    sub_version: SubVersion | None = None
    """What the commit records of the subscription."""

    def is_claimed_as_next(self, planned_at: int, claimed_at: int) -> bool:
        """Whether the claim is the entry of the log after the plan, so that the plan holds as it is. For a window that chooses
        that is not enough: what the log of another shard says of the starts here may have come meanwhile. The arguments: the
        versions of the log at the plan and after the claim."""
        return claimed_at == planned_at + 1 and not self.chooses

    @property
    def deleted(self) -> int | None:
        """The group's epoch at its last delete: retries that waited then are dropped."""
        return self.positions.get(del_id(self.group.name))


@dataclass(frozen=True, slots=True)
class Starts:
    """Where the queues of a window begin."""

    own: Mapping[MessageQueue, Start]
    """The queues that this consumer reads."""
    others: Mapping[MessageQueue, Start] = field(default_factory=dict)
    """Queues of other consumers whose first start this window records, without reading them."""
    idle: str = ""
    """Why there are no own queues."""

    def all(self) -> Iterable[tuple[MessageQueue, Start]]:
        return {**self.own, **self.others}.items()


class Planner:
    """Plans the windows of one group in one shard, from one snapshot of its positions.

    Raises WrongUse for a broadcasting group whose name does not name the client, and for a replay from a time in the future.
    """

    def __init__(self, shard: ShardView, group: GroupSettings, now_ms: int, scope: Scope = LIVE) -> None:
        if group.broadcasting and "@" not in group.name:
            raise WrongUse(
                f"group {group.name} is broadcasting: each client gets all messages, at offsets of its own. Name the "
                f"client: {group.name}@CLIENT"
            )
        if scope.from_ms is not None and scope.from_ms > now_ms:
            raise WrongUse(
                f"{format_time(scope.from_ms)} is in the future (now is {format_time(now_ms)}): no message can be replayed "
                "from there. Give a time that is past"
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
        """The next window of the request. A plan without ranges means that there is nothing to do.

        ``parts`` are the windows that the request has committed, oldest first. A window is planned twice: before it
        claims its queues, and after. The second time ``before`` is the first plan, and ``claimed`` are the queues that
        the claim got.

        - **One subscription.** A subscription that is older than the recorded one, or a changed one with the same version,
          is refused before anything is read.
        - **A request is idempotent.** Its queues and its bounds are chosen once, by part 1, and recorded in that part's
          commit. Later parts and other attempts use them, so messages stored after part 1 belong to another request.
        - **Caps cut a request into parts.** ``max_messages`` and ``max_bytes`` of the group limit a window, ``max_messages``
          of the request all its parts. ``unfinished`` names the queues in which the request wants more than this window
          takes; the request is complete when there are none.
        - **Claims of other requests.** A queue that another request has claimed is left out of the ranges and stays
          unfinished: the next part tries it again. The group's first window has all claims (``wish``).
        - **One first window.** It is planned again after its claim, and begins where that of another shard chose, if
          one was committed meanwhile. Of two in a shard that are planned at once the second one is an ordinary one after its
          claim, with the starts that the first one chose. A first window whose group an operator moves between plan and claim
          is refused: it would not have the claims of all queues that need a start now.
        - **Lost offsets.** Messages that retention removed before the group read them raise OffsetOutOfRange, or are recorded
          as lost if the group's ``on_offset_out_of_range`` is "skip". An offset never moves silently.

        Example: a group with ``max_messages = 40`` has the committed offsets 70 and 10 in two queues, which hold [0, 100)
        and [0, 40). A request without ``until_ms`` takes all of it in two windows::

                     queue 0             queue 1             bounds      unfinished
            part 1   [70, 90)            [10, 30)            100, 40     both queues
                     10 messages more
            part 2   [90, 100)           [30, 40)            100, 40     none: complete

        If another request holds queue 1 when part 1 claims, part 1 takes [70, 100) of queue 0, and queue 1 is unfinished.

        Raises OffsetOutOfRange, BadData (a committed offset beyond the end of its queue), StaleAttempt (an operator moved the
        group before its first window had its claims) and WrongUse (no topic of the group in the shard, a refused
        subscription, consumers that share a broadcasting group).
        """
        subscription, sub_version = self._subscription()
        fixed = None if before is None else before.bounds
        if parts:
            fixed = bounds_of(parts[0])
        starts = self._starts(request, before, fixed)
        chooses = self._chooses(starts)
        if before is not None:
            self._refuse_moved(before, chooses)
        bounds = self._bounds(request, starts, fixed)
        ranges, unfinished = self._ranges(request, parts, starts, bounds, claimed)
        return Plan(
            group=self.group,
            positions=self.positions,
            epoch=self._epoch,
            ranges=ranges,
            bounds=bounds,
            part=len(parts) + 1,
            chooses=chooses,
            elsewhere=self._elsewhere(before),
            left_to_brokers=self._leaves_to_brokers(request) if before is None else before.left_to_brokers,
            others=frozenset(starts.others),
            unfinished=unfinished,
            tried=self._tried(ranges),
            limit=messages_remaining(request.max_messages, parts),
            blocked_before=blocked_offsets(self.positions, self.group.name, parts),
            idle=starts.idle,
            subscription=subscription,
            sub_version=sub_version,
        )

    # --- step 1: the subscription ------------------------------------------------------------------------------------

    def _subscription(self) -> tuple[str | None, SubVersion | None]:
        """The text of the subscription (None: the window reads retries only), and what the commit records of it."""
        text = None if self._scope.retries_only else subscription_text(self.group.subscriptions)
        return text, checked_subscription(self.shard, self.positions, self.group, text)

    # --- step 2: the queues, and where they begin --------------------------------------------------------------------

    def _starts(self, request: ConsumeRequest, before: Plan | None, fixed: Mapping[MessageQueue, int] | None) -> Starts:
        """The queues of the window, each with the offset at which the group goes on in it.

        Queues are allocated to this consumer by the first plan of part 1; after that the bounds are ``fixed``, and name
        them.
        """
        queues = self.queues()
        every = set(queues) | (set(self._beside_retries()) if RETRIES_ONLY in request.parameters else set())
        if fixed is not None:
            others = before.others if before is not None else every - fixed.keys()
            own = [queue for queue in queues if queue in fixed and queue not in others]
        elif request.client_id is None:
            own, others = queues, every - set(queues)
        elif not (own := self._allocated(request, queues)):
            return Starts({}, idle=self._idle(request))
        else:
            others = every - set(own)
        return Starts(self._starts_of(own), self._starts_for_others(others))

    def _starts_of(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Start]:
        """The committed offset of each queue, else where the group begins to read it."""
        stored, unknown = stored_starts(self.group.name, queues, self.positions)
        return stored | {queue: self._first_start(queue) for queue in unknown}

    def queues(self) -> list[MessageQueue]:
        """All queues that the group reads in this shard: of its topics, and of its retry topic once they belong to the lake.

        Raises WrongUse when the shard has no topic of the group.
        """
        queues = self._readable(self.shard, self.positions)
        topics = {subscription.topic for subscription in self.group.subscriptions}
        if not self._scope.retries_only and not any(queue.topic in topics for queue in queues):
            raise WrongUse(
                f"shard {self.shard.name} has none of the topics of group {self.group.name}: {', '.join(sorted(topics))}"
            )
        return queues

    def _readable(self, shard: ShardView, positions: Positions) -> list[MessageQueue]:
        """The queues of a shard that the group reads. Until the cut-over a broker delivers its own retries."""
        retries = [
            queue
            for queue in positions.queues_of(retry_topic(self.group.name))
            if _has_groups_here(shard, positions, queue)
        ]
        if self._scope.retries_only:
            return retries
        return [*self._of_topics(positions), *retries]

    def _of_topics(self, positions: Positions) -> list[MessageQueue]:
        topics = [subscription.topic for subscription in self.group.subscriptions]
        return [queue for topic in topics for queue in positions.queues_of(topic)]

    def _beside_retries(self) -> list[MessageQueue]:
        """The queues of its topics in which a window of retries only chooses where the group begins."""
        queues = self._of_topics(self.positions)
        return [queue for queue in queues if _has_groups_here(self.shard, self.positions, queue)]

    def _leaves_to_brokers(self, request: ConsumeRequest) -> frozenset[str]:
        """The brokers of the other ones, which this window records if it is the group's first one here."""
        if RETRIES_ONLY not in request.parameters or not self._is_first:
            return frozenset()
        queues = self._of_topics(self.positions)
        return frozenset(
            queue.broker_name for queue in queues if not _has_groups_here(self.shard, self.positions, queue)
        )

    def _allocated(self, request: ConsumeRequest, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """The queues of this shard that the group's strategy gives to this consumer (RebalanceImpl#rebalanceByTopic, rules
        6.1).

        The queues of a topic are shared out over all shards, as RocketMQ does over all brokers: otherwise topics of one
        queue per shard would all go to the first consumer.
        """
        group = self.group
        if group.broadcasting:
            raise WrongUse(f"group {group.name} is broadcasting: every client gets all queues, none are shared")
        others = [shard for shard in self._others if group.shards is None or shard.name in group.shards]
        elsewhere = {queue for shard in others for queue in self._readable(shard, shard.positions())}
        allocated = allocate_by_topic(
            group.allocate_strategy.among_clients(),
            group.name,
            request.client_id or "",
            {*queues, *elsewhere},
            set(request.client_ids),
        )
        return [queue for queue in allocated if queue not in elsewhere]

    def _idle(self, request: ConsumeRequest) -> str:
        """Why this consumer has no queue."""
        clients = ", ".join(sort_client_ids(set(request.client_ids)))
        if request.client_id not in request.client_ids:
            return f"client {request.client_id} gets no queue: it is not in the list of consumers {clients}"
        strategy = self.group.allocate_strategy
        gives = "gives it none" if strategy.may_leave_queues else f"gives them to others of {clients}"
        return f"client {request.client_id} gets no queue here: {strategy} {gives}"

    def _starts_for_others(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Start]:
        """The first starts of queues that this window does not read, where they do not begin at their first message: those that
        other consumers got, and those of topics beside a window of retries only.

        ConsumeFromWhere applies to the queues that exist at the group's first window, so this chooses for all of them.
        Otherwise a queue that is read later would look like one that was made later.
        """
        if self._had_a_window and self._scope.retries_only:
            return {}
        _, unknown = stored_starts(self.group.name, sorted(queues), self.positions)
        starts = {queue: self._first_start(queue) for queue in unknown if not self._has_chosen(queue)}
        return {queue: start for queue, start in starts.items() if start.offset > self.positions.min_offset(queue)}

    def _first_start(self, queue: MessageQueue) -> Start:
        """Where a queue without a committed offset begins: where the broker's group stood, else where the group's first window
        chose, else by ConsumeFromWhere (RebalancePushImpl#computePullFromWhereWithException, rules 5.1).

        Raises NothingThere in the middle of an import: both would give another answer at its end.
        """
        if not self._is_imported(queue):
            raise NothingThere(
                f"group {self.group.name} has no offset in {queue} yet, and the import of broker {queue.broker_name} is not at "
                f"its end: its log was imported up to {self._incomplete_imports[queue.broker_name]}. Finish the import "
                "('rmq import-store'), and consume then"
            )
        if self._scope.from_ms is not None and queue.topic != retry_topic(self.group.name):
            shown = (self._scope.starts or {}).get(queue)
            return Start(self._search(queue, self._scope.from_ms) if shown is None else shown, StartRule.REPLAY)
        observed = self._observed.get(queue)
        if observed is not None:
            return Start(observed, StartRule.OBSERVED)
        decides = not self._has_chosen(queue) and self.group.later_queues_start_at_min
        return self._start_without_offset(queue, self._chosen if decides else None)

    def _start_without_offset(self, queue: MessageQueue, chosen: ChosenStarts | None) -> Start:
        """``chosen``: by the group's first windows in other shards. The start is within the queue: retention does not wait for
        a group without an offset, and a restored store may have less."""
        if chosen is None:
            return self._start_by_where(queue, later=self._has_chosen(queue))
        start = None if chosen.is_later(queue) else chosen.start_of(queue)
        if start is None:
            return self._start_by_where(queue, later=chosen.is_later(queue))
        least, most = self.positions.min_offset(queue), self.positions.max_offset(queue)
        return replace(start, offset=min(max(start.offset, least), most))

    def _start_by_where(self, queue: MessageQueue, *, later: bool) -> Start:
        """By ConsumeFromWhere. ``later``: the queue appeared after the group's first window."""
        where = ConsumeFromWhere(self.group.consume_from_where)
        state = QueueToStart(
            queue.topic,
            -1,
            self.positions.min_offset(queue),
            self.positions.max_offset(queue),
            lake_born=queue.broker_name.startswith(self.shard.local_broker),
            later=later,
        )
        rule = start_rule(where, state, self.group.start_switches)
        at_timestamp = self._at_timestamp[queue] if rule is StartRule.TIMESTAMP else None
        return compute_pull_from_where(where, state, at_timestamp, self.group.start_switches)

    @cached_property
    def _at_timestamp(self) -> Mapping[MessageQueue, int]:
        """The offsets at the group's consumeTimestamp, of all queues of its topics: those with an offset need one in another
        shard."""
        since_ms = self.group.consume_timestamp_ms
        time_ms = self._now_ms - CONSUME_TIMESTAMP_BACK_MS if since_ms is None else since_ms
        return self.shard.search_offsets(self.positions, self._of_topics(self.positions), time_ms)

    def _is_imported(self, queue: MessageQueue) -> bool:
        """Whether the newest import of the queue's broker is at its end."""
        return queue.broker_name not in self._incomplete_imports

    def _search(self, queue: MessageQueue, time_ms: int) -> int:
        return self.shard.search_offsets(self.positions, [queue], time_ms)[queue]

    @cached_property
    def _had_a_window(self) -> bool:
        """Whether the group had a window before this one, not counting those before a delete of the group.

        An epoch of 0 says that it had: a window writes the epoch as it is, an operator's action raises it. Above 0 only the
        log knows whether there was more than such actions.
        """
        name = self.group.name
        epoch, deleted = self.positions.get(grp_id(name)), self.positions.get(del_id(name))
        return epoch == 0 or (epoch is not None and self.shard.has_consumed(name, deleted or 0))

    def _has_chosen(self, queue: MessageQueue) -> bool:
        """Whether the group's first window has chosen where it begins the queues that were there, so that this one came later.
        What that window has left to a broker, the first one of topics chooses."""
        is_empty = self.positions.min_offset(queue) == self.positions.max_offset(queue)  # all rules give one start
        if not self._had_a_window or is_empty or queue.broker_name == self.shard.local_broker:
            return self._had_a_window
        return queue.broker_name not in self._left_to_brokers

    @cached_property
    def _left_to_brokers(self) -> Collection[str]:
        """By the windows before this one, as long as all are of retries only."""
        name, deleted = self.group.name, self.positions.get(del_id(self.group.name)) or 0
        first = None if self.shard.has_consumed(name, deleted, topics=True) else self.shard.first_window(name, deleted)
        return () if first is None else first.parameter(LEFT_TO_BROKERS) or ()

    # --- the first window of a group, in all shards ---

    @cached_property
    def _others(self) -> list[ShardView]:
        return list(self.shard.others())

    @cached_property
    def _first_windows(self) -> FirstWindows:
        """Those of this shard too: what they chose for others outlives a delete of the group here."""
        return first_windows([self.shard, *self._others], self.group.name)

    @cached_property
    def _chosen(self) -> ChosenStarts | None:
        return self._first_windows.chosen_for(self.shard.name)

    @property
    def _epoch(self) -> int:
        return self.positions.epoch(self.group.name)

    @property
    def _is_first(self) -> bool:
        """Whether this window is the group's first one here, and chooses where its queues begin. A replay chooses nothing."""
        return not self._had_a_window and self._scope.from_ms is None

    def _chooses(self, starts: Starts) -> bool:
        """Whether this window chooses where queues begin that would else begin elsewhere: a first one, or the first one of
        topics in queues that those of retries only left to a broker."""
        if self._scope.from_ms is not None:
            return False
        new = (queue for queue, start in starts.all() if start.rule not in (StartRule.STORED, StartRule.OBSERVED))
        return self._is_first or not all(map(self._has_chosen, new))

    def _refuse_moved(self, before: Plan, chooses: bool) -> None:
        """Raise StaleAttempt for a window that chooses where queues begin, and whose group was moved since the plan that it has
        claimed for."""
        if self._epoch != before.epoch and chooses:
            raise StaleAttempt(
                f"group {self.group.name} was moved in shard {self.shard.name} while its first window claimed its queues. Run "
                "the request again."
            )

    def _elsewhere(self, before: Plan | None) -> Mapping[str, ShardStarts] | None:
        """What this window records of the other shards, if it is the group's first one here: as they were at its first plan."""
        if not self._is_first:
            return None
        return self._starts_elsewhere() if before is None else before.elsewhere

    def _starts_elsewhere(self) -> Mapping[str, ShardStarts]:
        return {shard.name: self._starts_in(shard) for shard in self._others}

    def _starts_in(self, shard: ShardView) -> ShardStarts:
        """The starts of the queues of another shard. One that has an offset gets a start as if it had none: an undo may take
        the offset away."""
        planner = Planner(shard, self.group, self._now_ms, self._scope)
        queues = planner._of_topics(planner.positions)
        starts: dict[MessageQueue, Start | None] = dict.fromkeys(queues)
        if not self._first_windows.has_begun(shard.name):
            chosen = self._first_windows.chosen_for(shard.name)
            starts |= {
                queue: planner._start_without_offset(queue, chosen) for queue in queues if planner._is_imported(queue)
            }
        return ShardStarts(
            planner.positions.get(del_id(self.group.name)), frozenset(planner._incomplete_imports), starts
        )

    @cached_property
    def _incomplete_imports(self) -> Mapping[str, int]:
        return self.shard.incomplete_imports()

    @cached_property
    def _observed(self) -> dict[MessageQueue, int]:
        return observed_offsets(self.shard, self.positions, self.group.name)

    # --- step 3: the bounds ------------------------------------------------------------------------------------------

    def _bounds(
        self, request: ConsumeRequest, starts: Starts, fixed: Mapping[MessageQueue, int] | None
    ) -> Mapping[MessageQueue, int]:
        """Per queue the offset before which the request ends: those that part 1, or its first plan, has ``fixed``,
        else new ones.

        A queue that another consumer got ends where it starts: the window only records its start.
        """
        own = self._new_bounds(request, starts.own) if fixed is None else fixed
        return {queue: start.offset for queue, start in starts.others.items()} | dict(own)

    def _new_bounds(self, request: ConsumeRequest, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        if self._scope.bounds is not None:
            return {queue: end for queue, end in self._scope.bounds.items() if queue in queues}
        if request.until_ms is None:
            return {queue: self.positions.max_offset(queue) for queue in queues}
        return self.shard.search_offsets(self.positions, list(queues), request.until_ms)

    # --- step 4: the ranges ------------------------------------------------------------------------------------------

    def _ranges(
        self,
        request: ConsumeRequest,
        parts: Sequence[Ctl],
        starts: Starts,
        bounds: Mapping[MessageQueue, int],
        claimed: Collection[MessageQueue] | None,
    ) -> tuple[tuple[PlannedRange, ...], frozenset[MessageQueue]]:
        """What this window takes, and the queues in which the request wants more than that."""
        group = self.group
        blocked = {one.range.queue for part in parts for one in part.blocked}  # until the next request
        pending = {queue: start for queue, start in starts.all() if queue in bounds and queue not in blocked}
        free = {queue: start for queue, start in pending.items() if claimed is None or queue in claimed}
        held = {queue: start for queue, start in pending.items() if queue not in free}

        limit = messages_remaining(request.max_messages, parts)
        whole = self._planned(free, bounds, limit)
        ranges = self._planned(
            free, bounds, min((n for n in (limit, group.max_messages) if n is not None), default=None)
        )
        if group.max_bytes is not None:
            ranges = capped_by_bytes(ranges, group.max_bytes, self.shard.body_sizes)
        sizes = {planned.queue: len(planned.range) for planned in ranges}
        rest = None if limit is None else limit - sum(sizes.values())

        cut = {planned.queue for planned in whole if len(planned.range) > sizes.get(planned.queue, 0)}
        skipped = {planned.queue for planned in self._planned(held, bounds, rest) if len(planned.range) or planned.lost}
        return tuple(ranges), frozenset(cut | skipped)

    def _planned(
        self, starts: Mapping[MessageQueue, Start], bounds: Mapping[MessageQueue, int], max_messages: int | None
    ) -> list[PlannedRange]:
        return plan_ranges(
            self.group.name,
            self.positions,
            starts,
            bounds,
            max_messages=max_messages,
            lost_is_skipped=self.group.on_offset_out_of_range == "skip",
        )

    def _tried(self, ranges: Iterable[PlannedRange]) -> tuple[Blocked, ...]:
        """What blocks the queues of an orderly group, as each queue's last window recorded it. A queue that an operator has
        moved since is not blocked."""
        blocked_ms = [self.positions.get(blk_id(self.group.name, planned.queue)) for planned in ranges]
        since_ms = min((ms for ms in blocked_ms if ms is not None), default=None)
        if since_ms is None or self.group.mode != "orderly":
            return ()
        begins = {(planned.queue, planned.begin, planned.pass_) for planned in ranges}
        newest: dict[MessageQueue, tuple[Blocked, ...]] = {}
        for ctl in self.shard.windows_since(self.group.name, since_ms):
            for consumed in ctl.consumed:
                queue = consumed.range.queue
                blocked = tuple(_dated(one, ctl) for one in ctl.blocked if one.range.queue == queue)
                newest[queue] = blocked if (queue, consumed.range.end, consumed.pass_) in begins else ()
        return tuple(one for _, blocked in sorted(newest.items()) for one in blocked)


def _has_groups_here(shard: ShardView, positions: Positions, queue: MessageQueue) -> bool:
    """Whether the offsets of groups in the queue are the lake's: its own queue, or one of a broker that was cut over."""
    return queue.broker_name == shard.local_broker or bool(positions.get(cutover_id(queue.broker_name)))


def _dated(blocked: Blocked, ctl: Ctl) -> Blocked:
    return blocked if blocked.first_failed_at else replace(blocked, first_failed_at=ctl.store_timestamp)


# --- the parameters of a ctl row --------------------------------------------------------------------------------------


TASK_MS = "task_ms"
"""The parameter of a window that says how long its tasks took, the sum over them in ms of wall time. The next window of the
group is cut by it."""
LISTENER_VERSION = "listener_version"
"""The parameter of a window that says which version of the listener ran; several with a comma between, if the workers of a
cluster had different ones."""


def request_parameters(
    plan: Plan,
    request: ConsumeRequest,
    keys: Tally | None = None,
    task_ms: int | None = None,
    listener_versions: Sequence[str] = (),
) -> str:
    """The ``parameters`` of the window's ctl row, as canonical JSON: those of the request, and in part 1 its bounds. A group's
    first window in a shard also has what the other shards have for it.

    ``keys``: the keys that a window acked, in a group that absorbs duplicates. ``task_ms``: how long its tasks took; None:
    it had none, or it was not measured. ``listener_versions``: of the listener that ran (``Listener.version``), sorted.
    """
    parameters = identity_parameters(request) | dict(request.parameters)
    if request.client_id is not None:
        parameters |= {"client_id": request.client_id, "client_ids": sort_client_ids(set(request.client_ids))}
    if plan.part == 1:
        parameters[BOUNDS] = bounds_parameter(plan.bounds)
    if plan.elsewhere is not None:
        parameters[STARTS_ELSEWHERE] = starts_parameter(plan.elsewhere)
    if plan.left_to_brokers:
        parameters[LEFT_TO_BROKERS] = sorted(plan.left_to_brokers)
    if keys is not None:
        parameters |= key_parameters(keys)
    if task_ms is not None:
        parameters[TASK_MS] = task_ms
    if listener_versions:
        parameters[LISTENER_VERSION] = ",".join(listener_versions)
    return canonical_json(parameters)
