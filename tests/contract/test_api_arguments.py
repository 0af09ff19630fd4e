"""Arguments of the wrong type from Python are wrong use, before anything is written: none is taken for another value."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from rmq_store import DeadLetterFilter, Message, MessageEdits, Store, WrongUse, consumer_group, create_store, open_store
from rmq_store.message.message import MessageQueue
from tests.faults.stores import FIRST_STORED_MS, write_broker

Call = Callable[[Store, Path, Any], object]

LISTENER = "tests.faults.listeners:fail_some"
GROUP: Any = consumer_group("billing", LISTENER, {"Orders": "*"})
LETTERS = DeadLetterFilter(all=True)
NOTES = [Message("Notes", b"note")]
TEXTS = [1, b"text", ["text"], True, "\ud800"]
FLAGS = ["no", None, 2, 0]
NUMBERS = ["1", 1.5, True, 2**63, 10**5000]
TIMES = ["1", 1.5, True, 1_795_000_000, 10**5000, pd.NaT]
QUEUE: Any = MessageQueue("Orders", "broker-a", 0)
NOTE: Any = NOTES[0]
GROUPS = ["billing", None]
ENGINES = ["spark", "", 0, []]

WRONG_QUEUES = [
    *("q", [0], [], iter(()), QUEUE, 0, np.array("q"), [replace(QUEUE, topic="Others")]),
    *([replace(QUEUE, queue_id=value)] for value in (pd.NA, np.array([]), 10**5000, "0")),
    *([replace(QUEUE, broker_name=value)] for value in (pd.NA, pd.Series(["broker-a"]))),
]
OF_SETTINGS: Any = [
    *(
        {name: 10**5000}
        for name in ("max_messages", "listener", "shards", "mode", "absorb_duplicates", "consume_timestamp")
    ),
    *({"shards": [10**5000]}, {"retry_policy": {"next": [10**5000]}}, {"absorb_duplicates": {"by": 10**5000}}),
    *({"allocate_strategy": {"a": {"b": [10**5000]}}}, {"consume_timestamp": pd.NaT}),
]


def sent(store: Store, **fields: Any) -> object:
    """A call with one message, of which some fields are as given."""
    return store.send([Message(**({"topic": "Notes", "body": b"note"} | fields))], create_queues=1)


CALLS: dict[str, tuple[Call, list[Any]]] = {
    "levels": (lambda s, f, v: create_store(f / "other", levels=v), TEXTS),
    "actor of a new store": (lambda s, f, v: create_store(f / "other", actor=v), TEXTS),
    "actor": (lambda s, f, v: open_store(f / "store", actor=v), TEXTS),
    "root": (lambda s, f, v: open_store(v), [None, 1, b"store", "a\0b", "\ud800"]),
    "root of a new store": (lambda s, f, v: create_store(v), [None, 1, b"store", "a\0b", "\ud800"]),
    "subscriptions": (lambda s, f, v: consumer_group("g", LISTENER, v), ["Orders", None, ["Orders"]]),
    "expression": (lambda s, f, v: consumer_group("g", LISTENER, {"Orders": v}), [1, None, ["*"], 10**5000]),
    "settings": (
        lambda s, f, v: consumer_group("g", **({"listener": LISTENER, "subscriptions": {"Orders": "*"}} | v)),
        OF_SETTINGS,
    ),
    "source": (lambda s, f, v: s.import_store(v, "broker-b"), [None, 1, [b"x"], b"/tmp", "a\0b"]),
    "broker_name": (lambda s, f, v: s.import_store(f / "broker", v), [None, *TEXTS]),
    "shard of an import": (lambda s, f, v: s.import_store(f / "broker", "broker-b", shard=v), [*TEXTS, ""]),
    "salvage": (lambda s, f, v: s.import_store(f / "broker", "broker-b", salvage=v), FLAGS),
    "request_id of an import": (lambda s, f, v: s.import_store(f / "broker", "broker-b", request_id=v), TEXTS),
    "message": (lambda s, f, v: s.send(v, create_queues=1), ["text", [None], [{"topic": "Notes"}], [], NOTE, None]),
    "topic of a message": (lambda s, f, v: sent(s, topic=v), [5, None, b"Notes", "\ud800"]),
    "body": (lambda s, f, v: sent(s, body=v), [5, None, "text", [1], {}]),
    "tags": (lambda s, f, v: sent(s, tags=v), TEXTS),
    "keys of a message": (
        lambda s, f, v: sent(s, keys=v),
        [(1,), 1, None, "key", {"key"}, ("\ud800",), iter(["key"]), b"", range(0)],
    ),
    "properties": (lambda s, f, v: sent(s, properties=v), [{"a": 1}, {1: "a"}, {"a": None}, [], None, {"a": "\ud800"}]),
    "sharding_key": (lambda s, f, v: sent(s, sharding_key=v), TEXTS),
    "delay_level": (lambda s, f, v: sent(s, delay_level=v), [*NUMBERS, None, np.int64(1)]),
    "delay_ms": (lambda s, f, v: sent(s, delay_ms=v), [*NUMBERS, np.int64(1000), timedelta(seconds=1)]),
    "deliver_at": (lambda s, f, v: sent(s, deliver_at=v), [*TIMES, np.int64(10**12)]),
    "queue_id": (lambda s, f, v: sent(s, queue_id=v), [*NUMBERS, np.int64(0)]),
    "create_queues": (lambda s, f, v: s.send(NOTES, create_queues=v), [*NUMBERS, 0, -1]),
    "shard of a send": (lambda s, f, v: s.send(NOTES, create_queues=1, shard=v), TEXTS),
    "dry_run of a send": (lambda s, f, v: s.send(NOTES, create_queues=1, dry_run=v), FLAGS),
    "request_id of a send": (lambda s, f, v: s.send(NOTES, create_queues=1, request_id=v), TEXTS),
    "group": (lambda s, f, v: s.consume(v), GROUPS),
    "max_messages": (lambda s, f, v: s.consume(GROUP, max_messages=v), NUMBERS),
    "until": (lambda s, f, v: s.consume(GROUP, until=v), TIMES),
    "replay of a consume": (lambda s, f, v: s.consume(GROUP, replay=v), TEXTS),
    "retries_only": (lambda s, f, v: s.consume(GROUP, retries_only=v), FLAGS),
    "request_id of a consume": (lambda s, f, v: s.consume(GROUP, request_id=v), TEXTS),
    "group of a plan": (lambda s, f, v: s.plan(v), GROUPS),
    "retries_only of a plan": (lambda s, f, v: s.plan(GROUP, retries_only=v), FLAGS),
    "engine": (lambda s, f, v: s.consume(GROUP, engine=v), ENGINES),
    "engine of an import": (lambda s, f, v: s.import_store(f / "broker", "broker-b", engine=v), ENGINES),
    "engine of a replay": (lambda s, f, v: s.replay(GROUP, "Orders", FIRST_STORED_MS, engine=v), ENGINES),
    "engine of several": (lambda s, f, v: s.consume_all([GROUP], engine=v), ENGINES),
    "group of several": (lambda s, f, v: s.consume_all([v]), GROUPS),
    "groups": (lambda s, f, v: s.consume_all(v), [GROUP, [], "billing", None, iter(()), np.array("billing")]),
    "threads": (lambda s, f, v: s.consume_all([GROUP], threads=v), [*NUMBERS, None, 0]),
    "group of a replay": (lambda s, f, v: s.replay(v, "Orders", FIRST_STORED_MS), GROUPS),
    "topic of a replay": (lambda s, f, v: s.replay(GROUP, v, FIRST_STORED_MS), TEXTS),
    "since": (lambda s, f, v: s.replay(GROUP, "Orders", v), TIMES),
    "now": (lambda s, f, v: s.deliver(now=v), TIMES),
    "request_id of a replay": (lambda s, f, v: s.plan_replay(GROUP, "Orders", 0, request_id=v), TEXTS),
    "request_id of a delivery": (lambda s, f, v: s.deliver(request_id=v), TEXTS),
    "group of a reset": (lambda s, f, v: s.reset(v, "Orders", "min", reason="r"), TEXTS),
    "topic of a reset": (lambda s, f, v: s.reset("billing", v, "min", reason="r"), TEXTS),
    "reason of a reset": (lambda s, f, v: s.reset("billing", "Orders", "min", reason=v), TEXTS),
    "queues": (lambda s, f, v: s.reset("old", "Orders", "min", reason="r", queues=v), WRONG_QUEUES),
    "to": (
        lambda s, f, v: s.reset("old", "Orders", v, reason="r"),
        ["first", None, True, 1.5, 10**5000, pd.NaT, pd.NA, np.array([]), pd.Series(["min"])],
    ),
    "dry_run of a reset": (lambda s, f, v: s.reset("billing", "Orders", "min", reason="r", dry_run=v), FLAGS),
    "group of an undo": (lambda s, f, v: s.undo(v, reason="r"), TEXTS),
    "force": (lambda s, f, v: s.undo("billing", reason="r", force=v), FLAGS),
    "dry_run of an undo": (lambda s, f, v: s.undo("billing", reason="r", dry_run=v), FLAGS),
    "group of a redrive": (lambda s, f, v: s.redrive(v, LETTERS, reason="r"), GROUPS),
    "all dead letters": (lambda s, f, v: DeadLetterFilter(all=v), FLAGS),
    "times of dead letters": (lambda s, f, v: DeadLetterFilter(from_ms=v), TIMES),
    "end of dead letters": (lambda s, f, v: DeadLetterFilter(until_ms=v), TIMES),
    "topic of dead letters": (lambda s, f, v: DeadLetterFilter(original_topic=v), TEXTS),
    "where": (lambda s, f, v: DeadLetterFilter(where=v), TEXTS),
    "keys": (lambda s, f, v: DeadLetterFilter(keys=v), ["key", ["key"], b"key"]),
    "places": (lambda s, f, v: DeadLetterFilter(places=v), ["abc", [("broker-a", 0, 1)]]),
    "remove_property": (lambda s, f, v: MessageEdits(remove_property=v), ["abc", ["abc"]]),
    "remove_json": (lambda s, f, v: MessageEdits(remove_json=v), ["/a", ["/a"]]),
    "set_property": (lambda s, f, v: MessageEdits(set_property=v), ["a", [("a", "b")], {"a": 1}]),
    "cast_property": (lambda s, f, v: MessageEdits(cast_property=v), ["a", [("a", "int")]]),
    "replace_body_text": (lambda s, f, v: MessageEdits(replace_body_text=v), [5, {"a": 1}, {1: "a"}]),
    "cast_json": (lambda s, f, v: MessageEdits(cast_json=v), ["a", [("/a", "int")]]),
    "set_json": (lambda s, f, v: MessageEdits(set_json=v), ["a", [("/a", 1)], {1: 1}]),
    "dead_letters": (lambda s, f, v: s.redrive(GROUP, v, reason="r"), ["all", None]),
    "reason of a redrive": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason=v), TEXTS),
    "to_topic": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason="r", to_topic=v), TEXTS),
    "limit": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason="r", limit=v), NUMBERS),
    "rate": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason="r", rate=v), NUMBERS),
    "edits": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason="r", edits=v), [{}, "region=eu"]),
    "all_or_nothing": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason="r", all_or_nothing=v), FLAGS),
    "dry_run of a redrive": (lambda s, f, v: s.redrive(GROUP, LETTERS, reason="r", dry_run=v), FLAGS),
    "text": (lambda s, f, v: s.query(v), [None, b"SELECT 1"]),
    "full": (lambda s, f, v: s.audit(full=v), FLAGS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the shard ``broker-a``, and the broker's files."""
    folder = tmp_path_factory.mktemp("arguments")
    store = create_store(folder / "store")
    store.import_store(write_broker(folder / "broker"), "broker-a")
    store.consume(replace(GROUP, name="old"))
    return folder


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_type_is_wrong_use(folder: Path, name: str) -> None:
    call, values = CALLS[name]
    before = sorted(folder.rglob("*"))
    for value in values:
        with pytest.raises(WrongUse):
            call(open_store(folder / "store"), folder, value)
    assert sorted(folder.rglob("*")) == before


def test_the_error_names_the_argument_and_what_it_must_be(folder: Path) -> None:
    store: Any = open_store(folder / "store")
    with pytest.raises(WrongUse, match=r"^salvage must be True or False, it is of the type str$"):
        store.import_store(folder / "broker", "broker-b", salvage="no")
    with pytest.raises(WrongUse, match=r"^broker_name must be a text, it is of the type NoneType$"):
        store.import_store(folder / "broker", None)
    with pytest.raises(WrongUse, match=r"^group must be of the type GroupSettings, it is of the type str$"):
        store.consume("billing")
    with pytest.raises(WrongUse, match=r"^reset to False: give a time .*, an offset, 'min' or 'max'$"):
        store.reset("billing", "Orders", False, reason="r")
    with pytest.raises(WrongUse, match=r"^salvage must be True or False, it is of the type numpy\.bool"):
        store.import_store(folder / "broker", "broker-b", salvage=np.bool_(True))
    with pytest.raises(
        WrongUse, match=r"^messages must be several, such as a list .* of the type Message; it is of the type"
    ):
        store.send(Message("Notes", b"note"))
    with pytest.raises(WrongUse, match=r"^queues is empty: give at least one item$"):
        store.reset("billing", "Orders", "min", reason="r", queues=[])
    with pytest.raises(
        WrongUse, match=r"^message 1: tags must be a text, or None, it is of the type int. Nothing was sent\.$"
    ):
        sent(store, tags=1)


def test_no_queues_given_means_all_and_a_queue_is_the_one_of_the_store(folder: Path) -> None:
    """False equals 0: what is written is the queue that the store has."""
    store: Any = open_store(folder / "store")
    store.consume(GROUP)
    [of_all] = store.reset("billing", "Orders", "min", reason="", dry_run=True)
    [of_none] = store.reset("billing", "Orders", "min", reason="", dry_run=True, queues=None)
    assert len(of_all.moves) == len(of_none.moves) == 3
    for queue_id in (False, np.int64(0)):
        given = iter([replace(QUEUE, queue_id=queue_id)] * 2)
        [of_one] = store.reset("billing", "Orders", "min", reason="", dry_run=True, queues=given)
        assert [(move.queue, type(move.queue.queue_id)) for move in of_one.moves] == [(QUEUE, int)]


def test_a_folder_whose_name_is_no_utf_8_is_a_root(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(folder / "store", root)
    assert open_store(root).query("SELECT count(*) AS n FROM topics").num_rows == 1


def test_none_is_the_default_of_the_settings_that_have_none() -> None:
    """As ``docs/settings.md`` writes their default."""
    names = ("absorb_duplicates", "retry_policy", "shards", "max_messages", "consume_timestamp")
    assert consumer_group("billing", LISTENER, {"Orders": "*"}, **dict.fromkeys(names)) == GROUP
