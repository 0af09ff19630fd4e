"""One classic session and one Connect server for all tests that need no other; ``tests/conftest.py`` keeps them together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.session import ConnectServer
from tests.spark.processes import ClassicDriver, family, is_gone, running_driver

LISTENER = """
import pyarrow as pa
import pyarrow.compute

def doubled(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.compute.multiply(batch.column(0), 2)], ["id"])
"""


@pytest.fixture(scope="session")
def listener_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module ``my_listener``, from which both Sparks can import."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "my_listener.py").write_text(LISTENER)
    return folder


@pytest.fixture(scope="session")
def classic_driver(listener_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassicDriver]:
    with running_driver(tmp_path_factory.mktemp("driver") / "log", listener_folder) as driver:
        yield driver


@pytest.fixture(scope="session")
def connect_server(listener_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """At the end of all tests it must leave no process. Its environment names another server: that is for clients."""
    log_file = tmp_path_factory.mktemp("server") / "log"
    server = ConnectServer(master="local[2,2]", python_path=[listener_folder], log_file=log_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_REMOTE", "sc://localhost:1")
        server.start()
    yield server
    members = family(server.process_id)
    server.stop()
    assert [member for member in members if not is_gone(member)] == []
    server.stop()
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.remote
