"""The count of this process's requests to S3, compared with a proxy in front of a real server, which sees all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.s3_proxy import by_kind, dollars, serial
from rmq_store.consumer.pull import Slice
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.read.slice_rows import rows_of_slices
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table import tables
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.lake.table.object_store import TAIL_BYTES
from rmq_store.lake.table.request_counter import counted_requests
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from tests.lake_fixtures import Bench, SmallStore, message
from tests.s3 import CountedRoot, S3Root, counted

QUEUE = MessageQueue("Orders", "broker-a", 0)


@pytest.fixture
def counted_root(s3_root: S3Root) -> Iterator[CountedRoot]:
    with counted(s3_root) as root:
        yield root


def check_agreement(root: CountedRoot, run: Callable[[], object]) -> dict[str, int]:
    """Run it; the counter and the proxy must agree. Returns the number of requests of each kind."""
    root.proxy.requests.clear()
    with counted_requests() as counter:
        run()
    summary, recorded = counter.summary(), list(root.proxy.requests)
    kinds = {str(kind): count for kind, count in by_kind(recorded).items()}
    assert summary == kinds | {"total": len(recorded), "serial": summary["serial"], "usd": dollars(recorded)}
    # A request lasts longer here than at the proxy, so that some which overlap here do not overlap there.
    assert 0 < summary["serial"] <= serial(recorded)
    return kinds


def test_the_count_is_that_of_the_proxy(counted_root: CountedRoot) -> None:
    root = counted_root.root
    stores: list[LakeStore] = []
    check_agreement(counted_root, lambda: stores.append(LakeStore.init(root)[0]))
    bench = Bench(stores[0].create_shard("broker-a"))
    bench.import_messages({QUEUE: [message(QUEUE, offset, offset) for offset in range(20)]})
    small = SmallStore(stores[0])
    assert check_agreement(counted_root, lambda: small.consume("broker-a", "2026-11-20-one"))["PUT"] > 1
    assert "PUT" not in check_agreement(counted_root, lambda: small.consume("broker-a", "2026-11-20-empty"))
    check_agreement(counted_root, lambda: query(LakeStore.open(root), "SELECT * FROM lag"))
    check_agreement(counted_root, lambda: query(LakeStore.open(root), "SELECT * FROM audit"))
    check_agreement(counted_root, lambda: root.delete_all(["one", "two"]))


def test_the_count_has_every_read_and_write_of_large_files(counted_root: CountedRoot) -> None:
    root = counted_root.root
    rng = np.random.default_rng(1)
    rows = [message(QUEUE, n, n, commit_id="c", part=0, rel=n, body=rng.bytes(1 << 18)) for n in range(60)]
    new = NewFile(
        kind="msg", name="file", rows=pa.Table.from_pylist(rows, schema=tables.MSG), runs=[0], row_group_rows=20
    )
    kinds = check_agreement(counted_root, lambda: stage(root, "t", new))
    assert kinds == {"POST": 2, "PUT": 2}  # a multipart upload
    assert root.size(f"t/{new.path}") > TAIL_BYTES
    slice_ = Slice(QUEUE, 0, 60, new.path, 0, "c")
    reader = SliceReader(root, "t", slice_, OpenFiles(root))
    read: list[pa.Table] = []
    kinds = check_agreement(
        counted_root, lambda: read.append(reader.rows(np.array([1, 25, 59]), ["body", "queue_offset"]))
    )
    assert kinds.keys() == {"GET"}
    kinds = check_agreement(
        counted_root, lambda: read.append(rows_of_slices(root, "t", [slice_], ["body", "queue_offset"]))
    )
    assert kinds.keys() == {"GET"}
    assert [table.column("body").to_pylist() for table in read] == [
        [rows[n]["body"] for n in numbers] for numbers in ((1, 25, 59), range(60))
    ]


def test_what_libraries_read_and_write_by_themselves_is_named(counted_root: CountedRoot) -> None:
    store, _ = LakeStore.init(counted_root.root)
    bench = Bench(store.create_shard("broker-a"))
    bodies = [
        bytes([n % 256]) * (2 * TAIL_BYTES) if n else np.random.default_rng(1).bytes(2 * TAIL_BYTES) for n in range(20)
    ]
    bench.import_messages({QUEUE: [message(QUEUE, n, n, body=body) for n, body in enumerate(bodies)]})
    with counted_requests() as counter:
        assert query(store, "SELECT count(*) FROM messages WHERE body IS NOT NULL").column(0).to_pylist() == [20]
    assert counter.summary()["uncounted"] == ["reads of data files larger than 64 KiB by a query"]


def test_a_checkpoint_reads_each_entry_once_and_all_at_once(counted_root: CountedRoot) -> None:
    store, _ = LakeStore.init(counted_root.root)
    bench = Bench(store.create_shard("broker-a"))
    for day in range(12):
        bench.import_messages({QUEUE: [message(QUEUE, day, day)]})
    table = bench.shard.commitlog
    kinds = check_agreement(counted_root, lambda: write_checkpoint(table))
    assert (kinds["LIST"], kinds["GET"], kinds["PUT"]) == (1, table.version + 1, 2)


def test_a_query_reads_each_small_file_by_one_request(counted_root: CountedRoot) -> None:
    store, _ = LakeStore.init(counted_root.root)
    bench = Bench(store.create_shard("broker-a"))
    for day in range(3):
        bench.import_messages({QUEUE: [message(QUEUE, offset, offset) for offset in range(20 * day, 20 * day + 20)]})
    of_messages = bench.shard.commitlog.files(pc.field("partition.kind") == "msg").column("path").to_pylist()
    text = "SELECT count(*), sum(octet_length(m.body)) FROM messages m JOIN messages n USING (queue_offset)"
    check_agreement(counted_root, lambda: query(store, text))
    assert [counted_root.of(f"broker-a/commitlog/{path}") for path in of_messages] == [["GET"]] * 3
