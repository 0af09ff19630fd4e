"""A round of the soak: some commands at a time work on one store, are killed and frozen, and the store is checked."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tests.faults.independent.checker import check
from tests.faults.independent.history import Sent, append
from tests.faults.soak.answers import Ending
from tests.faults.soak.broker import BROKER
from tests.faults.soak.disturbances import Disturbance, Kind, choose_disturbance
from tests.faults.soak.operations import DAY, SENT_TOPICS, Context, Operation, choose, import_of, send
from tests.faults.soak.runs import Running, Runs
from tests.faults.soak.worker import LEASE_S, At

_TRIES = 12
"""So often a request is made again while nothing else runs; then it is a defect."""
_MOST_MESSAGES = 6_000
"""The broker of a round grows no further."""
_DERIVED = ("consumequeue", "offsets", "commits")
_MOST_PROBLEMS = 20


@dataclass(slots=True)
class Round:
    """One store, from its set-up to its last check."""

    runs: Runs
    seed: str
    """Of this round."""
    engine: str
    """That of windows: local or spark."""
    processes: int
    """How many commands run at a time."""
    pending: deque[tuple[int, Operation]] = field(default_factory=deque)
    """Requests that were cut, or refused for now, with their numbers: they are made again."""
    next_number: int = 1
    has_backup: bool = False

    def set_up(self) -> None:
        """A store with an import and some sent messages."""
        rng = Random(f"{self.seed}-0")
        self.runs.world.broker.grow(rng, 200)
        self.runs.must(Operation("init", ("init", "--levels", "1s 2s 3s 1s")))
        self.runs.must(self._import("first-import"))
        for topic in SENT_TOPICS:
            operation = send(f"{DAY}-first-{topic}", topic, 30, rng)
            self._note_send(operation)
            self.runs.must(operation)

    def work(self, is_over: Callable[[], bool]) -> None:
        """Random work until it is over, or until a defect; then every process has ended."""
        while not is_over() and not self.runs.tally.defects:
            while len(self.runs.running) < self.processes:
                self._start_next()
            self._look()
        while self.runs.running:
            self._look()

    def check(self, *, is_last: bool) -> None:
        """Finish what was cut, then compare the store with what was seen outside of it."""
        runs, world = self.runs, self.runs.world
        self._finish()
        runs.must(self._import(f"import-{runs.count}"))
        runs.must(Operation("deliver", ("deliver",), f"{DAY}-deliver-{runs.count}"))
        report = check(world.local_copy(), world.history)
        runs.tally.add_report(report, is_last=is_last)
        for problem in report.problems[:_MOST_PROBLEMS]:
            runs.defect("checker", Operation("checker", ()), str(problem))
        runs.must(Operation("audit --full", ("audit", "--full")))
        runs.must(Operation("dispatch --check", ("dispatch", "--check")))
        if self.has_backup:
            runs.must(Operation("backup", ("backup", world.backup)))
            runs.must(Operation("audit of the backup", ("audit", "--full", "--root", world.backup)))

    def damage(self) -> None:
        """Delete a file of a derived table, and write the table again; the first rebuild is killed. Only while nothing runs."""
        rng = Random(f"{self.seed}-damage-{self.runs.count}")
        shard = self.runs.world.files / BROKER
        files = sorted(path for table in _DERIVED for path in (shard / table).glob("*.parquet"))
        rng.choice(files).unlink()  # not all are live any more
        rebuild = Operation("dispatch --rebuild", ("dispatch", "--rebuild"))
        self.runs.alone(0, rebuild, Disturbance(Kind.KILL, At(signal.SIGKILL, "entry", 1)))
        self.runs.must(rebuild)
        self.runs.must(Operation("dispatch --check", ("dispatch", "--check")))

    # --- what runs next ----------------------------------------------------------------------------------------------

    def _start_next(self) -> None:
        if self.pending and Random(f"{self.seed}-again-{self.runs.count}").random() < 0.5:
            number, operation = self.pending.popleft()
            self.runs.tally.again[operation.kind] += 1
        else:
            number, operation = self._new_operation()
        if any("spark" in one.operation.arguments for one in self.runs.running):
            operation = _without_spark(operation)  # one session at a time, because each is a JVM
        self.runs.start(number, operation, choose_disturbance(Random(f"{self.seed}-{number}-{self.runs.count}")))

    def _new_operation(self) -> tuple[int, Operation]:
        number, self.next_number = self.next_number, self.next_number + 1
        rng, world = Random(f"{self.seed}-{number}"), self.runs.world
        if world.broker.messages < _MOST_MESSAGES and rng.random() < 0.3:
            world.broker.grow(rng, rng.randrange(1, 60))
        context = Context(rng, number, str(world.broker.folder), world.backup, self.engine, world.broker.messages)
        operation = choose(context)
        self._note_send(operation)
        return number, operation

    def _import(self, name: str) -> Operation:
        return import_of(f"{DAY}-{name}", str(self.runs.world.broker.folder))

    def _note_send(self, operation: Operation) -> None:
        if operation.request and operation.messages:
            line = Sent(operation.request, operation.topic, list(operation.keys))
            append(self.runs.world.history / "sent" / "sent.jsonl", [line])

    # --- what has ended ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        frozen = {one.pid for one in self.runs.running if one.frozen_at_s is not None}
        for one in self.runs.look():
            operation, answer = one.running.operation, one.answer
            if not answer.is_final and answer.ending is not Ending.DEFECT and operation.request is not None:
                self.pending.append((one.running.number, operation))
            self.has_backup |= operation.kind == "backup" and answer.ending is Ending.DONE
        for running in self.runs.running:
            if running.frozen_at_s is not None and running.pid not in frozen:
                self._take_over(running)

    def _take_over(self, running: Running) -> None:
        """Make the request of a process that has just been frozen again, while it sleeps."""
        if running.disturbance.is_taken_over and running.operation.request is not None:
            self.pending.appendleft((running.number, running.operation))

    def _finish(self) -> None:
        """Make every request that was cut again, until it is done."""
        for _ in range(_TRIES):
            requests, self.pending = dict(self.pending), deque()
            for number, operation in requests.items():
                self.runs.tally.again[operation.kind] += 1
                answer = self.runs.alone(number, _without_spark(operation)).answer
                if not answer.is_final and answer.ending is not Ending.DEFECT:
                    self.pending.append((number, operation))
            if not self.pending or self.runs.tally.defects:
                break
            time.sleep(LEASE_S + 1)  # what a killed process holds
        for number, operation in self.pending:
            self.runs.defect("a request that never ends", operation, "", number)
        self.pending.clear()


def _without_spark(operation: Operation) -> Operation:
    arguments = tuple("local" if word == "spark" else word for word in operation.arguments)
    return replace(operation, arguments=arguments)
