"""The process that starts the processes of listeners, with a fork that costs milliseconds and not a new interpreter.

It has one thread and no secrets, is started once by a process that runs windows (``processes.py``), and ends with it, however
that ends: the socket to it is then at its end. With it end all processes of listeners, and what these have started.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import warnings
from contextlib import suppress
from typing import Final, NoReturn

from rmq_store.errors import without_stops
from rmq_store.lake.listener.shared_memory import Board
from rmq_store.lake.listener.worker import serve
from rmq_store.utils.host import monotonic_ms

GRACE_MS: Final = 5_000
"""So long a process may take to end itself (``atexit``) before it is killed."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(fd: int) -> None:
    """Serve the socket ``fd``: ``spawn`` with three descriptors (the worker's socket, its board, the pipe that tells its
    process id and, at its end, its status), ``kill PID``, ``end PID`` and ``bye``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that runs the window
    _prctl(_PR_SET_CHILD_SUBREAPER)  # what a listener has started is ended with it
    wake_up, woken = os.pipe()
    for end in (wake_up, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    with warnings.catch_warnings():  # numpy may have threads, which no forked process uses
        warnings.simplefilter("ignore", DeprecationWarning)
        gc.collect()
        gc.freeze()
    _Server(socket.socket(fileno=fd), wake_up, woken).run()


class _Server:
    def __init__(self, control: socket.socket, wake_up: int, woken: int) -> None:
        self._control, self._wake_up, self._woken = control, wake_up, woken
        self._statuses: dict[int, int] = {}
        """The pipe of each process."""
        self._ends_at_ms: dict[int, int] = {}
        self._is_over = False

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_up, select.POLLIN)
        while self._statuses or not self._is_over:
            ready = {fd for fd, _ in poll.poll(100 if self._ends_at_ms else None)}
            if self._wake_up in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_up, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._is_over:
                self._obey()
                if self._is_over:
                    poll.unregister(self._control)
            self._kill_late()
        _kill_children()

    def _obey(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, 64, 3)
        match data.decode().split():
            case ["spawn"]:
                self._spawn(*fds)
            case ["kill", number]:
                self._kill(int(number))
            case ["end", number]:
                self._ends_at_ms[int(number)] = monotonic_ms() + GRACE_MS
            case ["bye"]:
                self._is_over = True
                self._ends_at_ms = dict.fromkeys(self._statuses, monotonic_ms() + GRACE_MS)
            case _:  # the other process has died
                for pid in list(self._statuses):
                    self._kill(pid)
                self._statuses.clear()
                self._is_over = True

    def _spawn(self, channel: int, board: int, status: int) -> None:
        server = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become_worker(server, channel, board, status)
        with suppress(OSError):
            os.setpgid(pid, pid)
        self._statuses[pid] = status
        _tell(status, pid)
        os.close(channel)
        os.close(board)

    def _become_worker(self, server: int, channel: int, board: int, status: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        for fd in (self._wake_up, self._woken, status, *self._statuses.values()):
            os.close(fd)
        self._control.close()
        _be_killed_first()
        without_stops()
        shared = Board(board)
        os.close(board)
        serve(socket.socket(fileno=channel), shared)
        sys.exit()  # with the hooks of ``atexit``, and with what a listener has in the buffers of its files

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._ends_at_ms.pop(pid, None)
                if pid in self._statuses:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)  # what it has started
                    pipe = self._statuses.pop(pid)
                    _tell(pipe, status)
                    os.close(pipe)

    def _kill(self, pid: int) -> None:
        if pid in self._statuses:  # else it is reaped, and another process may have the number
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _kill_late(self) -> None:
        if not self._ends_at_ms:
            return
        now_ms = monotonic_ms()
        for pid in [pid for pid, ends_at_ms in self._ends_at_ms.items() if ends_at_ms <= now_ms]:
            del self._ends_at_ms[pid]
            self._kill(pid)


def _tell(pipe: int, number: int) -> None:
    with suppress(OSError):
        os.write(pipe, number.to_bytes(4, "little", signed=True))


def _kill_children() -> None:
    """What listeners have started in groups of their own."""
    with suppress(OSError):
        path = f"/proc/self/task/{os.getpid()}/children"
        with open(path, encoding="ascii") as file:
            for pid in file.read().split():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)


def _be_killed_first() -> None:
    """When memory is short, the kernel kills this process and not the window's."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("500")


def _prctl(option: int, argument: int = 1) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
