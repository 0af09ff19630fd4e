"""A real PostgreSQL server for tests, on loopback, with its files in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.airflow_home import free_port
from spark_jobs.progress import signs_of, wait_for_progress

_NOBODY = 65534
_USER: Mapping[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
"""PostgreSQL refuses to be root's."""


@pytest.fixture(scope="session")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty database: in a server started for the run, or an SQLite file where there is no PostgreSQL."""
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
    if programs is None:
        warnings.warn("no PostgreSQL on this machine: an SQLite file is used instead", stacklevel=1)
        yield f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/airflow.db"
        return
    with tempfile.TemporaryDirectory(prefix="rmq-postgres-") as folder:
        if _USER:
            os.chown(folder, _NOBODY, _NOBODY)
        port = free_port()
        _run(programs / "initdb", "-D", f"{folder}/data", "-U", "airflow", "--auth=trust", "--no-sync")
        serve: list[str | Path] = [
            programs / "postgres",
            "-D",
            f"{folder}/data",
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-k",
            folder,
        ]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen([*serve, "-F"], **_USER, cwd="/", stdout=log, stderr=log)
        try:

            def made() -> bool:
                assert server.poll() is None, Path(folder, "log").read_text()
                where = ("-h", "127.0.0.1", "-p", str(port), "-U", "airflow")
                return _run(programs / "createdb", *where, "airflow", check=False) == 0

            wait_for_progress(made, lambda: signs_of([server.pid]), "PostgreSQL is still starting", print)
            yield f"postgresql+psycopg2://airflow:any@127.0.0.1:{port}/airflow"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown
            server.wait()


def _run(*command: str | Path, check: bool = True) -> int:
    return subprocess.run(command, **_USER, cwd="/", check=check, capture_output=True).returncode
