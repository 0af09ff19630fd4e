"""The intervals of a backfill are replays that share nothing: they run at once, in any order, and each is repeated alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rmq_store.admin.interval_replay import IntervalReplay
from rmq_store.commit.ctl import Action
from rmq_store.lake.admin.interval_replay import begin_interval, late_messages
from rmq_store.lake.admin.replay import begin_attempt, has_messages
from rmq_store.lake.audit.audit import audit
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.engines import LakeWorld
from tests.contract.world import (
    ANA,
    DAY,
    HOUR,
    NOON,
    Listen,
    consumed,
    counts,
    fail_bodies,
    group,
    listening,
    orders,
    several,
    succeed,
)

MINUTE = 60_000
BOTH = group("billing", topics=("Orders", "Payments"), max_messages=2)


def interval(first: int, end: int, reprocess: str = "") -> IntervalReplay:
    """The minutes [first, end) after the first message."""
    begin = NOON - HOUR
    return IntervalReplay(
        run_id=f"{DAY}/d/backfill__{first}",
        actor=ANA,
        from_ms=begin + first * MINUTE,
        until_ms=begin + end * MINUTE,
        reprocess=reprocess,
    )


def window(world: LakeWorld, replayed: IntervalReplay, listener: Listen = succeed) -> WindowReport:
    """The next window of an interval, by a task of its own."""
    arguments = begin_interval(world.shard, BOTH, replayed, world.another_host())
    with listening(listener):
        return world.consume_window(arguments[0], arguments[1], world.another_host(), arguments[2])


def whole(world: LakeWorld, replayed: IntervalReplay, listener: Listen = succeed) -> list[WindowReport]:
    reports = [window(world, replayed, listener)]
    while not reports[-1].is_last:
        reports.append(window(world, replayed, listener))
    return reports


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    """A message a minute in both topics; the live group has read all of them."""
    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(9, step_ms=MINUTE))
    world.fill(orders(0, "Payments"), several(9, first=100, step_ms=MINUTE))
    world.consume(group("billing", topics=("Orders", "Payments")), f"{DAY}-live")
    return world


@pytest.mark.parametrize("seed", range(4))
def test_intervals_in_any_order_and_at_once_read_each_message_once(world: LakeWorld, seed: int) -> None:
    chance = random.Random(seed)
    cuts = [0, *sorted(chance.sample(range(1, 9), 3)), 9]
    intervals = [interval(*span) for span in pairwise(cuts)]
    read: dict[str, list[bytes]] = {one.run_id: [] for one in intervals}

    def note(name: str) -> Listen:
        def listen(messages: Sequence[MessageExt], context: object) -> str:
            read[name].extend(message.body or b"" for message in messages)
            return "CONSUME_SUCCESS"

        return listen

    running = list(intervals)
    while running:  # window by window, of a random interval each time
        one = chance.choice(running)
        if window(world, one, note(one.run_id)).is_last:
            running.remove(one)
    for one, (begin, end) in zip(intervals, pairwise(cuts), strict=True):
        expected = [b"%d" % (topic + n) for n in range(begin, end) for topic in (0, 100)]
        assert sorted(read[one.run_id]) == sorted(expected)
    assert (world.offset(orders(0)), world.offset(orders(0, "Payments"))) == (9, 9), "the live group has not moved"
    assert len({interval_.name(BOTH) for interval_ in intervals}) == len(intervals)
    assert [report.status for one in intervals for report in whole(world, one)] == ["already_committed"] * 4


def test_an_interval_runs_while_another_one_holds_the_same_queues(world: LakeWorld) -> None:
    inner: list[WindowReport] = []

    def backwards(messages: Sequence[MessageExt], context: object) -> str:
        if not inner:
            inner.extend(whole(world, interval(0, 4)))
        return "CONSUME_SUCCESS"

    reports = whole(world, interval(4, 9), backwards)
    assert sum(sum(counts(report).values()) for report in reports) == 10
    assert sum(sum(counts(report).values()) for report in inner) == 8


def test_a_reason_is_an_attempt_of_that_interval_alone(world: LakeWorld) -> None:
    whole(world, interval(0, 2))
    whole(world, interval(2, 4), fail_bodies(b"3"))
    world.fill(orders(0), several(5, first=50))
    again = interval(2, 4, "the listener is fixed")
    assert [report.status for report in whole(world, interval(2, 4))] == ["already_committed"]
    reports = whole(world, again)
    assert [consumed(report) for report in reports] == [
        {orders(0): (2, 3), orders(0, "Payments"): (2, 3)},
        {orders(0): (3, 4), orders(0, "Payments"): (3, 4)},
    ]
    assert sum(counts(report).get("acked", 0) for report in reports) == 4
    assert [report.status for report in whole(world, again)] == ["already_committed"], (
        "the same reason is the same attempt"
    )
    assert whole(world, interval(2, 4, "once more"))[-1].status == "committed"
    begun = [ctl for ctl in world.ctls() if ctl.action is Action.REPLAY]
    assert [(ctl.group, ctl.parameter("attempt"), ctl.reason) for ctl in begun] == [
        (again.name(BOTH), 2, "the listener is fixed"),
        (again.name(BOTH), 3, "once more"),
    ]


def test_an_interval_that_was_never_replayed_begins_with_its_first_attempt(world: LakeWorld) -> None:
    reason = interval(2, 4, "the listener is fixed")
    reports = whole(world, reason)
    assert sum(counts(report).get("acked", 0) for report in reports) == 4
    assert [report.status for report in whole(world, reason)] == ["already_committed"]
    assert [ctl for ctl in world.ctls() if ctl.action is Action.REPLAY] == []


def test_an_attempt_that_was_cut_short_goes_on(world: LakeWorld) -> None:
    whole(world, interval(2, 4))
    reason = interval(2, 4, "the listener is fixed")
    assert not window(world, reason).is_last
    assert [report.status for report in whole(world, reason)] == ["committed"]
    assert [report.status for report in whole(world, interval(2, 4))] == ["already_committed"]


def test_an_interval_without_messages_has_no_work_and_one_that_was_replayed_has(world: LakeWorld) -> None:
    def has_work(replayed: IntervalReplay) -> bool:
        replaying, request, scope = replayed.arguments(BOTH)
        return has_messages(world.shard, replaying, request, world.host, scope)

    assert has_work(interval(2, 4))
    assert not has_work(interval(20, 40))
    whole(world, interval(2, 4))
    assert has_work(interval(2, 4))
    assert {ctl.group for ctl in world.ctls() if "replay" in (ctl.group or "")} == {interval(2, 4).name(BOTH)}


# --- messages that are imported into an interval later ---------------------------------------------------------------


@pytest.fixture
def early(tmp_path: Path) -> LakeWorld:
    """An early copy of a broker, with its messages up to minute 4; [2, 8) was replayed."""
    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(5, step_ms=MINUTE))
    world.fill(orders(1), several(1, step_ms=MINUTE))
    assert consumed_by(whole(world, interval(2, 8))) == {orders(0): (2, 5)}
    return world


def import_rest(world: LakeWorld) -> None:
    """Of two queues what came since, and a queue and a topic that are new."""
    world.fill(orders(0), several(9, step_ms=MINUTE)[5:])
    world.fill(orders(1), several(9, step_ms=MINUTE)[1:])
    world.fill(orders(2), several(9, step_ms=MINUTE))
    world.fill(orders(0, "Payments"), several(4, step_ms=MINUTE))


def consumed_by(reports: Sequence[WindowReport]) -> dict[MessageQueue, tuple[int, int]]:
    """Per queue from where to where the windows have read."""
    ranges = [consumed.range for report in reports for consumed in report.consumed if len(consumed.range)]
    return {
        queue: (min(r.begin for r in ranges if r.queue == queue), max(r.end for r in ranges if r.queue == queue))
        for queue in {range_.queue for range_ in ranges}
    }


WHOLE = {orders(0): (2, 8), orders(1): (2, 8), orders(2): (2, 8), orders(0, "Payments"): (2, 4)}


@pytest.mark.slow
def test_what_was_imported_into_an_interval_later_is_counted_and_is_in_its_next_attempt(early: LakeWorld) -> None:
    again = interval(2, 8, "late messages")
    assert late_messages(early.shard, BOTH, interval(2, 8)) == 0
    import_rest(early)
    cleared = whole(early, interval(2, 8))
    assert [report.status for report in cleared] == ["already_committed"]
    assert late_messages(early.shard, BOTH, interval(2, 8)) == 3 + 6 + 6 + 2

    reports = whole(early, again)
    assert consumed_by(reports) == WHOLE
    assert sum(sum(counts(report).values()) for report in reports) == 6 + 6 + 6 + 2
    assert [late_messages(early.shard, BOTH, one) for one in (again, interval(2, 8))] == [0, 0]
    assert [report.status for report in whole(early, again)] == ["already_committed"]
    assert consumed_by(whole(early, interval(2, 8, "once more"))) == WHOLE
    assert audit(early.store) == []


def test_a_run_without_a_reason_replays_nothing_more_where_the_first_attempt_had_one(tmp_path: Path) -> None:
    """Its part of the interval was empty when the others were replayed."""
    world, reason = LakeWorld(tmp_path), interval(2, 8, "late messages")
    world.fill(orders(0), several(5, step_ms=MINUTE))
    world.fill(orders(1), several(1, step_ms=MINUTE))
    assert consumed_by(whole(world, reason)) == {orders(0): (2, 5)}
    import_rest(world)
    assert [report.status for report in whole(world, interval(2, 8))] == ["already_committed"]
    assert late_messages(world.shard, BOTH, interval(2, 8)) == 3 + 6 + 6 + 2
    assert consumed_by(whole(world, interval(2, 8, "once more"))) == WHOLE
    assert late_messages(world.shard, BOTH, interval(2, 8)) == 0


def test_a_run_without_a_reason_finishes_a_first_attempt_that_had_one_under_its_request(tmp_path: Path) -> None:
    world, reason = LakeWorld(tmp_path), interval(2, 8, "the listener is fixed")
    world.fill(orders(0), several(9, step_ms=MINUTE))
    assert not window(world, reason).is_last
    assert consumed_by(whole(world, interval(2, 8))) == {orders(0): (4, 8)}
    assert [report.status for report in whole(world, reason)] == ["already_committed"]
    assert consumed_by(whole(world, interval(2, 8, "once more"))) == {orders(0): (2, 8)}


@pytest.mark.parametrize("first", [0, 1])
def test_an_attempt_reads_on_where_the_first_one_was_blocked(tmp_path: Path, first: int) -> None:
    """Of an orderly group, by the first message or by a later one; also what was imported since."""
    world, ordered = (
        LakeWorld(tmp_path),
        replace(BOTH, mode="orderly", max_messages=None, consume_message_batch_max_size=1),
    )
    world.fill(orders(0), several(5, step_ms=MINUTE))

    def reads(replayed: IntervalReplay, blocking: int | None = None) -> WindowReport:
        def listen(msgs: list[MessageExt], _: object) -> str:
            return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if msgs[0].queue_offset == blocking else "SUCCESS"

        arguments = begin_interval(world.shard, ordered, replayed, world.another_host())
        with listening(listen):
            return world.consume_window(arguments[0], arguments[1], world.another_host(), arguments[2])

    blocked = reads(interval(2, 8), 2 + first)
    assert (consumed_by([blocked]), len(blocked.blocked)) == ({orders(0): (2, 3)} if first else {}, 1)
    assert consumed(reads(interval(2, 8, "fixed"))) == {orders(0): (2, 5)}
    world.fill(orders(0), several(9, step_ms=MINUTE)[5:])
    assert consumed(reads(interval(2, 8, "late"))) == {orders(0): (2, 8)}


@pytest.mark.parametrize("windows", [0, 1])
def test_an_attempt_of_an_interval_keeps_its_range_from_its_begin_on(early: LakeWorld, windows: int) -> None:
    """Also where its process was killed before its first window."""
    again = interval(2, 8, "late messages")
    early.fill(orders(0), several(9, step_ms=MINUTE)[5:7])
    begin_interval(early.shard, BOTH, again, early.host)
    reports = [window(early, again) for _ in range(windows)]
    early.fill(orders(0), several(9, step_ms=MINUTE)[7:])
    early.fill(orders(1), several(9, step_ms=MINUTE)[1:])
    assert consumed_by([*reports, *whole(early, again)]) == {orders(0): (2, 7)}
    assert late_messages(early.shard, BOTH, again) == 1 + 6


def test_an_attempt_by_the_name_of_the_replay_group_repeats_the_attempt_before(early: LakeWorld) -> None:
    import_rest(early)
    whole(early, interval(2, 8, "late messages"))
    early.fill(orders(3), several(9, step_ms=MINUTE))
    name = interval(2, 8).name(BOTH)
    request = ConsumeRequest(f"{DAY}-by-name", ANA, "again")
    arguments = begin_attempt(early.shard, replace(BOTH, name=name), request, early.host)
    reports: list[WindowReport] = []
    while not reports or not reports[-1].is_last:
        with listening(succeed):
            reports.append(early.consume_window(arguments[0], arguments[1], early.another_host(), arguments[2]))
    assert consumed_by(reports) == WHOLE
