"""The data files that a task reads: each is opened once, and a row group that several slices share is read once.

A data file never changes, so its footer is kept in the process, for the next tasks and windows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.lake.table.object_store import TAIL_BYTES, Root

_WHOLE_BYTES = 512 << 10
"""A file in S3 with no more is read by one request. pyarrow asks for the size of a file that it opens, known or not."""

KEPT_BYTES = 64 << 20
"""So many bytes of shared row groups are kept at most, and the last one in any case."""

_KEPT_FILES = 64
_KEPT_FOOTERS = 256
_NAMES_OF_PROPERTIES = "properties.key_value.key"

SEVERAL = object()
"""In place of the only value of a column that may have several."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What the end of a data file says of its content."""

    size: int
    """Size of the file in bytes."""
    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: npt.NDArray[np.int64]
    """The first row of each row group, and last the number of rows."""
    leaves: Mapping[str, int]
    """The index of each flat column in ``metadata``."""
    _only: dict[tuple[int, str], Any] = field(default_factory=dict)

    def only_value(self, group: int, column: str) -> Any:
        """The value of every row of a flat column in a row group, None for nulls only; SEVERAL when the statistics do not
        show one."""
        if (group, column) not in self._only:
            self._only[group, column] = _only_value(self.metadata.row_group(group).column(self.leaves[column]))
        return self._only[group, column]


class OpenFiles:
    """The data files that one thread has open. ``root``: where their paths begin.

    Reading raises FileNotFoundError for a file that is not there, StoreUnusable when the store does not answer, and
    ArrowInvalid or OSError for a damaged file.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._sources: dict[str, pa.NativeFile] = {}
        self._groups: dict[tuple[str, int, tuple[str, ...]], pa.Table] = {}
        self._bytes = 0

    def footer(self, path: str) -> Footer:
        footer = _FOOTERS.get((self._root, path))
        return footer or self._opened(path)

    def batches(self, path: str, groups: list[int], columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
        """All rows of neighbouring row groups, at most ``most`` at a time. Nothing of it is kept."""
        with self._root.reading(path):
            # A task has one core; several cores run several tasks.
            yield from self._parquet(path).iter_batches(
                most, row_groups=groups, columns=list(columns), use_threads=False
            )

    def row_group(self, path: str, group: int, columns: Sequence[str], *, shared: bool) -> pa.Table:
        """A row group; the names of properties are dictionary-encoded. ``shared``: other slices may need it too."""
        key = (path, group, tuple(columns))
        if rows := self._groups.pop(key, None):
            self._groups[key] = rows  # now the newest
            return rows
        with self._root.reading(path):
            file = self._parquet(path, dictionary=[_NAMES_OF_PROPERTIES])
            rows = file.read_row_group(group, columns=list(columns), use_threads=False)
        if shared:
            self._groups[key] = rows
            self._bytes += rows.nbytes
            while self._bytes > KEPT_BYTES and len(self._groups) > 1:
                self._bytes -= self._groups.pop(next(iter(self._groups))).nbytes
        return rows

    def _parquet(self, path: str, dictionary: Sequence[str] = ()) -> pq.ParquetFile:
        # Made for each use, which needs no request: a reader keeps the bytes that it fetched ahead.
        footer = self.footer(path)
        return pq.ParquetFile(
            self._source(path, footer),
            metadata=footer.metadata,
            pre_buffer=not self._root.is_local,
            read_dictionary=list(dictionary),
        )

    def _source(self, path: str, footer: Footer) -> pa.NativeFile:
        source = self._sources.pop(path, None)
        if source is None and footer.size <= (TAIL_BYTES if self._root.is_local else _WHOLE_BYTES):
            source = pa.BufferReader(self._root.read(path))
        elif source is None:
            source = self._root.open_file(path, footer.size)
        self._keep(path, source)
        return source

    def _opened(self, path: str) -> Footer:
        """The footer of a file that this process has not read before."""
        metadata, tail, size = end_of(self._root, path)
        if size == len(tail):
            self._keep(path, pa.BufferReader(tail))
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        footer = Footer(
            size=size,
            metadata=metadata,
            schema=metadata.schema.to_arrow_schema(),
            starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            leaves={metadata.schema.column(index).path: index for index in range(metadata.num_columns)},
        )
        _keep_footer((self._root, path), footer)
        return footer

    def _keep(self, path: str, source: pa.NativeFile) -> None:
        self._sources[path] = source  # now the newest
        if len(self._sources) > _KEPT_FILES:
            del self._sources[next(iter(self._sources))]


def end_of(root: Root, path: str) -> tuple[pq.FileMetaData, bytes, int]:
    """What the end of a data file says, the bytes that were read, from somewhere to its end, and its size. Raises as
    ``OpenFiles``."""
    tail, size = root.tail(path, TAIL_BYTES)
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < min(footer_bytes, size) and tail.endswith(b"PAR1"):
        tail = root.read(path, max(size - footer_bytes, 0), size)
    return pq.read_metadata(pa.BufferReader(tail)), tail, size


_FOOTERS: dict[tuple[Root, str], Footer] = {}
_KEEPING = threading.Lock()


def _keep_footer(key: tuple[Root, str], footer: Footer) -> None:
    with _KEEPING:
        _FOOTERS[key] = footer
        if len(_FOOTERS) > _KEPT_FOOTERS:
            del _FOOTERS[next(iter(_FOOTERS))]


def _only_value(chunk: pq.ColumnChunkMetaData) -> Any:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return SEVERAL
    if statistics.null_count == chunk.num_values:
        return None
    if statistics.null_count or not statistics.has_min_max or statistics.min != statistics.max:
        return SEVERAL
    return statistics.min
