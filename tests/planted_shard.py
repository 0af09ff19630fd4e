"""Faults in the real files of a shard, as a careful attacker leaves them: sizes and statistics in the log are made to agree
with the files, and the derived tables with the records of the commits."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.commit.rebuild import rebuild
from rmq_store.lake.table import tables
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.lake.table.digest_name import named_digest
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import statistics
from rmq_store.utils.host import Host

COMMITLOG = "commitlog"
_STATS = {kind.name: kind.layout.stats for kind in KINDS} | {COMMITLOG: tables.COMMITLOG_LAYOUT.stats}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlantedShard:
    """The folder of a shard that nothing else uses."""

    root: Path
    name: str

    @property
    def entry(self) -> Path:
        """What names the shard in the store."""
        return self.root / "shards" / f"{self.name}.json"

    @property
    def shard(self) -> Shard:
        return Shard(Root.parse(str(self.root)), self.name)

    def folder(self, table: str = COMMITLOG) -> Path:
        return self.root / self.name / table

    def entries(self, table: str = COMMITLOG) -> list[Path]:
        """The entries of the log, oldest first."""
        return sorted((self.folder(table) / "_delta_log").glob("*.json"))

    # --- the log ---

    def edit_log(self, change: Callable[[str, Row], Mapping[str, Any] | None], table: str = COMMITLOG) -> None:
        """Give every action of the log, by kind and value, another value; None: take it out."""
        for entry in self.entries(table):
            ((_, info),), *actions = [list(json.loads(line).items()) for line in entry.read_text().splitlines()]
            pairs = [(kind, change(kind, value)) for ((kind, value),) in actions]
            self._write(entry, info, [{kind: value} for kind, value in pairs if value is not None])

    def add_entry(self, *actions: Mapping[str, Any], table: str = COMMITLOG) -> None:
        number = int(self.entries(table)[-1].stem) + 1
        self._write(self.folder(table) / "_delta_log" / f"{number:020}.json", {"operation": "WRITE"}, actions)

    def leave_checkpoint(self, table: str = COMMITLOG) -> None:
        """A checkpoint of the log, and no entry before it, as after the clean-up."""
        handle = getattr(self.shard, table)
        write_checkpoint(handle)
        for entry in self.entries(table):
            if int(entry.stem) < handle.version:
                entry.unlink()

    def edit_checkpoint(self, change: Callable[[list[Row]], list[Row]], table: str = COMMITLOG) -> None:
        """Other actions in the only checkpoint of the log."""
        (path,) = (self.folder(table) / "_delta_log").glob("*.checkpoint.parquet")
        actions = pq.read_table(path)
        pq.write_table(pa.Table.from_pylist(change(actions.to_pylist()), actions.schema), path)

    def take_out(self, file: str) -> None:
        """The log removes the file, as another tool would."""
        self.add_entry({"remove": {"path": file, "deletionTimestamp": 0, "dataChange": True}})

    def set_hint(self, text: str, table: str = COMMITLOG) -> None:
        """What names the newest checkpoint."""
        (self.folder(table) / "_delta_log" / "_last_checkpoint").write_text(text)

    @staticmethod
    def _write(entry: Path, info: Row, actions: Sequence[Mapping[str, Any]]) -> None:
        lines = [{"commitInfo": {**info, "actions": len(actions)}}, *actions]
        entry.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def edit_add(self, file: str, table: str = COMMITLOG, **values: Any) -> None:
        """Other values in the ``add`` action of a file."""

        def change(kind: str, action: Row) -> Row:
            return {**action, **values} if kind == "add" and action["path"] == file else action

        self.edit_log(change, table)

    def repeat_add(self, file: str) -> None:
        """The ``add`` action of a file twice in its entry, the second time with another spelling of its path."""
        for entry in self.entries():
            ((_, info),), *actions = [list(json.loads(line).items()) for line in entry.read_text().splitlines()]
            again = [
                {kind: {**v, "path": file.replace("=", "%3D")}} for ((kind, v),) in actions if v.get("path") == file
            ]
            self._write(entry, info, [*map(dict, actions), *again])

    def add_of(self, path: str, table: str = COMMITLOG) -> Row:
        """The ``add`` action of a file."""
        actions = (json.loads(line) for entry in self.entries(table) for line in entry.read_text().splitlines())
        return next(action["add"] for action in actions if action.get("add", {}).get("path") == path)

    def set_position(self, app_id: str, value: int, table: str = COMMITLOG, *, at_ms: int = 0) -> None:
        self.add_entry({"txn": {"appId": app_id, "version": value, "lastUpdated": at_ms}}, table=table)

    # --- files ---

    def files(self, table: str = COMMITLOG, kind: str = "") -> list[str]:
        """The live files, in the order of their commits. ``kind``: of the commit log."""
        paths: list[str] = getattr(self.shard, table).files().column("path").to_pylist()
        return [path for path in paths if path.startswith(f"kind={kind}/" if kind else "")]

    def path(self, file: str, table: str = COMMITLOG) -> Path:
        return self.folder(table) / file

    def rewrite(self, file: str, change: Callable[[pa.Table], pa.Table], table: str = COMMITLOG) -> None:
        """Other rows in a file, and what the log says of it; in a name with a digest the new one."""
        path = self.path(file, table)
        rows = change(pq.ParquetFile(path).read())
        pq.write_table(rows, path, compression="zstd", store_schema=False)
        if digest := named_digest(file):
            new = hashlib.sha256(path.read_bytes()).hexdigest()[: len(digest)]
            file, old = file.replace(digest, new), file
            self.edit_add(old, table, path=file)
            path = path.rename(self.path(file, table))
        self.edit_add(file, table, size=path.stat().st_size, stats=statistics(rows, _STATS[table]))

    def alter_record(self, action: str, change: Callable[[Row], Row]) -> None:
        """Another record of the newest commit with an action, in the same file."""
        file = self.record(action)
        path = self.path(file)
        rows = pq.ParquetFile(path).read()
        pq.write_table(pa.Table.from_pylist([change(row) for row in rows.to_pylist()], rows.schema), path)
        self.edit_add(file, size=path.stat().st_size)

    def rewrite_rows(self, file: str, change: Callable[[Row], Row], table: str = COMMITLOG) -> None:
        self.rewrite(file, lambda rows: pa.Table.from_pylist([change(r) for r in rows.to_pylist()], rows.schema), table)

    def second_copy(self, file: str, table: str = COMMITLOG, *, name: str = "") -> str:
        """The file again, under another name, which is returned. ``name``: that in its folder."""
        name = file.rpartition("/")[0] + f"/{name}" if name else file.replace(".parquet", "-copy.parquet")
        shutil.copy(self.path(file, table), self.path(name, table))
        self.add_entry({"add": {**self.add_of(file, table), "path": name}}, table=table)
        return name

    def rewrite_record(self, action: str, change: Callable[[Row], Row], *, oldest: bool = False) -> None:
        """Another record of the newest commit with an action, or of the oldest, and derived tables that agree with it."""
        self.rewrite_rows(self.record(action, oldest), change)
        rebuild(self.shard, Host())

    def record(self, action: str, oldest: bool = False) -> str:
        """The file with the record of the newest commit with an action, or of the oldest."""
        for file in self.files(kind="ctl")[:: 1 if oldest else -1]:
            if pq.ParquetFile(self.path(file)).read(["action"]).to_pylist() == [{"action": action}]:
                return file
        raise AssertionError(f"no commit {action}")
