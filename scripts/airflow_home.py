"""A local Airflow in a folder of this checkout: its settings, its set-up and its processes.

Airflow is configured only by environment variables that are made here; the caller's ``AIRFLOW*`` variables are left
out, so that nothing outside the folder is used or changed. All processes listen on loopback only, and end with the
``Airflow`` that started them, or with its process if that is killed (``scripts/keeper.py``).
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TextIO

import psutil

from rmq_store.settings.private_files import umask_of
from scripts.keeper import CHECKOUT, end_kept, start_kept
from spark_jobs.progress import NoProgress, Signs, signs_of, wait_for_progress

_PORTS = range(20_000, 32_768)
USER = "admin"

Meanwhile = Callable[[], None]
"""Called repeatedly during a wait."""


def _nothing() -> None:
    pass


def _ignore(text: str) -> None:
    pass


PROCESSES: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),  # serving logs would listen beyond loopback
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


class AirflowNotReady(Exception):
    """Airflow did not start, or ended; the message has the end of the log that says why."""


@dataclass(frozen=True, slots=True)
class AirflowHome:
    """Where a local Airflow is, and how its processes are configured."""

    folder: Path
    """AIRFLOW_HOME."""
    port: int
    """Port of the UI and the API, on loopback."""
    settings: Path
    """The settings of the groups (``RMQ_SETTINGS``)."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More environment variables of the processes; they override all others."""
    database: str | None = None
    """The address of its metadata database. None: an SQLite file in the folder."""
    lock: int | None = None
    """The descriptor that ``only_one`` returned; held until the last process has ended."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password_file(self) -> Path:
        """Has the password of each user."""
        return self.folder / "passwords.json"

    @property
    def made_file(self) -> Path:
        """Says which version of Airflow has made the tables of the database; without it they are made again."""
        return self.folder / "made.json"

    @property
    def password(self) -> str:
        """The password of the only user, ``USER``."""
        return str(json.loads(self.password_file.read_text())[USER])

    def environment(self) -> dict[str, str]:
        """The complete environment of a process of this Airflow."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        direct = [host for host in (inherited.get("NO_PROXY", ""), "127.0.0.1", "localhost") if host]
        return (
            inherited
            | {
                "AIRFLOW_HOME": str(self.folder),
                "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
                "AIRFLOW__CORE__PLUGINS_FOLDER": str(CHECKOUT / "plugins"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.password_file),
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__PORT": str(self.port),
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # 5 s lose tasks on a busy machine
                "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",  # of 1 s, each run spends two
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",  # a task that was killed is tried again after it
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database or f"sqlite:///{self.folder}/airflow.db",
                "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
                "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS": f"0o{0o777 & ~umask_of():o}",
                "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS": f"0o{0o666 & ~umask_of():o}",
                "NO_PROXY": ",".join(direct),
                "no_proxy": ",".join(direct),
                "RMQ_SETTINGS": str(self.settings),
            }
            | dict(self.variables)
        )

    def start(self, command: Sequence[str], log_file: Path) -> subprocess.Popen[bytes]:
        """The keeper of a command in this Airflow's environment; ``log_file`` is overwritten."""
        log_file.parent.mkdir(parents=True, exist_ok=True)
        keep_open = () if self.lock is None else (self.lock,)
        with log_file.open("wb") as log:
            return start_kept(command, log, env=self.environment(), keep_open=keep_open)

    def initialise(self, meanwhile: Meanwhile = _nothing) -> None:
        """Make the database and the login, unless the same version of Airflow has made them before.

        Raises AirflowNotReady when Airflow fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Also a folder of an earlier version. Another user's PostgreSQL may have to pass through it.
        passable = 0 if self.database is None else self.folder.stat().st_mode & 0o011
        self.folder.chmod(0o777 & ~umask_of() | passable)
        if not self.password_file.exists():
            with open(self.password_file, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                json.dump({USER: secrets.token_urlsafe(12)}, file)
        kind = "sqlite" if self.database is None else self.database.partition("+")[0]
        versions_file, versions = self.made_file, {"airflow": version("apache-airflow"), "database": kind}
        is_made = versions_file.exists() and json.loads(versions_file.read_text()) == versions
        if is_made and (self.database is not None or (self.folder / "airflow.db").exists()):
            return
        versions_file.unlink(missing_ok=True)
        self._run_to_end(airflow_command("db", "migrate"), meanwhile)
        versions_file.write_text(json.dumps(versions))

    def _run_to_end(self, command: Sequence[str], meanwhile: Meanwhile) -> None:
        log_file = self.folder / "process-logs" / "init.log"
        running = self.start(command, log_file)
        try:
            while running.poll() is None:
                meanwhile()
                time.sleep(0.1)
        finally:
            end_kept([running])
        if running.returncode != 0:
            raise AirflowNotReady(f"Airflow could not make its database:\n{_end_of(log_file)}")


def airflow_command(*words: str) -> list[str]:
    """The command line of the Airflow of this Python, whatever is on the PATH."""
    return [sys.executable, "-m", "airflow", *words]


# --- its processes ---------------------------------------------------------------------------------------------------


LEAST_RUN_S = 60
"""A process that ran for a shorter time is not started again."""


class Airflow:
    """The processes of an ``AirflowHome`` for as long as the ``with`` block lasts.

    Each process has its own keeper and session: a task has its own process group, but the session of its scheduler. The
    scheduler starts last, once the API server answers: a task asks it a few times in six seconds, and then its try fails.

    ``meanwhile`` is called repeatedly while they start, and ``say`` with what they wait for.
    """

    def __init__(
        self,
        home: AirflowHome,
        names: Sequence[str] = tuple(PROCESSES),
        *,
        meanwhile: Meanwhile = _nothing,
        say: Callable[[str], None] = _ignore,
    ) -> None:
        self._home = home
        self._names = names
        self._meanwhile = meanwhile
        self._say = say
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started_s: dict[str, float] = {}

    def __enter__(self) -> Airflow:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        for name in self._names:
            if name != "scheduler":
                self._start(name)
        if "api-server" in self._names:
            self._wait_until_healthy({"metadatabase"})
        if "scheduler" in self._names:
            self._start("scheduler")

    def _start(self, name: str) -> None:
        self._processes[name] = self._home.start(airflow_command(*PROCESSES[name]), self._log_of(name))
        self._started_s[name] = time.monotonic()

    def _log_of(self, name: str) -> Path:
        return self._home.folder / "process-logs" / f"{name}.log"

    def check_alive(self) -> None:
        """Raises AirflowNotReady for a process that has ended, with the end of its log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = self._log_of(name)
                raise AirflowNotReady(
                    f"Airflow's {name} ended with code {process.returncode}. End of its log {log}:\n{_end_of(log)}"
                )

    def start_ended_again(self) -> None:
        """Start each process again that has ended, and say so, as Docker Compose does. Raises AirflowNotReady, as
        ``check_alive``, for one that ended within a minute of its start: it would end again."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None and time.monotonic() >= self._started_s[name] + LEAST_RUN_S:
                self._say(
                    f"Airflow's {name} ended with code {process.returncode}, and is started again. End of its log:\n"
                    f"{_end_of(self._log_of(name))}"
                )
                self._start(name)
        self.check_alive()

    def wait_until_healthy(self) -> None:
        """Wait until every process reports that it is healthy. Raises AirflowNotReady."""
        self._wait_until_healthy({name.replace("-", "_") for name in self._names if name != "api-server"})

    def _wait_until_healthy(self, components: Set[str]) -> None:
        def healthy() -> bool:
            self._meanwhile()
            return components <= self._healthy()

        self.wait_for(healthy, "Airflow is still starting", self._say)

    def wait_for(self, is_done: Callable[[], bool], what: str, say: Callable[[str], None] = _ignore) -> None:
        """Wait until ``is_done()``, as long as the processes make progress.

        Raises AirflowNotReady, at once when a process has ended.
        """

        def done_and_alive() -> bool:
            self.check_alive()
            return is_done()

        try:
            wait_for_progress(done_and_alive, self._signs, what, say, pause=pause)
        except NoProgress as error:
            logs = self._home.folder / "process-logs"
            raise AirflowNotReady(f"{what}: {error}. Logs: {logs}") from error

    def _signs(self) -> Signs:
        logs = [self._log_of(name) for name in self._processes]
        return signs_of([process.pid for process in self._processes.values()], logs)

    def _healthy(self) -> set[str]:
        try:
            with direct_opener().open(f"{self._home.url}/api/v2/monitor/health", timeout=60) as answer:
                components = json.load(answer)
        except (OSError, ValueError):
            return set()
        return {name for name, state in components.items() if state and state.get("status") == "healthy"}

    def stop(self) -> None:
        """End all processes and their descendants; safe to call twice. None is left when this returns."""
        try:
            end_kept(self._processes.values())
        except TimeoutError as error:
            raise AirflowNotReady(f"Airflow has not ended: {error}") from error
        self._processes = {}


# --- ports, locks, signals -------------------------------------------------------------------------------------------


def pause() -> None:
    """Between two questions to Airflow, each of which costs it some 50 ms of CPU time."""
    time.sleep(0.5)


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener for addresses on loopback: it uses no proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_free(port: int) -> bool:
    """Whether no process listens on this port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(preferred: int | None = None) -> int:
    """The preferred port if it is free, else any free one. A server takes it only seconds later, so it must not be one that
    the system gives to a connection meanwhile (from 32,768 on in Linux)."""
    ports = random.sample(_PORTS, 100)
    return next(port for port in ([preferred] if preferred else []) + ports if is_free(port))


@contextmanager
def only_one(lock_file: Path, what: str, say: Callable[[str], None] = print, timeout_s: float = 300.0) -> Iterator[int]:
    """The descriptor of the lock, which is held by every process that inherits it.

    Raises AirflowNotReady when another process holds it. When that process was killed, this waits until the processes
    that it had started have ended.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    deadline, has_warned = time.monotonic() + timeout_s, False
    with lock_file.open("a+") as file:
        while not _locked(file):
            if _holder_lives(lock_file):
                raise AirflowNotReady(f"{what} runs already in this checkout ({lock_file} is locked)")
            if time.monotonic() > deadline:
                raise AirflowNotReady(
                    f"{what} was killed, and processes that it had started do not end ({lock_file} is locked)"
                )
            if not has_warned:
                say(f"{what} was killed; waiting until the processes that it had started have ended")
                has_warned = True
            time.sleep(0.2)
        file.truncate(0)
        file.write(_identity(os.getpid()))
        file.flush()
        yield file.fileno()


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder_lives(lock_file: Path) -> bool:
    """Whether the process that locked it last is alive; a process id alone could belong to another process by now."""
    identity = lock_file.read_text()
    try:
        return identity == "" or identity == _identity(int(identity.split()[0]))
    except (ValueError, psutil.NoSuchProcess):
        return False


def _identity(process_id: int) -> str:
    process = psutil.Process(process_id)
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.ZombieProcess(process_id)
    return f"{process_id} {process.create_time()}"


def stop_on_signals() -> None:
    """SIGTERM and SIGHUP end the program as Ctrl-C does: through its ``finally`` blocks."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A second signal must not interrupt the clean-up.
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _end_of(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
