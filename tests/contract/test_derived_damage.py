"""A derived table that lacks rows, or belongs to another history of the log, is refused; nothing is called lost for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from rmq_store.lake.dispatch import dispatch
from tests.contract.rmq import ALL_DUE, Rmq
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench

CONSUME = ("consume", "--group", "orders", "--engine", "local")
OF_ORDERS = "topic = 'OrderEvents' AND queue_id = 0"


def drop_rows(root: Path, where: str) -> None:
    """What somebody's DELETE does to the consume queues of the one shard."""
    deleted = DeltaTable(str(root / "broker-a" / "consumequeue")).delete(where)
    assert deleted["num_deleted_rows"]


def refused(rmq: Rmq, *arguments: str) -> str:
    """Why a command is refused that would have to read what the table lacks."""
    answer = rmq(*arguments, "--json")
    assert (answer.exit_code, answer.json().get("error")) == (1, "DerivedTableDamaged"), answer
    message: str = answer.json()["message"]
    assert "rmq dispatch --rebuild" in message
    return message


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_messages_that_only_the_consume_queue_lacks_are_not_lost(imported: Rmq, policy: str) -> None:
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text().replace('engine = "auto"', f'on_offset_out_of_range = "{policy}"'))
    drop_rows(imported.root, OF_ORDERS)
    assert "[0, " in (message := refused(imported, *CONSUME))
    assert "OrderEvents" in message
    assert imported.json("sql", "SELECT * FROM windows") == []
    imported.json("dispatch", "--rebuild")
    (window,) = imported.json(*CONSUME)["windows"]
    assert window["status"] == "committed"
    assert imported.json("sql", "SELECT * FROM outcomes WHERE outcome = 'lost'") == []
    assert imported.json("audit")["audit"] == []


@pytest.mark.parametrize(
    "command",
    [
        (
            "replay",
            "--group",
            "orders",
            "--topic",
            "OrderEvents",
            "--from",
            "2020-01-01T00:00:00Z",
            "--engine",
            "local",
        ),
        (
            "reset",
            "--group",
            "orders",
            "--topic",
            "OrderEvents",
            "--to-time",
            "2026-01-01T00:00:00Z",
            "--reason",
            "test",
        ),
        ("print", "--topic", "OrderEvents"),
    ],
    ids=lambda command: command[0],
)
def test_whoever_reads_a_queue_is_told_what_its_consume_queue_lacks(imported: Rmq, command: tuple[str, ...]) -> None:
    imported.json(*CONSUME)
    drop_rows(imported.root, OF_ORDERS)
    assert "OrderEvents" in refused(imported, *command)
    imported.json("dispatch", "--rebuild")
    imported.json(*command)


def test_a_delivery_does_not_pass_over_retries_that_the_consume_queue_lacks(imported: Rmq) -> None:
    imported.json(*CONSUME)
    drop_rows(imported.root, "topic = 'SCHEDULE_TOPIC_XXXX' AND broker_name LIKE 'lake-%'")
    assert "SCHEDULE_TOPIC_XXXX" in refused(imported, "deliver", "--now", ALL_DUE)
    imported.json("dispatch", "--rebuild")
    assert imported.json("deliver", "--now", ALL_DUE)["delivered"]


def test_a_redrive_does_not_pass_over_letters_that_the_consume_queue_lacks(
    hand: Bench, rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_ROOT", hand.shard.root.location)
    hand.window("shop", QUEUE, 0, 10, start_rule="first", dead=[3])
    dispatch(hand.shard, hand.host)
    drop_rows(Path(hand.shard.root.location), "topic LIKE '%DLQ%'")
    redrive = ("redrive", "--group", "shop", "--all", "--reason", "test")
    assert "%DLQ%shop" in refused(rmq, *redrive)
    rmq.json("dispatch", "--rebuild")
    assert rmq.json(*redrive)["letters"] == 1


def test_the_log_is_asked_only_where_there_is_a_hole(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("rmq_store.lake.holes.produced_in_log", lambda *arguments: asked.append(arguments) or [])
    imported.json(*CONSUME)
    imported.json("deliver", "--now", ALL_DUE)
    assert asked == []
