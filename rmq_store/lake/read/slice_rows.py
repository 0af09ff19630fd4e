"""Reads the rows of many slices at once. Many slices have few rows, so each file is opened once, and each of its row groups is
read once for all slices that need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.consumer.pull import Slice
from rmq_store.errors import BadData
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import in_parallel


def rows_of_slices(root: Root, table: str, slices: Sequence[Slice], columns: Sequence[str]) -> pa.Table:
    """Some columns of the message rows of all slices, one slice after the other; a column that a file does not have is null.

    Raises MissingFile when a file is gone, BadData when it is damaged or does not have the rows of its segment.
    """
    by_file: dict[str, list[int]] = defaultdict(list)
    for number, slice_ in enumerate(slices):
        by_file[slice_.file].append(number)
    read = partial(_rows_of_file, root, table, columns=columns)
    of_files = [[slices[number] for number in numbers] for numbers in by_file.values()]
    schema = pa.schema([tables.MSG.field(name) for name in columns])
    rows = pa.concat_tables(in_parallel(root, read, of_files)).combine_chunks().cast(schema)
    return _in_order(rows, slices, [number for numbers in by_file.values() for number in numbers])


def _in_order(rows: pa.Table, slices: Sequence[Slice], numbers: Sequence[int]) -> pa.Table:
    """``numbers``: the slice of each run of rows."""
    if all(number < after for number, after in pairwise(numbers)):
        return rows
    ends = np.cumsum([len(slices[number]) for number in numbers])
    runs = {number: np.arange(end - len(slices[number]), end) for number, end in zip(numbers, ends, strict=True)}
    return rows.take(pa.array(np.concatenate([runs[number] for number in range(len(slices))])))


def _rows_of_file(root: Root, table: str, slices: Sequence[Slice], columns: Sequence[str]) -> pa.Table:
    """The rows of the slices, which are all of one file."""
    try:
        return _read(root, f"{table}/{slices[0].file}", slices, columns)
    except (OSError, pa.ArrowInvalid):
        # The reader of a slice says which segment cannot be read, and why.
        for slice_ in slices:
            SliceReader(root, table, slice_).rows(np.arange(slice_.begin, slice_.end), columns)
        raise


def _read(root: Root, path: str, slices: Sequence[Slice], columns: Sequence[str]) -> pa.Table:
    with root.reading(path), pq.ParquetFile(root.open_file(path), pre_buffer=not root.is_local) as file:
        metadata = file.metadata
        starts = np.cumsum([0, *(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))])
        for slice_ in slices:
            if slice_.first_row + len(slice_) > starts[-1]:
                raise BadData(f"{path} has fewer rows than its segment of {slice_.queue}. Restore it from a backup")
        firsts = np.array([slice_.first_row for slice_ in slices])
        lasts = firsts + [len(slice_) - 1 for slice_ in slices]
        bounds = np.searchsorted(starts, [firsts, lasts], side="right") - 1
        groups = sorted({group for first, last in bounds.T.tolist() for group in range(first, last + 1)})
        present = set(file.schema_arrow.names)
        names = [name for name in columns if name in present]
        rows = file.read_row_groups(groups, columns=names, use_threads=False)
    # The place of each row among those that were read: row groups that were not read do not count.
    sizes = np.diff(starts)[groups]
    before = starts[groups] - (np.cumsum(sizes) - sizes)
    numbers = np.concatenate([np.arange(first, last + 1) for first, last in zip(firsts, lasts, strict=True)])
    if len(groups) == 1:
        places = numbers - before[0]
    else:
        places = numbers - before[np.searchsorted(starts[groups], numbers, side="right") - 1]
    if len(places) != rows.num_rows or (np.diff(places) != 1).any():
        rows = rows.take(pa.array(places))
    absent = {name: pa.nulls(rows.num_rows, tables.MSG.field(name).type) for name in columns if name not in present}
    return pa.table({name: absent[name] if name in absent else rows.column(name) for name in columns})
