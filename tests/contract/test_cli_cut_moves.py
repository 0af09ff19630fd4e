"""Moves of offsets that were cut between two shards, or overtaken there, and what their repetition still does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import pytest

import rmq_store
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.broker_files.local_offsets import local_offsets_text
from rmq_store.commit.ctl import Actor
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.lake.admin import offset_moves
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.admin.undo import actions_to_undo, undo
from rmq_store.lake.commit import commit as protocol
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host, day_of
from tests.contract.rmq import TODAY, Answer, Rmq
from tests.contract.test_cli_admin import TWO_SHARDS, in_two_shards, offsets_of_two
from tests.contract.test_cli_undo import refused_rest

__all__ = ["in_two_shards"]

DAY_MS = 86_400_000
IN_A, IN_B = ("--shard", "a"), ("--shard", "b")
RESET = ("reset", "-g", "two", "-t", "Orders", "--reason", "x", "--actor", "ana")
SKIP = ("skip", "-g", "two", "-t", "Orders", "--reason", "x", "--actor", "ana")
CLONE = ("clone", "--from", "other", "--to", "two", "--reason", "x", "--actor", "ana")
UNDO = ("undo", "-g", "two", "--reason", "x", "--actor", "ana")
DELETE = ("delete-group", "-g", "two", "--reason", "x", "--actor", "ana")
REDRIVE = ("redrive", "-g", "two", "--all", "--reason", "x", "--actor", "ana")
WINDOW = ("consume", "-g", "two")


def id_(name: str) -> tuple[str, str]:
    return "--request", f"{TODAY}-{name}"


@pytest.fixture
def two(in_two_shards: Rmq) -> Rmq:
    """Groups two and other, each at the end of Orders: 3 in shard a, 1 in shard b."""

    def make() -> None:
        settings = in_two_shards.folder / "consumers.toml"
        settings.write_text(TWO_SHARDS + TWO_SHARDS.replace('"two"', '"other"'))
        in_two_shards("consume", "-g", "other")

    in_two_shards.once("two groups in two shards", make)
    return in_two_shards


@pytest.fixture
def three(two: Rmq) -> Rmq:
    """The same, and 1 message in a shard c, which both groups have read."""

    def make() -> None:
        two("send", "-t", "Orders", "--create", "--queues", "1", "--shard", "c", "c0")
        for group in ("two", "other"):
            assert two.json("consume", "-g", group)["messages"] == 1

    two.once("two groups in three shards", make)
    return two


@pytest.fixture
def cut_undo(two: Rmq) -> Rmq:
    """A reset of both shards, and its undo in a alone."""

    def make() -> None:
        two.json(*RESET, "--to-min", *id_("R0"))
        assert two.json(*UNDO, *id_("U1"), *IN_A)["undoes"] == f"{TODAY}-R0"

    two.once("a cut undo", make)
    return two


BETWEEN = {
    "reset": (*RESET, "--to-max"),
    "skip": SKIP,
    "clone": CLONE,
    "undo": UNDO,
    "delete": DELETE,
}


# --- undo ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", [*BETWEEN, "redrive"])
def test_the_rest_of_an_undo_is_not_done_where_another_action_came_after_the_undone_one(
    cut_undo: Rmq, between: str
) -> None:
    command = (BETWEEN | {"redrive": REDRIVE})[between]
    assert cut_undo(*command, *id_("R2"), *IN_B).exit_code == 0
    for shard in ((), IN_B):
        error = refused_rest(cut_undo, *UNDO, *id_("U1"), *shard)
        assert f"request {TODAY}-U1 undid reset {TODAY}-R0 in shard a and not in b" in error
        assert re.search(rf"in shard b \w+ {TODAY}-R2 of ana at {TODAY}T[\d:.]+Z \(x\)", error)
        assert "make another undo, with a new id" in error
    done = cut_undo.json(*UNDO, *id_("U1"), *IN_A)
    assert (done["status"], {move["shard"] for move in done["moves"]}) == ("already_committed", {"a"})
    assert cut_undo.json("audit")["audit"] == []


@pytest.mark.parametrize("shard", [(), IN_B])
def test_the_rest_of_an_undo_undoes_the_same_action(cut_undo: Rmq, shard: tuple[str, ...]) -> None:
    dry = cut_undo.json(*UNDO, *id_("U1"), *shard, "--dry-run")
    assert (dry["status"], dry["undoes"]) == ("dry_run", f"{TODAY}-R0")
    done = cut_undo.json(*UNDO, *id_("U1"), *shard)
    assert (done["status"], done["undoes"]) == ("committed", f"{TODAY}-R0")
    assert offsets_of_two(cut_undo) == [["a", 3], ["b", 1]]
    again = cut_undo.json(*UNDO, *id_("U1"))
    assert (again["status"], again["notes"], len(again["moves"])) == ("already_committed", [], 2)


def test_the_rest_of_an_undo_that_is_refused_each_time_is_not_said_to_be_done_later(two: Rmq) -> None:
    two("send", "-t", "Late", "--create", "--queues", "1", "--shard", "a", "a0")
    two("send", "-t", "Late", "--create", "--queues", "1", "--shard", "b", "b0")
    settings = two.folder / "consumers.toml"
    settings.write_text(TWO_SHARDS.replace('"two"', '"new"').replace("Orders", "Late"))
    two.json("reset", "-g", "new", "-t", "Late", "--to-min", "--reason", "x", "--actor", "ana", *id_("R0"))
    undo = ("undo", "-g", "new", "--reason", "x", "--actor", "ana", *id_("U1"))
    two.json(*undo, *IN_A)
    two.json("consume", "-g", "new", *IN_B)
    for force in ((), ("--force",)):
        error = refused_rest(two, *undo, *force)
        assert "group new had no offset in " in error
        assert "Reset it there instead: 'rmq reset --shard b" in error
        assert "Before that the undo was done in shard a, and stays" in error
        assert "does the rest" not in error
        assert bool(force) or "--force" not in error


def test_the_rest_of_an_undo_after_a_window_needs_force(cut_undo: Rmq) -> None:
    cut_undo(*WINDOW, *IN_B)
    assert "windows were committed after reset" in refused_rest(cut_undo, *UNDO, *id_("U1"))
    done = cut_undo.json(*UNDO, *id_("U1"), "--force")
    assert (done["status"], done["undoes"]) == ("committed", f"{TODAY}-R0")


def test_the_refusal_of_the_rest_of_an_undo_says_which_shards_are_undone(cut_undo: Rmq) -> None:
    cut_undo(*WINDOW, *IN_B)
    for option in ((), ("--dry-run",)):
        answer = cut_undo(*UNDO, *id_("U1"), *option, "--json")
        document = answer.json()
        assert (answer.exit_code, [(move["shard"], move["to_offset"]) for move in document["moves"]]) == (2, [("a", 3)])
        assert f"windows were committed after reset {TODAY}-R0 in shard b, in 1 of its 1 queues" in document["message"]
        assert "Before that the undo was done in shard a" in document["message"]
    assert re.search(r"\n *a +Orders +lake-a +0 +0 +3 ", cut_undo(*UNDO, *id_("U1")).out)
    with pytest.raises(WrongUse, match=r"Before that the undo was done in shard a") as refused:
        rmq_store.open_store(cut_undo.root).undo("two", reason="x", request_id=f"{TODAY}-U1")
    assert [(report.shard, report.status) for report in refused.value.reports] == [("a", "already_committed")]


def test_an_error_reports_the_shards_that_were_done_in_an_earlier_run_too(three: Rmq) -> None:
    """Also those that come after the one that fails."""
    three(*RESET, "--to-min", *id_("R1"), "--shard", "c")
    command = (*RESET, "--to-min", *id_("R1"), "--json")
    answer, _ = with_between(three, AFTER_A, command, (*RESET, "--to-max", *IN_B))
    assert (answer.exit_code, {move["shard"] for move in answer.json()["moves"]}) == (3, {"a", "c"})
    assert "Before that the reset was done in shard c, a" in answer.json()["message"]


@pytest.mark.parametrize("shard", [(), IN_B])
def test_the_rest_of_an_undo_is_not_done_where_its_half_was_followed(cut_undo: Rmq, shard: tuple[str, ...]) -> None:
    cut_undo(*RESET, "--to-min", *id_("R2"), *IN_A)
    assert f"in shard a reset {TODAY}-R2 of ana" in refused_rest(cut_undo, *UNDO, *id_("U1"), *shard)


def test_a_shard_in_which_the_undone_action_never_happened_is_no_rest(two: Rmq) -> None:
    two(*RESET, "--to-min", *id_("Rb"), *IN_B)
    two(*RESET, "--to-min", *id_("R0"), *IN_A)
    assert two.json(*UNDO, *id_("U1"))["undoes"] == f"{TODAY}-R0"
    again = two.json(*UNDO, *id_("U1"))
    assert (again["status"], {move["shard"] for move in again["moves"]}) == ("already_committed", {"a"})
    error = refused_rest(two, *UNDO, *id_("U1"), *IN_B)
    assert f"request {TODAY}-U1 undid reset {TODAY}-R0 in shard a, and shard b does not have that action" in error


def test_the_rest_of_an_undo_of_an_undo_undoes_the_same_undo(two: Rmq) -> None:
    two(*RESET, "--to-min", *id_("R0"))
    two(*UNDO, *id_("U1"))
    two(*UNDO, *id_("U2"), *IN_A)
    assert two.json(*UNDO, *id_("U2"), *IN_B)["undoes"] == f"{TODAY}-U1"
    assert offsets_of_two(two) == [["a", 0], ["b", 0]]
    two(*UNDO, *id_("U3"), *IN_A)
    two(*RESET, "--to-max", *id_("R2"), *IN_B)
    assert f"undid undo {TODAY}-U2 in shard a and not in b" in refused_rest(two, *UNDO, *id_("U3"))


def test_the_rest_of_an_undo_is_done_where_the_undone_action_came_late(two: Rmq) -> None:
    """The reset was still running: its commit in b is later than the undo in a, and is what the undo takes back."""
    cut_before_b(two, *RESET, "--to-min", *id_("R0"))
    two(*UNDO, *id_("U1"))
    store = rmq_store.open_store(two.root)
    request = ResetRequest(
        "two", "Orders", ResetTo.MIN, request_id=f"{TODAY}-R0", actor=Actor("ana", "test"), reason="x"
    )
    move_in_all([(store.lake.shards("b")[0], request)], Host())
    assert two.json(*UNDO, *id_("U1"))["status"] == "committed"
    assert offsets_of_two(two) == [["a", 3], ["b", 1]]


# --- reset, skip, clone, import of offsets ---------------------------------------------------------------------------

MOVES = {
    "reset": (*RESET, "--to-min"),
    "skip": SKIP,
    "clone": CLONE,
}


@pytest.mark.parametrize(("move", "between"), [(move, "reset") for move in MOVES] + [("reset", one) for one in BETWEEN])
def test_the_rest_of_a_move_is_not_done_over_a_later_one(two: Rmq, move: str, between: str) -> None:
    two(*RESET, "--to-min", *id_("R0"), *IN_B)
    first = two.json(*MOVES[move], *id_("R1"), *IN_A)
    assert first["status"] == "committed"
    assert two(*BETWEEN[between], *id_("R2"), *IN_B).exit_code == 0
    for shard in ((), IN_B):
        error = refused_rest(two, *MOVES[move], *id_("R1"), *shard)
        assert f"request {TODAY}-R1 was committed in shard a and not in b" in error
        assert re.search(rf"in shard b \w+ {TODAY}-R2 of ana at {TODAY}T[\d:.]+Z \(x\)", error)
        assert "make a new request, with a new id" in error
    assert two.json(*MOVES[move], *id_("R1"), *IN_A)["status"] == "already_committed"


@pytest.mark.parametrize("between", [WINDOW, REDRIVE, (*RESET, "-g", "other", "--to-min"), ()])
@pytest.mark.parametrize("shard", [(), IN_B])
def test_the_rest_of_a_move_is_done_where_no_other_move_came(
    two: Rmq, between: tuple[str, ...], shard: tuple[str, ...]
) -> None:
    two(*RESET, "--to-max", *id_("R0"))
    two(*RESET, "--to-min", *id_("R1"), *IN_A)
    assert not between or two(*between, *IN_B).exit_code == 0
    assert two.json(*RESET, "--to-min", *id_("R1"), "--dry-run")["status"] == "dry_run"
    done = two.json(*RESET, "--to-min", *id_("R1"), *shard)
    assert (done["status"], done["notes"], offsets_of_two(two)) == ("committed", [], [["a", 0], ["b", 0]])


def test_the_rest_of_an_import_of_offsets_is_not_done_over_a_later_move(two: Rmq) -> None:
    settings = two.folder / "consumers.toml"
    settings.write_text(TWO_SHARDS.replace('engine = "local"', 'engine = "local"\nmessage_model = "BROADCASTING"'))
    queues = {MessageQueue("Orders", f"lake-{shard}", 0): 0 for shard in "ab"}
    (two.folder / "offsets.json").write_text(local_offsets_text(queues))
    moving = ("offsets", "import", "offsets.json", "-g", "two@h1", "--reason", "x", *id_("R1"))
    cut_before_b(two, *moving)
    assert offsets_of_two(two, "two@h1") == [["a", 0]]
    two(*RESET, "-g", "two@h1", "--to-max", *id_("R2"), *IN_B)
    answer = two(*moving)
    assert (answer.exit_code, f"in shard b reset {TODAY}-R2 of ana" in answer.err) == (2, True), answer
    assert offsets_of_two(two, "two@h1") == [["a", 0], ["b", 1]]


def test_a_move_that_was_cut_is_not_finished_over_a_cut_over(imported: Rmq) -> None:
    (imported.folder / "orders.jsonl").write_text('{"body": "x"}\n')
    imported("send", "-t", "OrderEvents", "--create", "--queues", "1", "--shard", "x", "--file", "orders.jsonl")
    reset = ("reset", "-g", "gm_idle", "-t", "OrderEvents", "--to-min", "--reason", "x", *id_("R1"))
    assert imported.json(*reset, "--shard", "x")["status"] == "committed"
    imported("cutover", "--broker", "broker-a", "--reason", "gone", *id_("C"))
    answer = imported(*reset)
    assert (answer.exit_code, f"in shard broker-a cutover {TODAY}-C of " in answer.err) == (2, True), answer


def test_which_move_came_later_the_times_of_the_store_say(two: Rmq) -> None:
    """The logs of two shards have no common order. Where a clock was behind, an earlier move that it dated right counts."""
    store = rmq_store.open_store(two.root)
    behind = replace(store, host=Host(now_ms=lambda: Host().now_ms() - 5 * DAY_MS))
    in_b, of_behind = [MessageQueue("Orders", "lake-b", 0)], f"{day_before(5)}-R2"
    two(*RESET, "--to-min", *id_("R1"), *IN_A)
    behind.reset("two", "Orders", "max", reason="behind", request_id=of_behind, queues=in_b)
    assert two.json(*RESET, "--to-min", *id_("R1"), "--dry-run")["status"] == "dry_run"
    store.reset("two", "Orders", "max", reason="on time", request_id=f"{TODAY}-R3", queues=in_b)
    behind.reset("two", "Orders", "max", reason="behind", request_id=f"{of_behind}b", queues=in_b)
    assert f"in shard b reset {TODAY}-R3 of" in refused_rest(two, *RESET, "--to-min", *id_("R1"))


def test_an_id_that_another_shard_has_for_another_move_is_refused(two: Rmq) -> None:
    two(*RESET, "--to-min", *id_("R1"), *IN_A)
    error = refused_rest(two, *RESET, "--to-max", *id_("R1"), *IN_B)
    assert "different parameters (to min; now to max). Nothing was changed" in error
    two(*RESET, "--queue", "lake-a:0", "--to-min", *id_("R3"))
    assert two.json(*RESET, "--queue", "lake-b:0", "--to-min", *id_("R3"))["status"] == "committed"


# --- clone, and its source ---------------------------------------------------------------------------------------------

DELETE_SOURCE = ("delete-group", "-g", "other", "--reason", "x", "--actor", "ana")


@pytest.mark.parametrize("parts", ["a", "ab", "b"])
def test_the_rest_of_a_clone_is_refused_where_its_source_was_deleted(three: Rmq, parts: str) -> None:
    for part in parts:
        three.json(*CLONE, *id_("R1"), "--shard", part)
    three.json(*DELETE_SOURCE, *id_("D1"))
    rest = [shard for shard in "abc" if shard not in parts]
    for shards, option in ((rest, ()), (["c"], ("--shard", "c"))):
        error = refused_rest(three, *CLONE, *id_("R1"), *option)
        assert f"request {TODAY}-R1 was committed in shard {', '.join(parts)} and not in {', '.join(shards)}" in error
        for shard in shards:
            assert re.search(rf"in shard {shard} delete {TODAY}-D1 of ana at \S+ \(x\), of group other", error)
    for part in parts:
        again = three.json(*CLONE, *id_("R1"), "--shard", part)
        assert (again["status"], [move["shard"] for move in again["moves"]]) == ("already_committed", [part])


def test_the_rest_of_a_clone_is_refused_where_an_undo_took_its_source(two: Rmq) -> None:
    settings = two.folder / "consumers.toml"
    settings.write_text(settings.read_text() + TWO_SHARDS.replace('"two"', '"third"'))
    two.json("clone", "--from", "other", "--to", "third", "--reason", "x", *id_("C0"))
    clone = ("clone", "--from", "third", "--to", "two", "--reason", "x", *id_("R1"))
    two.json(*clone, *IN_A)
    two.json("undo", "-g", "third", "--reason", "x", "--actor", "ana", *id_("U1"))
    assert f"in shard b undo {TODAY}-U1 of ana" in refused_rest(two, *clone)


@pytest.mark.parametrize("shard", [(), IN_B])
def test_a_finished_clone_has_the_moves_of_all_its_shards_when_its_source_is_gone(
    three: Rmq, shard: tuple[str, ...]
) -> None:
    first = three.json(*CLONE, *id_("R1"))
    three.json(*DELETE_SOURCE, *shard)
    again = three.json(*CLONE, *id_("R1"))
    assert (again["status"], again["notes"]) == ("already_committed", [])
    assert [(move["shard"], move["to_offset"]) for move in again["moves"]] == [("a", 3), ("b", 1), ("c", 1)]
    assert [move["shard"] for move in first["moves"]] == ["a", "b", "c"]


def test_a_shard_that_never_had_the_source_of_a_clone_is_no_rest(three: Rmq) -> None:
    """Nor is one that lost it before the clone, or had other topics of it."""
    three.json(*DELETE_SOURCE, *IN_B)
    three("send", "-t", "Bills", "--create", "--queues", "1", "--shard", "d", "d0")
    three.json("reset", "-g", "other", "-t", "Bills", "--to-min", "--reason", "x")
    clone = (*CLONE, "-t", "Orders", *id_("R1"))
    assert {move["shard"] for move in three.json(*clone)["moves"]} == {"a", "c"}
    three.json(*DELETE_SOURCE)
    again = three.json(*clone)
    assert (again["status"], {move["shard"] for move in again["moves"]}) == ("already_committed", {"a", "c"})
    answer = three(*clone, *IN_B)
    assert (answer.exit_code, "has no offsets of topic Orders in shard b: nothing to clone" in answer.err) == (2, True)


def test_the_rest_of_a_clone_is_refused_where_the_import_saw_its_source_before_the_delete(imported: Rmq) -> None:
    (imported.folder / "orders.jsonl").write_text('{"body": "x"}\n')
    imported("send", "-t", "OrderEvents", "--create", "--queues", "1", "--shard", "x", "--file", "orders.jsonl")
    source = ("-g", "gm_idle", "--reason", "x")
    imported.json("reset", *source, "-t", "OrderEvents", "--to-min", "--shard", "x")
    clone = ("clone", "--from", "gm_idle", "--to", "gm_online", "--reason", "x", *id_("R1"))
    imported.json(*clone, "--shard", "x")
    imported.json("delete-group", *source, *id_("D1"), "--shard", "broker-a")
    answer = imported(*clone)
    assert (answer.exit_code, f"in shard broker-a delete {TODAY}-D1 of " in answer.err) == (2, True), answer


# --- another move in between ------------------------------------------------------------------------------------------

AFTER_A, AT_B = ("6.settled", 1), ("4.decided", 2)
"""Between the commits in a and b, and in the middle of the one in b."""
DONE_IN_A = "was done in shard a: the same request, run again, does the rest unless another move"


@pytest.mark.parametrize(
    ("move", "other", "step"),
    [(move, "reset", AFTER_A) for move in (*MOVES, "undo", "delete")]
    + [("reset", other, AFTER_A) for other in ("skip", "clone", "delete")]
    + [(move, "reset", AT_B) for move in (*MOVES, "undo", "delete")],
)
def test_a_move_that_another_one_overtakes_between_two_shards_is_refused_in_the_second(
    two: Rmq, move: str, other: str, step: tuple[str, int]
) -> None:
    two(*RESET, "--to-min", *id_("R0"))
    command = (*(MOVES | {"undo": UNDO, "delete": DELETE})[move], *id_("R1"))
    answer, of_other = with_between(two, step, (*command, "--json"), (*BETWEEN[other], *id_("R2")))
    assert (of_other.exit_code, answer.exit_code) == (0, 3), (of_other, answer)
    document = answer.json()
    assert (document["status"], document["error"]) == ("error", "StaleAttempt")
    assert re.search(rf"\w+ {TODAY}-R2 of ana", document["message"])
    assert DONE_IN_A in document["message"]
    moves = document["offsets" if move == "delete" else "moves"]
    assert {one["shard"] for one in moves} == {"a"}
    if step == AFTER_A:
        running = f"undo of reset {TODAY}-R0" if move == "undo" else BETWEEN[move][0].replace("skip", "reset")
        assert f"group two was moved in shard b while this {running.removesuffix('-group')} ran" in document["message"]
    of_both = dict(offsets_of_two(two))
    assert of_both == ({} if other == "delete" else {"a": 3, "b": 1})
    assert f"{TODAY}-R2" in refused_rest(two, *command)
    assert two.json("audit")["audit"] == []


@pytest.mark.parametrize(
    ("move", "other"),
    [
        ("reset", UNDO),
        ("skip", UNDO),
        ("clone", UNDO),
        ("undo", UNDO),
        ("reset", (*RESET, "--to-max", *IN_A)),
        ("delete", (*CLONE, *IN_A)),
    ],
)
def test_a_move_whose_first_part_was_moved_again_is_not_done_in_the_second_shard(
    two: Rmq, move: str, other: tuple[str, ...]
) -> None:
    """An undo meanwhile takes back what is there, and does not know of the rest."""
    two(*RESET, "--to-min", *id_("R0"))
    before = offsets_of_two(two)
    command = (*(MOVES | {"undo": UNDO, "delete": DELETE})[move], *id_("R1"), "--json")
    answer, of_other = with_between(two, AFTER_A, command, (*other, *id_("R2")))
    assert (of_other.exit_code, answer.exit_code) == (0, 3), (of_other, answer)
    message = answer.json()["message"]
    assert re.search(rf"group two was moved in shard a while this .* ran: \w+ {TODAY}-R2 of ana", message), message
    assert DONE_IN_A in message
    assert before[1] in offsets_of_two(two), "the part in b is not done"
    if other == UNDO:
        assert offsets_of_two(two) == before
    assert two.json("audit")["audit"] == []


AT_FIRST = ("4.decided", 1)
"""In the middle of the first commit."""


def test_an_undo_of_a_move_that_goes_on_in_another_shard_is_refused(two: Rmq) -> None:
    """It has looked between the two commits of the move, and begins after the second."""
    cut_before_b(two, *RESET, "--to-min", *id_("R0"))
    shards = rmq_store.open_store(two.root).lake.shards()
    chosen = actions_to_undo(shards, "two", f"{TODAY}-U1")
    assert [shard.name for shard, _ in chosen] == ["a"]
    assert two(*RESET, "--to-min", *id_("R0")).exit_code == 0
    arguments: dict[str, Any] = {
        "request_id": f"{TODAY}-U1",
        "actor": Actor("ben", "test"),
        "reason": "x",
        "among": shards,
    }
    with pytest.raises(
        StaleAttempt, match=rf"in shard b while this undo of reset {TODAY}-R0 ran: reset {TODAY}-R0 of ana"
    ):
        undo(chosen, "two", Host(), **arguments)
    assert offsets_of_two(two) == [["a", 0], ["b", 0]]
    two.json(*UNDO, *id_("U1"))
    assert offsets_of_two(two) == [["a", 3], ["b", 1]]


def test_two_moves_at_the_same_moment_in_different_shards_say_so(two: Rmq) -> None:
    """No look before the commit can see the other one. The undo says it that commits last, and so does the reset."""
    cut_before_b(two, *RESET, "--to-min", *id_("R0"))
    undone, rest = with_between(two, AT_FIRST, (*UNDO, *id_("U1"), "--json"), (*RESET, "--to-min", *id_("R0")))
    assert (undone.exit_code, rest.exit_code) == (0, 0), (undone, rest)
    (note,) = undone.json()["notes"]
    assert f"in shard b while this undo of reset {TODAY}-R0 ran: reset {TODAY}-R0 of ana" in note
    assert "came too, and the shards may stand at moves of both" in note
    assert offsets_of_two(two) == [["a", 3], ["b", 0]]
    two.json(*UNDO, *id_("U1"))
    assert offsets_of_two(two) == [["a", 3], ["b", 1]]

    moved, undo_in_a = with_between(two, AT_B, (*RESET, "--to-min", *id_("R1"), "--json"), (*UNDO, *id_("U2")))
    assert (moved.exit_code, undo_in_a.exit_code) == (0, 0), (moved, undo_in_a)
    (note,) = moved.json()["notes"]
    assert f"in shard a while this reset ran: undo {TODAY}-U2 of ana" in note
    assert offsets_of_two(two) == [["a", 3], ["b", 0]]
    assert two.json("audit")["audit"] == []


def test_a_move_that_is_refused_in_the_second_shard_shows_what_it_moved_in_the_first(two: Rmq) -> None:
    answer, _ = with_between(two, AFTER_A, (*RESET, "--to-min", *id_("R1")), (*RESET, "--to-max", *IN_B))
    assert answer.exit_code == 3
    assert re.search(r"\n *a +Orders +lake-a +0 +3 +0 +3 more to read", answer.out)
    assert " lake-b " not in answer.out
    assert f"group two was moved in shard b while this reset ran: reset {TODAY}-" in answer.err
    assert DONE_IN_A in answer.err


def test_the_error_of_a_move_has_the_reports_of_the_shards_before(two: Rmq) -> None:
    store = rmq_store.open_store(two.root)
    with pytest.raises(StaleAttempt, match=DONE_IN_A) as refused:
        between(
            two,
            AFTER_A,
            lambda: store.reset("two", "Orders", "min", reason="x", request_id=f"{TODAY}-R1"),
            (*RESET, "--to-max", *id_("R2")),
        )
    (report,) = refused.value.reports
    assert (report.shard, report.status, [move.to_offset for move in report.moves]) == ("a", "committed", [0])
    with pytest.raises(StaleAttempt) as refused:
        between(
            two,
            ("4.decided", 1),
            lambda: store.reset("two", "Orders", "min", reason="x", request_id=f"{TODAY}-R3"),
            (*RESET, "--to-max", *id_("R4")),
        )
    assert (refused.value.reports, DONE_IN_A in str(refused.value)) == ((), False)


def test_two_runs_of_one_request_at_once_each_do_some_shards(two: Rmq) -> None:
    two(*RESET, "--to-max", *id_("R0"))
    store = rmq_store.open_store(two.root)
    command = (*RESET, "--to-min", *id_("R1"), "--json")
    reports, other = between(
        two, AFTER_A, lambda: store.reset("two", "Orders", "min", reason="x", request_id=f"{TODAY}-R1"), command
    )
    assert [(report.shard, report.status) for report in reports] == [("a", "committed"), ("b", "already_committed")]
    assert (other.json()["status"], {move["shard"] for move in other.json()["moves"]}) == ("committed", {"a", "b"})
    assert (offsets_of_two(two), two.json("audit")["audit"]) == ([["a", 0], ["b", 0]], [])


@pytest.mark.parametrize("shard", [(), IN_B])
def test_the_rest_of_a_move_is_not_done_where_another_one_overtakes_it(two: Rmq, shard: tuple[str, ...]) -> None:
    two(*RESET, "--to-min", *id_("R1"), *IN_A)
    move_offsets = offset_moves.move_offsets
    others: list[Answer] = []

    def overtaken(part: Shard, *arguments: Any) -> Any:
        if part.name == "b" and not others:
            others.append(Answer(1, "", ""))
            others[:] = [copy_context().run(two, *RESET, "--to-max", *id_("R2"), *IN_B)]
        return move_offsets(part, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_moves, "move_offsets", overtaken)
        answer = two(*RESET, "--to-min", *id_("R1"), *shard, "--json")
    assert ([one.exit_code for one in others], answer.exit_code) == ([0], 3)
    assert f"group two was moved in shard b while this reset ran: reset {TODAY}-R2 of ana" in answer.json()["message"]
    assert dict(offsets_of_two(two)) == {"a": 0, "b": 1}


def test_an_import_of_offsets_is_refused_where_a_move_overtakes_it(two: Rmq) -> None:
    settings = two.folder / "consumers.toml"
    settings.write_text(TWO_SHARDS.replace('engine = "local"', 'engine = "local"\nmessage_model = "BROADCASTING"'))
    queues = {MessageQueue("Orders", f"lake-{shard}", 0): 0 for shard in "ab"}
    (two.folder / "offsets.json").write_text(local_offsets_text(queues))
    moving = ("offsets", "import", "offsets.json", "-g", "two@h1", "--reason", "x", *id_("R1"), "--json")
    answer, _ = with_between(two, AFTER_A, moving, (*RESET, "-g", "two@h1", "--to-max", *id_("R2")))
    assert (answer.exit_code, f"reset {TODAY}-R2 of ana" in answer.json()["message"]) == (3, True)
    assert {move["shard"] for move in answer.json()["moves"]} == {"a"}
    assert offsets_of_two(two, "two@h1") == [["a", 3], ["b", 1]]


@pytest.mark.parametrize("move", ["reset", "delete"])
def test_a_window_or_a_redrive_between_two_shards_refuses_no_move(two: Rmq, move: str) -> None:
    two(*RESET, "--to-min", *id_("R0"))
    for other, number in ((WINDOW, 1), ((*REDRIVE, *IN_B), 2)):
        command = (*(DELETE if move == "delete" else MOVES[move]), *id_(f"M{number}"))
        answer, of_other = with_between(two, AFTER_A, (*command, "--json"), other)
        assert (answer.exit_code, of_other.exit_code, answer.json()["status"]) == (0, 0, "committed"), answer
        two(*WINDOW)
    assert two.json("audit")["audit"] == []


@pytest.mark.slow
def test_a_delete_that_a_clone_overtakes_leaves_all_of_the_clone(two: Rmq) -> None:
    answer, clone = with_between(two, AFTER_A, (*DELETE, *id_("D1"), "--json"), (*CLONE, *id_("C1")))
    assert (answer.exit_code, clone.exit_code) == (3, 0)
    document = answer.json()
    assert f"group two was moved in shard b while this delete ran: clone {TODAY}-C1 of ana" in document["message"]
    assert (document["shards"], {row["shard"] for row in document["offsets"]}) == (["a"], {"a"})
    assert offsets_of_two(two) == [["a", 3], ["b", 1]]
    for shard in ((), IN_B):
        assert f"clone {TODAY}-C1 of ana" in refused_rest(two, *DELETE, *id_("D1"), *shard)
    assert two.json(*DELETE, *id_("D2"))["shards"] == ["a", "b"]
    assert two.json("audit")["audit"] == []


# --- help ------------------------------------------------------------------------------------------------------------


def cut_before_b(rmq: Rmq, *command: str) -> None:
    """Run a move that is killed before its commit in shard b."""
    move_offsets = offset_moves.move_offsets

    def killed(shard: Shard, *arguments: Any) -> Any:
        if shard.name == "b":
            raise KeyboardInterrupt
        return move_offsets(shard, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_moves, "move_offsets", killed)
        assert rmq(*command).exit_code == 130


def with_between(
    rmq: Rmq, step: tuple[str, int], command: Sequence[str], other: Sequence[str]
) -> tuple[Answer, Answer]:
    """The answers of a command, and of another one that runs when the first reaches a step."""
    return between(rmq, step, lambda: rmq(*command), other)


def between(rmq: Rmq, step: tuple[str, int], call: Callable[[], Any], other: Sequence[str]) -> tuple[Any, Answer]:
    """What a call returns, and the answer of a command that runs when the call reaches a step for the n-th time."""
    steps: list[str] = []
    answers: list[Answer] = []

    def on_step(name: str) -> None:
        steps.append(name)
        if not answers and (name, steps.count(name)) == step:
            answers.append(Answer(1, "", ""))  # the command's own steps do not count
            answers[:] = [copy_context().run(rmq, *other)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "on_step", on_step)
        returned = call()
    (answer,) = answers
    return returned, answer


def day_before(days: int) -> str:
    return day_of(Host().now_ms() - days * DAY_MS)
