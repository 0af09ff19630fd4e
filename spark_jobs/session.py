"""Opens Spark sessions, and runs the warm Spark Connect server that windows share.

A window that starts its own JVM waits 10 to 15 s for it; a window that connects to a warm server waits about 0.3 s.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from rmq_store.errors import StoreUnusable
from rmq_store.settings.spark_settings import is_local_master
from spark_jobs.jars import present_jars
from spark_jobs.java import MachineNotReady, find_java
from spark_jobs.launch import launch_settings, session_settings, worker_python_path
from spark_jobs.locked_folder import locked_folder
from spark_jobs.progress import signs_of, wait_for_progress
from spark_jobs.s3a import GROUP, s3a_settings

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

DEFAULT_MASTER = "local[*,4]"
"""All cores of this host, and four tries of a task, as on a cluster; ``local[*]`` has one."""
IS_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The variable that a process has which spark-submit has started."""
_JVM_ADDRESS = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The variable that pyspark gives to a JVM that it starts."""
_KILL_TIMEOUT_S = 60.0
"""A slow machine needs a while to take back the memory of a JVM that was killed."""
READY_S = 60.0
"""So long a Connect server may take until it speaks with a client. Tests shorten it."""
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


def open_session(
    app_name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    python_path: Sequence[str | Path] = (),
    delta: bool = True,
    s3a: bool = False,
) -> SparkSession:
    """A Spark session with times in UTC. On a ``local`` master nothing listens outside loopback.

    ``remote`` (``sc://…``) connects to a running server, whose own settings apply; otherwise the session is made in
    this process on ``master`` (default ``DEFAULT_MASTER``, or the master given to spark-submit). ``python_path``: folders
    from which the workers on this host can import besides this checkout, so that they find the user's listener; those of
    a cluster get their code from ``spark_jobs.ship``. ``delta``: with the jars and settings that Delta tables in Spark
    need. ``s3a``: with those for Spark SQL over ``s3://`` roots (``spark_jobs.s3a``). ``conf`` overrides all settings.
    Raises MachineNotReady when jars or Java are missing, StoreUnusable when the server accepts connections and answers none.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    conf = dict(conf or {})
    if remote is not None:
        _check_is_ready(remote)
        return builder.remote(remote).config(map={**conf}).create()
    settings = session_settings(delta=delta) | (s3a_settings(os.environ) if s3a else {})
    submitted = _submitted_master()
    master = master or submitted or DEFAULT_MASTER
    if submitted is None:
        jars = [*(present_jars("delta") if delta else ()), *(present_jars(GROUP) if s3a else ())]
        settings |= launch_settings(master, jars)
        os.environ["JAVA_HOME"] = str(find_java())
        if is_local_master(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings["spark.master"] = master
    if is_local_master(master):
        settings["spark.executorEnv.PYTHONPATH"] = worker_python_path(python_path)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "spark.pyspark.python" in conf:
        # Spark reads it only in spark-submit.
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    with _own_ctrl_c(), _no_lost_jvm():
        return builder.config(map={**settings, **conf}).getOrCreate()


def _check_is_ready(remote: str) -> None:
    """Raises StoreUnusable when what listens there does not speak as a Connect server. pyspark would wait for its first answer
    without a limit, and once more when the process ends, also one that a signal ends."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(READY_S)
    except grpc.FutureTimeoutError as error:
        where = remote.partition("/;")[0]  # what follows may be a token
        raise StoreUnusable(
            f"what listens at {where} has not answered as a Spark Connect server for {READY_S:.0f} s: look at its log, and "
            "start it again. With a token and a host other than localhost pyspark uses TLS, which the server then needs"
        ) from error
    finally:
        channel.close()


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Keep a handler of this process for Ctrl-C, for example one that ends it. A SparkContext replaces it by one that cancels
    all jobs first, so that the error of a job comes in the place of the KeyboardInterrupt."""
    own = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and own not in (None, signal.default_int_handler):
            signal.signal(signal.SIGINT, own)


@contextmanager
def _no_lost_jvm() -> Iterator[None]:
    """When this process is stopped before it has the address of its JVM, end the JVM, which no other process can. It would
    outlive this process, with its standard output, if it cannot write the address (``pyspark.java_gateway.launch_gateway``)."""
    from pyspark import SparkContext

    this = psutil.Process()
    before = this.children()
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for child in set(this.children()) - set(before):
                _kill_jvm(child)
        raise


def _kill_jvm(child: psutil.Process) -> None:
    """Kill it with what its script has started, unless it is something else, which another thread has started."""
    with suppress(psutil.Error):
        if _JVM_ADDRESS in child.environ():
            for process in [*child.children(recursive=True), child]:
                process.kill()


def forget_ended_jvm() -> None:
    """Let the next session of this process start a JVM: pyspark keeps the context of the one that has ended."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def _submitted_master() -> str | None:
    """The master that spark-submit was given; None in a process that it did not start."""
    if IS_SUBMITTED not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # until then a SparkConf is empty
    return SparkConf().get("spark.master")


def warm_up(session: SparkSession | ConnectSession) -> None:
    """Run one tiny job through the Python workers, so that the next one finds classes loaded and workers started."""

    # A function in a function is sent by value: the workers of a cluster do not have this module.
    def identity(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import rmq_store.lake  # noqa: F401  what every real stage imports

        yield from batches

    rows = session.range(0, 64, 1, 2).mapInArrow(identity, "id long").toArrow()
    if rows.num_rows != 64:
        raise RuntimeError(f"the warm-up query returned {rows.num_rows} rows instead of 64")


class ConnectServer:
    """A warm Spark Connect server on loopback, for as long as the ``with`` block lasts.

    It runs in its own process and process group, ends with its starter, however that ends (it waits for a lock), and
    accepts only clients that have the token in ``remote``. Entering the block waits until a first query has succeeded,
    as long as the server makes progress; ``say`` gets a line about it now and then.
    """

    def __init__(
        self,
        *,
        master: str | None = None,
        port: int = 0,
        python_path: Sequence[str | Path] = (),
        log_file: str | Path | None = None,
        conf: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
        submit: Sequence[str] | None = None,
    ) -> None:
        """``port``: 0 takes any free one; with another ``remote`` is known before the server has started. ``submit``: a
        command of spark-submit with its options, which starts the server instead of this Python; it has the master and the
        settings. The server is then for windows and imports, not for Delta tables in Spark SQL."""
        self._master = master
        self._port = port
        self._token = secrets.token_urlsafe(24)
        self._python_path = python_path
        self._log_file = Path(log_file or Path(tempfile.gettempdir(), f"rmq-connect-server-{os.getpid()}.log"))
        self._conf = dict(conf or {})
        self._say = say
        self._submit = submit
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._was_stopped = False
        self._changes = threading.Lock()

    @property
    def remote(self) -> str:
        """Address for ``open_session(remote=…)``, with the token: pass it in the environment, not as an argument."""
        if self._port == 0:
            raise RuntimeError("the Spark Connect server is not running")
        # Without TLS the client sends a token only to a host with exactly this name.
        return f"sc://localhost:{self._port}/;token={self._token}"

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
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._changes, self._log_file.open("ab") as log:
            if self._was_stopped:
                raise MachineNotReady("the Spark Connect server was stopped before it had started")
            folder, self._lock = locked_folder("connect-server")
            self._folder = folder
            self._process = process = subprocess.Popen(
                [*self._program(), "--starter", str(folder), "--port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            self._port = json.loads(self._address_from(process, folder / "address"))["port"]
        except BaseException as error:
            self.stop()
            if not isinstance(error, (OSError, ValueError, KeyError)):
                raise
            raise MachineNotReady(
                f"the Spark Connect server did not start ({error or type(error).__name__}). "
                f"End of its log {self._log_file}:\n{_tail(self._log_file)}"
            ) from error

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended by itself, as it does when its JVM ends."""
        return self._process is not None and self._process.poll() is not None

    def start_again(self) -> None:
        """Start it after it has ended: with the same port and token, so ``remote`` stays. As ``start``."""
        with self._changes:
            if self._lock is not None:
                self._lock.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
        self.start()

    def _program(self) -> list[str]:
        if self._submit is not None:
            return [*self._submit, str(Path(__file__).with_name("connect_server.py")), "--no-delta"]
        command = [sys.executable, "-m", "spark_jobs.connect_server"]
        if self._master:
            command += ["--master", self._master]
        for key, value in self._conf.items():
            command += ["--conf", f"{key}={value}"]
        return command

    def _environment(self) -> dict[str, str]:
        """Without SPARK_REMOTE, which is for clients. spark-submit's own scripts ask $PYSPARK_DRIVER_PYTHON where Spark is."""
        env = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        env |= {TOKEN_VARIABLE: self._token, "PYTHONPATH": worker_python_path(self._python_path)}
        if self._submit is None:
            return env
        return env | {"PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(find_java())}

    def _address_from(self, process: subprocess.Popen[bytes], file: Path) -> bytes:
        """What a server that is ready has written. Raises NoProgress, and ValueError when the server ends before."""

        def is_written() -> bool:
            has_ended = process.poll() is not None  # look before the file, as it may be written in between
            if file.exists():
                return True
            if has_ended:
                raise ValueError("it ended while starting")
            return False

        wait_for_progress(
            is_written,
            lambda: signs_of([process.pid], [self._log_file]),
            "the Spark Connect server is still starting",
            self._say,
            pause=lambda: time.sleep(0.05),
        )
        return file.read_bytes()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Stop the server and all its descendants permanently; safe to call twice, and before or while another thread
        starts it. No process is left when this returns."""
        with self._changes:
            self._was_stopped = True
            process, self._process, self._port = self._process, None, 0
            lock, self._lock = self._lock, None
            folder, self._folder = self._folder, None
        if process is None:
            if folder is not None:  # it could not be started
                shutil.rmtree(folder, ignore_errors=True)
            return
        members = set(_process_tree(process.pid))
        if lock is not None:
            lock.close()
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
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _process_tree(process_id: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process_id)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _tail(path: Path, lines: int = 25) -> str:
    with suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    return "(no log)"
