"""Wait for what other processes do for as long as they get on with it, whatever the speed of the machine.

A fixed time-out is wrong on a machine that is ten times slower, or does other work. So no clock says how long a start may
take: processes get on as long as they use processor time or write to their logs.
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
"""Far more than anything here needs: for what is busy for ever and gets nowhere."""
_TELL_EVERY_S = 15.0
_LEAST_CPU_S = 1.0
"""An idle JVM also uses some: what is less than this in ``LONGEST_IDLE_S`` is no progress."""


class NoProgress(TimeoutError):
    """What is waited for does not come."""


class Signs(NamedTuple):
    """``cpu_s``: processor time that the processes have used since they started. ``log_bytes``: size of their logs."""

    cpu_s: float
    log_bytes: int


@dataclass(slots=True)
class Patience:
    """Whether to go on waiting. ``began_s``, ``now_s``: any clock that does not go back."""

    began_s: float
    began: Signs
    _last: Signs = field(init=False)
    _last_s: float = field(init=False)
    _told_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last, self._last_s, self._told_s = self.began, self.began_s, self.began_s

    def look(self, now_s: float, signs: Signs) -> str | None:
        """What to tell the user now, if anything. Raises NoProgress after ``LONGEST_IDLE_S`` without any progress, or
        when ``MOST_CPU_S`` have been used."""
        used_s = signs.cpu_s - self.began.cpu_s
        if signs.cpu_s >= self._last.cpu_s + _LEAST_CPU_S or signs.log_bytes != self._last.log_bytes:
            self._last, self._last_s = signs, now_s
        elif signs.cpu_s < self._last.cpu_s:  # one has ended, and took its account along
            self._last = signs
        if now_s - self._last_s >= LONGEST_IDLE_S:
            raise NoProgress(f"no progress for {LONGEST_IDLE_S:.0f} s; it used {used_s:.0f} s of processor time")
        if used_s >= MOST_CPU_S:
            raise NoProgress(f"not there after {used_s:.0f} s of processor time")
        if now_s - self._told_s < _TELL_EVERY_S:
            return None
        self._told_s = now_s
        return f"it used {used_s:.0f} s of processor time so far"


def wait_for_progress(
    done: Callable[[], bool],
    signs: Callable[[], Signs],
    what: str,
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[], None] = lambda: time.sleep(0.25),
) -> None:
    """Until ``done``, which raises an error of its own when it cannot come true any more, as where a process has ended.
    ``say`` gets every 15 s ``what`` is waited for ("Spark is still starting"). Raises NoProgress."""
    patience = Patience(clock(), signs())
    while not done():
        if (news := patience.look(clock(), signs())) is not None:
            say(f"{what}; {news}")
        pause()


def signs_of(process_ids: Collection[int], logs: Collection[Path] = ()) -> Signs:
    """Of these processes and all that they have started, also what has ended since."""
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
