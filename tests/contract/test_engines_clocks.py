"""The same request under clocks that jump: it is committed once or refused in words, whatever the clocks say and in
whatever order. See ``test_engines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from random import Random
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Action
from rmq_store.errors import ClockSkew
from rmq_store.producer.producer import Message
from rmq_store.utils.host import day_of
from tests.contract.engines import story
from tests.contract.world import BILLING, DAY, HOUR, NOON, World, group, orders, several

MIDNIGHT = NOON + 12 * HOUR
TOMORROW = day_of(MIDNIGHT)
A_DAY = 24 * HOUR
SEED = 20240603

Ask = Callable[[World, str], str]
"""One attempt of a request; its status."""


def send(world: World, request_id: str) -> str:
    """Each request to a topic of its own: a queue with a message of later stops any clock that is behind it."""
    return world.send([Message(request_id.replace("/", "-"), b"pay 100")], request_id, create_queues=1).status


def consume(world: World, request_id: str) -> str:
    return world.consume(group(request_id), request_id).status


def reset(world: World, request_id: str) -> str:
    asked: dict[str, Any] = {"value": 2, "request_id": request_id, "group": request_id}
    return world.reset_to(ResetTo.OFFSET, **asked).status


ASKS = {Action.SEND: send, Action.CONSUME: consume, Action.RESET: reset}
asking = pytest.mark.parametrize("action", ASKS, ids=str)


def committed(world: World, action: Action, request_id: str) -> int:
    return [(ctl.action, ctl.request_id) for ctl in world.ctls()].count((action, request_id))


# --- what was done twice ---------------------------------------------------------------------------------------------


@story
@asking
def test_a_request_that_is_dated_tomorrow_is_done_once(world: World, action: Action) -> None:
    """As somebody east of Greenwich writes it in the morning."""
    world.fill(orders(0), several(3))
    statuses = [ASKS[action](world, f"{TOMORROW}-pay-1") for _ in range(3)]
    assert statuses == ["committed", "already_committed", "already_committed"]
    assert committed(world, action, f"{TOMORROW}-pay-1") == 1


@story
@asking
@pytest.mark.parametrize("seconds", [(10, -20, 10), (-20, -10, 10), (-20, 10, -20)], ids=str)
def test_a_clock_that_steps_back_over_midnight_does_nothing_twice(
    world: World, action: Action, seconds: tuple[int, ...]
) -> None:
    """Each attempt so many seconds from midnight. The id was made after it, and the clock may step back before the first
    attempt commits or after it has."""
    world.fill(orders(0), several(3))
    statuses = []
    for second in seconds:
        world.clock.now_ms = MIDNIGHT + 1000 * second
        statuses.append(ASKS[action](world, f"{TOMORROW}-pay-1"))
    assert statuses == ["committed", "already_committed", "already_committed"]


# --- any clocks ------------------------------------------------------------------------------------------------------

CLOCKS = [-30 * A_DAY, -2 * A_DAY - HOUR, -2 * A_DAY + HOUR, -HOUR, HOUR, 3 * A_DAY]
"""From the midnight with which the day of the request begins."""
FOUND_AGAIN = -2 * A_DAY


def orders_of_clocks(several: int) -> Iterator[tuple[int, ...]]:
    yield from Random(SEED).sample(list(permutations(CLOCKS, 3)), several)


@story
@asking
def test_under_any_clocks_a_request_is_committed_once_or_refused_in_words(world: World, action: Action) -> None:
    world.fill(orders(0), several(3))
    for number, clocks in enumerate(orders_of_clocks(12)):
        request_id = f"{TOMORROW}-{number}"
        for clock in clocks:
            world.clock.now_ms = MIDNIGHT + clock
            done_before = committed(world, action, request_id)
            if clock < FOUND_AGAIN and not done_before:
                with pytest.raises(ClockSkew, match=f"{request_id}.*more than 2 days.*Nothing was written"):
                    ASKS[action](world, request_id)
            else:
                assert ASKS[action](world, request_id) == ("already_committed" if done_before else "committed")
        within = any(clock >= FOUND_AGAIN for clock in clocks)
        assert committed(world, action, request_id) == within, (SEED, clocks)


@story
def test_a_window_of_a_request_that_would_not_be_found_again_asks_no_listener(world: World) -> None:
    world.fill(orders(0), several(3))
    world.clock.advance(-3 * A_DAY)
    asked: list[object] = []
    with pytest.raises(ClockSkew, match="Set the clock, or give the request an id"):
        world.consume(BILLING, f"{DAY}-late", lambda msgs, context: asked.append(msgs))
    assert not asked
    assert world.offset(orders(0)) is None


@story
@pytest.mark.parametrize("request_id", ["pay-1", "9999-pay", "0001-01-01", "zzz"])
def test_an_id_without_a_date_is_found_as_well(world: World, request_id: str) -> None:
    """The command line refuses it; a call in Python does not."""
    assert [send(world, request_id) for _ in range(2)] == ["committed", "already_committed"]
