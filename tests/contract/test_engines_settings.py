"""What a user writes into ``consumers.toml``, and what a window of both engines makes of it: where it starts (rules 5),
how it calls its listener (rules 9). Caps, timeouts, retries and order have files of their own. See ``test_engines.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.consumer.listener import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings, load_settings
from tests.contract.engines import story
from tests.contract.world import DAY, HOUR, LISTENER, NOON, World, bodies, consumed, counts, orders, several


def written(*lines: str) -> GroupSettings:
    """The group of a settings file with these lines."""
    text = f"""
    [[group]]
    name = "billing"
    listener = "{LISTENER}"
    listener_process = false  # what it answers is a function of the running test
    {chr(10).join(lines)}

    [[group.subscription]]
    topic = "Orders"
    """
    return load_settings(text, "consumers.toml").group("billing")


# --- where it starts -------------------------------------------------------------------------------------------------

FIRST = 'consume_from_where = "CONSUME_FROM_FIRST_OFFSET"'
TIMESTAMP = 'consume_from_where = "CONSUME_FROM_TIMESTAMP"'
YOUNG = "young_topic_starts_at_zero = true"
LIKE_LAST = [
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
]


@pytest.mark.parametrize(
    ("lines", "trimmed", "start", "rule"),
    [
        ([], 5, 15, "last_offset"),
        *(([f'consume_from_where = "{name}"'], 5, 15, "last_offset") for name in LIKE_LAST),
        ([FIRST], 5, 5, "first_offset"),
        ([FIRST], 0, 0, "first_offset"),
        ([TIMESTAMP, "consume_timestamp = 2024-06-03T11:00:08Z"], 5, 8, "timestamp"),
        ([TIMESTAMP, 'consume_timestamp = "20240603190008+08:00"'], 5, 8, "timestamp"),
        ([TIMESTAMP, "consume_timestamp = 2024-06-03T11:00:07.001Z"], 5, 8, "timestamp"),
        ([TIMESTAMP, "consume_timestamp = 2024-06-03T11:00:01Z"], 5, 5, "timestamp"),
        ([TIMESTAMP, "consume_timestamp = 2024-06-03T13:00:00Z"], 5, 15, "timestamp"),
        ([YOUNG], 0, 0, "young_topic_starts_at_zero"),
        ([YOUNG, TIMESTAMP, "consume_timestamp = 2024-06-03T13:00:00Z"], 0, 0, "young_topic_starts_at_zero"),
        ([YOUNG], 5, 15, "last_offset"),
    ],
)
@story
def test_a_groups_first_window_starts_where_its_settings_say(
    world: World, lines: list[str], trimmed: int, start: int, rule: str
) -> None:
    """Offsets 0 to 14, stored one a second from 11:00:00 on; those before ``trimmed`` were removed."""
    world.fill(orders(0), several(15))
    assert NOON - HOUR == 1_717_412_400_000  # 2024-06-03 11:00:00 UTC
    if trimmed:
        world.trim(orders(0), trimmed)
    report = world.consume(written(*lines), f"{DAY}-1")
    assert consumed(report) == {orders(0): (start, 15)}
    assert [done.start_rule for done in report.consumed] == [rule]
    world.fill(orders(0), several(2, first=15))
    again = world.consume(written(*lines), f"{DAY}-2")
    assert (consumed(again), again.consumed[0].start_rule) == ({orders(0): (15, 17)}, "stored")


@pytest.mark.parametrize(
    ("line", "start", "rule"),
    [
        ("", 0, "later_queue_from_min"),
        ("later_queues_start_at_min = true", 0, "later_queue_from_min"),
        ("later_queues_start_at_min = false", 4, "last_offset"),
    ],
)
@story
def test_a_queue_that_appears_later_starts_as_the_switch_says(world: World, line: str, start: int, rule: str) -> None:
    world.fill(orders(0), several(3))
    world.consume(written(line), f"{DAY}-1")
    world.fill(orders(1), several(4, first=100))
    report = world.consume(written(line), f"{DAY}-2")
    assert consumed(report) == {orders(1): (start, 4)}
    assert report.consumed[0].start_rule == rule


# --- how its listener is asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "size"), [("", 1), *((f"consume_message_batch_max_size = {n}", n) for n in (2, 1024))]
)
@story
def test_a_batch_holds_as_many_messages_as_the_settings_say(world: World, line: str, size: int) -> None:
    world.fill(orders(0), several(1100))
    asked: list[int] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        asked.append(len(msgs))
        return "CONSUME_SUCCESS"

    world.consume(written(FIRST, line), f"{DAY}-1", listener)
    assert (max(asked), sum(asked), len(asked)) == (size, 1100, -(-1100 // size))


@pytest.mark.parametrize(
    ("status", "ack_index", "sent_back"),
    [
        ("CONSUME_SUCCESS", None, []),
        ("CONSUME_SUCCESS", 99, []),
        ("CONSUME_SUCCESS", 3, []),
        ("CONSUME_SUCCESS", 1, [b"2", b"3"]),
        ("CONSUME_SUCCESS", 0, [b"1", b"2", b"3"]),
        ("CONSUME_SUCCESS", -1, [b"0", b"1", b"2", b"3"]),
        ("RECONSUME_LATER", 1, [b"0", b"1", b"2", b"3"]),
        ("RECONSUME_LATER", None, [b"0", b"1", b"2", b"3"]),
        (None, 2, [b"0", b"1", b"2", b"3"]),
    ],
)
@story
def test_what_is_sent_back_follows_the_status_and_the_ack_index(
    world: World, status: str | None, ack_index: int | None, sent_back: list[bytes]
) -> None:
    """The table of rules 9.1, as far as a send-back cannot fail by itself here."""
    world.fill(orders(0), several(4))

    def listener(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> str | None:
        if ack_index is not None:
            context.ack_index = ack_index
        return status

    report = world.consume(written(FIRST, "consume_message_batch_max_size = 4"), f"{DAY}-1", listener)
    assert (bodies(world.lane(3)), world.offset(orders(0))) == (sent_back, 4)
    assert counts(report).get("retried", 0) == len(sent_back)


@story
def test_a_suspend_time_is_taken_and_not_slept(world: World) -> None:
    world.fill(orders(0), several(2))

    def listener(msgs: list[MessageExt], context: ConsumeOrderlyContext) -> str:
        context.suspend_current_queue_time_millis = 30_000
        return "SUSPEND_CURRENT_QUEUE_A_MOMENT"

    before = world.clock()
    report = world.consume(written(FIRST, 'mode = "orderly"', "suspend_tries_per_window = 5"), f"{DAY}-1", listener)
    assert [(blocked.range.begin, blocked.attempts) for blocked in report.blocked] == [(0, 5)]
    assert world.clock() - before < 1000
