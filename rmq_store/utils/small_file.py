"""Small files that somebody names: settings, offsets, a ``broker.conf``."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

MOST_MIB: Final = 64
"""The largest file that is read whole."""


def read_small_file(path: Path) -> bytes:
    """All bytes of a regular file, or of one that a link leads to.

    It is looked at before it is opened: to open a FIFO waits for its writer, and a device may have no end. Raises OSError
    for those too, and for a file of more than ``MOST_MIB``.
    """
    check_is_file(path)
    with open(path, "rb") as file:
        content = file.read((MOST_MIB << 20) + 1)
    if len(content) > MOST_MIB << 20:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_MIB} MiB", str(path))
    return content


def check_is_file(path: Path) -> None:
    """Raises OSError when it is not there or, links followed, no regular file."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is no file but {kind_of(mode)}", str(path))


def kind_of(mode: int) -> str:
    """What is there instead of a file."""
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")
