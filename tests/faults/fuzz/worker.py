"""A process that runs cases, and the watch over several of them: none may hang, or take too much memory."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from rmq_store.errors import defect
from tests.faults.fuzz.cases import Case
from tests.faults.fuzz.judge import Failure
from tests.faults.fuzz.run_case import Result, run_case
from tests.faults.soak.worker import PROCESSES

MOST_CPU_S = 60.0
"""A case that takes more CPU time hangs: the slowest take ten seconds."""
MOST_IDLE_S = 60.0
"""Nor may it use none for so long."""
MOST_RESIDENT = 2 << 30
MOST_ADDRESSES = 12 << 30
"""Beyond it an allocation fails, before the machine is short of memory. Libraries reserve addresses that they do not use."""
MOST_FILE = 256 << 20
_CASES_OF_A_WORKER = 200
_LOOK_EVERY_S = 0.2


def work(connection: Connection, starts: Path, folder: Path, log: Path) -> None:
    """The target of a process: a case in, its result out, until None comes. ``log`` gets what libraries print."""
    with log.open("ab", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        faulthandler.register(signal.SIGUSR1, file)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE, MOST_FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while (case := connection.recv()) is not None:
            os.ftruncate(file.fileno(), 0)
            try:
                result = run_case(case, starts, folder)
            except Exception as error:
                result = Result(case, failure=Failure("error of the fuzz", "", defect(error)))
            panic = log.read_text("utf-8", "replace")
            if result.failure is None and "panicked at" in panic:
                result.failure = Failure("panic of a library", "", panic[-2000:])
            connection.send(result)


@dataclass(slots=True)
class Worker:
    """A process and what it does."""

    process: ForkServerProcess
    connection: Connection
    log: Path
    case: Case | None = None
    cases: int = 0
    begin_cpu_s: float = 0.0
    cpu_s: float = 0.0
    """When it was last seen to use some."""
    sign_s: float = 0.0

    def give(self, case: Case) -> None:
        self.case, self.cases = case, self.cases + 1
        self.begin_cpu_s = self.cpu_s = self._cpu()
        self.sign_s = time.monotonic()
        self.connection.send(case)

    def take(self) -> Result:
        """Raises EOFError if the process has ended."""
        assert self.case is not None
        result = self.connection.recv()
        assert isinstance(result, Result)
        self.case = None
        return result

    def problem(self) -> str | None:
        """Why its case must be ended."""
        now_s, cpu_s = time.monotonic(), self._cpu()
        if abs(cpu_s - self.cpu_s) > 0.02:
            self.cpu_s, self.sign_s = cpu_s, now_s
        if cpu_s - self.begin_cpu_s > MOST_CPU_S:
            return f"hang: more than {MOST_CPU_S:.0f} s of CPU time"
        if now_s - self.sign_s > MOST_IDLE_S:
            return f"hang: no CPU time for {MOST_IDLE_S:.0f} s"
        with suppress(psutil.Error):
            if sum(process.memory_info().rss for process in self._processes()) > MOST_RESIDENT:
                return f"more than {MOST_RESIDENT >> 20} MiB of memory"
        return None

    def _processes(self) -> list[psutil.Process]:
        """It, and the processes of its listeners."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def _cpu(self) -> float:
        """Seconds of CPU time of these processes, and of those that have ended."""
        try:
            return sum(sum(process.cpu_times()[:4]) for process in self._processes())
        except psutil.Error:
            return self.cpu_s

    def kill(self) -> str:
        """End the process; returns where its threads were."""
        pid = self.process.pid
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
            self.process.join(0.5)
            self.process.kill()
        self.process.join()
        return self.log.read_text("utf-8", "replace")[:4000]


@dataclass(slots=True)
class Workers:
    """Several processes over the starts in ``folder / "starts"``."""

    folder: Path
    processes: int
    idle: list[Worker] = field(default_factory=list)
    busy: list[Worker] = field(default_factory=list)
    count: int = 0

    def results(self, cases: Iterable[Case], is_over: Callable[[], bool] = lambda: False) -> Iterator[Result]:
        """Of each case, in the order in which they end; cases that have begun are run to their end."""
        waiting = iter(cases)
        while True:
            while len(self.busy) < self.processes and not is_over() and (case := next(waiting, None)) is not None:
                worker = self.idle.pop() if self.idle else self._new()
                worker.give(case)
                self.busy.append(worker)
            if not self.busy:
                return
            yield from self._look()

    def _look(self) -> Iterator[Result]:
        ready = wait([worker.connection for worker in self.busy], timeout=_LOOK_EVERY_S)
        for worker in list(self.busy):
            case = worker.case
            assert case is not None
            if worker.connection in ready:
                try:
                    result = worker.take()
                except (EOFError, ConnectionError):
                    text = worker.kill()
                    result = Result(case, failure=Failure(f"exit {worker.process.exitcode} of the process", "", text))
            elif problem := worker.problem():
                result = Result(case, failure=Failure(problem, "", worker.kill()))
            else:
                continue
            self.busy.remove(worker)
            if worker.process.is_alive() and worker.cases < _CASES_OF_A_WORKER:
                self.idle.append(worker)
            elif worker.process.is_alive():
                self._end(worker)
            yield result

    def _new(self) -> Worker:
        self.count += 1
        ours, theirs = Pipe()
        log = self.folder / f"log-{self.count}"
        # Some folders deep, so that ".." in a command's path stays inside.
        folder = self.folder / f"work-{self.count}" / "in" / "case"
        folder.parent.mkdir(parents=True)
        process = PROCESSES.Process(target=work, args=(theirs, self.folder / "starts", folder, log))
        process.start()
        theirs.close()
        return Worker(process, ours, log)

    def _end(self, worker: Worker) -> None:
        with suppress(OSError):
            worker.connection.send(None)
        worker.process.join(10)
        worker.kill()

    def stop(self) -> None:
        """End every process."""
        for worker in self.busy:
            worker.kill()
        for worker in self.idle:
            self._end(worker)
        self.busy, self.idle = [], []
