"""The processes of listeners, as the process of a task sees them: start one, ask it, wait for its answer or its end."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rmq_store.consumer.listener_death import Death, DeathKind
from rmq_store.errors import ListenerError, ListenerNotStarted
from rmq_store.lake.listener.shared_memory import BOARD_BYTES, Board, SharedRows, memory_file
from rmq_store.lake.listener.worker import MOST_REQUEST
from rmq_store.utils.host import monotonic_ms

LOOK_EVERY_MS: Final = 200
"""How often a task that waits for its listener looks whether it is to stop."""

_CLOSING_MS: Final = 2_000
"""So long after the end of the pipe the end of the process is awaited."""

_STATUS_MS: Final = 30_000
_STARTING_MS: Final = 120_000
"""So long the process that starts the others may take to tell the end of one, and to start one: a stopped one never does."""

STARTS: Final = 2
"""So often the process that starts the others is started where it ends before a listener is loaded."""
ENDED_TWICE: Final = (
    "the process that starts those of listeners has ended twice: it was killed, or see its messages on standard error. The "
    "listener was not called: run the request again"
)

_MAIN = (
    "import sys; sys.path[:] = sys.argv[2:]; from rmq_store.lake.listener.server import main; main(int(sys.argv[1]))"
)

BASIC_VARIABLES: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM", "HOSTNAME",
    "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "PYTHONUTF8",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS",
)  # fmt: skip
"""The variables of the environment that every listener gets. None of them has a secret."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a listener's process. None: no limit."""

    timeout_s: int | None = None
    """Of one call."""
    memory_mib: int | None = None
    """Address space beyond what the process has when it starts."""
    cpu_s: int | None = None
    """CPU time of one call."""


def environment_of(names: Sequence[str]) -> dict[str, str]:
    """The environment of a listener: the basic variables and those of ``names`` that are set here."""
    return {name: os.environ[name] for name in (*BASIC_VARIABLES, *names) if name in os.environ}


def current_folder() -> str:
    """The current folder; ``/`` if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def import_path() -> list[str]:
    """``sys.path`` of this process with absolute folders. The current folder comes last, wherever it is here."""
    current = current_folder()
    path = [os.path.normpath(os.path.join(current, entry)) for entry in sys.path]
    return [*(entry for entry in path if entry != current), *([current] if current in path else [])]


# --- the process that starts them ------------------------------------------------------------------------------------


class _Server:
    """``server.py``, of this process."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, str(other.fileno()), *import_path()],
                env=environment_of(()),
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=_fd_of(sys.stdout),
                stderr=_fd_of(sys.stderr),
                process_group=0,  # a signal to the window's group is for the window, which then ends these processes
            )

    def spawn(self, channel: int, board: int) -> tuple[int, int]:
        """A new process: its id, and the pipe that will tell its status. Raises ConnectionError when the server has ended."""
        status, other_end = os.pipe()
        try:
            try:
                socket.send_fds(self._control, [b"spawn"], [channel, board, other_end])
            finally:
                os.close(other_end)
            answer = self.told(status, _STARTING_MS)
            if answer is None:
                raise ConnectionResetError("it has ended before it answered")
        except BaseException:
            os.close(status)
            raise
        return answer, status

    def told(self, status: int, most_ms: int) -> int | None:
        """The next number in the pipe of a process; None: this process has ended. It is killed if it tells nothing."""
        poll = select.poll()
        poll.register(status, select.POLLIN)
        if not poll.poll(most_ms):
            self._process.kill()
        data = os.read(status, 4)
        return int.from_bytes(data, "little", signed=True) if len(data) == 4 else None

    def send(self, words: str) -> None:
        with suppress(OSError):  # it has died, and the processes with it
            self._control.send(words.encode())

    def close(self) -> None:
        """End all processes, and wait for it."""
        self.send("bye")
        self._control.close()
        try:
            self._process.wait(_STATUS_MS / 1000)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a fork of the process that it belongs to."""
        self._control.close()
        self._process.returncode = 0  # no process of the fork: nothing is to be waited for


def _fd_of(stream: Any) -> int:
    """Where the listener's prints go: the stream of this process if it has a descriptor, else standard error."""
    try:
        stream.flush()
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return 2


_lock = threading.Lock()
_server: _Server | None = None


def _started_server() -> _Server:
    global _server
    with _lock:
        if _server is None:
            _server = _Server()
        return _server


def _forget_server() -> None:
    """In a fork: the processes are those of its parent."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.forget()
        _server = None


def _spawned(channel: int, board: int) -> tuple[_Server, int, int]:
    """A new process, and the server that has started it. A server that has ended is started again, once. Raises
    ListenerNotStarted, OSError."""
    for _ in range(STARTS):
        server = _started_server()
        try:
            return server, *server.spawn(channel, board)
        except ConnectionError:
            _close_ended(server)
    raise ListenerNotStarted(ENDED_TWICE)


def _close_ended(server: _Server) -> None:
    """The next process is for another server."""
    global _server
    with _lock:
        if _server is not server:
            return  # another thread has closed it
        _server = None
    server.close()


def close_server() -> None:
    """End the processes of all listeners of this process."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.close()


os.register_at_fork(after_in_child=_forget_server)


# --- one process -----------------------------------------------------------------------------------------------------


class ListenerProcess:
    """A process that runs one listener (``worker.py``)."""

    def __init__(self) -> None:
        board = memory_file("rmq-board", BOARD_BYTES)
        try:
            self.board = Board(board)
            self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                try:
                    self._server, self._pid, self._status = _spawned(other.fileno(), board)
                except BaseException:
                    self._channel.close()
                    raise
        finally:
            os.close(board)
        self._requests = 0
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._status, select.POLLIN)
        self.rows = SharedRows()
        self.mapped = 0
        """The generation of ``rows`` that it has."""
        self.shared: set[int] = set()
        """The numbers of the rows in order that it has."""
        self.is_starter_dead = False
        """Whether it has ended with the process that started it."""

    def send(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> int:
        """Send a request; returns its number. A process that has died is noticed by ``answer``."""
        self._requests += 1
        data = json.dumps({"request": self._requests} | dict(request)).encode()
        if len(data) > MOST_REQUEST:
            raise ListenerError("a request for a listener is too long: its environment or its import path is")
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._channel, [data], list(fds))
        return self._requests

    def answer(self, number: int, limits: Limits, tick: Callable[[], object]) -> dict[str, Any] | Death:
        """The answer to the request ``number``, or why there is none; then the process is gone.

        ``tick`` is called several times a second while this waits, and may raise to stop it; the process is killed then.
        """
        try:
            return self._answer(number, limits, tick)
        except BaseException:
            self.kill()
            raise

    def _answer(self, number: int, limits: Limits, tick: Callable[[], object]) -> dict[str, Any] | Death:
        progress = (self.board.request, self.board.judged)
        since_ms, is_closed = monotonic_ms(), False
        while True:
            ready = {fd for fd, _ in self._poll.poll(LOOK_EVERY_MS)}
            if self._channel.fileno() in ready:
                if data := self._received():
                    answer = _parsed(data, number)
                    if answer is None:
                        return self._killed(DeathKind.KILLED, "its process has written into the pipe of its answers")
                    return answer
                self._poll.unregister(self._channel)  # it ends, or has closed the pipe itself
                is_closed, since_ms = True, monotonic_ms()
            if self._status in ready:
                return Death(DeathKind.KILLED, _end_text(self._wait(), limits))
            tick()
            now, now_ms = (self.board.request, self.board.judged), monotonic_ms()
            if is_closed and now_ms - since_ms >= _CLOSING_MS:
                return self._killed(DeathKind.KILLED, "its process has closed the pipe of its answers")
            if now != progress:
                progress, since_ms = now, now_ms
            elif limits.timeout_s is not None and now_ms - since_ms >= limits.timeout_s * 1000:
                return self._killed(DeathKind.TIMEOUT, f"the call took longer than the limit, {limits.timeout_s} s")

    def _killed(self, kind: DeathKind, text: str) -> Death:
        self.kill()
        return Death(kind, text)

    def _received(self) -> bytes:
        try:
            return self._channel.recv(MOST_REQUEST)
        except OSError:
            return b""

    def kill(self) -> None:
        """End it at once."""
        if self._status >= 0:
            self._server.send(f"kill {self._pid}")
            self._wait()

    def end(self) -> None:
        """Let it end itself. It is killed if that takes longer than a few seconds."""
        if self._status >= 0:
            self._channel.close()
            self._server.send(f"end {self._pid}")
            self._close()

    def _wait(self) -> int | None:
        """Wait for its end: its status, None when the process that started it has died, too."""
        self._channel.close()
        status = self._server.told(self._status, _STATUS_MS)
        self._close()
        self.is_starter_dead = status is None
        return status

    def _close(self) -> None:
        """It has ended, or ends: nothing is asked any more."""
        os.close(self._status)
        self._status = -1
        self.rows.close()


def _parsed(data: bytes, number: int) -> dict[str, Any] | None:
    """An answer to the request; None for anything else."""
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and answer.get("request") == number else None


def _end_text(status: int | None, limits: Limits) -> str:
    if status is None:
        return "its process was killed, with that which starts the processes of listeners"
    if not os.WIFSIGNALED(status):
        return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU and limits.cpu_s is not None:
        return f"the call used more CPU time than the limit, {limits.cpu_s} s"
    return f"its process was ended by signal {number} ({signal.strsignal(number)})"
