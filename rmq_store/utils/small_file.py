"""Small files that a user names: settings, offsets, a ``broker.conf``."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

MOST_MIB: Final = 64
"""The largest file that is read whole."""


def read_small_file(path: Path) -> bytes:
    """All bytes of a regular file, or of the one that a link leads to.

    The kind of file is checked before it is opened: opening a FIFO waits for its writer, and a device may have no end.
    Raises OSError for those, and for a file of more than ``MOST_MIB``.
    """
    check_is_file(path)
    with open(path, "rb") as file:
        return read_bounded(file, MOST_MIB)


def read_bounded(file: BinaryIO, most_mib: int) -> bytes:
    """All bytes of an open file. Raises OSError when there are more than ``most_mib``."""
    most, size, parts = most_mib << 20, 0, list[bytes]()
    while size <= most and (part := file.read(1 << 20)):  # a single read would reserve the memory of all
        parts.append(part)
        size += len(part)
    if size > most:
        raise OSError(errno.EFBIG, f"it is larger than {most_mib} MiB", getattr(file, "name", None))
    return b"".join(parts)


class NotAFile(OSError):
    """A FIFO, a socket, a folder or a device is in the place of a file."""


def check_is_file(path: Path | str) -> None:
    """Raises NotAFile unless it is a regular file or a link to one, OSError when that cannot be seen."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise NotAFile(errno.EINVAL, f"it is {kind_of(mode)}, not a file", str(path))


def kind_of(mode: int) -> str:
    """The kind of something that is no regular file, from its ``st_mode``."""
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")
