"""Where tasks run. An engine is a function from tasks to results, so this process, a Spark session and a Spark Connect
server are interchangeable (``spark_jobs/engine.py`` has the other two)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmq_store.errors import StoreUnusable
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.window.plan import Plan

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


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Tasks one after the other in this process: no JVM, quickest for up to about 100,000 messages."""

    host: Host
    name: str = "local"
    slots: int = 1

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return [run(job, task, self.host.entropy(8).hex()) for task in tasks]


# --- which one -------------------------------------------------------------------------------------------------------

AUTO_LOCAL_MESSAGES = 100_000
"""``auto``: a window of fewer is done sooner in this process than by any Spark job (design 4.1)."""

AUTO_LOCAL_BYTES = 512 << 20
"""``auto``: an import of fewer is read here in the time that a JVM takes to start."""


def engine_of_window(choice: str, messages: int) -> str:
    """``local`` or ``spark``, for a choice of ``settings.ENGINES`` and a window of so many messages.

    One of none, which only records where a group begins, is ``local`` whatever was chosen: no JVM starts for nothing.
    """
    if messages == 0:
        return "local"
    return _settled(choice, is_little=messages < AUTO_LOCAL_MESSAGES)


def engine_of_import(choice: str, to_read_bytes: int | None = None) -> str:
    """``local`` or ``spark``, for an import that has to read about so much; None: nobody has looked, it may be much."""
    return _settled(choice, is_little=to_read_bytes is not None and to_read_bytes < AUTO_LOCAL_BYTES)


def _settled(choice: str, *, is_little: bool) -> str:
    if choice != "auto":
        return choice
    return "local" if is_little else "spark"


class Engines:
    """The engines of one command, job or task. Used in ``with``, which closes Spark's if it was opened.

    ``choice``: what was asked for, else what the group's settings say. ``open_spark`` makes Spark's engine and ends its
    session; it is called when there is the first work for it, once.
    """

    def __init__(self, choice: str, host: Host, open_spark: Callable[[], AbstractContextManager[Engine]]) -> None:
        self._choice = choice
        self._local = LocalEngine(host)
        self._open_spark = open_spark
        self._spark: Engine | None = None
        self._at_the_end = ExitStack()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._at_the_end.__exit__(kind, error, at)

    def for_window(self, plan: Plan) -> Engine:
        """The ``engine_of`` of ``consume_window``, which asks when it has found work."""
        messages = sum(len(planned.range) for planned in plan.ranges)
        return self._local if engine_of_window(self._choice, messages) == "local" else self.spark()

    def for_import(self, to_read_bytes: int | None = None) -> Engine:
        """For an import of about so many bytes; see ``engine_of_import``."""
        is_local = engine_of_import(self._choice, to_read_bytes) == "local"
        return self._local if is_local else SparkOnFirstTasks(self.spark)

    def spark(self) -> Engine:
        """Raises what ``open_spark`` raises."""
        if self._spark is None:
            self._spark = self._at_the_end.enter_context(self._open_spark())
        return self._spark


def spark_missing(error: ImportError) -> StoreUnusable:
    """What to say where Spark's packages, an extra, are not installed."""
    return StoreUnusable(
        f"Spark is not installed ({error}): install it with pip install 'rocketmq-lakehouse[spark]' (in a checkout: make "
        "setup), or work with --engine local"
    )


@dataclass(frozen=True, slots=True)
class SparkOnFirstTasks:
    """Spark, opened for the first tasks, because an import learns late whether it has any.

    None are in an import that is refused before it reads, or whose request was done before: these start no JVM. A new
    request starts one also when nothing is new, because the log's last file has room in which more may have come.
    ``slots`` are those of this host, as Spark's are not known yet; they only say how often progress is told.
    """

    spark: Callable[[], Engine]
    name: str = "spark"
    slots: int = os.cpu_count() or 1

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return self.spark()(run, job, tasks) if tasks else []


@cache
def keep_loaded() -> None:
    """Once in a worker process, behind its first task: what imports have made is no garbage and is not looked at again.

    Spark's Python workers collect garbage behind every task. Over all that pyarrow and pandas bring along, this took
    half the time of a task that does nothing.
    """
    gc.collect()
    gc.freeze()
