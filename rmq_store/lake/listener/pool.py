"""Processes of listeners that wait for their next task, by what they were started with."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import Final

from rmq_store.lake.listener.processes import Limits, ListenerProcess, close_server

MOST_IDLE: Final = 8


@dataclass(frozen=True, slots=True)
class Start:
    """What a process is started with: one with other values is another process."""

    listener: str
    """``module:attribute``."""
    environment: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    """``sys.path``."""
    folder: str
    """The current folder."""
    limits: Limits


_idle: list[tuple[Start, ListenerProcess]] = []
"""The one that was used last is the last."""
_lock = threading.Lock()


def take(start: Start) -> ListenerProcess | None:
    """A process for the caller alone; None: there is none that waits."""
    with _lock:
        for at in reversed(range(len(_idle))):
            if _idle[at][0] == start:
                return _idle.pop(at)[1]
    return None


def give_back(start: Start, process: ListenerProcess) -> None:
    """The caller needs it no more. Of more than ``MOST_IDLE`` the one that waited longest is ended."""
    with _lock:
        _idle.append((start, process))
        surplus = [_idle.pop(0)[1]] if len(_idle) > MOST_IDLE else []
    for one in surplus:
        one.end()


def close() -> None:
    """End all processes, those in use too, and wait until they have ended."""
    with _lock:
        idle = [process for _, process in _idle]
        _idle.clear()
    for process in idle:
        process.end()
    close_server()


def _forget() -> None:
    """In a fork: they belong to its parent."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close)
