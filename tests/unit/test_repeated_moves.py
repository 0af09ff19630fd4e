"""A move whose request was committed before, in some shards or in all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_store.admin.repeated_moves import Made, came_after, first_time, later_move, refuse_overtaken, refuse_rest
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.admin.undo import UndoRequest
from rmq_store.commit.ctl import Action, Actor, Ctl, Moved
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.message.message import MessageQueue

Q0 = MessageQueue("Orders", "broker-a", 0)


def move(
    epoch: int, action: Action = Action.RESET, *, at: int = 0, version: int = 0, group: str | None = "orders"
) -> Ctl:
    return Ctl(
        "a" * 32,
        action,
        Actor("ana", "test"),
        reason="x",
        request_id=f"2026-01-01-{epoch}",
        group=group,
        epoch=epoch,
        store_timestamp=at,
        read_version=version,
    )


DONE, FOLLOWED = Made(move(1)), Made(move(1), "undo 2026-01-01-2 of ana")


@pytest.mark.parametrize(
    ("made", "rest", "after"),
    [
        ({}, {"a": None, "b": None}, None),
        ({"a": DONE}, {"b": None}, None),
        ({"a": DONE, "b": DONE}, {}, None),
        ({"a": FOLLOWED, "b": FOLLOWED}, {}, None),
        ({"a": FOLLOWED, "b": DONE}, {}, None),
        ({"a": FOLLOWED}, {}, None),
        ({"a": FOLLOWED}, {"b": None}, "in shard a undo 2026-01-01-2 of ana"),
        ({"b": FOLLOWED}, {"a": None}, "in shard b undo 2026-01-01-2 of ana"),
        ({"a": DONE, "b": FOLLOWED}, {"c": None}, "in shard b undo 2026-01-01-2 of ana"),
        ({"a": DONE}, {"b": move(2)}, r"in shard b reset 2026-01-01-2 of ana at 1970-01-01T00:00:00\S* \(x\)"),
        ({"a": DONE}, {"b": None, "c": move(2)}, r"in shard c reset 2026-01-01-2 of ana at \S+ \(x\)"),
        (
            {"a": DONE},
            {"b": move(2, Action.DELETE, group="source")},
            r"in shard b delete 2026-01-01-2 of ana at \S+ \(x\), of group source",
        ),
        (
            {"a": FOLLOWED},
            {"b": move(3)},
            r"in shard a undo .* of ana; in shard b reset 2026-01-01-3 of ana at \S+ \(x\)",
        ),
    ],
)
def test_the_rest_of_a_request_is_refused_where_another_move_came_after_it(
    made: dict[str, Made], rest: dict[str, Ctl | None], after: str | None
) -> None:
    if after is None:
        refuse_rest("2026-01-01-1", made, rest)
        return
    where = f"in shard {', '.join(made)} and not in {', '.join(rest)}, and another move came after it"
    with pytest.raises(WrongUse, match=rf"request 2026-01-01-1 was committed {where}: {after}\. .*with a new id"):
        refuse_rest("2026-01-01-1", made, rest)


def test_a_move_is_later_than_a_request_by_the_times_of_the_store() -> None:
    first_ms = first_time([Made(move(1, at=70)), Made(move(1, at=50))])
    assert first_ms == 50
    for commits, later in (
        ([], None),
        ([move(2, at=49)], None),
        ([move(2, at=50)], None),
        ([move(2, at=51)], 0),
        ([move(2, at=90, version=4), move(3, at=60, version=5)], 1),
        ([move(2, at=60, version=4), move(3, at=40, version=5)], 0),  # of a clock that stepped back
        ([move(2, Action.DELETE, at=60)], 0),
        ([move(2, Action.CLONE, at=60)], 0),
        ([move(2, Action.UNDO, at=60)], 0),
        ([move(2, Action.CONSUME, at=60)], None),
        ([move(2, Action.REDRIVE, at=60)], None),
        ([move(2, at=60, group="others")], None),
        ([move(2, Action.CUTOVER, at=60, group=None)], None),
        ([replace(move(2, Action.CUTOVER, at=60, group=None), moved=(Moved("others", Q0, 0, 5, 2),))], None),
        ([replace(move(2, Action.CUTOVER, at=60, group=None), moved=(Moved("orders", Q0, 0, 5, 2),))], 0),
    ):
        assert later_move(first_ms, commits, "orders") == (None if later is None else commits[later])


def test_what_came_after_is_the_last_move_of_an_operator_else_one_of_a_broker() -> None:
    assert came_after(move(1), move(3, Action.UNDO)).startswith("undo 2026-01-01-3 of ana at ")
    for last in (None, move(1)):
        assert came_after(move(1), last) == "a cut-over, a hand-back or an import under another name"


def test_the_answer_of_a_request_that_was_followed_has_a_note() -> None:
    assert DONE.notes == ()
    assert FOLLOWED.notes == ("these are the moves of that time: undo 2026-01-01-2 of ana came after them",)


BEN = Actor("ben", "test")
RESET = ResetRequest("orders", "Orders", ResetTo.MIN, request_id="2026-01-01-r", actor=BEN, reason="y")
BROKERS = "a cut-over, a hand-back or an import under another name"


@pytest.mark.parametrize(
    ("last_move", "first"),
    [(move(4), r"reset 2026-01-01-4 of ana at \S+ \(x\)"), (move(3), BROKERS), (move(2), BROKERS), (None, BROKERS)],
)
def test_a_move_is_stale_where_another_one_came_since_the_shards_were_looked_at(
    last_move: Ctl | None, first: str
) -> None:
    with pytest.raises(StaleAttempt, match=f"orders was moved in shard b while this reset ran: {first} came first"):
        refuse_overtaken(RESET, 3, last_move, "b")


def test_an_undo_is_stale_where_a_later_move_of_an_operator_came_after_the_action() -> None:
    undo = UndoRequest(group="orders", undone=move(3), request_id="2026-01-01-u", actor=BEN, reason="y")
    for last_move in (None, move(2), move(3)):
        refuse_overtaken(undo, 3, last_move, "b")
    with pytest.raises(
        StaleAttempt, match=r"this undo of reset 2026-01-01-3 ran: undo 2026-01-01-4 of ana .* came first"
    ):
        refuse_overtaken(undo, 3, move(4, Action.UNDO), "b")
