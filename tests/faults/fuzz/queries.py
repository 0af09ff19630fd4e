"""SQL texts: queries of the views, the same with changes, and what DuckDB can do that a query must not."""

from __future__ import annotations

import random
from pathlib import Path

import rmq_store.lake.sql.views
from tests.faults.fuzz.changes import as_bytes, changed, changed_values, nasty_int, nasty_text

VIEWS = tuple(sorted(path.stem for path in Path(rmq_store.lake.sql.views.__file__).parent.glob("*.sql")))
_QUERIES = (
    *(
        "SELECT 1",
        "SHOW TABLES",
        "DESCRIBE lag",
        "SELECT count(*) FROM messages",
        "SELECT * FROM audit",
        "FROM messages",
    ),
    "SELECT topic, count(*) n FROM messages GROUP BY ALL ORDER BY n DESC LIMIT 3",
    "SELECT m.topic, o.outcome FROM messages m LEFT JOIN outcomes o USING (topic, broker_name, queue_id, queue_offset)",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 1000) SELECT max(n) FROM r",
    "SELECT properties, body, properties['KEYS'] FROM messages WHERE topic = 'T' AND queue_offset < 3",
    "SELECT * FROM offset_history WHERE group_name = 'g' ORDER BY committed_at DESC",
    "PIVOT messages ON topic USING count(*)",
    "SUMMARIZE messages",
    "EXPLAIN ANALYZE SELECT * FROM messages",
)
# Not repeat('x', 4000000000): DuckDB does not count the texts of one call (docs/limits.md).
_HEAVY = (
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
    "SELECT count(*) FROM range(100000000) a, range(100000000) b",
    "SELECT list(n) FROM range(1000000000) t(n)",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(1000000)",
    "SELECT * FROM range(1000000000) ORDER BY hash(range)",
    "SELECT range(1000000000)",
    "SELECT " + "(" * 2000 + "1" + ")" * 2000,
    "SELECT " + "1+" * 20_000 + "1",
    "SELECT " + ",".join(["1"] * 20_000),
    "SELECT '" + "x" * 500_000 + "'",
)
_FORBIDDEN = (
    *(
        "COPY (SELECT 1) TO 'out.csv'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "PRAGMA version",
    ),
    *(
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW messages",
        "DELETE FROM messages",
        "CALL pragma_version()",
        "CHECKPOINT",
    ),
    *(
        "SELECT * FROM 'consumers.toml'",
        "SELECT * FROM read_text('consumers.toml')",
        "FROM glob('*')",
        "SELECT getenv('HOME')",
    ),
    *(
        "SELECT 1; SELECT 2",
        "SELECT 1;",
        ";",
        "",
        "-- nothing",
        "/* open",
        "SELECT $1",
        "SELECT ?",
        "PREPARE p AS SELECT 1",
    ),
    *(
        "EXPORT DATABASE 'x'",
        "RESET ALL",
        "USE memory",
        "BEGIN",
        "VACUUM",
        "SELECT * FROM duckdb_settings()",
        "FORCE CHECKPOINT",
    ),
    *("SELECT * FROM read_blob('/dev/zero')", "SELECT * FROM read_csv('/proc/self/environ')", "SELECT sniff_csv('x')"),
)
_VALUES = (
    *(
        "DATE '0001-01-01'",
        "DATE 'infinity'",
        "TIMESTAMP '294247-01-10 04:00:54.775806'",
        "TIMESTAMPTZ '-infinity'",
        "TIME '24:00:00'",
    ),
    *(
        "INTERVAL 178956970 YEARS",
        "INTERVAL '1' MONTH",
        "'NaN'::DOUBLE",
        "1e308 * 10",
        "170141183460469231731687303715884105727",
    ),
    *(
        "340282366920938463463374607431768211455::UHUGEINT",
        "1.5::DECIMAL(38,37)",
        "'\\x00\\xff'::BLOB",
        "'1010'::BIT",
        "uuid()",
    ),
    *(
        "[1, NULL]",
        "{'a': 1, '': {'b': [1]}}",
        "MAP {'a': 1}",
        "MAP {NULL: 1}",
        "chr(0)",
        "chr(27) || ']0;x'",
        "'\U0001f407\u202e'",
    ),
    *(
        "array_value(1, 2)",
        "union_value(a := 1)",
        "'a'::ENUM('a', 'b')",
        "NULL",
        "()",
        "row(1, 'a')",
        "TIMETZ '12:00:00+15:59:59'",
    ),
    *(
        "TIMESTAMP_NS '2262-04-11 23:47:16.854775807'",
        "'{\"a\": 1}'::JSON",
        "x'00'",
        "lambda x: x",
        "list_transform([1], x -> x)",
    ),
    *("CAST('x' AS VARIANT)", "'9'::BIGNUM", "TIMESTAMP_S '9999-12-31'", "TIME_NS '1:0:0'", "[[1],[2]]::INT[1][2]"),
)


def query(chance: random.Random) -> str:
    """A query that is quick, whatever its limits are."""
    match chance.randrange(6):
        case 0:
            return f"SELECT * FROM {chance.choice(VIEWS)} LIMIT {chance.choice((0, 1, 5, nasty_int(chance)))}"
        case 1:
            return f"SELECT {', '.join(chance.choices(_VALUES, k=chance.randint(1, 4)))}"
        case 2:
            text = as_bytes(chance.choice((*_QUERIES, *_FORBIDDEN)))
            return chance.choice((changed, changed_values))(chance, text).decode("utf-8", "surrogateescape")
        case 3:
            return chance.choice(_FORBIDDEN)
        case 4:
            condition = nasty_text(chance).replace("'", "''")
            return f"SELECT topic, '{condition}' AS \"{nasty_text(chance)}\" FROM messages WHERE tags <> '{condition}'"
        case _:
            return chance.choice(_QUERIES)


def any_query(chance: random.Random) -> str:
    """``query``, or one that only a limit ends."""
    return chance.choice(_HEAVY) if chance.random() < 0.1 else query(chance)
