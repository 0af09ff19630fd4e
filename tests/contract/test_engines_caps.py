"""What every engine promises of a window's caps, ``max_bytes`` and ``max_minutes``: a request goes on in the next window,
and nothing is asked about twice. ``max_messages`` is in ``test_engines.py``, where also ``story`` is explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.consumer.consume_result import MessageModel
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import WindowReport
from tests.contract.engines import story
from tests.contract.world import DAY, Listen, Lost, World, consumed, counts, group, orders, said, several
from tests.oracle.memory.rows import MessageRow

MINUTE = 60_000


def sized(*sizes: int) -> list[MessageRow]:
    return [replace(said(n), body=b"x" * size) for n, size in enumerate(sizes)]


def windows(
    world: World, settings: GroupSettings, listener: Listen, request_id: str = f"{DAY}-1"
) -> list[WindowReport]:
    """All windows of a request."""
    reports = [world.consume(settings, request_id, listener)]
    while not reports[-1].complete:
        world.clock.advance(1)
        reports.append(world.consume(settings, request_id, listener))
    return reports


def seeing(seen: list[int], *, answer: str = "CONSUME_SUCCESS") -> Listen:
    def listener(msgs: list[MessageExt], context: Any) -> str:
        seen.extend(m.queue_offset for m in msgs)
        return answer

    return listener


# --- bytes -----------------------------------------------------------------------------------------------------------


@story
def test_a_window_takes_bodies_of_max_bytes_and_the_request_goes_on(world: World) -> None:
    world.fill(orders(0), sized(40, 40, 40, 10, 10, 0))
    seen: list[int] = []
    ends = [consumed(done)[orders(0)] for done in windows(world, group(max_bytes=90), seeing(seen))]
    assert ends == [(0, 2), (2, 6)]
    assert seen == [0, 1, 2, 3, 4, 5]


@story
def test_the_first_message_of_a_queue_is_taken_whatever_its_size(world: World) -> None:
    world.fill(orders(0), sized(500, 1, 500, 500))
    world.fill(orders(1), sized(7, 7, 7))
    reports = windows(world, group(max_bytes=10), seeing([]))
    assert [consumed(done) for done in reports] == [
        {orders(0): (0, 1), orders(1): (0, 1)},
        {orders(0): (1, 2), orders(1): (1, 2)},
        {orders(0): (2, 3), orders(1): (2, 3)},
        {orders(0): (3, 4)},
    ]


@story
def test_what_a_small_queue_leaves_of_the_bytes_goes_to_the_others(world: World) -> None:
    world.fill(orders(0), sized(10))
    world.fill(orders(1), sized(*[10] * 20))
    first, *_ = windows(world, group(max_bytes=100), seeing([]))
    assert consumed(first) == {orders(0): (0, 1), orders(1): (0, 9)}


@story
def test_the_smaller_of_two_caps_counts_and_holes_weigh_nothing(world: World) -> None:
    world.fill(orders(0), sized(*[10] * 8))
    world.fill(orders(0), sized(*[10] * 8), base=20)
    settings = group(max_bytes=100, max_messages=5, on_offset_out_of_range="skip")
    first, second, *_ = windows(world, settings, seeing([]))
    assert (consumed(first)[orders(0)], consumed(second)[orders(0)]) == ((0, 5), (5, 10))
    world.fill(orders(1), sized(*[10] * 3))
    world.fill(orders(1), sized(*[10] * 9), base=1000)
    whole = group("other", max_bytes=100, max_messages=None, on_offset_out_of_range="skip", topics=("Orders",))
    assert consumed(windows(world, whole, seeing([]))[0])[orders(1)] == (0, 1002)


# --- minutes ---------------------------------------------------------------------------------------------------------


def slow(world: World, seen: list[tuple[MessageQueue, int]], ms_each: int, answer: Any = "CONSUME_SUCCESS") -> Listen:
    def listener(msgs: list[MessageExt], context: Any) -> Any:
        seen.extend((m.message_queue, m.queue_offset) for m in msgs)
        world.clock.advance(ms_each * len(msgs))
        return answer(msgs) if callable(answer) else answer

    return listener


@story
def test_a_window_ends_after_max_minutes_and_the_request_goes_on_where_it_stood(world: World) -> None:
    world.fill(orders(0), several(300))
    world.fill(orders(1), several(100, first=1000))
    seen: list[tuple[MessageQueue, int]] = []
    reports = windows(world, group(max_minutes=2), slow(world, seen, 1000))
    # Pieces of 64 messages, or of what is left of a queue, until two minutes are over.
    assert [counts(report) for report in reports] == [{"acked": 128}, {"acked": 128}, {"acked": 144}]
    assert consumed(reports[0]) == {orders(0): (0, 128), orders(1): (0, 0)}
    assert len(seen) == len(set(seen)) == 400


@story
def test_what_failed_in_time_is_retried_and_the_rest_is_not_looked_at(world: World) -> None:
    world.fill(orders(0), [said(n, tag="TagA" if n % 2 else "TagB") for n in range(400)])
    seen: list[tuple[MessageQueue, int]] = []

    def some_fail(msgs: list[MessageExt]) -> list[str]:
        return ["RECONSUME_LATER" if m.queue_offset % 10 == 1 else "CONSUME_SUCCESS" for m in msgs]

    settings = group(topics={"Orders": "TagA"}, max_minutes=1)
    reports = windows(world, settings, slow(world, seen, 1000, some_fail))
    assert consumed(reports[0]) == {orders(0): (0, 128)}
    assert counts(reports[0]) == {"acked": 51, "filtered": 64, "retried": 13}
    assert sum(report.messages() for report in reports) == 400
    assert sorted(offset for _, offset in seen) == list(range(1, 400, 2))
    assert len(world.lane(3)) == 40


@story
def test_messages_that_are_lost_count_up_to_where_the_window_came(world: World) -> None:
    world.fill(orders(0), several(70), base=0)
    world.fill(orders(0), several(10, first=100), base=100)
    settings = group(max_minutes=1, on_offset_out_of_range="skip")
    first, second = windows(world, settings, slow(world, [], 1000))
    assert (consumed(first), counts(first)) == ({orders(0): (0, 64)}, {"acked": 64})
    assert (consumed(second), counts(second)) == ({orders(0): (64, 110)}, {"acked": 16, "lost": 30})
    assert [lost.outcome for lost in world.outcomes("billing")] == ["lost"]


@story
def test_a_queue_that_is_consumed_in_order_waits_where_it_stood_and_is_not_blocked(world: World) -> None:
    world.fill(orders(0), several(100))
    world.fill(orders(1), several(3, first=1000))
    seen: list[tuple[MessageQueue, int]] = []
    settings = group(mode="orderly", max_minutes=1, consume_message_batch_max_size=10)
    reports = windows(world, settings, slow(world, seen, 1000, "SUCCESS"))
    assert consumed(reports[0]) == {orders(0): (0, 60), orders(1): (0, 3)}
    assert consumed(reports[1]) == {orders(0): (60, 100)}
    assert [report.blocked for report in reports] == [(), ()]
    assert len(seen) == len(set(seen)) == 103


@story
def test_what_a_broadcasting_client_gives_up_in_time_is_dropped(world: World) -> None:
    world.fill(orders(0), several(100))
    client = group("audit@a", message_model=MessageModel.BROADCASTING, max_minutes=1)
    first, second = windows(world, client, slow(world, [], 1000, "RECONSUME_LATER"))
    assert (counts(first), counts(second)) == ({"dropped": 64}, {"dropped": 36})
    assert {type(lost) for lost in world.outcomes("audit@a")} == {Lost}


@pytest.mark.parametrize(("cap", "messages"), [({"max_bytes": 1}, 20), ({"max_minutes": 1}, 130)])
@story
def test_a_window_always_comes_on(world: World, cap: dict[str, Any], messages: int) -> None:
    world.fill(orders(0), several(messages))
    reports = windows(world, group(**cap), slow(world, [], 10 * MINUTE))
    assert all(report.messages() for report in reports)
    assert world.offset(orders(0)) == messages
