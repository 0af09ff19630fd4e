"""A book kept beside a store: sets of offsets, and what the listener was asked and said. None of the store's own rules.

After every step of a history it reads the new commits and works out, offset by offset, what must stand in them: where
ranges begin and end, which outcome each offset has, which copies lie in the retry and dead-letter queues. It knows the
rules from RocketMQ's words (rules 9.1, 9.2, 10.2, 11), written down once more in the plainest way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Consumed, Ctl
from rmq_store.commit.positions import Outcome, queue_of, split_id
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from tests.contract.world import World
from tests.oracle.memory.rows import Stored

LEVEL_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
SCHEDULE, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
CLAIMS = (Action.CLAIM, Action.RENEW, Action.RELEASE)
MOVES = (Action.RESET, Action.CLONE, Action.REPLAY, Action.UNDO)
DELETED = -1
_MASK = 2**64 - 1

Offsets = dict[Outcome, set[int]]
Wanted = Callable[[dict[str, str]], bool]
"""What a group's filter lets through, by the properties of a message."""


@dataclass(frozen=True)
class Call:
    """One question to a listener. ``said``: per message (succeeded, level), in order (auto commit, status)."""

    queue: MessageQueue
    offsets: tuple[int, ...]
    reconsume_times: tuple[int, ...]
    said: tuple[tuple[bool, int], ...] = ()
    in_order: tuple[bool, str] | None = None


@dataclass
class Place:
    """Where a group stands in a queue."""

    offset: int
    pass_: int


@dataclass
class Group:
    """What the book knows of a group's settings: the rules that follow are the book's own."""

    settings: GroupSettings
    wanted: dict[str, Wanted]

    def lets_through(self, message: Stored) -> bool:
        return message.queue.topic.startswith("%RETRY%") or self.wanted[message.queue.topic](
            dict(message.row.properties)
        )

    def key_of(self, message: Stored) -> str | None:
        rule = self.settings.absorb_duplicates
        value = message.row.properties.get(rule.by) if rule else None
        if not rule or not value or rule.by == "UNIQ_KEY":
            return value or None
        topic = message.queue.topic
        if topic.startswith("%RETRY%"):
            topic = message.row.properties["RETRY_TOPIC"]
        return f"{topic} {rule.by}: {value}"


@dataclass
class Ledger:
    world: World
    groups: dict[str, Group] = field(default_factory=dict)
    read: int = 0
    places: dict[tuple[str, MessageQueue], Place] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    before: dict[str, dict[MessageQueue, int]] = field(default_factory=lambda: defaultdict(dict))
    """By group where it was in each queue before its last move."""
    done: dict[tuple[str, int, MessageQueue], set[int]] = field(default_factory=lambda: defaultdict(set))
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    acked: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    ranges: Counter[str] = field(default_factory=Counter)
    redriven: set[tuple[MessageQueue, int]] = field(default_factory=set)

    def balance(self, calls: Sequence[Call] = ()) -> list[Ctl]:
        """Read what was committed since the last time, by one attempt whose listener heard ``calls``."""
        new = [ctl for ctl in self.world.ctls()[self.read :] if ctl.action not in CLAIMS]
        self.read = len(self.world.ctls())
        for ctl in new:
            if ctl.action is Action.CONSUME:
                self._window(ctl, calls)
            elif ctl.action in MOVES:
                self._moves(ctl)
            elif ctl.action is Action.DELIVER:
                self._delivery(ctl)
            elif ctl.action is Action.REDRIVE:
                self._redrive(ctl)
        self._positions()
        return new

    # --- a window ----------------------------------------------------------------------------------------------------

    def _window(self, ctl: Ctl, calls: Sequence[Call]) -> None:
        name = ctl.group or ""
        group = self.groups[name]
        assert ctl.epoch == self.epochs[name], "made after the last operator's action"
        expected: dict[tuple[MessageQueue, int], dict[int, str]] = {}
        told: set[tuple[MessageQueue, int, int, str]] = set()
        assert {call.queue for call in calls} <= {consumed.range.queue for consumed in ctl.consumed}
        acks = self._acks(group, ctl, calls)
        for consumed in ctl.consumed:
            queue, begin, end = consumed.range.queue, consumed.range.begin, consumed.range.end
            self._begins_where_the_last_one_ended(name, consumed)
            messages = {m.queue_offset: m for m in self.world.stored(queue)}
            least = self.world.positions().min_offset(queue)
            here = [call for call in calls if call.queue == queue]
            found: Offsets = defaultdict(set)
            readable = [messages[o] for o in range(begin, end) if o in messages and o >= least]
            found[Outcome.LOST] = set(range(begin, end)) - {m.queue_offset for m in readable}
            found[Outcome.FILTERED] = {m.queue_offset for m in readable if not group.lets_through(m)}
            asked_for = [m for m in readable if group.lets_through(m)]
            found[Outcome.DUPLICATE] = acks.duplicates(queue, consumed.pass_, asked_for)
            wanted = {m.queue_offset for m in asked_for} - found[Outcome.DUPLICATE]
            if group.settings.mode == "orderly":
                finished, targets = in_order(group.settings, here)
                waits = [blocked.range.begin for blocked in ctl.blocked if blocked.range.queue == queue]
                assert wanted <= finished.keys(), "no offset is left behind that is not finished"
                assert set(finished) <= wanted, "what is finished is committed"
                assert not waits or min(waits) == end, "the offset stays at what waits"
            else:
                finished, targets = at_once(group.settings, here)
                assert finished.keys() == wanted, "everything that passes the filter is asked about, and nothing else"
            for offset, outcome in finished.items():
                found[outcome].add(offset)
            assert_tallies(consumed, found)
            done = self.done[name, consumed.pass_, queue]
            assert done.isdisjoint(range(begin, end)), "each offset once in a pass"
            done.update(range(begin, end))
            if targets:
                expected[queue, consumed.pass_] = targets
            for outcome in (Outcome.LOST, Outcome.DROPPED, Outcome.DUPLICATE):
                told |= {(queue, consumed.pass_, offset, str(outcome)) for offset in found[outcome]}
            self.outcomes.update({outcome: len(offsets) for outcome, offsets in found.items()})
            self.places[name, queue] = Place(end, consumed.pass_)
        self._copies(ctl, name, expected)
        self._told(name, told)
        acks.remember(self)

    def _begins_where_the_last_one_ended(self, name: str, consumed: Consumed) -> None:
        place = self.places.get((name, consumed.range.queue))
        if place is None:
            assert consumed.start_rule != "stored"
            least, most = self.least(consumed.range.queue), self.world.positions().max_offset(consumed.range.queue)
            assert least <= consumed.range.begin <= most
            assert consumed.start_rule == "replay" or consumed.range.begin == least, "from the first message on"
            assert consumed.pass_ == self.epochs[name]
        else:
            assert (consumed.range.begin, consumed.pass_) == (place.offset, place.pass_)

    def least(self, queue: MessageQueue) -> int:
        return self.world.positions().min_offset(queue)

    def _copies(self, ctl: Ctl, name: str, expected: dict[tuple[MessageQueue, int], dict[int, str]]) -> None:
        """Every failed offset has exactly one copy, in the right queue, and no copy is there without one."""
        wanted = Counter(
            (queue, pass_, offset, target)
            for (queue, pass_), targets in expected.items()
            for offset, target in targets.items()
        )
        found: Counter[tuple[MessageQueue, int, int, str]] = Counter()
        for copy in self._produced(ctl):
            origin = copy.row.provenance
            assert origin is not None
            assert (origin.group, origin.window_id) == (name, ctl.window_id)
            (first,) = (m for m in self.world.stored(origin.queue) if m.queue_offset == origin.offset)
            assert (copy.row.body, copy.row.properties["UNIQ_KEY"]) == (
                first.row.body,
                first.row.properties["UNIQ_KEY"],
            )
            assert copy.row.reconsume_times == origin.attempt
            if not copy.queue.topic.startswith("%DLQ%"):
                assert copy.row.reconsume_times == first.row.reconsume_times + 1
                assert copy.row.properties["REAL_TOPIC"] == f"%RETRY%{name}"
            level = f"level {copy.queue.queue_id + 1}" if copy.queue.topic == SCHEDULE else copy.queue.topic
            found[origin.queue, origin.pass_, origin.offset, level] += 1
        assert found == wanted

    def _told(self, name: str, told: set[tuple[MessageQueue, int, int, str]]) -> None:
        """Every lost, dropped and duplicate offset stands in one range of outcomes, and none besides."""
        rows = self.world.outcomes(name)
        new = rows[self.ranges[name] :]
        self.ranges[name] = len(rows)
        found = [
            (row.range.queue, row.pass_, o, row.outcome) for row in new for o in range(row.range.begin, row.range.end)
        ]
        assert len(found) == len(set(found))
        assert set(found) == told

    def _acks(self, group: Group, ctl: Ctl, calls: Sequence[Call]) -> Acks:
        acks = Acks(self, group, ctl.epoch or 0)
        if group.settings.absorb_duplicates:
            passes = {consumed.range.queue: consumed.pass_ for consumed in ctl.consumed}
            for call in calls:
                acks.hear(call, passes[call.queue])
        return acks

    # --- everybody else ----------------------------------------------------------------------------------------------

    def _moves(self, ctl: Ctl) -> None:
        name = ctl.group or ""
        self.epochs[name] += 1
        assert ctl.epoch == self.epochs[name]
        undone = self.before.pop(name, {})
        for move in ctl.moved:
            place = self.places.get((name, move.queue))
            assert (move.group, move.pass_) == (name, self.epochs[name])
            assert move.from_offset == (place.offset if place else None)
            if ctl.action is Action.RESET:
                assert move.to_offset == self.where_to(move.queue, ctl.parameter("to"), ctl.parameter("value"))
            elif ctl.action is Action.CLONE:
                assert move.to_offset == self.places[ctl.parameter("source"), move.queue].offset
            elif ctl.action is Action.UNDO:
                assert move.to_offset == undone.pop(move.queue, DELETED)
            if place is not None:
                self.before[name][move.queue] = place.offset
            if move.to_offset == DELETED:
                del self.places[name, move.queue]
            else:
                self.places[name, move.queue] = Place(move.to_offset, move.pass_)
        assert ctl.action is not Action.UNDO or not undone, "every queue of the action goes back"

    def where_to(self, queue: MessageQueue, to: str, value: int | None) -> int:
        """By looking at every message (rules 2.3, 13.1)."""
        least, most = self.least(queue), self.world.positions().max_offset(queue)
        if to == "time":
            later = [m.queue_offset for m in self.world.stored(queue) if m.store_timestamp >= (value or 0)]
            return min((offset for offset in later if offset >= least), default=most)
        return {"min": least, "max": most, "offset": value or 0}[to]

    def _delivery(self, ctl: Ctl) -> None:
        """What is due leaves its queue once, in order, never early."""
        leaving: set[tuple[MessageQueue, int]] = set()
        for consumed in ctl.consumed:
            queue = consumed.range.queue
            place = self.places.get((SCHEDULE_GROUP, queue), Place(0, 0))
            assert consumed.range.begin == place.offset
            self.places[SCHEDULE_GROUP, queue] = Place(consumed.range.end, 0)
            leaving |= {(queue, offset) for offset in range(consumed.range.begin, consumed.range.end)}
        copies = self._produced(ctl)
        assert Counter(
            (c.row.provenance.queue, c.row.provenance.offset) for c in copies if c.row.provenance
        ) == Counter(leaving)
        for copy in copies:
            assert copy.row.provenance is not None
            queue, offset = copy.row.provenance.queue, copy.row.provenance.offset
            (waited,) = (m for m in self.world.stored(queue) if m.queue_offset == offset)
            if queue.topic == SCHEDULE:
                due_ms = waited.store_timestamp + 1000 * LEVEL_DELAYS_S[queue.queue_id]
            else:
                due_ms = int(waited.row.properties["TIMER_OUT_MS"])
            if copy.queue.topic != TIMER:
                assert copy.queue.topic == waited.row.properties["REAL_TOPIC"]
                assert copy.queue.queue_id == int(waited.row.properties["REAL_QID"])
                assert due_ms <= self.world.clock(), "never early"
            assert copy.row.reconsume_times == waited.row.reconsume_times

    def _redrive(self, ctl: Ctl) -> None:
        """Each letter is sent once, whoever asks."""
        letters = {(c.range.queue, o) for c in ctl.consumed for o in range(c.range.begin, c.range.end)}
        assert letters.isdisjoint(self.redriven)
        self.redriven |= letters
        copies = self._produced(ctl)
        assert Counter(
            (c.row.provenance.queue, c.row.provenance.offset) for c in copies if c.row.provenance
        ) == Counter(letters)
        assert {c.queue.topic for c in copies} <= {f"%RETRY%{ctl.group}"}
        assert {c.row.reconsume_times for c in copies} <= {0}

    def _produced(self, ctl: Ctl) -> list[Stored]:
        return [
            message
            for segment in ctl.produced
            for message in self.world.stored(segment.queue)
            if segment.base is not None and segment.base <= message.queue_offset < segment.base + segment.count
        ]

    def _positions(self) -> None:
        """Offsets are where the ranges and moves leave them, and nothing else moves one."""
        positions = self.world.positions()
        stand = {(split_id(id_)[1], queue_of(id_)): value for id_, value in positions.prefixed("off/")}
        assert stand == {key: place.offset for key, place in self.places.items()}
        for (_, queue), place in self.places.items():
            assert 0 <= place.offset <= positions.max_offset(queue)


@dataclass
class Acks:
    """The keys of one window of a group that absorbs duplicates."""

    ledger: Ledger
    group: Group
    epoch: int
    new: dict[str, int] = field(default_factory=dict)
    asked: set[tuple[MessageQueue, int]] = field(default_factory=set)

    def _counts(self, key: str, queue: MessageQueue, pass_: int) -> bool:
        """Whether an ack of the key counts: one after the last action on the queue, for retries on the group."""
        since = self.epoch if queue.topic.startswith("%RETRY%") else pass_
        return key in self.new or any(e >= since for e in self.ledger.acked[self.group.settings.name, key])

    def hear(self, call: Call, pass_: int) -> None:
        for offset, (succeeded, _) in zip(call.offsets, call.said, strict=True):
            (message,) = (m for m in self.ledger.world.stored(call.queue) if m.queue_offset == offset)
            key = self.group.key_of(message)
            self.asked.add((call.queue, offset))
            if key is not None:
                assert not self._counts(key, call.queue, pass_), "a key is acked once"
                if succeeded:
                    self.new[key] = self.epoch

    def duplicates(self, queue: MessageQueue, pass_: int, messages: Iterable[Stored]) -> set[int]:
        """Of the messages that pass the filter those that nobody was asked about, as their key was acked by another."""
        if self.group.settings.absorb_duplicates is None:
            return set()
        left = {m.queue_offset: self.group.key_of(m) for m in messages if (queue, m.queue_offset) not in self.asked}
        assert all(key is not None and self._counts(key, queue, pass_) for key in left.values())
        return set(left)

    def remember(self, ledger: Ledger) -> None:
        for key, epoch in self.new.items():
            ledger.acked[self.group.settings.name, key].append(epoch)


# --- the rules, in the plainest way ----------------------------------------------------------------------------------


def at_once(group: GroupSettings, calls: Sequence[Call]) -> tuple[dict[int, Outcome], dict[int, str]]:
    """Concurrent (rules 9.1, 10.2): per offset its outcome, and per failed one where its copy must be."""
    finished: dict[int, Outcome] = {}
    targets: dict[int, str] = {}
    for call in calls:
        for offset, times, (succeeded, level) in zip(call.offsets, call.reconsume_times, call.said, strict=True):
            assert offset not in finished, "asked once in a window"
            most = 16 if group.max_reconsume_times == -1 else group.max_reconsume_times
            if succeeded:
                finished[offset] = Outcome.ACKED
            elif group.broadcasting:
                finished[offset] = Outcome.DROPPED
            elif level < 0 or times >= most or group.retry_queue_nums == 0:
                finished[offset], targets[offset] = Outcome.DEAD, f"%DLQ%{group.name}"
            else:
                finished[offset] = Outcome.RETRIED
                targets[offset] = f"level {min(18, level or 3 + times)}"
    return finished, targets


def in_order(group: GroupSettings, calls: Sequence[Call]) -> tuple[dict[int, Outcome], dict[int, str]]:
    """In order (rules 9.2), for the calls about one queue: what is finished, what of it is dead."""
    finished: dict[int, Outcome] = {}
    kept: dict[int, Outcome] = {}
    most = 2**31 - 1 if group.max_reconsume_times == -1 else group.max_reconsume_times
    for call in calls:
        auto_commit, status = call.in_order or (True, "SUCCESS")
        assert not set(call.offsets) & finished.keys(), "what is finished is not asked about again"
        assert list(call.offsets) == sorted(call.offsets)
        assert all(offset > max([*finished, *kept], default=-1) for offset in call.offsets), "in order"
        batch = dict.fromkeys(call.offsets, Outcome.ACKED)
        if status.startswith("SUSPEND"):
            if any(times < most for times in call.reconsume_times):
                continue  # all of the batch goes back
            batch = dict.fromkeys(call.offsets, Outcome.DEAD)
        elif status == "ROLLBACK" and not auto_commit:
            kept.clear()
            continue
        kept |= batch
        if auto_commit or status == "COMMIT":
            finished |= kept
            kept.clear()
    return finished, {o: f"%DLQ%{group.name}" for o, outcome in finished.items() if outcome is Outcome.DEAD}


def assert_tallies(consumed: Consumed, found: Offsets) -> None:
    """``end - begin`` is the sum of all outcomes, and the hashes say that it is these offsets."""
    assert sum(len(offsets) for offsets in found.values()) == consumed.range.end - consumed.range.begin
    wanted = {o: (len(offsets), sum(map(mixed, offsets)) & _MASK) for o, offsets in found.items() if offsets}
    assert {o: (t.count, t.hash_sum) for o, t in consumed.tallies.items() if t.count} == wanted


def mixed(offset: int) -> int:
    """splitmix64 of one number, as its author writes it."""
    z = offset + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
