"""What every engine promises when several act at once: operators, replays, two runs, wrong clocks. See
``test_engines.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.move_sizes import Direction, MoveSize
from rmq_store.admin.reset import ResetTo
from rmq_store.commit.claim import LEASE_S
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action
from rmq_store.commit.decide import MAX_RUN_AGE_MS
from rmq_store.commit.positions import ABSENT, grp_id, off_id, pas_id
from rmq_store.consumer.replay_name import replay_group
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import (
    ClockSkew,
    HeldByAnother,
    ListenerError,
    StaleAttempt,
    WrongUse,
)
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.window.consume_request import ConsumeRequest, Scope
from tests.contract.engines import LakeWorld, story
from tests.contract.world import (
    ANA,
    BEN,
    BILLING,
    DAY,
    HOUR,
    LOCAL,
    NOON,
    Listen,
    Move,
    World,
    consumed,
    counts,
    fail,
    fail_bodies,
    group,
    orders,
    said,
    several,
)

LATE = group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)

# --- reset -----------------------------------------------------------------------------------------------------------


@story
def test_a_reset_moves_the_offset_and_tells_who_and_why(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    report = world.reset_to(ResetTo.OFFSET, 4)
    assert (report.status, report.messages, world.offset(orders(0))) == ("committed", 6, 4)
    assert world.history("billing") == [
        Move(orders(0), 0, 10, 0, "consume", f"{DAY}-1", "ana", ""),
        Move(orders(0), 10, 4, 1, "reset", f"{DAY}-reset", "ana", "wrong price"),
    ]
    again = world.consume(BILLING, f"{DAY}-2")
    assert consumed(again) == {orders(0): (4, 10)}
    assert [c.pass_ for c in again.consumed] == [1]


def test_a_dry_run_of_a_reset_counts_messages_and_no_holes(tmp_path: Path) -> None:
    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(10))
    world.fill(orders(0), several(5, first=10), base=14)
    skipping = group(on_offset_out_of_range="skip")
    world.consume(skipping, f"{DAY}-1")
    world.trim(orders(0), 3)
    back = world.reset_to(ResetTo.MIN, dry_run=True)
    assert back.sizes == (MoveSize(queue=orders(0), direction=Direction.AGAIN, messages=12, bytes=7 + 2 * 5),)
    assert (back.messages, back.notes) == (12, ())
    early = world.reset_to(ResetTo.TIME, NOON - HOUR, dry_run=True)
    assert [note.partition(" on may be missing")[0] for note in early.notes] == [
        "messages from 2024-06-03T11:00:00.000Z"
    ]
    assert world.reset_to(ResetTo.TIME, NOON - HOUR + 3000, dry_run=True).notes == ()
    world.reset_to(ResetTo.OFFSET, 12, request_id=f"{DAY}-to-12")
    ahead = world.reset_to(ResetTo.MAX, dry_run=True)
    assert ahead.sizes == (MoveSize(queue=orders(0), direction=Direction.SKIPPED, messages=5, bytes=10),)
    assert ahead.messages == -5


@story
def test_a_reset_that_was_shown_goes_where_it_was_shown_or_is_refused(world: World) -> None:
    world.fill(orders(0), several(10))
    shown = {move.queue: move.to_offset for move in world.reset_to(ResetTo.MAX, dry_run=True).moves}
    world.fill(orders(0), several(5, first=10))
    world.fill(orders(1), several(3))
    report = world.reset_to(ResetTo.MAX, shown=shown)
    assert [(move.queue, move.to_offset) for move in report.moves] == [(orders(0), 10)]
    assert world.reset_to(ResetTo.MAX).status == "already_committed", "the same request"
    world.trim(orders(0), 11)
    with pytest.raises(WrongUse, match=r"target offset 10 not in consume queue range \[11-15\]"):
        world.reset_to(ResetTo.MAX, shown=shown, request_id=f"{DAY}-late")


@story
def test_an_undo_takes_a_reset_back_and_names_it(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    world.reset_to(ResetTo.OFFSET, 4)
    report = world.undo()
    assert (report.status, world.offset(orders(0))) == ("committed", 10)
    assert world.undo().status == "already_committed"
    assert world.history("billing")[-1] == Move(
        orders(0), 4, 10, 2, "undo", f"{DAY}-undo", "ana", "another group was meant"
    )
    undo = next(ctl for ctl in world.ctls() if ctl.action is Action.UNDO)
    reset = next(ctl for ctl in world.ctls() if ctl.action is Action.RESET)
    assert (undo.parameter("undoes"), undo.parameter("undoes_commit")) == (reset.request_id, reset.commit_id)
    world.undo(f"{DAY}-redo")
    assert world.offset(orders(0)) == 4
    world.consume(BILLING, f"{DAY}-2", max_messages=2)
    with pytest.raises(WrongUse, match="0 of their messages consumed again, and skip 4"):
        world.undo(f"{DAY}-late")


@story
def test_an_undo_wins_over_a_running_window(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    world.reset_to(ResetTo.OFFSET, 4)
    with world.at_step("3.staged", lambda: world.undo(host=world.another_host())), pytest.raises(StaleAttempt):
        world.consume(BILLING, f"{DAY}-2")
    assert world.offset(orders(0)) == 10
    assert world.consume(BILLING, f"{DAY}-3").status == "empty"


@story
def test_an_undo_of_a_first_reset_leaves_the_start_to_the_settings(world: World) -> None:
    world.fill(orders(0), several(10))
    world.reset_to(ResetTo.MAX)
    world.undo()
    assert world.offset(orders(0)) is None
    window = world.consume(BILLING, f"{DAY}-1")
    assert [(c.range.begin, c.start_rule, c.pass_) for c in window.consumed] == [(0, "first_offset", 2)]


@story
def test_after_the_groups_first_window_an_undo_takes_no_start_away(world: World) -> None:
    """That window took the offset of the reset for the start of the queue. Without it the queue would look like a later one."""
    for n in range(2):
        world.fill(orders(n), several(4, first=10 * n))
    world.reset_to(ResetTo.MAX, queues=(orders(0),))
    assert list(consumed(world.consume(LATE, f"{DAY}-1"))) == [orders(1)]
    for force in (False, True):
        with pytest.raises(
            WrongUse, match=r"had no offset in .*queueId=0\] before .*, and windows were committed .* since"
        ):
            world.undo(force=force)
    assert world.consume(LATE, f"{DAY}-2").status == "empty"


@story
def test_before_it_or_for_a_later_queue_an_undo_takes_the_offset_away(world: World) -> None:
    world.fill(orders(0), several(4))
    world.reset_to(ResetTo.MIN)
    world.undo()
    world.undo(f"{DAY}-redo")
    world.undo(f"{DAY}-again")
    assert consumed(world.consume(LATE, f"{DAY}-1")) == {orders(0): (4, 4)}
    world.fill(orders(1), several(3, first=10))
    world.reset_to(ResetTo.MAX, queues=(orders(1),), request_id=f"{DAY}-skip")
    world.undo(f"{DAY}-undo-skip")
    assert consumed(world.consume(LATE, f"{DAY}-2")) == {orders(1): (0, 3)}


@story
def test_a_first_window_overtakes_an_undo_that_takes_a_start_away(world: World) -> None:
    for n in range(2):
        world.fill(orders(n), several(4, first=10 * n))
    world.reset_to(ResetTo.MAX, queues=(orders(0),))
    late = world.another_host(lambda: world.consume(LATE, f"{DAY}-1"), before_id=1)
    with pytest.raises(StaleAttempt, match=r"off/billing/Orders/broker-a/1 was None and is 4"):
        world.undo(host=late)
    assert [world.offset(orders(n)) for n in range(2)] == [4, 4]


@story
def test_an_undo_that_takes_a_start_away_leaves_the_other_offsets_as_they_are(world: World) -> None:
    for n in range(2):
        world.fill(orders(n), several(4, first=10 * n))
    world.reset_to(ResetTo.MAX, queues=(orders(1),), request_id=f"{DAY}-first")
    before = world.positions().updated_ms(off_id("billing", orders(1)))
    world.clock.advance(1000)
    world.reset_to(ResetTo.MIN, queues=(orders(0),))
    assert {move.queue: move.to_offset for move in world.undo().moves} == {orders(0): ABSENT}
    assert [world.offset(orders(n)) for n in range(2)] == [None, 4]
    assert world.positions().updated_ms(off_id("billing", orders(1))) == before


@story
def test_a_reset_to_a_moment_goes_to_the_first_message_stored_at_or_after_it(world: World) -> None:
    world.fill(orders(0), several(10, step_ms=60_000))
    world.fill(orders(1), several(3, first=50))
    report = world.reset_to(ResetTo.TIME, NOON - HOUR + 3 * 60_000 - 1)
    assert {m.queue: (m.from_offset, m.to_offset) for m in report.moves} == {orders(0): (None, 3), orders(1): (None, 3)}


@story
def test_resets_to_min_and_max_and_of_one_queue_only(world: World) -> None:
    world.fill(orders(0), several(10), base=5)
    world.fill(orders(1), several(4, first=50))
    world.reset_to(ResetTo.MAX, request_id=f"{DAY}-r1")
    assert (world.offset(orders(0)), world.offset(orders(1))) == (15, 4)
    world.reset_to(ResetTo.MIN, request_id=f"{DAY}-r2", queues=(orders(0),))
    assert (world.offset(orders(0)), world.offset(orders(1))) == (5, 4)
    positions = world.positions()
    assert (positions.get(pas_id("billing", orders(0))), positions.get(pas_id("billing", orders(1)))) == (2, 1)


@story
def test_a_dry_run_of_a_reset_changes_nothing(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    before = world.ctls()
    report = world.reset_to(ResetTo.MIN, dry_run=True)
    assert (report.status, report.messages, report.commit_id) == ("dry_run", 10, None)
    assert [(m.from_offset, m.to_offset) for m in report.moves] == [(10, 0)]
    assert world.ctls() == before
    assert world.reset_to(ResetTo.MIN).status == "committed"


@story
def test_the_same_reset_again_moves_nothing_again(world: World) -> None:
    world.fill(orders(0), several(10))
    first = world.reset_to(ResetTo.OFFSET, 4)
    world.consume(BILLING, f"{DAY}-1")
    again = world.reset_to(ResetTo.OFFSET, 4)
    assert (again.status, again.moves, again.commit_id) == ("already_committed", first.moves, first.commit_id)
    assert world.offset(orders(0)) == 10


@story
def test_a_reset_out_of_the_queue_to_a_strange_queue_or_without_reason_is_refused(world: World) -> None:
    world.fill(orders(0), several(10), base=5)
    for value in (4, 16):
        with pytest.raises(WrongUse, match=rf"target offset {value} not in consume queue range \[5-15\]"):
            world.reset_to(ResetTo.OFFSET, value)
    with pytest.raises(WrongUse, match=r"queueId=7.* does not exist .*topic Orders has broker-a:0"):
        world.reset_to(ResetTo.MIN, queues=(orders(7),))
    with pytest.raises(WrongUse, match="has no topic Payments"):
        world.reset_to(ResetTo.MIN, topic="Payments")
    with pytest.raises(WrongUse, match="needs a reason"):
        world.reset_to(ResetTo.MIN, reason=" ")
    assert world.positions().get(grp_id("billing")) is None


@story
def test_a_reset_fences_a_running_window_and_the_window_says_who_moved_it(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-0", max_messages=6)

    def listener(msgs: list[MessageExt], context: Any) -> str:
        world.reset_to(ResetTo.OFFSET, 2, actor=BEN)
        return "RECONSUME_LATER"

    with pytest.raises(StaleAttempt, match=r"overtaken.*Moved by reset 2024-06-03-reset of ben \(test\): wrong price"):
        world.consume(BILLING, f"{DAY}-1", listener)
    assert world.offset(orders(0)) == 2
    assert world.lane(3) == []
    assert consumed(world.consume(BILLING, f"{DAY}-1")) == {orders(0): (2, 10)}


@story
def test_a_reset_away_and_back_fences_a_running_window_too(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-0", max_messages=6)

    def listener(msgs: list[MessageExt], context: Any) -> str:
        world.reset_to(ResetTo.OFFSET, 2, request_id=f"{DAY}-away")
        world.reset_to(ResetTo.OFFSET, 6, request_id=f"{DAY}-back")
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt):
        world.consume(BILLING, f"{DAY}-1", listener)
    assert world.offset(orders(0)) == 6


@story
def test_a_reset_that_a_window_overtakes_moves_nothing(world: World) -> None:
    """Its history would say that the group was where it no longer is."""
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=3)
    late = world.another_host(lambda: world.consume(BILLING, f"{DAY}-2"), before_id=1)
    with pytest.raises(
        StaleAttempt, match=rf"off/billing/Orders/broker-a/0 was 3 and is 10\. Moved by consume {DAY}-2"
    ):
        world.reset_to(ResetTo.MIN, host=late)
    assert world.offset(orders(0)) == 10


@story
def test_of_two_resets_of_different_queues_at_once_one_is_refused(world: World) -> None:
    """Both would raise the epoch to the same number, and it would count one action."""
    for queue_id in range(2):
        world.fill(orders(queue_id), several(4))
    world.consume(BILLING, f"{DAY}-1")
    late = world.another_host(
        lambda: world.reset_to(ResetTo.MIN, request_id=f"{DAY}-other", queues=(orders(1),)), before_id=1
    )
    with pytest.raises(StaleAttempt, match=r"grp/billing was 0 and is 1\. Moved by reset"):
        world.reset_to(ResetTo.MIN, queues=(orders(0),), host=late)
    assert (world.offset(orders(0)), world.offset(orders(1))) == (4, 0)


@story
def test_a_window_whose_work_was_moved_to_another_queue_is_planned_again(world: World) -> None:
    """Between its plan and its claim. It is not told that there is nothing to do."""
    for queue_id in range(2):
        world.fill(orders(queue_id), several(4))
    world.consume(BILLING, f"{DAY}-1")
    world.reset_to(ResetTo.MIN, queues=(orders(0),))

    def operator() -> None:
        world.reset_to(ResetTo.MAX, request_id=f"{DAY}-away", queues=(orders(0),))
        world.reset_to(ResetTo.MIN, request_id=f"{DAY}-back", queues=(orders(1),))

    with pytest.raises(StaleAttempt, match=r"were moved while this window claimed its queues: .*queueId=1"):
        world.consume(BILLING, f"{DAY}-2", host=world.another_host(operator, before_id=1))
    assert consumed(world.consume(BILLING, f"{DAY}-2")) == {orders(1): (0, 4)}


@story
def test_after_a_reset_the_same_messages_are_consumed_again_in_a_new_pass(world: World) -> None:
    world.fill(orders(0), several(4))
    first = world.consume(BILLING, f"{DAY}-1", fail_bodies(b"2"))
    world.reset_to(ResetTo.MIN)
    second = world.consume(BILLING, f"{DAY}-2", fail_bodies(b"2"))
    assert (second.status, counts(second)) == ("committed", counts(first))
    assert [m.row.provenance.pass_ for m in world.lane(3) if m.row.provenance] == [0, 1]
    assert second.window_id != first.window_id


@story
def test_a_reset_does_not_drop_waiting_retries(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"2"))
    world.reset_to(ResetTo.MIN)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    report = world.consume(BILLING, f"{DAY}-2")
    assert consumed(report) == {orders(0): (0, 4), MessageQueue("%RETRY%billing", LOCAL, 0): (0, 1)}


# --- replay ----------------------------------------------------------------------------------------------------------


@story
def test_a_replay_leaves_the_live_offsets_alone_and_ends_at_its_bounds(world: World) -> None:
    world.fill(orders(0), several(10, step_ms=60_000))
    world.consume(BILLING, f"{DAY}-1", max_messages=8)
    live = world.offset(orders(0))
    request = ConsumeRequest(f"{DAY}-replay", ANA, until_ms=NOON - HOUR + 7 * 60_000)
    replayed = world.replay(BILLING, "Orders", NOON - HOUR + 3 * 60_000, request, fail_bodies(b"5"))
    name = replay_group("billing", request.request_id)
    assert (replayed.group, consumed(replayed), counts(replayed)) == (
        name,
        {orders(0): (3, 7)},
        {"acked": 3, "retried": 1},
    )
    assert [c.start_rule for c in replayed.consumed] == ["replay"]
    assert world.offset(orders(0)) == live == 8
    again = world.replay(BILLING, "Orders", NOON - HOUR + 3 * 60_000, request, fail)
    assert (again.status, again.counts()) == ("already_committed", replayed.counts())


@story
def test_a_replay_reads_the_one_topic_that_it_names(world: World) -> None:
    world.fill(orders(0), several(3))
    world.fill(orders(0, "Refunds"), several(3, first=50))
    both = group(topics=("Orders", "Refunds"))
    replayed = world.replay(both, "Refunds", NOON - HOUR, ConsumeRequest(f"{DAY}-replay", ANA))
    assert consumed(replayed) == {orders(0, "Refunds"): (0, 3)}


@story
def test_the_retries_of_a_replay_are_its_own(world: World) -> None:
    world.fill(orders(0), several(4))
    request = ConsumeRequest(f"{DAY}-replay", ANA)
    replayed = world.replay(BILLING, "Orders", NOON - HOUR, request, fail_bodies(b"1"))
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    world.fill(orders(0), several(2, first=4))
    follow_up = world.consume(group(replayed.group), f"{DAY}-f", scope=Scope(retries_only=True))
    assert consumed(follow_up) == {MessageQueue(f"%RETRY%{replayed.group}", LOCAL, 0): (0, 1)}
    assert consumed(world.consume(BILLING, f"{DAY}-1")) == {orders(0): (0, 6)}


@story
def test_a_replay_of_a_topic_that_the_group_does_not_read_of_no_time_or_of_a_replay_is_refused(world: World) -> None:
    world.fill(orders(0), several(4))
    with pytest.raises(WrongUse, match="is a replay itself: replay billing, or run this replay again"):
        world.replay(group("billing-replay-0123456789"), "Orders", NOON, ConsumeRequest(f"{DAY}-r", ANA))
    with pytest.raises(WrongUse, match="group billing does not read Payments; it reads Orders"):
        world.replay(BILLING, "Payments", NOON, ConsumeRequest(f"{DAY}-r", ANA))
    with pytest.raises(WrongUse, match="empty time range"):
        world.replay(BILLING, "Orders", NOON, ConsumeRequest(f"{DAY}-r", ANA, until_ms=NOON))


# --- two at once -----------------------------------------------------------------------------------------------------


@story
def test_of_two_windows_at_once_the_second_is_told_who_holds_the_queue(world: World) -> None:
    world.fill(orders(0), several(4))
    refused: list[HeldByAnother] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        told = rf"broker-a/billing/Orders/broker-a/0 is held by request {DAY}-1 of ana .*120 s"
        with pytest.raises(HeldByAnother, match=told) as held:
            world.consume(BILLING, f"{DAY}-2", actor=BEN)
        refused.append(held.value)
        return "CONSUME_SUCCESS"

    assert world.consume(BILLING, f"{DAY}-1", listener).messages() == 4
    assert [error.exit_code for error in refused] == [3]
    assert world.consume(BILLING, f"{DAY}-2").status == "empty"


@story
def test_a_later_attempt_of_the_same_request_takes_over_and_fences_the_earlier_one(world: World) -> None:
    world.fill(orders(0), several(4))
    inner: list[Any] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        inner.append(world.consume(BILLING, f"{DAY}-1", fail_bodies(b"0"), actor=BEN, host=world.another_host()))
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt, match=r"own/billing/Orders/broker-a/0 was claim 1 and is claim 2.*of ben"):
        world.consume(BILLING, f"{DAY}-1", listener)
    assert counts(inner[0]) == {"acked": 3, "retried": 1}
    assert [ctl.commit_id for ctl in world.ctls() if ctl.action is Action.CONSUME] == [inner[0].commit_id]
    assert counts(world.consume(BILLING, f"{DAY}-1", fail)) == counts(inner[0])


@story
def test_another_request_takes_over_when_the_lease_has_ended(world: World) -> None:
    world.fill(orders(0), several(4))
    inner: list[Any] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        world.clock.advance(LEASE_S * 1000 - 1000)
        with pytest.raises(HeldByAnother, match="for 1 s more"):
            world.consume(BILLING, f"{DAY}-2")
        world.clock.advance(1000)
        inner.append(world.consume(BILLING, f"{DAY}-2"))
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt):
        world.consume(BILLING, f"{DAY}-1", listener)
    assert inner[0].status == "committed"
    reasons = [ctl.reason for ctl in world.ctls() if ctl.action is Action.CLAIM]
    assert reasons == ["free", "took over claim 1, whose lease ended 0 s ago"]


@story
def test_a_run_that_took_longer_than_a_day_is_not_committed(world: World) -> None:
    world.fill(orders(0), several(4))

    def taking(ms: int) -> Listen:
        def listener(msgs: list[MessageExt], context: Any) -> str:
            world.clock.advance(ms)
            return "CONSUME_SUCCESS"

        return listener

    with pytest.raises(StaleAttempt, match="began 24 h ago; after 24 h its staged files may have been vacuumed"):
        world.consume(BILLING, f"{DAY}-1", taking(MAX_RUN_AGE_MS + 1))
    assert world.offset(orders(0)) is None
    report = world.consume(BILLING, f"{DAY}-1", taking(MAX_RUN_AGE_MS))
    assert (report.status, report.messages()) == ("committed", 4)


@story
def test_a_window_that_fails_lets_the_next_one_in_at_once(world: World) -> None:
    world.fill(orders(0), several(4))

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        return "what?"

    with pytest.raises(ListenerError):
        world.consume(BILLING, f"{DAY}-1", listener)
    assert world.consume(BILLING, f"{DAY}-2").messages() == 4


@story
def test_a_request_that_was_committed_between_plan_and_claim_is_not_committed_again(world: World) -> None:
    world.fill(orders(0), several(4))

    def overtake() -> None:
        world.consume(BILLING, f"{DAY}-1", fail_bodies(b"2"))
        world.fill(orders(0), several(3, first=4))

    report = world.consume(BILLING, f"{DAY}-1", fail, host=world.another_host(overtake))
    assert (report.status, counts(report)) == ("already_committed", {"acked": 3, "retried": 1})
    assert len([ctl for ctl in world.ctls() if ctl.action is Action.CONSUME]) == 1
    assert world.consume(BILLING, f"{DAY}-2").messages() == 3


@story
def test_a_window_whose_work_was_done_between_plan_and_claim_leaves_no_row(world: World) -> None:
    world.fill(orders(0), several(4))
    overtaken = world.another_host(lambda: world.consume(BILLING, f"{DAY}-other"))
    assert world.consume(BILLING, f"{DAY}-1", fail, host=overtaken).status == "empty"
    assert [ctl.request_id for ctl in world.ctls() if ctl.action is Action.CONSUME] == [f"{DAY}-other"]
    assert world.consume(BILLING, f"{DAY}-2").status == "empty"


@story
def test_two_groups_that_fail_at_once_share_no_base_of_a_queue(world: World) -> None:
    """Both dead letters of both groups are their own; one group's two requests share one queue one after the other."""
    world.fill(orders(0), several(4))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = -1
        return "RECONSUME_LATER"

    world.consume(BILLING, f"{DAY}-1", listener, max_messages=2)
    world.consume(BILLING, f"{DAY}-2", listener)
    assert [(m.queue_offset, m.row.body) for m in world.dead_letters()] == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]


# --- clocks ----------------------------------------------------------------------------------------------------------


@story
@pytest.mark.parametrize("skew_ms", [60_001, -60_001])
def test_a_host_whose_clock_is_off_the_stores_stops_with_nothing_written(world: World, skew_ms: int) -> None:
    world.fill(orders(0), several(4))
    before = world.ctls()
    world.store_skew_ms = skew_ms
    with pytest.raises(ClockSkew, match="Nothing was written"):
        world.consume(BILLING, f"{DAY}-1")
    assert world.ctls() == before
    world.store_skew_ms = skew_ms // 2
    assert world.consume(BILLING, f"{DAY}-1").messages() == 4


@story
def test_a_window_is_not_committed_when_a_queue_holds_messages_from_its_future(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail, max_messages=1)
    world.clock.advance(-60_001)
    with pytest.raises(ClockSkew, match="ahead of this host's clock"):
        world.consume(BILLING, f"{DAY}-2", fail)
    assert (world.offset(orders(0)), len(world.lane(3))) == (1, 1)


@story
def test_store_times_of_a_queue_do_not_fall_when_a_clock_is_a_little_behind(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail, max_messages=1)
    world.clock.advance(-50_000)
    world.consume(BILLING, f"{DAY}-2", fail)
    assert [m.store_timestamp for m in world.lane(3)] == [NOON] * 4
    assert set(world.due_at(world.lane(3)[0].queue).values()) == {NOON + 10_000}


# --- offsets by time -------------------------------------------------------------------------------------------------


@story
def test_an_offset_is_found_by_time(world: World) -> None:
    world.fill(orders(0), [said(n, at=NOON + at) for n, at in enumerate([0, 10, 10, 20])], base=3)
    world.fill(orders(0), [said(n, at=NOON + at) for n, at in enumerate([20, 30])])
    wanted = {-1: (3, 3), 0: (3, 3), 5: (4, 3), 10: (4, 5), 15: (6, 5), 20: (6, 7), 25: (8, 7), 30: (8, 8), 31: (9, 8)}
    found = {at: (world.search(orders(0), NOON + at), world.search(orders(0), NOON + at, upper=True)) for at in wanted}
    assert found == wanted


@story
def test_an_offset_is_found_by_time_behind_a_hole_and_above_what_retention_left(world: World) -> None:
    world.fill(orders(0), [said(n, at=NOON + n) for n in range(4)])
    world.fill(orders(0), [said(n, at=NOON + n) for n in range(6, 9)], base=6)
    world.trim(orders(0), 2)
    assert [world.search(orders(0), NOON + at) for at in (0, 3, 4, 6, 9)] == [2, 3, 6, 6, 9]
    assert [world.search(orders(0), NOON + at, upper=True) for at in (0, 3, 4, 6, 9)] == [2, 5, 5, 6, 8]


@story
def test_an_offset_is_found_by_time_where_the_brokers_clock_stepped_back(world: World) -> None:
    """LOWER is still the first message at or after the moment, UPPER the last one at or before it (rules 2.3)."""
    world.fill(orders(0), [said(n, at=NOON + at) for n, at in enumerate([20, 5, 30])])
    world.fill(orders(0), [said(n, at=NOON + at) for n, at in enumerate([10, 40])], base=4)
    world.trim(orders(0), 1)
    wanted = {4: (1, 1), 5: (1, 1), 6: (2, 1), 10: (2, 4), 20: (2, 4), 30: (2, 4), 31: (5, 4), 40: (5, 5), 41: (6, 5)}
    found = {at: (world.search(orders(0), NOON + at), world.search(orders(0), NOON + at, upper=True)) for at in wanted}
    assert found == wanted


@story
def test_every_move_of_an_offset_stands_in_its_history(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"), max_messages=2)
    world.reset_to(ResetTo.MIN, actor=BEN)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    world.consume(BILLING, f"{DAY}-2")
    retries = MessageQueue("%RETRY%billing", LOCAL, 0)
    told = [(m.queue, m.from_offset, m.to_offset, m.pass_, m.action, m.actor) for m in world.history("billing")]
    assert told == [
        (orders(0), 0, 2, 0, "consume", "ana"),
        (orders(0), 2, 0, 1, "reset", "ben"),
        (retries, 0, 1, 1, "consume", "ana"),
        (orders(0), 0, 4, 1, "consume", "ana"),
    ]
    lane = world.lane(3)[0].queue
    assert [(m.queue, m.from_offset, m.to_offset) for m in world.history(SCHEDULE_GROUP)] == [(lane, 0, 1)]
