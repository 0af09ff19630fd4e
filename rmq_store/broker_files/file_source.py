"""Where a broker's store directory is read from: a local folder here, an object store in ``lake``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rmq_store.errors import BadData, WrongUse


class FileSource(Protocol):
    """A store directory. Names are relative to it and use ``/``; ``str()`` says where it is."""

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """Name and size in bytes of every file below the folder ``prefix``, sorted by name; empty if there is none."""
        ...

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes ``begin`` to ``end`` of a file, fewer where the file ends before.

        :raises BadData: there is no such file.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalFileSource:
    """A broker's store directory on this machine (``storePathRootDir``).

    :raises WrongUse: there is no such folder.
    """

    root: Path

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise WrongUse(f"{self.root} is no folder; give the broker's store directory (storePathRootDir)")

    def __str__(self) -> str:
        return str(self.root)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        found = []
        for folder, _, names in os.walk(self.root / prefix):
            relative = Path(folder).relative_to(self.root)
            found += [((relative / name).as_posix(), os.stat(Path(folder, name)).st_size) for name in names]
        return sorted(found)

    def read(self, name: str, begin: int, end: int) -> bytes:
        try:
            with open(self.root / name, "rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except FileNotFoundError as error:
            raise BadData(f"{self.root} has no file {name}") from error
