"""Files of a folder as objects: an object appears with its whole content or not at all, and is created only once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_store.commit.append import PutAnswer
from rmq_store.utils.host import random_name
from rmq_store.utils.small_file import check_is_file


def read(path: Path, begin: int, end: int | None) -> bytes:
    check_is_file(path)  # opening a FIFO waits for its writer
    with path.open("rb") as file:
        file.seek(begin)
        return file.read() if end is None else file.read(end - begin)


def write(root: Path, path: Path, content: bytes | memoryview) -> None:
    """Write a file that nothing names yet below a folder that is there. One that could not be written to its end is removed."""
    with _not_made_again():
        root.stat()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(content)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def create(path: Path, content: bytes) -> bool:
    """Write to a temporary name, then link: the name appears with the whole content or not at all, and only once."""
    with _written(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        _sync_folder(path.parent)
        return True


def create_once(path: Path, content: bytes) -> tuple[PutAnswer, OSError | None]:
    """As ``create``, in a folder that is there. An error before the link has written nothing; one of the link itself, or after
    it, may have."""
    linking = False
    try:
        if path.exists():  # as a rule another writer was faster: then nothing needs to be written
            return PutAnswer.TAKEN, None
        with _not_made_again(), _temporary(path, content) as temporary:
            linking = True
            os.link(temporary, path)
            _sync_folder(path.parent)
        return PutAnswer.CREATED, None
    except OSError as error:
        if linking and isinstance(error, FileExistsError):
            return PutAnswer.TAKEN, None
        return PutAnswer.SILENT if linking else PutAnswer.REFUSED, error


def replace(path: Path, content: bytes) -> None:
    with _written(path, content) as temporary:
        temporary.rename(path)
        _sync_folder(path.parent)


@contextmanager
def _written(path: Path, content: bytes) -> Iterator[Path]:
    """As ``_temporary``, in a folder that is made where it is missing."""
    with making(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path, content) as temporary:
        yield temporary


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Around what makes a folder: raises NotADirectoryError where there can be none, as below ``/proc``. A FileNotFoundError
    would be a missing object."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotADirectoryError(error.errno, "the folder cannot be made", str(folder)) from error


@contextmanager
def _not_made_again() -> Iterator[None]:
    """Words for a folder that was removed meanwhile. It is not made again: that would be a log without its beginning."""
    try:
        yield
    except FileNotFoundError as error:
        raise OSError(error.errno, "the folder is gone; restore it from a backup", error.filename) from error


@contextmanager
def _temporary(path: Path, content: bytes) -> Iterator[Path]:
    """A temporary file beside ``path`` with the content, on disk. It is removed afterwards."""
    temporary = path.with_name(f".{path.name}.{random_name()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
