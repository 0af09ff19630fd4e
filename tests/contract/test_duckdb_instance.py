"""The queries of a process share DuckDB, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pytest

from rmq_store.lake.sql import duckdb_instance
from rmq_store.lake.sql.duckdb_instance import connected
from rmq_store.lake.sql.query_limits import QueryLimits
from scripts.keeper import CHECKOUT

LIMITS = QueryLimits(timeout_ms=0, memory_bytes=256 << 20, spill_bytes=1 << 20)


def total(numbers: range) -> int:
    """With a relation and a view whose names all queries use."""
    with connected(None) as connection:
        connection.register("numbers", pa.table({"n": list(numbers)}))
        connection.execute("CREATE TEMP VIEW doubled AS SELECT 2 * n AS n FROM numbers")
        ((answer,),) = connection.sql("SELECT sum(n)::BIGINT FROM doubled").fetchall()
        return int(answer)


def test_queries_at_once_see_their_own_relations_only() -> None:
    ranges = [range(n, n + 50) for n in range(64)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(total, ranges)) == [2 * sum(numbers) for numbers in ranges]
    with connected(None) as connection:
        assert connection.sql("SHOW TABLES").fetchall() == []


@pytest.mark.parametrize("limits", [None, LIMITS], ids=["of this project", "of a user"])
def test_settings_are_locked_and_no_file_is_read(limits: QueryLimits | None) -> None:
    with connected(limits) as connection, pytest.raises(duckdb.Error, match="configuration has been locked"):
        connection.execute("SET enable_external_access = true")
    with connected(limits) as connection, pytest.raises(duckdb.Error, match="disabled"):
        connection.sql("SELECT * FROM read_text('/etc/hostname')").fetchall()
    with connected(limits) as connection:
        assert connection.sql("SELECT range_hash(0, 0)").fetchall() == [(0,)]


def test_after_an_error_the_next_query_has_a_new_instance() -> None:
    with connected(None):
        before = duckdb_instance._instance
    with connected(None):
        assert duckdb_instance._instance is before, "it is shared"
    with pytest.raises(duckdb.Error), connected(None) as connection:
        connection.sql("SELECT * FROM nowhere")
    assert total(range(3)) == 6
    assert duckdb_instance._instance is not before


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
