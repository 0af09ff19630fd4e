"""One store, imported once; every test breaks a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.stores import Lake, copied, write_broker


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Never changed: copy it."""
    folder = tmp_path_factory.mktemp("faults")
    lake = Lake(folder / "imported")
    lake.load(write_broker(folder / "broker"))
    return lake


@pytest.fixture(scope="session")
def windowed(imported: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """After one undisturbed window, whose retries wait. Never changed: copy it."""
    lake = copied(imported, tmp_path_factory.mktemp("faults") / "windowed")
    lake.consume()
    return lake


@pytest.fixture
def new_lake(imported: Lake, tmp_path: Path) -> Callable[[str], Lake]:
    """``new_lake("name")``: a copy of the imported store."""
    return lambda name: copied(imported, tmp_path / name)


@pytest.fixture
def lake(new_lake: Callable[[str], Lake]) -> Lake:
    return new_lake("lake")
