"""Access to the files of a broker's store directory: in a local folder here, in an object store in ``lake``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from rmq_store.broker_files.limits import MAX_CONFIG_BYTES
from rmq_store.errors import BadData, OverLimit, WrongUse
from rmq_store.utils.small_file import kind_of

FEW_NAMES: Final = 20
_COPY: Final = "Import a copy of the store with the files themselves in it"


class FileSource(Protocol):
    """A store directory. Names are relative to it and use ``/``; ``str()`` says where it is."""

    def names(self) -> list[str]:
        """Up to FEW_NAMES names of what is directly in the directory, sorted."""
        ...

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """Name and size in bytes of every file below the folder ``prefix``, sorted by name; empty if there is none."""
        ...

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes ``begin`` to ``end`` of a file, fewer where the file ends before.

        :raises BadData: there is no such file.
        """
        ...

    def whole(self, name: str, most_bytes: int = MAX_CONFIG_BYTES) -> bytes | None:
        """All bytes of a small file, None when it is not there.

        :raises OverLimit: it has more than ``most_bytes``; no more of it was read.
        """
        ...


def small_content(file: str, content: bytes, most_bytes: int) -> bytes:
    """The content. Raises OverLimit, which names the ``file``, for more than ``most_bytes``."""
    if len(content) > most_bytes:
        raise OverLimit(
            f"{file} is larger than {most_bytes:,} bytes. If it is the broker's, import with a higher limit "
            "(--max-config-bytes); nothing was changed"
        )
    return content


@dataclass(frozen=True, slots=True)
class LocalFileSource:
    """A broker's store directory on this machine (``storePathRootDir``).

    Only regular files below it are opened: links are followed while they stay inside, everything else raises BadData.

    :raises WrongUse: there is no such folder.
    """

    root: Path

    def __post_init__(self) -> None:
        if not os.path.isdir(self.root):  # Path.is_dir raises for a name that is too long, and where it may not look
            raise WrongUse(
                f"{self.root} is not a folder that this user can see: give the broker's store directory (storePathRootDir)"
            )

    def __str__(self) -> str:
        return str(self.root)

    def names(self) -> list[str]:
        with self._in_words(""), os.scandir(self.root) as entries:
            return sorted(entry.name for entry in islice(entries, FEW_NAMES))

    def list(self, prefix: str) -> list[tuple[str, int]]:
        with self._in_words(prefix):
            return sorted(self._below(prefix))

    def read(self, name: str, begin: int, end: int) -> bytes:
        with self._opened(name) as file:
            file.seek(begin)
            return file.read(max(end - begin, 0))

    def whole(self, name: str, most_bytes: int = MAX_CONFIG_BYTES) -> bytes | None:
        with self._in_words(name):
            if not self._is_there(name):
                return None
            with self._opened(name) as file:
                return small_content(f"{name} in {self}", file.read(most_bytes + 1), most_bytes)

    def _below(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Names and sizes of the files below a folder. Raises BadData for what is neither a file nor a folder."""
        if not self._is_there(prefix):
            return
        folders, listed = [(prefix, self._place(prefix))], set[str]()
        while folders:
            folder, place = folders.pop()
            if place in listed:
                raise BadData(f"{folder} in {self} is a link to a folder that was already listed. {_COPY}")
            listed.add(place)
            for name, at, status in self._entries(folder, place):
                if stat.S_ISDIR(status.st_mode):
                    folders.append((name, at))
                else:
                    self._check_is_file(name, status)
                    yield name, status.st_size

    def _entries(self, folder: str, place: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """What lies directly in a folder: its name, where it is, and what it is, with links followed."""
        with os.scandir(place) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}".lstrip("/")
                at = self._place(name) if entry.is_symlink() else entry.path
                try:
                    yield name, at, os.lstat(at)
                except FileNotFoundError:
                    continue  # removed meanwhile

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """A file, checked before it is opened: opening a FIFO waits for its writer."""
        with self._in_words(name):
            place = self._place(name)
            self._check_is_file(name, os.lstat(place))
            with open(place, "rb") as file:
                yield file

    def _is_there(self, name: str) -> bool:
        """Raises BadData when a folder above is a link to nothing: what it should hold is not known."""
        try:
            os.lstat(self.root / name)
        except OSError as error:
            for folder in Path(name).parents:
                if os.path.islink(self.root / folder):
                    self._place(str(folder))
            if isinstance(error, FileNotFoundError):
                return False
            raise
        return True

    def _place(self, name: str) -> str:
        """Where a name leads when links are followed. Raises BadData when that is nowhere or outside of this folder."""
        root, missing = os.path.realpath(self.root), None
        try:
            place = os.path.realpath(self.root / name, strict=True)
        except OSError as error:
            place, missing = os.path.realpath(self.root / name), error
        if os.path.commonpath([root, place]) != root:
            raise BadData(f"{name} in {self} is a link that leads out of that folder, or lies behind one. {_COPY}")
        if missing is None:
            return place
        if not isinstance(missing, FileNotFoundError):
            raise BadData(f"{name} in {self} cannot be followed: {missing.strerror}. {_COPY}") from missing
        if os.path.islink(self.root / name):
            raise BadData(f"{name} in {self} is a link to nothing. {_COPY}") from missing
        raise BadData(f"{self} has no file {name}") from missing

    def _check_is_file(self, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise BadData(
                f"{name} in {self} is not a regular file ({kind_of(status.st_mode)}), so it is not read. {_COPY}"
            )

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadData(f"{error.filename or name} in {self} cannot be read: {error.strerror or error}") from error
