"""Run a command that never outlives its starter: ``python -m scripts.keeper SECONDS COMMAND…``.

A process that is killed by SIGKILL cannot clean up. So a keeper runs between the starter and the command: it leads a
session in which the command and its descendants run, and the starter holds the other end of its standard input. When
that end closes, because the starter closes it or is gone, the keeper ends the session and then itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

CHECKOUT = Path(__file__).resolve().parents[1]
PATIENCE_S = 8.0
_KILL_TIMEOUT_S = 60.0  # on a busy machine a killed process needs a while to end

# --- in the starter --------------------------------------------------------------------------------------------------


def start_kept(
    command: Sequence[str],
    log: BinaryIO,
    *,
    env: Mapping[str, str],
    patience_s: float = PATIENCE_S,
    keep_open: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """The keeper of the command, which runs in the checkout and writes into ``log``; its exit code is the command's.

    ``patience_s``: seconds between the request to end and the kill. ``keep_open``: descriptors, such as a lock's, that
    the keeper holds until no process of the session is left.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.keeper", str(patience_s), *command],
        env=env,
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(keep_open),
    )


def end_kept(keepers: Collection[subprocess.Popen[bytes]], timeout_s: float = PATIENCE_S + _KILL_TIMEOUT_S) -> None:
    """End these keepers and their commands, all at once; safe to call twice. What a keeper cannot end is killed.

    Raises TimeoutError, with the process ids, when killed processes do not end.
    """
    for keeper in keepers:
        assert keeper.stdin is not None
        keeper.stdin.close()
    deadline = time.monotonic() + timeout_s
    for keeper in keepers:
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(max(0.0, deadline - time.monotonic()))
    _kill({keeper.pid for keeper in keepers})
    for keeper in keepers:
        keeper.wait(_KILL_TIMEOUT_S)


def members_of(sessions: Collection[int]) -> list[psutil.Process]:
    """The living processes of these sessions."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def _kill(sessions: Collection[int], except_pid: int | None = None) -> None:
    """Kill the processes of these sessions, repeatedly, as a process may start another one before it ends."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while members := [process for process in members_of(sessions) if process.pid != except_pid]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes do not end: {', '.join(str(process.pid) for process in members)}")
        for process in members:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(members, timeout=0.2)


# --- the keeper ------------------------------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    patience_s, command = float(words[0]), list(words[1:])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for wait in (_until_stdin_ends, child.wait):
        threading.Thread(target=_set_after, args=(wait, stop), daemon=True).start()
    stop.wait()
    end_session(child, patience_s)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _until_stdin_ends() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass


def _set_after(wait: Callable[[], object], event: threading.Event) -> None:
    wait()
    event.set()


def end_session(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Send SIGTERM to the child, again after half of the time (then Airflow no longer waits for its tasks), and kill
    what is left. When the child has ended, all processes of the session get the signal."""
    session = os.getpid()

    def others() -> list[psutil.Process]:
        return [process for process in members_of({session}) if process.pid != session]

    for _ in range(2):
        for process in [child] if child.poll() is None else others():
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        deadline = time.monotonic() + patience_s / 2
        while others() and time.monotonic() < deadline:
            time.sleep(0.1)
    _kill({session}, except_pid=session)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
