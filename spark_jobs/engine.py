"""Spark as the engine of a window: it schedules the tasks; no message passes through the JVM.

One ``mapInArrow`` stage, one partition per task. The stage gets no rows: every task reads its own row ranges from
Parquet with pyarrow (``rmq_store/lake/window/consume_slice.py``), so messages never cross between JVM and Python.

``opened_engine`` and ``opened_session`` are context managers: Spark for as long as the block lasts, or one clear error.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from rmq_store.errors import RmqError, StoreUnusable
from rmq_store.lake.table.request_counter import note_uncounted
from rmq_store.lake.window.engine import keep_loaded, spark_missing
from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")

_RESULT = pa.schema([("result", pa.binary())])
_WITHOUT_DELTA = {"spark.sql.extensions": "", "spark.sql.catalog.spark_catalog": "builtin"}
"""Configuration of an engine: it reads no table through Spark, so spark-submit needs no Delta jars."""
_CONNECT_PORT = 15002
_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs tasks in a session, classic or Connect."""

    session: SparkSession
    slots: int
    """How many tasks run at once."""
    name: str = "spark"

    @classmethod
    def of(cls, session: SparkSession) -> SparkEngine:
        """Slots as the session's cluster has them, by its default parallelism."""
        parallelism = session.conf.get("spark.default.parallelism", None)
        if parallelism is not None:
            return cls(session, int(parallelism))
        partitions = session.range(0, 1000).selectExpr("spark_partition_id() as p").distinct()
        return cls(session, partitions.count())

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        note_uncounted("requests of tasks in Spark")
        return run_stage(self.session, run, job, tasks)


def run_stage(
    session: SparkSession, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]
) -> list[Result]:
    """Call ``run(job, task, attempt)`` for every task, each in its own partition; returns the results in any order.

    An RmqError of a task is raised here as itself; any other failure is Spark's to retry and to report.
    """
    pickled_tasks = [pickle.dumps(task) for task in tasks]

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    answer: object = run(job, pickle.loads(pickled_tasks[number]), os.urandom(8).hex())
                except RmqError as error:
                    answer = error
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)])], schema=_RESULT)
        keep_loaded()

    frame = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(stage, "result binary")
    answers = [pickle.loads(answer) for answer in frame.toArrow().column("result").to_pylist()]
    for answer in answers:
        if isinstance(answer, RmqError):
            raise answer
    return answers


# --- for as long as a block lasts ------------------------------------------------------------------------------------


@contextmanager
def opened_engine(
    app_name: str, *, remote: str | None, python_path: Sequence[str | Path] = ()
) -> Iterator[SparkEngine]:
    """An engine in a session of ``opened_session``."""
    conf = {} if remote else _WITHOUT_DELTA
    with opened_session(app_name, remote=remote, python_path=python_path, conf=conf) as session:
        with _explained():
            engine = SparkEngine.of(session)
        yield engine


@contextmanager
def opened_session(
    app_name: str,
    *,
    remote: str | None,
    python_path: Sequence[str | Path] = (),
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session on the Connect server ``remote``, else in this process; the end of the block stops it.

    Raises StoreUnusable when no session can be opened, MachineNotReady when set-up is incomplete.
    """
    if remote is not None:
        _check_answers(remote)
    with _explained():
        session = open_session(app_name, remote=remote, python_path=python_path, conf=conf)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn Spark's errors, and the error of a missing Spark, into StoreUnusable."""
    try:
        yield
    except RmqError:
        raise
    except ImportError as error:
        raise spark_missing(error) from error
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise StoreUnusable(
            f"no Spark session ({type(error).__name__}: {first_line}): see 'rmq doctor --spark', or use --engine local"
        ) from error


def _check_answers(remote: str) -> None:
    """Raises StoreUnusable when no server listens there: Spark's own client would try again for many minutes."""
    try:
        address = urlsplit(remote)
        host, port = address.hostname or "", address.port or _CONNECT_PORT
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        where = remote.partition("/;")[0]  # what follows may be a token
        raise StoreUnusable(
            f"no Spark Connect server answers at {where} ({error}): start it, or unset SPARK_REMOTE to "
            "start a session in this process"
        ) from error
