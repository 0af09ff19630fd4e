"""A query over many files opens a part of them at once, and answers as one that opens all."""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as ds
import pytest

from rmq_store.lake.sql import sql
from rmq_store.lake.table.store import LakeStore
from tests.lake_fixtures import small_store

QUERIES = (
    "SELECT * FROM message_rows ORDER BY ALL",
    "SELECT count(*) FROM messages",
    "SELECT topic, queue_offset FROM messages WHERE queue_id = 0 ORDER BY ALL",
    "SELECT * FROM outcomes ORDER BY ALL",
    "SELECT * FROM windows ORDER BY ALL",
    "SELECT * FROM audit ORDER BY ALL",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LakeStore:
    return small_store(tmp_path_factory.mktemp("store")).store


@pytest.mark.parametrize("text", QUERIES)
def test_a_part_at_once_answers_as_all_at_once(store: LakeStore, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sql.query(store, text)
    monkeypatch.setattr(sql, "FILES_AT_ONCE", 2)
    assert sql.query(store, text).equals(expected)


def test_no_more_files_are_open_and_only_those_that_may_match(
    store: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sql.query(store, "SELECT commit_id FROM msg ORDER BY ALL").column(0).to_pylist()
    parts: list[int] = []

    class Counted(ds.FileSystemDataset):  # type: ignore[misc]
        def __init__(self, fragments: list[Any], *arguments: Any) -> None:
            parts.append(len(fragments))
            super().__init__(fragments, *arguments)

    monkeypatch.setattr(sql, "FILES_AT_ONCE", 2)
    monkeypatch.setattr(ds, "FileSystemDataset", Counted)
    rows = sql.query(store, "SELECT commit_id FROM msg ORDER BY ALL").column(0).to_pylist()
    assert rows == expected
    assert len(parts) > 1
    assert max(parts) == 2
    parts.clear()
    assert sql.query(store, f"SELECT commit_id FROM msg WHERE commit_id = '{expected[0]}'").num_rows
    assert parts == [1]
