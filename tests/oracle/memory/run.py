"""Step 3 of a window, run: the listener is called, and its answers become tallies, rows and copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rmq_store.commit.ctl import Blocked, Produced, Proposal, StagedFile
from rmq_store.commit.positions import Outcome, QueueRange, Tally, tally
from rmq_store.consumer.call_listener import call_listener
from rmq_store.consumer.consume_orderly import OrderlyRules, consume_orderly, orderly_call
from rmq_store.consumer.consume_result import (
    DroppedRange,
    clean_expired_msg,
    dropped_ranges,
    is_void,
    process_consume_result,
    void_ranges,
)
from rmq_store.consumer.duplicates import AbsorbRule, Keyed, acks_count_since, key_tally, take_turn
from rmq_store.consumer.listener import Answer, ConsumeConcurrentlyContext, Listener, judge
from rmq_store.consumer.listener_process import OwnProcess
from rmq_store.consumer.pull import Slice, cover, rows_per_time_check
from rmq_store.consumer.retry import PropertyEdits, SendBack, property_edits, retry_queue_id, route, sent_away_edits
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst, retry_topic
from rmq_store.utils.host import Host
from rmq_store.utils.offset_ranges import runs
from rmq_store.window.consume import (
    WindowResult,
    consume_proposal,
    ends_at_ms,
    finished_part,
    orderly_rules,
    refuse_holes,
    shares,
    subscriptions_of,
)
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.plan import Plan
from rmq_store.window.ranges import window_id
from tests.oracle.memory.commit import tally_of_range
from tests.oracle.memory.rows import KeyRow, MessageRow, OutcomeRow, Provenance, Stored
from tests.oracle.memory.shard import MemoryShard
from tests.oracle.memory.store import MemoryStore

_SLOTS = 1


@dataclass(frozen=True, slots=True)
class _Copy:
    """The copy of a failed message, and where it goes."""

    target: MessageQueue
    delay_ms: int | None
    row: MessageRow
    origin: tuple[MessageQueue, int]


_Place = tuple[MessageQueue, int]


def _everything(place: _Place) -> bool:
    return True


@dataclass(slots=True)
class Run:
    """Step 3 of one window."""

    store: MemoryStore
    shard: MemoryShard
    plan: Plan
    listener: Listener
    host: Host
    started_ms: int
    commit_id: str = ""
    window: str = ""
    tallies: dict[MessageQueue, dict[Outcome, Tally]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Tally))
    )
    waits: dict[MessageQueue, int] = field(default_factory=dict)
    blocked: list[Blocked] = field(default_factory=list)
    given_up: list[tuple[int, Answer]] = field(default_factory=list)
    dropped: list[DroppedRange] = field(default_factory=list)
    absorbed: list[QueueRange] = field(default_factory=list)
    failed: set[_Place] = field(default_factory=set)
    keys: Tally | None = None

    def proposal(self, request: ConsumeRequest) -> Proposal:
        group = self.plan.group
        ranges = [planned.range for planned in self.plan.ranges]
        segments = self.shard.segments_of(ranges)
        covered = {range_.queue: cover(range_, segments.get(range_.queue, ())) for range_ in ranges}
        holes = [hole for _, several in covered.values() for hole in several]
        refuse_holes(group, holes)
        self.commit_id = self.host.new_commit_id()
        self.window = window_id(group.name, self.plan.epoch, self.plan.ranges)
        slices_of = {queue: slices for queue, (slices, _) in covered.items()}
        rule = group.absorb_duplicates
        with OwnProcess():
            produced, files = self._consume(slices_of) if rule is None else self._consume_absorbing(rule, slices_of)
        lost = [*holes, *(planned.lost for planned in self.plan.ranges if planned.lost)]
        files += self._lose(finished_part(lost, self.waits))
        result = WindowResult(
            tallies={queue: dict(tallies) for queue, tallies in self.tallies.items()},
            produced=produced,
            files=files,
            waits=self.waits,
            blocked=self.blocked,
            keys=self.keys,
        )
        return consume_proposal(self.plan, request, result, commit_id=self.commit_id, window_id=self.window)

    def _consume_absorbing(
        self, rule: AbsorbRule, slices: dict[MessageQueue, list[Slice]]
    ) -> tuple[list[Produced], list[StagedFile]]:
        """Consume the messages turn by turn, so that each key is acked once at most."""
        keyed = self._keyed(rule, slices)
        acked: dict[str, int] = {}
        for row in self.shard.keys(self.plan.group.name, self.started_ms - rule.horizon_ms):
            acked[row.key] = max(row.epoch, acked.get(row.key, -1))
        turn = take_turn(keyed, acked)
        duplicates = {_place(one) for one in turn.duplicates}
        later = duplicates | {_place(one) for one in turn.wait}
        produced, files = self._consume(slices, lambda place: place not in later)
        parts = 1
        while True:
            acked |= {one.key: self.plan.epoch for one in turn.ask if _place(one) not in self.failed}
            turn = take_turn(turn.wait, acked)
            duplicates |= {_place(one) for one in turn.duplicates}
            if not turn.ask:
                break
            places = {_place(one) for one in turn.ask}
            more = self._consume(slices, places.__contains__, parts)
            produced += more[0]
            files += more[1]
            parts += 1
        for queue in sorted(slices):
            offsets = sorted(offset for of, offset in duplicates if of == queue)
            self.absorbed += [QueueRange(queue, *run) for run in runs(offsets)]
        not_acked = duplicates | self.failed
        acked_now = [one for one in keyed if _place(one) not in not_acked]
        self.keys = key_tally(one.key for one in acked_now)
        rows = [
            KeyRow(
                one.key,
                one.queue,
                one.offset,
                group=self.plan.group.name,
                epoch=self.plan.epoch,
                commit_id=self.commit_id,
            )
            for one in acked_now
        ]
        return produced, [*files, *([self.shard.stage_keys(f"{self.commit_id}-keys", rows)] if rows else [])]

    def _keyed(self, rule: AbsorbRule, slices: dict[MessageQueue, list[Slice]]) -> list[Keyed]:
        """The messages with a key that match the subscription, by queue and offset."""
        group, epoch = self.plan.group.name, self.plan.epoch
        passes = {planned.queue: planned.pass_ for planned in self.plan.ranges}
        keyed = []
        for queue in sorted(slices):
            since = acks_count_since(group, queue, passes[queue], epoch)
            for message in self._matching(queue, (m for slice_ in slices[queue] for m in self.shard.read(slice_))):
                if key := rule.key_of(queue.topic, message.row.properties):
                    keyed.append(Keyed(queue, message.queue_offset, key, since))
        return keyed

    def _matching(self, queue: MessageQueue, messages: Iterable[Stored]) -> list[Stored]:
        subscription = subscriptions_of(self.plan.group)[queue.topic]
        return [
            m
            for m in messages
            if subscription.matches(m.row.tags_code, m.row.properties) and not self._waited_for_another(m)
        ]

    def _waited_for_another(self, message: Stored) -> bool:
        """Whether the message is from before the group was deleted: a group of the same name does not get it."""
        if message.queue.topic != retry_topic(self.plan.group.name):
            return False
        origin = message.row.provenance
        return is_void(origin.epoch if origin else None, self.plan.deleted)

    def _drop_void(self, queue: MessageQueue, messages: Iterable[Stored]) -> set[int]:
        """Record the messages from before the group was deleted, and return their offsets."""
        void = [m.queue_offset for m in messages if self._waited_for_another(m)]
        self._add(queue, Outcome.DROPPED, void)
        self.dropped += void_ranges(queue, void)
        return set(void)

    def _consume(
        self,
        slices: dict[MessageQueue, list[Slice]],
        looks_at: Callable[[_Place], bool] = _everything,
        turn: int = 0,
    ) -> tuple[list[Produced], list[StagedFile]]:
        """Consume the share of every consumer, one after the other. The copies of each are one file. ``turn``: from 0."""
        produced: list[Produced] = []
        files: list[StagedFile] = []
        rules = orderly_rules(self.plan.group)
        consumers = shares(self.plan.group, slices, _SLOTS)
        for part, (_, queues) in enumerate(consumers, turn * len(consumers)):
            if rules is None:
                copies = self._share([slice_ for queue in queues for slice_ in slices[queue]], looks_at)
            else:
                copies = [copy for queue in queues for copy in self._in_order(rules, queue, slices[queue])]
            if not copies:
                continue
            copies.sort(key=lambda copy: (copy.target, copy.origin))
            file = self.shard.stage(f"{self.commit_id}-{part:05d}", [copy.row for copy in copies])
            files.append(file)
            produced += _segments(copies, part, file.path)
        return produced, files

    def _is_over(self) -> bool:
        """Whether the listener is called no more."""
        end_ms = ends_at_ms(self.plan.group, self.started_ms)
        return end_ms is not None and self.host.now_ms() >= end_ms

    def _share(self, slices: Sequence[Slice], looks_at: Callable[[_Place], bool]) -> list[_Copy]:
        """Consume a consumer's slices until the window ends, and return the copies of what failed."""
        group = self.plan.group
        rows = rows_per_time_check(group.consume_message_batch_max_size)
        copies: list[_Copy] = []
        begun = False
        for slice_ in slices:
            for piece in slice_.cut(rows) if group.max_minutes else [slice_]:
                if begun and (piece.queue in self.waits or self._is_over()):
                    self.waits.setdefault(piece.queue, piece.begin)
                    continue
                copies += self._failed(piece, looks_at)
                begun = True
            self.dropped += dropped_ranges(slice_.queue, self.given_up)
            self.given_up.clear()
        return copies

    def _failed(self, slice_: Slice, looks_at: Callable[[_Place], bool]) -> list[_Copy]:
        """Consume a part of a slice, and return the copies of what failed."""
        group = self.plan.group
        messages = [m for m in self.shard.read(slice_) if looks_at((m.queue, m.queue_offset))]
        matching = self._matching(slice_.queue, messages)
        not_filtered = {m.queue_offset for m in matching} | self._drop_void(slice_.queue, messages)
        self._add(
            slice_.queue, Outcome.FILTERED, (m.queue_offset for m in messages if m.queue_offset not in not_filtered)
        )
        size = group.consume_message_batch_max_size
        return [
            copy
            for begin in range(0, len(matching), size)
            for copy in self._batch(slice_.queue, matching[begin:][:size])
        ]

    def _in_order(self, rules: OrderlyRules, queue: MessageQueue, slices: Sequence[Slice]) -> list[_Copy]:
        """Consume one queue in order (ConsumeMessageOrderlyService#processConsumeResult, rules 9.2), and return the copies that
        are dead letters."""
        messages = [message for slice_ in slices for message in self.shard.read(slice_)]
        matching = {m.queue_offset: m for m in self._matching(queue, messages)}
        tried = [blocked for blocked in self.plan.tried if blocked.range.queue == queue]
        result = consume_orderly(
            orderly_call(self.listener, queue, rules.group),
            queue,
            (m.message() for m in matching.values()),
            rules,
            tried=tried,
            is_over=self._is_over,
        )
        if result.waits_at is not None:
            self.waits[queue] = result.waits_at
        self.blocked += result.blocked
        finished = [m for m in messages if result.waits_at is None or m.queue_offset < result.waits_at]
        void = self._drop_void(queue, finished)
        filtered = [m.queue_offset for m in finished if m.queue_offset not in matching]
        self._add(queue, Outcome.FILTERED, (offset for offset in filtered if offset not in void))
        if result.acked.count:
            self.tallies[queue][Outcome.ACKED] += result.acked
        self._add(queue, Outcome.DEAD, (dead.offset for dead in result.dead))
        copies = []
        for dead in result.dead:
            message = matching[dead.offset]
            message = replace(message, row=replace(message.row, reconsume_times=dead.reconsume_times))
            copies.append(self._copy(message, self._send_back(message, 0), dead.answer))
        return copies

    def _batch(self, queue: MessageQueue, batch: Sequence[Stored]) -> list[_Copy]:
        """Consume one batch (ConsumeMessageConcurrentlyService#processConsumeResult, rules 9.1), and return the copies of what
        failed."""
        group = self.plan.group
        messages = [message.message() for message in batch]
        context = partial(ConsumeConcurrentlyContext, queue, group.name)
        began_ms = self.host.now_ms()
        read = partial(judge, all_or_nothing=group.all_or_nothing, secrets=self.listener.secrets)
        judged = call_listener(self.listener, (queue, batch[0].queue_offset), messages, context, read)
        took_ms = self.host.now_ms() - began_ms
        answers = clean_expired_msg(judged, took_ms, group.consume_timeout_ms)
        offsets = [message.queue_offset for message in batch]
        result = process_consume_result(group.message_model, offsets, answers)
        levels = dict(result.send_back)
        self.failed |= {(queue, offset) for offset in (*levels, *result.dropped)}
        copies = []
        for message, answer in zip(batch, answers, strict=True):
            if message.queue_offset in levels:
                send_back = self._send_back(message, levels[message.queue_offset])
                self._add(queue, Outcome.DEAD if send_back.dead else Outcome.RETRIED, [message.queue_offset])
                copies.append(self._copy(message, send_back, answer))
            else:
                dropped = message.queue_offset in result.dropped
                self._add(queue, Outcome.DROPPED if dropped else Outcome.ACKED, [message.queue_offset])
                if dropped:
                    self.given_up.append((message.queue_offset, answer))
        return copies

    def _send_back(self, message: Stored, delay_level: int) -> SendBack:
        group, queue = self.plan.group, message.queue
        return route(
            group.name,
            delay_level=delay_level,
            reconsume_times=message.row.reconsume_times,
            max_reconsume_times=group.max_reconsume_times,
            retry_queue=retry_queue_id(
                queue.topic, queue.broker_name, queue.queue_id, message.queue_offset, group.retry_queue_nums
            ),
            levels=self.store.levels,
            policy=group.retry_policy,
        )

    def _copy(self, message: Stored, send_back: SendBack, answer: Answer) -> _Copy:
        broker = self.shard.local_broker if send_back.dead else self.shard.lane(self.plan.group.name)
        row = replace(
            message.row,
            properties=self._edits(message, send_back).apply(message.row.properties),
            reconsume_times=send_back.reconsume_times,
            store_timestamp=None,
            offset_msg_id=None,
            provenance=Provenance(
                group=self.plan.group.name,
                pass_=next(planned.pass_ for planned in self.plan.ranges if planned.queue == message.queue),
                queue=message.queue,
                offset=message.queue_offset,
                cause=str(send_back.cause),
                attempt=send_back.reconsume_times,
                error_type=answer.error_type,
                error_text=answer.error_text,
                window_id=self.window,
                epoch=self.plan.epoch,
            ),
        )
        return _Copy(
            MessageQueue(send_back.topic, broker, send_back.queue_id),
            send_back.delay_ms,
            row,
            (message.queue, message.queue_offset),
        )

    def _edits(self, message: Stored, send_back: SendBack) -> PropertyEdits:
        group, topic = self.plan.group, message.queue.topic
        if orderly_rules(group) is None:
            return property_edits(send_back, topic, message.offset_msg_id)
        key = message.row.properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, message.offset_msg_id)
        return sent_away_edits(send_back, topic, key, group.max_reconsume_times)

    def _lose(self, ranges: Sequence[QueueRange]) -> list[StagedFile]:
        """Stage the rows of lost, dropped and duplicate ranges."""
        passes = {planned.queue: planned.pass_ for planned in self.plan.ranges}

        def row(range_: QueueRange, outcome: Outcome, reason: str) -> OutcomeRow:
            return OutcomeRow(
                range=range_,
                group=self.plan.group.name,
                pass_=passes[range_.queue],
                outcome=outcome,
                reason=reason,
                window_id=self.window,
            )

        rows = []
        for range_ in ranges:
            self.tallies[range_.queue][Outcome.LOST] += tally_of_range(range_)
            rows.append(row(range_, Outcome.LOST, "no message is there"))
        rows += [row(item.range, Outcome.DROPPED, item.reason) for item in self.dropped]
        for range_ in self.absorbed:
            self.tallies[range_.queue][Outcome.DUPLICATE] += tally_of_range(range_)
            rule = self.plan.group.absorb_duplicates
            assert rule is not None
            rows.append(row(range_, Outcome.DUPLICATE, rule.reason))
        return [self.shard.stage_outcomes(self.commit_id, rows)] if rows else []

    def _add(self, queue: MessageQueue, outcome: Outcome, offsets: Iterable[int]) -> None:
        added = tally(offsets)
        if added.count:
            self.tallies[queue][outcome] += added


def _place(one: Keyed) -> _Place:
    return one.queue, one.offset


def _segments(copies: Sequence[_Copy], part: int, file: str) -> list[Produced]:
    """The runs of copies that go to one queue."""
    first: dict[MessageQueue, int] = {}
    count: dict[MessageQueue, int] = defaultdict(int)
    delay: dict[MessageQueue, int | None] = {}
    for row, copy in enumerate(copies):
        first.setdefault(copy.target, row)
        count[copy.target] += 1
        delay[copy.target] = copy.delay_ms
    return [Produced(q, part, count[q], row, file, delay_ms=delay[q]) for q, row in first.items()]
