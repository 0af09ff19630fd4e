"""``docs/sql.md`` says what the views are: the same names, columns and types, and every example of it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from rmq_store.lake.sql.relations import BASE_SQL, SMALL_RELATIONS, sql_type
from rmq_store.lake.sql.sql import open_duckdb
from rmq_store.lake.sql.sql_functions import FUNCTIONS
from rmq_store.lake.sql.views import views
from tests.lake_fixtures import SmallStore, small_store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
_SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^\| `(\w+)` \| ([\w<>,]+) \| .+ \|$", re.MULTILINE)
_EXAMPLE = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)

# What people build on, word for word.
FIXED = {
    "messages": "shard topic broker_name queue_id queue_offset commit_log_offset offset_msg_id unique_key keys tags tags_code "
    "properties body body_crc flag sys_flag born_timestamp store_timestamp born_host store_host reconsume_times "
    "prepared_transaction_offset magic store_size stored_body_size",
    "consumer_offsets": "shard group_name topic broker_name queue_id next_offset updated_at window_id",
    "lag": "shard group_name topic broker_name queue_id min_offset max_offset next_offset has_offset lag readable_lag",
    "audit": "shard group_name pass topic broker_name queue_id problem begin_offset end_offset",
}


def sections() -> dict[str, str]:
    found = _SECTION.findall(DOCUMENT.read_text())
    assert len(found) == len(dict(found)), "a view is documented twice"
    return dict(found)


def documented_columns(name: str) -> list[tuple[str, str]]:
    return _COLUMN.findall(sections()[name])


def examples() -> list[tuple[str, str]]:
    return [(name, text) for name, section in sections().items() for text in _EXAMPLE.findall(section)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return small_store(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def connection(small: SmallStore) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_duckdb(small.store) as opened:
        yield opened


def test_no_view_has_a_backslash() -> None:
    """Spark takes it out of a literal, and DuckDB does not."""
    texts = {name: view.sql for name, view in views().items()}
    texts |= {name: relation.sql for name, relation in BASE_SQL.items()}
    assert [name for name, text in texts.items() if "\\" in text] == []


def test_every_view_is_documented_and_nothing_else() -> None:
    assert set(sections()) == set(views())


@pytest.mark.parametrize("name", sorted(views()))
def test_the_documented_columns_and_types_are_those_of_the_view(
    connection: duckdb.DuckDBPyConnection, name: str
) -> None:
    schema = connection.sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
    assert documented_columns(name) == [(field.name, sql_type(field.type)) for field in schema]


@pytest.mark.parametrize("name", sorted(FIXED))
def test_the_columns_that_people_build_on_are_as_promised(name: str) -> None:
    assert [column for column, _ in documented_columns(name)] == FIXED[name].split()


def test_every_view_has_an_example_that_reads_it() -> None:
    assert [(name, name in text) for name, text in examples()] == [(name, True) for name in sections()]


@pytest.mark.parametrize(("name", "text"), examples(), ids=[name for name, _ in examples()])
def test_an_example_runs_and_finds_something_unless_all_is_well(
    connection: duckdb.DuckDBPyConnection, name: str, text: str
) -> None:
    found = connection.sql(text).to_arrow_table()
    empty = ("acked_keys", "audit", "blocked", "outcomes", "attempt_outcomes", "removed_ranges", "archived_rows")
    assert (found.num_rows == 0) == (name in empty)


def test_the_base_relations_and_functions_are_named() -> None:
    text = DOCUMENT.read_text().partition("## Below the views")[2]
    hidden = {name for name in SMALL_RELATIONS if name.endswith("_tail")}
    wanted = {*BASE_SQL, *SMALL_RELATIONS, "msg", "outcome_ranges", *FUNCTIONS} - hidden
    assert {name for name in wanted if not re.search(rf"`{name}\b", text)} == set()
