"""Connections to DuckDB, whose settings are locked: they read nothing but what is registered with them.

To open an instance of DuckDB takes 20 ms, a connection to one that is open almost nothing. So the queries of this project share
one in each process. The query of a user has an instance of its own, with limits. Both are kept for the next query.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
from duckdb.func import FunctionNullHandling, PythonUDFType

from rmq_store.errors import STOPPED
from rmq_store.lake.sql.query_limits import QueryLimits
from rmq_store.lake.sql.sql_functions import FUNCTIONS, checked
from rmq_store.utils.host import random_name

_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    # DuckDB does not know how many rows an Arrow dataset has. Joins are built from their right side, as written.
    "disabled_optimizers": "build_side_probe_side",
}


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """A connection that has the functions of ``sql_functions``."""

    connection: duckdb.DuckDBPyConnection
    instance: duckdb.DuckDBPyConnection
    limits: QueryLimits | None
    scratch: Path | None
    """The folder in which an instance of its own spills."""
    interrupted: threading.Event
    """Ends the functions of the instance."""
    views: set[str] = field(default_factory=set)
    """The views that were created in it."""
    tables: set[str] = field(default_factory=set)
    registered: set[str] = field(default_factory=set)

    def register(self, name: str, rows: Any) -> None:
        """Make Arrow rows a relation, until the end of the body."""
        self.connection.register(name, rows)
        self.registered.add(name)

    def create_view(self, name: str, text: str) -> None:
        """Unless it was created. It shows what its relations have when it is read."""
        if name not in self.views:
            self.connection.execute(f"CREATE TEMP VIEW {name} AS {text}")
            self.views.add(name)

    def create_table(self, name: str, text: str) -> None:
        """In place of the view: its rows are read now, once, until the end of the body."""
        if name in self.views:
            self.connection.execute(f"DROP VIEW {name}")
            self.views.remove(name)
        self.connection.execute(f"CREATE TEMP TABLE {name} AS {text}")
        self.tables.add(name)

    def interrupt(self) -> None:
        """Of an instance of its own: end the query, also inside a function."""
        self.interrupted.set()
        self.connection.interrupt()

    def let_go(self) -> bool:
        """Whether nothing of the body is left: neither a relation, nor an answer that was not read to its end, nor files."""
        try:
            for name in self.tables:
                self.connection.execute(f"DROP TABLE {name}")
            self.tables.clear()
            for name in self.registered:
                self.connection.unregister(name)
        except duckdb.Error:  # an answer reads it
            return False
        self.registered.clear()
        self.interrupted.clear()
        return self.scratch is None or not self.scratch.exists()

    def close(self) -> None:
        self.connection.close()


@contextmanager
def connected(limits: QueryLimits | None) -> Iterator[Connected]:
    """A connection, for one thread. ``limits``: of a user's query; None: DuckDB's own.

    To create the views takes longer than most queries, so the connection is kept with them for the next body, which registers
    other rows under the same names. A body that raises ends the connection.
    """
    kept = _taken(limits) or _new(limits)
    try:
        yield kept
    except BaseException:  # after some errors an instance refuses every query
        _forget(kept.instance)
        kept.close()
        raise
    _give_back(kept)


def _taken(limits: QueryLimits | None) -> Connected | None:
    with _lock:
        kept = next((one for one in _idle if one.limits == limits), None)
        if kept is not None:
            _idle.remove(kept)
        return kept


def _new(limits: QueryLimits | None) -> Connected:
    if limits is None:
        instance = _shared()
        return Connected(instance.cursor(), instance, None, None, threading.Event())
    interrupted = threading.Event()
    instance, scratch = _opened(limits, interrupted)
    return Connected(instance, instance, limits, scratch, interrupted)


def _give_back(kept: Connected) -> None:
    """Keep it for the next query, unless another had an error in its instance. The one that was used longest ago goes."""
    is_empty = kept.let_go()
    with _lock:
        surplus: Connected | None = kept
        if is_empty and (kept.limits is not None or kept.instance is _instance):
            _idle.append(kept)
            surplus = _idle.pop(0) if len(_idle) > _MOST_IDLE else None
    if surplus is not None:
        surplus.close()


INTERRUPTED: Final = "the query is to end"
"""What an error of DuckDB says when a function was ended."""


def _opened(limits: QueryLimits | None, interrupted: threading.Event) -> tuple[duckdb.DuckDBPyConnection, Path]:
    # DuckDB makes it when a query spills and removes it when it is closed; instances must not share one.
    scratch = Path(tempfile.gettempdir(), f"rmq-sql-{random_name()}")
    config = _CLOSED | {"temp_directory": str(scratch), "secret_directory": str(scratch / "secrets")}
    if limits is not None:
        config["memory_limit"] = f"{limits.memory_bytes >> 10}KiB"
    connection = duckdb.connect(":memory:", config=config)
    # In its configuration it would end the process where the current folder was deleted.
    connection.execute("SET enable_external_access = false")

    def check() -> None:
        if interrupted.is_set() or STOPPED.is_set():
            raise InterruptedError(INTERRUPTED)

    for name, (function, arguments) in FUNCTIONS.items():
        connection.create_function(
            name,
            checked(function, check),
            ["BIGINT"] * arguments,
            "BIGINT",
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    # In a process without a main file DuckDB draws it on standard output, which is for answers.
    connection.execute("SET enable_progress_bar = false")
    if limits is not None:  # DuckDB 2.0 ignores it in its configuration
        connection.execute(f"SET max_temp_directory_size = '{limits.spill_bytes >> 10}KiB'")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # as all times of the store; else that of the process
    connection.execute("SET lock_configuration = true")
    return connection, scratch


_MOST_IDLE: Final = 4
"""So many connections are kept. A page of the console asks about as many questions at once."""
_lock = threading.Lock()
_instance: duckdb.DuckDBPyConnection | None = None
_idle: list[Connected] = []


def _shared() -> duckdb.DuckDBPyConnection:
    global _instance
    with _lock:
        if _instance is None:
            _instance, _ = _opened(None, threading.Event())
        return _instance


def _forget(instance: duckdb.DuckDBPyConnection) -> None:
    """The next query opens another; this one closes when its last connection does."""
    global _instance
    with _lock:
        if _instance is instance:
            _instance = None
        broken = [one for one in _idle if one.instance is instance]
        _idle[:] = [one for one in _idle if one.instance is not instance]
    for one in broken:
        one.close()


def _close() -> None:
    global _instance
    with _lock:
        while _idle:
            _idle.pop().close()
        if _instance is not None:
            _instance.close()
            _instance = None


def _leave_to_parent() -> None:
    """In a fork: the threads of the instances are the parent's, and to close one would wait for them without end."""
    global _instance, _lock
    _lock = threading.Lock()
    for connection in (_instance, *(one.connection for one in _idle)):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _instance = None
    _idle.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(_close)
