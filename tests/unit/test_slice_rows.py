"""The rows of many slices: those that reading slice by slice gives, with each file opened once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData, MissingFile
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.read.slice_rows import rows_of_slices
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.message.message import MessageQueue
from tests.lake_fixtures import message

QUEUE = MessageQueue("Orders", "broker-a", 3)
COLUMNS = ["unique_key", "tags", "epoch", "reconsume_times", "properties", "body"]
FILES, ROWS = 3, 40
TABLE = "s/commitlog"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """Three files of ROWS messages in row groups of ten; the last file has no column ``epoch``."""
    root = Root.parse(str(tmp_path_factory.mktemp("rows")))
    Shard.create(root, "s")
    for number in range(FILES):
        rows = [message(QUEUE, 100 * number + n, n, commit_id="c", part=0, rel=n, epoch=n) for n in range(ROWS)]
        table = pa.Table.from_pylist(rows, schema=tables.MSG)
        if number == FILES - 1:
            table = table.drop_columns(["epoch"])
        stage(root, TABLE, NewFile(kind="msg", name=f"f{number}", rows=table, row_group_rows=10))
    return root


def path(number: int) -> str:
    return f"kind=msg/f{number}.parquet"


def slice_of(file: int, first_row: int, count: int) -> Slice:
    begin = 100 * file + first_row
    return Slice(QUEUE, begin, begin + count, path(file), first_row, "c")


SLICES = st.lists(
    st.tuples(st.integers(0, FILES - 1), st.integers(0, ROWS - 1), st.integers(1, ROWS)).map(
        lambda place: slice_of(place[0], place[1], min(place[2], ROWS - place[1]))
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(SLICES)
def test_the_rows_of_many_slices_are_those_of_one_after_the_other(root: Root, slices: list[Slice]) -> None:
    plain: list[dict[str, Any]] = []
    for slice_ in slices:
        of_slice = SliceReader(root, TABLE, slice_).rows(np.arange(slice_.begin, slice_.end), COLUMNS).to_pylist()
        plain += [{"epoch": None} | row for row in of_slice]
    rows = rows_of_slices(root, TABLE, slices, COLUMNS)
    assert rows.column_names == COLUMNS
    assert rows.to_pylist() == plain


def test_each_file_is_opened_once(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    original = pq.ParquetFile

    def counted(*more: Any, **named: Any) -> Any:
        opened.append(more)
        return original(*more, **named)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    rows_of_slices(root, TABLE, [slice_of(n % 2, n, 1) for n in range(20)], COLUMNS)
    assert len(opened) == 2


def test_an_error_names_the_segment(root: Root, tmp_path: Path) -> None:
    gone = Slice(QUEUE, 5, 7, "kind=msg/gone.parquet", 0, "c")
    with pytest.raises(MissingFile, match=r"the file of offsets \[5, 7\) of .*queueId=3\], is gone"):
        rows_of_slices(root, TABLE, [slice_of(0, 0, 2), gone], COLUMNS)
    with pytest.raises(BadData, match=r"has fewer rows than its segment of .*queueId=3"):
        rows_of_slices(root, TABLE, [slice_of(0, ROWS - 1, 2)], COLUMNS)
    damaged = Root.parse(str(tmp_path))
    Shard.create(damaged, "s")
    file = tmp_path / TABLE / path(0)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(BadData, match=r"the file of offsets \[3, 4\) of .*, is damaged"):
        rows_of_slices(damaged, TABLE, [slice_of(0, 3, 1)], COLUMNS)
