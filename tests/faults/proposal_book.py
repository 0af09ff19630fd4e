"""A book of a log, kept beside it: what an audit would find wrong after each commit, worked out in the plainest way.

It knows the rules by their words (``docs/invariants.md``) and nothing of expected positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rmq_store.commit.ctl import Action, Consumed, Ctl, is_born_here
from rmq_store.commit.decide import Decided
from rmq_store.commit.positions import (
    ABSENT,
    Claim,
    Outcome,
    Positions,
    SubVersion,
    arc_id,
    blk_id,
    cutover_id,
    del_id,
    diverged_id,
    grp_id,
    import_id,
    max_id,
    min_id,
    off_id,
    pas_id,
    red_id,
    send_id,
    sub_id,
)
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, retry_topic

INVARIANTS = {
    "overlap": "a range begins where the one before it ended",
    "once": "each part of a request is committed once",
    "operator": "nothing is committed that was planned before an operator's action",
    "moved": "a move begins at the committed offset",
    "undone": "an undo takes a group back to where it was before its last action, and takes no start of its first window away",
    "deleted": "nothing of a deleted group is left, and nothing of it is committed later",
    "redriven": "a dead letter is sent again once",
    "places": "a message gets the offset at the end of its queue, and the end is that of its messages",
    "time": "the store timestamps of a queue never go back",
    "log": "a byte of a broker's log is imported once, and under one name",
    "owner": "what a broker owns is not consumed, delivered or moved here, and after a cut-over nothing of it is imported",
    "left": "what is handed back to a broker has no offset here",
    "lost": "what a group has not consumed is there, or is recorded as lost",
    "subscription": "a window has the newest subscription of its group",
    "key": "a key is acked once in a group that absorbs duplicates",
    "files": "a row is live in one file",
    "gone": "a file that the log names is there",
    "order": "two commits that set a position are ordered by the versions that they were decided on",
    "position": "a position is what the commits made it",
    "dispatch": "a derived table has each commit once",
}

Queues = dict[MessageQueue, int]
_CLAIMS = (Action.CLAIM, Action.RENEW, Action.RELEASE)
_MOVES = (Action.RESET, Action.CLONE, Action.REPLAY, Action.DELETE, Action.UNDO)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a commit did that its row does not say. ``planned``: the positions that its plan has read; ``keys``: those that it
    acked; ``added``, ``removed``: files."""

    planned: Positions
    keys: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(slots=True)
class Book:
    """``offsets``: by group and queue, without those that were deleted; ``lost``: where messages were recorded as lost;
    ``begun``: by group the epoch of its first window; ``observed``: by broker, what its newest import has observed."""

    offsets: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    passes: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    blocked: dict[tuple[str, MessageQueue], str] = field(default_factory=dict)
    lost: set[tuple[str, MessageQueue]] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    last_moves: dict[str, tuple[str, Mapping[MessageQueue, int | None]]] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    deletes: dict[str, int] = field(default_factory=dict)
    subs: dict[str, tuple[int, str]] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)
    ends: Queues = field(default_factory=dict)
    firsts: Queues = field(default_factory=dict)
    archived: Queues = field(default_factory=dict)
    newest_ms: Queues = field(default_factory=dict)
    observed: dict[str, dict[tuple[str, MessageQueue], int]] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)
    continued: dict[str, int] = field(default_factory=dict)
    cut_over: set[str] = field(default_factory=set)
    sends: dict[str, int] = field(default_factory=dict)
    redriven: set[tuple[MessageQueue, int]] = field(default_factory=set)
    redrives: dict[str, int] = field(default_factory=dict)
    claims: dict[str, int] = field(default_factory=dict)
    parts: set[tuple[str, str, str | None, int]] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    writers: dict[str, tuple[int, str]] = field(default_factory=dict)

    def copy(self) -> Book:
        copies = {name: getattr(self, name).copy() for name in self.__slots__}
        copies["observed"] = {name: dict(offsets) for name, offsets in self.observed.items()}
        copies["keys"] = {group: set(keys) for group, keys in self.keys.items()}
        return Book(**copies)

    def enter(self, decided: Decided, facts: Facts, positions: Positions) -> list[str]:
        """The invariants that do not hold after the commit, each with what is wrong. ``positions``: after it."""
        ctl = decided.ctl
        wrong = [*self._entered(ctl, facts), *self._order(decided), *self._queues(ctl)]
        return [*wrong, *self._whole(), *self._differing(positions)]

    def _entered(self, ctl: Ctl, facts: Facts) -> Iterator[str]:
        part = (str(ctl.action), ctl.request_id, ctl.group, ctl.request_part)
        if ctl.action not in _CLAIMS and part in self.parts:
            yield f"once: {part}"
        self.parts.add(part)
        if not self.files.issuperset(facts.removed):
            yield f"files: {ctl.commit_id} removes {sorted(set(facts.removed) - self.files)}"
        self.files -= set(facts.removed)
        self.files |= set(facts.added)
        match ctl.action:
            case Action.CLAIM | Action.RENEW | Action.RELEASE:
                for app_id, number in ctl.parameter("claims").items():
                    self.claims[app_id] = max(number, self.claims.get(app_id, 0))
            case Action.CONSUME | Action.DELIVER:
                yield from self._window(ctl, facts)
            case Action.REDRIVE:
                yield from self._redrive(ctl)
            case Action.IMPORT:
                yield from self._import(ctl, facts)
            case Action.CUTOVER | Action.HAND_BACK:
                yield from self._owner(ctl, facts)
            case Action.SEND:
                for topic in ctl.parameter("topics"):
                    self.sends[topic] = self.sends.get(topic, 0) + 1
            case Action.RETENTION:
                yield from self._retention(ctl)
            case _ if ctl.action in _MOVES:
                yield from self._moves(ctl, facts)
            case _:
                pass

    # --- offsets ---

    def _window(self, ctl: Ctl, facts: Facts) -> Iterator[str]:
        group = ctl.group or ""
        if (ctl.epoch or 0) != self.epochs.get(group, 0):
            yield f"operator: a commit of epoch {ctl.epoch} in epoch {self.epochs.get(group, 0)} of {group}"
        self.epochs.setdefault(group, 0)
        if ctl.action is Action.CONSUME:
            self.begun.setdefault(group, self.epochs[group])
        for consumed in ctl.consumed:
            yield from self._range(group, consumed)
            if ctl.action is Action.CONSUME:
                self.passes[group, consumed.range.queue] = consumed.pass_
        waits = {one.range.queue for one in ctl.blocked}
        for queue in {consumed.range.queue for consumed in ctl.consumed}:
            self.blocked.pop((group, queue), None)
            if queue in waits:
                self.blocked[group, queue] = ctl.commit_id
        if ctl.subscription is not None:
            yield from self._subscription(group, ctl.subscription_version or 0, ctl.subscription)
        acked = self.keys.setdefault(group, set())
        if twice := acked.intersection(facts.keys):
            yield f"key: {sorted(twice)}"
        acked.update(facts.keys)

    def _range(self, group: str, consumed: Consumed) -> Iterator[str]:
        queue, key = consumed.range.queue, (group, consumed.range.queue)
        stood = self.offsets.get(key)
        if (stood is None and consumed.start_rule == "stored") or (stood not in (None, consumed.range.begin)):
            yield f"overlap: {group} has {stood} in {queue}, the range is {consumed.range}"
        self.offsets[key] = consumed.range.end
        if consumed.tally(Outcome.LOST).count:
            self.lost.add(key)
        broker = queue.broker_name
        of_broker = not is_born_here(broker) and (queue.topic in (SCHEDULE_TOPIC, retry_topic(group)))
        if of_broker and broker not in self.cut_over:
            yield f"owner: {queue} belongs to its broker"

    def _subscription(self, group: str, version: int, text: str) -> Iterator[str]:
        before = self.subs.get(group, (0, text))
        if version < before[0] or (version == before[0] and text != before[1]):
            yield f"subscription: {version} {text} after {before}"
        self.subs[group] = (version, text)

    def _moves(self, ctl: Ctl, facts: Facts) -> Iterator[str]:
        group = ctl.group or ""
        if ctl.action is Action.DELETE:
            self.deletes[group] = self.epochs.get(group, 0) + 1
            self.subs.pop(group, None)
            self.begun.pop(group, None)
        if ctl.action is Action.UNDO:
            undone, before = self.last_moves.get(group, ("", {}))
            to = {move.queue: None if move.to_offset == ABSENT else move.to_offset for move in ctl.moved}
            if (ctl.parameter("undoes_commit"), to) != (undone, before):
                yield f"undone: {ctl.parameter('undoes')} of {group} to {to}, its last action moved it from {before}"
            if None in to.values() and self.begun.get(group) == self.epochs.get(group):
                yield f"undone: {group} has no start in {to}, and its first window came after its last action"
        yield from self._moved(ctl, facts, {group})
        self.last_moves[group] = ctl.commit_id, {move.queue: move.from_offset for move in ctl.moved}
        if ctl.action is Action.DELETE:
            for key in [key for key in self.blocked if key[0] == group]:
                del self.blocked[key]
            for _, queue in [key for key in self.offsets if key[0] == group]:
                if queue.topic != retry_topic(group):
                    yield f"deleted: {group} has an offset in {queue}"

    def _moved(self, ctl: Ctl, facts: Facts, groups: set[str]) -> Iterator[str]:
        for group in groups | {move.group for move in ctl.moved}:
            self.epochs[group] = self.epochs.get(group, 0) + 1
            self.keys.pop(group, None)
            self.last_moves.pop(group, None)
        for move in ctl.moved:
            key = move.group, move.queue
            if move.from_offset != self.offsets.get(key):
                yield f"moved: {key} from {move.from_offset}, it is {self.offsets.get(key)}"
            self.offsets.pop(key, None)
            if move.to_offset != ABSENT:
                self.offsets[key] = move.to_offset
            self.passes[key] = move.pass_
            if move.to_offset < facts.planned.min_offset(move.queue):  # the next window stops there, or records it
                self.lost.add(key)

    def _redrive(self, ctl: Ctl) -> Iterator[str]:
        group = ctl.group or ""
        if (ctl.epoch or 0) != self.epochs.get(group, 0):
            yield f"operator: a redrive of epoch {ctl.epoch} in epoch {self.epochs.get(group, 0)}"
        self.redrives[group] = self.redrives.get(group, 0) + 1
        sent = {(c.range.queue, o) for c in ctl.consumed for o in range(c.range.begin, c.range.end)}
        if twice := sent & self.redriven:
            yield f"redriven: {sorted(twice)}"
        self.redriven |= sent

    # --- brokers ---

    def _import(self, ctl: Ctl, facts: Facts) -> Iterator[str]:
        name, (begin, end) = ctl.parameter("broker_name"), ctl.parameter("range")
        continued = ctl.parameter("continues")
        if name in self.cut_over or name in self.continued:
            yield f"owner: an import of {name} after its cut-over, or under its old name"
        if continued:
            old = continued["broker_name"]
            if old in self.cut_over or old in self.continued or name in self.imports:
                yield f"owner: {name} continues {old}"
            self.continued[old] = begin = continued["end"]
            for topic, queue_id, cut in continued["cuts"]:
                queue = MessageQueue(topic, name, queue_id)
                self.ends[queue] = cut
                if cut:
                    self.firsts[queue] = cut
            yield from self._moved(ctl, facts, set())
        elif begin != self.imports.get(name, 0):
            yield f"log: [{begin}, {end}) of {name}, which is imported up to {self.imports.get(name, 0)}"
        self.imports[name] = end
        self.observed[name] = {(one.group, one.queue): one.offset for one in ctl.observed}

    def _owner(self, ctl: Ctl, facts: Facts) -> Iterator[str]:
        name, closes = ctl.parameter("broker_name"), ctl.action is Action.CUTOVER
        if closes == (name in self.cut_over):
            yield f"owner: a {ctl.action} of {name}"
        if closes and name in self.continued:
            yield f"owner: a cut-over of {name} without the name that continues it"
        self.cut_over ^= {name}
        observed = self.observed.setdefault(name, {})
        for move in ctl.moved:
            if closes and move.to_offset != observed.get((move.group, move.queue)):
                yield f"owner: {move} is not what the broker has, {observed}"
            if not closes and move.from_offset is not None:
                observed[move.group, move.queue] = move.from_offset
        groups = {move.group for move in ctl.moved}
        yield from self._moved(ctl, facts, set())
        for group, queue in self.offsets:
            if not closes and group in groups and queue.broker_name == name and group not in self.deletes:
                yield f"left: {group} in {queue}"

    # --- queues ---

    def _queues(self, ctl: Ctl) -> Iterator[str]:
        if ctl.action is Action.COMPACT:
            return
        for segment in ctl.produced:
            queue = segment.queue
            if ctl.action is Action.IMPORT and queue not in self.ends and segment.base:
                self.firsts[queue] = self.ends[queue] = segment.base  # what the broker had removed before
            if segment.base != self.ends.get(queue, 0):
                yield f"places: {segment.base} of {queue}, which ends at {self.ends.get(queue, 0)}"
            self.ends[queue] = (segment.base or 0) + segment.count
            if ctl.action is not Action.IMPORT:
                if ctl.store_timestamp < self.newest_ms.get(queue, 0):
                    yield f"time: {ctl.store_timestamp} in {queue} after {self.newest_ms[queue]}"
                self.newest_ms[queue] = ctl.store_timestamp

    def _retention(self, ctl: Ctl) -> Iterator[str]:
        recorded = ctl.parameter("lost")
        for app_id, (begin, end) in ctl.parameter("removed").items():
            queue = next(queue for queue in self.ends if min_id(queue) == app_id)
            if begin != self.firsts.get(queue, 0):
                yield f"lost: [{begin}, {end}) removed from {queue}, which begins at {self.firsts.get(queue, 0)}"
            self.firsts[queue] = end
            if app_id.replace("min/", "arc/", 1) in ctl.parameter("archived"):
                self.archived[queue] = end
            for group, behind in [(g, offset) for (g, q), offset in self.offsets.items() if q == queue]:
                if max(behind, begin) >= end or replayed_group(group):
                    continue
                if recorded.get(group, {}).get(app_id) != [max(behind, begin), end]:
                    yield f"lost: {group} at {behind} of {queue}, recorded: {recorded}"
                self.lost.add((group, queue))

    def _whole(self) -> Iterator[str]:
        for (group, queue), offset in self.offsets.items():
            allowed = (group, queue) in self.lost or replayed_group(group)
            if offset < self.firsts.get(queue, 0) and not allowed:
                yield f"lost: {group} at {offset} of {queue}, which begins at {self.firsts[queue]}"
                self.lost.add((group, queue))

    # --- the log ---

    def _order(self, decided: Decided) -> Iterator[str]:
        mine = decided.ctl.read_version, decided.ctl.commit_id
        for app_id in decided.positions:
            if self.writers.get(app_id, (-1, "")) >= mine:
                yield f"order: {app_id} was set by {self.writers[app_id]}, and then by {mine}"
            self.writers[app_id] = mine

    def _differing(self, positions: Positions) -> Iterator[str]:
        expected = self.positions()
        for app_id in sorted(expected.keys() | {app_id for app_id, _ in positions.items()}):
            value, stored = expected.get(app_id), positions.get(app_id)
            if app_id.startswith("own/"):
                stored = Claim.of(stored).number
            if app_id.startswith("sub/"):
                recorded = SubVersion.of(stored)
                stored = recorded.version if recorded else None
            if app_id.startswith("blk/"):
                value, stored = int(value is not None), int(stored is not None)
            exact = app_id.startswith("off/")
            if (value != stored) if exact else ((value or 0) != (stored or 0)):
                yield f"position: {app_id} is {stored}, by the commits {value}"

    def positions(self) -> dict[str, int]:
        """The positions as the commits have made them; of claims the number, of a subscription its version."""
        expected = {off_id(*key): offset for key, offset in self.offsets.items()}
        expected |= {pas_id(*key): pass_ for key, pass_ in self.passes.items()}
        expected |= {blk_id(*key): 1 for key in self.blocked}
        expected |= {grp_id(group): epoch for group, epoch in self.epochs.items()}
        expected |= {del_id(group): epoch for group, epoch in self.deletes.items()}
        expected |= {sub_id(group): version for group, (version, _) in self.subs.items()}
        expected |= {max_id(queue): end for queue, end in self.ends.items()}
        expected |= {min_id(queue): first for queue, first in self.firsts.items()}
        expected |= {arc_id(queue): end for queue, end in self.archived.items()}
        expected |= {import_id(name): end for name, end in self.imports.items()}
        expected |= {diverged_id(name): end for name, end in self.continued.items()}
        expected |= {cutover_id(name): 1 for name in self.cut_over}
        expected |= {send_id(topic): sends for topic, sends in self.sends.items()}
        expected |= {red_id(group): redrives for group, redrives in self.redrives.items()}
        return expected | self.claims
