"""Delayed messages that do not say where they go: no checksum of a broker covers their properties. They stop their own queue
only, the error names them, and an operator passes over them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Ctl, Produced, Proposal
from rmq_store.errors import BadData, RmqError, StaleAttempt, WrongUse
from rmq_store.lake.audit.full import full
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.message.message import MessageQueue
from rmq_store.utils.times import parse_time
from tests.contract.engines import LakeWorld, story
from tests.contract.rmq import ALL_DUE, Rmq
from tests.contract.test_import_store import store_of
from tests.contract.world import (
    ANA,
    BEN,
    BILLING,
    DAY,
    LOCAL,
    NOON,
    SHARD,
    World,
    bodies,
    fail,
    import_parameters,
    orders,
    said,
    several,
)
from tests.oracle.memory.rows import MessageRow

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
ALL_DUE_MS = parse_time(ALL_DUE)
PLACE = {"REAL_TOPIC": "Later", "REAL_QID": "0"}
TARGET = MessageQueue("Later", LOCAL, 0)

DAMAGES: list[tuple[dict[str, str | None], str]] = [
    ({"REAL_TOPIC": None}, "it has no property REAL_TOPIC"),
    ({"REAL_QID": None}, "it has no property REAL_QID"),
    ({"REAL_TOPIC": ""}, "its REAL_TOPIC '' is blank"),
    ({"REAL_TOPIC": "La\x01er"}, r"its REAL_TOPIC 'La\\x01er' has characters other than letters"),
    ({"REAL_TOPIC": "x" * 128}, "its REAL_TOPIC .x+ is too long"),
    ({"REAL_TOPIC": SCHEDULE}, f"its REAL_TOPIC {SCHEDULE} holds delayed messages"),
    ({"REAL_TOPIC": "rmq_sys_wheel_timer"}, "its REAL_TOPIC rmq_sys_wheel_timer holds delayed messages"),
    ({"REAL_QID": "p"}, "its REAL_QID is 'p', it must be a whole number from 0 to 2147483647"),
    ({"REAL_QID": ""}, "its REAL_QID is ''"),
    ({"REAL_QID": "-3"}, "its REAL_QID is '-3'"),
    ({"REAL_QID": "2147483648"}, "its REAL_QID is '2147483648'"),
]


def level_queue(level: int) -> MessageQueue:
    """Of the broker."""
    return MessageQueue(SCHEDULE, SHARD, level - 1)


def delayed(number: int, **damage: str | None) -> MessageRow:
    properties = {name: text for name, text in (PLACE | damage).items() if text is not None}
    row = said(number)
    return replace(row, properties={**row.properties, **properties})


def delivered_bodies(world: World) -> list[bytes]:
    return sorted(body or b"" for body in bodies(world.stored(TARGET)))


def pass_over(world: World, queue: MessageQueue, offset: int, **more: Any) -> Any:
    usual = {"group": SCHEDULE_GROUP, "topic": queue.topic, "queues": (queue,), "request_id": f"{DAY}-pass"}
    return world.reset_to(ResetTo.OFFSET, offset, **(usual | more))


@story
@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_message_that_does_not_say_where_it_goes_stops_its_own_queue_only(
    world: World, damage: dict[str, str | None], reason: str
) -> None:
    world.fill(orders(0), several(1, first=90))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.fill(level_queue(3), [delayed(0), delayed(1, **damage), delayed(2)])
    world.fill(level_queue(4), [delayed(3), delayed(4)])
    world.cut_over()
    world.clock.advance(10_000)
    first = world.deliver(f"{DAY}-d1")
    assert (first.status, first.delivered, first.more) == ("committed", 4, True)
    assert delivered_bodies(world) == [b"0", b"3", b"4"]
    assert bodies(world.retries()) == [b"90"]
    assert world.offset(level_queue(3), SCHEDULE_GROUP) == 1
    before = world.positions().offsets_of(SCHEDULE_GROUP)
    with pytest.raises(BadData, match=f"offset 1 of {level_queue(3).label} cannot be delivered: {reason}") as raised:
        world.deliver(f"{DAY}-d1-part-2")
    assert f"rmq reset --group {SCHEDULE_GROUP} --topic {SCHEDULE} --queue {SHARD}:2 --to-offset 2" in str(raised.value)
    assert world.positions().offsets_of(SCHEDULE_GROUP) == before
    again = world.deliver(f"{DAY}-d1")
    assert (again.status, again.delivered, again.more) == ("already_committed", 4, True)
    report = pass_over(world, level_queue(3), 2)
    assert [(move.queue, move.from_offset, move.to_offset) for move in report.moves] == [(level_queue(3), 1, 2)]
    rest = world.deliver(f"{DAY}-d1-part-2")
    assert (rest.status, rest.delivered, rest.more) == ("committed", 1, False)
    assert bodies(world.stored(TARGET))[-1:] == [b"2"]
    assert world.deliver(f"{DAY}-d2").status == "empty"
    move = world.history(SCHEDULE_GROUP)[-2]
    assert (move.action, move.actor) == ("reset", "ana")


@story
def test_what_waits_behind_such_a_message_takes_none_of_the_cap(world: World) -> None:
    """The oldest messages come first: those that cannot be delivered would be chosen again and again."""
    world.fill(level_queue(1), [delayed(n, REAL_QID="p") for n in range(9)])
    world.fill(level_queue(2), [delayed(10 + n) for n in range(5)])
    world.fill(level_queue(3), [delayed(20), delayed(21, REAL_TOPIC="")])
    world.cut_over()
    assert world.deliver(f"{DAY}-d1", cap=4).delivered == 4
    assert world.deliver(f"{DAY}-d2", cap=4).delivered == 2
    with pytest.raises(
        BadData, match=f"offset 0 of {level_queue(1).label} .*offset 1 of {level_queue(3).label} cannot"
    ):
        world.deliver(f"{DAY}-d3", cap=4)
    assert delivered_bodies(world) == [b"10", b"11", b"12", b"13", b"14", b"20"]


@story
def test_a_slot_of_the_timer_waits_at_a_message_without_its_time(world: World) -> None:
    """A store writes such a message whole: its file has been changed since."""
    slot = MessageQueue("rmq_sys_wheel_timer", f"{LOCAL}~", 600)
    rows = [delayed(0, TIMER_OUT_MS=str(NOON - 1000)), delayed(1, TIMER_OUT_MS="soon")]
    file = world.stage(commit_id := world.host.new_commit_id(), slot, rows)
    made = Produced(slot, 0, 2, 0, file.path, deliver_at=NOON)
    facts = import_parameters("by hand")
    ctl = Ctl(commit_id, Action.IMPORT, ANA, request_id=f"{DAY}-slot", parameters=facts, produced=(made,))
    world.commit(Proposal(ctl, {}, {}, (file,)))
    world.fill(level_queue(2), [delayed(2)])
    world.cut_over()
    assert world.deliver(f"{DAY}-d1").delivered == 2
    with pytest.raises(
        BadData, match=r"offset 1 of .* cannot be delivered: its TIMER_OUT_MS is 'soon'.*restore the store"
    ):
        world.deliver(f"{DAY}-d2")
    with pytest.raises(WrongUse, match="is no delay level of a broker that is cut over"):
        pass_over(world, slot, 2)


@story
def test_only_levels_of_a_broker_that_is_cut_over_are_passed_over_and_only_forwards(world: World) -> None:
    world.fill(orders(0), several(1, first=90))
    world.consume(BILLING, f"{DAY}-1", fail)
    queue = level_queue(3)
    world.fill(queue, [delayed(0), delayed(1, REAL_QID="p"), delayed(2)])
    refused = "is no delay level of a broker that is cut over"
    with pytest.raises(WrongUse, match=refused):
        pass_over(world, queue, 2)
    world.cut_over()
    with pytest.raises(WrongUse, match=refused):
        pass_over(world, world.lane(3)[0].queue, 1)
    world.deliver(f"{DAY}-d1")
    for offset in (0, 1):
        with pytest.raises(WrongUse, match="is delivered up to offset 1: what is before it is not delivered again"):
            pass_over(world, queue, offset)
    with pytest.raises(WrongUse, match="not in consume queue range"):
        pass_over(world, queue, 4)
    with pytest.raises(WrongUse, match="name the queue"):
        pass_over(world, queue, 2, queues=())
    with pytest.raises(WrongUse, match="no group reads it"):
        world.reset_to(ResetTo.OFFSET, 2, topic=SCHEDULE, queues=(queue,))
    with pytest.raises(WrongUse, match="no group reads it"):
        world.reset_to(ResetTo.MAX, group=SCHEDULE_GROUP, topic=SCHEDULE, queues=(queue,))
    with pytest.raises(WrongUse, match="needs a reason"):
        pass_over(world, queue, 2, reason="")


@story
def test_a_delivery_that_was_running_cannot_commit_after_the_reset(world: World) -> None:
    queue = level_queue(3)
    world.fill(queue, [delayed(0), delayed(1)])
    world.cut_over()
    with world.at_step("3.staged", lambda: pass_over(world, queue, 1, actor=BEN)), pytest.raises(StaleAttempt):
        world.deliver(f"{DAY}-d1")
    assert world.deliver(f"{DAY}-d2").delivered == 1
    assert bodies(world.stored(TARGET)) == [b"1"]


def test_the_audit_has_nothing_to_say_of_it(tmp_path: Path) -> None:
    world = LakeWorld(tmp_path)
    world.fill(level_queue(3), [delayed(0), delayed(1, REAL_QID="p"), delayed(2)])
    world.cut_over()
    world.deliver(f"{DAY}-d1")
    pass_over(world, level_queue(3), 2)
    assert world.deliver(f"{DAY}-d2").delivered == 1
    assert full(world.store, LocalEngine(world.host)).findings == []


@pytest.fixture
def damaged(rmq: Rmq) -> Rmq:
    """A broker that is cut over, with a damaged message in a delay level."""

    def make() -> None:
        rmq("init")
        level = {"topic": SCHEDULE, "queue_id": 2}
        numbers = {0: PLACE, 1: {"SEAL_TOPIC": "Later", "REAL_QID": "0"}, 2: PLACE}
        values = [
            level | {"queue_offset": n, "properties": place | {"UNIQ_KEY": f"k{n}", "DELAY": "3"}}
            for n, place in numbers.items()
        ]
        other = {"topic": SCHEDULE, "queue_id": 3, "queue_offset": 0}
        values.append(other | {"properties": PLACE | {"UNIQ_KEY": "k3", "DELAY": "4"}})
        store_of(rmq.folder / "broker", *values)
        rmq.json("import-store", "broker", "--broker", "broker-a")
        rmq.json("cutover", "--broker", "broker-a", "--reason", "moved")

    rmq.once("a damaged delayed message", make)
    return rmq


def test_the_command_is_an_error_that_says_what_to_do_and_that_works(damaged: Rmq) -> None:
    answer = damaged("deliver", "--now", ALL_DUE, "--json")
    document = answer.json()
    assert (answer.exit_code, document["status"], document["error"]) == (1, "error", "BadData")
    assert (document["delivered"], document["failed"]) == (2, 1)
    assert (
        f"offset 1 of {level_queue(3).label} cannot be delivered: it has no property REAL_TOPIC" in document["message"]
    )
    shown = re.search(r"'rmq (print [^']*)'", document["message"])
    assert shown is not None
    (message,) = damaged.json(*shlex.split(shown[1]))["messages"]
    assert (message["queue_offset"], message["unique_key"]) == (1, "k1")
    command = re.search(r"rmq (reset .*) --reason \.\.\.", document["message"])
    assert command is not None
    moved = damaged.json(*shlex.split(command[1]), "--reason", "its topic is not known", "--dry-run")
    assert (moved["status"], moved["messages"]) == ("dry_run", -1)
    damaged.json(*shlex.split(command[1]), "--reason", "its topic is not known")
    assert damaged.json("deliver", "--now", ALL_DUE)["delivered"] == 1
    assert damaged.json("audit", "--full")["audit"] == []
    (row,) = damaged.json("sql", "SELECT reason FROM offset_history WHERE action = 'reset'")
    assert row == {"reason": "its topic is not known"}


def test_a_reset_says_what_it_passes_over_in_a_level_that_has_no_offset_yet(rmq: Rmq) -> None:
    rmq("init")
    level = {"topic": SCHEDULE, "queue_id": 2}
    values = [level | {"queue_offset": n, "properties": {"UNIQ_KEY": f"k{n}", "DELAY": "3"}} for n in range(5)]
    rmq.json("import-store", str(store_of(rmq.folder / "broker", *values)), "--broker", "broker-a")
    rmq.json("cutover", "--broker", "broker-a", "--reason", "moved")
    reset = ("reset", "--group", SCHEDULE_GROUP, "--topic", SCHEDULE, "--queue", "broker-a:2", "--to-offset", "4")
    for options in (("--dry-run",), ()):
        assert rmq.json(*reset, "--reason", "no topic", *options)["messages"] == -4


def test_the_same_request_goes_on_once_the_message_is_passed_over(damaged: Rmq) -> None:
    store = rmq_store.open_store(damaged.root)
    for _ in range(2):
        with pytest.raises(RmqError, match=r"offset 1 of .* cannot be delivered"):
            store.deliver(now=ALL_DUE_MS, request_id="2026-01-01-d")
    store.reset(
        SCHEDULE_GROUP, SCHEDULE, 2, queues=[level_queue(3)], reason="its topic is not known", request_id="2026-01-01-r"
    )
    reports = store.deliver(now=ALL_DUE_MS, request_id="2026-01-01-d")
    assert [(report.status, report.delivered) for report in reports] == [("already_committed", 2), ("committed", 1)]
