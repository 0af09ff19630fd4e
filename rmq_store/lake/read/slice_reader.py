"""Reads exactly the rows and columns of a slice from its Parquet file.

Many columns of a message have one value in all rows of a queue's row groups (topic, broker, hosts, flags). The footer
shows that, and such a column is not read but made, once per slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.commit.ctl import lake_message_id
from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData, MissingFile
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root

BATCH_ROWS = 16_384
_NAMES_OF_PROPERTIES = ("properties.key_value.key",)
MESSAGE_COLUMNS = [*(f.name for f in tables.RECORD), *(f.name for f in tables.PAYLOAD)]


class SliceReader:
    """Reads the rows of one slice from its file.

    Raises MissingFile when the file is gone, BadData when it is damaged or does not have the rows of its segment.
    """

    def __init__(self, root: Root, table: str, slice_: Slice) -> None:
        self._slice = slice_
        self._root = root
        self._table = table
        self._path = f"{root.filesystem()[1]}/{table}/{slice_.file}"
        with self._explained():
            self._footer = _footer(root, self._path)
        self._starts = self._footer.starts

    def batches(
        self, columns: Sequence[str] | None, most: int = BATCH_ROWS
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """(queue offsets, rows) of the slice, in order, at most ``most`` rows at a time. ``columns`` None: all of a message."""
        first, last = self._slice.first_row, self._slice.first_row + len(self._slice)
        groups = self._groups(first, last)
        names = self._stored(columns)
        constant = self._constants(groups, names, min(most, len(self._slice)))
        read = ["rel", *(name for name in names if name not in constant)]
        row = int(self._starts[groups[0]])
        expected = first
        for batch in self._read(groups, read, most):
            begin, end = max(first - row, 0), min(last - row, batch.num_rows)
            row += batch.num_rows
            if begin >= end:
                continue
            part = batch.slice(begin, end - begin)
            rel = part.column(0).to_numpy(zero_copy_only=False)
            if rel[0] != expected or rel[-1] - rel[0] != len(rel) - 1 or (np.diff(rel) != 1).any():
                raise BadData(f"{self._path}: rows of {self._slice.queue} are not contiguous from rel {expected} on")
            expected += len(rel)
            yield rel - first + self._slice.begin, _joined(part, constant, names)
        if expected != last:
            raise BadData(f"{self._path} ends before offset {self._slice.end} of {self._slice.queue}")

    def rows(self, offsets: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some offsets, which ascend. Only the row groups that hold them are read, one at a time."""
        rows = offsets - self._slice.begin + self._slice.first_row
        groups, firsts = np.unique(np.searchsorted(self._starts, rows, side="right") - 1, return_index=True)
        names = self._stored(columns)
        constant = self._constants(groups.tolist(), names, len(rows))
        read = [name for name in names if name not in constant]
        # A few rows of many: the names of properties stay dictionary-encoded until the rows are chosen.
        parts: list[pa.Table] = []
        with self._explained():
            file = self._open(_NAMES_OF_PROPERTIES)
            for group, of_group in zip(groups.tolist(), np.split(rows, firsts[1:]), strict=True) if read else ():
                table = file.read_row_group(group, columns=read, use_threads=False)
                parts.append(_plain(table.take(pa.array(of_group - self._starts[group]))))
        varying = {name: pa.chunked_array([part.column(name).chunk(0) for part in parts]) for name in read}
        by_name = constant | varying
        table = pa.table({name: by_name[name] for name in names})
        return self.with_ids(table, offsets) if "offset_msg_id" in names else table

    def with_ids(self, table: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
        """The rows, with the ids of those that were born in the lake: these follow from their place."""
        ids = table.column("offset_msg_id")
        if not ids.null_count:
            return table
        rows = (offsets - self._slice.begin + self._slice.first_row).tolist()
        own = pa.array([lake_message_id(self._slice.commit_id, self._slice.part, row) for row in rows], pa.string())
        return table.set_column(table.column_names.index("offset_msg_id"), "offset_msg_id", pc.coalesce(ids, own))

    def _read(self, groups: list[int], columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        # A task has one core; several cores run several tasks.
        with self._explained():
            yield from self._open().iter_batches(most, row_groups=groups, columns=list(columns), use_threads=False)

    def _open(self, as_numbers: Sequence[str] = ()) -> pq.ParquetFile:
        """The file; the columns ``as_numbers`` come dictionary-encoded."""
        source = self._root.filesystem()[0].open_input_file(self._path)
        return pq.ParquetFile(
            source,
            metadata=self._footer.metadata,
            pre_buffer=not self._root.is_local,
            read_dictionary=list(as_numbers),
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of reading, with the file and the segment."""
        slice_ = self._slice
        segment = f"{self._path}, the file of offsets [{slice_.begin}, {slice_.end}) of {slice_.queue},"
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFile(f"{segment} {self._what_happened()}") from error
        except (pa.ArrowInvalid, OSError) as error:
            if not _is_damage(error):
                raise
            raise BadData(f"{segment} is damaged: {error}. Restore it from a backup of the store") from error

    def _what_happened(self) -> str:
        from rmq_store.lake.table.delta_table import LakeTable  # a task needs it only after an error

        table = LakeTable.open(self._root, self._table, tables.COMMITLOG, tables.PARTITION_BY)
        if table.is_live(self._slice.file):
            return (
                "was removed from storage; the table still lists it, so neither a window nor the Delta log did it. "
                "Restore it from a backup of the store"
            )
        return (
            "is gone: another tool rewrote the table (OPTIMIZE, DELETE or a restore) and deleted the file (VACUUM), but "
            "the segments of the consume queues still name it. Restore the file from a backup of the store, and do not "
            "run OPTIMIZE or VACUUM on these tables (docs/sql.md); 'rmq audit' lists what else is gone"
        )

    def _groups(self, first: int, last: int) -> list[int]:
        begin = int(np.searchsorted(self._starts, first, side="right")) - 1
        end = int(np.searchsorted(self._starts, last, side="left"))
        if end > len(self._starts) - 1:
            raise BadData(
                f"{self._path} has fewer rows than its segment of {self._slice.queue}. Restore it from a backup"
            )
        return list(range(begin, end))

    def _stored(self, columns: Sequence[str] | None) -> list[str]:
        names = set(self._footer.schema.names)
        return [name for name in (MESSAGE_COLUMNS if columns is None else columns) if name in names]

    def _constants(self, groups: Sequence[int], columns: Sequence[str], rows: int) -> dict[str, pa.Array]:
        """The columns with one value, or none at all, in all rows of these row groups, as arrays of so many rows."""
        chunks = [self._footer.metadata.row_group(group) for group in groups]
        constants = {}
        for name in columns:
            field = self._footer.schema.field(name)
            if pa.types.is_nested(field.type):
                continue
            index = self._footer.leaves[name]
            values = {_only_value(group.column(index)) for group in chunks}
            if len(values) == 1 and (value := values.pop()) is not _SEVERAL:
                constants[name] = pa.repeat(pa.scalar(value, field.type), rows)
        return constants


def _is_damage(error: Exception) -> bool:
    """Whether the bytes are wrong, so that reading them again would not help. Arrow raises ArrowInvalid then, or, inside a
    data page, an OSError that is neither the operating system's nor S3's."""
    return not isinstance(error, OSError) or (error.errno is None and "AWS Error" not in str(error))


_SEVERAL = object()


def _only_value(chunk: pq.ColumnChunkMetaData) -> Any:
    """The value of every row of a column chunk, None for nulls only, _SEVERAL when its statistics do not show one."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return _SEVERAL
    if statistics.null_count == chunk.num_values:
        return None
    if statistics.null_count or not statistics.has_min_max or statistics.min != statistics.max:
        return _SEVERAL
    return statistics.min


def _plain(table: pa.Table) -> pa.Table:
    """The table with the names of properties as texts."""
    if "properties" not in table.column_names:
        return table
    maps = table.column("properties").combine_chunks()
    names = maps.keys.dictionary_decode() if pa.types.is_dictionary(maps.keys.type) else maps.keys
    plain = pa.MapArray.from_arrays(maps.offsets, names, maps.items, mask=maps.is_null() if maps.null_count else None)
    return table.set_column(table.column_names.index("properties"), "properties", plain)


def _joined(part: pa.RecordBatch, constant: dict[str, pa.Array], names: Sequence[str]) -> pa.RecordBatch:
    if not constant:
        return part.select(names)
    rows = part.num_rows
    arrays = [constant[name].slice(0, rows) if name in constant else part.column(name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


@dataclass(frozen=True, slots=True)
class _Footer:
    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: npt.NDArray[np.int64]
    """The first row of each row group, and last the number of rows."""
    leaves: Mapping[str, int]
    """The index of each flat column in ``metadata``."""


@lru_cache(maxsize=256)
def _footer(root: Root, path: str) -> _Footer:
    """A file never changes, and one file is read slice by slice."""
    filesystem, _ = root.filesystem()
    with filesystem.open_input_file(path) as source:
        metadata = pq.read_metadata(source)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    leaves = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return _Footer(metadata, metadata.schema.to_arrow_schema(), starts, leaves)
