"""The memory engine's own ground; what it does with it is told in ``tests/contract/test_engines.py``."""

from __future__ import annotations

from random import Random

import pytest

from rmq_store.commit.ctl import Action, Actor, Ctl, Produced, StagedFile
from rmq_store.commit.decide import Decided
from rmq_store.commit.positions import QueueRange, max_id
from rmq_store.errors import ListenerError, StoreUnusable, WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest
from tests.oracle.memory.rows import MessageRow
from tests.oracle.memory.shard import Conflict, MemoryShard
from tests.oracle.memory.store import MemoryStore
from tests.oracle.memory.window import consume_window

NOW = 1_717_416_000_000
ANA = Actor("ana", "test")
Q = MessageQueue("Orders", "broker-a", 0)


def put(shard: MemoryShard, read_version: int, *app_ids: str, produced: tuple[Produced, ...] = ()) -> None:
    ctl = Ctl(f"c{read_version}{app_ids}", Action.IMPORT, ANA, read_version=read_version, produced=produced)
    shard.put(Decided(ctl, dict.fromkeys(app_ids, 1), {}), ())


def shard() -> MemoryShard:
    return MemoryShard("a", lambda: NOW)


def test_a_commit_conflicts_only_with_later_ones_that_touched_its_ids() -> None:
    log = shard()
    put(log, 0, "off/a", "grp/a")
    put(log, 0, "off/b")
    with pytest.raises(Conflict, match="grp/a"):
        put(log, 0, "grp/a", "off/c")
    put(log, 1, "grp/a")
    with pytest.raises(Conflict):
        put(log, 2, "grp/a")
    assert (log.positions().version, len(log.ctls())) == (3, 3)


def test_staged_rows_are_nothing_until_a_commit_names_their_file() -> None:
    log = shard()
    file = log.stage("f", [MessageRow(b"a"), MessageRow(b"b")])
    assert log.stored(Q) == []
    put(log, 0, "x", produced=(Produced(Q, 0, 2, 0, file.path, 0),))
    assert dict(log.segments_of([QueueRange(Q, 0, 2)]))[Q][0].commit_id.startswith("c0")


def test_a_file_that_is_not_there_or_is_there_already_is_refused() -> None:
    log = shard()
    log.stage("f", [MessageRow()])
    with pytest.raises(ValueError, match="a file needs a new name"):
        log.stage("f", [MessageRow()])
    with pytest.raises(ValueError, match="at least one row"):
        log.stage("g", [])
    ctl = Ctl("c", Action.IMPORT, ANA, read_version=0)
    with pytest.raises(StoreUnusable, match="staged file h is not there"):
        log.put(Decided(ctl, {"x": 1}, {}), (StagedFile("h", "msg", 0, 1, ""),))
    assert log.ctls() == []


def test_a_snapshot_of_the_positions_does_not_change() -> None:
    log = shard()
    before = log.positions()
    put(log, 0, max_id(Q))
    assert (before.version, dict(before.items())) == (0, {})


def test_shards_are_made_once_and_found_by_name() -> None:
    store = MemoryStore()
    assert store.create_shard("b") is store.create_shard("b")
    store.create_shard("a")
    assert [s.name for s in store.shards()] == ["a", "b"]
    assert [s.name for s in store.shards("b")] == ["b"]
    with pytest.raises(WrongUse, match="no shard c; shards: a, b"):
        store.shards("c")


def consume_batch(batch: object) -> None:
    raise AssertionError("it is never asked")


def test_a_listener_for_arrow_batches_is_refused_and_nothing_is_claimed() -> None:
    store = MemoryStore(clock=lambda: NOW)
    log = store.create_shard("a")
    file = log.stage("f", [MessageRow(b"a")])
    ctl = Ctl("c", Action.IMPORT, ANA, read_version=0, produced=(Produced(Q, 0, 1, 0, file.path, 0),))
    log.put(Decided(ctl, {max_id(Q): 1}, {}), (file,))
    group = GroupSettings("g", f"{__name__}:consume_batch", (build_subscription_data("Orders", "*"),))
    host = Host(now_ms=lambda: NOW, entropy=Random(1).randbytes)
    with pytest.raises(ListenerError, match="takes Arrow batches, which the memory engine does not have"):
        consume_window(store, log, group, ConsumeRequest("2024-06-03-a", ANA), host)
    assert len(log.ctls()) == 1
