"""Reads exactly the rows of a slice from its Parquet file: its row groups, its rows, its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData
from rmq_store.lake import tables
from rmq_store.lake.object_store import Root
from rmq_store.store import lake_message_id

BATCH_ROWS = 16_384
MESSAGE_COLUMNS = [*(f.name for f in tables.RECORD), *(f.name for f in tables.PAYLOAD)]


class SliceReader:
    """Reads the rows of one slice from its file."""

    def __init__(self, root: Root, table: str, slice_: Slice) -> None:
        self._slice = slice_
        filesystem, base = root.filesystem()
        self._path = f"{base}/{table}/{slice_.file}"
        self._file = pq.ParquetFile(
            filesystem.open_input_file(self._path), metadata=_footer(root, self._path), pre_buffer=not root.is_local
        )
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])

    def batches(self, columns: Sequence[str] | None) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """(queue offsets, rows) of the slice, in order, at most BATCH_ROWS a time. ``columns`` None: all of a message."""
        first, last = self._slice.first_row, self._slice.first_row + len(self._slice)
        groups = self._groups(first, last)
        wanted = self._stored(columns)
        row = int(self._starts[groups[0]])
        expected = self._slice.first_rel
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=["rel", *wanted]):
            begin, end = max(first - row, 0), min(last - row, batch.num_rows)
            row += batch.num_rows
            if begin >= end:
                continue
            part = batch.slice(begin, end - begin)
            rel = part.column("rel").to_numpy(zero_copy_only=False)
            if rel[0] != expected or rel[-1] - rel[0] != len(rel) - 1 or (np.diff(rel) != 1).any():
                raise BadData(f"{self._path}: rows of {self._slice.queue} are not contiguous from rel {expected} on")
            expected += len(rel)
            yield rel - self._slice.first_rel + self._slice.begin, part.select(wanted)
        if expected != self._slice.first_rel + len(self._slice):
            raise BadData(f"{self._path} ends before offset {self._slice.end} of {self._slice.queue}")

    def rows(self, offsets: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some offsets, which ascend. Only the row groups that hold them are read, a batch at a time."""
        rows = offsets - self._slice.begin + self._slice.first_row
        group_of = np.searchsorted(self._starts, rows, side="right") - 1
        groups, place = np.unique(group_of, return_inverse=True)
        before = np.cumsum([0, *np.diff(self._starts)[groups]])
        rows += before[place] - self._starts[group_of]
        wanted, found, row = self._stored(columns), [], 0
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=groups.tolist(), columns=wanted):
            begin, end = np.searchsorted(rows, [row, row + batch.num_rows])
            if begin < end:
                found.append(batch.take(pa.array(rows[begin:end] - row)))
            row += batch.num_rows
        table = pa.Table.from_batches(found)
        return self.with_ids(table, offsets) if "offset_msg_id" in table.column_names else table

    def with_ids(self, table: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
        """The rows with the ids that follow from their place, where they were born in the lake."""
        ids = table.column("offset_msg_id")
        if not ids.null_count:
            return table
        rows = (offsets - self._slice.begin + self._slice.first_row).tolist()
        own = pa.array([lake_message_id(self._slice.commit_id, self._slice.part, row) for row in rows], pa.string())
        return table.set_column(table.column_names.index("offset_msg_id"), "offset_msg_id", pc.coalesce(ids, own))

    def _groups(self, first: int, last: int) -> list[int]:
        begin = int(np.searchsorted(self._starts, first, side="right")) - 1
        end = int(np.searchsorted(self._starts, last, side="left"))
        if end > len(self._starts) - 1:
            raise BadData(f"{self._path} has fewer rows than its segment of {self._slice.queue} says")
        return list(range(begin, end))

    def _stored(self, columns: Sequence[str] | None) -> list[str]:
        names = set(self._file.schema_arrow.names)
        return [name for name in (MESSAGE_COLUMNS if columns is None else columns) if name in names]


@lru_cache(maxsize=256)
def _footer(root: Root, path: str) -> pq.FileMetaData:
    """A file never changes, and one file is read slice by slice."""
    filesystem, _ = root.filesystem()
    with filesystem.open_input_file(path) as source:
        return pq.read_metadata(source)
