"""What the tests ask for: a ``world``, which is both engines one after the other; the command line; stores to query."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.contract.engines", "tests.contract.rmq")

from tests.contract.engines import LakeWorld, MemoryWorld  # noqa: E402
from tests.contract.rmq import imported, imported_once, made_stores, rmq  # noqa: E402
from tests.contract.sql import hand, small  # noqa: E402
from tests.contract.world import World  # noqa: E402

__all__ = ["hand", "imported", "imported_once", "made_stores", "rmq", "small", "world"]


@pytest.fixture(params=["memory", "lake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return MemoryWorld() if request.param == "memory" else LakeWorld(tmp_path)
