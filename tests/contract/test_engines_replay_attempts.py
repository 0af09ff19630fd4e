"""What every engine promises to a replay that is done again: nothing moves by itself, and an attempt is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import QueueRange, grp_id
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest, Scope
from tests.contract.engines import story
from tests.contract.world import (
    ANA,
    BILLING,
    DAY,
    HOUR,
    LOCAL,
    NOON,
    Move,
    World,
    consumed,
    counts,
    fail_bodies,
    group,
    listening,
    orders,
    several,
    succeed,
)

FIRST = f"{DAY}-replay"
NAME = replay_group("billing", FIRST)


def replayed(world: World, **more: Any) -> World:
    """Messages 3 to 6 of ten were replayed, and 5 failed."""
    world.fill(orders(0), several(10, step_ms=60_000))
    until = NOON - HOUR + 7 * 60_000
    request = ConsumeRequest(FIRST, ANA, until_ms=until, **more)
    report = world.replay(BILLING, "Orders", NOON - HOUR + 3 * 60_000, request, fail_bodies(b"5"))
    assert report.group == NAME
    return world


@story
def test_another_attempt_reads_what_the_first_one_read_though_more_has_come(world: World) -> None:
    replayed(world)
    world.fill(orders(0), several(5, first=10))
    second = world.reprocess(NAME, f"{DAY}-r2")
    assert (second.status, second.group, consumed(second)) == ("committed", NAME, {orders(0): (3, 7)})
    assert (counts(second), [c.pass_ for c in second.consumed]) == ({"acked": 4}, [1])
    assert world.offset(orders(0)) is None, "the live group has not moved"


ORDERLY: dict[str, Any] = {"mode": "orderly", "consume_message_batch_max_size": 1}


def suspend_at_2(msgs: list[MessageExt], _: object) -> str:
    return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if msgs[0].queue_offset == 2 else "SUCCESS"


@story
def test_another_attempt_reads_on_where_the_first_one_was_blocked(world: World) -> None:
    """A message of an orderly group that fails blocks its queue, and ends the replay there."""
    world.fill(orders(0), several(5))
    first = world.replay(group(**ORDERLY), "Orders", NOON - HOUR, ConsumeRequest(FIRST, ANA), suspend_at_2)
    assert (first.complete, consumed(first), len(first.blocked)) == (True, {orders(0): (0, 2)}, 1)
    second = world.reprocess(NAME, f"{DAY}-r2", lambda msgs, context: "SUCCESS", **ORDERLY)
    assert (consumed(second), second.blocked) == ({orders(0): (0, 5)}, ())


@story
@pytest.mark.parametrize("most", [None, 4])
def test_a_replay_says_what_it_leaves_unread_in_blocked_queues_and_the_next_attempt_reads_it(
    world: World, most: int | None
) -> None:
    """Also where it is asked again; until another attempt has read it. A limit on its messages holds for what is left too."""
    world.fill(orders(0), several(5))
    world.fill(orders(1), several(2))
    ordered: dict[str, Any] = {"mode": "orderly", "consume_message_batch_max_size": 1}

    def suspend(msgs: list[MessageExt], _: object) -> str:
        blocks = (msgs[0].queue_id, msgs[0].queue_offset) in {(0, 1), (1, 0)}
        return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if blocks else "SUCCESS"

    def first(listener: Callable[..., str]) -> WindowReport:
        request = ConsumeRequest(FIRST, ANA, max_messages=most)
        return world.replay(group(**ordered), "Orders", NOON - HOUR, request, listener)

    left = {orders(0): (1, 2 if most else 5), orders(1): (0, 2)}
    for status in ("committed", "already_committed"):
        report = first(suspend)
        assert (report.status, report.complete) == (status, True)
        assert {range_.queue: (range_.begin, range_.end) for range_ in report.unread} == left

    second = world.reprocess(NAME, f"{DAY}-r2", lambda msgs, context: "SUCCESS", **ordered)
    assert consumed(second) == {queue: (0, end) for queue, (_, end) in left.items()}
    assert (second.unread, first(suspend).unread) == ((), ())


@story
def test_a_queue_that_was_moved_or_begins_again_is_not_blocked(world: World) -> None:
    """A reset of a group, and an attempt that begins and whose windows have not come yet."""
    world.fill(orders(0), several(5))

    def live() -> WindowReport:
        return world.consume(group(**ORDERLY), f"{DAY}-live", suspend_at_2)

    def replay() -> WindowReport:
        return world.replay(group(**ORDERLY), "Orders", NOON - HOUR, ConsumeRequest(FIRST, ANA), suspend_at_2)

    left = (QueueRange(orders(0), 2, 5),)
    assert (live().unread, live().unread) == (left, left)
    world.reset_to(ResetTo.MIN)
    assert live().unread == ()

    assert (replay().unread, replay().unread) == (left, left)
    world.begin_attempt(group(NAME, **ORDERLY), ConsumeRequest(f"{DAY}-r2", ANA, "mended"))
    assert replay().unread == ()


@story
@pytest.mark.parametrize(("most", "rest"), [(None, 5), (9, 3), (6, 1)])
def test_each_window_of_a_replay_says_what_it_leaves_in_queues_that_an_earlier_one_has_blocked(
    world: World, most: int | None, rest: int
) -> None:
    """A run that goes on after a kill tells it too. Of a blocked queue for which the limit leaves nothing, the message that
    blocks it is left, and the next attempt reads it."""
    world.fill(orders(0), several(5))
    world.fill(orders(1), several(6))
    ordered: dict[str, Any] = {"mode": "orderly", "consume_message_batch_max_size": 1, "max_messages": 2}

    def suspend(msgs: list[MessageExt], _: object) -> str:
        return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if msgs[0].queue_id == 0 else "SUCCESS"

    def window() -> WindowReport:
        request = ConsumeRequest(FIRST, ANA, max_messages=most)
        return world.replay(group(**ordered), "Orders", NOON - HOUR, request, suspend)

    reports = [window()]
    while not reports[-1].complete:
        reports.append(window())
    assert len(reports) > 2
    assert {range_.queue for report in reports for range_ in report.unread} == {orders(0)}
    for report in (reports[-1], window()):
        assert report.unread == (QueueRange(orders(0), 0, rest),)
    attempt = world.reprocess(NAME, f"{DAY}-r2", lambda msgs, context: "SUCCESS", **(ordered | {"max_messages": None}))
    assert consumed(attempt) == {orders(0): (0, rest), orders(1): (0, 6)}


@story
def test_an_attempt_is_asked_for_once_by_one_request(world: World) -> None:
    replayed(world)
    second = world.reprocess(NAME, f"{DAY}-r2")
    again = world.reprocess(NAME, f"{DAY}-r2", fail_bodies(b"3"))
    assert (again.status, again.counts(), again.commit_id) == ("already_committed", second.counts(), second.commit_id)
    world.reprocess(NAME, f"{DAY}-r3")
    old = world.reprocess(NAME, f"{DAY}-r2", fail_bodies(b"3"))
    assert (old.status, old.commit_id) == ("already_committed", second.commit_id)
    begun = [ctl for ctl in world.ctls() if ctl.action is Action.REPLAY]
    assert [(ctl.request_id, ctl.parameter("attempt"), ctl.epoch) for ctl in begun] == [
        (f"{DAY}-r2", 2, 1),
        (f"{DAY}-r3", 3, 2),
    ]
    windows = [ctl for ctl in world.ctls() if ctl.action is Action.CONSUME]
    assert [ctl.parameter("attempt") for ctl in windows] == [None, 2, 3]


@story
def test_the_first_request_again_does_nothing_after_another_attempt(world: World) -> None:
    replayed(world)
    world.reprocess(NAME, f"{DAY}-r2")
    request = ConsumeRequest(FIRST, ANA, until_ms=NOON - HOUR + 7 * 60_000)
    assert world.replay(BILLING, "Orders", NOON - HOUR + 3 * 60_000, request).status == "already_committed"


@story
def test_who_began_an_attempt_and_why_stands_in_the_history(world: World) -> None:
    replayed(world)
    world.reprocess(NAME, f"{DAY}-r2", reason="the listener is mended")
    assert world.history(NAME) == [
        Move(orders(0), 3, 7, 0, "consume", FIRST, "ana", ""),
        Move(orders(0), 7, 3, 1, "replay", f"{DAY}-r2", "ana", "the listener is mended"),
        Move(orders(0), 3, 7, 1, "consume", f"{DAY}-r2", "ana", "the listener is mended"),
    ]


@story
def test_an_attempt_that_was_begun_is_finished_by_its_request_before_there_is_another(world: World) -> None:
    replayed(world)
    world.begin_attempt(group(NAME), ConsumeRequest(f"{DAY}-r2", ANA, "mended"))
    with pytest.raises(
        WrongUse, match=rf"attempt 2 of {NAME} is not finished: finish it with its own request, {DAY}-r2"
    ):
        world.reprocess(NAME, f"{DAY}-r3")
    assert consumed(world.reprocess(NAME, f"{DAY}-r2")) == {orders(0): (3, 7)}
    assert world.reprocess(NAME, f"{DAY}-r3").status == "committed"


@story
def test_an_attempt_may_have_parts_and_covers_all_parts_of_the_first(world: World) -> None:
    world.fill(orders(0), several(10))
    request, two = ConsumeRequest(FIRST, ANA, max_messages=5), group(max_messages=2)
    while not world.replay(two, "Orders", NOON - HOUR, request).complete:
        continue
    parts = [world.reprocess(NAME, f"{DAY}-r2", max_messages=4) for _ in range(3)]
    assert [report.messages() for report in parts] == [4, 1, 5]
    assert [report.status for report in parts] == ["committed", "committed", "already_committed"]
    assert world.offset(orders(0), NAME) == 5


@story
def test_an_attempt_fences_a_window_of_the_one_before(world: World) -> None:
    replayed(world)
    world.begin_attempt(group(NAME), ConsumeRequest(f"{DAY}-r2", ANA, "mended"))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        second = ConsumeRequest(f"{DAY}-r2", ANA, "mended")
        with listening(succeed):
            world.consume_window(*_asked(world, second))
        world.begin_attempt(group(NAME), ConsumeRequest(f"{DAY}-r3", ANA, "mended again"))
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt):
        world.reprocess(NAME, f"{DAY}-r2", listener)
    assert (world.offset(orders(0), NAME), world.positions().get(grp_id(NAME))) == (3, 2)


def _asked(world: World, request: ConsumeRequest) -> Any:
    settings, asked, scope = world.begin_attempt(group(NAME), request)
    return settings, asked, world.another_host(), scope


@story
def test_retries_of_an_earlier_attempt_are_left_to_the_follow_up(world: World) -> None:
    replayed(world)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert consumed(world.reprocess(NAME, f"{DAY}-r2")) == {orders(0): (3, 7)}
    follow_up = world.consume(group(NAME), f"{DAY}-f", scope=Scope(retries_only=True))
    assert consumed(follow_up) == {MessageQueue(f"%RETRY%{NAME}", LOCAL, 0): (0, 1)}


@story
def test_replays_of_spans_that_follow_each_other_may_be_done_in_any_order(world: World) -> None:
    world.fill(orders(0), several(10, step_ms=60_000))
    spans: dict[int, Any] = {}
    for begin, end in ((6, 10), (0, 3), (3, 6)):
        request = ConsumeRequest(f"{DAY}-{begin}", ANA, until_ms=NOON - HOUR + end * 60_000)
        spans |= {begin: consumed(world.replay(BILLING, "Orders", NOON - HOUR + begin * 60_000, request))}
    assert spans == {6: {orders(0): (6, 10)}, 0: {orders(0): (0, 3)}, 3: {orders(0): (3, 6)}}
    assert consumed(world.reprocess(replay_group("billing", f"{DAY}-0"), f"{DAY}-r2")) == {orders(0): (0, 3)}


@story
def test_what_cannot_be_done_again_is_refused(world: World) -> None:
    replayed(world)
    with pytest.raises(WrongUse, match="billing is not a replay group"):
        world.reprocess("billing", f"{DAY}-r2")
    with pytest.raises(WrongUse, match="needs a reason"):
        world.reprocess(NAME, f"{DAY}-r2", reason="")
    with pytest.raises(WrongUse, match="does not read Orders any more"):
        world.reprocess(NAME, f"{DAY}-r2", topics=("Refunds",))
    nothing = ConsumeRequest(f"{DAY}-none", ANA)
    name = world.replay(BILLING, "Orders", NOON, nothing).group
    with pytest.raises(WrongUse, match="had no messages to replay"):
        world.reprocess(name, f"{DAY}-r2")
