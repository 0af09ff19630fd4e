"""Where a message waits that asks for a moment of its own, and what leaves the timer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.pull import Slice
from rmq_store.consumer.timer import (
    MAX_DELAY_MS,
    SECONDS,
    SLOT_MS,
    SLOTS,
    TICK_MS,
    WHEEL_QUEUES,
    Placement,
    longest_wait_ms,
    place,
    policy_queue_id,
    wheel_slot,
)
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.window.deliver import step
from tests.unit.vectors import expected

NOON = 1_717_416_000_000
SKEW_MS = 120_000
"""Two hosts that may each be a minute off (``commit/decide.py``)."""


def placed(now_ms: int = NOON, **properties: str) -> Placement:
    return place("Orders", 3, {"KEYS": "k", **properties}, now_ms, DelayLevels())


@pytest.mark.parametrize(
    ("asked", "due_ms"),
    [
        ({"TIMER_DELAY_MS": "1"}, NOON + 1000),
        ({"TIMER_DELAY_MS": "1000"}, NOON + 1000),
        ({"TIMER_DELAY_MS": "1001"}, NOON + 2000),
        ({"TIMER_DELAY_SEC": "7"}, NOON + 7000),
        ({"TIMER_DELAY_SEC": "+00000000000000000000007"}, NOON + 7000),
        ({"TIMER_DELAY_SEC": "٧"}, NOON + 7000),
        ({"TIMER_DELIVER_MS": str(NOON + 5001)}, NOON + 6000),
        ({"TIMER_DELIVER_MS": str(NOON + 9000), "TIMER_DELAY_MS": "5000", "TIMER_DELAY_SEC": "3"}, NOON + 3000),
        ({"TIMER_DELAY_MS": "5000", "DELAY": "0"}, NOON + 5000),
        ({"TIMER_DELAY_MS": "5000", "DELAY": "-2"}, NOON + 5000),
    ],
)
def test_a_message_is_due_in_the_second_that_holds_its_moment(asked: dict[str, Any], due_ms: int) -> None:
    found = placed(**asked)
    assert (found.topic, found.waits, found.delay_ms, found.deliver_at) == ("rmq_sys_wheel_timer", True, None, due_ms)
    assert found.properties == {
        "KEYS": "k",
        **asked,
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "TIMER_OUT_MS": str(due_ms - 1000),
    }


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"DELAY": "0"},
        {"DELAY": "-1"},
        {"TIMER_DELAY_MS": "0"},
        {"TIMER_DELAY_SEC": "-5"},
        {"TIMER_DELIVER_MS": str(NOON)},
        {"TIMER_DELIVER_MS": str(NOON + 5000), "TIMER_OUT_MS": str(NOON - 1000)},
    ],
)
def test_what_asks_for_no_delay_or_has_had_it_is_an_ordinary_message(asked: dict[str, Any]) -> None:
    assert placed(**asked) == Placement("Orders", 3, {"KEYS": "k", **asked})


@pytest.mark.parametrize(("level", "stored"), [("1", 1), ("18", 18), ("99", 18)])
def test_a_level_overrules_the_timer_and_takes_its_requests_away(level: str, stored: int) -> None:
    found = placed(DELAY=level, TIMER_DELAY_MS="5000")
    assert (found.topic, found.queue_id, found.deliver_at) == ("SCHEDULE_TOPIC_XXXX", stored - 1, None)
    assert found.delay_ms == DelayLevels().delay_ms(stored)
    assert found.properties == {"KEYS": "k", "DELAY": str(stored), "REAL_TOPIC": "Orders", "REAL_QID": "3"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"DELAY": "three"}, "DELAY must be a whole number, it is 'three'"),
        ({"TIMER_DELAY_MS": "soon"}, "TIMER_DELAY_MS must be a whole number, it is 'soon'"),
        ({"TIMER_DELAY_SEC": "1.5"}, "TIMER_DELAY_SEC must be a whole number"),
        ({"DELAY": "2147483648"}, "DELAY must be a whole number, it is '2147483648'"),
        ({"TIMER_DELAY_SEC": "9223372036854775808"}, "TIMER_DELAY_SEC must be a whole number"),
        ({"TIMER_DELAY_SEC": "9223372036854775807"}, "the maximum is 3 days"),
        ({"TIMER_DELAY_SEC": "259201"}, "a delay of 259201 s is too long"),
        ({"TIMER_DELIVER_MS": str(NOON + MAX_DELAY_MS + 1)}, "the maximum is 3 days"),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DEL_UNIQKEY": "U"}, "cannot be deleted"),
        ({"TIMER_DELAY_SEC": "0", "TIMER_DEL_UNIQKEY": "U"}, "cannot be deleted"),
    ],
)
def test_what_a_broker_refuses_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        placed(**asked)


def test_three_days_are_allowed() -> None:
    assert placed(TIMER_DELAY_SEC="259200").deliver_at == (NOON + MAX_DELAY_MS) // SLOT_MS * SLOT_MS


def test_a_real_broker_stored_the_same_properties() -> None:
    """Rules 11.4; a broker has one queue for all. Its clock when it chose is the store timestamp."""
    stored = [row for row in expected("market-clean.messages") if row["topic"] == "rmq_sys_wheel_timer"]
    for row in stored:
        made_there = ("REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS")
        sent = {name: value for name, value in row["properties"].items() if name not in made_there}
        topic, queue_id = row["properties"]["REAL_TOPIC"], int(row["properties"]["REAL_QID"])
        found = place(topic, queue_id, sent, row["storeTimestamp"], DelayLevels())
        assert (found.topic, found.properties) == (row["topic"], row["properties"])
    assert len(stored) == 9


@given(now_ms=st.integers(NOON, NOON + SLOT_MS), ahead_ms=st.integers(1, MAX_DELAY_MS))
def test_a_queue_of_the_wheel_is_due_no_later_than_what_waits_in_it_and_is_one_of_a_fixed_number(
    now_ms: int, ahead_ms: int
) -> None:
    deliver_at = -(-(now_ms + ahead_ms) // TICK_MS) * TICK_MS
    slot = wheel_slot(deliver_at, now_ms)
    if slot.queue_id < SECONDS:
        assert slot.due_ms == deliver_at
    else:
        assert slot.queue_id < WHEEL_QUEUES
        assert slot.due_ms <= deliver_at < slot.due_ms + SLOT_MS
        assert slot.due_ms > now_ms


@given(
    now_ms=st.integers(NOON, NOON + SLOT_MS),
    ahead_ms=st.integers(1, MAX_DELAY_MS),
    turns=st.integers(1, 3),
    later_ms=st.integers(0, 2 * MAX_DELAY_MS),
)
def test_an_older_turn_of_the_wheel_is_due_before_a_younger_one_is_stored_even_by_clocks_that_differ(
    now_ms: int, ahead_ms: int, turns: int, later_ms: int
) -> None:
    """So that it stands before it in the queue, whenever it is delivered."""
    deliver_at = -(-(now_ms + ahead_ms) // TICK_MS) * TICK_MS
    slot = wheel_slot(deliver_at, now_ms)
    turn_ms = SECONDS * TICK_MS if slot.queue_id < SECONDS else SLOTS * SLOT_MS
    then_ms, again_at = now_ms + later_ms, deliver_at + turns * turn_ms
    if 0 < again_at - then_ms <= MAX_DELAY_MS and wheel_slot(again_at, then_ms).queue_id == slot.queue_id:
        assert slot.due_ms <= then_ms - SKEW_MS


def test_a_retry_waits_in_the_queue_of_its_delay() -> None:
    queue = MessageQueue("rmq_sys_wheel_timer", "lake-a~g", policy_queue_id(5000))
    assert (queue.queue_id, longest_wait_ms(queue, DelayLevels())) == (6536, 5000)
    assert policy_queue_id(MAX_DELAY_MS) < 2**31


# --- what leaves a queue ---------------------------------------------------------------------------------------------


def slice_of(queue_id: int, topic: str = "rmq_sys_wheel_timer") -> Slice:
    return Slice(MessageQueue(topic, "lake-a~", queue_id), 0, 9, "f", 0, store_timestamp=NOON - 1)


def test_what_is_due_when_its_slot_begins_goes_out_and_the_rest_goes_on_to_its_second() -> None:
    out = step(slice_of(SECONDS), NOON, str(NOON - 1000), NOON)
    assert (out.due_ms, out.queue) == (NOON, None)
    assert out.edits.apply({"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "1"}) == {
        "TIMER_OUT_MS": "1",
        "TIMER_ENQUEUE_MS": str(NOON - 1),
        "TIMER_DEQUEUE_MS": str(NOON),
    }
    on = step(slice_of(SECONDS), NOON, str(NOON), NOON)
    assert on.due_ms == NOON + 1000
    assert on.queue == MessageQueue("rmq_sys_wheel_timer", "lake-a~", (NOON + 1000) // 1000 % 512)
    assert on.edits.apply({"REAL_TOPIC": "T"}) == {
        "REAL_TOPIC": "T",
        "TIMER_ROLL_TIMES": "1",
        "TIMER_ENQUEUE_MS": str(NOON - 1),
    }


def test_what_is_further_ahead_than_its_slot_comes_from_a_wrong_clock_and_goes_out() -> None:
    assert step(slice_of(SECONDS), NOON, str(NOON + 4 * MAX_DELAY_MS), NOON).queue is None


@pytest.mark.parametrize("timer_out", [None, "", "soon"])
def test_a_message_of_a_slot_that_does_not_say_its_moment_stops_the_delivery(timer_out: str | None) -> None:
    with pytest.raises(BadData, match="TIMER_OUT_MS"):
        step(slice_of(SECONDS), NOON, timer_out, NOON)


@pytest.mark.parametrize("slice_", [slice_of(0), slice_of(policy_queue_id(5)), slice_of(600, "SCHEDULE_TOPIC_XXXX")])
def test_only_slots_look_at_the_moment_of_a_message(slice_: Slice) -> None:
    found = step(slice_, NOON, str(NOON + 60_000), NOON)
    assert (found.due_ms, found.queue) == (NOON, None)
