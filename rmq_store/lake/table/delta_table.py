"""One Delta table of a shard, through delta-rs: open it, list and read its live files, commit.

delta-rs is the only writer. Facts that its documentation does not state, each measured: a handle does not move by
itself after a commit; the add actions of a commit are not checked at all, and one malformed partition value makes a
table permanently unreadable, so ``_validated`` checks them here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import BadData, DerivedTableDamaged, RmqError, StagedFileGone, StoreUnusable
from rmq_store.lake.table.delta_log import DeltaLog
from rmq_store.lake.table.object_store import Root

RETRIES_INSIDE = 2
"""Tries inside delta-rs, which does not wait between them; ``lake/commit/commit.py`` waits."""

_PARALLEL_READS = 8

CONFIGURATION = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "100",
    # Segments name files. If another tool's OPTIMIZE removes one from the table, a VACUUM with the table's own settings
    # does not delete it, nor a file that a running window has staged.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


class LakeTable:
    """A Delta table at ``<root>/<path>``; ``schema`` includes the partition columns."""

    def __init__(
        self, root: Root, path: str, schema: pa.Schema, partition_by: Sequence[str], handle: DeltaTable
    ) -> None:
        self.root = root
        self.path = path
        self.schema = schema
        self.partition_by = list(partition_by)
        self.log = DeltaLog(root, path)
        self._handle = handle
        self._index: tuple[int, pa.Table] | None = None

    @classmethod
    def open(cls, root: Root, path: str, schema: pa.Schema, partition_by: Sequence[str]) -> LakeTable:
        """Raises StoreUnusable when there is no such table, or the store does not answer."""
        return cls(root, path, schema, partition_by, cls._handle_of(root, path))

    @classmethod
    def create(
        cls, root: Root, path: str, schema: pa.Schema, partition_by: Sequence[str], stats: Sequence[str]
    ) -> LakeTable:
        """Create the table unless it is there, then open it. Racing creators end with one table."""
        try:
            DeltaTable.create(
                root.uri_of(path),
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=CONFIGURATION | {"delta.dataSkippingStatsColumns": ",".join(stats)},
                storage_options=root.storage_options or None,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(root.uri_of(path), storage_options=root.storage_options):
                raise
        return cls.open(root, path, schema, partition_by)

    @classmethod
    def _handle_of(cls, root: Root, path: str) -> DeltaTable:
        try:
            return DeltaTable(root.uri_of(path), storage_options=root.storage_options)
        except TableNotFoundError as error:
            raise cls._missing(root.uri_of(path)) from error
        except (DeltaError, OSError) as error:
            lost = DeltaLog(root, path).lost_checkpoint() if "_last_checkpoint" in str(error) else None
            if lost is None:
                raise StoreUnusable(f"the table at {root.uri_of(path)} cannot be read: {error}") from error
            raise StoreUnusable(
                f"{root.uri_of(path)}/_delta_log/_last_checkpoint names the checkpoint of version {lost}, which is not there. "
                "Restore it from a backup, or remove that file: then the checkpoint before it is used."
            ) from error

    @classmethod
    def _missing(cls, uri: str) -> RmqError:
        return StoreUnusable(f"no table at {uri}: run 'rmq init' or import a store first")

    @property
    def version(self) -> int:
        return int(self._handle.version())

    def refresh(self) -> None:
        """Move the handle to the newest version. Raises StoreUnusable when the store does not answer."""
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError):
            # The versions between were cleaned away: start from the newest checkpoint.
            self._handle = self._handle_of(self.root, self.path)

    # --- live files ---

    def files(self, where: pc.Expression | None = None) -> pa.Table:
        """The live files with their statistics: path, size_bytes, num_records, min.*, max.*, partition.*."""
        if self._index is None or self._index[0] != self.version:
            self._index = (self.version, pa.table(self._handle.get_add_actions(flatten=True)))
        index = self._index[1]
        if where is None or index.num_rows == 0:
            return index
        return index.filter(where)

    def is_live(self, path: str) -> bool:
        """Whether the file is in the handle's snapshot."""
        return bool(self.files(pc.field("path") == path).num_rows)

    def read(
        self, paths: Iterable[str], columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Rows of some live files; columns that a file does not have are null. Partition columns are not filled."""
        rows = pa.concat_tables([self._schema_of(columns).empty_table(), *self.read_each(paths, columns)])
        return rows if where is None else rows.filter(where)

    def read_each(self, paths: Iterable[str], columns: Sequence[str] | None = None) -> list[pa.Table]:
        """As ``read``, a table per file. Many files have one row: a reader for each is cheaper than a scan over all."""
        read_file = partial(self._read_file, schema=self._schema_of(columns))
        paths = list(paths)
        if len(paths) <= 1:
            return list(map(read_file, paths))
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            return list(pool.map(read_file, paths))

    def _schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        return pa.schema([f for f in self._stored if columns is None or f.name in columns])

    def _read_file(self, path: str, schema: pa.Schema) -> pa.Table:
        try:
            with pq.ParquetFile(self._filesystem.open_input_file(f"{self._folder}/{path}")) as file:
                present = set(file.schema_arrow.names)
                rows = file.read(columns=[f.name for f in schema if f.name in present], use_threads=False)
        except pa.ArrowInvalid as error:
            raise BadData(
                f"{self.root.uri_of(self.path)}/{path} is damaged: {error}. Restore it from a backup."
            ) from error
        columns = [rows.column(f.name) if f.name in present else pa.nulls(rows.num_rows, f.type) for f in schema]
        return pa.table(columns, names=schema.names).cast(schema)

    def rows(self, path: str, first_row: int, count: int, columns: Sequence[str]) -> pa.Table:
        """Rows ``[first_row, first_row + count)`` of one file."""
        with pq.ParquetFile(self._filesystem.open_input_file(f"{self._folder}/{path}")) as file:
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
        return [field for field in self.schema if field.name not in self.partition_by]

    @cached_property
    def _fs(self) -> tuple[Any, str]:
        return self.root.filesystem()

    @property
    def _filesystem(self) -> Any:
        return self._fs[0]

    @property
    def _folder(self) -> str:
        return f"{self._fs[1]}/{self.path}"

    # --- commit ---

    def put(
        self,
        files: Sequence[StagedFile],
        positions: Mapping[str, int],
        updated_ms: Mapping[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        now_ms: int = 0,
        *,
        overwrite: bool = False,
    ) -> None:
        """One conditional write of files and positions on exactly this handle (step 5 of ``lake/commit/commit.py``).

        ``overwrite``: the files replace all live ones. After an error the caller must read back what was committed; only
        StagedFileGone and StoreUnusable are raised before anything is sent. Every commit has a position: without one a lost
        reply makes delta-rs commit the same files again and again.
        """
        assert positions, "a commit needs a position"
        updated = updated_ms or {}
        self._handle.create_write_transaction(
            self._validated(files, now_ms),
            "overwrite" if overwrite else "append",
            self._handle.schema(),
            partition_by=self.partition_by or None,
            commit_properties=CommitProperties(
                custom_metadata=dict(metadata or {}),
                max_commit_retries=RETRIES_INSIDE,
                app_transactions=[
                    Transaction(app_id, number, updated.get(app_id)) for app_id, number in positions.items()
                ],
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
        )

    def _validated(self, files: Sequence[StagedFile], now_ms: int) -> list[AddAction | RemoveAction]:
        seen: set[str] = set()
        actions: list[AddAction | RemoveAction] = []
        for file in files:
            self._check_staged(file)
            if file.path in seen:
                raise ValueError(f"staged twice: {file.path}")
            seen.add(file.path)
            values = {"kind": file.kind, "store_day": file.store_day}
            if file.store_day is None or date.fromisoformat(file.store_day).isoformat() != file.store_day:
                raise ValueError(f"not a day: {file.store_day!r} for {file.path}")
            if json.loads(file.stats)["numRecords"] != file.rows or file.rows < 1:
                raise ValueError(f"the statistics of {file.path} do not have {file.rows} rows")
            actions.append(
                AddAction(
                    path=file.path,
                    size=file.size,
                    partition_values={k: values[k] for k in self.partition_by},
                    modification_time=now_ms,
                    data_change=True,
                    stats=file.stats,
                )
            )
        return actions

    def _check_staged(self, file: StagedFile) -> None:
        try:
            size = self.root.size(f"{self.path}/{file.path}")
        except FileNotFoundError:
            raise StagedFileGone(f"staged file {file.path} is gone. Run the same request again.") from None
        if size != file.size:
            raise StagedFileGone(
                f"staged file {file.path} has {size} bytes, not {file.size}. Run the same request again."
            )


class DerivedTable(LakeTable):
    """A table that is derived from the commit log, so that it can be written again."""

    @classmethod
    def _missing(cls, uri: str) -> RmqError:
        return DerivedTableDamaged(f"the table {uri} is gone.")

    def _read_file(self, path: str, schema: pa.Schema) -> pa.Table:
        try:
            return super()._read_file(path, schema)
        except (FileNotFoundError, BadData) as error:
            raise DerivedTableDamaged(f"the file {path} of the table {self.path} is gone or damaged.") from error
