"""What RocketMQ's own classes read from three real stores is what the imported stores answer, through SQL and plans.

The expectations (tests/data/rocketmq/expected) were given by a real broker, its recovery, its clients and its tools.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.host import Host
from rmq_store.lake.engine import LocalEngine
from rmq_store.lake.import_store import ImportReport, import_store
from rmq_store.lake.object_store import Root
from rmq_store.lake.sql import query
from rmq_store.lake.store import LakeStore
from rmq_store.lake.time_search import search_offsets
from rmq_store.message import MessageQueue
from rmq_store.store import SCHEDULE_GROUP, Actor
from rmq_store.subscription import build_subscription_data
from tests.unit.vectors import expected

BROKER = "broker-a"
STORES = ("market-clean", "market-trimmed", "market-killed")

Imported = tuple[str, LakeStore, ImportReport]


@pytest.fixture(scope="module", params=STORES)
def imported(
    request: pytest.FixtureRequest, broker_store: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Imported:
    name = request.param
    store, _ = LakeStore.init(Root.parse(str(tmp_path_factory.mktemp(f"lake-{name}"))))
    host = Host()
    source = Root.parse(str(broker_store(name)))
    report = import_store(
        store, source, BROKER, BROKER, f"2026-01-01-{name}", Actor("tests", "tests"), host, LocalEngine(host)
    )
    return name, store, report


def rows(store: LakeStore, text: str) -> list[dict[str, Any]]:
    return query(store, text).to_pylist()


def test_every_consume_queue_entry_reads_as_rocketmq_reads_it(imported: Imported) -> None:
    name, store, _ = imported
    found = {(r["topic"], r["queue_id"], r["queue_offset"]): r for r in rows(store, "SELECT * FROM messages")}
    wanted = expected(f"{name}.messages")
    assert len(found) == len(wanted) > 5000
    for row in wanted:
        assert _as_expected(found[row["topic"], row["queueId"], row["queueOffset"]]) == {
            key: row[key] for key in row if not key.startswith("record")
        }


def _as_expected(row: dict[str, Any]) -> dict[str, Any]:
    body = row["body"]
    return {
        "topic": row["topic"],
        "queueId": row["queue_id"],
        "queueOffset": row["queue_offset"],
        "commitLogOffset": row["commit_log_offset"],
        "storeSize": row["store_size"],
        "tagsCode": row["tags_code"],
        "magic": f"{row['magic'] & 0xFFFFFFFF:08x}",
        "msgId": row["offset_msg_id"],
        "uniqKey": row["unique_key"],
        "tags": row["tags"],
        "keys": row["keys"],
        "properties": dict(row["properties"]),
        "flag": row["flag"],
        "sysFlag": row["sys_flag"],
        "bornTimestamp": row["born_timestamp"],
        "storeTimestamp": row["store_timestamp"],
        "bornHost": row["born_host"],
        "storeHost": row["store_host"],
        "reconsumeTimes": row["reconsume_times"],
        "preparedTransactionOffset": row["prepared_transaction_offset"],
        "bodyCRC": row["body_crc"],
        "storedBodyLength": None if body is None else row["stored_body_size"],
        "bodyLength": None if body is None else len(body),
        "bodySha256": None if body is None else hashlib.sha256(body).hexdigest(),
    }


def test_consume_queue_entries_are_the_brokers_twenty_bytes(imported: Imported) -> None:
    name, store, _ = imported
    text = "SELECT topic, queue_id, queue_offset, commit_log_offset, size, tags_code FROM consume_queue_entries"
    found = {tuple(row.values()) for row in rows(store, text)}
    keys = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tagsCode")
    assert found == {tuple(row[key] for key in keys) for row in expected(f"{name}.messages")}


def test_every_record_of_the_log_is_in_the_commitlog_table(imported: Imported) -> None:
    name, _, report = imported
    lines = expected(f"{name}.commitlog")
    (range_,) = [line for line in lines if line["kind"] == "range"]
    assert (report.begin, report.end) == (range_["minPhyOffset"], range_["maxPhyOffset"])
    assert report.messages == sum(line["kind"] == "message" for line in lines)


def test_queues_begin_and_end_where_the_broker_says(imported: Imported) -> None:
    name, store, _ = imported
    positions = store.shards()[0].positions()
    found = {(q.topic, q.queue_id): (positions.min_offset(q), positions.max_offset(q)) for q in positions.all_queues()}
    assert found == {(r["topic"], r["queueId"]): (r["minOffset"], r["maxOffset"]) for r in expected(f"{name}.queues")}


def test_time_search_answers_as_the_store_does(imported: Imported) -> None:
    name, store, _ = imported
    (shard,) = store.shards()
    positions = shard.positions()
    by_time: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in expected(f"{name}.timesearch"):
        by_time[row["timestamp"]].append(row)
    wrong = []
    for time_ms, of_time in by_time.items():
        queues = {MessageQueue(row["topic"], BROKER, row["queueId"]): row for row in of_time}
        lower = search_offsets(shard, positions, list(queues), time_ms)
        upper = search_offsets(shard, positions, list(queues), time_ms, upper=True)
        wrong += [
            (queue, time_ms, lower[queue], upper[queue])
            for queue, row in queues.items()
            if (lower[queue], upper[queue], lower[queue]) != (row["lower"], row["upper"], row["default"])
        ]
    assert wrong == []


def test_tag_filter_by_hash_passes_what_the_broker_passes(imported: Imported) -> None:
    name, store, _ = imported
    codes: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in rows(store, "SELECT topic, queue_id, queue_offset, tags_code FROM messages ORDER BY queue_offset"):
        codes[row["topic"], row["queue_id"]].append((row["queue_offset"], row["tags_code"]))
    walks = [line for line in expected(f"{name}.get") if line["kind"] == "walk"]
    assert walks
    for walk in walks:
        wanted = build_subscription_data(walk["topic"], walk["expression"])
        passed = [offset for offset, code in codes[walk["topic"], walk["queueId"]] if wanted.matches_code(code)]
        assert passed == walk["passed"], walk["expression"]


def test_group_progress_is_what_the_admin_tool_prints(imported: Imported) -> None:
    name, store, _ = imported
    if name == "market-killed":
        stats = []  # its broker was killed: nobody asked it for progress
    else:
        stats = [line for line in expected(f"{name}.admin") if line["kind"] == "consumeStats"]
        assert stats
    found = {
        (row["group_name"], row["topic"], row["queue_id"]): (row["max_offset"], row["next_offset"], row["lag"])
        for row in rows(store, "SELECT * FROM lag")
    }
    for line in stats:
        for queue in line["stats"]["queues"]:
            key = line["group"], queue["topic"], queue["queueId"]
            assert found[key] == (queue["brokerOffset"], queue["consumerOffset"], queue["diff"])


def test_waiting_schedule_messages_of_a_living_broker_are_observed_not_owned(imported: Imported) -> None:
    _, store, _ = imported
    (shard,) = store.shards()
    positions = shard.positions()
    assert not [app_id for app_id, _ in positions.prefixed("off/")]
    observed = shard.ctls_since(0, action="import")[0].observed
    assert {seen.queue.topic for seen in observed if seen.group == SCHEDULE_GROUP} <= {"SCHEDULE_TOPIC_XXXX"}


def test_audit_finds_nothing_in_an_imported_store(imported: Imported) -> None:
    _, store, _ = imported
    assert rows(store, "SELECT * FROM audit") == []
