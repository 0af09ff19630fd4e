"""What every engine promises about an operator's moves besides resets: clones, offsets of a file. See ``test_engines.py``."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.offset_moves import MoveReport
from rmq_store.admin.set_offsets import SetOffsetsRequest
from rmq_store.commit.positions import grp_id, pas_id
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from tests.contract.engines import story
from tests.contract.world import ANA, BILLING, DAY, HOUR, Move, World, consumed, fail_bodies, group, orders, several

LEDGER = group("ledger")


def clone(world: World, request_id: str = f"{DAY}-clone", **more: Any) -> MoveReport:
    """Of ``billing`` into ``ledger``."""
    usual: dict[str, Any] = {"group": "ledger", "source": "billing", "actor": ANA, "reason": "a second reader"}
    return world.move(CloneRequest(request_id=request_id, **(usual | more)))


# --- clone -----------------------------------------------------------------------------------------------------------


@story
def test_a_clone_goes_on_where_its_source_stands_and_tells_who_and_why(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=6)
    world.consume(LEDGER, f"{DAY}-2", max_messages=2)
    report = clone(world)
    assert (report.status, report.messages, world.offset(orders(0), "ledger")) == ("committed", -4, 6)
    assert world.history("ledger")[-1] == Move(orders(0), 2, 6, 1, "clone", f"{DAY}-clone", "ana", "a second reader")
    assert (world.offset(orders(0)), world.positions().get(grp_id("billing"))) == (6, 0)
    assert consumed(world.consume(LEDGER, f"{DAY}-3")) == {orders(0): (6, 10)}


@story
def test_a_clone_takes_all_topics_or_one_and_leaves_queues_without_an_offset_alone(world: World) -> None:
    for topic in ("Orders", "Payments"):
        world.fill(orders(0, topic), several(10))
    world.consume(group("billing", ("Orders", "Payments")), f"{DAY}-1")
    world.fill(orders(1), several(3))
    assert {move.queue for move in clone(world, f"{DAY}-c1", topic="Payments").moves} == {orders(0, "Payments")}
    moves = clone(world, f"{DAY}-c2").moves
    assert {move.queue: move.from_offset for move in moves} == {orders(0): None, orders(0, "Payments"): 10}
    assert world.offset(orders(1), "ledger") is None
    assert world.positions().get(pas_id("ledger", orders(0))) == 2


@story
def test_a_clone_leaves_the_retries_to_the_source(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    world.clock.advance(HOUR)
    world.deliver(f"{DAY}-d")
    world.consume(BILLING, f"{DAY}-2")
    assert [move.queue for move in clone(world).moves] == [orders(0)]


@story
def test_a_group_that_only_its_broker_has_can_be_cloned(world: World) -> None:
    world.fill(orders(0), several(10))
    world.observe("billing", orders(0), 3)
    world.observe("billing", orders(0), 7)
    assert [move.to_offset for move in clone(world).moves] == [7]


@story
def test_a_dry_run_of_a_clone_changes_nothing_and_the_same_clone_again_moves_nothing_again(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=6)
    before = world.ctls()
    assert (clone(world, dry_run=True).status, world.ctls()) == ("dry_run", before)
    first = clone(world)
    world.consume(BILLING, f"{DAY}-2")
    again = clone(world)
    assert (again.status, again.moves, again.commit_id) == ("already_committed", first.moves, first.commit_id)
    assert world.offset(orders(0), "ledger") == 6


@story
def test_a_clone_of_nothing_of_an_impossible_offset_into_itself_or_without_reason_is_refused(world: World) -> None:
    world.fill(orders(0), several(10))
    with pytest.raises(WrongUse, match="billing has no offsets in shard broker-a"):
        clone(world)
    world.observe("billing", orders(0), 11)
    with pytest.raises(WrongUse, match="no offsets of topic Payments"):
        clone(world, topic="Payments")
    with pytest.raises(WrongUse, match=r"stands at 11 of .*, beyond its end 10"):
        clone(world)
    with pytest.raises(WrongUse, match="both are billing"):
        clone(world, group="billing")
    with pytest.raises(WrongUse, match="a clone needs a reason"):
        clone(world, reason="")
    assert world.positions().get(grp_id("ledger")) is None


@story
def test_a_clone_fences_a_running_window_of_its_target(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=6)

    def listener(msgs: list[MessageExt], context: Any) -> str:
        clone(world)
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt, match=rf"overtaken.*Moved by clone {DAY}-clone of ana"):
        world.consume(LEDGER, f"{DAY}-2", listener)
    assert world.offset(orders(0), "ledger") == 6


# --- offsets of a file -----------------------------------------------------------------------------------------------

CLIENT = group("audit@a", message_model=MessageModel.BROADCASTING)


def set_offsets(world: World, offsets: dict[MessageQueue, int], **more: Any) -> MoveReport:
    """Of a broadcasting client that moves to the lake."""
    usual: dict[str, Any] = {"group": CLIENT.name, "source": "offsets.json", "actor": ANA, "reason": "it moves here"}
    return world.move(SetOffsetsRequest(offsets=offsets, **({"request_id": f"{DAY}-set"} | usual | more)))


@story
def test_a_broadcasting_client_goes_on_where_its_file_says_and_elsewhere_by_its_rule(world: World) -> None:
    for queue_id in (0, 1):
        world.fill(orders(queue_id), several(10))
    report = set_offsets(world, {orders(0): 7})
    assert (report.status, [(m.from_offset, m.to_offset) for m in report.moves]) == ("committed", [(None, 7)])
    said = Move(orders(0), None, 7, 1, "reset", f"{DAY}-set", "ana", "it moves here")
    assert world.history(CLIENT.name)[-1] == said
    assert consumed(world.consume(CLIENT, f"{DAY}-1")) == {orders(0): (7, 10), orders(1): (0, 10)}


@story
def test_a_group_is_set_like_a_client_and_what_the_file_does_not_name_stays(world: World) -> None:
    for queue_id in (0, 1):
        world.fill(orders(queue_id), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=10)
    set_offsets(world, {orders(1): 9}, group="billing")
    assert (world.offset(orders(0)), world.offset(orders(1))) == (5, 9)


@story
def test_a_dry_run_sets_nothing_and_the_same_request_again_sets_nothing_again(world: World) -> None:
    world.fill(orders(0), several(10))
    before = world.ctls()
    assert (set_offsets(world, {orders(0): 7}, dry_run=True).status, world.ctls()) == ("dry_run", before)
    first = set_offsets(world, {orders(0): 7})
    world.consume(CLIENT, f"{DAY}-1")
    again = set_offsets(world, {orders(0): 7})
    assert (again.status, again.moves, again.commit_id) == ("already_committed", first.moves, first.commit_id)
    assert world.offset(orders(0), CLIENT.name) == 10


@story
@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ({orders(0): 11}, r"offset 11 not in consume queue range \[5-10\]"),
        ({orders(0): 4}, r"offset 4 not in consume queue range \[5-10\]"),
        ({orders(0): -1}, "offset -1 not in"),
        ({orders(0): 7, orders(3): 1}, "shard broker-a has no queue .*3"),
    ],
)
def test_offsets_that_the_queues_do_not_have_are_refused_all_together(
    world: World, offsets: dict[MessageQueue, int], says: str
) -> None:
    world.fill(orders(0), several(5, first=5), base=5)
    with pytest.raises(WrongUse, match=says):
        set_offsets(world, offsets)
    with pytest.raises(WrongUse, match="an import of offsets needs a reason"):
        set_offsets(world, {orders(0): 7}, reason=" ")
    assert world.offset(orders(0), CLIENT.name) is None


@story
def test_setting_offsets_fences_a_running_window(world: World) -> None:
    world.fill(orders(0), several(10))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        set_offsets(world, {orders(0): 7})
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt, match=rf"overtaken.*Moved by reset {DAY}-set of ana"):
        world.consume(CLIENT, f"{DAY}-1", listener)
    assert world.offset(orders(0), CLIENT.name) == 7
