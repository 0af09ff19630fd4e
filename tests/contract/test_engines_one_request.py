"""One id is one request: who asks for something else under an id that was used is refused, since "already committed" would
tell him that his own is done. See ``test_engines.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.replay import as_replay
from rmq_store.admin.reset import ResetTo
from rmq_store.admin.set_offsets import SetOffsetsRequest
from rmq_store.errors import WrongUse
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.engines import story
from tests.contract.test_engines_redrive import with_letters
from tests.contract.world import ANA, BILLING, DAY, HOUR, NOON, World, group, orders, several

ID = f"{DAY}-one"


@story
@pytest.mark.parametrize("other", [{"max_messages": 4}, {"max_messages": None}, {"until_ms": NOON}])
def test_a_window_with_other_bounds_is_not_told_that_it_is_done(world: World, other: dict[str, Any]) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, ID, max_messages=3)
    asked: dict[str, Any] = {"max_messages": 3} | other
    with pytest.raises(WrongUse, match=f"request id {ID} was already used with different parameters .*use a new id"):
        world.consume(BILLING, ID, **asked)
    assert world.consume(BILLING, ID, max_messages=3).status == "already_committed"
    assert world.offset(orders(0)) == 3


@story
def test_a_replay_of_something_else_is_not_told_that_it_is_done(world: World) -> None:
    world.fill(orders(0), several(10))
    both = group("billing", topics=("Orders", "Payments"))

    def replay(topic: str, from_ms: int) -> Any:
        settings, asked, scope = as_replay(both, topic, from_ms, ConsumeRequest(ID, ANA))
        return world.consume_window(settings, asked, world.host, scope)

    assert replay("Orders", NOON - HOUR).messages() == 10
    with pytest.raises(WrongUse, match=r"different parameters \(topic Orders; now topic Payments\)\. Nothing was"):
        replay("Payments", NOON - HOUR)
    with pytest.raises(WrongUse, match=r"different parameters \(from "):
        replay("Orders", NOON)
    assert replay("Orders", NOON - HOUR).status == "already_committed"


@story
@pytest.mark.parametrize(
    "other",
    [{"value": 5}, {"to": ResetTo.MIN, "value": None}, {"queues": (orders(0),)}, {"queues": (orders(1),)}],
)
def test_a_reset_to_somewhere_else_is_not_told_that_it_is_done(world: World, other: dict[str, Any]) -> None:
    world.fill(orders(0), several(10))
    world.fill(orders(1), several(10, first=20))
    asked: dict[str, Any] = {"to": ResetTo.OFFSET, "value": 4, "request_id": ID}
    world.reset_to(**asked)
    with pytest.raises(WrongUse, match=f"request id {ID} was already used"):
        world.reset_to(**(asked | other))
    assert world.reset_to(**asked).status == "already_committed"
    assert (world.offset(orders(0)), world.offset(orders(1))) == (4, 4)


@story
def test_a_clone_of_another_group_and_other_offsets_of_a_file_are_not_told_that_they_are_done(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    world.move(CloneRequest("copy", "billing", ID, ANA, "x"))
    with pytest.raises(WrongUse, match=r"different parameters \(source billing; now source other"):
        world.move(CloneRequest("copy", "other", ID, ANA, "x"))
    world.move(SetOffsetsRequest("copy", {orders(0): 3}, "offsets.json", f"{ID}-f", ANA, "x"))
    with pytest.raises(WrongUse, match=r"different parameters \(offsets "):
        world.move(SetOffsetsRequest("copy", {orders(0): 5}, "offsets.json", f"{ID}-f", ANA, "x"))
    again = world.move(SetOffsetsRequest("copy", {orders(0): 3}, "offsets.json", f"{ID}-f", ANA, "x"))
    assert (again.status, world.offset(orders(0), "copy")) == ("already_committed", 3)


@story
@pytest.mark.parametrize(
    "other",
    [{"limit": None}, {"limit": 3}, {"to_topic": "Orders"}, {"letters": DeadLetterFilter(keys=frozenset({"k"}))}],
)
def test_a_redrive_of_other_letters_is_not_told_that_it_is_done(world: World, other: dict[str, Any]) -> None:
    with_letters(world, 4)
    asked: dict[str, Any] = {"request_id": ID, "limit": 2}
    assert world.redrive(**asked).letters == 2
    with pytest.raises(WrongUse, match=f"request id {ID} was already used"):
        world.redrive(**(asked | other))
    assert world.redrive(**asked).status == "already_committed"
