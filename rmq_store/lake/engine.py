"""Where tasks run. An engine is a function from tasks to results, so this process, a Spark session and a Spark Connect
server are interchangeable (``spark_jobs/engine.py`` has the other two)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rmq_store.host import Host

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """``slots``: how many tasks run at once."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int: ...

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        """``run(job, task, attempt)`` for every task, in any order; ``attempt`` is a text no other attempt has.

        ``run`` is a function of a module. An RmqError of a task is raised here as itself.
        """
        ...


AUTO_LOCAL_MESSAGES = 100_000
"""``engine = auto``: a window of fewer is done sooner in this process than by any Spark job (design 4.1)."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Tasks one after the other in this process: no JVM, quickest for up to about 100,000 messages."""

    host: Host
    name: str = "local"
    slots: int = 1

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return [run(job, task, self.host.entropy(8).hex()) for task in tasks]
