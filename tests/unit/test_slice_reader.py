"""Reading a slice: its rows and no others, whole columns of one value made instead of read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.commit.ctl import lake_message_id
from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData
from rmq_store.lake.read.open_files import SEVERAL, Footer
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS, SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.message.message import MessageQueue
from tests.lake_fixtures import message

QUEUE = MessageQueue("Orders", "broker-a", 3)
ROWS = 9_000
"""Enough for row groups of this queue's own."""


def _stored(folder: Path, **columns: Any) -> Slice:
    """A staged file of ROWS messages, with some columns given row by row, and the slice of all of them."""
    filled = {"queue_offset": np.arange(ROWS), "rel": np.arange(ROWS)} | columns
    rows = pa.Table.from_pylist([message(QUEUE, 0, 0, commit_id="c", part=0, rel=0)] * ROWS, schema=tables.MSG)
    for name, values in filled.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))
    (folder / "t").mkdir(exist_ok=True)
    file = stage(Root.parse(str(folder)), "t", NewFile(kind="msg", name="file", rows=rows, runs=[0]))
    return Slice(QUEUE, 0, ROWS, file.path, 0, "c")


def _read(folder: Path, slice_: Slice, columns: list[str] | None) -> tuple[np.ndarray, pa.Table]:
    batches = list(SliceReader(Root.parse(str(folder)), "t", slice_).batches(columns))
    return np.concatenate([offsets for offsets, _ in batches]), pa.Table.from_batches([rows for _, rows in batches])


def test_a_part_of_a_queue_is_read_whole_and_in_order(tmp_path: Path) -> None:
    whole = _stored(tmp_path)
    part = whole.cut(4_000)[1]
    offsets, rows = _read(tmp_path, part, ["queue_offset", "topic", "keys"])
    assert offsets.tolist() == list(range(4_000, 8_000))
    assert rows.column_names == ["queue_offset", "topic", "keys"]
    assert rows.column("queue_offset").to_pylist() == list(range(4_000, 8_000))
    assert set(rows.column("topic").to_pylist()) == {"Orders"}


def test_made_columns_are_those_that_reading_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = np.where(np.arange(ROWS) < ROWS // 2, 1, 2)  # one value in each row group, not in the slice
    keys = [None] * (ROWS - 1) + ["last"]  # one value, but not in every row
    slice_ = _stored(tmp_path, flag=flags, keys=keys, tags=[None] * ROWS, body=[b""] * ROWS)
    some = np.array([0, 1, ROWS // 2, ROWS - 1])
    reader = SliceReader(Root.parse(str(tmp_path)), "t", slice_)
    made, made_some = _read(tmp_path, slice_, None)[1], reader.rows(some)
    assert set(reader._constants(reader._groups(0, ROWS), MESSAGE_COLUMNS, 1)) > {"topic", "tags", "body", "magic"}
    monkeypatch.setattr(Footer, "only_value", lambda footer, group, column: SEVERAL)
    assert made.equals(_read(tmp_path, slice_, None)[1])
    assert made_some.equals(reader.rows(some))
    assert made.column("flag").to_pylist() == flags.tolist()
    assert made.column("keys").to_pylist() == keys
    assert made_some.column("keys").to_pylist() == [None, None, None, "last"]


def test_a_file_that_is_no_parquet_is_damaged_in_sentences_with_one_full_stop(tmp_path: Path) -> None:
    """The text of pyarrow ends with one."""
    slice_ = _stored(tmp_path)
    (tmp_path / "t" / slice_.file).write_bytes(b"PAR1" + bytes(100) + b"none")
    with pytest.raises(BadData, match=r"is damaged: .*[^.]\. Restore it from a backup of the store$"):
        _read(tmp_path, slice_, None)


def test_only_made_columns_can_be_asked_for(tmp_path: Path) -> None:
    slice_ = _stored(tmp_path)
    assert _read(tmp_path, slice_, ["topic"])[1].num_rows == ROWS
    rows = SliceReader(Root.parse(str(tmp_path)), "t", slice_).rows(np.array([5, 7]), ["topic", "queue_id"])
    assert rows.to_pylist() == [{"topic": "Orders", "queue_id": 3}] * 2


@pytest.mark.parametrize("born_here", [True, False], ids=["born-here", "imported"])
def test_rows_that_do_not_follow_each_other_are_refused(tmp_path: Path, born_here: bool) -> None:
    numbers = np.arange(ROWS)
    numbers[100] = 7
    columns = {"rel": numbers, "queue_offset": [None] * ROWS} if born_here else {"queue_offset": numbers}
    with pytest.raises(BadData, match="not contiguous from offset 0 on"):
        _read(tmp_path, _stored(tmp_path, **columns), ["topic"])


_OF_PLACE = ["queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp"]


@pytest.mark.parametrize(
    "other",
    [
        {"commit_id": "d"},
        {"part": 1},
        {"queue": MessageQueue("Orders", "broker-a", 4)},
        {"queue": MessageQueue("Other", "broker-a", 3)},
    ],
)
def test_the_file_of_another_segment_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """A wrong restore puts a file in the place of another one with as many rows."""
    born_here = _stored(tmp_path, **{name: [None] * ROWS for name in _OF_PLACE})
    SliceReader(Root.parse(str(tmp_path)), "t", born_here)
    with pytest.raises(BadData, match="Another file was put in its place"):
        SliceReader(Root.parse(str(tmp_path)), "t", replace(born_here, **other))


def test_a_message_born_in_the_lake_has_offset_id_and_time_by_its_place(tmp_path: Path) -> None:
    empty: dict[str, list[Any]] = {name: [None] * ROWS for name in _OF_PLACE}
    commit_id = "018fddf87a0075b1a5224a58b791f1d8"
    empty |= {"commit_id": [commit_id] * ROWS, "part": [2] * ROWS}
    stored = replace(
        _stored(tmp_path, **empty), commit_id=commit_id, part=2, begin=70, end=70 + ROWS, store_timestamp=9
    )
    part = stored.cut(4_000)[1]
    rows = range(4_000, 8_000)
    by_place = {
        "queue_offset": [70 + row for row in rows],
        "commit_log_offset": list(rows),
        "offset_msg_id": [lake_message_id(commit_id, 2, row) for row in rows],
        "store_timestamp": [9] * len(rows),
    }
    offsets, read = _read(tmp_path, part, _OF_PLACE)
    assert offsets.tolist() == by_place["queue_offset"]
    assert read.to_pydict() == by_place
    some = SliceReader(Root.parse(str(tmp_path)), "t", part).rows(offsets[[0, 7]], _OF_PLACE)
    assert some.to_pylist() == read.take([0, 7]).to_pylist()
