"""Where tasks run, and which engine is chosen for a window or an import.

An engine is a function from tasks to results. This process is one (``LocalEngine``); a Spark session and a Spark Connect
server are the others (``spark_jobs/engine.py``).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmq_store.errors import StoreUnusable
from rmq_store.utils.host import Host, random_name

if TYPE_CHECKING:
    from rmq_store.utils.progress import Progress
    from rmq_store.window.plan import Plan

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """Runs tasks."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int:
        """How many tasks run at once, now: ask when tasks are cut, and only then."""
        ...

    @property
    def on_cluster(self) -> bool:
        """Whether the tasks run on other hosts."""
        ...

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        """Call ``run(job, task, attempt)`` for every task, and return the results in any order.

        ``run`` is a function of a module, ``attempt`` a text that no other attempt of a task has. An RmqError that a task
        raises is raised here.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Tasks one after the other in this process: no JVM, quickest for up to about 100,000 messages. ``progress`` is called
    after each with the number of tasks that are finished, and of all."""

    host: Host
    name: str = "local"
    slots: int = 1
    on_cluster: bool = False
    progress: Progress | None = None

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        results = []
        for task in tasks:
            results.append(run(job, task, self.host.entropy(8).hex()))
            if self.progress is not None:
                self.progress(len(results), len(tasks))
        return results


@dataclass(frozen=True, slots=True)
class ThreadsEngine:
    """Tasks in threads of this process, for work that spends its time outside Python."""

    slots: int
    name: str = "threads"
    on_cluster: bool = False

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        if len(tasks) <= 1:
            return [run(job, task, random_name()) for task in tasks]
        with ThreadPoolExecutor(min(self.slots, len(tasks))) as pool:
            return list(pool.map(lambda task: run(job, task, random_name()), tasks))


# --- the choice ------------------------------------------------------------------------------------------------------

AUTO_LOCAL_MESSAGES = 100_000
"""``auto``: a window of fewer messages ends sooner in this process than in any Spark job (``docs/speed.md``)."""

AUTO_LOCAL_BYTES = 512 << 20
"""``auto``: an import of fewer bytes is read in this process in the time that a JVM takes to start."""


def engine_of_window(choice: str, messages: int) -> str:
    """``local`` or ``spark``, for a choice of ``settings.ENGINES`` and a window of so many messages.

    A window without messages, which only records where a group begins, is always ``local``: no JVM starts for it.
    """
    if messages == 0:
        return "local"
    return _resolved(choice, is_small=messages < AUTO_LOCAL_MESSAGES)


def engine_of_import(choice: str, to_read_bytes: int | None = None) -> str:
    """``local`` or ``spark``, for an import that has to read about so many bytes; None: not known, it may be many."""
    return _resolved(choice, is_small=to_read_bytes is not None and to_read_bytes < AUTO_LOCAL_BYTES)


def _resolved(choice: str, *, is_small: bool) -> str:
    if choice != "auto":
        return choice
    return "local" if is_small else "spark"


class Engines:
    """The engines of one command, job or Airflow task. Use it in ``with``, which ends the Spark session if one was opened.

    ``choice``: ``local``, ``spark`` or ``auto``; None: for a window that of its group, for an import ``auto``. ``open_spark``
    opens Spark's engine and ends its session; it is called once, at the first work for it. ``progress``: of the tasks in this
    process.
    """

    def __init__(
        self,
        choice: str | None,
        host: Host,
        open_spark: Callable[[], AbstractContextManager[Engine]],
        progress: Progress | None = None,
    ) -> None:
        self._choice = choice
        self._local = LocalEngine(host, progress=progress)
        self._open_spark = open_spark
        self._spark: Engine | None = None
        self._exits = ExitStack()
        self._opening = threading.Lock()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exits.__exit__(kind, error, at)

    def for_window(self, plan: Plan) -> Engine:
        """The engine for a window: the ``engine_of`` of ``consume_window``."""
        messages = sum(len(planned.range) for planned in plan.ranges)
        choice = self._choice or plan.group.engine
        return self._local if engine_of_window(choice, messages) == "local" else self.spark()

    def for_import(self, to_read_bytes: int | None = None) -> Engine:
        """The engine for an import of about so many bytes; see ``engine_of_import``."""
        is_local = engine_of_import(self._choice or "auto", to_read_bytes) == "local"
        return self._local if is_local else SparkOnFirstTasks(self.spark)

    def spark(self) -> Engine:
        """Spark's engine, opened at the first call. Raises the errors of ``open_spark``."""
        with self._opening:  # an import asks from several threads
            if self._spark is None:
                self._spark = self._exits.enter_context(self._open_spark())
            return self._spark


def spark_missing(error: ImportError) -> StoreUnusable:
    """What to say where Spark's packages, an extra, are not installed."""
    return StoreUnusable(
        f"Spark is not installed ({error}): install it with pip install 'rocketmq-lakehouse[spark]' (in a checkout: make "
        "setup), or work with --engine local"
    )


@dataclass(frozen=True, slots=True)
class SparkOnFirstTasks:
    """Spark, opened at the first tasks, because an import learns late whether it has any.

    An import that is refused before it reads, or whose request was committed before, has no tasks and starts no JVM. A new
    request starts one also when nothing is new, because the log's last file has room for more messages.
    """

    spark: Callable[[], Engine]
    name: str = "spark"

    @property
    def slots(self) -> int:
        """Those of Spark, which this opens: ask only when there are tasks."""
        return self.spark().slots

    @property
    def on_cluster(self) -> bool:
        """That of Spark, which this opens."""
        return self.spark().on_cluster

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return self.spark()(run, job, tasks) if tasks else []


@cache
def keep_loaded() -> None:
    """Exclude the objects that imports have made from garbage collection. Called once per worker, after its first task.

    Spark's Python workers collect garbage after every task. Over all objects of pyarrow and pandas, this took half the time
    of a task that does nothing.
    """
    gc.collect()
    gc.freeze()
