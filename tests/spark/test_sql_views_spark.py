"""The same views in Spark SQL, classic and Connect: unchanged files, the same answers as DuckDB."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.lake.maintain.compact import SETTLED_MS, CompactRequest, compact
from rmq_store.lake.sql.sql import open_duckdb
from rmq_store.lake.sql.views import views
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.files_to_join import Limits
from rmq_store.utils.host import Host, day_of
from spark_jobs.session import ConnectServer
from tests.faults.stores import TESTS
from tests.lake_damages import damaged_store
from tests.lake_fixtures import SmallStore, small_store
from tests.spark.processes import ClassicDriver, in_a_client

EXAMPLE = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sql.md"

# What is executed here; the others are made of these by choosing rows and columns.
ASKED = (
    "message_rows", "scheduled", "outcomes", "windows", "consumer_offsets", "lag", "groups", "topics", "offset_history",
    "queue_owners", "operator_actions", "ctl_replaced",
)  # fmt: skip

# And of a store with damages, in which redrives have sent dead letters.
ASKED_OF_DAMAGED = ("audit", "dead_letters", "redrives")

# Many small queries, each run once: nothing is worth generating code for.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

QUERIES = {
    "WITH a AS (SELECT 1 AS n), b AS (SELECT n FROM a) SELECT * FROM b WHERE n IN (SELECT n FROM A) ORDER BY n LIMIT 5": 1,
    "SELECT x, count(*) FROM VALUES (1), (2), (2) AS t(x) GROUP BY x HAVING count(*) > 1": 1,
    "SELECT * FROM range(3) JOIN (SELECT explode(array(1, 2)) AS e) JOIN LATERAL (SELECT 1) UNION ALL SELECT 1, 2, 3": 7,
    "SELECT sum(id) OVER (PARTITION BY id % 2) FROM range(3) LATERAL VIEW explode(array(1)) v AS w": 3,
    "SELECT (SELECT count(*) FROM lag) > 0 AND EXISTS (SELECT * FROM Messages), system.builtin.upper('a')": 1,
}
NO_QUERIES = {
    "SELECT reflect('java.lang.System', 'getProperty', 'user.home')": "the function reflect is not allowed",
    "SELECT 1 WHERE 'a' = system.builtin.JAVA_METHOD('java.lang.System', 'getenv', 'HOME')": "function java_method",
    "SELECT * FROM lag WHERE 1 IN (SELECT try_reflect('java.lang.System', 'exit', 0))": "function try_reflect",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'getProperty', 'user.home')": "IDENTIFIER(...) is not allowed",
    "SELECT * FROM IDENTIFIER('text.`/etc/hostname`')": "text./etc/hostname is not one of the views",
    "SELECT from_protobuf(x'00', 'M', '/etc/hostname')": "function from_protobuf",
    "SELECT * FROM parquet.`/x`": "parquet./x is not one of the views",
    "SELECT * FROM (SELECT 1 WHERE EXISTS (SELECT * FROM text.`/etc/hostname`))": "text./etc/hostname is not one of the views",
    "WITH a AS (SELECT * FROM csv.`/x`) SELECT * FROM a": "csv./x is not one of the views",
    "SELECT * FROM lag, LATERAL (SELECT * FROM json.`/x`)": "json./x is not one of the views",
    "SELECT * FROM VALUES (reflect('java.lang.System', 'exit', 0)) AS t(x)": "function reflect",
    "SELECT * FROM unknown_relation": "unknown_relation is not one of the views",
    "SELECT * FROM read_files('/x')": "the function read_files is not allowed",
    "SELECT TRANSFORM(group_name) USING 'cat' FROM lag": "not ScriptTransformation",
    "SELECT max(group_name) OVER w FROM lag WINDOW w AS (PARTITION BY reflect('a', 'b'))": "not WithWindowDefinition",
    "FROM lag INSERT OVERWRITE DIRECTORY '{folder}/written' USING csv SELECT *": "not ",
    "WITH a AS (SELECT 1) INSERT INTO lag SELECT * FROM a": "not InsertIntoStatement",
    "CREATE TABLE written USING csv LOCATION '{folder}/written' AS SELECT 1": "not CreateTableAsSelect",
    "SET spark.sql.shuffle.partitions = 1": "not SetCommand",
    "ADD JAR '/x.jar'": "not AddJarsCommand",
    "SHOW TABLES": "not ShowTables",
    "EXPLAIN SELECT 1": "not ExplainCommand",
    "EXECUTE IMMEDIATE 'SELECT 1'": "not ",
    "CACHE TABLE lag": "not CacheTable",
    "SELECT 1; SELECT 2": "SQL: ",
    "SELEC 1": "SQL: ",
}

CLASSIC = """
import json
import pyarrow as pa
from rmq_store.errors import WrongUse
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from spark_jobs.query import query, register_views

(file,) = arguments
task = json.load(open(file))
small, damaged = (LakeStore.open(Root.parse(task[name])) for name in ("small", "damaged"))

def write(name, table):
    with pa.OSFile(task["answers"] + "/" + name, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)

register_views(session, small)
for name in task["asked"]:
    write(name, session.table(name).toArrow())
columns = {name: session.table(name).dtypes for name in task["views"]}
examples = [session.sql(text).columns for text in task["examples"]]
for name in task["asked_of_damaged"]:
    write(f"{name}_of_damaged", query(session, damaged, f"SELECT * FROM {name}"))
def answer_of(text):
    try:
        return query(session, small, text).num_rows
    except WrongUse as error:
        return str(error)

refused = answer_of("SELECT nothing FROM lag")
texts = {text: answer_of(text) for text in task["texts"]}
answer = {"columns": columns, "examples": examples, "refused": refused, "texts": texts}
"""


def duckdb_answer(store: LakeStore, name: str) -> pa.Table:
    with open_duckdb(store, {name}) as connection:
        return connection.sql(f"SELECT * FROM {name}").to_arrow_table()


def spark_answer(folder: Path, name: str) -> pa.Table:
    with pa.memory_map(str(folder / name)) as source:
        return pa.ipc.open_file(source).read_all()


def compacted(store: LakeStore) -> None:
    later_ms = Host().now_ms() + 2 * SETTLED_MS
    request = CompactRequest(f"{day_of(later_ms)}-compact", TESTS, limits=Limits(least_files=2))
    assert compact(store.shards()[0], request, Host(now_ms=lambda: later_ms)).replaced_files > 1


def in_any_order(table: pa.Table) -> list[str]:
    """The rows as text, sorted; a map by its names."""
    return sorted(repr({name: _plain(value) for name, value in row.items()}) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def test_spark_answers_as_duckdb_does(classic_driver: ClassicDriver, tmp_path: Path) -> None:
    small = small_store(tmp_path / "small").store
    compacted(small)
    damaged = damaged_store(tmp_path / "damaged")
    task = {
        "small": small.root.location,
        "damaged": damaged.root.location,
        "answers": str(tmp_path),
        "asked": ASKED,
        "asked_of_damaged": ASKED_OF_DAMAGED,
        "views": sorted(views()),
        "examples": EXAMPLE.findall(DOCUMENT.read_text()),
        "texts": [*QUERIES, *NO_QUERIES],
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    output = classic_driver.run(CLASSIC, str(tmp_path / "task.json"), conf=QUICK)

    for name in ASKED:
        in_duckdb = duckdb_answer(small, name)
        assert in_duckdb.num_rows > 0
        assert in_any_order(spark_answer(tmp_path, name)) == in_any_order(in_duckdb), name
    of_damaged = {name: duckdb_answer(damaged, name) for name in ASKED_OF_DAMAGED}
    assert of_damaged["audit"].num_rows > 26
    redriven = of_damaged["dead_letters"].column("redriven_at")
    assert 0 < redriven.null_count < len(redriven)
    for name, in_duckdb in of_damaged.items():
        assert in_any_order(spark_answer(tmp_path, f"{name}_of_damaged")) == in_any_order(in_duckdb), name

    with open_duckdb(small) as connection:
        documented = {
            name: [tuple(cells) for cells in re.findall(r"^\| `(\w+)` \| ([\w<>,]+) \|", section, re.MULTILINE)]
            for name, section in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", DOCUMENT.read_text(), re.M | re.S)
        }
        examples = [connection.sql(text).columns for text in task["examples"]]
    assert {name: [tuple(column) for column in columns] for name, columns in output["columns"].items()} == documented
    assert output["examples"] == examples
    assert "`nothing`" in output["refused"]
    assert {text: output["texts"][text] for text in QUERIES} == QUERIES
    for text, reason in NO_QUERIES.items():
        assert reason in str(output["texts"][text]), (text, output["texts"][text])
    assert not list(tmp_path.glob("written*"))


CONNECT = """
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.errors import WrongUse
from spark_jobs.query import query, register_views

(location,) = arguments
store = LakeStore.open(Root.parse(location))
register_views(session, store, ["lag"])
lag = session.sql("SELECT * FROM lag").toArrow().to_pylist()
sums = session.sql("SELECT range_hash(0, 10) AS sum, offset_hash(7) AS one, range_hash(3, 1) AS none").toArrow()
try:
    query(session, store, "SELECT 1")
    refused = ""
except WrongUse as error:
    refused = str(error)
answer = {"lag": lag, "sums": sums.to_pylist()[0], "refused": refused}
"""


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    return small_store(tmp_path / "small", ["broker-a"])


def test_a_connect_client_has_the_views_and_the_functions(connect_server: ConnectServer, small: SmallStore) -> None:
    output = in_a_client(connect_server.remote, CONNECT, small.store.root.location, conf=QUICK)
    store = LakeStore.open(Root.parse(small.store.root.location))
    lag = duckdb_answer(store, "lag").to_pylist()
    assert sorted(output["lag"], key=repr) == sorted(lag, key=repr)
    with open_duckdb(store) as connection:
        sums = connection.sql("SELECT range_hash(0, 10) AS sum, offset_hash(7) AS one, range_hash(3, 1) AS none")
        assert output["sums"] == sums.to_arrow_table().to_pylist()[0]
    assert output["sums"]["none"] is None
    assert "register_views" in output["refused"]
