"""A program in a terminal, as a user starts it: with Ctrl-C, and a window that can be closed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self


class Terminal:
    """Runs ``command`` in a terminal of its own until the block ends. What it prints is in ``screen``."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.screen = ""
        self._keys, screen = pty.openpty()
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=screen, stdout=screen, stderr=screen, preexec_fn=_own_terminal
        )
        os.close(screen)
        self._is_closed = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def press_ctrl_c(self) -> None:
        os.write(self._keys, b"\x03")

    def close(self) -> None:
        """The kernel sends SIGHUP to the programs of the terminal, and none of them can write to it any more."""
        self._is_closed.set()
        self._reader.join()

    def end(self) -> int:
        """Wait for the end of the program, and of all that can write to its screen; returns the exit code."""
        code = self.process.wait()
        self._reader.join()
        return code

    def _read(self) -> None:
        with suppress(OSError):  # all writers have ended
            while not self._is_closed.is_set():
                if select.select([self._keys], [], [], 0.05)[0]:
                    self.screen += os.read(self._keys, 4096).decode(errors="replace")
        os.close(self._keys)


def _own_terminal() -> None:
    """In the new process. A shell that starts the tests in the background has these signals ignored."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
