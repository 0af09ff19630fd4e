"""How far the messages of a queue may be removed: ``rmq_store/maintain/retention.py``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.commit.positions import QueueRange
from rmq_store.maintain.retention import (
    Limit,
    Removal,
    RetainedQueue,
    SizedSegment,
    removable_by_age,
    removable_by_size,
    removal,
)
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.settings.retention_settings import RetentionRule, rule_of

QUEUE, OTHER = MessageQueue("Orders", "a", 0), MessageQueue("Orders", "a", 1)
RULES = [RetentionRule(topic=name, max_age_ms=1) for name in ("*", "Order*", "Orders", "%DLQ%*", "%DLQ%billing")]


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("Orders", "Orders"),
        ("OrdersOld", "Order*"),
        ("Payments", "*"),
        ("%DLQ%billing", "%DLQ%billing"),
        ("%DLQ%shipping", "%DLQ%*"),
        # Topics that the broker or the lake made need a rule of their own.
        ("%RETRY%billing", None),
        (SCHEDULE_TOPIC, None),
        (TIMER_TOPIC, None),
    ],
)
def test_the_rule_that_names_a_topic_comes_before_prefixes(topic: str, rule: str | None) -> None:
    assert getattr(rule_of(topic, RULES), "topic", None) == rule
    assert getattr(rule_of(topic, RULES[::-1]), "topic", None) == rule


def retained(age: int = 0, size: int = 0, unconsumed: int = 0, least: int = 10, **offsets: int) -> RetainedQueue:
    limits = {Limit.MAX_AGE: age, Limit.MAX_BYTES: size, Limit.MAX_UNCONSUMED_AGE: unconsumed}
    return RetainedQueue(queue=QUEUE, min_offset=least, max_offset=100, removable=limits, offsets=offsets)


def removed(end: int, limit: Limit, held_to: int, held_by: str | None = None, **lost: tuple[int, int]) -> Removal:
    ranges = {group: QueueRange(QUEUE, *of_group) for group, of_group in lost.items()}
    return Removal(range=QueueRange(QUEUE, 10, end), limit=limit, held_to=held_to, held_by=held_by, lost=ranges)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        # nothing exceeds a limit
        (retained(), None),
        (retained(age=10, size=7), None),
        # the limit that reaches further
        (retained(age=30, size=20), removed(30, Limit.MAX_AGE, 30)),
        (retained(age=20, size=30), removed(30, Limit.MAX_BYTES, 30)),
        (retained(age=500), removed(100, Limit.MAX_AGE, 100)),
        # the slowest group holds messages back
        (retained(age=50, billing=30, audit=90), removed(30, Limit.MAX_AGE, 50, "billing")),
        (retained(age=50, billing=50), removed(50, Limit.MAX_AGE, 50)),
        (retained(age=50, billing=4), removed(10, Limit.MAX_AGE, 50, "billing")),
        # unless they are too old
        (
            retained(age=50, unconsumed=40, billing=30, audit=35),
            removed(40, Limit.MAX_UNCONSUMED_AGE, 50, "billing", audit=(35, 40), billing=(30, 40)),
        ),
        (
            retained(age=50, unconsumed=50, billing=3),
            removed(50, Limit.MAX_UNCONSUMED_AGE, 50, billing=(10, 50)),
        ),
        (retained(age=50, unconsumed=20, billing=30), removed(30, Limit.MAX_AGE, 50, "billing")),
    ],
)
def test_what_is_removed_from_a_queue(queue: RetainedQueue, expected: Removal | None) -> None:
    assert removal(queue) == expected


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC])
def test_no_age_removes_a_message_that_waits(topic: str) -> None:
    waiting = MessageQueue(topic, "lake-a~billing", 2)
    limits = dict.fromkeys(Limit, 90)
    queue = RetainedQueue(
        queue=waiting, min_offset=0, max_offset=100, removable=limits, offsets={"CID_RMQ_SYS_SCHEDULE": 20}
    )
    removed_range = removal(queue)
    assert removed_range
    assert (removed_range.range, removed_range.lost) == (QueueRange(waiting, 0, 20), {})


@given(
    least=st.integers(0, 20),
    length=st.integers(0, 20),
    limits=st.dictionaries(st.sampled_from(Limit), st.integers(0, 50)),
    offsets=st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)),
)
def test_every_message_that_goes_exceeds_a_limit_and_is_consumed_or_lost(
    least: int, length: int, limits: dict[Limit, int], offsets: dict[str, int]
) -> None:
    queue = RetainedQueue(queue=QUEUE, min_offset=least, max_offset=least + length, removable=limits, offsets=offsets)
    expected = {
        offset
        for offset in range(least, least + length)
        if offset < limits.get(Limit.MAX_UNCONSUMED_AGE, 0)
        or (
            offset < max(limits.get(Limit.MAX_AGE, 0), limits.get(Limit.MAX_BYTES, 0))
            and all(offset < of_group for of_group in offsets.values())
        )
    }
    plan = removal(queue)
    assert (set(range(plan.range.begin, plan.range.end)) if plan else set()) == expected
    if plan:
        for group, offset in offsets.items():
            lost = plan.lost.get(group)
            assert {o for o in expected if o >= offset} == set(range(lost.begin, lost.end) if lost else ())


def test_by_age_whole_segments_go_from_the_beginning_on() -> None:
    segments = [
        SizedSegment(QUEUE, 10, 20, 1, newest_ms=5),
        SizedSegment(QUEUE, 0, 10, 1, newest_ms=3),
        SizedSegment(QUEUE, 20, 30, 1, newest_ms=4),  # a broker's clock was set back
        SizedSegment(OTHER, 0, 5, 1, newest_ms=7),
    ]
    assert removable_by_age(segments, 3) == {}
    assert removable_by_age(segments, 4) == removable_by_age(segments, 5) == {QUEUE: 10}
    assert removable_by_age(segments, 6) == {QUEUE: 30}
    assert removable_by_age(segments, 8) == {QUEUE: 30, OTHER: 5}


def test_the_oldest_segments_go_until_the_topic_fits() -> None:
    segments = [
        SizedSegment(QUEUE, 0, 10, 100, newest_ms=1),
        SizedSegment(OTHER, 0, 5, 50, newest_ms=2),
        SizedSegment(QUEUE, 10, 20, 100, newest_ms=3),
        SizedSegment(OTHER, 5, 9, 50, newest_ms=4),
    ]
    assert removable_by_size(segments, 300) == {}
    assert removable_by_size(segments, 299) == {QUEUE: 1}
    assert removable_by_size(segments, 200) == {QUEUE: 10}
    assert removable_by_size(segments, 199) == {QUEUE: 10, OTHER: 1}
    assert removable_by_size(segments, 49) == {QUEUE: 20, OTHER: 6}


def test_of_a_joined_segment_only_the_oldest_messages_go() -> None:
    """Compaction makes one segment of a day: not all of it goes for a byte too much."""
    joined = [SizedSegment(QUEUE, 100, 1200, 11_000, newest_ms=1)]
    assert removable_by_size(joined, 10_999) == {QUEUE: 101}
    assert removable_by_size(joined, 5) == {QUEUE: 1200}
