"""``rmq undo``: the last action of an operator is taken back, and that is recorded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

import rmq_store
from rmq_store.admin.undo import ActionName
from rmq_store.commit.ctl import Action
from rmq_store.commit.request import actor_of
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.lake.admin.undo import actions_to_undo, undo
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.contract.rmq import ORDERS, TODAY, Rmq
from tests.contract.test_cli_admin import in_two_shards, offsets_of_two

__all__ = ["in_two_shards"]

OFFSETS = (
    "SELECT queue_id, next_offset FROM stored_offsets WHERE group_name = 'orders' AND topic = 'OrderEvents' ORDER BY 1"
)
DAY_MS = 86_400_000
WHY = ("--reason", "another group was meant")


def offsets(rmq: Rmq) -> list[Any]:
    return [list(row.values()) for row in rmq.json("sql", OFFSETS)]


def test_a_reset_is_undone_and_done_again(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "400")
    before = offsets(imported)
    imported("reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "x", "--request", f"{TODAY}-reset")
    reset = offsets(imported)
    undo = ["undo", "-g", "orders", *WHY, "--actor", "ana", "--request", f"{TODAY}-undo"]
    dry = imported.json(*undo, "--dry-run")
    assert (dry["status"], dry["undoes"], dry["undoes_action"], dry["messages"]) == (
        "dry_run",
        f"{TODAY}-reset",
        "reset",
        -400,
    )
    assert offsets(imported) == reset
    done = imported(*undo)
    assert re.search(rf"undoes: reset {TODAY}-reset of .+ at {TODAY}T[\d:.]+Z \(x\)", done.out)
    assert "in all: 400 fewer to read" in done.out
    assert offsets(imported) == before
    assert imported.json(*undo)["status"] == "already_committed"

    redone = imported.json("undo", "-g", "orders", *WHY)
    assert (redone["undoes"], redone["undoes_action"]) == (f"{TODAY}-undo", "undo")
    assert offsets(imported) == reset
    actions = imported.json("sql", "SELECT * FROM operator_actions ORDER BY read_version")
    assert [(a["action"], a["undoes"], a["undone_by"]) for a in actions] == [
        ("reset", None, f"{TODAY}-undo"),
        ("undo", f"{TODAY}-reset", redone["request_id"]),
        ("undo", f"{TODAY}-undo", None),
    ]
    assert (actions[1]["actor"], actions[1]["reason"]) == ("ana", "another group was meant")
    assert imported.json("audit")["audit"] == []
    assert imported.json("consume", "-g", "orders")["messages"] == ORDERS


def test_an_undo_of_a_named_action_is_refused_when_it_is_not_the_last(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    shards = rmq_store.open_store(rmq.root).lake.shards()
    name = ActionName(Action.RESET, f"{TODAY}-first")
    with pytest.raises(WrongUse, match="on group two: it has none"):
        actions_to_undo(shards, "two", f"{TODAY}-undo", name)
    reset = ["reset", "-g", "two", "-t", "Orders", "--to-min", "--reason", "x", "--request"]
    rmq(*reset, f"{TODAY}-first")
    first = actions_to_undo(shards, "two", f"{TODAY}-undo", name)
    assert [(shard.name, ctl.request_id) for shard, ctl in first] == [("a", f"{TODAY}-first"), ("b", f"{TODAY}-first")]
    rmq(*UNDO_TWO, "--request", f"{TODAY}-first")
    with pytest.raises(
        WrongUse, match=rf"^reset {TODAY}-first is not the last .* undo {TODAY}-first of .* came after it"
    ):
        actions_to_undo(shards, "two", f"{TODAY}-undo", name)
    rmq(*reset, f"{TODAY}-later", "--shard", "b")
    with pytest.raises(WrongUse, match=rf"reset {TODAY}-later of .* \(x\) came after it"):
        actions_to_undo(shards, "two", f"{TODAY}-undo", name)


def test_an_undo_that_another_one_overtakes_after_its_choice_names_that_one(in_two_shards: Rmq) -> None:
    store = rmq_store.open_store(in_two_shards.root)
    store.reset("two", "Orders", "min", reason="x")
    shards = store.lake.shards()
    chosen = actions_to_undo(shards, "two", f"{TODAY}-second")
    in_two_shards(*UNDO_TWO, "--request", f"{TODAY}-first")
    before = offsets_of_two(in_two_shards)
    second: dict[str, Any] = {"request_id": f"{TODAY}-second", "actor": actor_of("ben"), "reason": "x"}
    for dry_run in (True, False):
        with pytest.raises(StaleAttempt, match=rf"undo {TODAY}-first of ana .* came first\. Run it again"):
            undo(chosen, "two", Host(), **second, dry_run=dry_run, every=shards)
    for one in chosen:
        with pytest.raises(StaleAttempt, match=rf"undo {TODAY}-first of ana .* came first"):
            undo([one], "two", Host(), **second)
    assert offsets_of_two(in_two_shards) == before


def test_after_windows_an_undo_needs_force(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    imported("reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "x")
    imported("consume", "-g", "orders", "--max-messages", "800")
    refused = imported("undo", "-g", "orders", *WHY)
    assert refused.exit_code == 2
    assert "in 8 of its 8 queues" in refused.err
    assert f"0 of their messages consumed again, and skip {ORDERS - 800:,}" in refused.err
    assert imported.json("undo", "-g", "orders", *WHY, "--force")["messages"] == 800 - ORDERS
    assert imported.json("consume", "-g", "orders")["status"] == "empty"
    assert imported.json("audit")["audit"] == []


def test_the_undo_of_a_first_reset_leaves_no_offset(imported: Rmq) -> None:
    imported("reset", "-g", "orders", "-t", "OrderEvents", "--to-max", "--reason", "x")
    undone = imported.json("undo", "-g", "orders", *WHY)
    assert {(move["from_offset"], move["to_offset"]) for move in undone["moves"]} == {(ORDERS // 8, None)}
    assert offsets(imported) == []
    assert imported.json("audit")["audit"] == []
    window = imported.json("consume", "-g", "orders")
    assert (window["messages"], window["windows"][0]["ranges"][0]["start_rule"]) == (ORDERS, "first_offset")
    assert imported.json("audit")["audit"] == []


def test_what_cannot_be_undone_is_refused(imported: Rmq) -> None:
    assert "no action of an operator to undo" in imported("undo", "-g", "orders", *WHY).err
    assert "there is no group 'ordres'" in imported("undo", "-g", "ordres", *WHY).err
    imported("consume", "-g", "orders")
    imported("delete-group", "-g", "orders", "--reason", "old")
    refused = imported("undo", "-g", "orders", *WHY)
    assert (refused.exit_code, "a delete cannot be undone" in refused.err) == (2, True)
    assert "an undo needs a reason" in imported("undo", "-g", "orders").err


def test_an_action_is_undone_in_the_shards_that_have_it(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    before = offsets_of_two(rmq)
    reset = ["reset", "-g", "two", "-t", "Orders", "--to-min", "--reason", "x", "--request"]
    rmq(*reset, f"{TODAY}-both")
    rmq(*reset, f"{TODAY}-one", "--shard", "a")
    one = rmq.json("undo", "-g", "two", *WHY)
    assert ({move["shard"] for move in one["moves"]}, one["undoes"]) == ({"a"}, f"{TODAY}-one")
    rmq.json("undo", "-g", "two", *WHY)
    both = rmq_store.open_store(rmq.root)
    both.reset("two", "Orders", "min", reason="x")
    reports = both.undo("two", reason="not this group")
    assert [report.shard for report in reports] == ["a", "b"]
    refused = rmq("redrive", "-g", "two", "--all", "--reason", "fixed"), rmq("undo", "-g", "two", *WHY)
    assert "a redrive cannot be undone" in refused[1].err
    assert len(offsets_of_two(rmq)) == len(before)
    assert rmq.json("audit")["audit"] == []


def test_the_last_action_is_that_of_the_last_commit_and_not_of_the_newest_clock(in_two_shards: Rmq) -> None:
    before = offsets_of_two(in_two_shards)
    store = rmq_store.open_store(in_two_shards.root)
    behind = replace(store, host=Host(now_ms=lambda: Host().now_ms() - 5 * DAY_MS))
    store.reset("two", "Orders", "min", reason="on time")
    reset = offsets_of_two(in_two_shards)
    late = behind.reset("two", "Orders", "max", reason="five days behind")
    undone = store.undo("two", reason="not this one")
    assert [(report.shard, json.loads(report.parameters)["undoes"]) for report in undone] == [
        (report.shard, report.request_id) for report in late
    ]
    assert offsets_of_two(in_two_shards) == reset
    store.reset("two", "Orders", "min", reason="on time again")
    (of_one,) = behind.reset(
        "two", "Orders", "max", reason="behind, in one", queues=[MessageQueue("Orders", "lake-a", 0)]
    )
    (back,) = store.undo("two", reason="not this one either")
    assert (back.shard, json.loads(back.parameters)["undoes"]) == ("a", of_one.request_id)
    assert len(offsets_of_two(in_two_shards)) == len(before)
    assert in_two_shards.json("audit")["audit"] == []


RESET_TWO = ["reset", "-g", "two", "-t", "Orders", "--to-min", "--reason", "x", "--request", f"{TODAY}-half"]
UNDO_TWO = ["undo", "-g", "two", *WHY, "--actor", "ana"]


def refused_rest(rmq: Rmq, *command: str) -> str:
    """The error of a command that is wrong use and changes nothing."""
    before = offsets_of_two(rmq), rmq.json("sql", "SELECT count(*) AS actions FROM operator_actions")
    for option in ((), ("--dry-run",)):
        refused = rmq(*command, *option)
        assert refused.exit_code == 2, refused
        assert (offsets_of_two(rmq), rmq.json("sql", "SELECT count(*) AS actions FROM operator_actions")) == before
    return refused.err


def test_the_rest_of_a_reset_that_was_cut_and_undone_is_not_done(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    rmq(*RESET_TWO, "--shard", "a")
    rmq(*UNDO_TWO, "--request", f"{TODAY}-back")
    error = refused_rest(rmq, *RESET_TWO)
    assert f"request {TODAY}-half was committed in shard a and not in b, and another move came after it" in error
    assert re.search(rf"in shard a undo {TODAY}-back of ana at {TODAY}T[\d:.]+Z \(another group was meant\)\.", error)
    assert "make a new request, with a new id" in error
    assert [move["shard"] for move in rmq.json(*RESET_TWO[:-1], f"{TODAY}-whole")["moves"]] == ["a", "b"]
    assert {offset for _, offset in offsets_of_two(rmq)} == {0}
    assert rmq.json("audit")["audit"] == []


def test_the_rest_of_an_undo_that_was_cut_and_undone_is_not_done(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    rmq(*RESET_TWO)
    undo = [*UNDO_TWO, "--request", f"{TODAY}-cut"]
    assert [move["shard"] for move in rmq.json(*undo, "--shard", "a")["moves"]] == ["a"]
    again = rmq.json("undo", "-g", "two", "--reason", "wrong")
    assert again["undoes"] == f"{TODAY}-cut"
    error = refused_rest(rmq, *undo)
    assert f"request {TODAY}-cut was committed in shard a and not in b" in error
    assert f"in shard a undo {again['request_id']} of " in error


def test_the_rest_of_a_reset_that_was_cut_is_done_also_after_windows_and_a_redrive(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    rmq(*RESET_TWO, "--shard", "a")
    rmq("consume", "-g", "two")
    rmq("redrive", "-g", "two", "--all", "--reason", "fixed")
    done = rmq.json(*RESET_TWO)
    assert (done["status"], done["notes"]) == ("committed", [])
    assert dict(offsets_of_two(rmq))["b"] == 0


def test_what_was_committed_in_all_shards_says_what_came_after_it(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    done = rmq.json(*RESET_TWO)
    assert rmq.json(*RESET_TWO)["notes"] == []
    rmq(*UNDO_TWO, "--request", f"{TODAY}-back")
    rmq("redrive", "-g", "two", "--all", "--reason", "fixed")
    again = rmq.json(*RESET_TWO)
    assert (again["status"], len(again["moves"]), len(done["moves"])) == ("already_committed", 2, 2)
    for shard, note in zip("ab", again["notes"], strict=True):
        assert note.startswith(f"shard {shard}: these are the moves of that time: undo {TODAY}-back of ana at {TODAY}T")
        assert note.endswith("Z (another group was meant) came after them")
