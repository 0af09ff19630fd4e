"""What every engine promises to messages that wait for a time of their own: retry policies and the timer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.commit.ctl import Action
from rmq_store.consumer.delay import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    GroupRetryPolicyType,
)
from rmq_store.consumer.timer import policy_queue_id
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.producer.producer import Message
from rmq_store.settings.settings import GroupSettings
from tests.contract.engines import story
from tests.contract.world import (
    BILLING,
    DAY,
    HOUR,
    LOCAL,
    NOON,
    World,
    bodies,
    counts,
    fail,
    group,
    orders,
    said,
    several,
)
from tests.oracle.memory.rows import Stored

TIMER = "rmq_sys_wheel_timer"
SLOT = 256_000

# --- retry policies --------------------------------------------------------------------------------------------------


def customized(*delays_ms: int) -> GroupSettings:
    policy = GroupRetryPolicy(GroupRetryPolicyType.CUSTOMIZED, customized=CustomizedRetryPolicy(delays_ms))
    return group(retry_policy=policy)


def waiting(world: World, delay_ms: int) -> list[Stored]:
    """What waits, or waited, so long in the timer for the group ``billing``."""
    return world.stored(MessageQueue(TIMER, f"{LOCAL}~billing", policy_queue_id(delay_ms)))


@story
def test_a_retry_waits_as_long_as_the_policy_of_its_group_says(world: World) -> None:
    world.fill(orders(0), several(2))
    report = world.consume(customized(1000, 5000, 7500), f"{DAY}-1", fail)
    assert counts(report) == {"retried": 2}
    assert [world.lane(level) for level in range(1, 19)] == [[]] * 18
    assert waiting(world, 7500)[1].row.properties == {
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "Orders",
        "ORIGIN_MESSAGE_ID": f"{1:032X}",
        "WAIT": "false",
        "REAL_TOPIC": "%RETRY%billing",
        "REAL_QID": "0",
    }
    world.clock.advance(7499)
    early = world.deliver(f"{DAY}-d1")
    assert (early.status, early.next_due_ms) == ("empty", NOON + 7500)
    world.clock.advance(1)
    due = world.deliver(f"{DAY}-d2")
    assert (due.status, due.delivered, due.more, due.next_due_ms) == ("committed", 2, False, None)
    assert world.retries()[1].row.properties == {
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "Orders",
        "ORIGIN_MESSAGE_ID": f"{1:032X}",
        "WAIT": "false",
        "TIMER_ENQUEUE_MS": str(NOON),
        "TIMER_DEQUEUE_MS": str(NOON + 7500),
    }
    assert counts(world.consume(BILLING, f"{DAY}-2")) == {"acked": 2}


@story
def test_a_retry_at_a_level_without_a_delay_is_due_at_once(world: World) -> None:
    times = [-3, -(2**31), -2, 0]
    world.fill(orders(0), [replace(said(n), reconsume_times=before) for n, before in enumerate(times)])
    assert counts(world.consume(BILLING, f"{DAY}-1", fail)) == {"retried": 4}
    assert bodies(waiting(world, 0)) == [b"0", b"1"]
    assert [bodies(world.lane(level)) for level in (1, 2, 3)] == [[b"2"], [], [b"3"]]
    assert {queue.queue_id for queue in world.positions().queues_of("SCHEDULE_TOPIC_XXXX")} == {0, 2}
    due = world.deliver(f"{DAY}-d1")
    assert (due.delivered, due.next_due_ms) == (2, NOON + 1000)
    assert [(copy.row.body, copy.row.reconsume_times) for copy in world.retries()] == [(b"0", -2), (b"1", 1 - 2**31)]


@story
def test_an_exponential_policy_spreads_the_retries_up_to_its_maximum(world: World) -> None:
    world.fill(orders(0), several(1))
    policy = GroupRetryPolicy(GroupRetryPolicyType.EXPONENTIAL, exponential=ExponentialRetryPolicy(1000, 5000, 3))
    patient = group(retry_policy=policy, max_reconsume_times=4)
    handed_over: list[int] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        handed_over.append(world.clock() - NOON)
        return "RECONSUME_LATER"

    for attempt in range(4):
        world.consume(patient, f"{DAY}-c{attempt}", listener)
        world.clock.now_ms = world.deliver(f"{DAY}-look{attempt}").next_due_ms or 0
        assert world.deliver(f"{DAY}-d{attempt}").delivered == 1
    assert counts(world.consume(patient, f"{DAY}-end", listener)) == {"dead": 1}
    assert handed_over == [0, 1000, 4000, 9000, 14_000]
    (letter,) = world.dead_letters()
    assert (letter.row.reconsume_times, letter.row.properties["DELAY"]) == (5, "0")


@story
def test_a_level_that_the_listener_asks_for_overrules_the_policy(world: World) -> None:
    world.fill(orders(0), several(2))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = -1 if msgs[0].body == b"1" else 2
        return "RECONSUME_LATER"

    settings = group(retry_policy=GroupRetryPolicy(), consume_message_batch_max_size=1)
    assert counts(world.consume(settings, f"{DAY}-1", listener)) == {"retried": 1, "dead": 1}
    assert bodies(world.lane(2)) == [b"0"]
    assert bodies(world.dead_letters()) == [b"1"]


@story
def test_a_policy_that_changes_makes_nothing_wait_behind_what_waits_by_the_old_one(world: World) -> None:
    world.fill(orders(0), several(1))
    world.consume(customized(HOUR), f"{DAY}-1", fail)
    world.fill(orders(0), several(1, first=1))
    world.consume(customized(1000), f"{DAY}-2", fail)
    world.clock.advance(1000)
    world.deliver(f"{DAY}-d1")
    assert bodies(world.retries()) == [b"1"]
    world.clock.advance(HOUR)
    world.deliver(f"{DAY}-d2")
    assert bodies(world.retries()) == [b"1", b"0"]


@story
def test_levels_and_policies_are_delivered_together_in_the_order_in_which_they_are_due(world: World) -> None:
    world.fill(orders(0), several(1))
    world.consume(customized(12_000), f"{DAY}-1", fail)
    world.fill(orders(0), several(1, first=1))
    world.consume(BILLING, f"{DAY}-2", fail)  # level 3: 10 s
    world.fill(orders(0), several(1, first=2))
    world.consume(customized(11_000), f"{DAY}-3", fail)
    world.clock.advance(HOUR)
    assert world.deliver(f"{DAY}-d").delivered == 3
    assert bodies(world.retries()) == [b"1", b"2", b"0"]
    (delivery,) = [ctl for ctl in world.ctls() if ctl.action is Action.DELIVER]
    assert [len(c.range) for c in delivery.consumed] == [1, 1, 1]


# --- messages that are sent with a moment of their own -----------------------------------------------------------------


def send(world: World, *messages: Message) -> None:
    """To the topic Orders, of one queue, in one commit."""
    world.send(messages, f"{DAY}-send-{world.positions().version}", create_queues=1)


def after(ms: int) -> Message:
    """A message whose body is its delay."""
    return Message("Orders", b"%d" % ms, delay_ms=ms)


def arrived(world: World) -> list[Stored]:
    return world.stored(MessageQueue("Orders", LOCAL, 0))


@story
def test_a_message_with_a_delay_of_its_own_arrives_in_its_second_and_not_before(world: World) -> None:
    send(world, after(1500))
    world.clock.advance(1999)
    early = world.deliver(f"{DAY}-d1")
    assert (early.status, early.next_due_ms) == ("empty", NOON + 2000)
    world.clock.advance(1)
    assert world.deliver(f"{DAY}-d2").delivered == 1
    (message,) = arrived(world)
    assert {name: text for name, text in message.row.properties.items() if name[:6] == "TIMER_"} == {
        "TIMER_DELAY_MS": "1500",
        "TIMER_OUT_MS": str(NOON + 1000),
        "TIMER_ENQUEUE_MS": str(NOON),
        "TIMER_DEQUEUE_MS": str(NOON + 2000),
    }


@story
def test_a_message_far_ahead_moves_on_to_its_second_once_and_arrives_then(world: World) -> None:
    send(world, after(HOUR + 5000), after(HOUR + 5000), after(HOUR + 9000))
    begins = (NOON + HOUR) // SLOT * SLOT
    assert world.deliver(f"{DAY}-d0").next_due_ms == begins
    world.clock.now_ms = begins
    moved = world.deliver(f"{DAY}-d1")
    assert (moved.status, moved.delivered, moved.more, moved.next_due_ms) == (
        "committed", 0, False, NOON + HOUR + 5000,
    )  # fmt: skip
    world.clock.now_ms = NOON + HOUR + 4999
    assert world.deliver(f"{DAY}-d2").status == "empty"
    world.clock.advance(1)
    due = world.deliver(f"{DAY}-d3")
    assert (due.delivered, due.next_due_ms) == (2, NOON + HOUR + 9000)
    world.clock.advance(4000)
    assert (world.deliver(f"{DAY}-d4").delivered, world.deliver(f"{DAY}-d5").status) == (1, "empty")
    assert [m.row.properties["TIMER_ROLL_TIMES"] for m in arrived(world)] == ["1", "1", "1"]
    assert arrived(world)[0].row.properties["TIMER_ENQUEUE_MS"] == str(NOON)


@story
def test_what_piled_up_while_nothing_was_delivered_for_a_day_arrives_once_in_due_order(world: World) -> None:
    delays = [90_000_000, 10_000, 3_600_000, 200_000, 3_605_000, 300_000, 50_000_000, 3_600_500, 86_399_000]
    send(world, *map(after, delays))
    send(world, Message("Orders", b"30000", delay_level=4), Message("Orders", b"0"))
    world.clock.advance(24 * HOUR)
    report = world.deliver(f"{DAY}-d1")
    due = sorted(delay for delay in [*delays, 30_000] if delay <= 24 * HOUR)
    assert (report.delivered, report.more) == (len(due), False)
    assert bodies(arrived(world)) == [b"%d" % delay for delay in [0, *due]]
    assert world.deliver(f"{DAY}-d2").status == "empty"
    world.clock.advance(2 * HOUR)
    assert world.deliver(f"{DAY}-d3").delivered == 1
    assert bodies(arrived(world))[-1] == b"90000000"


@story
def test_a_capped_delivery_of_the_timer_goes_on_where_it_stopped(world: World) -> None:
    send(world, *map(after, [5000, 4000, 4000, 900_000, 901_000, 3000]))
    world.clock.advance(HOUR)
    reports = [world.deliver(f"{DAY}-d{n}", cap=2) for n in range(4)]
    assert [(report.delivered, report.more) for report in reports] == [(2, True), (2, True), (2, False), (0, False)]
    assert bodies(arrived(world)) == [b"3000", b"4000", b"4000", b"5000", b"900000", b"901000"]


@story
def test_a_queue_of_the_wheel_is_used_again_and_its_older_message_arrives_first(world: World) -> None:
    send(world, after(5000))
    world.clock.advance(512_000)
    send(world, after(5000))  # the same second of the next turn, while the first one still waits
    assert len(world.positions().queues_of(TIMER)) == 1
    late = world.deliver(f"{DAY}-d1")
    assert (late.delivered, late.next_due_ms) == (1, NOON + 517_000)
    world.clock.advance(5000)
    assert world.deliver(f"{DAY}-d2").delivered == 1


@story
def test_a_message_that_fails_after_its_timer_is_retried_by_level_without_the_timer_again(world: World) -> None:
    send(world, after(1000))
    world.clock.advance(1000)
    world.deliver(f"{DAY}-d1")
    world.consume(BILLING, f"{DAY}-1", fail)
    (copy,) = world.lane(3)
    assert "TIMER_DELAY_MS" not in copy.row.properties
    world.clock.advance(10_000)
    assert world.deliver(f"{DAY}-d2").delivered == 1
    assert bodies(world.retries()) == [b"1000"]


@story
@pytest.mark.parametrize("request_id", ["d1", "d2"])
def test_what_another_delivery_moved_on_meanwhile_is_not_moved_twice(world: World, request_id: str) -> None:
    send(world, after(HOUR + 5000))
    world.clock.now_ms = (NOON + HOUR) // SLOT * SLOT
    overtaken = world.another_host(lambda: world.deliver(f"{DAY}-{request_id}"))
    world.deliver(f"{DAY}-d1", host=overtaken)
    world.clock.now_ms = NOON + HOUR + 5000
    assert world.deliver(f"{DAY}-d3").delivered == 1
    assert bodies(arrived(world)) == [b"%d" % (HOUR + 5000)]
