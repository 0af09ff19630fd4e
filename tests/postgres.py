"""A real PostgreSQL server for tests, on loopback, with its files in a folder of its own."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.postgres import NoPostgres, Postgres, programs


@pytest.fixture(scope="session")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty database: in a server started for the run, or an SQLite file where there is no PostgreSQL."""
    try:
        programs()
    except NoPostgres:
        warnings.warn("no PostgreSQL on this machine: an SQLite file is used instead", stacklevel=1)
        yield f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/airflow.db"
        return
    with tempfile.TemporaryDirectory(prefix="rmq-postgres-") as folder:
        os.chmod(folder, 0o711)  # PostgreSQL is another user's where this is root
        server = Postgres(Path(folder), "-F")
        try:
            server.start(print)
            yield server.address
        finally:
            server.stop()
