"""How many requests a file in S3 costs, counted by a proxy in front of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rmq_store.console.listing import Question
from rmq_store.console.reader import StoreReader
from rmq_store.errors import StoreUnusable
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_entry import entry_name
from rmq_store.lake.table.delta_log import LOG_FOLDER
from rmq_store.lake.table.request_counter import Kind
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from tests.lake_fixtures import Bench, SmallStore, message
from tests.s3 import CountedRoot, S3Root, counted

PATH = "t/kind=msg/file.parquet"


@pytest.fixture
def counted_root(s3_root: S3Root) -> Iterator[CountedRoot]:
    with counted(s3_root) as root:
        yield root


def messages(bodies: list[bytes]) -> pa.Table:
    queue = MessageQueue("Orders", "broker-a", 0)
    rows = [message(queue, n, n, commit_id="c", part=0, rel=n, body=body) for n, body in enumerate(bodies)]
    return pa.Table.from_pylist(rows, schema=tables.MSG)


def test_a_small_file_is_one_request(counted_root: CountedRoot) -> None:
    stage(counted_root.root, "t", NewFile(kind="msg", name="file", rows=messages([b"{}"] * 20), runs=[0]))
    assert counted_root.of(PATH) == ["PUT"]


def test_a_large_file_arrives_whole(counted_root: CountedRoot) -> None:
    rng = np.random.default_rng(1)
    bodies = [rng.bytes(1 << 20) for _ in range(24)]
    file = stage(counted_root.root, "t", NewFile(kind="msg", name="file", rows=messages(bodies), runs=[0]))
    assert counted_root.root.size(PATH) == file.size > 24 << 20
    assert counted_root.of(PATH).count("POST") == 2  # a multipart upload


def test_shards_without_an_entry_are_looked_for_where_there_would_be_none(counted_root: CountedRoot) -> None:
    """Not by a request of every command."""
    store, _ = LakeStore.init(counted_root.root)
    queue = MessageQueue("Orders", "broker-a", 0)
    Bench(store.create_shard("broker-a")).import_messages({queue: [message(queue, 0, 0)]})
    counted_root.proxy.requests.clear()
    assert [shard.name for shard in store.shards()] == ["broker-a"]
    assert [request.kind for request in counted_root.proxy.requests] == [Kind.LIST]
    counted_root.root.delete("shards/broker-a.json")
    with pytest.raises(StoreUnusable, match="broker-a: these folders in "):
        store.shards()
    with pytest.raises(StoreUnusable, match="broker-a: these folders in "):
        store.create_shard("local")


def test_a_page_of_a_store_that_stays_open_asks_for_the_newest_and_the_next_entry_of_each_table(
    counted_root: CountedRoot,
) -> None:
    store, _ = LakeStore.init(counted_root.root)
    queue = MessageQueue("Orders", "broker-a", 0)
    Bench(store.create_shard("broker-a")).import_messages({queue: [message(queue, 0, 0)]})
    reader = StoreReader(lambda: LakeStore.open(counted_root.root), readers=1)
    question = Question("SELECT sum(max_offset) AS n FROM queues", {})
    assert reader.rows(question) == [[{"n": 1}]]
    counted_root.proxy.requests.clear()
    assert reader.rows(question) == [[{"n": 1}]]
    keys = Counter(request.key.partition("stores/one/")[2] for request in counted_root.proxy.requests)
    versions = {"commitlog": 1, "consumequeue": 0, "offsets": 0}
    assert keys == {"store.json": 1, "": 1} | {
        f"broker-a/{table}/{LOG_FOLDER}/{entry_name(number)}": 1
        for table, newest in versions.items()
        for number in (newest, newest + 1)
    }


@pytest.mark.parametrize("rows", [2, 24], ids=["small", "large"])
def test_no_part_of_a_file_appears_when_it_cannot_be_encoded(
    counted_root: CountedRoot, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    rng = np.random.default_rng(1)
    table = messages([rng.bytes(1 << 20) for _ in range(rows)])
    write_table = pq.ParquetWriter.write_table
    groups = 0

    def fail_at_the_last(writer: pq.ParquetWriter, part: pa.Table, **options: Any) -> None:
        nonlocal groups
        groups += 1
        if groups == rows // 2:
            raise MemoryError
        write_table(writer, part, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail_at_the_last)
    with pytest.raises(MemoryError):
        stage(counted_root.root, "t", NewFile(kind="msg", name="file", rows=table, runs=[0], row_group_rows=2))
    assert counted_root.root.list() == []


def test_a_file_for_a_missing_bucket_is_refused_at_once(s3_root: S3Root) -> None:
    with counted(S3Root("s3://no-such-bucket/stores/one", s3_root.env)) as missing:
        with pytest.raises(StoreUnusable, match="no-such-bucket"):
            stage(missing.root, "t", NewFile(kind="msg", name="file", rows=messages([b"{}"]), runs=[0]))
        assert missing.of(PATH) == ["PUT"]


def test_a_window_reads_a_small_file_of_many_queues_by_one_request(counted_root: CountedRoot) -> None:
    store, _ = LakeStore.init(counted_root.root)
    bench = Bench(store.create_shard("broker-a"))
    queues = [MessageQueue("Orders", "broker-a", queue_id) for queue_id in range(8)]
    bench.import_messages({queue: [message(queue, offset, offset) for offset in range(20)] for queue in queues})
    (file,) = bench.shard.commitlog.files(pc.field("partition.kind") == "msg").column("path").to_pylist()
    counted_root.proxy.requests.clear()
    report = SmallStore(store).consume("broker-a", "2026-11-20-one")
    assert sum(report.counts().values()) == 8 * 20
    assert counted_root.of(f"broker-a/commitlog/{file}") == ["GET"]


def test_a_task_reads_a_file_of_some_hundred_kilobytes_by_its_end_and_once_more(counted_root: CountedRoot) -> None:
    """Not by HEAD and a request for each range of columns. The next task of the process knows its end."""
    rng = np.random.default_rng(1)
    rows = messages([rng.bytes(10_000) for _ in range(20)])
    file = stage(counted_root.root, "t", NewFile(kind="msg", name="file", rows=rows, runs=[0], row_group_rows=10))
    assert 100_000 < file.size < 500_000
    requests = []
    for _ in range(2):
        counted_root.proxy.requests.clear()
        task = OpenFiles(counted_root.root)
        bodies = [task.row_group(PATH, group, ["queue_offset", "body"], shared=False) for group in range(2)]
        assert pa.concat_tables(bodies).column("body") == rows.column("body")
        requests.append(counted_root.of(PATH))
    assert requests == [["GET", "GET"], ["GET"]]
