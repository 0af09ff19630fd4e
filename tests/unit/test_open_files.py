"""What a task opens and reads: a file once, a row group that its slices share once, and no more kept than allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.commit.positions import Outcome
from rmq_store.consumer.pull import Slice, by_file
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.read import open_files
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS, SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import edit_maps
from rmq_store.lake.table.object_store import TAIL_BYTES, Root
from rmq_store.lake.table.stage import LONG_RUN_ROWS, NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window import retry_rows
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest
from tests.lake_fixtures import ALICE, Bench, message

COLUMNS = ["queue_id", "queue_offset", "keys", "properties", "body"]


def stored(folder: Path, lengths: Sequence[int], *, body_bytes: int = 0, row_group_rows: int = 10_000) -> list[Slice]:
    """A new file with a queue for each length, and a slice for each queue."""
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    slices = []
    for queue_id, length in enumerate(lengths):
        queue = MessageQueue("Orders", "broker-a", queue_id)
        slices.append(Slice(queue, 100, 100 + length, "", len(rows), "c"))
        for offset in range(100, 100 + length):
            row = message(queue, offset, offset, commit_id="c", part=0, rel=len(rows))
            rows.append(row | {"body": rng.bytes(body_bytes)} if body_bytes else row)
    table = pa.Table.from_pylist(rows, schema=tables.MSG)
    runs = [slice_.first_row for slice_ in slices]
    new = NewFile(kind="msg", name=f"file-{len(rows)}", rows=table, runs=runs, row_group_rows=row_group_rows)
    (folder / "t").mkdir(exist_ok=True)
    file = stage(Root.parse(str(folder)), "t", new)
    return [Slice(s.queue, s.begin, s.end, file.path, s.first_row, "c") for s in slices]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a file is opened or read whole ("tail", "read", "open_file"), and row groups are decoded."""
    counts: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    for name in ("tail", "read", "open_file"):
        count(Root, name)
    for name in ("read_row_group", "iter_batches"):
        count(pq.ParquetFile, name)
    return counts


def read(root: Root, slices: Sequence[Slice], files: OpenFiles) -> pa.Table:
    parts = [rows for slice_ in slices for _, rows in SliceReader(root, "t", slice_, files).batches(COLUMNS)]
    return pa.Table.from_batches(parts)


def test_a_small_file_is_one_read_for_all_its_slices(tmp_path: Path, calls: Counter[str]) -> None:
    slices = stored(tmp_path, [20] * 8)
    root = Root.parse(str(tmp_path))
    calls.clear()
    assert read(root, slices, OpenFiles(root)).num_rows == 160
    assert calls == {"tail": 1, "read_row_group": 1}
    calls.clear()
    assert (
        read(root, slices, OpenFiles(root)).num_rows == 160
    )  # the next task knows the footer, and needs no more of it
    assert calls == {"read": 1, "read_row_group": 1}


def test_a_larger_file_is_opened_once_and_its_shared_row_group_is_read_once(
    tmp_path: Path, calls: Counter[str]
) -> None:
    slices = stored(tmp_path, [50] * 8, body_bytes=1_000)
    root = Root.parse(str(tmp_path))
    assert root.size(f"t/{slices[0].file}") > TAIL_BYTES
    files = OpenFiles(root)
    calls.clear()
    assert read(root, slices, files).num_rows == 400
    for slice_ in slices:
        SliceReader(root, "t", slice_, files).rows(np.array([110, 149]), ["flag", "body", "properties", "keys"])
    assert calls == {"tail": 1, "open_file": 1, "read_row_group": 2}  # once for the batches, once for the rows


def test_row_groups_of_one_slice_are_read_in_batches_and_not_kept(tmp_path: Path, calls: Counter[str]) -> None:
    slices = stored(tmp_path, [LONG_RUN_ROWS, 5, 5], row_group_rows=1_000)
    root = Root.parse(str(tmp_path))
    files = OpenFiles(root)
    calls.clear()
    read(root, slices, files)
    assert (calls["iter_batches"], calls["read_row_group"]) == (1, 1)
    assert [table.num_rows for table in files._groups.values()] == [10]


def test_shared_row_groups_are_kept_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = stored(tmp_path, [10] * 10, body_bytes=1_000, row_group_rows=20)
    root = Root.parse(str(tmp_path))
    monkeypatch.setattr(open_files, "KEPT_BYTES", 50_000)
    files = OpenFiles(root)
    for slice_ in slices:
        read(root, [slice_], files)
        assert 0 < sum(table.nbytes for table in files._groups.values()) <= 50_000
    monkeypatch.setattr(open_files, "KEPT_BYTES", 0)
    read(root, slices, files)
    assert len(files._groups) == 1


@given(st.data())
def test_parts_of_slices_are_the_rows_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 7, 30]), min_size=1, max_size=5))
    slices = stored(folder, lengths, row_group_rows=data.draw(st.integers(1, 12)))
    root = Root.parse(str(folder))
    files = OpenFiles(root)
    whole = pq.read_table(folder / "t" / slices[0].file, partitioning=None)
    for slice_ in slices:
        for part in slice_.cut(data.draw(st.integers(1, 31))):
            expected = whole.slice(part.first_row, len(part))
            most = data.draw(st.integers(1, 12))
            batches = list(SliceReader(root, "t", part, files).batches(None, most))
            assert all(rows.num_rows <= most for _, rows in batches)
            assert pa.Table.from_batches([rows for _, rows in batches]).equals(expected.select(MESSAGE_COLUMNS))
            assert np.concatenate([offsets for offsets, _ in batches]).tolist() == list(range(part.begin, part.end))
            some = np.array(sorted(data.draw(st.sets(st.integers(part.begin, part.end - 1), min_size=1))))
            rows = SliceReader(root, "t", part, files).rows(some, COLUMNS)
            assert rows.equals(expected.select(COLUMNS).take(some - part.begin))


# --- a window --------------------------------------------------------------------------------------------------------


class Fourth:
    """Fails one message of four; reads one column."""

    columns = ("queue_offset",)

    def consume_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.not_equal(pc.bit_wise_and(batch.column("queue_offset"), 3), 1)


def test_what_fails_in_many_queues_is_read_and_copied_once(
    tmp_path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    bench = Bench(store.create_shard("broker-a"))
    queues = [MessageQueue("Orders", "broker-a", queue_id) for queue_id in range(8)]
    imported = {queue: [message(queue, offset, offset) for offset in range(20)] for queue in queues}
    bench.import_messages(imported)
    group = GroupSettings(
        "shop",
        f"{__name__}:Fourth",
        (build_subscription_data("Orders", "*"),),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    edits: list[int] = []

    def counted_edit(maps: pa.Array, *edit: Any) -> pa.Array:
        edits.append(len(maps))
        return edit_maps(maps, *edit)

    monkeypatch.setattr(retry_rows, "edit_maps", counted_edit)
    calls.clear()
    request = ConsumeRequest("2026-11-20-one", ALICE)
    report = consume_window(store, bench.shard, group, request, lambda plan: LocalEngine(bench.host), bench.host)
    assert (calls["read_row_group"], edits) == (2, [40])  # the column of the listener, then the others
    assert report.counts()[Outcome.RETRIED] == 40
    (segment,) = bench.shard.ctl_of(report.commit_id or "").produced  # type: ignore[union-attr]
    copies = pq.read_table(tmp_path / "broker-a" / "commitlog" / segment.file, partitioning=None)
    origins = [(row["origin_queue_id"], row["origin_queue_offset"]) for row in copies.to_pylist()]
    assert origins == [(queue_id, offset) for queue_id in range(8) for offset in (1, 5, 9, 13, 17)]
    failed = [imported[queues[queue_id]][offset] for queue_id, offset in origins]
    for name in ("body", "keys", "born_timestamp", "tags"):
        assert copies.column(name).to_pylist() == [row[name] for row in failed]


# --- the order of a task's slices ------------------------------------------------------------------------------------


def slices_of(queues: Sequence[Sequence[str]]) -> Iterator[Slice]:
    """For each queue its slices in these files."""
    for queue_id, files in enumerate(queues):
        for begin, file in enumerate(files):
            yield Slice(MessageQueue("Orders", "broker-a", queue_id), begin, begin + 1, file, queue_id)


@given(st.lists(st.lists(st.sampled_from("abcdef"), unique=True).map(sorted)))
def test_slices_of_one_file_follow_each_other_and_those_of_a_queue_stay_in_order(queues: list[list[str]]) -> None:
    slices = list(slices_of(queues))
    order = by_file(slices)
    assert sorted(order, key=lambda s: (s.queue, s.begin)) == slices
    files = [slice_.file for slice_ in order]
    assert sum(a != b for a, b in pairwise(files)) == max(len(set(files)) - 1, 0)
    for queue_id in range(len(queues)):
        of_queue = [slice_.begin for slice_ in order if slice_.queue.queue_id == queue_id]
        assert of_queue == sorted(of_queue)


def test_queues_that_name_files_in_different_orders_stay_as_they_are() -> None:
    slices = list(slices_of(["ab", "ba"]))
    assert by_file(slices) == slices
    again = list(slices_of(["aba"]))
    assert by_file(again) == again
