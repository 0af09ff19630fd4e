"""Stores to put questions to in SQL: one with everything in it, and one to be filled by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench, SmallStore, bench, message, small_store


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return small_store(tmp_path_factory.mktemp("small"))


@pytest.fixture
def hand(tmp_path: Path) -> Iterable[Bench]:
    """An empty shard with ten messages in its one queue."""
    with bench(tmp_path) as made:
        now_ms = made.host.now_ms()
        made.import_messages({QUEUE: [message(QUEUE, offset, now_ms - 100 + offset) for offset in range(10)]})
        yield made


def rows(store: LakeStore, text: str) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = query(store, text).to_pylist()
    return table


def of(hand: Bench) -> LakeStore:
    return LakeStore.open(hand.shard.root)


def kind(name: str) -> Any:
    """Of the files of a commit log: those with rows of this kind."""
    return pc.field("partition.kind") == name
