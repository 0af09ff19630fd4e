"""Where the work of a command runs: in this process or in Spark, started only when there is something to do.

This is the one place that reaches for ``spark_jobs``, and it does so by name: the command line works without a JVM.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rmq_store.cli.quick import pandas_for_listeners
from rmq_store.errors import RmqError, StoreUnusable
from rmq_store.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmq_store.lake.engine import Engine, Job, Result, Task
    from rmq_store.plan import Plan

AUTO_LOCAL_BYTES = 512 << 20
"""``auto`` imports less than this in this process: a JVM would take as long to start."""

_REMOTE = "SPARK_REMOTE"
_CONNECT_PORT = 15002
_CONNECT_TIMEOUT_S = 10.0


class Engines:
    """The engines of one command. Used in ``with``, which ends the Spark session if one was opened.

    ``choice``: what ``--engine`` said, None for what the work's own default is. ``python_path``: where Spark's workers
    find the listener.
    """

    def __init__(self, command: str, choice: str | None, host: Host, python_path: Sequence[Path] = ()) -> None:
        self._command = command
        self._choice = choice
        self._host = host
        self._python_path = python_path
        self._spark: Engine | None = None
        self._session: Any = None

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._session is not None:
            self._session.stop()

    def for_window(self, default: str) -> Callable[[Plan], Engine]:
        """For ``consume_window``, which asks when it has found work. ``default``: the group's setting."""

        def engine_of(plan: Plan) -> Engine:
            from rmq_store.lake.engine import AUTO_LOCAL_MESSAGES

            pandas_for_listeners()
            messages = sum(len(planned.range) for planned in plan.ranges)
            choice = self._choice or default
            is_little = messages == 0 or (choice == "auto" and messages < AUTO_LOCAL_MESSAGES)
            return self.local() if is_little or choice == "local" else self.spark()

        return engine_of

    def for_import(self, to_read_bytes: int) -> Engine:
        """For an import of about so many bytes."""
        choice = self._choice or "auto"
        if choice == "local" or (choice == "auto" and to_read_bytes < AUTO_LOCAL_BYTES):
            return self.local()
        return OnFirstUse(self)

    def local(self) -> Engine:
        from rmq_store.lake.engine import LocalEngine

        return LocalEngine(self._host)

    def spark(self) -> Engine:
        """Raises StoreUnusable when there is no session to be had, or MachineNotReady when set-up is incomplete."""
        if self._spark is None:
            session = self.spark_session()
            with _explained():
                engine: Engine = spark_module("engine").SparkEngine.of(session)
            self._spark = engine
        return self._spark

    def spark_session(self) -> Any:
        """On the server that $SPARK_REMOTE names, else in a JVM of this command. Raises as ``spark`` does."""
        if self._session is None:
            remote = os.environ.get(_REMOTE) or None
            if remote is not None:
                _check_answers(remote)
            with _explained():
                open_session = spark_module("session").open_session
                self._session = open_session(f"rmq {self._command}", remote=remote, python_path=self._python_path)
        return self._session


@contextmanager
def _explained() -> Iterator[None]:
    """Spark's own errors, which nothing here may name, as one of ours."""
    try:
        yield
    except RmqError:
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise StoreUnusable(
            f"no Spark session ({type(error).__name__}: {said}): see 'rmq doctor --spark', or work with --engine local"
        ) from error


def _check_answers(remote: str) -> None:
    """Raises StoreUnusable when nobody listens there: Spark's own client would go on trying for many minutes."""
    try:
        address = urlsplit(remote)
        host, port = address.hostname or "", address.port or _CONNECT_PORT
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        where = remote.partition("/;")[0]  # what follows may be a token
        raise StoreUnusable(
            f"no Spark Connect server answers at {where} ({error}): start it, or unset {_REMOTE} for a session of our own"
        ) from error


class OnFirstUse:
    """Spark, but not before there are tasks: a repeated import is answered without a JVM."""

    name = "spark"

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    @property
    def slots(self) -> int:
        return os.cpu_count() or 1

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return self._engines.spark()(run, job, tasks) if tasks else []


def spark_module(name: str) -> Any:
    """A module of ``spark_jobs``. Raises StoreUnusable when it, or what it needs, is not installed."""
    try:
        return importlib.import_module(f"spark_jobs.{name}")
    except ImportError as error:
        raise StoreUnusable(
            f"Spark cannot be used here ({error}): run 'make setup', or work with --engine local"
        ) from error


def listener_folders(paths: Sequence[str]) -> list[Path]:
    """Make listeners importable from these folders and the current one, and say which they are, for Spark's workers."""
    folders = [Path(path).resolve() for path in [*paths, "."]]
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    return folders
