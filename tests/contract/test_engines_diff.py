"""What every engine promises to who compares two attempts of a replay: the messages that ended differently, each told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.admin.diff import DiffReport, End, Named
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.commit.positions import Outcome
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import CustomizedRetryPolicy, GroupRetryPolicy, GroupRetryPolicyType
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.sql.sql import query
from rmq_store.message.message import MessageExt
from rmq_store.window.consume_request import ConsumeRequest, Scope
from tests.contract.engines import LakeWorld, story
from tests.contract.world import (
    ANA,
    DAY,
    HOUR,
    NOON,
    Listen,
    World,
    counts,
    fail_bodies,
    group,
    listening,
    orders,
    said,
    several,
    succeed,
)

FIRST = f"{DAY}-replay"
NAME = replay_group("billing", FIRST)


def replayed(world: World, listener: Listen = succeed, count: int = 6, **settings: Any) -> World:
    """The first attempt of a replay of so many messages, one a batch."""
    world.fill(orders(0), several(count))
    settings = {"consume_message_batch_max_size": 1} | settings
    request = ConsumeRequest(FIRST, ANA)
    assert world.replay(group(**settings), "Orders", NOON - HOUR, request, listener).group == NAME
    return world


def again(world: World, listener: Listen = succeed, number: int = 2, **settings: Any) -> World:
    """Another attempt of it."""
    settings = {"consume_message_batch_max_size": 1} | settings
    world.reprocess(NAME, f"{DAY}-r{number}", listener, **settings)
    return world


def follow_up(world: World, listener: Listen = succeed, number: int = 1, **settings: Any) -> dict[str, int]:
    """Retries that are due, delivered and consumed."""
    world.clock.advance(2 * HOUR)
    world.deliver(f"{DAY}-d{number}")
    only = Scope(retries_only=True)
    settings = {"consume_message_batch_max_size": 1} | settings
    return counts(world.consume(group(NAME, **settings), f"{DAY}-f{number}", listener, scope=only))


def raising(**errors: Exception) -> Listen:
    """``b5=error``: that body raises it."""

    def listener(msgs: list[MessageExt], context: Any) -> str:
        error = errors.get("b" + (msgs[0].body or b"").decode())
        if error is not None:
            raise error
        return "CONSUME_SUCCESS"

    return listener


def die(msgs: list[MessageExt], context: Any) -> str:
    context.delay_level_when_next_consume = -1
    return "RECONSUME_LATER"


def table(report: DiffReport) -> dict[tuple[str, str], tuple[int, int]]:
    return {(pair.first, pair.second): (pair.messages, pair.differing) for pair in report.table}


def ends(report: DiffReport) -> dict[int, tuple[str, str]]:
    return {message.offset: (message.first.outcome, message.second.outcome) for message in report.listed}


# --- one window each -------------------------------------------------------------------------------------------------


@story
def test_attempts_that_ended_alike_differ_in_nothing(world: World) -> None:
    again(replayed(world, fail_bodies(b"2")), fail_bodies(b"2"))
    report = world.diff(NAME)
    assert (report.differing, report.listed) == (0, ())
    assert table(report) == {("acked", "acked"): (5, 0), ("retried", "retried"): (1, 0)}


@story
def test_a_message_that_ended_differently_is_told_with_both_ends_and_its_names(world: World) -> None:
    again(replayed(world, raising(b2=ValueError("no price"), b3=ValueError("no price"))), raising(b3=ValueError("no")))
    report = world.diff(NAME)
    assert table(report) == {("acked", "acked"): (4, 0), ("retried", "acked"): (1, 1), ("retried", "retried"): (1, 0)}
    (message,) = report.listed
    assert (message.queue, message.offset) == (orders(0), 2)
    assert message.named == Named(f"{2:032X}", "U2", None)
    assert message.first == End("retried", 1, "ValueError", "no price")
    assert message.second == End("acked", 1)


@story
def test_another_class_of_error_is_a_difference_and_another_text_is_none(world: World) -> None:
    replayed(world, raising(b1=ValueError("at 12:00"), b2=ValueError("x")))
    report = again(world, raising(b1=ValueError("at 12:05"), b2=KeyError("x"))).diff(NAME)
    assert table(report)["retried", "retried"] == (2, 1)
    assert [(m.offset, m.first.error_type, m.second.error_type) for m in report.listed] == [
        (2, "ValueError", "KeyError")
    ]


@story
def test_both_attempts_are_told_with_who_asked_for_them_and_why(world: World) -> None:
    replayed(world, fail_bodies(b"2"))
    world.reprocess(NAME, f"{DAY}-r2", reason="the price is known")
    report = world.diff(NAME)
    assert [
        (a.number, a.complete, a.count(Outcome.ACKED), a.count(Outcome.RETRIED)) for a in (report.first, report.second)
    ] == [
        (1, True, 5, 1),
        (2, True, 6, 0),
    ]
    assert report.second.begun is not None
    assert (report.second.begun.actor, report.second.begun.reason) == (ANA, "the price is known")


@story
def test_the_first_so_many_are_listed_and_all_are_counted(world: World) -> None:
    again(replayed(world, fail_bodies(b"1", b"2", b"4")))
    assert [(report.differing, list(ends(report))) for report in (world.diff(NAME, limit=n) for n in (0, 2, 9))] == [
        (3, []),
        (3, [1, 2]),
        (3, [1, 2, 4]),
    ]


# --- which attempts --------------------------------------------------------------------------------------------------


@story
def test_the_last_two_attempts_are_compared_unless_others_are_chosen(world: World) -> None:
    again(again(replayed(world, fail_bodies(b"1")), fail_bodies(b"2")), succeed, 3)
    assert ends(world.diff(NAME)) == {2: ("retried", "acked")}
    assert ends(world.diff(NAME, (1, 2))) == {1: ("retried", "acked"), 2: ("acked", "retried")}
    assert ends(world.diff(NAME, (3, 1))) == {1: ("acked", "retried")}


@story
def test_attempts_that_are_not_there_are_refused(world: World) -> None:
    replayed(world)
    with pytest.raises(WrongUse, match=f"one attempt, and nothing to compare it with.*--group {NAME} --reprocess"):
        world.diff(NAME)
    again(world)
    for asked in ((1, 3), (2, 2), (0, 1)):
        with pytest.raises(WrongUse, match=f"{NAME} has the attempts 1 to 2: choose two of them, not {asked[0]} and"):
            world.diff(NAME, asked)
    with pytest.raises(WrongUse, match="billing is not a replay group"):
        world.diff("billing")


@story
def test_what_an_attempt_has_not_read_yet_is_unread(world: World) -> None:
    replayed(world, fail_bodies(b"1", b"5"))
    world.reprocess(NAME, f"{DAY}-r2", max_messages=4)
    report = world.diff(NAME)
    assert (report.first.complete, report.second.complete) == (True, False)
    assert table(report) == {
        ("acked", "acked"): (3, 0),
        ("acked", "unread"): (1, 1),
        ("retried", "acked"): (1, 1),
        ("retried", "unread"): (1, 1),
    }
    world.reprocess(NAME, f"{DAY}-r2", max_messages=4)
    assert ends(world.diff(NAME)) == {1: ("retried", "acked"), 5: ("retried", "acked")}


@story
def test_all_parts_of_an_attempt_are_compared(world: World) -> None:
    world.fill(orders(0), several(6))
    request, two = ConsumeRequest(FIRST, ANA), group(max_messages=2)
    while not world.replay(two, "Orders", NOON - HOUR, request, fail_bodies(b"0", b"5")).complete:
        continue
    while not world.reprocess(NAME, f"{DAY}-r2", fail_bodies(b"0"), max_messages=5).complete:
        continue
    assert ends(world.diff(NAME)) == {5: ("retried", "acked")}


@story
def test_what_a_reset_of_the_replay_made_read_again_belongs_to_no_attempt(world: World) -> None:
    replayed(world, fail_bodies(b"1"))
    reset = ResetRequest("billing", "Orders", ResetTo.MIN, f"{DAY}-reset", ANA, "wrong price")
    object.__setattr__(reset, "group", NAME)  # stores of earlier versions have such resets, which are refused now
    world.move(reset)
    world.consume(group(NAME), f"{DAY}-again", fail_bodies(b"2"))
    again(world, fail_bodies(b"3"))
    assert ends(world.diff(NAME)) == {1: ("retried", "acked"), 3: ("acked", "retried")}
    if isinstance(world, LakeWorld):
        numbers = query(world.store, "SELECT attempt, attempts FROM windows ORDER BY read_version").to_pylist()
        assert [(row["attempt"], row["attempts"]) for row in numbers] == [(1, 2), (1, 2), (2, 2)]


@story
def test_what_lies_behind_a_message_that_an_attempt_waits_at_in_order_is_unread(world: World) -> None:
    def listener(msgs: list[MessageExt], context: Any) -> str:
        return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if msgs[0].body == b"4" else "SUCCESS"

    again(replayed(world, lambda msgs, context: "SUCCESS", mode="orderly"), listener, mode="orderly")
    assert ends(world.diff(NAME)) == {4: ("acked", "unread"), 5: ("acked", "unread")}


@story
def test_what_a_broadcasting_client_dropped_is_told_with_the_reason(world: World) -> None:
    client = group("audit@a", message_model=MessageModel.BROADCASTING, consume_message_batch_max_size=1)
    world.fill(orders(0), several(6))
    world.replay(client, "Orders", NOON - HOUR, ConsumeRequest(FIRST, ANA), raising(b2=ValueError("no price")))
    name = replay_group("audit@a", FIRST)
    asked = world.begin_attempt(replace(client, name=name), ConsumeRequest(f"{DAY}-r2", ANA, "mended"))
    with listening(succeed):
        world.consume_window(asked[0], asked[1], world.host, asked[2])
    (message,) = world.diff(name).listed
    assert (message.offset, message.first.outcome, message.first.tries, message.second) == (
        2,
        "dropped",
        1,
        End("acked", 1),
    )
    assert "no price" in (message.first.error_text or "")


# --- retries ---------------------------------------------------------------------------------------------------------


@story
def test_retries_are_followed_to_their_end(world: World) -> None:
    """Of the first attempt 1 succeeds at its second retry, 2 dies, 3 dies at once and 4 is still waiting."""
    most = {"max_reconsume_times": 2}

    def listener(msgs: list[MessageExt], context: Any) -> str:
        if msgs[0].body == b"3":
            return die(msgs, context)
        return str(fail_bodies(b"1", b"2")(msgs, context)[0])

    replayed(world, listener, **most)
    assert follow_up(world, fail_bodies(b"1", b"2"), 1, **most) == {"retried": 2}
    assert follow_up(world, fail_bodies(b"2"), 2, **most) == {"acked": 1, "dead": 1}
    again(world, fail_bodies(b"1", b"4"), **most)
    assert {
        m.offset: (m.first.outcome, m.first.tries, m.second.outcome, m.second.tries) for m in world.diff(NAME).listed
    } == {
        1: ("acked_later", 3, "retried", 1),
        2: ("dead", 3, "acked", 1),
        3: ("dead", 1, "acked", 1),
        4: ("acked", 1, "retried", 1),
    }
    assert follow_up(world, succeed, 3, **most) == {"acked": 2}
    assert ends(world.diff(NAME))[4] == ("acked", "acked_later")
    assert 1 not in ends(world.diff(NAME)), "both attempts had it acked by a retry"


@story
def test_the_error_of_a_retry_is_the_last_one(world: World) -> None:
    replayed(world, raising(b1=ValueError("first")), max_reconsume_times=1)
    follow_up(world, raising(b1=KeyError("last")), max_reconsume_times=1)
    (message,) = again(world).diff(NAME).listed
    assert message.first == End("dead", 2, "KeyError", "'last'")


@story
def test_a_delivered_retry_that_nobody_has_read_is_retried(world: World) -> None:
    replayed(world, fail_bodies(b"1"))
    world.clock.advance(HOUR)
    world.deliver(f"{DAY}-d")
    assert ends(again(world).diff(NAME)) == {1: ("retried", "acked")}


@story
def test_retries_by_the_timer_are_followed_too(world: World) -> None:
    slow = GroupRetryPolicy(GroupRetryPolicyType.CUSTOMIZED, customized=CustomizedRetryPolicy((1000, 3_000_000)))
    replayed(world, fail_bodies(b"1"), retry_policy=slow)
    assert follow_up(world, retry_policy=slow) == {"acked": 1}
    assert ends(again(world).diff(NAME)) == {1: ("acked_later", "acked")}


@story
def test_a_dead_letter_that_was_sent_again_stays_dead(world: World) -> None:
    replayed(world, die, 1)
    world.redrive(group=NAME)
    assert follow_up(world) == {"acked": 1}
    assert ends(again(world).diff(NAME)) == {0: ("dead", "acked")}


# --- what a subscription leaves out ----------------------------------------------------------------------------------


def tagged(world: World, count: int = 8) -> World:
    """Every second message is of tag A, the others of B."""
    world.fill(orders(0), [said(n, tag="AB"[n % 2], at=NOON - HOUR + n) for n in range(count)])
    return world


@story
def test_what_both_filtered_is_counted_as_filtered(world: World) -> None:
    request = ConsumeRequest(FIRST, ANA)
    only_a: dict[str, Any] = {"topics": {"Orders": "A"}}
    tagged(world).replay(group(**only_a), "Orders", NOON - HOUR, request, fail_bodies(b"2", b"4"))
    world.reprocess(NAME, f"{DAY}-r2", fail_bodies(b"4"), **only_a)
    report = world.diff(NAME)
    assert table(report) == {
        ("acked", "acked"): (2, 0),
        ("filtered", "filtered"): (4, 0),
        ("retried", "acked"): (1, 1),
        ("retried", "retried"): (1, 0),
    }
    assert ends(report) == {2: ("retried", "acked")}


@pytest.mark.parametrize(("expression", "type_"), [("B || C", "TAG"), ("TAGS = 'B'", "SQL92")])
@story
def test_another_subscription_is_asked_about_each_message(world: World, expression: str, type_: str) -> None:
    request = ConsumeRequest(FIRST, ANA)
    tagged(world).replay(group(topics={"Orders": "A"}), "Orders", NOON - HOUR, request, fail_bodies(b"2"))
    other = build_subscription_data("Orders", expression, type_)
    now = replace(group(NAME), subscriptions=(other,), subscription_version=2)
    asked = world.begin_attempt(now, ConsumeRequest(f"{DAY}-r2", ANA, "the other tag"))
    with listening(fail_bodies(b"5")):
        world.consume_window(asked[0], asked[1], world.host, asked[2])
    assert ends(world.diff(NAME)) == {
        0: ("acked", "filtered"),
        1: ("filtered", "acked"),
        2: ("retried", "filtered"),
        3: ("filtered", "acked"),
        4: ("acked", "filtered"),
        5: ("filtered", "retried"),
        6: ("acked", "filtered"),
        7: ("filtered", "acked"),
    }


@story
def test_messages_that_were_lost_between_the_attempts_are_told_without_names(world: World) -> None:
    request = ConsumeRequest(FIRST, ANA)
    settings: dict[str, Any] = {"topics": {"Orders": "A"}, "on_offset_out_of_range": "skip"}
    tagged(world).replay(group(**settings), "Orders", NOON - HOUR, request, fail_bodies(b"0"))
    world.trim(orders(0), 3)
    world.reprocess(NAME, f"{DAY}-r2", **settings)
    report = world.diff(NAME)
    assert table(report) == {
        ("acked", "acked"): (2, 0),
        ("acked or filtered", "lost"): (2, 2),
        ("filtered", "filtered"): (3, 0),
        ("retried", "lost"): (1, 1),
    }
    assert [(m.offset, m.named.unique_key) for m in report.listed] == [(0, None), (1, None), (2, None)]
