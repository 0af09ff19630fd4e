"""Spark as the engine of a window: the cluster's scheduler, and nothing that touches a message.

One ``mapInArrow`` stage, one partition per task. The stage gets no rows: every task reads its own row ranges from
Parquet with pyarrow (``rmq_store/lake/consume_slice.py``), so messages never cross between JVM and Python.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from rmq_store.errors import RmqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")

_RESULT = pa.schema([("result", pa.binary())])


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs tasks in a session, classic or Connect. ``slots``: how many tasks run at once."""

    session: SparkSession
    slots: int
    name: str = "spark"

    @classmethod
    def of(cls, session: SparkSession) -> SparkEngine:
        """Slots as the session's cluster has them, by its default parallelism."""
        configured = session.conf.get("spark.default.parallelism", None)
        if configured is None:
            configured = session.range(0, 1000).selectExpr("spark_partition_id() as p").distinct().count()
        return cls(session, int(configured))

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return run_stage(self.session, run, job, tasks)


def run_stage(
    session: SparkSession, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]
) -> list[Result]:
    """``run(job, task, attempt)`` for every task, each in a partition of its own; the results in any order.

    An RmqError of a task is raised here as itself; any other failure is Spark's to retry and to report.
    """
    number_of = len(tasks)
    packed = [pickle.dumps(task) for task in tasks]

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    answer: object = run(job, pickle.loads(packed[number]), os.urandom(8).hex())
                except RmqError as error:
                    answer = error
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)])], schema=_RESULT)

    frame = session.range(0, number_of, 1, number_of).mapInArrow(stage, "result binary")
    answers = [pickle.loads(answer) for answer in frame.toArrow().column("result").to_pylist()]
    for answer in answers:
        if isinstance(answer, RmqError):
            raise answer
    return answers
