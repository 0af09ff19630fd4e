"""Every file that the log of a table names is in the store, with the size and the rows that the log says.

One listing for each table shows the sizes. Then the end of each file is read, its footer: one request in S3, several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.errors import RmqError
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.read.open_files import end_of
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore

Progress = Callable[[int, int], None]
"""Called with the number of files whose ends have been read, and of all of a shard."""

_PARALLEL_READS = 32
_EVERY = 1000

_COLUMNS: Mapping[str, frozenset[str]] = {
    "msg": frozenset({"rel", "body"}),
    "archive": frozenset({"rel", "body"}),
    "outcome": frozenset({"commit_id", "outcome"}),
    "key": frozenset({"commit_id", "key_hash"}),
    "ctl": frozenset({"commit_id", "action", "produced"}),
    "consumequeue": frozenset({"commit_id", "first_row", "end_offset"}),
    "offsets": frozenset({"commit_id", "from_offset", "to_offset"}),
    "commits": frozenset({"commit_id", "action", "produced"}),
}
"""Columns that the files of a kind of the commit log, or of a derived table, have and those of the others lack."""


class _File(NamedTuple):
    """A live file, by the log."""

    table: str
    path: str
    """In the folder of the table."""
    kind: str
    """Of the commit log; the table for a derived one."""
    size: int
    rows: int | None

    @property
    def place(self) -> str:
        return f"{self.table}/{self.path}"


def files(store: LakeStore, progress: Progress | None = None) -> Iterator[Finding]:
    """Files that are missing, have another size, cannot be read, or hold other rows than the log says."""
    for shard in store.shards():
        live: list[_File] = []
        for name in ("commitlog", *(kind.name for kind in KINDS)):
            try:
                table: LakeTable = getattr(shard, name)
                live += _live(name, table)
                sizes = dict(store.root.list(table.path))
            except (RmqError, OSError) as error:
                yield Finding(shard=shard.name, problem=Problem.NOT_AUDITED, file=name, detail=f"files: {error}")
                continue
            for file in [file for file in live if file.table == name]:
                if finding := _stored(shard, file, sizes.get(f"{shard.name}/{file.place}")):
                    live.remove(file)
                    yield finding
        yield from _ends(store.root, shard, live, progress)


def _live(name: str, table: LakeTable) -> list[_File]:
    index = table.files()
    kinds = index.column("partition.kind").to_pylist() if name == "commitlog" else [name] * index.num_rows
    columns = (index.column(column).to_pylist() for column in ("path", "size_bytes", "num_records"))
    paths, sizes, rows = columns
    return [_File(name, *values) for values in zip(paths, kinds, sizes, rows, strict=True)]


def _stored(shard: Shard, file: _File, size: int | None) -> Finding | None:
    if size is None:
        return Finding(shard=shard.name, problem=Problem.FILE_MISSING, file=file.place)
    if size != file.size:
        detail = f"{size} bytes, by the log {file.size}"
        return Finding(shard=shard.name, problem=Problem.FILE_SIZE_DIFFERS, file=file.place, detail=detail)
    return None


def _ends(root: Root, shard: Shard, live: list[_File], progress: Progress | None) -> Iterator[Finding]:
    read = partial(_end, root, shard.name)
    with ThreadPoolExecutor(1 if root.is_local else _PARALLEL_READS) as pool:
        for number, finding in enumerate(pool.map(read, live), 1):
            if finding:
                yield finding
            if progress and (number % _EVERY == 0 or number == len(live)):
                progress(number, len(live))


def _end(root: Root, shard: str, file: _File) -> Finding | None:
    """What the footer of a file shows."""
    report: Callable[..., Finding] = partial(Finding, shard=shard, file=file.place)
    try:
        metadata, _, _ = end_of(root, f"{shard}/{file.place}")
        columns = _columns(metadata)
    except (RmqError, OSError, pa.ArrowException) as error:
        return report(problem=Problem.FILE_UNREADABLE, detail=str(error))
    if missing := _COLUMNS.get(file.kind, frozenset()).difference(columns):
        return report(problem=Problem.FILE_OF_ANOTHER_TABLE, detail=f"no column {', '.join(sorted(missing))}")
    if metadata.num_rows != file.rows:
        detail = f"{metadata.num_rows} rows, by the log {file.rows}"
        return report(problem=Problem.FILE_ROWS_DIFFER, detail=detail)
    return None


def _columns(metadata: pq.FileMetaData) -> set[str]:
    """The names of the columns. Its ``schema`` would tell them too, but keeps the whole footer in memory until a collection."""
    if not metadata.num_row_groups:
        return set()
    group = metadata.row_group(0)
    return {group.column(index).path_in_schema.partition(".")[0] for index in range(group.num_columns)}
