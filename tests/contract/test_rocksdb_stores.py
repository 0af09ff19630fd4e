"""The store of a real broker with storeType=defaultRocksDB is imported: topics, groups and offsets are read from RocksDB, the
queues are made from the log."""

from __future__ import annotations

import gzip
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import Actor
from rmq_store.errors import BadData, OverLimit
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.utils.host import Host
from tests.contract.sample_stores import BROKER, load, unpacked

DATA = Path(__file__).parents[1] / "data" / "rocketmq-rocksdb"
OFFSETS = {
    ("g_all", "RtDelayed"): {0: 8, 1: 7, 2: 7, 3: 8},
    ("g_all", "RtNormal"): {0: 8, 1: 7, 2: 7, 3: 8},
    ("g_order", "RtOrdered"): {0: 9, 1: 9, 2: 8, 3: 4},
}
"""Some of the groups' offsets in the broker's database."""


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    return unpacked(DATA, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> LakeStore:
    store, _ = LakeStore.init(Root.parse(str(tmp_path / "lake")), levels="1s 1s 2s 2s 3s 3s")
    return store


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_its_messages_topics_groups_and_offsets_are_there_and_its_files_are_untouched(
    store: LakeStore, broker: Path
) -> None:
    before = files_of(broker)
    assert load(store, broker).status == "committed"
    assert files_of(broker) == before
    with gzip.open(DATA / "sent.tsv.gz", "rt", encoding="utf-8") as lines:
        sent = sorted(tuple(line.rstrip("\n").split("\t")) for line in lines)
    rows = query(store, "SELECT keys, topic FROM messages WHERE topic LIKE 'Rt%' AND topic <> 'RtDelayed'").to_pylist()
    assert sorted((row["keys"], row["topic"]) for row in rows) == [one for one in sent if one[1] != "RtDelayed"]
    shard = store.shards()[0]
    cutover(store, shard, BROKER, Host(), request_id="2026-11-23-cutover", actor=Actor("test", "test"), reason="test")
    rows = query(store, "SELECT group_name, topic, queue_id, next_offset FROM consumer_offsets").to_pylist()
    here = {(row["group_name"], row["topic"], row["queue_id"]): row["next_offset"] for row in rows}
    for (group, topic), offsets in OFFSETS.items():
        assert {queue_id: here[group, topic, queue_id] for queue_id in offsets} == offsets
    assert query(store, "SELECT * FROM audit").num_rows == 0


def test_a_json_file_beside_the_databases_is_refused_as_it_may_be_newer(store: LakeStore, broker: Path) -> None:
    (broker / "config" / "topics.json").write_text("{}")
    with pytest.raises(BadData, match=r"RocksDB.*no JSON file of them is beside|RocksDB.*Without a JSON file beside"):
        load(store, broker)


def test_without_the_package_the_store_is_refused_and_the_package_is_named(
    store: LakeStore, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadData, match=r"pip install 'rocketmq-lakehouse\[rocksdb\]'"):
        load(store, broker)


def test_a_queue_offset_that_comes_again_is_not_explained_by_what_is_in_rocksdb(store: LakeStore, broker: Path) -> None:
    end = load(store, broker).end
    times: dict[str, Any] = {"born_timestamp": 1, "store_timestamp": 1_800_000_000_000}
    place: dict[str, Any] = {"topic": "RtNormal", "queue_id": 0, "queue_offset": 0, "commit_log_offset": end}
    record = encode(new_record(**place, **times, stored_body=b"again", properties={}))
    file = max(file for file in (broker / "commitlog").iterdir() if int(file.name) <= end)
    with file.open("r+b") as log:
        log.seek(end - int(file.name))
        log.write(record)
    with pytest.raises(BadData, match=r"offset 0 comes again.*in RocksDB, and are not read.*\(--broker\)") as refused:
        load(store, broker)
    assert "import a copy" not in str(refused.value)


def test_a_damaged_database_is_named(store: LakeStore, broker: Path) -> None:
    (broker / "config" / "consumerOffsets" / "000009.sst").write_bytes(b"not a table")
    with pytest.raises(BadData, match=r"config/consumerOffsets of .* cannot be read as RocksDB"):
        load(store, broker)


def test_a_database_over_the_limit_is_not_copied(store: LakeStore, broker: Path) -> None:
    with pytest.raises(OverLimit, match=r"config/consumerOffsets of .* is larger than 100 bytes.*--max-config-bytes"):
        load(store, broker, max_config_bytes=100)


def test_queues_beside_the_databases_may_be_files(store: LakeStore, broker: Path) -> None:
    """A broker with other queues than files, whose configurations alone are in RocksDB, is read like any other."""
    shutil.rmtree(broker / "consumequeue")
    assert load(store, broker).status == "committed"
