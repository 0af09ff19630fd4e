"""One export of offsets to a file at a time.

An export reads the store first and writes the file last. Of two at once the slower one would put older offsets into the file,
and a broker that starts with it consumes again. So a lock file is held from before the store is read until the file is written.
A process that ends gives it back, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rmq_store.broker_files.config_files import CONSUMER_OFFSETS, LMQ_OFFSETS
from rmq_store.broker_files.offsets_to_broker import check_writable
from rmq_store.errors import HeldByAnother, WrongUse


@contextmanager
def one_export(file: Path) -> Iterator[None]:
    """Around an export to ``file`` and the delay levels beside it. The store is read inside, and the files are written.

    A folder that is not writable needs no lock. Raises HeldByAnother when another export to the file runs, WrongUse when the
    file cannot be written, or its file system has no locks.
    """
    lock = _lock_of(file)
    handle = _held(file, lock)
    try:
        yield
    finally:
        if handle is not None:
            if _is_file_of(handle, lock):  # else a person has removed it, and it may be that of another export
                lock.unlink()  # while it is held, so that no other export has it
            os.close(handle)


def _lock_of(file: Path) -> Path:
    """Both names that a broker's file may have share the delay levels beside them."""
    file = Path(os.path.realpath(file))
    name = CONSUMER_OFFSETS if file.name == LMQ_OFFSETS else file.name
    return file.with_name(f".{name}.lock")


def _held(file: Path, lock: Path) -> int | None:
    """The descriptor of the lock file, which is locked; None in a folder that is not writable."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if not os.access(lock.parent, os.W_OK | os.X_OK):
                return None
            check_writable(file)
            why = f"{lock} cannot be opened: {error.strerror or error}"
            if isinstance(error, PermissionError):
                raise HeldByAnother(
                    f"{why}. It is of another user's export to {file}: wait until that has ended, or remove it if no export "
                    "runs. Nothing was written"
                ) from error
            raise WrongUse(f"{file} cannot be written: {why}; nothing was written") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_of(handle, lock):
                return handle
        except BlockingIOError as error:
            os.close(handle)
            raise HeldByAnother(
                f"another export to {file} runs: wait until it has ended, and export again. Nothing was written"
            ) from error
        except OSError as error:
            with suppress(OSError):
                lock.unlink()
            os.close(handle)
            raise WrongUse(
                f"{file} cannot be written: {lock} cannot be locked ({error.strerror or error}), so another export could come "
                "in between. Export to a folder of a file system with locks, and copy the files from there. Nothing was written"
            ) from error
        os.close(handle)  # the one before has removed it meanwhile


def _is_file_of(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(lock))
    except FileNotFoundError:
        return False
