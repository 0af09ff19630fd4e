"""A move whose request was committed before, in some shards or in all."""

from __future__ import annotations

import pytest

from rmq_store.admin.repeated_moves import Made, came_after, refuse_rest
from rmq_store.commit.ctl import Action, Actor, Ctl
from rmq_store.errors import WrongUse


def move(epoch: int, action: Action = Action.RESET) -> Ctl:
    actor = Actor("ana", "test")
    return Ctl("a" * 32, action, actor, reason="x", request_id=f"2026-01-01-{epoch}", group="orders", epoch=epoch)


DONE, FOLLOWED = Made(move(1)), Made(move(1), "undo 2026-01-01-2 of ana")


@pytest.mark.parametrize(
    ("made", "is_refused"),
    [
        ({"a": None, "b": None}, False),
        ({"a": DONE, "b": None}, False),
        ({"a": DONE, "b": DONE}, False),
        ({"a": FOLLOWED, "b": FOLLOWED}, False),
        ({"a": FOLLOWED, "b": DONE}, False),
        ({"a": FOLLOWED}, False),
        ({"a": FOLLOWED, "b": None}, True),
        ({"a": None, "b": FOLLOWED}, True),
        ({"a": DONE, "b": FOLLOWED, "c": None}, True),
    ],
)
def test_the_rest_of_a_request_is_refused_where_another_move_came_after_it(
    made: dict[str, Made | None], is_refused: bool
) -> None:
    if not is_refused:
        refuse_rest("2026-01-01-1", made)
        return
    with pytest.raises(WrongUse, match=r"request 2026-01-01-1 was committed .*in shard . undo 2026-01-01-2 of ana\."):
        refuse_rest("2026-01-01-1", made)


def test_what_came_after_is_the_last_move_of_an_operator_else_one_of_a_broker() -> None:
    assert came_after(move(1), move(3, Action.UNDO)).startswith("undo 2026-01-01-3 of ana at ")
    for last in (None, move(1)):
        assert came_after(move(1), last) == "a cut-over, a hand-back or an import under another name"


def test_the_answer_of_a_request_that_was_followed_has_a_note() -> None:
    assert DONE.notes == ()
    assert FOLLOWED.notes == ("these are the moves of that time: undo 2026-01-01-2 of ana came after them",)
