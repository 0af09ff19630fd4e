"""Opens Spark sessions, and runs the warm Spark Connect server that windows share.

A window that starts its own JVM waits 10 to 15 s for it; a window that connects to a warm server waits about 0.3 s.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from rmq_store.settings.environment import Environment
from spark_jobs.jars import present_jars
from spark_jobs.java import MachineNotReady, find_java
from spark_jobs.progress import signs_of, wait_for_progress

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

CHECKOUT = Path(__file__).resolve().parents[1]
_KILL_TIMEOUT_S = 60.0
"""A slow machine needs a while to take back the memory of a JVM that was killed."""
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


def open_session(
    app_name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    python_path: Sequence[str | Path] = (),
) -> SparkSession:
    """A Spark session with Delta, times in UTC, and nothing listening outside loopback.

    ``remote`` (``sc://…``) connects to a running server, whose own settings apply; otherwise the session is made in
    this process on ``master`` (default ``local[*]``, or the master given to spark-submit). ``python_path``: folders
    from which the workers can import besides this checkout, so that they find the user's listener. ``conf`` overrides
    all settings.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if remote is not None:
        return builder.remote(remote).config(map={**(conf or {})}).create()
    under_spark_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    settings = dict(_session_settings())
    if not under_spark_submit:
        settings |= _launch_settings(master or "local[*]")
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif master is not None:
        settings["spark.master"] = master
    settings["spark.executorEnv.PYTHONPATH"] = worker_python_path(python_path)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder.config(map={**settings, **(conf or {})}).getOrCreate()


def worker_python_path(folders: Sequence[str | Path] = ()) -> str:
    """``PYTHONPATH`` for workers: the user's folders, this checkout, and what was set before."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [*(str(Path(folder).resolve()) for folder in folders), str(CHECKOUT), *before]
    return os.pathsep.join(dict.fromkeys(filter(None, entries)))


def _session_settings() -> dict[str, str]:
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        # Spark's default, INT96, has no statistics, so nothing could be skipped by time.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _launch_settings(master: str) -> dict[str, str]:
    """Settings that only apply before the JVM starts."""
    jars = os.pathsep.join(map(str, present_jars("delta")))
    scratch = tempfile.gettempdir()  # honours TMPDIR
    options = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Djava.io.tmpdir={scratch}"
    slots = _local_slots(master)
    on_this_host = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.default.parallelism": str(slots),
        "spark.sql.shuffle.partitions": str(slots),
    }
    return {
        "spark.master": master,
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.driver.memory": Environment.read().spark_driver_memory,
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": str(Path(scratch) / "spark-warehouse"),
    } | (on_this_host if slots else {})


def _local_slots(master: str) -> int:
    """How many tasks run at once on ``local``, ``local[N]`` or ``local[*]``; 0 when the master is a cluster."""
    if not (match := re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)):
        return 0
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def warm_up(session: SparkSession | ConnectSession) -> None:
    """Run one tiny job through the Python workers, so that the next one finds classes loaded and workers started."""
    rows = session.range(0, 64, 1, 2).mapInArrow(_identity, "id long").toArrow()
    if rows.num_rows != 64:
        raise RuntimeError(f"the warm-up query returned {rows.num_rows} rows instead of 64")


def _identity(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import rmq_store.lake  # noqa: F401  what every real stage imports

    yield from batches


class ConnectServer:
    """A warm Spark Connect server on loopback, for as long as the ``with`` block lasts.

    It runs in its own process and process group, ends with its starter, however that ends (it watches a pipe), and
    accepts only clients that have the token in ``remote``. Entering the block waits until a first query has succeeded,
    as long as the server makes progress; ``say`` gets a line about it now and then.
    """

    def __init__(
        self,
        *,
        master: str | None = None,
        python_path: Sequence[str | Path] = (),
        log_file: str | Path | None = None,
        conf: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._master = master
        self._python_path = python_path
        self._log_file = Path(log_file or Path(tempfile.gettempdir(), f"rmq-connect-server-{os.getpid()}.log"))
        self._conf = dict(conf or {})
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._remote: str | None = None
        self._was_stopped = False
        self._changes = threading.Lock()

    @property
    def remote(self) -> str:
        """Address for ``open_session(remote=…)``, with the token: pass it in the environment, not as an argument."""
        if self._remote is None:
            raise RuntimeError("the Spark Connect server is not running")
        return self._remote

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise RuntimeError("the Spark Connect server is not running")
        return self._process.pid

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and wait until it is ready. Raises MachineNotReady, with the end of the server's log, when
        it does not start, or when another thread has stopped it."""
        token = secrets.token_urlsafe(24)
        command = [sys.executable, "-m", "spark_jobs.connect_server", "--stop-with-stdin"]
        if self._master:
            command += ["--master", self._master]
        for key, value in self._conf.items():
            command += ["--conf", f"{key}={value}"]
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._changes, self._log_file.open("ab") as log:
            if self._was_stopped:
                raise MachineNotReady("the Spark Connect server was stopped before it had started")
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {_TOKEN_VARIABLE: token, "PYTHONPATH": worker_python_path(self._python_path)},
                start_new_session=True,
            )
        try:
            port = json.loads(self._first_line_of(process))["port"]
        except BaseException as error:
            self.stop()
            if not isinstance(error, (TimeoutError, ValueError, KeyError)):
                raise
            raise MachineNotReady(
                f"the Spark Connect server did not start ({error or type(error).__name__}). "
                f"End of its log {self._log_file}:\n{_tail(self._log_file)}"
            ) from error
        # Without TLS the client sends a token only to a host with exactly this name.
        self._remote = f"sc://localhost:{port}/;token={token}"

    def _first_line_of(self, process: subprocess.Popen[bytes]) -> bytes:
        """The JSON line of a server that is ready. Raises NoProgress, and ValueError when the server ends before."""
        assert process.stdout is not None
        line = _Line(process.stdout)
        wait_for_progress(
            line.is_complete,
            lambda: signs_of([process.pid], [self._log_file]),
            "the Spark Connect server is still starting",
            self._say,
            pause=lambda: None,  # is_complete waits
        )
        return line.text

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop the server and all its descendants permanently; safe to call twice, and before or while another thread
        starts it. No process is left when this returns."""
        with self._changes:
            self._was_stopped = True
            process, self._process, self._remote = self._process, None, None
        if process is None:
            return
        members = set(_process_tree(process.pid))
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        deadline = time.monotonic() + timeout_s
        while process.poll() is None and time.monotonic() < deadline:
            members.update(_process_tree(process.pid))  # a server that has just begun still starts its JVM
            time.sleep(0.05)
        _, alive = psutil.wait_procs(members, timeout=3.0)
        for member in alive:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(alive, timeout=5.0)
        process.wait(_KILL_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


def _process_tree(process_id: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process_id)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class _Line:
    """The first line of a stream, read without blocking for long."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.text = b""

    def is_complete(self) -> bool:
        """Whether the line has arrived, after a short wait. Raises ValueError when the stream has ended."""
        if select.select([self._stream], [], [], 0.25)[0]:
            chunk = os.read(self._stream.fileno(), 4096)
            if not chunk:
                raise ValueError("it ended while starting")
            self.text += chunk
        return self.text.endswith(b"\n")


def _tail(path: Path, lines: int = 25) -> str:
    with suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return "(no log)"
