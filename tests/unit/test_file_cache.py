"""The cache of small files: what was used last is kept, and never more than the given number of bytes."""

from __future__ import annotations

import pyarrow as pa

from rmq_store.lake.table.file_cache import FileCache

TABLE = pa.table({"n": list(range(100))})
SIZE = TABLE.nbytes


def test_what_was_put_is_there() -> None:
    cache = FileCache(10 * SIZE, SIZE)
    cache.put("a", TABLE)
    assert cache.get("a") is TABLE
    assert cache.get("b") is None


def test_what_was_used_longest_ago_is_dropped_first() -> None:
    cache = FileCache(2 * SIZE, SIZE)
    for key in ("a", "b"):
        cache.put(key, TABLE)
    cache.get("a")
    cache.put("c", TABLE)
    assert [key for key in ("a", "b", "c") if cache.get(key) is not None] == ["a", "c"]


def test_a_large_table_is_not_kept() -> None:
    cache = FileCache(10 * SIZE, SIZE - 1)
    cache.put("a", TABLE)
    assert cache.get("a") is None


def test_a_table_that_is_put_twice_counts_once() -> None:
    cache = FileCache(2 * SIZE, SIZE)
    for _ in range(5):
        cache.put("a", TABLE)
    cache.put("b", TABLE)
    assert [cache.get("a"), cache.get("b")] == [TABLE, TABLE]
