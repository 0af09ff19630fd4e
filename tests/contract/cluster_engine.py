"""An engine that runs the tasks of absorption as a cluster does: apart from the window's process, and some of them twice."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import pytest

from rmq_store.lake.table.object_store import Root
from rmq_store.lake.window import key_tasks
from rmq_store.lake.window.consume_job import ConsumeJob
from rmq_store.lake.window.engine import Engine
from rmq_store.lake.window.key_files import Horizon
from rmq_store.utils.host import Host, epoch_ms
from tests.contract.engines import LakeWorld

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass
class ClusterEngine:
    """Gives every task a copy of its own, and returns a copy of its result. A task on keys runs twice."""

    sizes: dict[str, list[int]] = field(default_factory=dict)
    """Of the results of tasks on keys, pickled, in bytes, by the task's function."""
    name: str = "cluster"
    slots: int = 2
    on_cluster: bool = True
    attempts: Any = field(default_factory=count)

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        assert tasks, "an empty stage costs as much as another one"
        if run.__module__ != key_tasks.__name__:
            return [run(job, task, str(next(self.attempts))) for task in map(copied, tasks)]
        results = []
        for task in map(copied, reversed(tasks)):
            run(copied(job), task, str(next(self.attempts)))
            results.append(run(copied(job), task, str(next(self.attempts))))
            self.sizes.setdefault(run.__name__, []).append(len(pickle.dumps(results[-1])))
        return list(map(copied, results))


def copied(value: Any) -> Any:
    """As it arrives in another process, where the clocks of the tests do not exist."""
    if isinstance(value, ConsumeJob | Horizon):
        value = replace(value, root=Root(value.root.location))
    if isinstance(value, ConsumeJob):
        value = replace(value, now_ms=epoch_ms)
    return pickle.loads(pickle.dumps(value))


def all_keys_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small windows are large, and their parts, files and sets of hashes small."""
    for name, value in {"PART_ROWS": 3, "KEYS_A_FILE": 4, "MOST_HASHES": 4}.items():
        monkeypatch.setattr(key_tasks, name, value)
    for name in ("LEAST_MESSAGES", "LEAST_KEYS"):
        monkeypatch.setattr(f"rmq_store.lake.window.duplicates.{name}", 0)


class ClusterWorld(LakeWorld):
    """The lake on local disk, whose windows run on a cluster."""

    name = "cluster"

    def engine(self, host: Host) -> Engine:
        return ClusterEngine()
