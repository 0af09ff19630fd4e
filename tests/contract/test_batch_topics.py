"""A store with a BatchCQ topic of a real broker: its messages are those that the broker's own client saw."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.broker_files.batch_consume_queue import UNIT_BYTES
from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData
from rmq_store.lake.audit.full import full
from rmq_store.lake.broker.common_log import common_log
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import last_import, last_records_of
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.message.properties import tags_code
from rmq_store.utils.host import Host
from tests.contract.sample_stores import load, unpacked

DATA = Path(__file__).parents[1] / "data" / "rocketmq-batch"
BATCHED = 110
"""So many messages are in the topic."""


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    return unpacked(DATA, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> LakeStore:
    store, _ = LakeStore.init(Root.parse(str(tmp_path / "lake")))
    return store


def seen() -> list[dict[str, Any]]:
    with gzip.open(DATA / "seen.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("salvage", [False, True])
def test_every_message_of_a_batch_topic_is_the_one_that_a_client_sees(
    store: LakeStore, broker: Path, salvage: bool
) -> None:
    assert load(store, broker, salvage=salvage).status == "committed"
    expected = {
        (row["topic"], row["queue_id"], row["queue_offset"]): row
        for row in seen()
        if row["kind"] == "message" and row["tags"] == "*"
    }
    rows = query(store, "SELECT * FROM messages WHERE topic IN ('Batched', 'Plain')").to_pylist()
    assert len(rows) == len(expected) == 2 * BATCHED
    assert len({row["offset_msg_id"] for row in rows}) == 2 * BATCHED
    for row in rows:
        one = expected[row["topic"], row["queue_id"], row["queue_offset"]]
        of_pull = {"MIN_OFFSET", "MAX_OFFSET"}
        assert row["body"].decode() == one["body"]
        assert dict(row["properties"]) == {name: v for name, v in one["properties"].items() if name not in of_pull}
        for name in ("flag", "sys_flag", "born_timestamp", "store_timestamp", "commit_log_offset", "reconsume_times"):
            assert row[name] == one[name], name
        assert (row["unique_key"], row["tags"]) == (one["msg_id"], one["properties"]["TAGS"])
        assert row["tags_code"] == tags_code(row["tags"])


def test_its_queues_end_where_the_broker_says(store: LakeStore, broker: Path) -> None:
    load(store, broker)
    ends = {row["queue"]: (row["min"], row["max"]) for row in seen() if row["kind"] == "pull"}
    rows = query(store, "SELECT topic, queue_id, min_offset, max_offset FROM queues").to_pylist()
    here = {f"{row['topic']}/{row['queue_id']}": (row["min_offset"], row["max_offset"]) for row in rows}
    assert ends.items() <= here.items()
    assert load(store, broker).status == "unchanged"
    assert query(store, "SELECT * FROM audit").num_rows == 0
    assert full(store, LocalEngine(Host())).findings == []


def test_a_queue_that_retention_has_emptied_keeps_its_end(store: LakeStore, broker: Path) -> None:
    """The log goes on in its second file; all that is left of the batch topic are its queues."""
    log = broker / "commitlog" / f"{0:020}"
    (broker / "commitlog" / f"{131072:020}").write_bytes(bytes(131072))
    log.unlink()
    shutil.rmtree(broker / "consumequeue")
    load(store, broker)
    rows = query(store, "SELECT queue_id, min_offset, max_offset FROM queues WHERE topic = 'Batched'").to_pylist()
    assert {row["queue_id"]: (row["min_offset"], row["max_offset"]) for row in rows} == {0: (68, 68), 1: (42, 42)}


def entries_of(broker: Path, queue_id: int) -> list[tuple[int, int, int]]:
    """Of a batch queue: commit log offset, size and the queue offset of the first message."""
    data = (broker / "batchconsumequeue" / "Batched" / str(queue_id) / f"{0:020}").read_bytes()
    rows = [struct.unpack_from(">qiqqq", data, at) for at in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES)]
    return [(place, size, base) for place, size, _, _, base in rows if size]


@pytest.mark.parametrize("kept", [0, 2])
def test_a_queue_whose_messages_a_salvage_leaves_out_begins_with_the_gap(
    store: LakeStore, broker: Path, kept: int
) -> None:
    """``kept``: so many records of queue 0 are those that retention has removed: its entries point before the log."""
    file = broker / "commitlog" / f"{0:020}"
    log = bytearray(file.read_bytes())
    for queue_id in (0, 1):
        for place, _, _ in entries_of(broker, queue_id):
            log[place + 4] ^= 0xFF
    file.write_bytes(log)
    queue = broker / "batchconsumequeue" / "Batched" / "0" / f"{0:020}"
    entries = bytearray(queue.read_bytes())
    for slot in range(kept):
        struct.pack_into(">q", entries, slot * UNIT_BYTES, -1)
    begin = entries_of(broker, 0)[kept][2]
    queue.write_bytes(entries)
    report = load(store, broker, salvage=True)
    gaps = {(gap.queue_id, gap.begin, gap.end) for gap in report.queue_gaps if gap.topic == "Batched"}
    assert gaps == {(0, begin, 68), (1, 0, 42)}
    rows = query(store, "SELECT queue_id, min_offset, max_offset FROM queues WHERE topic = 'Batched'").to_pylist()
    assert {row["queue_id"]: (row["min_offset"], row["max_offset"]) for row in rows} == {0: (begin, 68), 1: (0, 42)}
    assert full(store, LocalEngine(Host())).findings == []


def test_a_broken_file_of_a_batch_queue_is_named(store: LakeStore, broker: Path) -> None:
    file = broker / "batchconsumequeue" / "Batched" / "0" / f"{0:020}"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BadData, match="whole entry of 46 bytes"):
        load(store, broker)


@pytest.mark.parametrize("first", [20823, 22471, 37866])
def test_what_two_logs_have_in_common_ends_at_a_record_that_differs(store: LakeStore, broker: Path, first: int) -> None:
    """It is a batch, or comes behind one. Messages of one record share its place, and have bodies of their own."""
    report = load(store, broker)
    places = [
        row["place"] for row in query(store, "SELECT DISTINCT commit_log_offset AS place FROM messages").to_pylist()
    ]
    assert first in places
    log = broker / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    for place in places:
        if place >= first:
            for field in (40, 56):  # born and stored
                data[place + field : place + field + 8] = struct.pack(">q", 1_700_000_000_000)
    log.write_bytes(data)
    files = LocalFileSource(broker)
    common = common_log(store, store.shards()[0], files, list_commit_log(files), "broker-a", report.end)
    assert common is not None
    assert (common.end, common.continues, common.is_exact) == (first, True, True)


def test_the_last_record_of_an_import_is_the_last_of_the_log(store: LakeStore, broker: Path) -> None:
    """The messages of batches come last in the tables of an import."""
    report = load(store, broker)
    ctl = last_import(store.shards()[0], "broker-a")
    assert ctl is not None
    begin, end, _ = last_records_of(ctl) or (0, 0, "")
    assert report.end - 8 <= end <= report.end
    assert (ctl.parameter("tail")[:2], begin < end) == ([0, end], True)


def test_a_group_gets_the_messages_of_a_batch_by_their_own_tags(store: LakeStore, broker: Path) -> None:
    load(store, broker)
    group = rmq_store.consumer_group(
        "shop",
        "tests.roundtrip.listener:concurrently",
        {"Batched": "TagA"},
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        engine="local",
    )
    report = rmq_store.open_store(store.root.location).consume(group)
    of_tag = [
        row for row in seen() if row["kind"] == "message" and row["tags"] == "*" and row["properties"]["TAGS"] == "TagA"
    ]
    acked = sum(row["topic"] == "Batched" for row in of_tag)
    assert 0 < acked < BATCHED
    assert report.outcomes == {"acked": acked, "filtered": BATCHED - acked}
