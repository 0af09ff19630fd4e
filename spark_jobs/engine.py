"""Spark as the engine of a window: it schedules the tasks; no message passes through the JVM.

One ``mapInArrow`` stage, one partition per task. The stage gets no rows: every task reads its own row ranges from
Parquet with pyarrow (``rmq_store/lake/window/consume_slice.py``), so messages never cross between JVM and Python.

``opened_engine`` and ``opened_session`` are context managers: Spark for as long as the block lasts, or one clear error.
"""

from __future__ import annotations

import atexit
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from rmq_store.errors import ListenerError, RmqError, StoreUnusable, WrongUse, text_of
from rmq_store.lake.table.request_counter import note_uncounted
from rmq_store.lake.window.engine import keep_loaded, spark_missing
from rmq_store.settings.spark_settings import SHIP, SparkSettings, is_local_master
from rmq_store.utils.daemon_call import in_daemon
from spark_jobs.cancellation import NO_ANSWER_S, collected, is_classic, without_retries
from spark_jobs.locked_folder import scratch_folder
from spark_jobs.session import forget_ended_jvm, open_session
from spark_jobs.ship import ship
from spark_jobs.slots import planned_slots
from spark_jobs.submit import submitted_server
from spark_jobs.worker_errors import driver_problem, job_problem, worker_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")
Task = TypeVar("Task")
Result = TypeVar("Result")

_RESULT = pa.schema([("result", pa.binary())])
_CONNECT_PORT = 15002
_MASTER_PORT = 7077
_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs tasks in a session, classic or Connect."""

    session: SparkSession
    planned: int | None
    """How many tasks are to run at once by the session's settings; None: as many as the running executors have cores."""
    on_cluster: bool = False
    """Whether the session's master is not ``local[N]``."""
    name: str = "spark"

    @classmethod
    def of(cls, session: SparkSession) -> SparkEngine:
        planned = planned_slots(lambda key: session.conf.get(key, None))
        if planned is None:
            session.range(0, 1, 1, 1).count()  # waits for the first executor, which a new session does not have yet
        master = session.conf.get("spark.master", None)
        return cls(session, planned, on_cluster=master is not None and not is_local_master(master))

    @property
    def slots(self) -> int:
        """How many tasks run at once, now: executors come and go."""
        if self.planned is not None:
            return self.planned
        with _failed_job_explained():
            if is_classic(self.session):
                return int(self.session.sparkContext.defaultParallelism)
            partitions = self.session.range(0, 1000).selectExpr("spark_partition_id() as p").distinct()
            return int(partitions.count())

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        note_uncounted("requests of tasks in Spark")
        return run_stage(self.session, run, job, tasks)


def run_stage(
    session: SparkSession, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]
) -> list[Result]:
    """Call ``run(job, task, attempt)`` for every task, each in its own partition; returns the results in any order.

    An RmqError of a task is raised here as itself; any other failure is Spark's to retry and to report. Raises StoreUnusable
    when the workers lack what the tasks need, when they died or had too little memory at every try, or when the driver ended.
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

    with _failed_job_explained():
        frame = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(stage, "result binary")
        table = collected(session, frame)
    answers = [pickle.loads(answer) for answer in table.column("result").to_pylist()]
    for answer in answers:
        # This process has loaded the listener before, so a module that is missing is missing on a worker.
        if isinstance(answer, ListenerError) and (problem := worker_problem(str(answer))):
            raise ListenerError(f"{answer}. {problem}")
        if isinstance(answer, RmqError):
            raise answer
    return answers


@contextmanager
def _failed_job_explained() -> Iterator[None]:
    """Turn the error of a job into StoreUnusable, where the user can do something about it."""
    try:
        yield
    except Exception as error:  # classic and Connect have different classes for a failed job
        if problem := job_problem(text_of(error)) or driver_problem(error):
            raise StoreUnusable(problem) from error
        raise


# --- for as long as a block lasts ------------------------------------------------------------------------------------


@contextmanager
def opened_engine(
    app_name: str, spark: SparkSettings, *, python_path: Sequence[Path] = (), listeners: Sequence[str] = ()
) -> Iterator[SparkEngine]:
    """An engine in a session of ``opened_session``. It reads no table through Spark, so it needs no Delta jars."""
    with opened_session(app_name, spark, python_path=python_path, listeners=listeners, delta=False) as session:
        with _explained():
            engine = SparkEngine.of(session)
        yield engine


@contextmanager
def opened_session(
    app_name: str,
    spark: SparkSettings,
    *,
    python_path: Sequence[Path] = (),
    listeners: Sequence[str] = (),
    delta: bool = True,
) -> Iterator[SparkSession]:
    """A session on the Connect server of ``spark``, on one that spark-submit starts, else in this process; the end of the block
    stops it.

    The workers of a cluster get this package, the packages of the ``listeners`` (``module:attribute``) and the folders
    ``python_path``; see ``ship``. Raises StoreUnusable when no session can be opened, MachineNotReady when set-up is
    incomplete, WrongUse for code that cannot be sent, and for Delta tables with spark-submit.
    """
    if spark.submit is not None and delta:
        raise WrongUse(
            "spark-submit starts Spark for windows and imports only: without RMQ_SPARK_SUBMIT it has Delta tables"
        )
    address = spark.remote or spark.master or ""
    if address.startswith(("sc://", "spark://")) and "," not in address:
        _check_answers(address)
    with ExitStack() as exits:
        scratch = exits.enter_context(scratch_folder("ship"))
        remote, conf = spark.remote, spark.conf
        if spark.submit is not None:
            remote, conf = exits.enter_context(submitted_server(spark, python_path, scratch)), {}
        elif remote is not None:  # a server has settings of its own; ``ship`` reads the one that is for this process
            conf = {key: value for key, value in conf.items() if key != SHIP}
        with _explained():
            session = open_session(
                app_name, master=spark.master, remote=remote, conf=conf, python_path=python_path, delta=delta
            )
        exits.callback(_stop, session)
        with _explained():
            ship(session, spark, listeners, python_path, scratch)
        yield session


def _stop(session: SparkSession) -> None:
    """End the session, as far as its driver is there. Raises nothing: a driver that has ended has no session, and an error here
    would take the place of the one that says so, or of the answer of a window that is committed. Nor does that wait for a
    Connect server that does not answer any more."""
    try:
        without_retries(session)
        if is_classic(session):
            session.stop()
        else:
            # pyspark's own hook asks the server once more, without a time limit.
            if hook := getattr(session.client, "_on_exit", None):
                atexit.unregister(hook)
            in_daemon(session.stop, "stop-session").result(NO_ANSWER_S)
    except Exception as error:
        if is_classic(session) and driver_problem(error):
            forget_ended_jvm()


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
        first_line = text_of(error).strip().partition("\n")[0]
        raise StoreUnusable(
            f"no Spark session ({type(error).__name__}: {first_line}): see 'rmq doctor --spark', or use --engine local"
        ) from error


def _check_answers(address: str) -> None:
    """Raises StoreUnusable when nothing listens there: Spark itself would try again for many minutes."""
    is_server = address.startswith("sc://")
    try:
        place = urlsplit(address)
        host, port = place.hostname or "", place.port or (_CONNECT_PORT if is_server else _MASTER_PORT)
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        where = address.partition("/;")[0]  # what follows may be a token
        if not is_server:
            raise StoreUnusable(
                f"no Spark master answers at {where} ({error}): start it, or name another with --master"
            ) from error
        raise StoreUnusable(
            f"no Spark Connect server answers at {where} ({error}): start it, or unset SPARK_REMOTE to "
            "start a session in this process"
        ) from error
