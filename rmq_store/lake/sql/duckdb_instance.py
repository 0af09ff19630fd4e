"""Connections to DuckDB, whose settings are locked: they read nothing but what is registered with them.

To open an instance of DuckDB takes 20 ms, a connection to one that is open almost nothing. So the queries of this project share
one in each process. The query of a user has an instance of its own, with limits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from duckdb.func import FunctionNullHandling, PythonUDFType

from rmq_store.lake.sql.query_limits import QueryLimits
from rmq_store.lake.sql.sql_functions import FUNCTIONS
from rmq_store.utils.host import random_name

_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    # DuckDB does not know how many rows an Arrow dataset has. Joins are built from their right side, as written.
    "disabled_optimizers": "build_side_probe_side",
}


@contextmanager
def connected(limits: QueryLimits | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees no relations of others, and has the functions of ``sql_functions``. ``limits``: of a user's query;
    None: DuckDB's own."""
    if limits is not None:
        with _opened(limits) as connection:
            yield connection
        return
    instance = _shared()
    with instance.cursor() as connection:
        try:
            yield connection
        except BaseException:  # after some errors an instance refuses every query
            _forget(instance)
            raise


def _opened(limits: QueryLimits | None) -> duckdb.DuckDBPyConnection:
    # DuckDB makes it when a query spills and removes it when it is closed; instances must not share one.
    scratch = Path(tempfile.gettempdir(), f"rmq-sql-{random_name()}")
    config = _CLOSED | {"temp_directory": str(scratch), "secret_directory": str(scratch / "secrets")}
    if limits is not None:
        config["memory_limit"] = f"{limits.memory_bytes >> 10}KiB"
    connection = duckdb.connect(":memory:", config=config)
    for name, (function, arguments) in FUNCTIONS.items():
        connection.create_function(
            name,
            function,
            ["BIGINT"] * arguments,
            "BIGINT",
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    # In a process without a main file DuckDB draws it on standard output, which is for answers.
    connection.execute("SET enable_progress_bar = false")
    if limits is not None:  # DuckDB 2.0 ignores it in its configuration
        connection.execute(f"SET max_temp_directory_size = '{limits.spill_bytes >> 10}KiB'")
    connection.execute("SET lock_configuration = true")
    return connection


_lock = threading.Lock()
_instance: duckdb.DuckDBPyConnection | None = None


def _shared() -> duckdb.DuckDBPyConnection:
    global _instance
    with _lock:
        if _instance is None:
            _instance = _opened(None)
        return _instance


def _forget(instance: duckdb.DuckDBPyConnection) -> None:
    """The next query opens another; this one closes when its last connection does."""
    global _instance
    with _lock:
        if _instance is instance:
            _instance = None


def _close() -> None:
    global _instance
    with _lock:
        if _instance is not None:
            _instance.close()
            _instance = None


def _leave_to_parent() -> None:
    """In a fork: the threads of the instance are the parent's, and to close it would wait for them without end."""
    global _instance, _lock
    _lock = threading.Lock()
    if _instance is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_instance))
        _instance = None


os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(_close)
