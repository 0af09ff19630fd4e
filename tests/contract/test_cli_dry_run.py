"""``rmq consume --dry-run``, ``replay --dry-run``: what they answer, and that they write nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import own_queue_id
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.contract.rmq import ALL_DUE, ORDERS, TODAY, Rmq, lines_of
from tests.contract.test_cli_admin import in_two_shards

__all__ = ["in_two_shards"]

BODIES = "SELECT sum(stored_body_size) AS bytes FROM messages WHERE topic = 'OrderEvents'"
ORDERS_TIME = (
    "SELECT min(store_timestamp) AS first_ms, max(store_timestamp) AS last_ms FROM messages WHERE topic = 'OrderEvents'"
)


def files(rmq: Rmq) -> set[Path]:
    return set(rmq.root.rglob("*"))


def ranges(answer: Any, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(range_[name] for name in names) for window in answer["windows"] for range_ in window["ranges"]]


PLACE = ("topic", "broker_name", "queue_id", "begin_offset", "end_offset", "start_rule")


def test_a_dry_run_says_what_the_run_does_and_calls_no_listener(imported: Rmq) -> None:
    before = files(imported)
    plan = imported.json("consume", "-g", "orders", "--dry-run")
    assert "cli_listener" not in sys.modules
    assert files(imported) == before
    [sizes] = imported.json("sql", BODIES)
    assert (plan["status"], plan["messages"], plan["matched"], plan["filtered"]) == ("dry_run", ORDERS, ORDERS, 0)
    assert plan["bytes"] == sizes["bytes"]
    assert (plan["estimate"], plan["notes"], plan["last_attempts"]) == (None, [], 0)
    run = imported.json("consume", "-g", "orders")
    assert ranges(plan, *PLACE) == ranges(run, *PLACE)

    text = imported("consume", "-g", "orders", "--dry-run")
    assert (text.exit_code, lines_of(text.out)["status"]) == (0, "empty")
    after = imported.json("consume", "-g", "orders", "--dry-run")
    assert (after["status"], after["retries"]["due"] + after["retries"]["waiting"]) == ("empty", 100)
    imported("deliver", "--now", ALL_DUE)
    retried = imported("consume", "-g", "orders", "--dry-run")
    lines = lines_of(retried.out)
    assert lines["in all"].startswith("100 messages, ")
    assert lines["retries"] == "100 among them"
    assert lines["time"].startswith("about ")
    assert lines["time"].endswith("100 messages at " + lines["time"].partition(" at ")[2])
    assert "the last window of orders" in lines["time"]


def test_a_dry_run_of_a_capped_group_has_all_its_parts(imported: Rmq) -> None:
    capped = (imported.folder / "consumers.toml").read_text().replace('engine = "auto"', "max_messages = 2000")
    (imported.folder / "capped.toml").write_text(capped)
    consume = ["consume", "-g", "orders", "--settings", "capped.toml", "--request", f"{TODAY}-capped"]
    plan = imported.json(*consume, "--dry-run")
    assert [(w["part"], w["messages"], w["complete"]) for w in plan["windows"]] == [
        (1, 2000, False),
        (2, 2000, False),
        (3, 200, True),
    ]
    run = imported.json(*consume, "--engine", "local")
    assert ranges(plan, *PLACE) == ranges(run, *PLACE)
    assert imported.json(*consume, "--dry-run")["status"] == "already_committed"
    few = imported.json("consume", "-g", "orders", "--max-messages", "5", "--dry-run", "--settings", "capped.toml")
    assert few["status"] == "empty"


def test_a_dry_run_of_all_groups_has_the_error_of_each(imported: Rmq) -> None:
    before = files(imported)
    failed = imported("consume", "--all", "--dry-run", "--json")
    assert failed.exit_code == 1
    answer = failed.json()
    groups = {group["group"]: group for group in answer["groups"]}
    assert (answer["status"], answer["failed"], groups["elsewhere"]["status"]) == ("dry_run", 1, "empty")
    assert groups["orders"]["messages"] == answer["messages"] == ORDERS
    assert groups["broken"]["error"] == "ListenerError"
    assert files(imported) == before
    text = imported("consume", "--all", "--dry-run", "--group", "or*")
    assert (text.exit_code, lines_of(text.out)["groups"]) == (0, "1, 1 of them listed")


def test_a_dry_run_ends_with_the_error_of_the_run(imported: Rmq) -> None:
    dry, run = imported("consume", "-g", "elsewhere", "--dry-run"), imported("consume", "-g", "elsewhere")
    assert (dry.exit_code, dry.err) == (run.exit_code, run.err)
    shard = LakeStore.open(Root.parse(str(imported.root))).shards("broker-a")[0]
    queues = [MessageQueue("OrderEvents", "broker-a", queue_id) for queue_id in range(8)]
    own = tuple(own_queue_id("orders", queue) for queue in queues)
    wish = Wish(f"{TODAY}-night", Actor("ben", "test"), "orders", queues=own)
    with claimed(shard, wish, Host()) as held:
        dry, run = (imported("consume", "-g", "orders", *how, "--json") for how in (["--dry-run"], []))
        assert (dry.exit_code, dry.json()["error"]) == (run.exit_code, run.json()["error"]) == (3, "HeldByAnother")
        assert f"{TODAY}-night" in dry.err
        held.release()
    imported("consume", "-g", "orders", "--until", "2000-01-01T00:00:00Z")
    with claimed(shard, replace(wish, queues=own[:1]), Host()) as held:
        dry, run = (imported("consume", "-g", "orders", *how, "--json") for how in (["--dry-run"], []))
        assert (dry.exit_code, dry.json()["error"]) == (run.exit_code, run.json()["error"]) == (3, "HeldByAnother")
        assert ranges(dry.json(), *PLACE) == ranges(run.json(), *PLACE)
        assert dry.json()["windows"][0]["held"][0]["request_id"] == f"{TODAY}-night"
        held.release()


def test_a_dry_run_loads_the_listener_as_the_run_does(imported: Rmq) -> None:
    (imported.folder / "cli_listener.py").write_text("print('imported')\ncolumns = ('no',)")
    for group, topic, words in (
        ("broken", "PaymentFlow", "no_such_module"),
        ("orders", "OrderEvents", "fail_without_price"),
    ):
        for command in (["consume"], ["replay", "--topic", topic, "--from", "0"]):
            dry, run = (imported(*command, "-g", group, *how, "--json") for how in (["--dry-run"], []))
            assert (dry.exit_code, dry.json()["error"]) == (1, "ListenerError"), dry
            assert dry.json()["message"] == run.json()["message"]
            assert words in dry.json()["message"]


def test_a_dry_run_has_all_shards_and_each_consumer_its_own_queues(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    rmq("reset", "-g", "two", "-t", "Orders", "--to-min", "--reason", "again")
    plan = rmq.json("consume", "-g", "two", "--dry-run")
    assert [(shard["shard"], shard["messages"]) for shard in plan["shards"]] == [("a", 3), ("b", 1)]
    assert plan["last_attempts"] == 4, "max_reconsume_times is 0"
    assert (plan["estimate"]["messages"], plan["estimate"]["sample"]["windows"]) == (4, 2)
    run = rmq.json("consume", "-g", "two")
    assert ranges(plan, *PLACE) == ranges(run, *PLACE)
    assert sum(shard["outcomes"]["dead"] for shard in run["shards"]) == 4

    rmq("reset", "-g", "two", "-t", "Orders", "--to-min", "--reason", "once more")
    clients = [["consume", "-g", "two", "--client", name, "--clients", "c1,c2"] for name in ("c1", "c2")]
    plans = [rmq.json(*client, "--dry-run") for client in clients]
    assert sum(plan["messages"] for plan in plans) == 4
    for client, plan in zip(clients, plans, strict=True):
        assert ranges(plan, *PLACE) == ranges(rmq.json(*client), *PLACE)


def test_a_replay_is_tried_first(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    before = files(imported)
    [times] = imported.json("sql", ORDERS_TIME)
    replay = ["replay", "-g", "orders", "-t", "OrderEvents", "--request", f"{TODAY}-again", "--from"]
    plan = imported.json(*replay, "0", "--dry-run")
    assert (plan["messages"], plan["estimate"]["sample"]["group"]) == (ORDERS, "orders")
    assert files(imported) == before
    middle = str((int(times["first_ms"]) + int(times["last_ms"])) // 2)
    part = imported.json(*replay, middle, "--dry-run")
    assert 0 < part["messages"] < ORDERS
    late = imported(*replay, str(int(times["last_ms"]) + 1), "--dry-run")
    assert "no message was stored at" in late.err
    assert "there is nothing to replay" in late.err
    assert files(imported) == before
    for how in ([], ["--dry-run"]):
        future = imported(*replay, ALL_DUE, *how)
        assert (future.exit_code, "is in the future" in future.err) == (2, True)
    assert files(imported) == before

    run = imported.json(*replay, "0")
    assert ranges(plan, *PLACE) == ranges(run, *PLACE)
    attempt = ["replay", "-g", run["group"], "--reprocess", "another price", "--request", f"{TODAY}-attempt"]
    again = imported.json(*attempt, "--dry-run")
    assert again["messages"] == ORDERS
    assert ranges(again, *PLACE) == ranges(imported.json(*attempt), *PLACE)


def test_the_plans_of_the_python_api(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(imported.folder)
    store = rmq_store.open_store(imported.root)
    group = rmq_store.read_settings(imported.folder / "consumers.toml").group("orders")
    plan = store.plan(group)
    assert isinstance(plan, rmq_store.ConsumePlan)
    assert (plan.status, plan.counts.messages, plan.retries.read, plan.error) == ("dry_run", ORDERS, 0, None)
    assert store.plan(group, max_messages=10).counts.messages == 10
    assert store.plan(group, retries_only=True).status == "empty"
    assert store.plan_replay(group, "OrderEvents", 10**12).counts == plan.counts
    assert imported.json("consume", "-g", "orders")["messages"] == plan.counts.messages
    assert store.plan(group).status == "empty"
