"""What an option names to be read: a file, a pipe of the shell, or standard input."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

from rmq_store.errors import WrongUse
from rmq_store.utils.small_file import check_is_file, read_bounded

MOST_TEXT_MIB: Final = 64
"""The longest text: a query, edits."""

_OWN_PIPE = re.compile(r"/dev/stdin|/(dev|proc/self)/fd/\d+")
"""What a shell makes of ``<(...)``: a pipe that is open already. Opening another one would wait for its writer."""


def read_input(option: str, name: str, most_mib: int) -> bytes:
    """All bytes of standard input (``-``), of a regular file, or of a pipe that the shell opened for this process.

    Raises WrongUse, with the name of the option, for anything else, such as a device or a FIFO, and for more than ``most_mib``.
    """
    try:
        if name == "-":
            return read_bounded(sys.stdin.buffer, most_mib)
        if not (_OWN_PIPE.fullmatch(name) and stat.S_ISFIFO(os.stat(name).st_mode)):
            check_is_file(name)
        with Path(name).open("rb") as file:
            return read_bounded(file, most_mib)
    except OSError as error:
        raise WrongUse(f"{option} {name} cannot be read: {error.strerror or error}") from error


def read_text_input(option: str, name: str) -> str:
    """As ``read_input``, a text in UTF-8 of at most ``MOST_TEXT_MIB``."""
    try:
        return read_input(option, name, MOST_TEXT_MIB).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongUse(f"{option} {name} cannot be read: {error}") from error
