"""Runs of commands, several at a time: each is disturbed as chosen, watched for hangs, and its answer is counted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from tests.faults.soak.answers import Answer, Ending, answer_of
from tests.faults.soak.disturbances import Disturbance, Kind
from tests.faults.soak.listeners import ATTEMPT, CALLS, REQUEST
from tests.faults.soak.operations import Operation
from tests.faults.soak.tally import Defect, Tally
from tests.faults.soak.worker import OUTPUT, PROCESSES, Run, run
from tests.faults.soak.world import SETTINGS, World

IDLE_S = 120.0
"""A process that uses no CPU time and writes nothing for so long hangs."""
_LOOK_EVERY_S = 0.03


@dataclass(slots=True)
class Running:
    """A run of a command."""

    operation: Operation
    number: int
    """Of the operation in its round; 0: a check."""
    disturbance: Disturbance
    process: ForkServerProcess
    folder: Path
    began_s: float
    is_disturbed: bool = False
    """Whether the disturbance is over."""
    frozen_at_s: float | None = None
    sign: tuple[float, int] = (0.0, 0)
    """CPU seconds, and bytes of output."""
    sign_s: float = 0.0
    """When the sign changed last."""

    @property
    def pid(self) -> int:
        pid = self.process.pid
        assert pid is not None
        return pid


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended."""

    running: Running
    answer: Answer


@dataclass(slots=True)
class Runs:
    """The runs of a round."""

    world: World
    round: int
    tally: Tally
    running: list[Running] = field(default_factory=list)
    count: int = 0

    def start(self, number: int, operation: Operation, disturbance: Disturbance) -> Running:
        self.count += 1
        attempt = f"{number}-{self.count}"
        folder = self.world.folder / "runs" / attempt
        folder.mkdir()
        for name in OUTPUT:  # also of a process that is killed before it opens them
            (folder / name).touch()
        one = Run(self._arguments(operation, folder), folder, self._environment(operation, attempt), disturbance.at)
        process = PROCESSES.Process(target=run, args=(one,))
        process.start()
        now_s = time.monotonic()
        running = Running(operation, number, disturbance, process, folder, now_s, sign_s=now_s)
        self.running.append(running)
        self.tally.tried[operation.kind] += 1
        return running

    def _arguments(self, operation: Operation, folder: Path) -> tuple[str, ...]:
        arguments = [*operation.arguments, "--json"]
        if "--root" not in arguments:
            arguments += ["--root", self.world.root]
        if operation.request is not None:
            arguments += ["--request", operation.request]
        if operation.messages:
            lines = folder / "messages.jsonl"
            lines.write_text("\n".join(operation.messages) + "\n")
            arguments += ["--file", str(lines)]
        return tuple(arguments)

    def _environment(self, operation: Operation, attempt: str) -> Mapping[str, str]:
        return {
            **self.world.environment,
            "RMQ_SETTINGS": str(SETTINGS),
            CALLS: str(self.world.history / "calls"),
            REQUEST: operation.request or "",
            ATTEMPT: attempt,
        }

    def alone(self, number: int, operation: Operation, disturbance: Disturbance | None = None) -> Ended:
        """A run to its end, while nothing else runs."""
        running = self.start(number, operation, disturbance or Disturbance())
        while True:
            for one in self.look():
                if one.running is running:
                    return one

    def must(self, operation: Operation) -> None:
        """A run that must succeed, while nothing else runs."""
        answer = self.alone(0, operation).answer
        if answer.ending is not Ending.DONE and answer.ending is not Ending.DEFECT:
            self.defect(f"{answer.kind} while nothing else runs", operation, answer.text)

    def look(self) -> list[Ended]:
        """Wait for a moment, disturb what is to be disturbed, and return what has ended."""
        wait([one.process.sentinel for one in self.running], timeout=_LOOK_EVERY_S)
        ended = [one for one in self.running if one.process.exitcode is not None]
        self.running = [one for one in self.running if one not in ended]
        for one in self.running:
            self._disturb(one)
            self._watch(one)
        return [self._ended(one) for one in ended]

    def stop(self) -> None:
        """End what still runs, after an error of the soak itself."""
        for one in self.running:
            _signal(one.pid, signal.SIGKILL)
            one.process.join()

    def defect(
        self, what: str, operation: Operation, text: str, number: int = 0, disturbance: Disturbance | None = None
    ) -> None:
        request = ("--request", operation.request) if operation.request else ()
        command = " ".join(("rmq", *operation.arguments, *request))
        disturbed = str(disturbance or Disturbance())
        self.tally.defects.append(Defect(what, command, self.round, number, disturbed, text))

    def _ended(self, one: Running) -> Ended:
        exit_code = one.process.exitcode
        assert exit_code is not None
        one.process.close()
        answer = answer_of(
            one.operation.kind,
            exit_code,
            one.folder,
            was_killed=one.disturbance.kind is Kind.KILL,
            was_terminated=one.disturbance.kind is Kind.TERMINATE,
            is_local=not self.world.environment,
        )
        self.tally.add(one.operation.kind, answer)
        if answer.ending is Ending.DEFECT:
            self.defect(answer.kind, one.operation, answer.text, one.number, one.disturbance)
        return Ended(one, answer)

    def _disturb(self, one: Running) -> None:
        now_s, disturbance = time.monotonic(), one.disturbance
        if disturbance.kind is Kind.NONE or one.is_disturbed:
            return
        if one.frozen_at_s is not None:
            if now_s >= one.frozen_at_s + disturbance.frozen_s:
                one.is_disturbed = True
                _signal(one.pid, signal.SIGCONT)
        elif disturbance.kind is Kind.FREEZE:
            if disturbance.at is None and now_s >= one.began_s + disturbance.after_s:
                _signal(one.pid, signal.SIGSTOP)
            if _is_stopped(one.pid):
                one.frozen_at_s = now_s
                self.tally.frozen[one.operation.kind] += 1
        elif disturbance.at is None and now_s >= one.began_s + disturbance.after_s:
            one.is_disturbed = True
            _signal(one.pid, signal.SIGKILL if disturbance.kind is Kind.KILL else signal.SIGTERM)

    def _watch(self, one: Running) -> None:
        """A process that hangs is a defect, and is killed."""
        now_s = time.monotonic()
        with suppress(psutil.Error, OSError):
            times = psutil.Process(one.pid).cpu_times()
            sign = (round(times.user + times.system, 1), sum(path.stat().st_size for path in one.folder.iterdir()))
            is_frozen = one.frozen_at_s is not None and not one.is_disturbed
            if sign != one.sign or is_frozen:
                one.sign, one.sign_s = sign, now_s
        if now_s - one.sign_s > IDLE_S:
            text = f"no CPU time and no output for {IDLE_S:.0f} s"
            self.defect("hang", one.operation, text, one.number, one.disturbance)
            _signal(one.pid, signal.SIGKILL)
            one.sign_s = now_s


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
