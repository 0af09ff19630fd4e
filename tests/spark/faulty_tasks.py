"""Windows whose tasks meet a fault in Spark's workers; ``test_faults.py`` runs them in a classic and in a Connect session."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rmq_store.errors import RmqError
from rmq_store.lake.window.engine import Engine
from rmq_store.lake.window.window import consume_window
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest
from spark_jobs.engine import SparkEngine
from tests.faults.stores import GROUP, REQUEST, TESTS, Lake, copied, group_named, write_broker
from tests.oracle.projection import projection

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")
Run = Callable[[Any, Any, str], Any]

NEXT_REQUEST = "2026-01-02-r2"
_ADDRESSES_BYTES = 16 << 30


# --- in a worker -----------------------------------------------------------------------------------------------------


def fails_once(folder: Path, run: Run, job: Any, task: Any, attempt: str) -> Any:
    """The first attempt of each task raises an error after it has staged its file."""
    result = run(job, task, attempt)
    if _is_first(folder, task.number):
        raise OSError("the disk of the worker failed")
    return result


def dies_once(folder: Path, run: Run, job: Any, task: Any, attempt: str) -> Any:
    """The process of each task's first attempt is killed after it has staged its file."""
    result = run(job, task, attempt)
    if _is_first(folder, task.number):
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def dies(folder: Path, run: Run, job: Any, task: Any, attempt: str) -> Any:
    """The process of every attempt is killed."""
    run(job, task, attempt)
    os.kill(os.getpid(), signal.SIGKILL)


def lacks_memory(folder: Path, run: Run, job: Any, task: Any, attempt: str) -> Any:
    """Every attempt needs more memory than its process may have, after it has staged its file."""
    run(job, task, attempt)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, before[1]))
    try:
        return bytes(2 * _ADDRESSES_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _is_first(folder: Path, number: int) -> bool:
    """Whether no other attempt of the task has asked before, in any process."""
    try:
        (folder / f"task-{number}").open("x").close()
    except FileExistsError:
        return False
    return True


# --- in the driver ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FaultyEngine:
    """Spark's engine; its tasks meet a fault."""

    engine: SparkEngine
    fault: Callable[..., Any]
    folder: Path
    """For the marks of the attempts."""
    name: str = "spark"
    on_cluster: bool = False

    @property
    def slots(self) -> int:
        return self.engine.slots

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return self.engine(partial(self.fault, self.folder, run), job, tasks)


FAULTS = {fault.__name__: fault for fault in (fails_once, dies_once, dies, lacks_memory)}
GROUP_OF_ONE_TASK = group_named(consumers=1)


def disturbed(engine: SparkEngine, folder: Path, faults: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By the name of the fault: what became of the window, and of the same store's next one where it failed."""
    imported = Lake(folder / "imported")
    imported.load(write_broker(folder / "broker"))
    quiet = copied(imported, folder / "quiet")
    quiet.consume(group=GROUP_OF_ONE_TASK)
    return {name: _disturbed(engine, FAULTS[name], copied(imported, folder / name), quiet) for name in faults}


def _disturbed(engine: SparkEngine, fault: Callable[..., Any], lake: Lake, quiet: Lake) -> dict[str, Any]:
    marks = lake.folder.with_name(f"{lake.folder.name}-marks")
    marks.mkdir()
    before = _message_files(lake)
    answer: dict[str, Any] = {"window": _window(FaultyEngine(engine, fault, marks), lake, REQUEST)}
    answer["staged"] = _message_files(lake) - before
    answer["commits"] = lake.commits("consume")
    if not answer["commits"]:
        answer["next window"] = _window(engine, lake, NEXT_REQUEST)
    answer["same"] = projection(lake.shard, GROUP) == projection(quiet.shard, GROUP)
    answer["audit"] = [str(finding) for finding in lake.audit()]
    return answer


def _message_files(lake: Lake) -> int:
    """How many there are, also of attempts that failed."""
    return len(list(lake.folder.rglob("kind=msg/*.parquet")))


def _window(engine: Engine, lake: Lake, request_id: str) -> list[Any]:
    """The status of the window and its messages, or the error and its text."""
    store = lake.store
    try:
        report = consume_window(
            store, lake.shard, GROUP_OF_ONE_TASK, ConsumeRequest(request_id, TESTS), lambda plan: engine, Host()
        )
    except RmqError as error:
        return [type(error).__name__, str(error)]
    return [report.status, sum(report.counts().values())]
