"""The files of a broker's store below a root, as an import reads them: in a folder or in S3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rmq_store.broker_files.file_source import (
    FEW_NAMES,
    FileSource,
    LocalFileSource,
    small_content,
)
from rmq_store.broker_files.limits import MAX_CONFIG_BYTES
from rmq_store.errors import BadData
from rmq_store.lake.table.object_store import Root


def file_source(root: Root) -> FileSource:
    """The files of a broker's store, as an import reads them.

    Raises WrongUse when there is no such folder, StoreUnusable when S3 cannot be reached.
    """
    return LocalFileSource(Path(root.location)) if root.is_local else RootFileSource(root)


@dataclass(frozen=True, slots=True)
class RootFileSource:
    """The files of a broker's store below a root, for an import.

    Raises StoreUnusable when the root cannot be reached.
    """

    root: Root

    def __post_init__(self) -> None:
        self.root.check_reachable()

    def __str__(self) -> str:
        return self.root.location

    def names(self) -> list[str]:
        return self.root.names(FEW_NAMES)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return self.root.list(prefix)

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Raises BadData when there is no such file."""
        try:
            return self.root.read(name, begin, end)
        except FileNotFoundError as error:
            raise BadData(f"{self} has no file {name}") from error

    def whole(self, name: str, most_bytes: int = MAX_CONFIG_BYTES) -> bytes | None:
        try:
            content = self.root.read(name, 0, most_bytes + 1)
        except FileNotFoundError:
            return None
        return small_content(f"{name} in {self}", content, most_bytes)
