from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rmq_store.consumer.delay import CustomizedRetryPolicy, DelayLevels, GroupRetryPolicy
from rmq_store.consumer.retry import (
    Cause,
    SendBack,
    message_id,
    origin_message_id,
    property_edits,
    retry_queue_id,
    route,
    sent_away_edits,
)
from rmq_store.message.message import MessageExt


def back(**asked: Any) -> SendBack:
    usual: dict[str, Any] = {
        "delay_level": 0,
        "reconsume_times": 0,
        "max_reconsume_times": -1,
        "retry_queue": 0,
        "levels": DelayLevels(),
    }
    return route("g", **(usual | asked))


# --- the rules --------------------------------------------------------------------------------------------------------


def test_sixteen_retries_climb_from_level_three_and_the_next_failure_is_dead() -> None:
    routes = [back(reconsume_times=times) for times in range(17)]
    assert [decided.delay_level for decided in routes[:-1]] == list(range(3, 19))
    assert routes[-1] == SendBack("%DLQ%g", 0, "%DLQ%g", 0, 0, 17, Cause.MAX_RECONSUME_TIMES)


def test_a_raised_limit_stays_at_the_highest_level() -> None:
    assert back(reconsume_times=40, max_reconsume_times=100).delay_level == 18


@pytest.mark.parametrize("times", [-3, -4, -(2**31)])
def test_a_level_that_does_not_delay_is_due_at_once(times: int) -> None:
    at_once = SendBack("rmq_sys_wheel_timer", 1536, "%RETRY%g", 0, 0, times + 1, Cause.RETRY, 0)
    assert back(reconsume_times=times) == at_once
    assert back(reconsume_times=times, delay_level=2).delay_level == 2
    assert [back(reconsume_times=waits).delay_level for waits in (-2, -1, 0)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("most", "times", "copys", "dead"),
    [
        (-1, 2**31 - 1, -(2**31), True),
        (2**31 - 1, 2**31 - 1, -(2**31), True),
        (2**31 - 1, 2**31 - 2, 2**31 - 1, False),
    ],
)
def test_a_retry_count_is_a_java_int(most: int, times: int, copys: int, dead: bool) -> None:
    copy = back(reconsume_times=times, max_reconsume_times=most)
    assert (copy.reconsume_times, copy.dead) == (copys, dead)


def test_the_level_of_a_retry_is_a_java_int_too() -> None:
    levels = [back(reconsume_times=2**31 - n, max_reconsume_times=2**31 - 1).delay_level for n in (4, 3, 2)]
    assert levels == [18, 0, 0]


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ({"delay_level": -1}, Cause.DELAY_LEVEL),
        ({"max_reconsume_times": 0, "delay_level": 5}, Cause.MAX_RECONSUME_TIMES),
        ({"retry_queue": None}, Cause.NO_RETRY_QUEUE),
        ({"delay_level": 5}, Cause.RETRY),
    ],
)
def test_the_cause_is_named(asked: dict[str, Any], cause: Cause) -> None:
    assert back(**asked).cause is cause
    assert back(**asked).dead is (cause is not Cause.RETRY)


def test_a_policy_says_the_delay_where_the_listener_asks_for_no_level() -> None:
    policy = GroupRetryPolicy(customized=CustomizedRetryPolicy((1000, 10_000)))
    chosen = back(policy=policy)
    assert chosen == SendBack("rmq_sys_wheel_timer", 11_536, "%RETRY%g", 0, 0, 1, Cause.RETRY, 10_000)
    assert (back(policy=policy, delay_level=2).topic, back(policy=policy, delay_level=2).delay_ms) == (
        "SCHEDULE_TOPIC_XXXX", 5000,
    )  # fmt: skip
    assert back(policy=policy, delay_level=-1).dead
    assert back(policy=policy, max_reconsume_times=0).dead


def test_a_retry_by_policy_takes_every_trace_of_a_level_and_of_an_older_timer_away() -> None:
    chosen = back(policy=GroupRetryPolicy())
    before = {"DELAY": "3", "TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "5", "TIMER_ENQUEUE_MS": "6", "K": "v"}
    assert property_edits(chosen, "T", "id").apply(before) == {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "id",
        "WAIT": "false",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
        "K": "v",
    }


def test_a_group_without_retry_queues_loses_nothing() -> None:
    assert retry_queue_id("T", "b", 0, 7, 0) is None
    assert back(retry_queue=retry_queue_id("T", "b", 0, 7, 0)).topic == "%DLQ%g"


def test_the_retry_queue_is_the_same_on_every_machine() -> None:
    places = [("OrderEvents", "broker-a", 0, 0), ("OrderEvents", "broker-a", 0, 1), ("日本", "b", 3, 1 << 40)]
    assert [retry_queue_id(*place, retry_queue_nums=16) for place in places] == [13, 1, 13]
    assert retry_queue_id("T", "b", 0, 5, 1) == 0


def test_retry_queues_are_used_evenly() -> None:
    used = Counter(retry_queue_id("T", "b", 0, offset, 4) for offset in range(4000))
    assert set(used) == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in used.values())


def test_a_delay_level_overrules_a_timer() -> None:
    timed = {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "k": "v"}
    kept = property_edits(back(), "T", "id").apply(timed)
    assert not kept.keys() & (timed.keys() - {"k"})
    assert kept["k"] == "v"


def test_edits_are_the_same_for_all_messages_but_for_their_id() -> None:
    one, other = (property_edits(back(), "T", own_id) for own_id in ("id-1", "id-2"))
    assert (one.put, one.remove) == (other.put, other.remove)
    assert dict(one.put_if_absent) == {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "id-1"}


def test_the_first_copys_id_stays_along_the_chain() -> None:
    message = MessageExt("T", "lake-a", 2, 9)
    assert origin_message_id(message) == message_id("", "T", "lake-a", 2, 9) == "T/lake-a/2/9"
    retry = MessageExt("%RETRY%g", "lake-a", 0, 1, properties={"ORIGIN_MESSAGE_ID": "T/lake-a/2/9"}, offset_msg_id="AB")
    assert origin_message_id(retry) == "T/lake-a/2/9"
    assert origin_message_id(MessageExt("T", "broker-a", 0, 1, offset_msg_id="AB")) == "AB"


def test_what_an_orderly_client_sends_away_names_its_own_topic_and_on_a_retry_topic_the_first_one() -> None:
    dead = back(reconsume_times=2, max_reconsume_times=2)
    before = {"RETRY_TOPIC": "Old", "ORIGIN_MESSAGE_ID": "first", "DELAY": "4", "TRAN_MSG": "true"}
    sent = {"ORIGIN_MESSAGE_ID": "first", "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "2", "DELAY": "-1"}
    assert sent_away_edits(dead, "T", "key", 2).apply(before) == sent | {"RETRY_TOPIC": "T"}
    assert sent_away_edits(dead, "%RETRY%g", "key", 2).apply(before) == sent | {"RETRY_TOPIC": "Old"}
    assert sent_away_edits(dead, "T", "key", -1).put["MAX_RECONSUME_TIMES"] == "2147483647"
