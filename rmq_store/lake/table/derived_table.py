"""A table that is derived from the commit log. Nothing in it is the only copy, so whatever is damaged is written again."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import ABSENT
from rmq_store.errors import BadData, DerivedTableDamaged, LogDamaged, RmqError
from rmq_store.lake.table.delta_entry import RESTART, entry_bytes, entry_name, protocol_action, remove_action
from rmq_store.lake.table.delta_log import CHECKPOINT, ENTRY, LAST_CHECKPOINT, LOG_FOLDER, UNREAD
from rmq_store.lake.table.delta_table import LakeTable, metadata_action
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.second_reader import second_reading
from rmq_store.lake.table.table_layout import TableLayout
from rmq_store.utils.host import Host


class DerivedTable(LakeTable):
    """As LakeTable. Where that raises because files or the log are gone or damaged, this raises DerivedTableDamaged."""

    @classmethod
    def open(cls, root: Root, path: str, layout: TableLayout) -> Self:
        with _damage_of_the_log():
            return super().open(root, path, layout)

    @classmethod
    def create(cls, root: Root, path: str, layout: TableLayout) -> Self:
        with _damage_of_the_log():
            return super().create(root, path, layout)

    @classmethod
    def restart(cls, root: Root, path: str, layout: TableLayout, positions: Iterable[str], host: Host) -> Self:
        """Make the table empty, whatever its log holds. ``positions``: those that it may have; they are deleted.

        An entry under the next name of the log removes every data file, and a checkpoint has the same state. So a process that
        had read the log before it was damaged follows it by the entry, every other one begins at the checkpoint, and no name
        of the log gets another content. When another process is faster its table is opened. Raises as ``open``.
        """
        folder, names = f"{path}/{LOG_FOLDER}", root.names_in(f"{path}/{LOG_FOLDER}")[0]
        matches = (pattern.fullmatch(name) for name in names for pattern in (ENTRY, CHECKPOINT, UNREAD))
        version = max((int(match[1]) for match in matches if match), default=-1) + 1
        now_ms = host.now_ms()
        files = [name.removeprefix(f"{path}/") for name, _ in root.list(path) if not name.startswith(f"{folder}/")]
        first = [protocol_action(), metadata_action(layout)]
        first += [{"remove": remove_action(file, now_ms)} for file in files]
        content = entry_bytes(operation=RESTART, now_ms=now_ms, first=first, positions=dict.fromkeys(positions, ABSENT))
        if root.create_exclusively(f"{folder}/{entry_name(version)}", content):
            # Only the hint has the number of the entry.
            reading = second_reading({entry_name(0): content}, root.uri_of(path))
            root.create_exclusively(f"{folder}/{version:020d}.checkpoint.parquet", reading.checkpoint)
            root.replace(f"{folder}/{LAST_CHECKPOINT}", json.dumps({**reading.hint, "version": version}).encode())
        return cls.open(root, path, layout)

    @classmethod
    def _missing(cls, uri: str) -> RmqError:
        return DerivedTableDamaged(f"the table {uri} is gone.")

    def refresh(self) -> None:
        with _damage_of_the_log():
            super().refresh()

    def files(self, where: pc.Expression | None = None) -> pa.Table:
        with _damage_of_the_log():
            return super().files(where)

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
        with _damage_of_the_log():
            super().put(files, positions, host=host, operation=operation, patience_ms=patience_ms, removed=removed)

    def _read_stored(self, path: str, schema: pa.Schema, source: Any = None) -> pa.Table:
        try:
            return super()._read_stored(path, schema, source)
        except BadData as error:
            raise DerivedTableDamaged(f"the file {path} of the table {self.path} is gone or damaged.") from error


@contextmanager
def _damage_of_the_log() -> Iterator[None]:
    try:
        yield
    except LogDamaged as error:
        raise DerivedTableDamaged(f"{error.facts}.") from error
