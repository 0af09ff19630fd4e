"""Which questions are answered, and with which words the others are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from rmq_store.commit.positions import offset_hash, tally
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import BadData, DerivedTableDamaged, StoreUnusable, WrongUse
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.sql.query_limits import QueryLimits
from rmq_store.lake.sql.relations import BASE_SQL, FILE_RELATIONS, SMALL_RELATIONS
from rmq_store.lake.sql.sql import _unreadable, interrupted_after, open_duckdb, query
from rmq_store.lake.sql.sql_functions import LONGEST_RANGE
from rmq_store.lake.sql.views import views
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.settings.environment import Environment
from rmq_store.utils.host import Host
from tests.contract.sql import of, rows
from tests.lake_fixtures import Bench, SmallStore


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM no_such_view", "no_such_view does not exist"),
        ("SELECT no_such_column FROM lag", "no_such_column"),
        ("SELECT CAST('x' AS BIGINT)", "Could not convert"),
        ("", "exactly one SELECT"),
        ("SELECT 1; SELECT 2", "exactly one SELECT"),
        ("CREATE TABLE x AS SELECT 1", "only reads"),
        ("SET threads = 1", "only reads"),
        ("SET enable_external_access = true", "only reads"),
        ("COPY lag TO '/tmp/never-written.csv'", "only reads"),
        ("ATTACH '/tmp/never-written.db'", "only reads"),
        ("INSTALL httpfs", "only reads"),
        ("EXPLAIN CREATE TABLE x AS SELECT 1", "only reads"),
        ("EXPLAIN ANALYZE CREATE OR REPLACE TEMP VIEW audit AS SELECT 1 AS n WHERE false", "only reads"),
        ("EXPLAIN (ANALYZE, FORMAT json) CREATE TEMP MACRO decode(x) AS ('x')", "only reads"),
        ("/* EXPLAIN SELECT 1 */ EXPLAIN /* ) SELECT 1 */ ANALYSE DROP VIEW topics", "only reads"),
        ("EXPLAIN ANALYZE (FORMAT json) SET VARIABLE x = (SELECT 1)", "only reads"),
        ("EXPLAIN ANALYZE BEGIN", "only reads"),
        ("SELECT * FROM destroy_External_Resource('query', 'SELECT 1')", "only reads"),
        ("SELECT * FROM system.main.\"register_external_resource\" /* */ ('a', 'n', MAP{'a': 'b'})", "only reads"),
        ("FROM query/**/('FROM register_external_' || 'resource(''a'', ''n'', MAP{''a'': ''b''})')", "only reads"),
        ("PIVOT (SELECT 1 AS a, 2 AS b) ON a USING sum(b)", "name the values of PIVOT"),
        ("UPDATE EXTENSIONS", "only reads"),
        ("SELECT * FROM '/etc/hostname'", "does not exist"),
        ("SELECT * FROM query_table('/etc/hostname')", "does not exist"),
        ("SELECT * FROM rang(3)", "the function rang is refused in FROM, did you mean 'range'?"),
        ("SELECT '\udc97'", "the query contains an unpaired surrogate"),
    ],
)
def test_a_query_that_is_wrong_or_reaches_out_is_refused_with_the_engines_words(
    small: SmallStore, text: str, said: str
) -> None:
    with pytest.raises(WrongUse) as refused:
        query(small.store, text, limits=OF_USER)
    assert said in str(refused.value)


OF_USER = QueryLimits(60_000, 256 << 20, 1 << 20)
TYPE = "register_external_resource_type(''left_behind'', kind := ''x'', create_function := ''windows'')"


RUN = "json_execute_serialized_sql(json_serialize_sql('SELECT * FROM {}'))"


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM {RUN.format(TYPE)}",
        "SELECT * FROM " + RUN.format("que' || 'ry(''SELECT 42'')").replace("json_execute", "JSON_execute"),
        "SELECT * FROM system.main.\"json_execute_serialized_sql\" /* */ ('{}')",
        f"WITH a AS (SELECT (SELECT count(*) FROM {RUN.format('lag')})) SELECT * FROM a",
        f"SELECT 1 UNION ALL SELECT 1 FROM lag, LATERAL (FROM {RUN.format('lag')})",
        f"DESCRIBE SELECT * FROM {RUN.format('lag')}",
        f"SUMMARIZE FROM {RUN.format('lag')}",
        f"EXPLAIN ANALYZE (FORMAT json) SELECT * FROM {RUN.format('lag')}",
        f"PIVOT (SELECT 1 AS a FROM {RUN.format('lag')}) ON a IN (1) USING sum(a)",
        "SELECT * FROM " + TYPE.replace("''", "'"),
        "FROM query('SELECT 42')",
        "FROM checkpoint()",
        "FROM enable_logging()",
        "FROM read_text('/etc/hostname')",
        "FROM glob('/etc/*')",
        "FROM read_parquet('s3://bucket/x.parquet')",
        "FROM arrow_scan(1, 2, 3)",
    ],
)
def test_a_function_of_from_that_does_more_than_read_the_relations_is_refused(small: SmallStore, text: str) -> None:
    with pytest.raises(WrongUse, match=r"is refused in FROM.*: only reads are allowed, and no files; functions: "):
        query(small.store, text, limits=OF_USER)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM range(3), generate_series(1, 2), repeat('x', 2), repeat_row(1, num_rows := 2)",
        "SELECT * FROM lag, unnest([1, 2]) AS u(x), LATERAL (SELECT unnest(range(x)))",
        "SELECT key FROM json_each('{\"a\": 1}') UNION ALL SELECT key FROM json_tree('[1]')",
        "SELECT string_split('a,b', ','), regexp_split_to_table('a,b', ','), repeat('x', 3), generate_subscripts([1], 1)",
        "FROM query_table('lag')",
        "SELECT * FROM histogram(lag, lag)",
        "WITH query(a) AS (SELECT 1 AS read_text) SELECT * FROM query WHERE 'a' GLOB ('*')",
        "SELECT 'SELECT * FROM query(1)' -- FROM query('SELECT 1')",
        "SELECT * FROM duckdb_functions() WHERE function_name = 'range_hash'",
        "SELECT * FROM information_schema.columns",
        "EXPLAIN (FORMAT json) SELECT * FROM range(3)",
        "DESCRIBE lag",
        "SHOW TABLES",
        "SUMMARIZE lag",
        "VALUES (1)",
        "PIVOT (SELECT 1 AS a) ON a IN (1) USING sum(a)",
    ],
)
def test_what_makes_rows_or_shows_relations_is_answered(small: SmallStore, text: str) -> None:
    query(small.store, text, limits=OF_USER)


@pytest.mark.parametrize("call", ["read_text('/etc/hostname')", "glob('/etc/*')", "enable_logging()"])
def test_the_locked_connection_itself_opens_no_file(small: SmallStore, call: str) -> None:
    with open_duckdb(small.store, {"lag"}) as connection, pytest.raises(duckdb.Error, match=r"disabled|locked"):
        connection.execute(f"SELECT * FROM {call}")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("SELECT * FROM lagg", ", did you mean 'lag'?"),
        ("SELECT * FROM main.Window w", ", did you mean 'windows'?"),
        ("DESCRIBE consumed_range", ", did you mean 'consumed_ranges'?"),
        ("SELECT * FROM lag JOIN quite_another USING (topic)", ";"),
    ],
)
def test_an_unknown_relation_is_answered_with_those_that_are_there(small: SmallStore, text: str, near: str) -> None:
    with pytest.raises(WrongUse) as refused:
        query(small.store, text)
    said = str(refused.value)
    assert f" does not exist{near}" in said
    assert f"views: {', '.join(sorted(views()))} (" in said


def test_an_advice_to_change_a_setting_is_left_out_since_none_can_be_changed(small: SmallStore) -> None:
    with pytest.raises(WrongUse) as refused:
        query(small.store, f"SELECT 1{'+1' * 3000}")
    assert str(refused.value) == "SQL: Parser Error: Max expression depth limit of 1000 exceeded."


@pytest.mark.parametrize("limits", [None, QueryLimits(10_000, 256 << 20, 1 << 20)])
def test_a_value_of_a_parameter_is_no_sql(small: SmallStore, limits: QueryLimits | None) -> None:
    text = "SELECT group_name FROM groups WHERE group_name = $group LIMIT $most"
    for group, count in (("shop", 1), ("shop' OR '1'='1", 0)):
        values = {"group": group, "most": 1, "of_another_query": 1}
        assert query(small.store, text, values=values, limits=limits).num_rows == count
    with pytest.raises(WrongUse, match="most"):
        query(small.store, text, values={"group": "shop"}, limits=limits)


def test_an_unknown_column_is_answered_with_the_columns_that_are_near(small: SmallStore) -> None:
    with pytest.raises(WrongUse, match=r'"next_ofset" not found.*\n.*next_offset'):
        query(small.store, "SELECT next_ofset FROM lag")


@pytest.mark.parametrize(
    ("text", "limits", "says"),
    [
        (
            "SELECT sum(hash(range)) FROM range(1000000000000)",
            {"timeout_ms": 1},
            "more than 0.001 s.*--timeout",
        ),
        (
            "SELECT a.range FROM range(10000000000) a",
            {"timeout_ms": 50, "memory_bytes": 1 << 40},
            "--timeout, RMQ_SQL_TIMEOUT",
        ),
        ("SELECT a.range FROM range(10000000000) a", {}, "the answer has more than 64 MiB.*--memory, RMQ_SQL_MEMORY"),
        ("SELECT len(list(range::VARCHAR)) FROM range(10000000)", {}, "needs more than 64 MiB of memory.*--memory"),
        (
            "SELECT hash(range)::VARCHAR || range AS x FROM range(3000000) GROUP BY x HAVING count(*) > 1",
            {"spill_bytes": 1 << 20},
            "needs more than 1 MiB in the folder for temporary files.*--spill, RMQ_SQL_SPILL",
        ),
        ("SELECT CAST('x' || range AS BIGINT) FROM range(10000000) WHERE range > 9000000", {}, "Could not convert"),
    ],
)
def test_a_query_over_a_limit_ends_and_names_the_option(
    small: SmallStore, text: str, limits: dict[str, int], says: str
) -> None:
    small_limits = QueryLimits(**({"timeout_ms": 0, "memory_bytes": 64 << 20, "spill_bytes": 1 << 30} | limits))
    with pytest.raises(WrongUse, match=says):
        query(small.store, text, limits=small_limits)


def test_an_interrupt_that_came_too_early_is_sent_again() -> None:
    interrupts: list[None] = []
    is_third = threading.Event()

    def interrupt() -> None:
        interrupts.append(None)
        if len(interrupts) == 3:
            is_third.set()

    with interrupted_after(1, interrupt):
        assert is_third.wait(60)


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN SELECT 'é' AS \"(\"",
        "/* é ( */ EXPLAIN (SELECT 1) UNION SELECT 2 -- )",
        "EXPLAIN ANALYZE WITH a AS (SELECT 1) FROM a;",
        "explain(analyze)(VALUES (1), (2))",
        "EXPLAIN ANALYZE (FORMAT json) SELECT count(*) FROM messages",
    ],
)
def test_each_select_can_be_explained(small: SmallStore, text: str) -> None:
    assert query(small.store, text).column_names == ["explain_key", "explain_value"]


def test_a_query_within_its_limits_has_the_answer_of_one_without(small: SmallStore) -> None:
    for text in ("SELECT * FROM messages ORDER BY ALL", "SELECT 1 AS n WHERE false", "SHOW TABLES", "EXPLAIN SELECT 1"):
        assert query(small.store, text, limits=QueryLimits.of_environment()) == query(small.store, text)


def test_the_limits_are_those_of_the_options_else_of_the_environment() -> None:
    variables = {"RMQ_SQL_TIMEOUT": "90s", "RMQ_SQL_MEMORY": "512MiB", "RMQ_SQL_SPILL": "1GiB"}
    environment = Environment.read(variables)
    assert QueryLimits.of_environment(environment) == QueryLimits(90_000, 512 << 20, 1 << 30)
    assert QueryLimits.of_environment(environment, timeout_ms=0, spill_bytes=5) == QueryLimits(0, 512 << 20, 5)
    default = QueryLimits.of_environment(Environment.read({}))
    assert (default.timeout_ms, default.spill_bytes) == (600_000, 16 << 30)
    assert 64 << 20 <= default.memory_bytes <= 4 << 30
    with pytest.raises(WrongUse, match="invalid size '4 GB'"):
        QueryLimits.of_environment(Environment.read({"RMQ_SQL_MEMORY": "4 GB"}))


def test_settings_name_no_home_folder_and_extensions_of_others_are_off(small: SmallStore) -> None:
    rows = query(small.store, "SELECT name, value FROM duckdb_settings()").to_pylist()
    values = {row["name"]: row["value"] for row in rows}
    assert values["allow_community_extensions"] == "false"
    assert [name for name, value in values.items() if value and f"{Path.home()}/.duckdb" in value] == []


def test_an_open_connection_is_locked(small: SmallStore) -> None:
    with open_duckdb(small.store) as connection:
        with pytest.raises(duckdb.Error, match="locked"):
            connection.execute("SET enable_external_access = true")
        shop = connection.execute("SELECT sum(lag) FROM lag WHERE group_name = 'shop'").fetchone()
    assert shop == (0,)


def test_variables_of_python_are_not_tables(small: SmallStore) -> None:
    secret = query(small.store, "SELECT 1 AS n")
    assert secret.num_rows == 1
    with pytest.raises(WrongUse, match="secret does not exist"):
        query(small.store, "SELECT * FROM secret")


def test_the_views_can_be_listed(small: SmallStore) -> None:
    assert {row["name"] for row in rows(small.store, "SHOW TABLES")} >= set(views())


def test_all_relations_are_there_when_nothing_is_mentioned(small: SmallStore) -> None:
    with open_duckdb(small.store) as connection:
        for name in (*views(), *BASE_SQL, *FILE_RELATIONS, *SMALL_RELATIONS):
            assert connection.execute(f"SELECT count(*) FROM {name}").fetchone() is not None


def test_the_time_of_the_views_is_the_hosts(small: SmallStore) -> None:
    answer = query(small.store, "SELECT now_ms FROM clock", host=Host(now_ms=lambda: 7))
    assert answer.to_pylist() == [{"now_ms": 7}]


def test_the_hash_functions_are_those_of_the_evidence(small: SmallStore) -> None:
    offsets = [0, 7, 20_000, (1 << 62) + 3]
    ranges = [(0, 0), (0, 10), (3, 4), (16_000, 33_000)]
    with open_duckdb(small.store, {"positions"}) as connection:

        def answer(text: str) -> int | None:
            row = connection.execute(f"SELECT {text}").fetchone()
            assert row is not None
            return None if row[0] is None else row[0] % (1 << 64)

        assert [answer(f"offset_hash({offset})") for offset in offsets] == [offset_hash(offset) for offset in offsets]
        sums = [tally(range(begin, end)).hash_sum for begin, end in ranges]
        assert [answer(f"range_hash({begin}, {end})") for begin, end in ranges] == sums
        together = " UNION ALL ".join(f"SELECT {begin} AS b, {end} AS e" for begin, end in [*ranges, (4, 3), (9, 30)])
        hashes = connection.execute(f"SELECT range_hash(b, e) FROM ({together})").fetchall()
        assert [None if h is None else h % (1 << 64) for (h,) in hashes] == [*sums, None, tally(range(9, 30)).hash_sum]
        for text in ("range_hash(4, 3)", "range_hash(-1, 3)", "range_hash(NULL, 3)", "offset_hash(NULL)"):
            assert answer(text) is None
        for longest in (1 << 63) - 1, LONGEST_RANGE + 1:
            assert answer(f"range_hash(0, {longest})") is None


@pytest.mark.parametrize("begin", ["0", "range"], ids=["folded", "of rows"])
def test_the_hash_of_long_ranges_ends_with_the_time_limit(small: SmallStore, begin: str) -> None:
    limits = QueryLimits(50, 256 << 20, 1 << 20)
    with pytest.raises(WrongUse, match=r"more than 0.05 s.*--timeout"):
        query(small.store, f"SELECT range_hash({begin}, {LONGEST_RANGE}) FROM range(2000)", limits=limits)
    assert query(small.store, "SELECT range_hash(0, 100000)", limits=limits).num_rows == 1


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "is missing, and its table names it"),
        (_fifo, "it is a FIFO, not a file"),
        (lambda file: file.write_bytes(b""), "is damaged"),
    ],
    ids=["gone", "fifo", "empty"],
)
@pytest.mark.parametrize("limits", [None, QueryLimits.of_environment()])
def test_who_asks_for_a_file_that_is_no_more_is_told_which_and_what_to_do(
    hand: Bench, damage: Callable[[Path], object], words: str, limits: QueryLimits | None
) -> None:
    """A FIFO is not opened: that would wait for its writer for ever."""
    root, store = Path(hand.shard.root.location), of(hand)
    dispatch(hand.shard, hand.host)
    (queues,) = (root / "broker-a" / "consumequeue").glob("*.parquet")
    damage(queues)
    with pytest.raises(
        DerivedTableDamaged, match=rf"{queues.name} of the table .*/consumequeue.*rmq dispatch --rebuild"
    ):
        query(store, "SELECT * FROM consumequeue_dispatched", limits=limits)
    (messages,) = (root / "broker-a" / "commitlog").glob("kind=msg/*.parquet")
    damage(messages)
    with pytest.raises(BadData, match=f"{messages.name}.*{words}.* backup"):
        query(store, "SELECT sum(store_size) FROM messages", limits=limits)


def test_a_file_that_may_not_be_read_is_not_called_damaged(hand: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: LakeTable, *_: object, **__: object) -> None:
        raise StoreUnusable(f"cannot read {table.path}: Permission denied")

    (path,) = Path(hand.shard.root.location).glob("broker-a/commitlog/kind=msg/*.parquet")
    path.unlink()
    monkeypatch.setattr(LakeTable, "read", refuse)
    with pytest.raises(StoreUnusable, match="Permission denied"):
        query(of(hand), "SELECT sum(store_size) FROM messages")


def test_no_progress_bar_is_drawn_where_the_answer_goes(small: SmallStore) -> None:
    """In a process without a main file, as some schedulers start it, DuckDB takes standard output for a terminal."""
    question = "SELECT current_setting('enable_progress_bar') AS bar"
    arguments = ["sql", question, "--json", "--root", small.store.root.location]
    code = f"from rmq_store.cli import main; raise SystemExit(main({arguments!r}))"
    answered = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(answered.stdout) == [{"bar": False}]


@pytest.mark.parametrize(
    ("text", "is_of_bytes"),
    [
        ("Couldn't deserialize thrift: TProtocolException: Invalid data", True),
        ("Parquet magic bytes not found in footer", True),
        ("Parquet file size is 0 bytes", True),
        ("Invalid column metadata (corrupt file?)", True),
        ("Corrupt snappy compressed data.", True),
        ("Unexpected end of stream", True),
        ("ZSTD decompression failed: Unknown frame descriptor", True),
        ("AWS Error ACCESS_DENIED during GetObject operation: no", False),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7", False),
    ],
)
def test_bytes_that_cannot_be_decoded_are_no_refusal(text: str, is_of_bytes: bool) -> None:
    store = LakeStore(Root("s3://bucket/store"), "", DelayLevels())
    error = OSError(f"reading the stream registered as 'msg' failed: IOError: {text}")
    assert ("run the query again" in str(_unreadable(error, store))) == is_of_bytes
