"""What every engine promises of a broadcasting group (rules 4): each client gets all messages, at offsets of its own,
and what fails is dropped. See ``test_engines.py``."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings
from tests.contract.engines import story
from tests.contract.world import DAY, Lost, World, consumed, counts, fail_bodies, group, orders, several


def client(name: str, **settings: Any) -> GroupSettings:
    return group(f"audit@{name}", message_model=MessageModel.BROADCASTING, **settings)


@story
def test_each_client_gets_all_messages_at_offsets_of_its_own(world: World) -> None:
    world.fill(orders(0), several(6))
    world.fill(orders(1), several(3))
    first = world.consume(client("a"), f"{DAY}-1")
    world.fill(orders(0), several(2, first=6))
    second = world.consume(client("10.0.0.1@DEFAULT"), f"{DAY}-1")
    third = world.consume(client("a"), f"{DAY}-2")
    assert consumed(first) == {orders(0): (0, 6), orders(1): (0, 3)}
    assert consumed(second) == {orders(0): (0, 8), orders(1): (0, 3)}
    assert consumed(third) == {orders(0): (6, 8)}
    assert [world.offset(orders(0), name) for name in ("audit@a", "audit@10.0.0.1@DEFAULT", "audit")] == [8, 8, None]


@story
def test_what_fails_is_dropped_and_says_why(world: World) -> None:
    world.fill(orders(0), several(9))

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        for message in msgs:
            if message.queue_offset == 7:
                raise ValueError("no such customer")
            yield "RECONSUME_LATER" if message.queue_offset in (1, 2, 4) else "CONSUME_SUCCESS"

    report = world.consume(client("a"), f"{DAY}-1", listener)
    assert (consumed(report), counts(report)) == ({orders(0): (0, 9)}, {"acked": 4, "dropped": 5})
    dropped = [(1, 3), (4, 5), (7, 8), (8, 9)]
    assert world.outcomes("audit@a") == [Lost(QueueRange(orders(0), *range_), 0, "dropped") for range_ in dropped]
    assert (world.lane(3, "audit@a"), world.dead_letters("audit@a"), world.dead_letters("audit")) == ([], [], [])
    assert counts(world.consume(client("a"), f"{DAY}-2")) == {}


@story
def test_neighbours_that_fail_for_one_reason_are_one_range(world: World) -> None:
    world.fill(orders(0), several(6))
    world.fill(orders(0), several(6, first=6))
    failing = fail_bodies(*(b"%d" % n for n in range(2, 9)))
    world.consume(client("a", consume_message_batch_max_size=1), f"{DAY}-1", failing)
    assert [(lost.range.begin, lost.range.end) for lost in world.outcomes("audit@a")] == [(2, 6), (6, 9)]


@story
def test_a_level_or_a_limit_makes_no_difference(world: World) -> None:
    world.fill(orders(0), several(3))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = -1
        return "RECONSUME_LATER"

    report = world.consume(client("a", max_reconsume_times=0), f"{DAY}-1", listener)
    assert (counts(report), world.dead_letters("audit@a")) == ({"dropped": 3}, [])


@story
def test_the_same_request_of_the_same_client_does_nothing_more(world: World) -> None:
    world.fill(orders(0), several(4))
    first = world.consume(client("a"), f"{DAY}-1", fail_bodies(b"2"))
    again = world.consume(client("a"), f"{DAY}-1")
    assert (again.status, again.counts()) == ("already_committed", first.counts())
    assert counts(world.consume(client("b"), f"{DAY}-1")) == {"acked": 4}


@story
def test_a_reset_moves_one_client(world: World) -> None:
    world.fill(orders(0), several(4))
    for name in "ab":
        world.consume(client(name), f"{DAY}-1")
    world.reset_to(ResetTo.OFFSET, 1, group="audit@a")
    assert [world.offset(orders(0), f"audit@{name}") for name in "ab"] == [1, 4]
    assert consumed(world.consume(client("a"), f"{DAY}-2")) == {orders(0): (1, 4)}


@story
def test_two_clients_work_at_the_same_time(world: World) -> None:
    world.fill(orders(0), several(4))
    inside: list[dict[str, int]] = []
    host = world.another_host(lambda: inside.append(counts(world.consume(client("b"), f"{DAY}-1"))), before_id=2)
    assert counts(world.consume(client("a"), f"{DAY}-1", host=host)) == {"acked": 4}
    assert inside == [{"acked": 4}]


def test_a_client_must_be_named(world: World) -> None:
    world.fill(orders(0), several(4))
    with pytest.raises(WrongUse, match="audit@CLIENT"):
        world.consume(group("audit", message_model=MessageModel.BROADCASTING), f"{DAY}-1")
