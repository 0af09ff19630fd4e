"""``rmq consume --all``: its answer in text and in JSON, and its exit code."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import own_queue_id
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host
from tests.contract.rmq import ORDERS, TODAY, Answer, Rmq, lines_of

MORE = """
[[group]]
name = "orders-audit"
listener = "cli_listener:succeed"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"

[[group.subscription]]
topic = "OrderEvents"

[[group]]
name = "everyone"
listener = "cli_listener:succeed"
message_model = "BROADCASTING"

[[group.subscription]]
topic = "OrderEvents"
"""
INVALID = '[[group]]\nname = "bad"\n'


@pytest.fixture
def several(imported: Rmq) -> Rmq:
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text() + MORE)
    return imported


def by_group(answer: Answer) -> dict[str, Any]:
    return {group["group"]: group for group in answer.json()["groups"]}


def test_every_group_has_its_answer_and_the_exit_code_is_the_greatest_of_the_failures(several: Rmq) -> None:
    settings = several.folder / "consumers.toml"
    settings.write_text(settings.read_text() + INVALID)
    answer = several("consume", "--all", "--json", "--request", f"{TODAY}-all")
    assert answer.exit_code == 2
    groups = by_group(answer)
    assert {name: group["status"] for name, group in groups.items()} == {
        "bad": "error",
        "broken": "error",
        "elsewhere": "empty",
        "orders": "committed",
        "orders-audit": "committed",
    }
    assert (groups["bad"]["error"], groups["bad"]["exit_code"]) == ("WrongUse", 2)
    assert "group bad: listener is missing" in groups["bad"]["message"]
    assert (groups["broken"]["error"], groups["broken"]["exit_code"]) == ("ListenerError", 1)
    assert groups["elsewhere"]["idle"].startswith("there is no topic NoSuchTopic")
    assert (groups["orders"]["messages"], groups["orders-audit"]["messages"]) == (ORDERS, ORDERS)
    whole = answer.json()
    assert (whole["status"], whole["failed"], whole["messages"]) == ("error", 2, 2 * ORDERS)
    assert (whole["request_id"], whole["warnings"]) == (f"{TODAY}-all", [])
    assert "note: left out, as these groups are broadcasting and name no client (GROUP@CLIENT): everyone" in answer.err
    assert several("consume", "--all", "--json", "-g", "broken").exit_code == 1


def test_a_pattern_also_excludes_groups(several: Rmq) -> None:
    answer = several("consume", "--all", "--exclude", "or*s", "--exclude", "brok*", "--json")
    assert set(by_group(answer)) == {"elsewhere", "orders-audit"}
    only = several("consume", "--all", "-g", "orders*", "--exclude", "*-audit", "--json")
    assert set(by_group(only)) == {"orders"}


def test_a_group_in_use_is_exit_code_3_unless_another_group_has_failed(several: Rmq) -> None:
    (shard,) = LakeStore.open(Root.parse(str(several.root))).shards()
    queues = tuple(own_queue_id("orders", queue) for queue in shard.positions().queues_of("OrderEvents"))
    wish = Wish("2026-01-01-theirs", Actor("ana", "os"), "orders", queues=queues)
    with claimed(shard, wish, Host()):
        answer = several("consume", "--all", "-g", "orders*", "--json")
        assert answer.exit_code == 3
        groups = by_group(answer)
        assert (groups["orders"]["error"], groups["orders-audit"]["status"]) == ("HeldByAnother", "committed")
        assert several("consume", "--all", "-g", "orders", "-g", "broken").exit_code == 1


def test_a_groups_answer_is_that_of_its_own_command(several: Rmq) -> None:
    together = by_group(several("consume", "--all", "-g", "orders*", "--json", "--request", f"{TODAY}-all"))
    assert set(together) == {"orders", "orders-audit"}
    for name, group in together.items():
        alone = several.json("consume", "-g", name, "--request", f"{TODAY}-all")
        assert alone["status"] == "already_committed"
        assert (alone["messages"], alone["request_id"]) == (group["messages"], group["request_id"])
        assert alone["windows"][0]["counts"] == group["windows"][0]["counts"]
        assert set(alone) | {"idle"} == set(group)
    again = several.json("consume", "--all", "-g", "orders*", "--request", f"{TODAY}-all")
    assert (again["status"], again["messages"]) == ("already_committed", 2 * ORDERS)


def test_the_text_lists_the_groups_that_had_work(several: Rmq) -> None:
    answer = several("consume", "--all", "-g", "orders*", "-g", "elsewhere", "-g", "broken", "--threads", "2")
    assert answer.exit_code == 1
    rows = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert f"orders committed {ORDERS} {ORDERS - 100:,} acked, 100 retried" in rows
    assert f"orders-audit committed {ORDERS} {ORDERS:,} acked" in rows
    assert any(row.startswith("broken error 0 ListenerError: listener no_such_module:Listener") for row in rows)
    assert not any(row.startswith("elsewhere") for row in rows)
    lines = lines_of(answer.out)
    assert (lines["status"], lines["groups"]) == ("error", "4, 3 of them listed")
    nothing = several("consume", "--all", "-g", "orders*")
    assert (nothing.exit_code, nothing.out.splitlines()[0]) == (0, "there is nothing to consume")
    assert lines_of(nothing.out)["status"] == "empty"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--all", "-g", "order"],
            "consumers.toml has no group that matches 'order'; known: orders, elsewhere, broken",
        ),
        (["--all", "--exclude", "order"], "consumers.toml has no group that matches 'order'"),
        (["-g", "orders", "--exclude", "x"], "several groups, --exclude and --threads need --all"),
        (["--all", "--client", "c1", "--clients", "c1,c2"], "--all cannot be combined with --client and --clients"),
        (["-g", "orders", "-g", "broken"], "several groups, --exclude and --threads need --all"),
        (["-g", "orders", "--threads", "2"], "several groups, --exclude and --threads need --all"),
    ],
)
def test_wrong_use_is_refused(imported: Rmq, arguments: list[str], text: str) -> None:
    answer = imported("consume", *arguments)
    assert answer.exit_code == 2
    assert text in answer.err
