"""One classic session and one Connect server for all tests that need no other; ``tests/conftest.py`` keeps them together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jobs.session import ConnectServer
from tests.spark.processes import ClassicDriver, running_driver


@pytest.fixture(scope="session")
def classic_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassicDriver]:
    with running_driver(tmp_path_factory.mktemp("driver") / "log") as driver:
        yield driver


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(master="local[2,2]", log_file=tmp_path_factory.mktemp("server") / "log") as server:
        yield server
