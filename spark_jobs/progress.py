"""Wait for other processes as long as they make progress, whatever the speed of the machine.

A fixed time-out is wrong on a machine that is ten times slower, or busy. So there is no limit on how long a start may
take: processes make progress as long as they use CPU time or write to their logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

LONGEST_IDLE_S = 120.0
MOST_CPU_S = 1800.0
"""Far more than any start needs: a limit for processes that are busy for ever."""
_REPORT_EVERY_S = 15.0
_LOOK_EVERY_S = 5.0
"""To look for signs reads the state of every process of the machine."""
_LEAST_CPU_S = 1.0
"""An idle JVM also uses some CPU time: less than this in ``LONGEST_IDLE_S`` is no progress."""


class NoProgress(TimeoutError):
    """The processes that are waited for make no progress."""


class Signs(NamedTuple):
    """Signs of progress."""

    cpu_s: float
    """CPU time that the processes have used since they started."""
    log_bytes: int
    """Size of their logs."""


@dataclass(slots=True)
class Patience:
    """Decides whether to wait longer. All times are seconds of a monotonic clock."""

    began_s: float
    began: Signs
    _last: Signs = field(init=False)
    _last_s: float = field(init=False)
    _reported_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last, self._last_s, self._reported_s = self.began, self.began_s, self.began_s

    def look(self, now_s: float, signs: Signs) -> str | None:
        """A report for the user, if one is due. Raises NoProgress after ``LONGEST_IDLE_S`` without progress, or when
        ``MOST_CPU_S`` have been used."""
        used_s = signs.cpu_s - self.began.cpu_s
        if signs.cpu_s >= self._last.cpu_s + _LEAST_CPU_S or signs.log_bytes != self._last.log_bytes:
            self._last, self._last_s = signs, now_s
        elif signs.cpu_s < self._last.cpu_s:  # a process has ended, and its CPU time no longer counts
            self._last = signs
        if now_s - self._last_s >= LONGEST_IDLE_S:
            raise NoProgress(f"no progress for {LONGEST_IDLE_S:.0f} s; it used {used_s:.0f} s of CPU time")
        if used_s >= MOST_CPU_S:
            raise NoProgress(f"not ready after {used_s:.0f} s of CPU time")
        if now_s - self._reported_s < _REPORT_EVERY_S:
            return None
        self._reported_s = now_s
        return f"it used {used_s:.0f} s of CPU time so far"


def wait_for_progress(
    is_done: Callable[[], bool],
    signs: Callable[[], Signs],
    what: str,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[], None] = lambda: time.sleep(0.25),
) -> None:
    """Wait until ``is_done()``, which raises an error of its own when it can no longer come true, for example because a
    process has ended.

    Every 15 s ``say`` gets ``what`` ("Spark is still starting") and the CPU time so far. Raises NoProgress.
    """
    looked_s = clock()
    patience = Patience(looked_s, signs())
    while not is_done():
        now_s = clock()
        if now_s - looked_s >= _LOOK_EVERY_S:
            looked_s = now_s
            if (news := patience.look(now_s, signs())) is not None:
                say(f"{what}; {news}")
        pause()


def signs_of(process_ids: Collection[int], logs: Collection[Path] = ()) -> Signs:
    """The signs of these processes and all their descendants, including those that have ended."""
    return Signs(sum(map(_cpu_s, process_ids)), sum(log.stat().st_size for log in logs if log.exists()))


def _cpu_s(process_id: int) -> float:
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process_id)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                total += used.user + used.system + used.children_user + used.children_system
    return total
