"""What every engine promises of where a group starts (rules 5). See ``test_engines.py``."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import pas_id
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import WrongUse
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest, only_retries
from rmq_store.window.dry_run import commit_as_planned
from rmq_store.window.plan import Planner
from tests.contract.engines import LakeWorld, MemoryWorld, story
from tests.contract.world import (
    ANA,
    BILLING,
    DAY,
    World,
    consumed,
    fail_bodies,
    group,
    listening,
    orders,
    several,
    succeed,
)
from tests.oracle.memory.shard import MemoryShard

LATE = group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
ELSEWHERE = MessageQueue("Orders", "broker-b", 0)


@story
def test_the_first_window_from_the_last_offset_records_its_start(world: World) -> None:
    world.fill(orders(0), several(10))
    first = world.consume(LATE, f"{DAY}-1")
    assert (first.status, first.messages(), world.offset(orders(0))) == ("committed", 0, 10)
    assert [(c.range.begin, c.range.end, c.start_rule) for c in first.consumed] == [(10, 10, "last_offset")]
    world.fill(orders(0), several(2, first=10))
    second = world.consume(LATE, f"{DAY}-2")
    assert consumed(second) == {orders(0): (10, 12)}
    assert [c.start_rule for c in second.consumed] == ["stored"]


@story
def test_a_queue_that_appears_later_is_read_from_its_first_message(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(LATE, f"{DAY}-1")
    world.fill(orders(1), several(3, first=10), base=5)
    report = world.consume(LATE, f"{DAY}-2")
    assert [(c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [(5, 8, "later_queue_from_min")]


def started_elsewhere(world: World) -> list[tuple[int, int, str]]:
    """The window of a group that begins at the last offset, in the shard broker-b."""
    with world.in_shard("broker-b"):
        report = world.consume(LATE, f"{DAY}-elsewhere")
    return [(c.range.begin, c.range.end, c.start_rule) for c in report.consumed]


@story
def test_a_topic_that_comes_to_a_second_broker_later_is_read_from_its_first_message_there(world: World) -> None:
    """Each broker is a shard of its own, and its first window in that shard is not the group's first one. The clock of the host
    that imports the second broker is behind that of the first window's host."""
    world.fill(orders(0), several(3))
    with world.in_shard("broker-b"):
        world.fill(MessageQueue("Refunds", "broker-b", 0), several(2))
    world.consume(LATE, f"{DAY}-1")
    world.clock.advance(-40_000)
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(3, first=10), base=5)
        world.fill(ELSEWHERE, several(1, first=20))
    assert started_elsewhere(world) == [(5, 9, "later_queue_from_min")]


@story
def test_a_queue_that_appears_elsewhere_while_the_first_window_runs_is_read_from_its_first_message(
    world: World,
) -> None:
    world.fill_lake_born(0, several(2))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        with world.in_shard("broker-b"):
            world.fill(ELSEWHERE, several(4))
        return "CONSUME_SUCCESS"

    assert world.consume(LATE, f"{DAY}-1", listener).messages() == 2
    assert started_elsewhere(world) == [(0, 4, "later_queue_from_min")]


@story
def test_a_topic_that_a_group_reads_later_starts_at_its_first_message_in_each_shard(world: World) -> None:
    refunds = MessageQueue("Refunds", "broker-b", 0)
    world.fill(orders(0), several(3))
    world.fill(MessageQueue("Refunds", "broker-a", 0), several(2))
    with world.in_shard("broker-b"):
        world.fill(refunds, several(2))
    world.consume(LATE, f"{DAY}-1")
    last = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    both = group(topics=("Orders", "Refunds"), subscription_version=2, consume_from_where=last)
    starts = [(c.range.begin, c.start_rule) for c in world.consume(both, f"{DAY}-2").consumed]
    with world.in_shard("broker-b"):
        starts += [(c.range.begin, c.start_rule) for c in world.consume(both, f"{DAY}-3").consumed]
    assert starts == [(0, "later_queue_from_min"), (0, "later_queue_from_min")]


@story
def test_the_first_window_is_the_one_that_was_committed_first(world: World) -> None:
    """c1 has begun before c2, and takes longer than clocks may differ. A broker is imported between the two commits."""
    for number in range(2):
        world.fill_lake_born(number, several(2))
    clients = ("c1", "c2")
    reports: list[WindowReport] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        if not reports:
            world.clock.advance(200_000)
            reports.append(world.consume(LATE, f"{DAY}-2", client_id="c2", client_ids=clients))
            world.clock.advance(1)
            with world.in_shard("broker-b"):
                world.fill(ELSEWHERE, several(4))
            world.clock.advance(1)
        return "CONSUME_SUCCESS"

    reports.append(world.consume(LATE, f"{DAY}-1", listener, client_id="c1", client_ids=clients))
    assert [report.messages() for report in reports] == [2, 2]
    assert [ctl.request_id for ctl in world.ctls() if ctl.action is Action.CONSUME] == [f"{DAY}-2", f"{DAY}-1"]
    assert started_elsewhere(world) == [(0, 4, "later_queue_from_min")]


@story
def test_the_first_window_of_a_group_chooses_where_its_queues_start_in_each_shard(world: World) -> None:
    """The first request of a group has a window in one shard after the other: what a shard gets in between is read there."""
    world.fill(orders(0), several(3))
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))
    world.consume(LATE, f"{DAY}-1")
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(2, first=10))
    assert started_elsewhere(world) == [(4, 6, "last_offset")]


@story
def test_two_first_windows_at_once_start_a_third_shard_where_both_knew_its_queue(world: World) -> None:
    """The window in broker-a is planned before broker-c has the queue, that in broker-b after it."""
    elsewhere = MessageQueue("Orders", "broker-c", 0)
    world.fill_lake_born(0, several(2))
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        with world.in_shard("broker-c"):
            world.fill(elsewhere, several(4))
        with world.in_shard("broker-b"):
            assert world.consume(LATE, f"{DAY}-2").status == "committed"
        return "CONSUME_SUCCESS"

    world.consume(LATE, f"{DAY}-1", listener)
    with world.in_shard("broker-c"):
        report = world.consume(LATE, f"{DAY}-3")
    assert [(c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [(0, 4, "later_queue_from_min")]


def test_a_first_window_that_was_planned_before_one_elsewhere_was_committed_starts_where_that_one_chose(
    world: LakeWorld | MemoryWorld,
) -> None:
    """broker-b gets messages between the plans of the two windows; nothing but the claim is committed there after its plan."""
    world.fill(orders(0), several(3))
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))
    shards = world.store.shards()
    shard = next(shard for shard in shards if shard.name == "broker-a")
    view = shard if isinstance(shard, MemoryShard) else ShardLookup(shard)
    request = ConsumeRequest(f"{DAY}-1", ANA)
    planned = Planner(view, LATE, world.clock()).plan(request, [])  # before the messages that the other plan sees

    def committed() -> None:
        with world.in_shard("broker-a"):
            world.commit(commit_as_planned(planned, request, {}, world.host.new_commit_id()))

    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(2, first=10))
        report = world.consume(LATE, f"{DAY}-2", host=world.another_host(committed, before_id=1))
    assert [(c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [(4, 6, "last_offset")]


@story
def test_the_first_window_also_chooses_for_shards_that_its_group_does_not_read_yet(world: World) -> None:
    world.fill(orders(0), several(3))
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))
    world.consume(group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, shards=("broker-a",)), f"{DAY}-1")
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(2, first=10))
    assert started_elsewhere(world) == [(4, 6, "last_offset")]


@story
def test_what_an_undo_leaves_in_another_shard_starts_where_the_first_window_chose(world: World) -> None:
    """The queue had an offset when the first window was planned, and has none afterwards."""
    world.fill(orders(0), several(3))
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))
        world.reset_to(ResetTo.MIN)
    world.consume(LATE, f"{DAY}-1")
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(2, first=10))
        world.undo()
        world.fill(ELSEWHERE, several(2, first=20))
    assert started_elsewhere(world) == [(4, 8, "last_offset")]


@story
def test_a_first_window_of_retries_chooses_for_the_topics_also_after_another_commit(world: World) -> None:
    """It is planned again after its claim, since something was committed in between."""
    world.fill(orders(0), several(4))
    world.fill(MessageQueue("%RETRY%billing", "broker-a", 0), several(1, first=50))
    world.cut_over()
    late = world.another_host(lambda: world.fill(orders(1), several(2, first=10)), before_id=1)
    request, scope = only_retries(ConsumeRequest(f"{DAY}-1", ANA))
    with listening(succeed):
        assert world.consume_window(LATE, request, late, scope).messages() == 1
    assert world.offset(orders(0)) == 4
    assert consumed(world.consume(LATE, f"{DAY}-2")) == {orders(1): (0, 2)}


@story
def test_windows_before_a_delete_of_the_group_and_those_of_other_groups_make_no_queue_later(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(LATE, f"{DAY}-1")
    world.consume(group("shipping"), f"{DAY}-2")
    world.move(DeleteGroupRequest(group="billing", request_id=f"{DAY}-delete", actor=ANA, reason="gone"))
    world.clock.advance(1)
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))
    assert started_elsewhere(world) == [(4, 4, "last_offset")]


def delete_after_a_first_window(world: World) -> None:
    """The group has its first window in one shard, which also chooses where it starts in another one, and is deleted there."""
    world.fill(orders(0), several(3))
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(4))
    world.consume(LATE, f"{DAY}-1")
    world.delete()


@story
def test_a_delete_in_one_shard_leaves_what_its_first_window_chose_for_another(world: World) -> None:
    """The group had no window there yet. A queue that comes there is a later one."""
    later = MessageQueue("Orders", "broker-b", 1)
    delete_after_a_first_window(world)
    with world.in_shard("broker-b"):
        world.fill(ELSEWHERE, several(2, first=10))
        world.fill(later, several(1, first=20))
    world.fill(orders(0), several(2, first=30))
    again = world.consume(LATE, f"{DAY}-2")  # a new group in its own shard
    assert [(c.range.begin, c.range.end, c.start_rule) for c in again.consumed] == [(5, 5, "last_offset")]
    assert started_elsewhere(world) == [(4, 6, "last_offset"), (0, 1, "later_queue_from_min")]


@story
def test_a_delete_in_each_shard_makes_the_group_new_also_where_it_had_no_window(world: World) -> None:
    later = MessageQueue("Orders", "broker-c", 0)
    delete_after_a_first_window(world)
    with world.in_shard("broker-b"):
        assert world.delete().moves == ()
        with pytest.raises(WrongUse, match=r"was deleted in shard broker-b at .*: nothing to delete"):
            world.delete(f"{DAY}-again")
        world.fill(ELSEWHERE, several(2, first=10))
    with world.in_shard("broker-c"):
        world.fill(later, several(4))
        report = world.consume(LATE, f"{DAY}-2")
    assert [(c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [(4, 4, "last_offset")]
    assert started_elsewhere(world) == [(6, 6, "last_offset")]


@story
def test_a_reset_before_the_first_window_leaves_the_start_of_other_queues_to_the_group(world: World) -> None:
    for number in range(3):
        world.fill(orders(number), several(4, first=10 * number))
    world.reset_to(ResetTo.OFFSET, 1, queues=(orders(0),))
    report = world.consume(LATE, f"{DAY}-1")
    assert [(c.range.queue, c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [
        (orders(0), 1, 4, "stored"),
        (orders(1), 4, 4, "last_offset"),
        (orders(2), 4, 4, "last_offset"),
    ]


@story
def test_after_a_window_a_reset_does_not_make_it_the_first_one_again(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(LATE, f"{DAY}-1")
    world.reset_to(ResetTo.MAX)
    world.fill(orders(1), several(2, first=10))
    report = world.consume(LATE, f"{DAY}-2")
    assert [(c.range.queue, c.range.begin, c.start_rule) for c in report.consumed] == [
        (orders(1), 0, "later_queue_from_min")
    ]


@story
def test_what_other_groups_consumed_makes_no_window_the_groups_first_one(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(group("shipping"), f"{DAY}-1")
    world.fill(orders(1), several(4))
    world.reset_to(ResetTo.MIN, queues=(orders(0),))
    report = world.consume(group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET), f"{DAY}-2")
    assert {c.range.queue: c.start_rule for c in report.consumed} == {orders(0): "stored", orders(1): "last_offset"}


@story
def test_a_queue_born_in_the_lake_is_read_from_its_first_message(world: World) -> None:
    queue = world.fill_lake_born(0, several(2))
    report = world.consume(group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET), f"{DAY}-1")
    assert [(c.range.queue, c.range.end, c.start_rule) for c in report.consumed] == [(queue, 2, "lake_born_from_min")]


@story
def test_a_group_may_start_at_a_moment(world: World) -> None:
    world.fill(orders(0), several(10, step_ms=60_000))
    moment = "2024-06-03T11:04:00Z"  # four minutes after the first message
    timed = group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, consume_timestamp=moment)
    report = world.consume(timed, f"{DAY}-1")
    assert [(c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [(4, 10, "timestamp")]


@story
def test_what_a_broker_knew_of_a_group_seeds_it_once(world: World) -> None:
    world.fill(orders(0), several(10))
    world.observe("billing", orders(0), 6)
    world.observe("shipping", orders(0), 1)
    report = world.consume(BILLING, f"{DAY}-1")
    assert [(c.range.begin, c.start_rule) for c in report.consumed] == [(6, "observed")]
    world.observe("billing", orders(0), 2)
    assert world.consume(BILLING, f"{DAY}-2").status == "empty"


@story
def test_the_retries_of_a_living_broker_are_read_only_after_its_cut_over(world: World) -> None:
    retries = MessageQueue("%RETRY%billing", "broker-a", 0)
    world.fill(orders(0), several(2))
    world.fill(retries, several(3, first=50))
    assert consumed(world.consume(BILLING, f"{DAY}-1")) == {orders(0): (0, 2)}
    world.cut_over()
    second = world.consume(BILLING, f"{DAY}-2")
    assert [(c.range.queue, c.range.end, c.start_rule) for c in second.consumed] == [
        (retries, 3, "retry_topic_from_min")
    ]


@story
def test_a_queue_that_starts_after_an_operator_action_belongs_to_its_pass(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1")
    world.reset_to(ResetTo.MIN)
    world.fill(orders(1), several(2, first=10))
    report = world.consume(BILLING, f"{DAY}-2", fail_bodies(b"10"))
    assert {c.range.queue: c.pass_ for c in report.consumed} == {orders(0): 1, orders(1): 1}
    assert world.positions().get(pas_id("billing", orders(1))) == 1
    assert [m.row.provenance.pass_ for m in world.lane(3) if m.row.provenance] == [1]
