"""Listeners that do something bad to their process at the messages whose body is ``poison``, and succeed at all others."""

from __future__ import annotations

import atexit
import ctypes
import os
import posix
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

POISON = b"poison"
SOCKETS = range(3, 64)
"""Every descriptor that may be one of the process's own."""


class Deadly:
    """A listener for messages, and, with ``columns``, one for record batches."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    def consume_message(self, msgs: Any, context: Any) -> Any:
        answer = self._act() if any(message.body == POISON for message in msgs) else None
        return "CONSUME_SUCCESS" if answer is None else answer


class InOrder(Deadly):
    def consume_message(self, msgs: Any, context: Any) -> Any:
        answer = super().consume_message(msgs, context)
        return "SUCCESS" if answer == "CONSUME_SUCCESS" else answer


class Arrow:
    columns = ("body",)

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    def consume_batch(self, batch: pa.RecordBatch) -> Any:
        answer = self._act() if POISON in batch.column(0).to_pylist() else None
        return "CONSUME_SUCCESS" if answer is None else answer


def _abort() -> None:
    os.abort()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(0)


def _exit_in_c() -> None:
    posix._exit(0)


def _another_program() -> None:
    os.execv(sys.executable, [sys.executable, "-c", "pass"])


def _interrupt() -> None:
    raise KeyboardInterrupt


def _sigint() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10_000)


class AirflowTaskTimeout(BaseException):
    __module__ = "airflow.sdk.exceptions"


def _airflow_stop() -> None:
    raise AirflowTaskTimeout


def _sleep() -> None:
    print("sleeps", flush=True)
    time.sleep(10_000)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _spin() -> None:
    while True:
        pass


def _endless() -> Iterator[str]:
    while True:
        yield "x" * (8 << 20)


def _allocate() -> None:
    bytearray(1 << 30)


def _fork_sleepers() -> None:
    for _ in range(5):
        if os.fork() == 0:
            time.sleep(10_000)


def _fork_and_return() -> None:
    os.fork()


def _close_all() -> None:
    os.closerange(3, 64)


def _garbage() -> None:
    for fd in SOCKETS:
        try:
            os.write(fd, b'{"request": 1}' * 10)
        except OSError:
            continue
    _sleep()


def _print_garbage() -> None:
    os.write(1, b"\x00\xff" * 100)


def _long_text() -> None:
    raise ValueError("x" * (64 << 20))


def _thread_left() -> None:
    threading.Thread(target=time.sleep, args=[10_000], daemon=True).start()


def _at_exit() -> None:
    atexit.register(_exit_in_c)


def _kill_starter() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10_000)


def _stop_starter() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(10_000)


def _kill_starter_once() -> None:
    """It leaves a file in the current folder."""
    try:
        os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    _kill_starter()


WAYS: dict[str, Callable[[], Any]] = {
    name.removeprefix("_"): act for name, act in list(globals().items()) if name.startswith("_") and name[1] != "_"
}
for _name, _act in WAYS.items():
    globals()[_name] = Deadly(_act)
    globals()[f"{_name}_in_order"] = InOrder(_act)
    globals()[f"{_name}_arrow"] = Arrow(_act)


class _Always(Deadly):
    def consume_message(self, msgs: Any, context: Any) -> Any:
        _exit_in_c()


always = _Always(_exit)


def uneven(msgs: Any, context: Any) -> Any:
    """In order: what it answers follows from the offset and from the tries."""
    number, tries = msgs[0].queue_offset, msgs[0].reconsume_times
    context.auto_commit = number % 5 != 3
    if number % 4 == 2 and tries < 2:
        return "ROLLBACK" if number % 3 else None
    if number == 33:
        raise ValueError(f"{number} {tries} {len(msgs)}")
    return "COMMIT" if number % 7 == 6 else "SUCCESS"


def variables(msgs: Any, context: Any) -> Any:
    """Fails with the names of the variables that it sees."""
    raise ValueError(" ".join(sorted(os.environ)))


def current_folder(msgs: Any, context: Any) -> Any:
    """Fails with the folder in which it runs."""
    raise ValueError(os.getcwd())


_calls = 0


def counting(msgs: Any, context: Any) -> Any:
    """Fails every message with its process and its number there."""
    global _calls
    _calls += 1
    raise ValueError(f"{os.getpid()} {_calls}")
