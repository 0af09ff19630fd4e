"""Retention beside what gives a group an older offset: a first window, a reset, a replay's next attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.positions import QueueRange
from rmq_store.errors import StaleAttempt
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.maintain.retention import RetentionReport, RetentionRequest, retain
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.settings.retention_settings import RetentionRule
from tests.contract.engines import LakeWorld
from tests.contract.world import ANA, DAY, SHARD, group, orders, several

QUEUE = orders()
RULES = (RetentionRule(topic="*", max_age_ms=1),)


def retained(world: LakeWorld, rules: tuple[RetentionRule, ...] = RULES) -> RetentionReport:
    """By a process of its own."""
    shard = world.store.shards(world.shard.name)[0]
    return retain(shard, RetentionRequest(request_id=f"{DAY}-retain", actor=ANA, rules=rules), world.another_host())


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    """Ten messages, which one group has consumed."""
    world = LakeWorld(tmp_path)
    world.fill(QUEUE, several(10))
    world.consume(group("billing"), f"{DAY}-billing")
    return world


def is_whole(world: LakeWorld) -> bool:
    return not query(world.store, "SELECT * FROM audit").to_pylist()


def test_a_group_that_begins_while_retention_commits_loses_nothing(world: LakeWorld) -> None:
    young = group("prices", max_messages=4)
    with world.at_step("4.decided", lambda: world.consume(young, f"{DAY}-prices-1")):
        retained(world)
    assert world.offset(QUEUE, "prices") == 4
    assert world.positions().min_offset(QUEUE) == 4, "what the new group has not consumed stays"
    world.consume(young, f"{DAY}-prices-2")
    world.consume(young, f"{DAY}-prices-3")
    assert world.offset(QUEUE, "prices") == 10
    assert {outcome.outcome for outcome in world.outcomes("prices")} == set(), "nothing is lost"
    assert is_whole(world)


def test_of_two_at_once_the_slower_one_does_not_bring_messages_back(world: LakeWorld) -> None:
    """It has planned when a group still held back most of them."""
    young = group("prices", max_messages=4)
    world.consume(young, f"{DAY}-prices-1")

    def others() -> None:
        world.consume(group("prices"), f"{DAY}-prices-2")
        retained(world)

    with world.at_step("4.decided", others):
        retained(world)
    assert world.positions().min_offset(QUEUE) == 10
    assert is_whole(world)


def test_a_first_window_that_retention_overtakes_is_planned_again(world: LakeWorld) -> None:
    """Otherwise the group would have an offset before the first message, and its next window would stop there."""
    young = group("prices", max_messages=4)
    with world.at_step("4.decided", lambda: retained(world)), pytest.raises(StaleAttempt, match="retention"):
        world.consume(young, f"{DAY}-prices-1")
    assert world.offset(QUEUE, "prices") is None
    world.consume(young, f"{DAY}-prices-1")
    assert world.offset(QUEUE, "prices") == 10
    assert is_whole(world)


def test_a_first_window_that_has_read_what_was_removed_is_committed(world: LakeWorld) -> None:
    with world.at_step("4.decided", lambda: retained(world)):
        world.consume(group("prices"), f"{DAY}-prices-1")
    assert world.offset(QUEUE, "prices") == 10
    assert world.positions().min_offset(QUEUE) == 10, "it stays where retention has moved it"
    assert is_whole(world)


def test_what_a_group_loses_is_told_as_it_is(world: LakeWorld) -> None:
    """The group goes on while retention commits."""
    slow = group("prices", max_messages=4)
    world.consume(slow, f"{DAY}-prices-1")
    rule = RetentionRule(topic="*", max_age_ms=1, max_unconsumed_age_ms=1)
    with world.at_step("4.decided", lambda: world.consume(slow, f"{DAY}-prices-2")):
        report = retained(world, (rule,))
    assert report.removals[0].lost == {"prices": QueueRange(QUEUE, 8, 10)}


def test_a_reset_that_retention_overtakes_moves_nothing(world: LakeWorld) -> None:
    with world.at_step("4.decided", lambda: retained(world)), pytest.raises(StaleAttempt, match="retention"):
        world.reset_to(ResetTo.OFFSET, 3)
    assert world.offset(QUEUE) == 10
    assert world.positions().min_offset(QUEUE) == 10


def test_a_reset_that_comes_first_holds_the_messages_back(world: LakeWorld) -> None:
    with world.at_step("4.decided", lambda: world.reset_to(ResetTo.OFFSET, 3)):
        retained(world)
    assert world.offset(QUEUE) == 3
    assert world.positions().min_offset(QUEUE) == 3
    assert is_whole(world)


def test_a_cut_over_that_comes_first_holds_the_messages_back(world: LakeWorld) -> None:
    """The offset that it adopts for a group of the broker."""
    world.observe("prices", QUEUE, 4)
    shard = world.store.shards(world.shard.name)[0]
    with world.at_step("4.decided", lambda: cut_over(world, shard)):
        retained(world)
    assert world.offset(QUEUE, "prices") == 4
    assert world.positions().min_offset(QUEUE) == 4


def test_a_cut_over_that_retention_overtakes_is_planned_again(world: LakeWorld) -> None:
    world.observe("prices", QUEUE, 4)
    shard = world.store.shards(world.shard.name)[0]
    with world.at_step("4.decided", lambda: retained(world)), pytest.raises(StaleAttempt, match="retention"):
        cut_over(world, shard)
    assert world.offset(QUEUE, "prices") is None


def cut_over(world: LakeWorld, shard: Shard) -> None:
    cutover(world.store, shard, SHARD, world.another_host(), request_id=f"{DAY}-cut", actor=ANA, reason="switched off")


def test_a_group_may_have_any_name(world: LakeWorld) -> None:
    """The names of groups that lose messages are in the parameters that ``ctl_removed`` reads."""
    world.consume(group("removed", max_messages=4), f"{DAY}-removed-1")
    retained(world, (RetentionRule(topic="*", max_age_ms=1, max_unconsumed_age_ms=1),))
    ranges = query(world.store, "SELECT topic, begin_offset, end_offset FROM removed_ranges").to_pylist()
    assert ranges == [{"topic": "Orders", "begin_offset": 0, "end_offset": 10}]
    assert is_whole(world)
