"""What lies between two offsets of a move, and what is unusual about one, as tables."""

from __future__ import annotations

import pytest

from rmq_store.admin.move_sizes import StateBefore, move_notes
from rmq_store.commit.ctl import Moved
from rmq_store.commit.positions import ABSENT, Positions, max_id, min_id
from rmq_store.message.message import MessageQueue

BROKERS, LAKE = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "lake-broker-a", 0)
RETRIES = MessageQueue("%RETRY%orders", "broker-a", 0)
SEEN = MessageQueue("Orders", "broker-a", 1)
QUEUES = (BROKERS, LAKE, RETRIES, SEEN)
POSITIONS = Positions(1, {min_id(queue): 10 for queue in QUEUES} | {max_id(queue): 100 for queue in QUEUES})


@pytest.mark.parametrize(
    ("queue", "at", "to", "later_at_min", "between"),
    [
        (BROKERS, 50, 20, True, ("again", 20, 50)),
        (BROKERS, 20, 50, True, ("skipped", 20, 50)),
        (BROKERS, 50, 50, True, ("none", 50, 50)),
        (BROKERS, 50, 0, True, ("again", 10, 50)),  # what is not kept is not read
        (BROKERS, 0, 5, True, ("none", 10, 10)),
        (BROKERS, 5, 100, True, ("skipped", 10, 100)),
        (BROKERS, None, 50, True, None),  # consume_from_where decides
        (SEEN, None, 50, True, ("again", 50, 70)),  # where its broker was seen
        (LAKE, None, 50, True, ("skipped", 10, 50)),
        (LAKE, None, 50, False, None),
        (RETRIES, None, 50, False, ("skipped", 10, 50)),
        (BROKERS, 50, ABSENT, True, None),
    ],
)
def test_what_lies_between(
    queue: MessageQueue, at: int | None, to: int, later_at_min: bool, between: tuple[str, int, int] | None
) -> None:
    state = StateBefore(POSITIONS, {SEEN: 70}, later_at_min)
    actual = state.between(Moved("orders", queue, at, to, 1))
    assert (actual and (actual[0], actual[1].begin, actual[1].end)) == between


ALREADY = "the group is already there: no offset changes"


@pytest.mark.parametrize(
    ("moves", "notes"),
    [
        ([], []),
        ([(50, 20)], []),
        ([(50, 50)], [ALREADY]),
        ([(50, 50), (50, 20)], []),
        ([(None, 20)], []),
        ([(50, 9)], ["older messages are not kept in MessageQueue"]),
        ([(9, 9)], [ALREADY, "older messages are not kept"]),
        ([(50, ABSENT)], []),
        ([(50, 10)], []),
    ],
)
def test_what_is_unusual_about_moves_is_said(moves: list[tuple[int | None, int]], notes: list[str]) -> None:
    actual = move_notes(POSITIONS, [Moved("orders", BROKERS, at, to, 1) for at, to in moves])
    assert [text[: len(note)] for text, note in zip(actual, notes, strict=True)] == notes
