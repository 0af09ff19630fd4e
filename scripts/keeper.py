"""Run a command that does not outlive its starter, however that ends: ``python -m scripts.keeper SECONDS COMMAND…``.

A process that is killed by SIGKILL cleans nothing up. So a keeper stands between the starter and the command: it leads
a session in which the command runs with all that it starts, and the starter holds the other end of its standard input.
When that closes, because the starter says so or is no longer there, the keeper ends the session and then itself.
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
_TO_KILL_S = 60.0  # what was killed ends as soon as the machine comes to it

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

    ``patience_s``: how long the command has to end, once it is asked to, before it is killed. ``keep_open``:
    descriptors that the keeper holds until nothing is left, like the one of a lock.
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


def end_kept(keepers: Collection[subprocess.Popen[bytes]], timeout_s: float = PATIENCE_S + _TO_KILL_S) -> None:
    """End what these keepers keep, all at once; safe to call twice. What a keeper could not end is killed from here.

    Raises TimeoutError, with the process ids, for what does not end even so.
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
        keeper.wait(_TO_KILL_S)


def members_of(sessions: Collection[int]) -> list[psutil.Process]:
    """The living processes of these sessions."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _kill(sessions: Collection[int], but: int | None = None) -> None:
    """Again and again, as a process may start another before it dies."""
    deadline = time.monotonic() + _TO_KILL_S
    while left := [process for process in members_of(sessions) if process.pid != but]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes do not end: {', '.join(str(process.pid) for process in left)}")
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)


# --- the keeper ------------------------------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    patience_s, command = float(words[0]), list(words[1:])
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for watch in (_until_stdin_ends, child.wait):
        threading.Thread(target=_and_tell, args=(watch, told), daemon=True).start()
    told.wait()
    end_session(child, patience_s)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _until_stdin_ends() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass


def _and_tell(watch: Callable[[], object], told: threading.Event) -> None:
    watch()
    told.set()


def end_session(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask the child, ask again after half of the time (Airflow then no longer waits for what it runs), then kill what
    is left. Without a child that could pass it on, all of the session are asked."""
    me = os.getpid()

    def left() -> list[psutil.Process]:
        return [process for process in members_of({me}) if process.pid != me]

    for _ in range(2):
        for process in [child] if child.poll() is None else left():
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        deadline = time.monotonic() + patience_s / 2
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)
    _kill({me}, but=me)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
