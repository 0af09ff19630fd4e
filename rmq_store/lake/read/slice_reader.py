"""Reads exactly the rows and columns of a slice from its Parquet file.

Many columns of a message have one value in all rows of a queue's row groups (topic, broker, hosts, flags). The footer
shows that, and such a column is not read but made, once per slice. So are the offset, id and times of messages that were
born in the lake, until a compaction writes them into the rows.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.commit.ctl import lake_message_id
from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData, MissingFile, clause
from rmq_store.lake.read.open_files import SEVERAL, OpenFiles
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root

BATCH_ROWS = 16_384
Offsets: TypeAlias = npt.NDArray[np.int64]
_OFFSET, _ROW = "queue_offset", "rel"
_ROW_DIGITS = 16
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
        self._check_place()

    def batches(
        self, columns: Sequence[str] | None, most: int = BATCH_ROWS
    ) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
        """(queue offsets, rows) of the slice, in order, at most ``most`` rows at a time. ``columns`` None: all of a message."""
        names = self._stored(columns)
        expected = self._slice.begin
        for groups in self._whole_or_shared():
            constant = self._constants(groups, names, min(most, len(self._slice)))
            order = self._order(groups)
            read = [order, *(name for name in names if name not in constant and name != order)]
            for part in self._read(groups, read, most):
                numbers = part.column(0).to_numpy(zero_copy_only=False)
                offsets = numbers + self._base if order == _ROW else numbers
                if (
                    offsets[0] != expected
                    or offsets[-1] - offsets[0] != len(offsets) - 1
                    or (np.diff(offsets) != 1).any()
                ):
                    raise BadData(
                        f"{self._path}: the rows of {self._slice.queue} are not contiguous from offset {expected} on"
                    )
                expected += len(offsets)
                yield offsets, _joined(part, constant | self._of_place(groups, names, offsets), names)
        if expected != self._slice.end:
            raise BadData(f"{self._path} ends before offset {self._slice.end} of {self._slice.queue}")

    def rows(self, offsets: Offsets, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some offsets, which ascend. Only the row groups that hold them are read, one at a time."""
        rows = offsets - self._slice.begin + self._slice.first_row
        groups, firsts = np.unique(np.searchsorted(self._starts, rows, side="right") - 1, return_index=True)
        names = self._stored(columns)
        parts = [
            self._rows_of(group, of_group, names)
            for group, of_group in zip(groups.tolist(), np.split(rows, firsts[1:]), strict=True)
        ]
        return pa.concat_tables(parts)

    def _check_place(self) -> None:
        """Raise BadData where the footer shows that the rows are of another queue or commit than the segment: another file is
        in the place of this one. The audit compares the rows themselves."""
        slice_ = self._slice
        queue = slice_.queue
        of_queue = {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
        # Rows that have their offset show by it whether they are the right ones, and a compaction keeps their commit.
        of_commit = {"commit_id": slice_.commit_id, "part": slice_.part}
        for group in self._groups(slice_.first_row, slice_.first_row + len(slice_)):
            place = of_queue | of_commit if self._order([group]) == _ROW else of_queue
            for column, expected in place.items():
                if (value := self._footer.only_value(group, column)) not in (expected, SEVERAL):
                    raise BadData(
                        f"{self._path} is not the file of offsets [{slice_.begin}, {slice_.end}) of {queue}: {column} is "
                        f"{value!r}, not {expected!r}. Another file was put in its place: restore it from a backup of the store"
                    )

    @property
    def _base(self) -> int:
        """The offset of row 0, if the slice began there."""
        return self._slice.begin - self._slice.first_row

    def _order(self, groups: Sequence[int]) -> str:
        """The column that shows the order of the rows. A message that was born in the lake has no offset in its row before a
        compaction."""
        return _ROW if self._is_empty(groups, _OFFSET) else _OFFSET

    def _is_empty(self, groups: Sequence[int], column: str) -> bool:
        return all(self._footer.only_value(group, column) is None for group in groups)

    def _of_place(self, groups: Sequence[int], names: Sequence[str], offsets: Offsets) -> dict[str, pa.Array]:
        """The columns that a message born in the lake has by its place (``commit/ctl.py``), where the rows lack them."""
        if self._order(groups) != _ROW:
            return {}
        slice_, rows = self._slice, offsets - self._base
        make: Mapping[str, Callable[[], pa.Array]] = {
            _OFFSET: lambda: pa.array(offsets),
            "commit_log_offset": lambda: pa.array(rows),
            "offset_msg_id": lambda: lake_message_ids(slice_.commit_id, slice_.part, rows),
            "store_timestamp": lambda: pa.repeat(pa.scalar(slice_.store_timestamp, pa.int64()), len(rows)),
        }
        return {name: make[name]() for name in names if name in make and self._is_empty(groups, name)}

    def _rows_of(self, group: int, rows: Offsets, names: Sequence[str]) -> pa.Table:
        """Some rows of a row group, by their numbers in the file."""
        columns = self._constants([group], names, len(rows))
        if read := [name for name in names if name not in columns]:
            shared = not self._has_whole(group)
            with self._explained():
                table = self._files.row_group(self._path, group, read, shared=shared)
            # The names of properties stay dictionary-encoded until the rows are chosen.
            chosen = _plain(table.take(pa.array(rows - self._starts[group])))
            columns |= {name: chosen.column(name) for name in read}
        columns |= self._of_place([group], names, rows + self._base)
        return pa.table({name: columns[name] for name in names})

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
            raise BadData(f"{segment} is damaged: {clause(error)}. Restore it from a backup of the store") from error

    def _what_happened(self) -> str:
        from rmq_store.lake.table.delta_table import LakeTable  # a task needs it only after an error

        table = LakeTable.open(self._root, self._table, tables.COMMITLOG_LAYOUT)
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


def lake_message_ids(commit_id: str, part: int, rows: Offsets) -> pa.Array:
    """``lake_message_id`` of many rows of a file."""
    prefix = lake_message_id(commit_id, part, 0)[:-_ROW_DIGITS].encode()
    digits = np.frombuffer(hexlify(rows.astype(">u8").tobytes()).upper(), np.uint8).reshape(-1, _ROW_DIGITS)
    ids = np.concatenate([np.tile(np.frombuffer(prefix, np.uint8), (len(rows), 1)), digits], axis=1)
    ends = np.arange(len(rows) + 1, dtype=np.int32) * ids.shape[1]
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(ends), pa.py_buffer(ids.tobytes()))


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


def slices_by_file(slices: Iterable[Slice]) -> list[list[Slice]]:
    """The slices of each file, in their order."""
    of_file: dict[str, list[Slice]] = {}
    for slice_ in slices:
        of_file.setdefault(slice_.file, []).append(slice_)
    return list(of_file.values())
