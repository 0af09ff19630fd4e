"""What other processes do in the fault tests: start a job of a store and die, wait, lose or win.

Each is a process of its own (``multiprocessing``, fork server: the libraries are imported once), so a kill leaves nothing
behind but what is in the store.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rmq_store.errors import RmqError
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.table.object_store import Put, Root
from tests.faults.stores import GROUP, REQUEST, Lake, group_named

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.jobs", "pytest"])

ANSWER_S = 600.0
"""No process may take longer; a test that waits so long has failed."""


@dataclass(frozen=True)
class Job:
    """One command of a user, by name: consume, consume_all, deliver, redrive or import."""

    kind: str
    folder: Path
    request: str = REQUEST
    group: str = GROUP
    """For consume_all: the groups, separated by commas."""
    broker: Path | None = None

    def run(self) -> Any:
        lake = Lake(self.folder)
        match self.kind:
            case "consume":
                return lake.consume(self.request, group_named(self.group))
            case "consume_all":
                return lake.consume_all(self.request, *map(group_named, self.group.split(",")))
            case "deliver":
                return lake.deliver(self.request)
            case "redrive":
                return lake.redrive(self.request)
            case "import":
                assert self.broker is not None
                return lake.load(self.broker, self.request)
            case unknown:
                raise ValueError(unknown)


# --- dying -----------------------------------------------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run_until(job: Job, step: str) -> None:
    def at(reached: str) -> None:
        if reached == step:
            _die()

    commit_steps.on_step = at
    job.run()


def _run_until_put(job: Job, number: int) -> None:
    real, puts = Root.put_once, []

    def put_once(root: Root, name: str, content: bytes) -> Put:
        put = real(root, name, content)
        puts.append(name)
        if len(puts) == number:
            _die()
        return put

    Root.put_once = put_once  # type: ignore[method-assign, assignment]
    job.run()


def killed_at(job: Job, step: str) -> bool:
    """Whether a process that runs the job was killed at the step (``kill -9``); False: it never got there."""
    return _exit_code(_run_until, job, step) == -signal.SIGKILL


def killed_after_put(job: Job, number: int) -> bool:
    """The same, right after the number-th entry of any log, before its answer is seen."""
    return _exit_code(_run_until_put, job, number) == -signal.SIGKILL


def _exit_code(target: Callable[..., None], *arguments: Any) -> int | None:
    process = PROCESSES.Process(target=target, args=arguments, daemon=True)
    process.start()
    process.join(ANSWER_S)
    return process.exitcode


# --- racing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, as ``rmq`` has it, and the status of its report or the message of its error."""

    exit_code: int
    said: str


class Racer:
    """A process that stops at the named steps until it is told to go on."""

    def __init__(self, job: Job, *stops: str) -> None:
        self.job = job
        self._ours, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_race, args=(job, stops, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> str | Ended:
        """The step at which it stands now, or how it ended."""
        assert self._ours.poll(ANSWER_S), "the process is silent"
        said = self._ours.recv()
        if isinstance(said, str):
            return said
        self._process.join(ANSWER_S)
        assert self._process.exitcode == said.exit_code
        ended: Ended = said
        return ended

    def go(self) -> None:
        self._ours.send("go")

    def finish(self) -> Ended:
        """Go on, now to the end."""
        self.go()
        ended = self.wait()
        assert isinstance(ended, Ended), f"it stopped at {ended}"
        return ended


def _race(job: Job, stops: tuple[str, ...], channel: Connection) -> None:
    def at(reached: str) -> None:
        if reached in stops:
            channel.send(reached)
            channel.recv()

    commit_steps.on_step = at
    try:
        report = job.run()
    except RmqError as error:
        channel.send(Ended(error.exit_code, str(error)))
        sys.exit(error.exit_code)
    channel.send(Ended(0, report.status))
