"""The queries of a process share DuckDB, and nothing else."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from rmq_store import Message, create_store
from rmq_store.lake.sql import duckdb_instance, sql
from rmq_store.lake.sql.duckdb_instance import Connected, connected
from rmq_store.lake.sql.query_limits import QueryLimits
from scripts.keeper import CHECKOUT

LIMITS = QueryLimits(timeout_ms=0, memory_bytes=256 << 20, spill_bytes=1 << 20)


def total(numbers: range, limits: QueryLimits | None = None) -> int:
    """With a relation and a view whose names all queries use."""
    with connected(limits) as kept:
        kept.register("numbers", pa.table({"n": list(numbers)}))
        kept.create_view("doubled", "SELECT 2 * n AS n FROM numbers")
        ((answer,),) = kept.connection.sql("SELECT sum(n)::BIGINT FROM doubled").fetchall()
        return int(answer)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Without the connections of other tests."""
    duckdb_instance._close()
    yield
    duckdb_instance._close()


@pytest.mark.parametrize("limits", [None, LIMITS], ids=["of this project", "of a user"])
def test_queries_at_once_see_their_own_relations_only(limits: QueryLimits | None) -> None:
    ranges = [range(n, n + 50) for n in range(64)]
    with ThreadPoolExecutor(8) as threads:
        totals = list(threads.map(total, ranges, [limits] * len(ranges)))
    assert totals == [2 * sum(numbers) for numbers in ranges]
    assert len(duckdb_instance._idle) <= duckdb_instance._MOST_IDLE
    with connected(limits) as kept:
        assert kept.connection.sql("SHOW TABLES").fetchall() == [("doubled",)], "its rows are gone"


@pytest.mark.parametrize("limits", [None, LIMITS], ids=["of this project", "of a user"])
def test_settings_are_locked_and_no_file_is_read(limits: QueryLimits | None) -> None:
    with pytest.raises(duckdb.Error, match="configuration has been locked"), connected(limits) as kept:
        kept.connection.execute("SET enable_external_access = true")
    with pytest.raises(duckdb.Error, match="disabled"), connected(limits) as kept:
        kept.connection.sql("SELECT * FROM read_text('/etc/hostname')").fetchall()
    with connected(limits) as kept:
        assert kept.connection.sql("SELECT range_hash(0, 0)").fetchall() == [(0,)]


def test_a_connection_is_kept_for_the_next_query_with_the_same_limits() -> None:
    with connected(LIMITS) as first:
        pass
    with connected(replace(LIMITS, timeout_ms=1)) as other, connected(None) as own:
        assert first not in (other, own)
    with connected(LIMITS) as second, connected(LIMITS) as at_once:
        assert second is first
        assert at_once is not first


def test_what_was_registered_is_let_go() -> None:
    rows = pa.table({"n": [1]})
    kept_alive = weakref.ref(rows)
    with connected(None) as kept:
        kept.register("numbers", rows)
        assert kept.connection.sql("SELECT n FROM numbers").fetchall() == [(1,)]
    del rows
    gc.collect()
    assert kept_alive() is None


def test_a_connection_with_an_answer_that_was_not_read_to_its_end_is_closed() -> None:
    with connected(LIMITS) as kept:
        kept.register("numbers", pa.table({"n": list(range(100_000))}))
        reader = kept.connection.sql("SELECT n FROM numbers").to_arrow_reader(1000)
        assert reader.read_next_batch().num_rows == 1000
    assert kept not in duckdb_instance._idle
    reader.close()


def test_an_instance_that_has_spilled_is_closed_with_its_folder() -> None:
    limits = QueryLimits(timeout_ms=0, memory_bytes=64 << 20, spill_bytes=1 << 30)
    with connected(limits) as kept:
        kept.connection.sql("SELECT count(*) FROM (SELECT range AS n FROM range(8000000) ORDER BY hash(n))").fetchall()
        assert kept.scratch is not None
        assert kept.scratch.exists(), "else this tests nothing"
    assert not kept.scratch.exists()
    assert kept not in duckdb_instance._idle


def test_after_an_error_the_next_query_has_a_new_instance() -> None:
    with connected(None), connected(None):
        before = duckdb_instance._instance
    with connected(None):
        assert duckdb_instance._instance is before, "it is shared"
    with pytest.raises(duckdb.Error), connected(None) as kept:
        kept.connection.sql("SELECT * FROM nowhere")
    assert duckdb_instance._idle == [], "nor has it a connection to the old one"
    assert total(range(3)) == 6
    assert duckdb_instance._instance is not before


def test_a_connection_in_whose_instance_another_query_failed_is_closed() -> None:
    with connected(None) as other:
        with pytest.raises(duckdb.Error), connected(None) as kept:
            kept.connection.sql("SELECT * FROM nowhere")
        assert other.instance is kept.instance
    assert duckdb_instance._idle == []


def test_a_fork_of_a_process_with_queries_has_an_instance_of_its_own_and_ends() -> None:
    code = """
import os, sys
from tests.contract.test_duckdb_instance import total
assert total(range(3)) == 6
child = os.fork()
assert total(range(4)) == 12
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_a_table_takes_the_place_of_a_view_until_the_end_of_the_body() -> None:
    assert total(range(5)) == 20
    with connected(None) as kept:
        kept.register("numbers", pa.table({"n": [1, 2]}))
        kept.create_table("doubled", "SELECT 2 * n AS n FROM numbers")
        kept.create_view("of_doubled", "SELECT sum(n)::BIGINT AS n FROM doubled")
        for _ in range(2):  # its rows were read once
            assert kept.connection.sql("SELECT n FROM of_doubled").fetchall() == [(6,)]
            kept.connection.unregister("numbers")
    assert kept in duckdb_instance._idle
    assert total(range(7)) == 42
    with connected(None) as again:
        assert again is kept
        again.register("numbers", pa.table({"n": [5]}))
        again.create_view("doubled", "SELECT 2 * n AS n FROM numbers")
        assert again.connection.sql("SELECT n FROM of_doubled").fetchall() == [(10,)]


@pytest.mark.parametrize(("most", "tables"), [(1 << 20, ["ctl_rows", "ctl"] * 2), (-1, [])], ids=["few", "many"])
def test_relations_that_are_reread_are_tables_where_they_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, tables: list[str]
) -> None:
    created: list[str] = []
    create = Connected.create_table

    def create_table(kept: Connected, name: str, text: str) -> None:
        created.append(name)
        create(kept, name, text)

    monkeypatch.setattr(Connected, "create_table", create_table)
    monkeypatch.setattr(sql, "_MOST_BYTES_REREAD", most)
    store = create_store(tmp_path / "store")
    text = "SELECT count(*) AS n FROM ctl WHERE action = 'send'"
    for sends in (1, 2):
        store.send([Message("Orders", b"x")], create_queues=1)
        with sql.snapshot_of(store.lake, [text], reread=("ctl_rows", "ctl")) as ask:
            assert ask([text])[0].to_pylist() == [{"n": sends}]
        assert sql.query(store.lake, text).to_pylist() == [{"n": sends}]
    assert created == tables
