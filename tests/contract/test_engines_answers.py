"""What every engine makes of the answers that a listener may give (rules 9.1). See ``test_engines.py``."""

from __future__ import annotations

import os
import sys
from itertools import chain
from typing import Any

import pytest

from rmq_store.consumer.listener import ConsumeFailed
from rmq_store.errors import ListenerError
from rmq_store.message.message import MessageExt
from tests.contract.engines import story
from tests.contract.world import (
    BILLING,
    DAY,
    HOUR,
    LISTENER,
    NOON,
    World,
    bodies,
    counts,
    fail,
    fail_bodies,
    group,
    orders,
    several,
)


@story
def test_failed_messages_are_retried_at_level_three_with_rocketmqs_properties(world: World) -> None:
    """The first chain of rules 16.4: offsets 0 to 9, a listener with one status per message fails 4 and 7."""
    world.fill(orders(0), several(10))
    world.clock.advance(1234)
    report = world.consume(BILLING, f"{DAY}-1", fail_bodies(b"4", b"7"))
    assert counts(report) == {"acked": 8, "retried": 2}
    assert world.offset(orders(0)) == 10

    waiting = world.lane(3)
    assert [m.row.body for m in waiting] == [b"4", b"7"]
    assert [m.row.reconsume_times for m in waiting] == [1, 1]
    assert {m.store_timestamp for m in waiting} == {NOON + 1234}
    assert world.due_at(waiting[0].queue) == {0: NOON + 1234 + 10_000, 1: NOON + 1234 + 10_000}
    for message, number in zip(waiting, (4, 7), strict=True):
        assert message.row.properties == {
            "UNIQ_KEY": f"U{number}",
            "RETRY_TOPIC": "Orders",
            "ORIGIN_MESSAGE_ID": f"{number:032X}",
            "WAIT": "false",
            "DELAY": "3",
            "REAL_TOPIC": "%RETRY%billing",
            "REAL_QID": "0",
        }
        origin = message.row.provenance
        assert origin is not None
        assert (origin.group, origin.queue, origin.offset, origin.cause, origin.attempt) == (
            ("billing", orders(0), number, "retry", 1)
        )


@story
def test_ack_index_three_also_retries_what_lies_behind_it(world: World) -> None:
    """The first chain of rules 16.4, through RocketMQ's own interface."""
    world.fill(orders(0), several(10))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.ack_index = 3
        return "CONSUME_SUCCESS"

    assert counts(world.consume(BILLING, f"{DAY}-1", listener)) == {"acked": 4, "retried": 6}
    assert bodies(world.lane(3)) == [b"4", b"5", b"6", b"7", b"8", b"9"]


@story
def test_an_ack_index_of_minus_one_fails_the_batch_and_a_smaller_one_is_refused(world: World) -> None:
    world.fill(orders(0), several(3))

    def at(index: int) -> Any:
        def listener(msgs: list[MessageExt], context: Any) -> str:
            context.ack_index = index
            return "CONSUME_SUCCESS"

        return listener

    with pytest.raises(ListenerError, match="ack_index -2"):
        world.consume(BILLING, f"{DAY}-1", at(-2))
    assert world.offset(orders(0)) is None
    assert counts(world.consume(BILLING, f"{DAY}-2", at(-1))) == {"retried": 3}


@story
def test_reconsume_later_and_none_fail_the_whole_batch(world: World) -> None:
    world.fill(orders(0), several(4))

    def listener(msgs: list[MessageExt], context: Any) -> str | None:
        return "RECONSUME_LATER" if msgs[0].queue_offset == 0 else None

    assert counts(world.consume(group(consume_message_batch_max_size=2), f"{DAY}-1", listener)) == {"retried": 4}


@story
def test_an_exception_at_message_k_leaves_those_before_it_their_result(world: World) -> None:
    world.fill(orders(0), several(5))

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        for message in msgs:
            if message.body == b"3":
                raise ValueError("no price")
            yield "RECONSUME_LATER" if message.body == b"1" else "CONSUME_SUCCESS"

    assert counts(world.consume(BILLING, f"{DAY}-1", listener)) == {"acked": 2, "retried": 3}
    errors = {
        m.row.body: (m.row.provenance.error_type, m.row.provenance.error_text)
        for m in world.lane(3)
        if m.row.provenance
    }
    assert errors == {
        b"1": (None, None),
        b"3": ("ValueError", "no price"),
        b"4": ("NotReached", "message 3 of the batch failed first: ValueError"),
    }


@story
def test_consume_failed_says_at_which_message(world: World) -> None:
    world.fill(orders(0), several(5))

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        raise ConsumeFailed(3, "disk full")

    assert counts(world.consume(BILLING, f"{DAY}-1", listener)) == {"acked": 3, "retried": 2}


@story
def test_any_other_exception_counts_from_the_first_message(world: World) -> None:
    world.fill(orders(0), several(5))

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        raise RuntimeError("the database is away")

    assert counts(world.consume(BILLING, f"{DAY}-1", listener)) == {"retried": 5}


@story
def test_all_or_nothing_fails_the_whole_batch_for_one_exception(world: World) -> None:
    world.fill(orders(0), several(5))

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        raise ConsumeFailed(3, "disk full")

    assert counts(world.consume(group(all_or_nothing=True), f"{DAY}-1", listener)) == {"retried": 5}


@story
def test_an_answer_that_is_none_stops_with_nothing_committed(world: World) -> None:
    world.fill(orders(0), several(5))
    before = world.projection()
    for number, answer in enumerate(["SUCCESS", ["CONSUME_SUCCESS"], 7]):
        with pytest.raises(ListenerError, match="the listener answered"):
            world.consume(BILLING, f"{DAY}-{number}", lambda msgs, context, said=answer: said)  # type: ignore[misc]
    for part in ("messages", "history", "outcomes", "commits"):
        assert world.projection()[part] == before[part]
    assert world.consume(BILLING, f"{DAY}-9").messages() == 5


class _Mute(Exception):
    def __str__(self) -> str:
        sys.exit(0)


def _exits(msgs: list[MessageExt], context: Any) -> Any:
    sys.exit(0)


def _exits_at_once(msgs: list[MessageExt], context: Any) -> Any:
    os._exit(0)


def _is_mute(msgs: list[MessageExt], context: Any) -> Any:
    raise _Mute


def _closes(msgs: list[MessageExt], context: Any) -> Any:
    raise GeneratorExit


def _yields_and_exits(msgs: list[MessageExt], context: Any) -> Any:
    yield "RECONSUME_LATER"
    raise _Mute


ENDS = {_exits: "SystemExit", _exits_at_once: "SystemExit", _is_mute: "_Mute", _closes: "GeneratorExit"}


@story
def test_a_listener_that_ends_the_process_has_failed(world: World) -> None:
    world.fill(orders(0), several(10))
    for number, listener in enumerate([*ENDS, _yields_and_exits]):
        report = world.consume(BILLING, f"{DAY}-{number}", listener, max_messages=2)
        assert counts(report) == {"retried": 2}, listener
    told = [m.row.provenance.error_type for m in world.lane(3) if m.row.provenance]
    assert told == [*(kind for kind in ENDS.values() for _ in range(2)), None, "_Mute"]


@story
def test_in_order_a_listener_that_ends_the_process_suspends_its_queue(world: World) -> None:
    in_order = group(mode="orderly", suspend_tries_per_window=1)
    for number, (listener, kind) in enumerate(ENDS.items()):
        world.fill(orders(number), several(1))
        (blocked,) = world.consume(in_order, f"{DAY}-{number}", listener).blocked[-1:]
        assert (blocked.status, blocked.error_type) == ("SUSPEND_CURRENT_QUEUE_A_MOMENT", kind)


class _NoEquals(str):
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        sys.exit(0)


class _Unshown:
    def __repr__(self) -> str:
        sys.exit(0)


class _NoLength(list[str]):
    def __len__(self) -> int:
        raise ZeroDivisionError


def _telling(answer: Any, **told: Any) -> Any:
    def listener(msgs: list[MessageExt], context: Any) -> Any:
        for name, value in told.items():
            setattr(context, name, value)
        return answer

    return listener


NONSENSE = (
    (_telling(_NoEquals("MAYBE")), "answered 'MAYBE'"),
    (_telling([_Unshown()] * 3), "answered a _Unshown that cannot be shown"),
    (_telling(_NoLength()), "cannot be read: ZeroDivisionError"),
    (_telling("CONSUME_SUCCESS", ack_index=10**30), "ack_index must be a number in"),
    (_telling("CONSUME_SUCCESS", delay_level_when_next_consume=10**30), "delay_level_when_next_consume must be"),
    (_telling("RECONSUME_LATER", delay_level_when_next_consume=10**5000), "that cannot be shown"),
)


@story
def test_nonsense_stops_with_the_listener_the_queue_and_the_offset(world: World) -> None:
    world.fill(orders(0), several(5))
    world.consume(BILLING, f"{DAY}-0", max_messages=2)
    for number, (listener, text) in enumerate(NONSENSE, 1):
        with pytest.raises(ListenerError, match=text) as told:
            world.consume(BILLING, f"{DAY}-{number}", listener)
        assert f"listener {LISTENER}, {orders(0)}, batch at offset 2: " in str(told.value)
    assert counts(world.consume(BILLING, f"{DAY}-9", _telling(_NoEquals("CONSUME_SUCCESS")))) == {"acked": 3}


@story
def test_in_order_nonsense_stops_in_the_same_words(world: World) -> None:
    world.fill(orders(0), several(5))
    in_order = group(mode="orderly")
    for number, answer in enumerate([_NoEquals("MAYBE"), _Unshown()]):
        with pytest.raises(ListenerError) as told:
            world.consume(in_order, f"{DAY}-{number}", _telling(answer))
        assert f"listener {LISTENER}, {orders(0)}, batch at offset 0: the listener answered" in str(told.value)


@story
def test_an_explicit_delay_level_is_taken_and_a_level_too_high_is_the_highest(world: World) -> None:
    world.fill(orders(0), several(2))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = 5 if msgs[0].body == b"0" else 99
        return "RECONSUME_LATER"

    world.consume(group(consume_message_batch_max_size=1), f"{DAY}-1", listener)
    assert bodies(world.lane(5)) == [b"0"]
    assert bodies(world.lane(18)) == [b"1"]
    assert world.due_at(world.lane(5)[0].queue) == {0: NOON + 60_000}
    assert world.due_at(world.lane(18)[0].queue) == {0: NOON + 2 * HOUR}


@story
def test_a_negative_level_is_a_dead_letter_at_once(world: World) -> None:
    world.fill(orders(0), several(2))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = -1
        return "RECONSUME_LATER"

    assert counts(world.consume(BILLING, f"{DAY}-1", listener)) == {"dead": 2}
    letters = world.dead_letters()
    assert bodies(letters) == [b"0", b"1"]
    assert letters[0].row.reconsume_times == 1
    assert letters[0].row.properties == {
        "UNIQ_KEY": "U0",
        "RETRY_TOPIC": "Orders",
        "ORIGIN_MESSAGE_ID": f"{0:032X}",
        "WAIT": "false",
        "DELAY": "0",
    }
    assert letters[0].row.provenance is not None
    assert letters[0].row.provenance.cause == "negative_delay_level"


@story
def test_without_retry_queues_what_fails_is_dead_and_never_dropped(world: World) -> None:
    world.fill(orders(0), several(3))
    report = world.consume(group(retry_queue_nums=0), f"{DAY}-1", fail_bodies(b"1"))
    assert counts(report) == {"acked": 2, "dead": 1}
    assert bodies(world.dead_letters()) == [b"1"]


@story
def test_several_retry_queues_share_the_copies_and_a_rerun_would_share_them_alike(world: World) -> None:
    world.fill(orders(0), several(40))
    wide = group(retry_queue_nums=4)
    world.consume(wide, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    shared = [bodies(world.retries(queue_id=n)) for n in range(4)]
    assert sorted(body or b"" for body in chain(*shared)) == sorted(b"%d" % n for n in range(40))
    assert all(shared)
    assert counts(world.consume(wide, f"{DAY}-2")) == {"acked": 40}
