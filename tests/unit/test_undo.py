"""Undo of an operator's action, as a table: which actions, and what became of their queues since."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from rmq_store.admin.undo import (
    ActionName,
    UndoRequest,
    chosen_actions,
    last_action,
    refuse_other_undo,
    undone_sentence,
)
from rmq_store.commit.ctl import Action, Actor, Ctl, Moved
from rmq_store.commit.positions import ABSENT, Positions, grp_id, max_id, min_id, off_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.window.shard_view import ShardView

ANA = Actor("ana", "test")
Q0, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)


class Shard:
    """``window``: the epoch of the group's first window; None: it had none."""

    name = "broker-a"

    def __init__(self, window: int | None = None) -> None:
        self._window = window

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        assert (group, epoch) == ("orders", 0)
        window = Ctl("f" * 32, Action.CONSUME, ANA, group="orders", epoch=self._window)
        return None if self._window is None else window


def action(
    *moves: tuple[MessageQueue, int | None, int],
    kind: Action = Action.RESET,
    epoch: int = 3,
    id_: str = "a",
    at: int = 0,
) -> Ctl:
    moved = tuple(Moved("orders", queue, before, after, epoch) for queue, before, after in moves)
    return Ctl(
        id_ * 32,
        kind,
        ANA,
        request_id=f"2026-01-01-{id_}",
        group="orders",
        epoch=epoch,
        moved=moved,
        store_timestamp=at,
    )


def undone(
    ctl: Ctl,
    offsets: dict[MessageQueue, int],
    *,
    epoch: int = 3,
    force: bool = False,
    first: int = 0,
    window: int | None = None,
) -> dict[MessageQueue, tuple[int | None, int]]:
    positions = Positions(
        9,
        {off_id("orders", queue): offset for queue, offset in offsets.items()}
        | {grp_id("orders"): epoch, max_id(Q0): 100, max_id(Q1): 100, min_id(Q0): first},
    )
    request = UndoRequest(group="orders", undone=ctl, request_id="2026-01-01-u", actor=ANA, reason="x", force=force)
    shard: ShardView = Shard(window)  # type: ignore[assignment]
    moves = request.moves(shard, positions)
    proposal = request.proposal("b" * 32, positions, moves)
    assert {move.pass_ for move in moves} == {epoch + 1}
    assert proposal.ctl.epoch == epoch + 1
    assert proposal.ctl.parameter("undoes") == ctl.request_id
    assert proposal.ctl.parameter("undoes_commit") == ctl.commit_id
    assert proposal.ctl.parameter("undoes_action") == ctl.action
    moved = {grp_id("orders"): epoch} | {off_id("orders", m.queue): m.from_offset for m in moves}
    takes_away = any(move.to_offset == ABSENT for move in moves)
    others = {off_id("orders", queue): offset for queue, offset in offsets.items()} if takes_away else {}
    assert proposal.expect == moved | others
    assert proposal.closed == (("off/orders/", "blk/orders/") if takes_away else ())
    return {move.queue: (move.from_offset, move.to_offset) for move in moves}


@pytest.mark.parametrize(
    ("moves", "now", "expected"),
    [
        ([(Q0, 50, 20)], {Q0: 20}, {Q0: (20, 50)}),
        ([(Q0, 50, 20), (Q1, 10, 90)], {Q0: 20, Q1: 90}, {Q0: (20, 50), Q1: (90, 10)}),
        ([(Q0, 50, 50)], {Q0: 50}, {Q0: (50, 50)}),
        ([(Q0, None, 20)], {Q0: 20}, {Q0: (20, ABSENT)}),
        ([(Q0, None, 20)], {Q0: 20, Q1: 70}, {Q0: (20, ABSENT)}),
        ([(Q0, 20, ABSENT)], {}, {Q0: (None, 20)}),  # an undo of an undo
        ([(Q0, 50, 20)], {Q0: 20, Q1: 70}, {Q0: (20, 50)}),  # other queues stay where they are
    ],
)
def test_an_undo_goes_back_to_where_the_group_was(
    moves: list[tuple[MessageQueue, int | None, int]],
    now: dict[MessageQueue, int],
    expected: dict[MessageQueue, tuple[int | None, int]],
) -> None:
    assert undone(action(*moves), now) == expected
    assert undone(action(*moves, kind=Action.CLONE), now) == expected
    assert undone(action(*moves, kind=Action.UNDO), now) == expected


@pytest.mark.parametrize(
    ("before", "after", "now", "again", "skipped"),
    [
        (50, 20, 30, 0, 20),  # a reset back; the windows have read 10 of the 30
        (50, 20, 60, 10, 0),  # they have read all of it, and 10 more
        (20, 50, 60, 10, 0),  # a skip; they have read what came after it
        (20, 50, 50, None, None),
    ],
)
def test_after_windows_an_undo_is_refused_with_what_it_would_do(
    before: int, after: int, now: int, again: int | None, skipped: int | None
) -> None:
    reset = action((Q0, before, after), (Q1, 5, 5))
    if again is None:
        assert undone(reset, {Q0: now, Q1: 5}) == {Q0: (now, before), Q1: (5, 5)}
        return
    with pytest.raises(WrongUse, match="in 1 of its 2 queues") as refusal:
        undone(reset, {Q0: now, Q1: 5})
    assert f"{again} of their messages consumed again, and skip {skipped}." in str(refusal.value)
    assert undone(reset, {Q0: now, Q1: 5}, force=True) == {Q0: (now, before), Q1: (5, 5)}


@pytest.mark.parametrize(
    ("ctl", "now", "first", "message"),
    [
        (action((Q0, None, 1)), {Q0: 4}, 0, "Reset it there instead: 'rmq reset --shard broker-a"),
        (action((Q0, 5, 20)), {Q0: 30}, 8, "'rmq reset --shard broker-a --to-min'"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_no_force_undoes_is_not_refused_with_an_advice_to_force(
    ctl: Ctl, now: dict[MessageQueue, int], first: int, message: str, force: bool
) -> None:
    with pytest.raises(WrongUse) as refusal:
        undone(ctl, now, first=first, force=force)
    assert message in str(refusal.value)
    assert "--force" not in str(refusal.value)


@pytest.mark.parametrize(
    ("ctl", "now", "epoch", "message"),
    [
        (action((Q0, 5, ABSENT), kind=Action.DELETE), {}, 3, "a delete cannot be undone"),
        (action(kind=Action.REDRIVE), {}, 3, "a redrive cannot be undone"),
        (action((Q0, 5, 0), kind=Action.REPLAY), {Q0: 0}, 3, "another attempt of a replay cannot be undone"),
        (action((Q0, 5, 0)), {Q0: 0}, 4, "a cut-over, a hand-back or an import under another name came after it"),
        (action((Q0, None, 0)), {Q0: 7}, 3, "had no offset in MessageQueue"),
    ],
)
def test_what_cannot_be_undone_is_said(ctl: Ctl, now: dict[MessageQueue, int], epoch: int, message: str) -> None:
    with pytest.raises(WrongUse, match=message):
        undone(ctl, now, epoch=epoch, force=True)


@pytest.mark.parametrize("kind", [Action.RESET, Action.CLONE, Action.UNDO])
@pytest.mark.parametrize("force", [False, True])
def test_no_start_is_taken_away_after_the_groups_first_window(kind: Action, force: bool) -> None:
    """A first window of the epoch of the action, or of a later one, came after it."""
    ctl = action((Q0, None, 20), (Q1, 5, 7), kind=kind)
    now = {Q0: 20, Q1: 7}
    for window in (None, 0, 2):
        assert undone(ctl, now, window=window, force=force) == {Q0: (20, ABSENT), Q1: (7, 5)}
    with pytest.raises(
        WrongUse, match=r"had no offset in MessageQueue \[.*queueId=0\] before .*Reset it there instead"
    ):
        undone(ctl, now, window=3, force=force)
    with pytest.raises(WrongUse, match="had no offset in MessageQueue"):  # a later queue that was read
        undone(ctl, {Q0: 21, Q1: 7}, window=2, force=force)
    assert undone(action((Q1, 5, 7), kind=kind), now, window=3, force=force) == {Q1: (7, 5)}


def test_of_a_redrive_no_advice_moves_other_messages() -> None:
    """Its copies are in a topic among others: to skip them would skip all that wait there."""
    with pytest.raises(
        WrongUse, match=r"among other messages, and nothing takes back only them.*FROM redrives"
    ) as refusal:
        undone(action(kind=Action.REDRIVE), {})
    assert "rmq skip" not in str(refusal.value)


@pytest.mark.parametrize("force", [False, True])
def test_an_undo_does_not_go_back_to_messages_that_are_not_kept(force: bool) -> None:
    skip = action((Q0, 20, 50), (Q1, 5, 5))
    with pytest.raises(WrongUse, match=r"to 20, its first message is 21\).*--to-min"):
        undone(skip, {Q0: 50, Q1: 5}, force=force, first=21)
    assert undone(skip, {Q0: 50, Q1: 5}, force=force, first=20) == {Q0: (50, 20), Q1: (5, 5)}
    stays = action((Q0, 20, 20))
    assert undone(stays, {Q0: 20}, force=force, first=21) == {Q0: (20, 20)}


def test_an_undo_needs_a_reason() -> None:
    with pytest.raises(WrongUse, match="an undo needs a reason"):
        UndoRequest(group="orders", undone=action(), request_id="r", actor=ANA, reason=" ")


def acted(made: dict[str, Ctl], shard: str, ctl: Ctl) -> bool:
    return made.get(shard) == ctl


def test_an_action_in_words_is_one_short_line_whatever_a_user_wrote() -> None:
    long = replace(
        action(), request_id="2026-01-01-" + "r" * 300, actor=Actor("a\n\nb" * 90, "test"), reason="w\n\nv " * 20_000
    )
    sentence = undone_sentence(long)
    assert (len(sentence) < 450, sentence.isprintable()) == (True, True)
    assert sentence.startswith("reset 2026-01-01-rrr")
    assert sentence.endswith(r" w\n\nv…)")


def test_the_last_action_of_all_shards_is_undone_where_it_was_made() -> None:
    first, second = action(id_="a", at=1), action(id_="b", at=2)
    assert last_action([]) is None
    assert last_action([second, first]) is second
    for last, made, chosen in (
        ({"s": second, "t": second}, {}, {"s": second, "t": second}),
        ({"s": second, "t": first}, {}, {"s": second}),  # by the clocks
        ({"s": second, "t": first}, {"s": first}, {"s": second}),
        ({"s": second, "t": first}, {"t": second}, {"t": first}),  # by the order of the commits of t
        ({"s": second, "t": first}, {"s": first, "t": second}, {"s": second}),
    ):
        assert chosen_actions(last, "orders", partial(acted, made)) == chosen
    assert chosen_actions({}, "orders", partial(acted, {})) == {}


def test_the_action_that_was_shown_is_undone_or_none() -> None:
    last = action(id_="b", at=2)
    shown = ActionName.of(last)
    assert chosen_actions({"s": last}, "orders", partial(acted, {}), shown) == {"s": last}
    for other in (ActionName(Action.RESET, "a"), ActionName(Action.UNDO, shown.request_id)):
        refusal = rf"{other} is not the last action of an operator on group orders: {shown} .* came after it"
        with pytest.raises(WrongUse, match=refusal):
            chosen_actions({"s": last}, "orders", partial(acted, {}), other)
    with pytest.raises(WrongUse, match="it has none"):
        chosen_actions({}, "orders", partial(acted, {}), shown)


def test_the_rest_of_an_undo_undoes_the_same_action_or_nothing() -> None:
    in_a, in_b, other = action(id_="a", at=1), action(id_="a", at=2), action(id_="b", kind=Action.DELETE, at=3)
    refuse_other_undo("r", {"a": in_a}, {"b": in_b}, {"b": in_b})
    refuse_other_undo("r", {"a": in_a}, {"b": in_b, "c": None}, {"b": in_b, "c": other})
    refuse_other_undo("r", {"a": in_a}, {"b": in_b, "c": None}, {"b": in_b})
    with pytest.raises(
        WrongUse, match=r"r undid reset 2026-01-01-a in shard a, and shard b, c does not have that action"
    ):
        refuse_other_undo("r", {"a": in_a}, {"b": None, "c": None}, {"c": other})
    with pytest.raises(
        WrongUse,
        match=r"r undid reset 2026-01-01-a in shard a and not in c, .*: in shard c delete 2026-01-01-b of ana at .* new id",
    ):
        refuse_other_undo("r", {"a": in_a}, {"b": in_b, "c": in_b}, {"b": in_b, "c": other})
