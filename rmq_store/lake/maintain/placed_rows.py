"""Message rows with their place in their columns, so that they can move to another file.

A message that was born in the lake has its offset, id, times and due time from its place: its segment names the file and the
rows in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Produced
from rmq_store.errors import DerivedTableDamaged
from rmq_store.lake.read.slice_reader import lake_message_ids
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import LakeTable

PLACE = ("topic", "broker_name", "queue_id", "queue_offset")
"""The columns by which rows of messages are sorted."""


class SegmentsByFile:
    """The segments of ``consumequeue`` by the file that they name, in the version of the handle: the table is read once."""

    def __init__(self, consumequeue: LakeTable) -> None:
        self.path = consumequeue.path
        rows = consumequeue.read(consumequeue.files().column("path").to_pylist())
        self._rows = rows.sort_by([("file", "ascending"), ("first_row", "ascending")]).combine_chunks()
        runs = pc.run_end_encode(self._rows.column("file").combine_chunks()) if rows.num_rows else None
        ends = [] if runs is None else runs.run_ends.to_pylist()
        self._bounds = dict(zip([] if runs is None else runs.values.to_pylist(), pairwise([0, *ends]), strict=True))

    def of(self, file: str) -> list[Produced]:
        """Those of one file, by row."""
        begin, end = self._bounds.get(file, (0, 0))
        return [
            tables.produced_from_row(row | {"count": row["end_offset"] - row["base_offset"]})
            for row in self._rows.slice(begin, end - begin).to_pylist()
        ]


def placed_rows(files: Mapping[str, pa.Table], segments: SegmentsByFile) -> tuple[pa.Table, list[Produced]]:
    """The message rows of the files with their place in their columns, sorted by it, and their segments in that order. Rows
    that are in no queue come last. Raises DerivedTableDamaged when the segments are not those of the rows."""
    by_file = {path: segments.of(path) for path in files}
    whole = pa.concat_tables([_filled(table, by_file[path]) for path, table in files.items()])
    order = pc.sort_indices(
        whole.select([*PLACE, "commit_log_offset"]).append_column("last", pc.is_null(whole.column("rel"))),
        [("last", "ascending"), *((name, "ascending") for name in (*PLACE, "commit_log_offset"))],
    )
    of_all = sorted(
        (one for several in by_file.values() for one in several), key=lambda one: (one.queue, one.base or 0)
    )
    placed, stored = sum(one.count for one in of_all), whole.num_rows - whole.column("rel").null_count
    if placed != stored:
        raise DerivedTableDamaged(
            f"the table {segments.path} has segments of {placed} messages in {len(files)} files that hold {stored}."
        )
    return whole.take(order), of_all


def _filled(rows: pa.Table, segments: Sequence[Produced]) -> pa.Table:
    """The rows of a file with the values that followed from their place."""
    counts = [segment.count for segment in segments]
    number = sum(counts)
    if [segment.first_row for segment in segments] != np.cumsum([0, *counts])[:-1].tolist() or number > rows.num_rows:
        raise DerivedTableDamaged(f"the segments of a file with {rows.num_rows} rows do not follow one another.")

    def of_rows(values: Sequence[int | None]) -> pa.Array:
        each = pa.array(values, pa.int64()).take(pa.array(np.repeat(np.arange(len(values)), counts)))
        return pa.concat_arrays([each, pa.nulls(rows.num_rows - number, pa.int64())])

    bases = [(segment.base or 0) - segment.first_row for segment in segments]
    places = pc.add(of_rows(bases), pa.array(np.arange(rows.num_rows)))
    by_place: dict[str, pa.Array] = {
        "queue_offset": places,
        "commit_log_offset": rows.column("rel"),
        "offset_msg_id": _ids(rows),
        "store_timestamp": of_rows([segment.max_store_timestamp for segment in segments]),
        "deliver_at": of_rows([segment.deliver_at for segment in segments]),
    }
    for name, values in by_place.items():
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(index), pc.coalesce(rows.column(name), values))
    return rows


def _ids(rows: pa.Table) -> pa.ChunkedArray:
    """The ids of the rows; ``lake_message_id`` of those that are in a queue and have none."""
    stored = rows.column("offset_msg_id")
    lacking = pc.and_(pc.is_null(stored), pc.is_valid(rows.column("rel")))
    if not pc.any(lacking).as_py():
        return stored
    numbers = rows.column("rel").to_numpy()
    ids: npt.NDArray[Any] = np.full(rows.num_rows, None, dtype=object)
    keys = rows.select(["commit_id", "part"]).append_column("row", pa.array(np.arange(rows.num_rows)))
    for group in keys.filter(lacking).group_by(["commit_id", "part"]).aggregate([("row", "list")]).to_pylist():
        of_group = np.array(group["row_list"])
        own = lake_message_ids(group["commit_id"], group["part"], numbers[of_group].astype(np.int64))
        ids[of_group] = own.to_numpy(zero_copy_only=False)
    return pc.coalesce(stored, pa.array(ids, pa.string()))
