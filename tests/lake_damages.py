"""Every sort of damage that ``audit`` knows: how to do it to a group, and what the audit must say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmq_store.commit.ctl import Action, Produced, canonical_json
from rmq_store.commit.positions import ABSENT, Outcome, Tally, max_id, min_id, off_id, tally
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.lake_fixtures import Bench, message

QUEUE = MessageQueue("Orders", "broker-a", 0)

Problem = tuple[str, int | None, int | None]
Damage = Callable[[Bench, str], object]


def _two(first: tuple[int, int], second: tuple[int, int], rule: str = "stored") -> Damage:
    def damage(hand: Bench, group: str) -> None:
        hand.window(group, QUEUE, *first, start_rule="first")
        hand.window(group, QUEUE, *second, start_rule=rule)

    return damage


def _window(**values: Any) -> Damage:
    return lambda hand, group: hand.window(group, QUEUE, 0, 10, start_rule="first", **values)


def _moved(hand: Bench, group: str) -> None:
    hand.window(group, QUEUE, 0, 5, start_rule="first")
    hand.move(group, QUEUE, 7, 2)


def _position(value: int, *, after: int | None) -> Damage:
    """A position that somebody wrote, after a window up to ``after``."""

    def damage(hand: Bench, group: str) -> None:
        if after is not None:
            hand.window(group, QUEUE, 0, after, start_rule="first")
        hand.commit(hand.ctl(Action.RELEASE), {off_id(group, QUEUE): value})

    return damage


def _delivered(end: int, copies: list[int]) -> Damage:
    def damage(hand: Bench, group: str) -> None:
        hand.window(group, QUEUE, 0, 10, start_rule="first", retried=[1, 2, 3])
        hand.deliver(group, 2, 0, end, copies=copies)

    return damage


def _redriven(*redrives: tuple[tuple[int, int], list[int]]) -> Damage:
    """Six dead letters, then redrives of a range of them with the copies of some."""

    def damage(hand: Bench, group: str) -> None:
        hand.window(group, QUEUE, 0, 10, start_rule="first", dead=[1, 2, 3, 4, 5, 6])
        for range_, copies in redrives:
            hand.redrive(group, [range_], copies=copies)

    return damage


def _deleted(*after: dict[str, Any], position: int = ABSENT) -> Damage:
    """A window up to 5, the group's delete, and windows after it."""

    def damage(hand: Bench, group: str) -> None:
        hand.window(group, QUEUE, 0, 5, start_rule="first")
        hand.delete(group, QUEUE, 5, position=position)
        for window in after:
            hand.window(group, QUEUE, **window)

    return damage


def _file_taken_out(hand: Bench, group: str) -> None:
    """Three messages in the group's lane, in a file that the table does not hold."""
    lane = MessageQueue(SCHEDULE_TOPIC, hand.shard.lane(group), 2)
    ctl = hand.ctl(Action.SEND, produced=(Produced(lane, 0, 3, 0, "kind=msg/store_day=2026-11-20/gone.parquet"),))
    hand.commit(ctl, {max_id(lane): 3})


def _removed(*ranges: tuple[int, int], position: int, messages: int = 10) -> Damage:
    """Removals of retention in the group's lane, and the first readable offset after them."""

    def damage(hand: Bench, group: str) -> None:
        lane = MessageQueue(SCHEDULE_TOPIC, hand.shard.lane(group), 2)
        _store(hand, lane, messages)
        for range_ in ranges:
            _remove(hand, lane, range_, position)

    return damage


def _remove(hand: Bench, queue: MessageQueue, range_: tuple[int, int], position: int) -> None:
    parameters = canonical_json({"removed": {min_id(queue): list(range_)}, "lost": {}})
    hand.commit(hand.ctl(Action.RETENTION, parameters=parameters), {min_id(queue): position})


def _removed_later_messages(hand: Bench, group: str) -> None:
    """They were stored after the removal."""
    lane = MessageQueue(SCHEDULE_TOPIC, hand.shard.lane(group), 2)
    _store(hand, lane, 3)
    _remove(hand, lane, (0, 7), 7)
    _store(hand, lane, 10, first=3)
    hand.commit(hand.ctl(Action.RELEASE), {min_id(lane): 7})  # the import made it 3


def _removed_unread(hand: Bench, group: str) -> None:
    """Between two windows of a group that needs them, and it reads on. Later, where all groups are past them, more."""
    queue = MessageQueue(group, hand.shard.name, 0)
    _store(hand, queue, 10)
    hand.window(group, queue, 0, 2, start_rule="first")
    hand.window("another-group", queue, 0, 10, start_rule="first")
    _remove(hand, queue, (0, 3), 3)
    hand.window(group, queue, 2, 10)
    _remove(hand, queue, (3, 6), 6)


def _begun_before_the_first(hand: Bench, group: str) -> None:
    """A group begins after a removal, and is before the first message."""
    queue = MessageQueue(group, hand.shard.name, 0)
    _store(hand, queue, 10)
    _remove(hand, queue, (0, 7), 7)
    hand.window(group, queue, 0, 4, start_rule="first")


def _store(hand: Bench, queue: MessageQueue, end: int, first: int = 0) -> None:
    now_ms = hand.host.now_ms()
    hand.import_messages({queue: [message(queue, offset, now_ms - 100 + offset) for offset in range(first, end)]})


def _acked(begin: int, end: int) -> dict[Outcome, Tally]:
    return {Outcome.ACKED: tally(range(begin, end))}


_KEYS_DIFFER: Problem = ("acked keys differ from their rows", None, None)

DAMAGES: dict[str, tuple[Damage, set[Problem]]] = {
    "a gap": (_two((0, 5), (7, 10)), {("gap", 5, 7)}),
    "a gap that claims to end at the first message": (_two((0, 5), (7, 10), "first_offset"), {("gap", 5, 7)}),
    "an overlap": (_two((0, 5), (3, 10)), {("overlap", 3, 5)}),
    "a range inside the one before": (_two((0, 8), (3, 5)), {("overlap", 3, 5)}),
    "a start that nobody recorded": (
        lambda hand, group: hand.window(group, QUEUE, 4, 10),
        {("start not recorded", 4, 10)},
    ),
    "a move from where the group did not stand": (_moved, {("moved from elsewhere", 5, 7)}),
    "a position that was changed": (_position(3, after=5), {("position differs", 5, 3)}),
    "a position that was deleted": (_position(-1, after=5), {("position differs", 5, None)}),
    "a position without a history": (_position(3, after=None), {("position differs", None, 3)}),
    "a window that moved the position elsewhere": (_window(position=9), {("position differs", 10, 9)}),
    "too few answers": (_window(tallies=_acked(0, 9)), {("counts do not add up", 0, 10)}),
    "too many answers": (_window(tallies=_acked(0, 11)), {("counts do not add up", 0, 10)}),
    "as many answers, of other offsets": (_window(tallies=_acked(1, 11)), {("hash sums do not add up", 0, 10)}),
    "a retry whose row is not there": (
        _window(retried=[3, 4], retried_rows=[3]),
        {("retried differs from its rows", 0, 10)},
    ),
    "a retry of another offset": (
        _window(retried=[3], retried_rows=[4]),
        {("retried differs from its rows", 0, 10)},
    ),
    "a dead letter that is not there": (_window(dead=[3], dead_rows=[]), {("dead differs from its rows", 0, 10)}),
    "a dead letter that nobody recorded": (_window(dead_rows=[3]), {("dead differs from its rows", 0, 10)}),
    "a lost range that is shorter": (
        _window(lost=[(2, 5)], lost_rows=[(2, 4)]),
        {("lost differs from its rows", 0, 10)},
    ),
    "a lost range elsewhere": (
        _window(lost=[(2, 4)], lost_rows=[(5, 7)]),
        {("lost differs from its rows", 0, 10)},
    ),
    "a row outside its range": (
        _window(retried=[3], retried_rows=[12]),
        {("retried differs from its rows", 0, 10), ("retried outside its range", 12, 13)},
    ),
    "a lost range that leaves its range": (
        _window(lost=[(8, 10)], lost_rows=[(8, 12)]),
        {("lost differs from its rows", 0, 10), ("lost outside its range", 8, 12)},
    ),
    "a row twice": (
        _window(retried=[3, 4], retried_rows=[3, 3]),
        {("retried differs from its rows", 0, 10), ("retried twice", 3, 4)},
    ),
    "a message both retried and lost": (
        _window(retried=[3], lost=[(6, 8)], lost_rows=[(3, 5)]),
        {("lost differs from its rows", 0, 10), ("lost twice", 3, 4)},
    ),
    "an acked key without a row": (_window(keys=["A", "B"], key_rows=["A"]), {_KEYS_DIFFER}),
    "acked keys without any row": (_window(keys=["A", "B"]), {_KEYS_DIFFER}),
    "an acked key with another row": (_window(keys=["A", "B"], key_rows=["A", "C"]), {_KEYS_DIFFER}),
    "a row of a key that was not acked": (_window(keys=[], key_rows=["A"]), {_KEYS_DIFFER}),
    "acked keys with rows of another group": (
        _window(keys=["A", "B"], key_rows=["A", "B"], key_group="other"),
        {_KEYS_DIFFER},
    ),
    "acked keys with rows of another epoch": (
        _window(keys=["A", "B"], key_rows=["A", "B"], key_epoch=1),
        {_KEYS_DIFFER},
    ),
    "a copy that stands in no queue": (_window(retried=[3], queued=False), {("copy in no queue", 3, 4)}),
    "a due retry that was not delivered": (
        _delivered(2, [0]),
        {("delivered differs from its rows", 0, 2), ("retry not delivered", 2, 3)},
    ),
    "a retry that was delivered twice": (
        _delivered(2, [0, 1, 1]),
        {("delivered differs from its rows", 0, 2), ("delivered twice", 1, 2), ("retry delivered twice", 2, 3)},
    ),
    "a retry that was delivered before its turn": (
        _delivered(1, [0, 2]),
        {
            ("delivered differs from its rows", 0, 1),
            ("delivered outside its range", 2, 3),
            ("retry delivered early", 3, 4),
        },
    ),
    "a window that went on from a void offset": (
        _deleted({"begin": 5, "end": 10}),
        {("start not recorded", 5, 10), ("window of a deleted group", 5, 10)},
    ),
    "a window that was planned before its group was deleted": (
        _deleted({"begin": 0, "end": 10, "start_rule": "first"}),
        {("window of a deleted group", 0, 10)},
    ),
    "an offset that outlived its group": (_deleted(position=5), {("position differs", None, 5)}),
    "a file that another tool took out of the table": (_file_taken_out, {("segment file not live", 0, 3)}),
    "messages that nobody removed": (_removed((0, 3), (3, 6), position=8), {("first offset differs", 6, 8)}),
    "a removal that began elsewhere": (_removed((0, 3), (4, 6), position=6), {("first offset differs", 3, 4)}),
    "a removal of messages that came later": (_removed_later_messages, {("first offset differs", 3, 7)}),
    "a removal of what the group had to read": (_removed_unread, {("first offset differs", 2, 3)}),
    "a group that begins before the first message": (_begun_before_the_first, {("first offset differs", 4, 7)}),
    "a letter that was sent again by two redrives": (
        _redriven(((0, 3), [0, 1, 2]), ((2, 5), [2, 3, 4])),
        {("redriven again", 2, 3)},
    ),
    "a letter that was sent again for another": (
        _redriven(((0, 3), [0, 1, 3])),
        {("redriven differs from its rows", 0, 3), ("redriven outside its range", 3, 4)},
    ),
    "a letter that was not sent again after all": (
        _redriven(((0, 3), [0, 1])),
        {("redriven differs from its rows", 0, 3)},
    ),
    "a letter that was sent again twice at once": (
        _redriven(((0, 2), [0, 1, 1])),
        {("redriven differs from its rows", 0, 2), ("redriven twice", 1, 2)},
    ),
}
GROUPS = {name: name.replace(" ", "-").replace(",", "") for name in DAMAGES}


def damaged_store(path: Path) -> LakeStore:
    """A store in which every damage has happened to a group of its own, and another shard where nothing has."""
    store, _ = LakeStore.init(Root.parse(str(path)))
    damaged, sound = (_ten_messages(Bench(store.create_shard(shard))) for shard in ("broker-a", "broker-b"))
    for name, (damage, _) in DAMAGES.items():
        damage(damaged, GROUPS[name])
    sound.window(GROUPS["a gap"], QUEUE, 0, 10, start_rule="first")
    return store


def _ten_messages(bench: Bench) -> Bench:
    _store(bench, QUEUE, 10)
    return bench
