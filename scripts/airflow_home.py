"""An Airflow of one's own in a folder of this checkout: its settings, its set-up, and its processes while they run.

Everything is said by environment variables made here; what the caller's environment says to Airflow (``AIRFLOW*``) is
left out, so that nothing outside the folder is used or changed. All processes listen on loopback only, and end with the
``Airflow`` that started them, or with its process if that is killed (``scripts/keeper.py``).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TextIO

import psutil

from scripts.keeper import CHECKOUT, end_kept, start_kept
from spark_jobs.progress import NoProgress, Signs, signs_of, wait_for_progress

USER = "admin"

Meanwhile = Callable[[], None]
"""Called again and again while something is waited for."""


def _nothing() -> None:
    pass


def _tell_nobody(text: str) -> None:
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
    """``folder``: the AIRFLOW_HOME. ``port``: of the UI, which is the API too. ``settings``: the groups' file.
    ``variables``: what else the processes' environment says. ``lock``: what ``only_one`` gave, held until the last
    process has ended."""

    folder: Path
    port: int
    settings: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    lock: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def _password_file(self) -> Path:
        return self.folder / "passwords.json"

    @property
    def password(self) -> str:
        """Of the only user, ``USER``."""
        return str(json.loads(self._password_file.read_text())[USER])

    def environment(self) -> dict[str, str]:
        """The whole environment of a process of this Airflow."""
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
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._password_file),
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__PORT": str(self.port),
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # of a busy machine; 5 s lose tasks before they start
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/airflow.db",
                "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
                "NO_PROXY": ",".join(direct),
                "no_proxy": ",".join(direct),
                "RMQ_SETTINGS": str(self.settings),
            }
            | dict(self.variables)
        )

    def start(self, command: Sequence[str], log_file: Path) -> subprocess.Popen[bytes]:
        """The keeper of a command in this Airflow's environment; ``log_file`` is written anew."""
        log_file.parent.mkdir(parents=True, exist_ok=True)
        keep_open = () if self.lock is None else (self.lock,)
        with log_file.open("wb") as log:
            return start_kept(command, log, env=self.environment(), keep_open=keep_open)

    def initialise(self, meanwhile: Meanwhile = _nothing) -> None:
        """The database and the login. What has been made for the same Airflow is left as it is, so it can be called at
        every start. Raises AirflowNotReady when Airflow refuses."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._password_file.exists():
            with open(self._password_file, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                json.dump({USER: secrets.token_urlsafe(12)}, file)
        made_file, made = self.folder / "made.json", {"airflow": version("apache-airflow")}
        if made_file.exists() and json.loads(made_file.read_text()) == made and (self.folder / "airflow.db").exists():
            return
        made_file.unlink(missing_ok=True)
        self._run_to_its_end(airflow_command("db", "migrate"), meanwhile)
        made_file.write_text(json.dumps(made))

    def _run_to_its_end(self, command: Sequence[str], meanwhile: Meanwhile) -> None:
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
    """Airflow of this very Python, whatever the PATH says."""
    return [sys.executable, "-m", "airflow", *words]


# --- its processes ---------------------------------------------------------------------------------------------------


class Airflow:
    """The processes of an ``AirflowHome`` for as long as the ``with`` block lasts, each with a keeper and a session of
    its own: a task has a process group of its own, but the session of its scheduler."""

    def __init__(self, home: AirflowHome, names: Sequence[str] = tuple(PROCESSES)) -> None:
        self._home = home
        self._names = names
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

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
            self._processes[name] = self._home.start(airflow_command(*PROCESSES[name]), self._log_of(name))

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

    def wait_until_healthy(self, meanwhile: Meanwhile = _nothing, say: Callable[[str], None] = _tell_nobody) -> None:
        """Until every process says so itself. Raises AirflowNotReady."""
        wanted = {"metadatabase", *(name.replace("-", "_") for name in self._names if name != "api-server")}

        def healthy() -> bool:
            meanwhile()
            return wanted <= self._healthy()

        self.wait_for(healthy, "Airflow is still starting", say)

    def wait_for(self, done: Callable[[], bool], what: str, say: Callable[[str], None] = _tell_nobody) -> None:
        """Until ``done``, as long as the processes get on. Raises AirflowNotReady, at once where one has ended."""

        def done_and_alive() -> bool:
            self.check_alive()
            return done()

        try:
            wait_for_progress(done_and_alive, self._signs, what, say)
        except NoProgress as error:
            logs = self._home.folder / "process-logs"
            raise AirflowNotReady(f"{what}: {error}. Logs: {logs}") from error

    def _signs(self) -> Signs:
        logs = [self._log_of(name) for name in self._processes]
        return signs_of([process.pid for process in self._processes.values()], logs)

    def _healthy(self) -> set[str]:
        try:
            with direct_opener().open(f"{self._home.url}/api/v2/monitor/health", timeout=60) as answer:
                found = json.load(answer)
        except (OSError, ValueError):
            return set()
        return {name for name, state in found.items() if state and state.get("status") == "healthy"}

    def stop(self) -> None:
        """End all processes and whatever they started; safe to call twice. None is left when this returns."""
        try:
            end_kept(self._processes.values())
        except TimeoutError as error:
            raise AirflowNotReady(f"Airflow has not ended: {error}") from error
        self._processes = {}


# --- small things that running it needs ------------------------------------------------------------------------------


def direct_opener() -> urllib.request.OpenerDirector:
    """For addresses on loopback, which no proxy is to see."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_free(port: int) -> bool:
    """Whether nobody listens on the port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(preferred: int | None = None) -> int:
    """The preferred port if it is free, else any that is."""
    if preferred is not None and is_free(preferred):
        return preferred
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def only_one(lock_file: Path, what: str, say: Callable[[str], None] = print, timeout_s: float = 300.0) -> Iterator[int]:
    """The descriptor of the lock, which is held by every process that inherits it.

    Raises AirflowNotReady when another process is inside for the same file. When that process was killed, what it had
    started is waited for.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    deadline, said = time.monotonic() + timeout_s, False
    with lock_file.open("a+") as file:
        while not _locked(file):
            if _holder_lives(lock_file):
                raise AirflowNotReady(f"{what} runs already in this checkout ({lock_file} is locked)")
            if time.monotonic() > deadline:
                raise AirflowNotReady(
                    f"{what} was killed, and what it had started does not end ({lock_file} is locked)"
                )
            if not said:
                say(f"{what} was killed; waiting until what it had started has ended")
                said = True
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
    """Whether the process that locked it last is alive: a process id alone could be another's by now."""
    written = lock_file.read_text()
    try:
        return written == "" or written == _identity(int(written.split()[0]))
    except (ValueError, psutil.NoSuchProcess):
        return False


def _identity(process_id: int) -> str:
    process = psutil.Process(process_id)
    if process.status() == psutil.STATUS_ZOMBIE:
        raise psutil.ZombieProcess(process_id)
    return f"{process_id} {process.create_time()}"


def stop_on_signals() -> None:
    """A polite request to end, or a closed terminal, ends the program as Ctrl-C does: through its ``finally``."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Once is enough: a second signal must not break into the cleaning up.
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _end_of(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
