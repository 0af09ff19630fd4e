"""What a delete makes of a group's positions, and who is dropped by it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmq_store.admin.delete_group import DeleteGroupRequest, Waiting, delete_moves, is_gone, what_waits
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor
from rmq_store.commit.decide import Clocks, decide
from rmq_store.commit.positions import (
    ABSENT,
    Positions,
    blk_id,
    cutover_id,
    del_id,
    grp_id,
    max_id,
    min_id,
    off_id,
    pas_id,
    sub_id,
)
from rmq_store.consumer.consume_result import GROUP_DELETED, is_void, void_ranges
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS
from rmq_store.lake.window.void_rows import void_rows, with_epoch, without_epoch
from rmq_store.message.message import MessageQueue

ORDERS = MessageQueue("Orders", "broker-a", 0)
RETRY = MessageQueue("%RETRY%g", "lake-broker-a", 0)
BROKERS = MessageQueue("%RETRY%g", "broker-a", 0)
LEVEL = MessageQueue("SCHEDULE_TOPIC_XXXX", "lake-broker-a~g", 2)
OTHERS = MessageQueue("SCHEDULE_TOPIC_XXXX", "lake-broker-a~g2", 2)
WHEEL = MessageQueue("rmq_sys_wheel_timer", "lake-broker-a~g", 1)
LETTERS = MessageQueue("%DLQ%g", "lake-broker-a", 0)
ENDS = {ORDERS: 10, RETRY: 7, BROKERS: 100, LEVEL: 5, OTHERS: 50, WHEEL: 4, LETTERS: 9}


def positions(**more: Any) -> Positions:
    values = {max_id(queue): end for queue, end in ENDS.items()}
    values |= {grp_id("g"): 3, off_id("g", ORDERS): 6, off_id("g", RETRY): 5, blk_id("g", ORDERS): 1}
    values |= {off_id(SCHEDULE_GROUP, LEVEL): 2, min_id(LETTERS): 4, off_id("g2", ORDERS): 1}
    return Positions(1, values | more.get("values", {}))


def test_offsets_become_void_and_the_retry_topic_goes_on_at_its_ends() -> None:
    moves = delete_moves(positions(), "g")
    told = {move.queue: (move.from_offset, move.to_offset, move.pass_) for move in moves}
    assert told == {ORDERS: (6, ABSENT, 4), RETRY: (5, 7, 4), BROKERS: (None, 100, 4)}


def test_the_commit_raises_the_epoch_records_it_as_the_last_delete_and_leaves_nothing_of_the_queues() -> None:
    request = DeleteGroupRequest("g", "2026-11-20-x", Actor("ana", "test"), "old")
    proposal = request.proposal("c", positions(), delete_moves(positions(), "g"))
    wanted = {grp_id("g"): 4, del_id("g"): 4, blk_id("g", ORDERS): ABSENT, off_id("g", ORDERS): ABSENT}
    wanted |= {off_id("g", RETRY): 7, off_id("g", BROKERS): 100}
    wanted |= {pas_id("g", queue): 4 for queue in (ORDERS, RETRY, BROKERS)}
    assert proposal.advance == wanted
    assert proposal.expect.keys() <= proposal.advance.keys()
    assert (proposal.ctl.action, proposal.ctl.epoch, proposal.ctl.parameters) == (
        Action.DELETE,
        4,
        '{"dead_letters":5,"delayed":7,"retries":2}',
    )


def test_an_offset_that_was_not_there_at_the_plan_overtakes_it() -> None:
    request = DeleteGroupRequest("g", "2026-11-20-x", Actor("ana", "test"), "old")
    proposal = request.proposal("c", positions(), delete_moves(positions(), "g"))
    clocks = Clocks(0, 0)
    assert decide(proposal, positions(), clocks).positions[del_id("g")] == 4
    new = off_id("g", MessageQueue("Payments", "broker-a", 1))
    with pytest.raises(StaleAttempt, match=r"off/g/Payments/broker-a/1 was None and is 0"):
        decide(proposal, positions(values={new: 0}), clocks)
    decide(proposal, positions(values={off_id("g2", LETTERS): 0, new: ABSENT}), clocks)


@pytest.mark.parametrize("app_id", [off_id("g", ORDERS), blk_id("g", ORDERS), sub_id("g"), del_id("g"), grp_id("g")])
def test_whatever_of_the_group_was_changed_after_the_plan_overtakes_it(app_id: str) -> None:
    request = DeleteGroupRequest("g", "2026-11-20-x", Actor("ana", "test"), "old")
    planned = positions(values={sub_id("g"): 70})
    proposal = request.proposal("c", planned, delete_moves(planned, "g"))
    with pytest.raises(StaleAttempt, match=f"{app_id} was"):
        decide(proposal, positions(values={sub_id("g"): 70, app_id: 99}), Clocks(0, 0))


def test_a_replay_is_not_deleted() -> None:
    """Its epochs count its attempts."""
    with pytest.raises(WrongUse, match="it is a replay of g"):
        DeleteGroupRequest(replay_group("g", "2026-11-20-y"), "2026-11-20-x", Actor("ana", "test"), "old")


def test_what_waits_is_counted_without_what_belongs_to_others_or_to_a_living_broker() -> None:
    assert what_waits(positions(), "g") == Waiting(retries=2, delayed=3 + 4, dead_letters=5)
    assert what_waits(positions(values={cutover_id("broker-a"): 1}), "g").retries == 102
    assert Waiting(1, 2, 3) + Waiting(10, 20, 30) == Waiting(11, 22, 33)


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({}, False),
        ({del_id("g"): 4}, False),
        ({del_id("g"): 4, off_id("g", ORDERS): ABSENT}, True),
        ({del_id("g"): ABSENT, off_id("g", ORDERS): ABSENT}, False),
    ],
)
def test_a_group_is_gone_while_it_stands_nowhere_but_in_its_retry_topic(values: dict[str, int], gone: bool) -> None:
    assert is_gone(positions(values=values), "g") is gone


@pytest.mark.parametrize(
    ("epoch", "deleted", "void"),
    [(0, None, False), (None, None, False), (0, 1, True), (1, 1, False), (2, 1, False), (1, 2, True), (None, 1, True)],
)
def test_a_retry_is_void_when_it_is_older_than_the_last_delete(
    epoch: int | None, deleted: int | None, void: bool
) -> None:
    assert is_void(epoch, deleted) is void


def test_rows_are_judged_as_columns_also_where_files_do_not_say_an_epoch() -> None:
    batch = pa.RecordBatch.from_pydict({"epoch": pa.array([0, None, 2, 3, 2], pa.int64()), "rel": list(range(5))})
    assert void_rows(batch, 2).tolist() == [is_void(epoch, 2) for epoch in (0, None, 2, 3, 2)]
    assert void_rows(batch.select(["rel"]), 1).tolist() == [True] * 5
    assert without_epoch(batch).schema.names == ["rel"]


def test_the_epoch_is_read_where_a_message_may_be_void_and_nowhere_else() -> None:
    assert with_epoch(["body"], None) == ["body"]
    assert with_epoch(None, None) is None
    assert with_epoch(["body"], 1) == ["body", "epoch"]
    assert with_epoch(None, 1) == [*MESSAGE_COLUMNS, "epoch"]


def test_neighbours_are_dropped_together() -> None:
    found = [(one.range.begin, one.range.end, one.reason) for one in void_ranges(RETRY, [3, 4, 6])]
    assert found == [(3, 5, GROUP_DELETED), (6, 7, GROUP_DELETED)]
