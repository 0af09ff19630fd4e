"""Folders for temporary files that go when the process that made them has ended, also when it was killed: each has a lock file
that the process holds, and the next process that makes one removes those that no process holds."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

LOCK: Final = ".rmq-lock"


def locked_folder(purpose: str) -> tuple[Path, IO[bytes]]:
    """A new folder ``rmq-<purpose>-...`` in TMPDIR, and its lock, held until the file is closed. Who has made it removes it."""
    _remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"rmq-{purpose}-"))
    new = folder / f"{LOCK}.new"
    lock = new.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / LOCK)  # no other process sees it before it is held
    return folder, lock


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A ``locked_folder`` for as long as the block lasts."""
    folder, lock = locked_folder(purpose)
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"rmq-*/{LOCK}"):
        with suppress(OSError):  # it is held, or another process was faster
            if os.lstat(lock.parent).st_uid == os.getuid():
                with lock.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
