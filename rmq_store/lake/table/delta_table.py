"""One Delta table of a shard: its live files and their rows, and commits to it.

The table's log is read and written by ``delta_log.py``. The Delta library is not used for it: it finds the end of the log
again at every step (``docs/decisions/0011-own-log.md``).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cached_property, partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.commit.append import Verdict
from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import Positions
from rmq_store.errors import (
    BadData,
    MissingFile,
    OtherFormat,
    RmqError,
    StagedFileGone,
    StaleAttempt,
    clause,
)
from rmq_store.lake.table.delta_entry import (
    STATS_COLUMNS,
    LiveFile,
    entry_bytes,
    entry_name,
    may_write,
    protocol_action,
)
from rmq_store.lake.table.delta_log import LOG_FOLDER, Content, DeltaLog, LogCleaned, NoTable
from rmq_store.lake.table.file_cache import FileCache
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.lake.table.table_layout import TableLayout
from rmq_store.maintain.orphans import TOMBSTONE_AGE_MS
from rmq_store.utils.host import Host, epoch_ms, random_name

FRESH_MS = 2_000
"""The age of a view that a step of the same operation has just read."""
_CACHED_BYTES = 32 << 20
_LONGEST_CACHED = 4 << 20

CONFIGURATION = {
    # Only ``checkpoint.py`` removes entries, by its own rules.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 2 hours",
    # For so long a checkpoint records which files were removed, and when. This project's vacuum needs it, and another tool's
    # VACUUM with the table's own settings deletes no younger file, which a running window may have staged.
    "delta.deletedFileRetentionDuration": f"interval {TOMBSTONE_AGE_MS // 86_400_000} days",
}


class LakeTable:
    """A Delta table at ``<root>/<path>``."""

    def __init__(self, root: Root, path: str, layout: TableLayout) -> None:
        self.root = root
        self.path = path
        self.layout = layout
        self.log = DeltaLog(root, path, layout)
        self._cache = FileCache(_CACHED_BYTES, _LONGEST_CACHED)

    @property
    def id(self) -> str:
        """What the log says of which table it is: a UUID that was made with the table; "" where it has none."""
        return str((self.log.view.metadata or {}).get("id") or "")

    @classmethod
    def open(cls, root: Root, path: str, layout: TableLayout) -> Self:
        """Raises StoreUnusable when there is no such table or the store does not answer, LogDamaged when its log is damaged."""
        table = cls(root, path, layout)
        try:
            table.log.open()
        except NoTable as error:
            raise cls._missing(root.uri_of(path)) from error
        return table

    @classmethod
    def create(cls, root: Root, path: str, layout: TableLayout) -> Self:
        """Create the table unless it is there, then open it. Racing creators end with one table."""
        table = cls(root, path, layout)
        try:
            table.log.open()
            return table
        except NoTable:
            first = [protocol_action(), metadata_action(layout)]
            content = entry_bytes(operation="CREATE TABLE", now_ms=epoch_ms(), first=first)
            root.create_exclusively(f"{path}/{LOG_FOLDER}/{entry_name(0)}", content)
        return cls.open(root, path, layout)

    @classmethod
    def _missing(cls, uri: str) -> RmqError:
        return NoTable(f"no table at {uri}: the shard's commit log is gone. Restore it from a backup of the store")

    @property
    def version(self) -> int:
        """Of the newest entry that was read."""
        return self.log.view.version

    @property
    def positions(self) -> Positions:
        return self.log.view.positions

    def refresh(self) -> None:
        """Read the commits that came since. Raises StoreUnusable when the store does not answer."""
        self.log.refresh()

    def refresh_unless_fresh(self) -> None:
        """``refresh``, unless that was done less than FRESH_MS ago: for readers that find the rest in the commit log."""
        now_ms = self.root.recent_time_ms()
        if now_ms is None or abs(now_ms - self.log.view.known_ms) >= FRESH_MS:
            self.refresh()

    # --- live files ---

    def files(self, where: pc.Expression | None = None) -> pa.Table:
        """The live files with their statistics: path, size_bytes, num_records, min.*, max.*, null_count.*, partition.*."""
        index = self.log.view.files.table
        if where is None or index.num_rows == 0:
            return index
        return index.filter(where)

    def described(self) -> pa.Table:
        """``files``, for those who write them again. Raises BadData where the log does not say of which day a file is, or how
        many rows it has: another tool has changed it."""
        index = self.files()
        unknown = pc.or_(pc.is_null(index.column("partition.store_day")), pc.is_null(index.column("num_records")))
        for path in index.column("path").filter(unknown).to_pylist():
            raise BadData(
                f"the log of {self.root.uri_of(self.path)} does not say of which day {path} is, or how many rows it has: "
                "another tool changed it. Restore the shard from a backup; 'rmq audit' lists all such files"
            )
        return index

    def live_size(self) -> tuple[int, int]:
        """How many live files the version that was read has, and their bytes."""
        sizes = self.files().column("size_bytes").to_pylist()
        return len(sizes), sum(sizes)

    def is_live(self, path: str) -> bool:
        """Whether the file is in the version that was read."""
        return path in self.log.view.files

    def added_since(self, version: int) -> list[LiveFile]:
        """The files that later entries than ``version`` added, in commit order, also if they have been removed since.

        Raises LogCleaned when some of these entries lie behind the checkpoint that the log was opened from: their names may
        have been deleted, and filled again by a late PUT that no reader may see.
        """
        if version < self.log.view.checkpoint:
            raise LogCleaned(f"entries after {version} of {self.path}")
        recent = self.log.view.files.recent
        return recent[bisect_right(recent, version, key=lambda file: file.version) :]

    def read(
        self, paths: Iterable[str], columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Rows of some live files; columns that a file does not have are null. Partition columns are not filled.

        Raises MissingFile, BadData when a file is damaged, StoreUnusable when it cannot be read.
        """
        rows = pa.concat_tables([self._schema_of(columns).empty_table(), *self.read_each(paths, columns)])
        return rows if where is None else rows.filter(where)

    def read_each(
        self, paths: Iterable[str], columns: Sequence[str] | None = None, digests: Mapping[str, str] | None = None
    ) -> list[pa.Table]:
        """As ``read``, a table per file. Many files have one row: a reader for each is cheaper than a scan over all.

        ``digests``: the SHA-256 of files, hex, or its beginning. They are read from the store and compared. Raises BadData for
        another one.
        """
        if digests is None:
            read_file = partial(self._read_file, schema=self._schema_of(columns))
        else:
            read_file = partial(self._read_checked, schema=self._schema_of(columns), digests=digests)
        return list(in_parallel(self.root, read_file, list(paths)))

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        return pa.schema([f for f in self._stored if columns is None or f.name in columns])

    def _read_file(self, path: str, schema: pa.Schema) -> pa.Table:
        """The rows of a small file. The segments of a queue are looked up window after window."""
        key = (path, *schema.names)
        table = self._cache.get(key)
        if table is None:
            table = self._read_stored(path, schema)
            self._cache.put(key, table)
        return table

    def _read_checked(self, path: str, schema: pa.Schema, digests: Mapping[str, str]) -> pa.Table:
        with self._reading(path):
            content = self.root.read(f"{self.path}/{path}")
        recorded, sha256 = digests.get(path, ""), hashlib.sha256(content).hexdigest()
        if not sha256.startswith(recorded):
            raise BadData(
                f"{self.root.uri_of(self.path)}/{path} was changed: its SHA-256 is {sha256}, its commit wrote {recorded}. "
                "Restore it from a backup under the same name; 'rmq audit --full' lists all such files"
            )
        return self._read_stored(path, schema, pa.BufferReader(content))

    def _read_stored(self, path: str, schema: pa.Schema, source: Any = None) -> pa.Table:
        # Arrow's threads would fetch the pages of a file that is here already.
        with self._reading(path), pq.ParquetFile(source or self._source(path), pre_buffer=False) as file:
            present = set(file.schema_arrow.names)
            rows = file.read(columns=[f.name for f in schema if f.name in present], use_threads=False)
        if present.issuperset(schema.names):
            # A cast that changes nothing takes its time, too.
            rows = rows.select(schema.names)
            return rows if rows.schema == schema else rows.cast(schema)
        columns = [rows.column(f.name) if f.name in present else pa.nulls(rows.num_rows, f.type) for f in schema]
        return pa.table(columns, names=schema.names).cast(schema)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        where = f"{self.root.uri_of(self.path)}/{path}"
        try:
            with self.root.reading(f"{self.path}/{path}"):
                yield
        except FileNotFoundError as error:
            raise MissingFile(f"{where} is missing, and its table names it. Restore it from a backup.") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise BadData(f"{where} is damaged: {clause(error)}. Restore it from a backup.") from error

    def _source(self, path: str) -> Any:
        """A file to be read as a whole: from S3 in one request."""
        if self.root.is_local:
            return self.root.open_file(f"{self.path}/{path}")
        return pa.BufferReader(self.root.read(f"{self.path}/{path}"))

    def rows(self, path: str, first_row: int, count: int, columns: Sequence[str]) -> pa.Table:
        """Rows ``[first_row, first_row + count)`` of one file. Raises as ``read``."""
        with self._reading(path), pq.ParquetFile(self.root.open_file(f"{self.path}/{path}")) as file:
            groups, start, before = [], 0, 0
            for number in range(file.num_row_groups):
                end = start + file.metadata.row_group(number).num_rows
                if start < first_row + count and end > first_row:
                    groups.append(number)
                elif end <= first_row:
                    before = end
                start = end
            return file.read_row_groups(groups, columns=list(columns)).slice(first_row - before, count)

    @cached_property
    def _stored(self) -> list[pa.Field]:
        return [field for field in self.layout.schema if field.name not in self.layout.partition_by]

    # --- commit ---

    def check_format(self) -> None:
        """Raises OtherFormat when this version must not write the table."""
        if not may_write(self.log.view.protocol):
            raise OtherFormat(
                f"the table at {self.root.uri_of(self.path)} has not the format of this version of rmq. If an earlier version "
                "wrote it, 'rmq upgrade' brings the store to this format; if another tool changed it, restore it from a backup"
            )

    def content(
        self,
        files: Sequence[StagedFile],
        positions: Mapping[str, int],
        updated_ms: Mapping[str, int] | None = None,
        *,
        operation: str,
        now_ms: int,
        commit_ids: Sequence[str] = (),
        read_commit: str = "",
        closed: Sequence[str] = (),
        removed: Collection[str] = (),
    ) -> Content:
        """The entry that adds files, removes some and sets positions. ``read_commit``: as ``Entry.read_commit``. Raises
        StaleAttempt when a removed one is not live."""
        self._validate(files)
        gone = self._live(removed, data_change=all(file.data_change for file in files)) if removed else []
        text = entry_bytes(
            operation=operation,
            now_ms=now_ms,
            commit_ids=commit_ids,
            read_commit=read_commit,
            files=files,
            partition_by=self.layout.partition_by,
            removed=gone,
            positions=positions,
            updated_ms=updated_ms,
        )
        return Content(text, positions.keys(), closed, set(removed))

    def put(
        self,
        files: Sequence[StagedFile],
        positions: Mapping[str, int],
        *,
        host: Host,
        operation: str = "WRITE",
        patience_ms: int = 60_000,
        removed: Collection[str] = (),
    ) -> None:
        """One commit of files and positions, for tables that are derived from the commit log. ``patience_ms``: how long a store
        that does not answer is asked. ``removed``: paths of live files that leave the table with it.

        Raises StaleAttempt when another process has set one of the positions or removed one of the files, StoreUnusable when
        nothing was written, CommitOutcomeUnknown when that is not known.
        """
        self.check_format()
        # A name of its own makes the content of this try unlike that of any other.
        name, now_ms = (random_name(),), self.root.server_time_ms(host)
        content = self.content(files, positions, operation=operation, now_ms=now_ms, commit_ids=name, removed=removed)
        if self.log.append(content, host, deadline_ms=host.now_ms() + patience_ms) is not Verdict.COMMITTED:
            raise StaleAttempt(f"another process has committed to {self.path}")

    def check_live(self, paths: Collection[str]) -> None:
        """Raises StaleAttempt when one of the files is not live in the version that was read."""
        if gone := sorted(path for path in paths if not self.is_live(path)):
            raise StaleAttempt(
                f"{len(gone)} of {len(paths)} files are not in {self.path} any more, {gone[0]} among them: another process has "
                "replaced them"
            )

    def _live(self, paths: Collection[str], *, data_change: bool) -> list[LiveFile]:
        self.check_live(paths)
        keys = {name: f"partition.{name}" for name in self.layout.partition_by}
        files = self.files(pc.field("path").isin(pa.array(sorted(paths), pa.string())))
        return [
            LiveFile(
                path=row["path"],
                size=row["size_bytes"],
                partition={name: None if row[key] is None else str(row[key]) for name, key in keys.items()},
                stats={},
                version=self.version,
                data_change=data_change,
            )
            for row in files.select(["path", "size_bytes", *keys.values()]).to_pylist()
        ]

    def check_staged(self, files: Sequence[StagedFile]) -> None:
        """Raises StagedFileGone when a file of a commit is not in the store as it was staged."""
        list(in_parallel(self.root, self._check_staged, files))

    @staticmethod
    def _validate(files: Sequence[StagedFile]) -> None:
        """Nothing but this checks what an entry says of its files, and one wrong value makes a table unreadable."""
        seen: set[str] = set()
        for file in files:
            if file.path in seen:
                raise ValueError(f"staged twice: {file.path}")
            seen.add(file.path)
            if file.store_day is None or date.fromisoformat(file.store_day).isoformat() != file.store_day:
                raise ValueError(f"not a day: {file.store_day!r} for {file.path}")
            if json.loads(file.stats)["numRecords"] != file.rows or file.rows < 1:
                raise ValueError(f"the statistics of {file.path} do not have {file.rows} rows")

    def _check_staged(self, file: StagedFile) -> None:
        try:
            size = self.root.size(f"{self.path}/{file.path}")
        except FileNotFoundError:
            raise StagedFileGone(f"staged file {file.path} is gone. Run the same request again.") from None
        if size != file.size:
            raise StagedFileGone(
                f"staged file {file.path} has {size} bytes, not {file.size}. Run the same request again."
            )


def schema_text(schema: pa.Schema) -> str:
    """A table's schema as Delta's JSON."""
    from deltalake import Schema  # only who creates or upgrades a table needs it

    return str(Schema.from_arrow(schema).to_json())


def metadata_action(layout: TableLayout) -> dict[str, Any]:
    """Of a new table."""
    return {
        "metaData": {
            "id": str(uuid.UUID(random_name())),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_text(layout.schema),
            "partitionColumns": list(layout.partition_by),
            "configuration": CONFIGURATION | {STATS_COLUMNS: ",".join(layout.stats)},
            "createdTime": epoch_ms(),
        }
    }
