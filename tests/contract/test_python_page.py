"""``docs/python.md`` prints what it says, and so does ``rmq_store.Store`` where the page has no room."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store import Message, MessageQueue, WrongUse
from tests.python_page import program_and_output


def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    program, output = program_and_output()
    (tmp_path / "page.py").write_text(program)
    run = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, output), run.stderr


def consume_message(msgs: object, context: object) -> str:
    return "CONSUME_SUCCESS"


@pytest.fixture
def store(tmp_path: Path) -> rmq_store.Store:
    store = rmq_store.create_store(str(tmp_path / "store"), actor="ada")
    store.send([Message("Orders", b"1"), Message("Orders", b"2")], create_queues=1)
    return store


ORDERS = rmq_store.consumer_group(
    "orders", consume_message, {"Orders": "*"}, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
)


def test_a_store_is_opened_where_it_was_made_and_records_who_acts(store: rmq_store.Store) -> None:
    opened = rmq_store.open_store(store.root)
    assert opened.root == store.root
    store.consume(ORDERS)
    assert opened.query("SELECT DISTINCT actor FROM offset_history").to_pylist() == [{"actor": "ada"}]
    with pytest.raises(rmq_store.StoreUnusable, match="no store at"):
        rmq_store.open_store(f"{store.root}-2")


def test_a_dry_run_of_a_send_writes_nothing(tmp_path: Path) -> None:
    store = rmq_store.create_store(str(tmp_path / "store"))
    [report] = store.send([Message("Orders", b"1")], create_queues=2, dry_run=True)
    assert (report.status, store.lake.shard_names()) == ("dry_run", [])
    with pytest.raises(WrongUse, match="there is no topic Orders"):
        store.send([Message("Orders", b"1")])
    with pytest.raises(WrongUse, match="messages is empty"):
        store.send([])


def test_a_refused_send_names_the_argument_that_mends_it(tmp_path: Path) -> None:
    store = rmq_store.create_store(str(tmp_path / "store"))
    order, other = [Message("Orders", b"1")], [Message("Others", b"1")]
    for shard in ("north", "south"):
        store.send(order, create_queues=1, shard=shard)
    with pytest.raises(WrongUse, match=r"Orders is in shards north, south: choose one of them .*from Python shard=\)"):
        store.send(order)
    with pytest.raises(
        WrongUse, match=r"choose the shard of the new topic Others .*from Python shard=\); .* north, south"
    ):
        store.send(other, create_queues=1)
    with pytest.raises(WrongUse, match=r"no shard east; there are: north, south .*from Python create_queues="):
        store.send(order, shard="east")
    with pytest.raises(
        WrongUse, match=r"there is no topic Others.*; known: Orders\. --create .*from Python create_queues="
    ):
        store.send(other)


def test_a_store_that_was_deleted_or_replaced_since_it_was_opened_takes_no_message(store: rmq_store.Store) -> None:
    """Tables without ``store.json`` could not be opened again."""
    shutil.rmtree(store.root)
    with pytest.raises(rmq_store.StoreUnusable, match="no store at"):
        store.send([Message("Orders", b"3")], create_queues=1)
    assert not Path(store.root).exists()
    other = rmq_store.create_store(store.root)
    with pytest.raises(rmq_store.StoreUnusable, match="was replaced since it was opened"):
        store.send([Message("Orders", b"3")], create_queues=1)
    assert other.lake.shard_names() == []


def test_messages_of_a_generator_are_sent(store: rmq_store.Store) -> None:
    [report] = store.send(Message("Orders", body) for body in (b"3", b"4"))
    assert report.messages == 2


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    assert (
        rmq_store.create_store(tmp_path / "s").root == rmq_store.open_store(tmp_path / "s").root == str(tmp_path / "s")
    )


def test_values_that_would_be_misread_are_refused(store: rmq_store.Store) -> None:
    seconds, text = 1_795_392_000, "2026-11-20T12:00:00Z"
    with pytest.raises(WrongUse, match="looks like seconds"):
        store.consume(ORDERS, until=seconds)
    with pytest.raises(WrongUse, match="looks like seconds"):
        store.replay(ORDERS, "Orders", since=seconds)
    with pytest.raises(WrongUse, match="invalid time None"):
        store.replay(ORDERS, "Orders", since=None)  # type: ignore[arg-type]
    for wrong in (text, 1_795_392_000_000.0, True):
        with pytest.raises(WrongUse, match=r"invalid time .*: give a datetime with a zone, or epoch milliseconds"):
            store.deliver(now=wrong)  # type: ignore[arg-type]
    for count in (0, -1):
        with pytest.raises(WrongUse, match=f"invalid max_messages {count}"):
            store.consume(ORDERS, max_messages=count)
    with pytest.raises(WrongUse, match="create_queues must be a whole number"):
        store.send([Message("New", b"1")], create_queues=True)
    assert store.consume(ORDERS).messages == 2


def test_the_same_request_is_done_once(store: rmq_store.Store) -> None:
    first, second = (store.consume(ORDERS, request_id="2026-11-20-1") for _ in range(2))
    assert (first.status, second.status) == ("committed", "already_committed")
    assert (first.messages, first.outcomes, first.warnings) == (2, {"acked": 2}, [])
    assert [shard.windows[0].engine for shard in first.shards] == ["local"]


def test_a_window_ends_at_a_time_or_after_so_many_messages(store: rmq_store.Store) -> None:
    assert store.consume(ORDERS, until=datetime(2026, 1, 1, tzinfo=UTC)).messages == 0
    assert store.consume(ORDERS, max_messages=1).messages == 1
    assert store.consume(ORDERS, until=datetime.now(UTC)).messages == 1
    with pytest.raises(WrongUse, match="has no zone"):
        store.consume(ORDERS, until=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_group_is_reset_to_an_offset_a_bound_or_a_time(store: rmq_store.Store) -> None:
    store.consume(ORDERS)
    queue = MessageQueue("Orders", "lake-local", 0)
    targets: list[tuple[Any, int]] = [(1, 1), ("min", 0), ("max", 2), (datetime(2026, 1, 1, tzinfo=UTC), 0)]
    for to, offset in targets:
        [report] = store.reset("orders", "Orders", to, reason="test", queues=[queue])
        assert (report.status, [move.to_offset for move in report.moves]) == ("committed", [offset])
    with pytest.raises(WrongUse, match="give a time"):
        store.reset("orders", "Orders", "end", reason="test")  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match="there is no group 'order', did you mean 'orders'"):
        store.reset("order", "Orders", "min", reason="test")
    with pytest.raises(WrongUse, match="needs a reason"):
        store.reset("orders", "Orders", "min", reason="")


def test_only_a_replay_of_the_group_is_followed_up(store: rmq_store.Store) -> None:
    with pytest.raises(WrongUse, match="orders-replay-1 is not a replay of group orders"):
        store.consume(ORDERS, replay="orders-replay-1")
    replay = store.replay(ORDERS, "Orders", 0)
    assert store.consume(ORDERS, replay=replay.group).status == "empty"


def test_a_group_without_dead_letters_has_nothing_to_redrive(store: rmq_store.Store) -> None:
    assert store.redrive(ORDERS, rmq_store.DeadLetterFilter(all=True), reason="test") == []


def test_a_broker_store_is_imported(store: rmq_store.Store, broker_store: Callable[[str], Path]) -> None:
    market = broker_store("market-clean")
    report = store.import_store(str(market), "broker-a")
    assert (report.status, report.shard, report.messages > 1000) == ("committed", "broker-a", True)
    assert store.import_store(str(market), "broker-a").status == "unchanged"
    assert store.audit().num_rows == 0
