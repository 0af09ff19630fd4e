"""Reads exactly the rows and columns of a slice from its Parquet file.

Many columns of a message have one value in all rows of a queue's row groups (topic, broker, hosts, flags). The footer
shows that, and such a column is not read but made, once per slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import lake_message_id
from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData, MissingFile
from rmq_store.lake.read.open_files import SEVERAL, OpenFiles
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root

BATCH_ROWS = 16_384
MESSAGE_COLUMNS = [*(f.name for f in tables.RECORD), *(f.name for f in tables.PAYLOAD)]


class SliceReader:
    """Reads the rows of one slice from its file. ``files``: those of the task, which its slices share; None: its own.

    Raises MissingFile when the file is gone, BadData when it is damaged or does not have the rows of its segment.
    """

    def __init__(self, root: Root, table: str, slice_: Slice, files: OpenFiles | None = None) -> None:
        self._slice = slice_
        self._root = root
        self._table = table
        self._path = f"{table}/{slice_.file}"
        self._files = files or OpenFiles(root)
        with self._explained():
            self._footer = self._files.footer(self._path)
        self._starts = self._footer.starts

    def batches(
        self, columns: Sequence[str] | None, most: int = BATCH_ROWS
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """(queue offsets, rows) of the slice, in order, at most ``most`` rows at a time. ``columns`` None: all of a message."""
        first = self._slice.first_row
        names = self._stored(columns)
        expected = first
        for groups in self._whole_or_shared():
            constant = self._constants(groups, names, min(most, len(self._slice)))
            read = ["rel", *(name for name in names if name not in constant)]
            for part in self._read(groups, read, most):
                rel = part.column(0).to_numpy(zero_copy_only=False)
                if rel[0] != expected or rel[-1] - rel[0] != len(rel) - 1 or (np.diff(rel) != 1).any():
                    raise BadData(
                        f"{self._path}: rows of {self._slice.queue} are not contiguous from rel {expected} on"
                    )
                expected += len(rel)
                yield rel - first + self._slice.begin, _joined(part, constant, names)
        if expected != first + len(self._slice):
            raise BadData(f"{self._path} ends before offset {self._slice.end} of {self._slice.queue}")

    def rows(self, offsets: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some offsets, which ascend. Only the row groups that hold them are read, one at a time."""
        rows = offsets - self._slice.begin + self._slice.first_row
        groups, firsts = np.unique(np.searchsorted(self._starts, rows, side="right") - 1, return_index=True)
        names = self._stored(columns)
        parts = [
            self._rows_of(group, of_group, names)
            for group, of_group in zip(groups.tolist(), np.split(rows, firsts[1:]), strict=True)
        ]
        table = pa.concat_tables(parts)
        return self.with_ids(table, offsets) if "offset_msg_id" in names else table

    def _rows_of(self, group: int, rows: npt.NDArray[np.int64], names: Sequence[str]) -> pa.Table:
        """Some rows of a row group, by their numbers in the file."""
        columns = self._constants([group], names, len(rows))
        if read := [name for name in names if name not in columns]:
            shared = not self._has_whole(group)
            with self._explained():
                table = self._files.row_group(self._path, group, read, shared=shared)
            # The names of properties stay dictionary-encoded until the rows are chosen.
            chosen = _plain(table.take(pa.array(rows - self._starts[group])))
            columns |= {name: chosen.column(name) for name in read}
        return pa.table({name: columns[name] for name in names})

    def with_ids(self, table: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
        """The rows, with the ids of those that were born in the lake: these follow from their place."""
        ids = table.column("offset_msg_id")
        if not ids.null_count:
            return table
        rows = (offsets - self._slice.begin + self._slice.first_row).tolist()
        own = pa.array([lake_message_id(self._slice.commit_id, self._slice.part, row) for row in rows], pa.string())
        return table.set_column(table.column_names.index("offset_msg_id"), "offset_msg_id", pc.coalesce(ids, own))

    def _read(self, groups: list[int], columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        """The slice's rows in some row groups, which it has whole or which is one that it shares."""
        [group, *_] = groups
        with self._explained():
            if self._has_whole(group):
                yield from self._files.batches(self._path, groups, columns, most)
            else:
                begin, end = self._part_of(group)
                table = self._files.row_group(self._path, group, columns, shared=True)
                yield from _plain(table.slice(begin, end - begin)).to_batches(max_chunksize=most)

    def _whole_or_shared(self) -> Iterator[list[int]]:
        """The slice's row groups in order: neighbours of which it has every row together, others one by one."""
        first, last = self._slice.first_row, self._slice.first_row + len(self._slice)
        for is_whole, neighbours in groupby(self._groups(first, last), key=self._has_whole):
            groups = list(neighbours)
            yield from [groups] if is_whole else [[group] for group in groups]

    def _has_whole(self, group: int) -> bool:
        """Whether all rows of the row group are of this slice."""
        return self._part_of(group) == (0, int(self._starts[group + 1] - self._starts[group]))

    def _part_of(self, group: int) -> tuple[int, int]:
        """The rows ``[begin, end)`` of the row group that are of this slice."""
        start, end = int(self._starts[group]), int(self._starts[group + 1])
        first, last = self._slice.first_row, self._slice.first_row + len(self._slice)
        return max(first - start, 0), min(last, end) - start

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
        constants = {}
        for name in columns:
            field = self._footer.schema.field(name)
            if pa.types.is_nested(field.type):
                continue
            values = {self._footer.only_value(group, name) for group in groups}
            if len(values) == 1 and (value := values.pop()) is not SEVERAL:
                constants[name] = pa.repeat(pa.scalar(value, field.type), rows)
        return constants


def _is_damage(error: Exception) -> bool:
    """Whether the bytes are wrong, so that reading them again would not help. Arrow raises ArrowInvalid then, or, inside a
    data page, an OSError that is neither the operating system's nor S3's."""
    return not isinstance(error, OSError) or (error.errno is None and "AWS Error" not in str(error))


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
