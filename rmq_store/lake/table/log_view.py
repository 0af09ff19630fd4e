"""A view of a Delta log: its state at one version, as this process has read it, and when it knew where the log ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.commit.positions import Positions
from rmq_store.errors import LogDamaged, OtherFormat
from rmq_store.lake.table.delta_entry import Entry, columns_and_partitions, entry_name
from rmq_store.lake.table.live_files import LiveFiles
from rmq_store.lake.table.table_layout import TableLayout


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log, as it was read."""

    name: str
    """In the folder of the log."""
    end: tuple[bytes, int]
    """As ``end_of``."""


@dataclass(slots=True)
class LogView:
    """Grows entry by entry. ``Positions`` and tables of files that were taken from it before do not change."""

    layout: TableLayout
    """Of the table, whatever the log says of statistics: a file may have none (``LiveFiles``)."""
    folder: str = ""
    """The address of the log, for errors."""
    version: int = -1
    """Of the newest entry that was read."""
    known_ms: int = 0
    """The store's time at which the log was last known to end here, UTC ms."""
    checkpoint: int = -1
    """The checkpoint from which the view was opened; -1: none. Later entries were read one by one."""
    known_checkpoint: int = -1
    """The newest checkpoint that this process knows of."""
    positions: Positions = field(default_factory=lambda: Positions(-1, {}))
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    commit_ids: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The commits in each entry that was read."""
    read_commits: dict[int, str] = field(default_factory=dict)
    """The ``read_commit`` of each entry that was read and has one."""
    checksums: dict[int, int] = field(default_factory=dict)
    """CRC-32 of each entry that was read."""
    newest: LogFile | None = None
    """The newest file that was read: an entry, or the checkpoint from which the view was opened."""
    _files: LiveFiles | None = None

    @property
    def files(self) -> LiveFiles:
        if self._files is None:
            raise LogDamaged(f"{self.folder}: no metaData action comes before the first files")
        return self._files

    def apply(self, entry: Entry) -> None:
        """The next version."""
        if entry.version != self.version + 1:
            raise ValueError(f"entry {entry.version} does not follow version {self.version}")
        if entry.metadata is not None:
            self.describe(entry.metadata, f"{self.folder}/{entry_name(entry.version)}")
        if entry.commit_ids and any(file.path in self.files for file in entry.added):
            raise LogDamaged(
                f"{self.folder}/{entry_name(entry.version)} has the files of an earlier entry again: it is a copy of it with "
                "old positions"
            )
        self.protocol = entry.protocol or self.protocol
        self.files.apply(entry)
        self.positions = self.positions.advanced(entry.version, entry.positions, entry.updated_ms)
        self.commit_ids[entry.version] = entry.commit_ids
        if entry.read_commit:
            self.read_commits[entry.version] = entry.read_commit
        self.checksums[entry.version] = entry.checksum
        self.version = entry.version
        self.newest = LogFile(entry_name(entry.version), entry.end)

    def is_followed_by(self, entry: Entry) -> bool:
        """Whether the entry was decided on a commit of this view, as far as both are known. If not, the log was replaced since
        this view was read, such as by a restore in place."""
        return not (entry.read_commit and self.commit_ids) or any(
            entry.read_commit in commit_ids for commit_ids in reversed(self.commit_ids.values())
        )

    def describe(self, metadata: Mapping[str, Any], where: str) -> None:
        """Take a ``metaData`` action. ``where``: the address of its file.

        Raises LogDamaged for that of another table, OtherFormat when another tool has changed how the table is laid out.
        """
        types, partition_by = columns_and_partitions(metadata)
        if self.metadata is None:
            columns, known = {name for name, _ in types}, set(self.layout.schema.names)
            if partition_by != self.layout.partition_by or (columns - known and known - columns):
                raise LogDamaged(f"{where} is damaged (it is of another table)")
            self._files = LiveFiles(self.layout, self.folder)
        else:
            old_types, _ = columns_and_partitions(self.metadata)
            if partition_by != self.layout.partition_by or not old_types <= types:  # a further column does no harm
                raise OtherFormat(
                    f"{where} changes the columns or the partitions of the table, which rmq never does: restore the table "
                    "from a backup"
                )
        self.metadata = metadata
