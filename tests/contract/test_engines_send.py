"""What every engine promises to who sends messages. See ``test_engines.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import max_id
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_id import decode_unique_key
from rmq_store.producer.producer import Message
from rmq_store.producer.send import SentTo
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
    fail_bodies,
    group,
    orders,
    several,
)

R = f"{DAY}-send"


def order(number: int, topic: str = "Orders", **more: Any) -> Message:
    return Message(topic, b"%d" % number, **more)


def ours(queue_id: int, topic: str = "Orders") -> MessageQueue:
    return MessageQueue(topic, LOCAL, queue_id)


def in_queues(world: World, queues: int, topic: str = "Orders") -> Mapping[int, list[bytes | None]]:
    return {queue_id: bodies(world.stored(ours(queue_id, topic))) for queue_id in range(queues)}


# --- without any broker ----------------------------------------------------------------------------------------------


@story
def test_what_is_sent_is_consumed_retried_delivered_and_consumed_again_without_any_broker(world: World) -> None:
    sent = world.send([order(n, tags="new", keys=(f"k{n}",)) for n in range(3)], R, create_queues=2)
    assert (sent.status, sent.messages, sent.delayed, sent.created) == ("committed", 3, 0, {"Orders": 2})
    seen: list[MessageExt] = []

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        seen.extend(msgs)
        return fail_bodies(b"1")(msgs, context)

    assert counts(world.consume(BILLING, f"{DAY}-1", listener)) == {"acked": 2, "retried": 1}
    (failed,) = (m for m in seen if m.body == b"1")
    assert (failed.topic, failed.broker_name, failed.tags, failed.keys) == ("Orders", LOCAL, "new", "k1")
    assert (failed.born_timestamp, failed.store_timestamp, failed.reconsume_times) == (NOON, NOON, 0)
    world.clock.advance(10_000)
    assert world.deliver(f"{DAY}-d").delivered == 1
    seen.clear()

    def seeing(msgs: list[MessageExt], context: Any) -> str:
        seen.extend(msgs)
        return "CONSUME_SUCCESS"

    assert counts(world.consume(BILLING, f"{DAY}-2", seeing)) == {"acked": 1}
    (again,) = seen
    assert (again.body, again.reconsume_times, again.unique_key) == (b"1", 1, failed.unique_key)
    assert world.consume(BILLING, f"{DAY}-3").status == "empty"


@story
def test_a_group_that_begins_at_the_end_reads_what_is_sent_into_a_new_topic(world: World) -> None:
    world.send([order(0)], R, create_queues=4)
    late = group(name="late", consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    assert counts(world.consume(late, f"{DAY}-1")) == {"acked": 1}


@story
def test_a_message_carries_what_the_client_writes(world: World) -> None:
    message = Message("Orders", b"x", "new", ("a", "b"), {"region": "eu"})
    world.send([message], R, create_queues=1)
    (stored,) = world.stored(ours(0))
    properties = dict(stored.row.properties)
    unique_key = properties.pop("UNIQ_KEY")
    assert properties == {"TAGS": "new", "KEYS": "a b", "WAIT": "true", "region": "eu"}
    assert decode_unique_key(unique_key).ms_in_month == NOON - 1_717_200_000_000  # June began then
    assert (stored.row.born_host, len(stored.offset_msg_id)) == ("127.0.0.1|0", 56)


@story
def test_a_tag_selects_what_is_sent(world: World) -> None:
    world.send([order(n, tags="new" if n % 2 else "old") for n in range(4)], R, create_queues=1)
    found = world.consume(group(topics={"Orders": "new"}), f"{DAY}-1")
    assert counts(found) == {"acked": 2, "filtered": 2}


# --- delays ----------------------------------------------------------------------------------------------------------


@story
def test_a_delayed_message_is_readable_when_it_is_due_and_not_before(world: World) -> None:
    sent = world.send([order(0, delay_level=2, queue_id=1)], R, create_queues=2)
    assert (sent.delayed, sent.sent) == (1, (SentTo(MessageQueue("SCHEDULE_TOPIC_XXXX", f"{LOCAL}~", 1), 1, 0),))
    (waiting,) = world.lane(2, "")
    assert {name: waiting.row.properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID")} == {
        "DELAY": "2",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "1",
    }
    assert counts(world.consume(BILLING, f"{DAY}-1")) == {}
    world.clock.advance(4_999)
    assert world.deliver(f"{DAY}-d1").delivered == 0
    world.clock.advance(1)
    assert world.deliver(f"{DAY}-d2").delivered == 1
    assert in_queues(world, 2) == {0: [], 1: [b"0"]}
    (delivered,) = world.stored(ours(1))
    assert delivered.row.properties.keys() == {"WAIT", "UNIQ_KEY"}
    assert counts(world.consume(BILLING, f"{DAY}-2")) == {"acked": 1}


@story
@pytest.mark.parametrize(("level", "stored"), [(18, 18), (99, 18)])
def test_a_level_above_the_highest_is_the_highest(world: World, level: int, stored: int) -> None:
    world.send([order(0, delay_level=level)], R, create_queues=1)
    (waiting,) = world.lane(stored, "")
    assert waiting.row.properties["DELAY"] == str(stored)


@story
def test_a_level_below_zero_is_no_delay(world: World) -> None:
    assert world.send([order(0, delay_level=-2)], R, create_queues=1).delayed == 0
    assert in_queues(world, 1) == {0: [b"0"]}


@story
@pytest.mark.parametrize("how", ["delay_ms", "deliver_at"])
@pytest.mark.parametrize("delay_ms", [1000, 255_000, 256_000, 10_805_000, 3 * 24 * HOUR])
def test_a_message_with_a_delay_of_its_own_is_delivered_once_when_it_is_due(
    world: World, how: str, delay_ms: int
) -> None:
    """The timer keeps 256 s by the second; the longest level is two hours."""
    moment = {"delay_ms": delay_ms, "deliver_at": NOON + delay_ms}[how]
    fields: dict[str, Any] = {how: moment}
    sent = world.send([order(0, queue_id=1, **fields)], R, create_queues=2)
    (to,) = sent.sent
    assert (sent.delayed, to.queue.topic, to.queue.broker_name) == (1, "rmq_sys_wheel_timer", f"{LOCAL}~")
    world.clock.now_ms = NOON + delay_ms - 1
    assert (world.deliver(f"{DAY}-d1").delivered, counts(world.consume(BILLING, f"{DAY}-1"))) == (0, {})
    world.clock.advance(1)
    assert world.deliver(f"{DAY}-d2").delivered == 1
    assert world.deliver(f"{DAY}-d3").status == "empty"
    assert in_queues(world, 2) == {0: [], 1: [b"0"]}
    assert counts(world.consume(BILLING, f"{DAY}-2")) == {"acked": 1}


@story
def test_levels_and_moments_of_one_send_arrive_in_due_order(world: World) -> None:
    delays: list[dict[str, Any]] = [{"delay_ms": 400_000}, {"delay_level": 3}, {"deliver_at": NOON + 9_500}, {}]
    sent = world.send([order(n, **how) for n, how in enumerate(delays)], R, create_queues=1)
    assert (sent.delayed, {one.queue.broker_name for one in sent.sent}) == (3, {LOCAL, f"{LOCAL}~"})
    world.clock.advance(HOUR)
    assert world.deliver(f"{DAY}-d").delivered == 3
    assert in_queues(world, 1)[0][0] == b"3"
    assert sorted(body or b"" for body in in_queues(world, 1)[0][1:3]) == [b"1", b"2"]  # both are due at 10 s
    assert in_queues(world, 1)[0][3] == b"0"


@story
def test_a_moment_that_is_over_is_no_delay(world: World) -> None:
    assert world.send([order(0, deliver_at=NOON - 1)], R, create_queues=1).delayed == 0
    assert in_queues(world, 1) == {0: [b"0"]}


@story
def test_a_request_with_a_moment_is_the_same_request_when_the_moment_is_over(world: World) -> None:
    first = world.send([order(0, deliver_at=NOON + HOUR)], R, create_queues=1)
    world.clock.advance(2 * HOUR)
    again = world.send([order(0, deliver_at=NOON + HOUR)], R, create_queues=1)
    assert (again.status, again.sent, again.delayed) == ("already_committed", first.sent, 1)
    with pytest.raises(WrongUse, match="already used for other messages"):
        world.send([order(0, deliver_at=NOON + HOUR + 1)], R, create_queues=1)


@story
def test_more_than_three_days_ahead_is_refused(world: World) -> None:
    with pytest.raises(WrongUse, match="message 2: a delay of 259201 s is too long, the maximum is 3 days"):
        world.send([order(0), order(1, delay_ms=3 * 24 * HOUR + 1000)], R, create_queues=1)
    assert world.ctls() == []


# --- queues ----------------------------------------------------------------------------------------------------------


@story
def test_queues_take_turns_and_each_keeps_its_order(world: World) -> None:
    world.send([order(n) for n in range(10)], R, create_queues=4)
    found = in_queues(world, 4)
    assert sorted(len(several) for several in found.values()) == [2, 2, 3, 3]
    for messages in found.values():
        numbers = [int(body or b"") for body in messages]
        assert numbers == list(range(numbers[0], 10, 4))


@story
def test_messages_of_one_sharding_key_share_the_queue_that_rocketmq_chooses(world: World) -> None:
    """``String.hashCode`` of "shop-7" is -903152864, and 4 is left of it by 5."""
    world.send([order(n, sharding_key="shop-7") for n in range(3)], R, create_queues=5)
    assert in_queues(world, 5)[abs(-903152864) % 5] == [b"0", b"1", b"2"]


@story
def test_a_queue_that_is_not_there_is_refused_and_nothing_is_sent(world: World) -> None:
    with pytest.raises(WrongUse, match="has no queue 2, only 0 to 1"):
        world.send([order(0), order(1, queue_id=2)], R, create_queues=2)
    assert world.ctls() == []


@story
def test_a_broker_s_queues_stay_its_own_and_the_lake_gets_as_many(world: World) -> None:
    for queue_id in range(3):
        world.fill(orders(queue_id), several(1))
    sent = world.send([order(n) for n in range(6)], R)
    assert sent.created == {}
    assert [len(messages) for messages in in_queues(world, 3).values()] == [2, 2, 2]
    assert [len(world.stored(orders(queue_id))) for queue_id in range(3)] == [1, 1, 1]
    assert counts(world.consume(BILLING, f"{DAY}-1")) == {"acked": 9}


@story
def test_an_unknown_topic_is_refused_with_a_near_name(world: World) -> None:
    world.fill(orders(0), several(1))
    with pytest.raises(WrongUse, match="there is no topic Ordres, did you mean 'Orders'"):
        world.send([order(0, "Ordres")], R)


@story
def test_a_new_topic_has_all_its_queues_at_once(world: World) -> None:
    world.send([order(0)], R, create_queues=4)
    assert world.positions().queues_of("Orders") == [ours(n) for n in range(4)]
    again = world.send([order(1)], f"{R}-2", create_queues=8)
    assert again.created == {}
    assert len(world.positions().queues_of("Orders")) == 4


# --- requests --------------------------------------------------------------------------------------------------------


@story
def test_the_same_request_is_sent_once(world: World) -> None:
    first = world.send([order(0), order(1)], R, create_queues=2)
    again = world.send([order(0), order(1)], R, create_queues=2)
    assert (again.status, again.sent, again.created) == ("already_committed", first.sent, first.created)
    assert again.commit_id == first.commit_id
    assert sum(map(len, in_queues(world, 2).values())) == 2


@story
def test_a_request_is_not_sent_again_with_other_messages(world: World) -> None:
    world.send([order(0)], R, create_queues=1)
    with pytest.raises(WrongUse, match="already used for other messages"):
        world.send([order(1)], R, create_queues=1)


@story
def test_a_dry_run_says_where_and_writes_nothing(world: World) -> None:
    plan = world.send([order(0), order(1, delay_level=1)], R, create_queues=1, dry_run=True)
    assert (plan.status, plan.messages, plan.delayed, plan.commit_id) == ("dry_run", 2, 1, None)
    assert [one.first_offset for one in plan.sent] == [None, None]
    assert world.ctls() == []


@story
def test_everything_wrong_is_said_at_once_and_nothing_is_sent(world: World) -> None:
    wrong = [order(0), Message("Orders", b""), order(2, tags=" ", properties={"KEYS": "k"})]
    with pytest.raises(WrongUse) as refused:
        world.send(wrong, R, create_queues=1)
    said = str(refused.value)
    assert "message 2: a message needs a body" in said
    assert "message 3: the tag is blank" in said
    assert "message 3: The Property<KEYS> is used by system" in said
    assert world.ctls() == []


@story
def test_of_two_senders_at_once_both_get_through(world: World) -> None:
    world.send([order(0, queue_id=0)], R, create_queues=1)
    other = world.another_host()
    meanwhile = world.another_host(lambda: world.send([order(1, queue_id=0)], f"{R}-2", host=other), before_id=2)
    mine = world.send([order(2, queue_id=0)], f"{R}-3", host=meanwhile)
    assert (mine.status, in_queues(world, 1)) == ("committed", {0: [b"0", b"1", b"2"]})


@story
def test_of_two_that_make_the_same_topic_the_later_one_uses_it(world: World) -> None:
    other = world.another_host()
    meanwhile = world.another_host(
        lambda: world.send([order(1)], f"{R}-2", host=other, create_queues=3), before_id=2
    )  # fmt: skip
    mine = world.send([order(2)], f"{R}-3", host=meanwhile, create_queues=8)
    assert (mine.status, mine.created) == ("committed", {})
    assert len(world.positions().queues_of("Orders")) == 3
    assert sum(map(len, in_queues(world, 3).values())) == 2


@story
def test_of_two_attempts_of_one_request_one_is_committed(world: World) -> None:
    world.send([order(9)], f"{R}-0", create_queues=2)
    other = world.another_host()
    messages = [order(0), order(1)]
    meanwhile = world.another_host(lambda: world.send(messages, R, host=other), before_id=2)
    mine = world.send(messages, R, host=meanwhile)
    assert mine.status == "already_committed"
    assert [(ctl.action, ctl.request_id) for ctl in world.ctls()] == [(Action.SEND, f"{R}-0"), (Action.SEND, R)]


@story
@pytest.mark.parametrize("queue_id", [5, 4], ids=["into the same queue", "into another one"])
def test_a_topic_that_a_delivery_fills_meanwhile_keeps_what_it_got(world: World, queue_id: int) -> None:
    """The plan to make a queue at 0 must not set back one that exists by then."""
    world.send([order(0, delay_level=1)], R, create_queues=1)
    queue = ours(5, "Later")
    meanwhile = world.another_host(lambda: world.fill_lake_born(5, several(2), "Later"), before_id=2)
    mine = world.send([order(1, "Later", queue_id=queue_id)], f"{R}-2", host=meanwhile, create_queues=6)
    assert mine.status == "committed"
    assert world.positions().get(max_id(queue)) == 2 + (queue_id == 5)
