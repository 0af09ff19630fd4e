"""What readers know of the values of a file: an expression over bounds never leaves a file out that may have a value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_store.lake.table.delta_entry import Entry, live_file
from rmq_store.lake.table.live_files import LiveFiles, widest_bounds
from rmq_store.lake.table.table_layout import TableLayout

COLUMNS = pa.schema([("n", pa.int32()), ("at_ms", pa.int64()), ("name", pa.string()), ("body", pa.binary())])
WIDEST = {
    "min.n": -(1 << 31), "max.n": (1 << 31) - 1,
    "min.at_ms": -(1 << 63), "max.at_ms": (1 << 63) - 1,
    "min.name": "", "max.name": "\U0010ffff",
    "min.body": None, "max.body": None,
}  # fmt: skip
KNOWN = {"min.n": 1, "max.n": 2, "min.at_ms": 3, "max.at_ms": 4, "min.name": "a", "max.name": "b"}
STATS: dict[str, Any] = {
    "numRecords": 5,
    "minValues": {"n": 1, "at_ms": 3, "name": "a"},
    "maxValues": {"n": 2, "at_ms": 4, "name": "b"},
    "nullCount": {"n": 0, "at_ms": 0, "name": 1, "body": 5},
}


def of_checkpoint(stats: str | None) -> pa.Table:
    files = LiveFiles(TableLayout(COLUMNS, (), tuple(COLUMNS.names)), "log")
    adds = {"path": "f", "size": 1, "stats": stats, "partitionValues": []}
    other = {"path": "known", "size": 1, "stats": json.dumps(STATS), "partitionValues": []}
    of_adds = {"path": pa.string(), "size": pa.int64(), "stats": pa.string()}
    type_ = pa.struct(of_adds | {"partitionValues": pa.map_(pa.string(), pa.string())})
    files.load(pa.array([adds, other], type_))
    return files.table


def of_entry(stats: str | None) -> pa.Table:
    files = LiveFiles(TableLayout(COLUMNS, (), tuple(COLUMNS.names)), "log")
    texts = {"f": stats or "{}", "known": json.dumps(STATS)}
    added = (live_file({"path": path, "size": 1}, json.loads(text), 0, "log") for path, text in texts.items())
    files.apply(Entry(0, added=tuple(added)))
    return files.table


@pytest.mark.parametrize("read", [of_checkpoint, of_entry])
@pytest.mark.parametrize(
    ("stats", "bounds"),
    [
        (None, WIDEST),
        ({}, WIDEST),
        ({"numRecords": 5}, WIDEST),
        (STATS, KNOWN),
        ({name: STATS[name] for name in ("numRecords", "nullCount")}, WIDEST),
        ({name: STATS[name] for name in ("minValues", "maxValues")}, KNOWN),
        (STATS | {"minValues": {"n": 1}}, KNOWN | {"min.at_ms": -(1 << 63), "min.name": ""}),
        (
            STATS | {"minValues": {}, "maxValues": {}, "nullCount": {"n": 5, "at_ms": 5, "name": 5}},
            dict.fromkeys(KNOWN),
        ),
    ],
)
def test_a_bound_that_is_not_said_is_the_widest_one_unless_all_values_are_null(
    read: Any, stats: dict[str, Any] | None, bounds: dict[str, Any]
) -> None:
    table = read(None if stats is None else json.dumps(stats))
    row, known = table.to_pylist()
    assert row | bounds == row
    assert known | KNOWN == known
    assert (row["num_records"], row["null_count.n"]) == (
        (stats or {}).get("numRecords"), (stats or {}).get("nullCount", {}).get("n"),
    )  # fmt: skip


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [-(1 << 31), 0, (1 << 31) - 1]),
    (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    (pa.string(), ["", "x", "\U0010fffe" * 40]),
]


@pytest.mark.parametrize(("type_", "values"), VALUES)
def test_all_values_are_between_the_widest_bounds(type_: pa.DataType, values: list[Any]) -> None:
    least, most = widest_bounds(type_)
    column = pa.array(values, type_)
    assert pc.all(pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))).as_py()
