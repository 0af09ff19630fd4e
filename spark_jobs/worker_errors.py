"""What a failure of Spark's workers or driver means for the user: pure functions of Spark's own errors."""

from __future__ import annotations

import re
import sys

from rmq_store.errors import UNREADABLE, text_of
from rmq_store.settings.spark_settings import SHIP

_PAGE = "docs/cluster.md says what must be on the workers"
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError: No module named|ImportError: .*?) ['\"]?([A-Za-z_]\w*)")
_NO_PROGRAM = re.compile(r"Cannot run program \"([^\"]+)\"")
_VERSIONS = re.compile(r"different version: ([\d.]+) than that in driver: ([\d.]+),")
_COMPILED = ("pyarrow", "numpy", "pandas")
_OUT_OF_MEMORY = re.compile(r"\b((?:Arrow)?MemoryError|java\.lang\.OutOfMemoryError)\b")
_NO_SERVER = re.compile(
    r"UNAVAILABLE|StatusCode\.CANCELLED|_MultiThreadedRendezvous|INVALID_HANDLE\.SESSION|SESSION_(?:CLOSED|CHANGED|NOT_FOUND)"
)
_SHUT_DOWN = re.compile(r"SparkContext (?:was shut down|has been shutdown)|stopped SparkContext")
_DIED = re.compile(
    r"Python worker exited unexpectedly|ExecutorLostFailure|port number from pyspark\.daemon|IOException: Stream closed"
)
_NO_THREAD = re.compile(
    r"can't start new thread|unable to create (?:new )?native thread|BlockingIOError: \[Errno \d+\]"
)


def worker_problem(text: str) -> str | None:
    """What is missing on the workers, and what to do; None when the text is of another failure."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if match := _VERSIONS.search(text):
        return (
            f"Spark's workers run Python {match[1]}, and this process runs {match[2]}: both must have the same minor version. "
            f"Set spark.pyspark.python to the path of a Python {match[2]} on the workers. {_PAGE}"
        )
    if match := _NO_PROGRAM.search(text):
        return (
            f"Spark's workers have no program {match[1]}: set spark.pyspark.python to the path of a Python {here} on them. "
            f"{_PAGE}"
        )
    if "PACKAGE_NOT_INSTALLED" in text or ("PyArrow" in text and "must be installed" in text):
        package = re.search(r"(PyArrow|Pandas|NumPy)", text)
        return (
            f"Spark's workers have no {package[1].lower() if package else 'pyarrow'}, or one that is too old. {_PAGE}"
        )
    if match := _NO_MODULE.search(text):
        module = match[1]
        if module in _COMPILED:
            return f"the Python of Spark's workers has no {module}: install it there. {_PAGE}"
        if module == "rmq_store":
            return f"Spark's workers have no module rmq_store: install it on them, or do not set {SHIP}=false. {_PAGE}"
        return f"Spark's workers have no module {module}: install it on them, or send it with --py-files. {_PAGE}"
    return None


def driver_problem(error: Exception) -> str | None:
    """What to do when Spark's driver has ended, a JVM of this process or a Connect server; None when it is another failure."""
    kind, text = type(error).__name__, text_of(error)
    jvm_ended = (
        isinstance(error, ConnectionError | EOFError)  # of py4j's own connections
        or kind == "Py4JNetworkError"
        or (kind == "Py4JError" and "Trace:" not in text)
        or text == UNREADABLE  # that of an error of Java is in the JVM
        or _SHUT_DOWN.search(text) is not None
    )
    server_ended = kind == "RetriesExceeded" or (
        kind.startswith(("SparkConnect", "PySparkRuntime")) and _NO_SERVER.search(text) is not None
    )
    if jvm_ended or server_ended:
        return (
            f"Spark's driver has ended, or does not answer any more ({kind}): it may have been killed because its host or "
            "container has too little memory (RMQ_SPARK_DRIVER_MEMORY, the log of the Connect server). Nothing was committed: "
            "make the same request again"
        )
    return None


def job_problem(text: str) -> str | None:
    """Why a job failed of which a task failed as often as Spark tries it, and what to do; None when the text is of another
    failure."""
    if problem := worker_problem(text):
        return problem
    again = "Nothing was committed: make the same request again afterwards"
    if _NO_THREAD.search(text):
        return (
            "a host of Spark refused a thread or a process: raise its limits (ulimit -u, the pids of the container), or run "
            f"fewer tasks at once (spark.executor.cores, local[N]). {again}"
        )
    if match := _OUT_OF_MEMORY.search(text):
        setting = "spark.executor.memory" if match[1].startswith("java") else "spark.executor.pyspark.memory"
        return (
            f"a task in Spark ran out of memory ({match[1]}): give each worker more ({setting}, or the memory of its host), or "
            f"run fewer tasks at once (spark.executor.cores, local[N]). {again}"
        )
    if _DIED.search(text):
        return (
            "a Python process of Spark's workers, or an executor, died at every try of a task: it was killed, as where a host "
            "or a container has too little memory, or code of the listener ended it. The log of the worker and of its host "
            f"say why. {again}"
        )
    return None
