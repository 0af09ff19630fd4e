"""The settings of a session on this host and on a cluster, its slots, and what a failure of its workers means."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rmq_store.errors import ListenerError, StoreUnusable
from rmq_store.settings.spark_settings import SparkSettings
from spark_jobs import engine
from spark_jobs.engine import SparkEngine, opened_session, run_stage
from spark_jobs.launch import launch_settings, local_slots
from spark_jobs.slots import UNBOUNDED_SLOTS, planned_slots
from spark_jobs.submit import submit_command
from spark_jobs.worker_errors import driver_problem, job_problem, worker_problem

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


def test_on_this_host_everything_listens_on_loopback() -> None:
    settings = launch_settings("local[3]", JARS)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.default.parallelism"] == "3"
    assert settings["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"


@pytest.mark.parametrize("master", ["spark://here:7077", "k8s://https://here:6443", "yarn"])
def test_on_a_cluster_no_loopback_address_and_no_folder_of_this_host_is_set(master: str) -> None:
    settings = launch_settings(master, JARS)
    assert settings["spark.master"] == master
    assert not any("127.0.0.1" in value for value in settings.values())
    assert not any(key.startswith(("spark.executor", "spark.local.", "spark.default.")) for key in settings)
    assert settings["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert "spark.jars" not in launch_settings(master)


def test_spark_submit_gets_its_own_options_last_and_on_this_host_loopback() -> None:
    spark = SparkSettings(master="local[2]", submit=("--conf", "spark.a=mine"), conf={"spark.a": "file"})
    program, *words = submit_command("/opt/spark-submit", spark)
    assert program == "/opt/spark-submit"
    assert words[:2] == ["--master", "local[2]"]
    assert {"spark.driver.host=127.0.0.1", f"spark.pyspark.driver.python={sys.executable}", "spark.a=file"} < set(words)
    assert words[-4:] == ["--conf", "spark.a=file", "--conf", "spark.a=mine"]


@pytest.mark.parametrize("master", ["yarn", None])
def test_on_a_cluster_the_files_of_spark_submit_say_the_rest(master: str | None) -> None:
    words = submit_command("spark-submit", SparkSettings(master=master, submit=("--queue", "etl")))
    of_master = ["--master", master] if master else []
    driver = ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    assert words == ["spark-submit", *of_master, *driver, "--queue", "etl"]


@pytest.mark.parametrize(("master", "slots"), [("local", 1), ("local[4]", 4), ("local[2,3]", 2)])
def test_the_slots_of_this_host_are_in_its_name(master: str, slots: int) -> None:
    assert local_slots(master) == slots


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, None),
        ({"default.parallelism": "2", "executor.instances": "9"}, 2),
        ({"executor.instances": "10"}, 10),
        ({"executor.instances": "10", "executor.cores": "4"}, 40),
        ({"executor.instances": "10", "executor.cores": "4", "task.cpus": "2"}, 20),
        ({"cores.max": "32"}, 32),
        ({"cores.max": "32", "task.cpus": "4"}, 8),
        ({"dynamicAllocation.enabled": "true"}, UNBOUNDED_SLOTS),
        ({"dynamicAllocation.enabled": "true", "dynamicAllocation.maxExecutors": "5", "executor.cores": "4"}, 20),
        ({"dynamicAllocation.enabled": "true", "cores.max": "8"}, 8),
        ({"dynamicAllocation.enabled": "false", "dynamicAllocation.maxExecutors": "5"}, None),
    ],
)
def test_slots_are_those_that_the_session_is_to_have(settings: dict[str, str], slots: int | None) -> None:
    assert planned_slots({f"spark.{key}": value for key, value in settings.items()}.get) == slots


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "run Python 3.9, and this process runs 3.11: both must",
        ),
        ("ModuleNotFoundError: No module named 'rmq_store'", "do not set spark.rmq.ship=false"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "has no pyarrow: install it there"),
        ("ModuleNotFoundError: No module named 'shop.models'", "no module shop: install it on them, or send it with"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.", "have no pyarrow"),
        ('java.io.IOException: Cannot run program "python3.11": error=2', "have no program python3.11"),
    ],
)
def test_what_a_worker_lacks_is_said_with_what_to_do(text: str, says: str) -> None:
    problem = worker_problem(f"Job aborted due to stage failure\n{text}\n at org.apache.spark")
    assert problem is not None
    assert says in problem
    assert "docs/cluster.md says what must be on the workers" in problem


def test_another_failure_is_no_problem_of_the_workers() -> None:
    assert worker_problem("Job aborted: ExecutorLostFailure (executor 1 exited)") is None


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("SparkException: Python worker exited unexpectedly (crashed)", "died at every try of a task"),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", "died at every try of a task"),
        (
            "SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout.",
            "died at every try of a task",
        ),
        ("java.io.IOException: Stream closed", "died at every try of a task"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "refused a thread or a process"),
        ("RuntimeError: can't start new thread", "refused a thread or a process"),
        ("java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory", "refused a thread"),
        ("in stage\n    return bytes(n)\nMemoryError\n", "out of memory (MemoryError): give each worker more"),
        (
            "pyarrow.lib.ArrowMemoryError: malloc of size 64 failed",
            "(ArrowMemoryError): give each worker more",
        ),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", "each worker more (spark.executor.memory, or"),
        ("ModuleNotFoundError: No module named 'rmq_store'", "do not set spark.rmq.ship=false"),
    ],
)
def test_why_a_job_failed_is_said_with_what_to_do(text: str, advice: str) -> None:
    problem = job_problem(f"Job aborted due to stage failure\n{text}\n at org.apache.spark")
    assert problem is not None
    assert advice in problem


def test_a_defect_in_a_task_is_no_problem_of_the_machine() -> None:
    assert job_problem("Job aborted due to stage failure\nKeyError: 'queue'\n at org.apache.spark") is None


class Py4JError(Exception):
    """Named as py4j's error for a JVM that has ended or has refused."""


class Py4JNetworkError(Py4JError):
    """Named as py4j's error for a connection that has ended."""


class Py4JJavaError(Exception):
    """Named as py4j's error for one of Java, whose text is in the JVM."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


class SparkConnectGrpcException(Exception):
    """Named as pyspark's error for a Connect server."""


class PySparkRuntimeError(Exception):
    """Named as pyspark's error where a server was started again under the address of one that has ended."""


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o83.getResult"),
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError(104, "Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        EOFError(),
        Py4JJavaError(),
        RuntimeError("org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"),
        RuntimeError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."),
        SparkConnectGrpcException('status = StatusCode.UNAVAILABLE details = "failed to connect to all addresses"'),
        SparkConnectGrpcException(
            'status = StatusCode.CANCELLED details = "Stream removed (RST_STREAM (Received RST_STREAM with error code 8))"'
        ),
        SparkConnectGrpcException("<_MultiThreadedRendezvous of RPC that terminated with: details = GOAWAY received>"),
        SparkConnectGrpcException("[INVALID_HANDLE.SESSION_NOT_FOUND] The handle is invalid. Session not found."),
        PySparkRuntimeError("[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.SESSION_NOT_FOUND: The handle is invalid."),
    ],
)
def test_a_driver_that_has_ended_is_named_with_what_to_do(error: Exception) -> None:
    problem = driver_problem(error)
    assert problem is not None
    assert f"Spark's driver has ended, or does not answer any more ({type(error).__name__})" in problem
    assert "RMQ_SPARK_DRIVER_MEMORY" in problem
    for session in (Lost(error), LostBefore(error)):
        with pytest.raises(StoreUnusable, match="make the same request again"):
            run_stage(session, lambda job, task, attempt: None, None, [1])  # type: ignore[arg-type]
    with pytest.raises(StoreUnusable, match="make the same request again"):
        SparkEngine(LostBefore(error), None).slots  # type: ignore[arg-type]  # noqa: B018


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o1.f. Trace:\npy4j.Py4JException: Method f([]) does not exist"),
        SparkConnectGrpcException("[PARSE_SYNTAX_ERROR] Syntax error"),
        PySparkRuntimeError("[NO_ACTIVE_SESSION] No active Spark session found."),
        KeyError("queue"),
    ],
)
def test_another_error_says_nothing_about_the_driver(error: Exception) -> None:
    assert driver_problem(error) is None
    with pytest.raises(type(error)):
        run_stage(Lost(error), lambda job, task, attempt: None, None, [1])  # type: ignore[arg-type]


class Ended:
    """Stands for a session of a JVM of this process that has ended."""

    sparkContext = None

    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_the_next_session_after_one_whose_jvm_has_ended_starts_another_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("_gateway", "_jvm", "_active_spark_context")
    for name in kept:
        monkeypatch.setattr(SparkContext, name, object())
    monkeypatch.setattr(SparkSession, "_instantiatedSession", object())
    monkeypatch.setattr(engine, "open_session", lambda *_, **__: Ended())
    monkeypatch.setattr(engine, "ship", lambda *_: None)
    with opened_session("windows", SparkSettings(), delta=False):
        pass
    assert [getattr(SparkContext, name) for name in kept] == [None, None, None]
    assert SparkSession._instantiatedSession is None


class Answered:
    """Stands for a session whose tasks have answered."""

    def __init__(self, answer: object) -> None:
        self.table = pa.table({"result": [pickle.dumps(answer)]})

    def range(self, *_: int) -> Answered:
        return self

    def mapInArrow(self, stage: object, schema: str) -> Answered:
        return self

    def addTag(self, tag: str) -> None: ...

    interruptTag = addTag

    def toArrow(self) -> pa.Table:
        return self.table


class Lost(Answered):
    """Stands for a session whose driver ends in a job."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def toArrow(self) -> pa.Table:
        raise self.error


class LostBefore(Lost):
    """Stands for a session whose driver has ended before a job."""

    def range(self, *_: int) -> Answered:
        raise self.error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "listener shop:f cannot be loaded: ModuleNotFoundError: No module named 'models'",
            r"^listener shop:f cannot be loaded.*'models'\. Spark's workers have no module models: .* --py-files",
        ),
        ("listener shop:f answered MAYBE", "^listener shop:f answered MAYBE$"),
    ],
)
def test_a_listener_that_only_a_worker_cannot_load_is_said_with_what_to_do(text: str, expected: str) -> None:
    session: Any = Answered(ListenerError(text))
    with pytest.raises(ListenerError, match=expected):
        run_stage(session, lambda job, task, attempt: None, None, [1])
