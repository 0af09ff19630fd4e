"""Every file that the log of a table names is in the store, with the size and the rows that the log says.

One listing for each table shows the sizes. Then the end of each file is read, its footer: one request in S3, several at once.
Files with the records of commits are read whole, compared with the digests in their names, and each record with its action.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.errors import RmqError
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.records import WrongRecord, wrong_records
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.read.open_files import end_of
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.digest_name import change_of
from rmq_store.lake.table.live_files import widest_bounds
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import day_of
from rmq_store.utils.progress import Progress

_FOOTERS_AT_ONCE = 32
_EVERY = 1000
_NULL_COUNT = "null_count."

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
    log: pa.Table
    """The row of ``LakeTable.files``."""
    version: int | None
    """Of the entry that added it; None where a checkpoint has it."""

    @property
    def has_its_kind(self) -> bool:
        """Whether its folder is that of its kind. The log of a derived table names no kind."""
        return self.kind == self.table or self.path.startswith(f"kind={self.kind}/")

    @property
    def place(self) -> str:
        return f"{self.table}/{self.path}"


def files(store: LakeStore, progress: Progress | None = None) -> Iterator[Finding]:
    """Files that are missing, have another size, cannot be read, or hold other rows than the log says. ``progress`` counts the
    files of each shard."""
    for shard in store.shards():
        live: list[_File] = []
        for name in ("commitlog", *(kind.name for kind in KINDS)):
            try:
                table: LakeTable = getattr(shard, name)
                live += _live(name, table)
                sizes = dict(store.root.list(table.path))
                damage = table.log.checkpoint_damage()
            except (RmqError, OSError) as error:
                yield Finding(shard=shard.name, problem=Problem.NOT_AUDITED, file=name, detail=f"files: {error}")
                continue
            if damage:
                yield Finding(shard=shard.name, problem=Problem.CHECKPOINT_UNREADABLE, file=name, detail=damage)
            for path in table.log.view.files.hidden:
                detail = "of dataChange, false in an entry that removes no file"
                yield Finding(shard=shard.name, problem=Problem.STATISTICS_DIFFER, file=f"{name}/{path}", detail=detail)
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
    lines = (index.slice(number, 1) for number in range(index.num_rows))
    added = {file.path: file.version for file in table.log.view.files.recent}
    versions = map(added.get, paths)
    return [_File(name, *values) for values in zip(paths, kinds, sizes, rows, lines, versions, strict=True)]


def _stored(shard: Shard, file: _File, size: int | None) -> Finding | None:
    if size is None:
        return Finding(shard=shard.name, problem=Problem.FILE_MISSING, file=file.place)
    if size != file.size:
        detail = f"{size} bytes, by the log {file.size}"
        return Finding(shard=shard.name, problem=Problem.FILE_SIZE_DIFFERS, file=file.place, detail=detail)
    if not file.has_its_kind:
        detail = f"by the log kind={file.kind}"
        return Finding(shard=shard.name, problem=Problem.FILE_OF_ANOTHER_KIND, file=file.place, detail=detail)
    return None


def _ends(root: Root, shard: Shard, live: list[_File], progress: Progress | None) -> Iterator[Finding]:
    read = partial(_end, root, shard.name)
    for number, findings in enumerate(in_parallel(root, read, live, _FOOTERS_AT_ONCE), 1):
        yield from findings
        if progress and (number % _EVERY == 0 or number == len(live)):
            progress(number, len(live))


def _end(root: Root, shard: str, file: _File) -> list[Finding]:
    """What the footer of a file shows, and, where a file of records is as it was written, what these show."""
    report: Callable[..., Finding] = partial(Finding, shard=shard, file=file.place)
    try:
        if file.kind != "ctl":
            metadata, _, _ = end_of(root, f"{shard}/{file.place}")
            return _of_footer(report, file, metadata)
        content = root.read(f"{shard}/{file.place}")  # small, and nothing else has its digest
        metadata, change = pq.read_metadata(pa.BufferReader(content)), change_of(file.path, content)
        findings = _of_footer(report, file, metadata, change)
        if any(finding.problem != Problem.STATISTICS_DIFFER for finding in findings):
            return findings
        rows = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (RmqError, OSError, pa.ArrowException) as error:
        return [report(problem=Problem.FILE_UNREADABLE, detail=str(error))]
    return [*findings, *(_of_record(report, wrong) for wrong in wrong_records(rows, file.version))]


def _of_record(report: Callable[..., Finding], wrong: WrongRecord) -> Finding:
    detail = f"the record of commit {wrong.commit_id}, action {wrong.action}, has {wrong.facts}"
    return report(problem=Problem.RECORD_NOT_VALID, group_name=wrong.group_name, detail=detail)


def _of_footer(
    report: Callable[..., Finding], file: _File, metadata: pq.FileMetaData, change: str | None = None
) -> list[Finding]:
    """``change``: as ``change_of``."""
    columns = _columns(metadata)
    if missing := _COLUMNS.get(file.kind, frozenset()).difference(columns):
        return [report(problem=Problem.FILE_OF_ANOTHER_TABLE, detail=f"no column {', '.join(sorted(missing))}")]
    if metadata.num_rows != file.rows:
        detail = f"{metadata.num_rows} rows, by the log {file.rows}"
        return [report(problem=Problem.FILE_ROWS_DIFFER, detail=detail)]
    if change:
        return [report(problem=Problem.FILE_CHANGED, detail=change)]
    bounds, nulls = _bounds(metadata)
    wrong = {column for column, pair in bounds.items() if not _contains(file.log, column, *pair)}
    absent = _absent(file.log, columns)
    nulls |= dict.fromkeys(absent, metadata.num_rows)
    wrong |= {column for column in absent if _has_bounds(file.log, column)}
    wrong |= {column for column, count in _null_counts(file.log).items() if nulls.get(column, count) != count}
    if not _is_of_its_day(file.log, bounds):
        wrong.add("store_day")
    if wrong:
        return [report(problem=Problem.STATISTICS_DIFFER, detail=f"of {', '.join(sorted(wrong))}")]
    return []


def _bounds(metadata: pq.FileMetaData) -> tuple[dict[str, tuple[Any, Any]], dict[str, int]]:
    """The least and the greatest value of each column of which all row groups have them, and the number of its nulls."""
    bounds: dict[str, tuple[Any, Any]] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    uncounted: set[str] = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            name, statistics = column.path_in_schema, column.statistics
            if statistics is None or not statistics.has_null_count:
                uncounted.add(name)
            else:
                nulls[name] = nulls.get(name, 0) + statistics.null_count
            if statistics is None or not statistics.has_min_max:
                if statistics is None or statistics.null_count != column.num_values:
                    unknown.add(name)
                continue
            least, greatest = bounds.get(name, (statistics.min, statistics.max))
            bounds[name] = min(least, statistics.min), max(greatest, statistics.max)
    return (
        {name: pair for name, pair in bounds.items() if name not in unknown},
        {name: count for name, count in nulls.items() if name not in uncounted},
    )


def _absent(log: pa.Table, columns: Collection[str]) -> set[str]:
    """The columns with statistics in the log that the file does not have: all their values are null."""
    return {name.removeprefix(_NULL_COUNT) for name in log.column_names if name.startswith(_NULL_COUNT)} - set(columns)


def _has_bounds(log: pa.Table, column: str) -> bool:
    bounds = {f"min.{column}", f"max.{column}"}.intersection(log.column_names)
    return any(log.column(name)[0].is_valid for name in bounds)


def _null_counts(log: pa.Table) -> dict[str, int | None]:
    """How many nulls a file has by the log, in each column with statistics; None: it does not say. Engines leave a file out in
    whose column all are null, whatever the least and the greatest value are."""
    names = [name for name in log.column_names if name.startswith(_NULL_COUNT)]
    return {name.removeprefix(_NULL_COUNT): log.column(name)[0].as_py() for name in names}


def _contains(log: pa.Table, column: str, least: Any, greatest: Any) -> bool:
    """Whether the log says something of a column of a file (``widest_bounds``) that allows these values; it cuts long texts.
    Where it says nothing, a reader of another tool that looks for a value may leave the file out."""
    if f"min.{column}" not in log.column_names:
        return True
    low, high = log.column(f"min.{column}")[0].as_py(), log.column(f"max.{column}")[0].as_py()
    if None in (low, high):
        return False
    lowest, highest = widest_bounds(log.schema.field(f"min.{column}").type)
    is_said = (low != lowest or least == lowest) and (high != highest or greatest == highest)
    return is_said and bool(low <= least and greatest <= high)


def _is_of_its_day(log: pa.Table, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether by the log a file is of the UTC day of its rows: of commits, or of messages that an import or a compaction wrote.
    By it the commits of a request are found, so that it is not done twice. Every file has a day."""
    day = log.column("partition.store_day")[0].as_py()
    return day is not None and all(day_of(ms) == str(day) for ms in bounds.get("store_timestamp", ()))


def _columns(metadata: pq.FileMetaData) -> set[str]:
    """The names of the columns. Its ``schema`` would tell them too, but keeps the whole footer in memory until a collection."""
    if not metadata.num_row_groups:
        return set()
    group = metadata.row_group(0)
    return {group.column(index).path_in_schema.partition(".")[0] for index in range(group.num_columns)}
