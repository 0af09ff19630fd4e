"""What every engine promises of consumption in order (rules 9.2). See ``test_engines.py``.

A window sleeps no suspend time: a queue is tried again at once, then waits for the next window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.positions import Outcome, blk_id
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import ListenerError, OffsetOutOfRange
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.engines import story
from tests.contract.world import (
    ANA,
    DAY,
    HOUR,
    NOON,
    World,
    bodies,
    consumed,
    counts,
    group,
    orders,
    said,
    several,
)
from tests.oracle.memory.rows import MessageRow

SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


def in_order(**settings: Any) -> GroupSettings:
    usual: dict[str, Any] = {"mode": "orderly", "consume_message_batch_max_size": 1}
    return group(**(usual | settings))


class Heard:
    """A listener that remembers every call as (queue id, offsets, tries so far); ``answer`` is asked with the call."""

    def __init__(self, answer: Callable[[list[MessageExt], Any], Any]) -> None:
        self.calls: list[tuple[int, list[int], list[int]]] = []
        self._answer = answer

    def __call__(self, msgs: list[MessageExt], context: Any) -> Any:
        offsets, tries = [m.queue_offset for m in msgs], [m.reconsume_times for m in msgs]
        self.calls.append((context.message_queue.queue_id, offsets, tries))
        return self._answer(msgs, context)

    def offsets(self, queue_id: int = 0) -> list[list[int]]:
        return [offsets for queue, offsets, _ in self.calls if queue == queue_id]


def suspend_at(*offsets: int) -> Heard:
    return Heard(lambda msgs, context: SUSPEND if {m.queue_offset for m in msgs} & {*offsets} else "SUCCESS")


def blocked(queue: MessageQueue, world: World, name: str = "billing") -> bool:
    return world.positions().get(blk_id(name, queue)) is not None


def waiting(report: Any) -> list[tuple[int, int, int, str]]:
    return [(b.range.begin, b.range.end, b.attempts, b.status) for b in report.blocked]


# --- success ---------------------------------------------------------------------------------------------------------


@story
def test_a_queue_is_consumed_in_order_batch_by_batch_over_all_its_segments(world: World) -> None:
    for first in (0, 50, 100):
        world.fill(orders(0), several(50, first=first))
    heard = suspend_at()
    report = world.consume(in_order(consume_message_batch_max_size=7), f"{DAY}-1", heard)
    assert [offset for offsets in heard.offsets() for offset in offsets] == list(range(150))
    assert max(map(len, heard.offsets())) == 7
    assert (counts(report), consumed(report), report.blocked) == ({"acked": 150}, {orders(0): (0, 150)}, ())
    assert (world.offset(orders(0)), blocked(orders(0), world)) == (150, False)


@story
def test_what_the_filter_keeps_back_counts_up_to_where_the_queue_waits(world: World) -> None:
    tags = ["TagB", "TagA", "TagB", "TagA", "TagB", "TagB"]
    world.fill(orders(0), [said(n, tag=tag) for n, tag in enumerate(tags)])
    reader = in_order(topics={"Orders": "TagA"})
    first = world.consume(reader, f"{DAY}-1", suspend_at(3))
    assert (consumed(first), counts(first)) == ({orders(0): (0, 3)}, {"acked": 1, "filtered": 2})
    second = world.consume(reader, f"{DAY}-2", suspend_at())
    assert (consumed(second), counts(second)) == ({orders(0): (3, 6)}, {"acked": 1, "filtered": 2})


@story
def test_a_queue_of_which_nothing_is_wanted_is_done(world: World) -> None:
    world.fill(orders(0), [said(n, tag="TagB") for n in range(4)])
    report = world.consume(in_order(topics={"Orders": "TagA"}), f"{DAY}-1", suspend_at())
    assert (consumed(report), counts(report)) == ({orders(0): (0, 4)}, {"filtered": 4})


# --- waiting ---------------------------------------------------------------------------------------------------------


@story
def test_a_suspended_queue_is_tried_again_at_once_and_then_waits_for_the_next_window(world: World) -> None:
    world.fill(orders(0), several(5))
    heard = suspend_at(2)
    first = world.consume(in_order(suspend_tries_per_window=3), f"{DAY}-1", heard)
    assert heard.calls[2:] == [(0, [2], [0]), (0, [2], [1]), (0, [2], [2])]
    assert (consumed(first), counts(first), first.complete) == ({orders(0): (0, 2)}, {"acked": 2}, True)
    assert waiting(first) == [(2, 3, 3, SUSPEND)]
    assert (world.offset(orders(0)), blocked(orders(0), world)) == (2, True)

    world.clock.advance(HOUR)
    second = world.consume(in_order(), f"{DAY}-2", heard := suspend_at())
    assert heard.calls == [(0, [2], [3]), (0, [3], [0]), (0, [4], [0])]
    assert (consumed(second), counts(second), second.blocked) == ({orders(0): (2, 5)}, {"acked": 3}, ())
    assert (world.offset(orders(0)), blocked(orders(0), world)) == (5, False)


@story
def test_a_window_that_moves_nothing_says_what_it_waits_at(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(in_order(), f"{DAY}-1", suspend_at(0))
    world.clock.advance(HOUR)

    def raising(msgs: list[MessageExt], context: Any) -> str:
        raise ValueError("no such customer")

    second = world.consume(in_order(), f"{DAY}-2", raising)
    assert (consumed(second), counts(second), second.status) == ({orders(0): (0, 0)}, {}, "committed")
    (left,) = second.blocked
    assert (left.attempts, left.first_failed_at) == (6, NOON)
    assert (left.status, left.error_type, left.error_text) == (SUSPEND, "ValueError", "no such customer")
    assert world.ctls()[-1].blocked == second.blocked


@story
def test_other_queues_go_on(world: World) -> None:
    for queue_id in range(3):
        world.fill(orders(queue_id), several(4))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        return SUSPEND if context.message_queue.queue_id == 1 else "SUCCESS"

    report = world.consume(in_order(), f"{DAY}-1", listener)
    assert consumed(report) == {orders(0): (0, 4), orders(1): (0, 0), orders(2): (0, 4)}
    assert {b.range.queue for b in report.blocked} == {orders(1)}


@story
def test_none_and_an_exception_suspend(world: World) -> None:
    world.fill(orders(0), several(3))
    tries = Counter[int]()

    def listener(msgs: list[MessageExt], context: Any) -> str | None:
        offset = msgs[0].queue_offset
        tries[offset] += 1
        if tries[offset] == 1 and offset == 0:
            raise RuntimeError("later")
        return None if tries[offset] == 1 and offset == 1 else "SUCCESS"

    report = world.consume(in_order(), f"{DAY}-1", listener)
    assert (counts(report), tries) == ({"acked": 3}, {0: 2, 1: 2, 2: 1})


@story
def test_the_tries_of_a_window_count_anew_after_every_commit(world: World) -> None:
    world.fill(orders(0), several(4))
    seen = Counter[int]()

    def listener(msgs: list[MessageExt], context: Any) -> str:
        seen[msgs[0].queue_offset] += 1
        return SUSPEND if seen[msgs[0].queue_offset] <= 2 else "SUCCESS"

    report = world.consume(in_order(suspend_tries_per_window=3), f"{DAY}-1", listener)
    assert (counts(report), set(seen.values())) == ({"acked": 4}, {3})


@story
def test_a_reset_forgets_the_tries(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(in_order(), f"{DAY}-1", suspend_at(1))
    world.reset_to(ResetTo.OFFSET, 1)
    world.consume(in_order(), f"{DAY}-2", heard := suspend_at())
    assert heard.calls == [(0, [1], [0]), (0, [2], [0])]


@story
def test_other_windows_in_between_leave_the_tries_of_a_queue_as_they_are(world: World) -> None:
    world.fill(orders(0), several(2))
    world.fill(orders(1), several(2))
    at_0 = lambda msgs, context: SUSPEND if context.message_queue.queue_id == 0 else "SUCCESS"  # noqa: E731
    world.consume(in_order(), f"{DAY}-1", at_0)
    world.fill(orders(1), [said(9, at=NOON - 2 * HOUR)])
    world.clock.advance(HOUR)
    between = world.consume(in_order(), f"{DAY}-2", at_0, until_ms=NOON - HOUR)  # queue 0 has nothing before that
    assert orders(0) not in consumed(between)
    world.consume(in_order(), f"{DAY}-3", heard := suspend_at())
    assert heard.calls[0] == (0, [0], [3])


# --- over the limit --------------------------------------------------------------------------------------------------


@story
def test_a_message_over_the_limit_is_a_dead_letter_and_its_queue_goes_on(world: World) -> None:
    world.fill(orders(0), several(4))
    report = world.consume(in_order(max_reconsume_times=2), f"{DAY}-1", heard := suspend_at(1))
    assert heard.calls[1:4] == [(0, [1], [0]), (0, [1], [1]), (0, [1], [2])]
    assert (counts(report), consumed(report)) == ({"acked": 3, "dead": 1}, {orders(0): (0, 4)})
    (letter,) = world.dead_letters()
    assert (letter.row.body, letter.row.reconsume_times) == (b"1", 3)
    provenance = letter.row.provenance
    assert provenance is not None
    assert (provenance.queue, provenance.offset, provenance.cause) == (orders(0), 1, "max_reconsume_times")
    assert (world.lane(3), world.retries(), report.blocked) == ([], [], ())


@story
def test_a_dead_letter_carries_what_a_message_has_that_a_client_sends_away(world: World) -> None:
    nameless = MessageRow(b"1", {"region": "eu"}, store_timestamp=NOON - HOUR, offset_msg_id=f"{1:032X}")
    world.fill(orders(0), [said(0, TRAN_MSG="true", WAIT="true", REAL_TOPIC="Orders", REAL_QID="0"), nameless])
    world.consume(in_order(max_reconsume_times=1), f"{DAY}-1", suspend_at(0, 1))
    sent = {"RETRY_TOPIC": "Orders", "RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "1", "DELAY": "-1"}
    assert [letter.row.properties for letter in world.dead_letters()] == [
        {"UNIQ_KEY": "U0", "WAIT": "true", "ORIGIN_MESSAGE_ID": "U0"} | sent,
        {"region": "eu", "ORIGIN_MESSAGE_ID": f"{1:032X}"} | sent,
    ]


@story
def test_the_limit_is_counted_along_windows(world: World) -> None:
    world.fill(orders(0), several(2))
    patient = in_order(max_reconsume_times=5, suspend_tries_per_window=2)

    def listener(msgs: list[MessageExt], context: Any) -> str:
        raise ValueError(f"try {msgs[0].reconsume_times}")

    assert waiting(world.consume(patient, f"{DAY}-1", listener)) == [(0, 1, 2, SUSPEND)]
    assert waiting(world.consume(patient, f"{DAY}-2", listener)) == [(0, 1, 4, SUSPEND)]
    third = world.consume(patient, f"{DAY}-3", listener)
    assert (counts(third), waiting(third)) == ({"dead": 1}, [(1, 2, 2, SUSPEND)])
    (letter,) = world.dead_letters()
    assert letter.row.reconsume_times == 6
    assert letter.row.provenance is not None
    assert (letter.row.provenance.error_type, letter.row.provenance.error_text) == ("ValueError", "try 5")


@story
def test_without_a_limit_nothing_dies(world: World) -> None:
    world.fill(orders(0), several(1))
    for number in range(10):
        report = world.consume(in_order(suspend_tries_per_window=5), f"{DAY}-{number}", suspend_at(0))
    assert (waiting(report), world.dead_letters()) == ([(0, 1, 50, SUSPEND)], [])


@story
def test_one_message_that_may_be_tried_holds_back_those_over_the_limit_and_each_dies_once(world: World) -> None:
    """RocketMQ sends 0 to 2 away at every try of the batch; here they leave with the commit that finishes them."""
    world.fill(orders(0), several(3))
    limited = in_order(max_reconsume_times=2, suspend_tries_per_window=2, consume_message_batch_max_size=4)
    assert waiting(world.consume(limited, f"{DAY}-1", suspend_at(0))) == [(0, 3, 2, SUSPEND)]
    world.fill(orders(0), several(1, first=3))
    second = world.consume(limited, f"{DAY}-2", heard := suspend_at(0))
    assert heard.calls == [(0, [0, 1, 2, 3], [2, 2, 2, 0]), (0, [0, 1, 2, 3], [2, 2, 2, 1])]
    assert (waiting(second), world.dead_letters()) == ([(0, 3, 2, SUSPEND), (3, 4, 2, SUSPEND)], [])
    third = world.consume(limited, f"{DAY}-3", suspend_at(0))
    assert (counts(third), bodies(world.dead_letters())) == ({"dead": 4}, [b"0", b"1", b"2", b"3"])


@story
def test_a_message_over_the_limit_that_succeeds_with_its_batch_is_no_dead_letter(world: World) -> None:
    world.fill(orders(0), several(1))
    limited = in_order(max_reconsume_times=1, suspend_tries_per_window=1, consume_message_batch_max_size=2)
    world.consume(limited, f"{DAY}-1", suspend_at(0))
    world.fill(orders(0), several(1, first=1))
    world.consume(limited, f"{DAY}-2", heard := suspend_at(0))
    assert heard.calls == [(0, [0, 1], [1, 0])]
    third = world.consume(limited, f"{DAY}-3", suspend_at())
    assert (counts(third), world.dead_letters()) == ({"acked": 2}, [])


# --- without auto commit ---------------------------------------------------------------------------------------------


def by_hand(answers: dict[int, Any], otherwise: str = "SUCCESS") -> Heard:
    def answer(msgs: list[MessageExt], context: Any) -> str:
        context.auto_commit = False
        found = answers.get(msgs[0].queue_offset, otherwise)
        return str(found.pop(0)) if isinstance(found, list) else str(found)

    return Heard(answer)


@story
def test_without_auto_commit_messages_are_kept_until_a_commit(world: World) -> None:
    world.fill(orders(0), several(5))
    first = world.consume(in_order(), f"{DAY}-1", by_hand({2: "COMMIT"}))
    assert (consumed(first), counts(first)) == ({orders(0): (0, 3)}, {"acked": 3})
    assert waiting(first) == [(3, 5, 0, "SUCCESS")]
    second = world.consume(in_order(), f"{DAY}-2", heard := by_hand({4: "COMMIT"}))
    assert (heard.calls, counts(second)) == ([(0, [3], [0]), (0, [4], [0])], {"acked": 2})


@story
def test_a_rollback_gives_back_what_was_kept_and_counts_no_try(world: World) -> None:
    world.fill(orders(0), several(4))
    heard = by_hand({2: ["ROLLBACK", "SUCCESS"], 3: "COMMIT"})
    report = world.consume(in_order(), f"{DAY}-1", heard)
    assert heard.offsets() == [[0], [1], [2], [0], [1], [2], [3]]
    assert {tries for _, _, several_ in heard.calls for tries in several_} == {0}
    assert counts(report) == {"acked": 4}


@story
def test_rollbacks_without_end_end_with_the_tries_of_the_window(world: World) -> None:
    world.fill(orders(0), several(2))
    heard = by_hand({1: "ROLLBACK"})
    report = world.consume(in_order(suspend_tries_per_window=2), f"{DAY}-1", heard)
    assert heard.offsets() == [[0], [1], [0], [1]]
    assert (waiting(report), world.offset(orders(0))) == ([(0, 2, 0, "ROLLBACK")], 0)


@story
def test_what_is_over_the_limit_is_kept_too_and_dies_with_the_commit(world: World) -> None:
    world.fill(orders(0), several(3))
    limited = in_order(max_reconsume_times=0)
    report = world.consume(limited, f"{DAY}-1", by_hand({0: SUSPEND, 1: "COMMIT", 2: SUSPEND}))
    assert (counts(report), bodies(world.dead_letters())) == ({"acked": 1, "dead": 1}, [b"0"])
    assert waiting(report) == [(2, 3, 0, SUSPEND)]


@story
def test_with_auto_commit_a_rollback_is_taken_for_success(world: World) -> None:
    world.fill(orders(0), several(3))
    answers = iter(["ROLLBACK", "COMMIT", "SUCCESS"])
    assert counts(world.consume(in_order(), f"{DAY}-1", lambda msgs, context: next(answers))) == {"acked": 3}


# --- requests --------------------------------------------------------------------------------------------------------


@story
def test_the_same_request_does_nothing_more_although_a_queue_waits(world: World) -> None:
    world.fill(orders(0), several(4))
    first = world.consume(in_order(), f"{DAY}-1", suspend_at(2))
    before = world.projection()
    again = world.consume(in_order(), f"{DAY}-1", heard := suspend_at())
    assert (again.status, again.counts(), again.blocked) == ("already_committed", first.counts(), first.blocked)
    assert (heard.calls, world.projection()) == ([], before)


@story
def test_a_request_in_parts_ends_although_a_queue_waits(world: World) -> None:
    world.fill(orders(0), several(6))
    world.fill(orders(1), several(6))
    capped = in_order(max_messages=4)

    def listener(msgs: list[MessageExt], context: Any) -> str:
        return SUSPEND if context.message_queue.queue_id == 1 and msgs[0].queue_offset == 1 else "SUCCESS"

    reports: list[WindowReport] = []
    while not reports or (reports[-1].status == "committed" and not reports[-1].complete):
        reports.append(world.consume(capped, f"{DAY}-1", listener))
        assert len(reports) < 5
    assert [consumed(report) for report in reports] == [{orders(0): (0, 2), orders(1): (0, 1)}, {orders(0): (2, 6)}]
    again = world.consume(capped, f"{DAY}-1", listener)
    assert (again.status, again.complete) == ("already_committed", True)


@story
def test_a_request_whose_queues_all_wait_is_complete(world: World) -> None:
    world.fill(orders(0), several(6))
    report = world.consume(in_order(max_messages=2), f"{DAY}-1", suspend_at(1))
    assert (report.status, report.complete, consumed(report)) == ("committed", True, {orders(0): (0, 1)})


@story
def test_what_is_lost_behind_a_waiting_message_is_not_counted_yet(world: World) -> None:
    world.fill(orders(0), several(3))
    world.fill(orders(0), several(2, first=3), base=5)
    with pytest.raises(OffsetOutOfRange):
        world.consume(in_order(), f"{DAY}-1", suspend_at())
    skipping = in_order(on_offset_out_of_range="skip")
    first = world.consume(skipping, f"{DAY}-2", suspend_at(1))
    assert (consumed(first), counts(first)) == ({orders(0): (0, 1)}, {"acked": 1})
    assert world.outcomes("billing") == []
    second = world.consume(skipping, f"{DAY}-3", suspend_at())
    assert (consumed(second), counts(second)) == ({orders(0): (1, 7)}, {"acked": 4, "lost": 2})


@story
def test_a_run_that_is_killed_leaves_nothing_and_forgets_its_tries(world: World) -> None:
    world.fill(orders(0), several(4))

    def killed(msgs: list[MessageExt], context: Any) -> str:
        if msgs[0].queue_offset == 1 and msgs[0].reconsume_times == 2:
            raise KeyboardInterrupt
        return SUSPEND if msgs[0].queue_offset == 1 else "SUCCESS"

    with pytest.raises(KeyboardInterrupt):
        world.consume(in_order(), f"{DAY}-1", killed)
    assert (world.offset(orders(0)), blocked(orders(0), world)) == (None, False)
    again = world.consume(in_order(), f"{DAY}-1", heard := suspend_at())
    assert (heard.calls[1], counts(again)) == ((0, [1], [0]), {"acked": 4})


@story
def test_a_replay_in_order_waits_under_its_own_name_and_the_group_does_not(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(in_order(), f"{DAY}-1", suspend_at())
    request = ConsumeRequest(f"{DAY}-again", ANA)
    report = world.replay(in_order(), "Orders", 0, request, suspend_at(2))
    assert (consumed(report), waiting(report), report.complete) == ({orders(0): (0, 2)}, [(2, 3, 3, SUSPEND)], True)
    assert blocked(orders(0), world, replay_group("billing", request.request_id))
    assert (world.offset(orders(0)), blocked(orders(0), world)) == (4, False)


@story
def test_every_window_of_a_queue_begins_where_the_one_before_ended(world: World) -> None:
    world.fill(orders(0), several(40))
    failing, steps = {7, 8, 20, 39}, []
    for number in range(6):
        heard = suspend_at(*sorted(failing)[:1])
        report = world.consume(in_order(consume_message_batch_max_size=3), f"{DAY}-{number}", heard)
        for done in report.consumed:
            steps.append((done.range.begin, done.range.end))
            assert sum(done.tally(outcome).count for outcome in Outcome) == len(done.range)
        failing -= {min(failing)} if failing else set()
    assert [begin for begin, _ in steps[1:]] == [end for _, end in steps[:-1]]
    assert (steps[0][0], steps[-1][1]) == (0, 40)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("CONSUME_SUCCESS", "known in orderly consumption are SUCCESS"),
        (["SUCCESS"], "known in orderly consumption are SUCCESS"),
        (7, "known in orderly consumption are SUCCESS"),
    ],
)
def test_an_answer_of_another_kind_stops_the_window(world: World, answer: Any, problem: str) -> None:
    world.fill(orders(0), several(2))
    with pytest.raises(ListenerError, match=problem):
        world.consume(in_order(), f"{DAY}-1", lambda msgs, context: answer)
    assert world.offset(orders(0)) is None


@pytest.mark.parametrize(
    ("name", "value"), [("auto_commit", "no"), ("auto_commit", None), ("suspend_current_queue_time_millis", 1.5)]
)
def test_a_context_must_hold_what_it_may(world: World, name: str, value: Any) -> None:
    world.fill(orders(0), several(1))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        setattr(context, name, value)
        return "SUCCESS"

    with pytest.raises(ListenerError, match=name):
        world.consume(in_order(), f"{DAY}-1", listener)


@story
def test_what_a_request_left_unread_is_told_until_a_later_one_has_read_behind_its_bound(world: World) -> None:
    """Also where that one is blocked in the same queue, by a message that was stored later."""
    world.fill(orders(0), several(4))
    first = world.consume(in_order(), f"{DAY}-1", suspend_at(2))
    assert [(range_.begin, range_.end) for range_ in first.unread] == [(2, 4)]
    assert world.consume(in_order(), f"{DAY}-1", suspend_at()).unread == first.unread
    world.fill(orders(0), several(3, first=4))
    second = world.consume(in_order(), f"{DAY}-2", suspend_at(5))
    assert [(range_.begin, range_.end) for range_ in second.unread] == [(5, 7)]
    again = world.consume(in_order(), f"{DAY}-1", suspend_at())
    assert (again.status, len(again.blocked), again.unread) == ("already_committed", 1, ())
