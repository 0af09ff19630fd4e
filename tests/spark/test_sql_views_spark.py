"""The same views in Spark SQL, classic and Connect: unchanged files, the same answers as DuckDB."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.lake.sql.sql import open_duckdb
from rmq_store.lake.sql.views import views
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from spark_jobs.session import ConnectServer
from tests.lake_damages import damaged_store
from tests.lake_fixtures import SmallStore, small_store
from tests.spark.processes import ClassicDriver, in_a_client

EXAMPLE = re.compile(r"^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sql.md"

# What is executed here; the others are made of these by choosing rows and columns.
ASKED = (
    "message_rows", "scheduled", "outcomes", "windows", "consumer_offsets", "lag", "groups", "topics", "offset_history",
    "queue_owners",
)  # fmt: skip

# Many small queries, each run once: nothing is worth generating code for.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
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
write("audit", query(session, damaged, "SELECT * FROM audit"))
try:
    query(session, small, "SELECT nothing FROM lag")
    refused = ""
except WrongUse as error:
    refused = str(error)
answer = {"columns": columns, "examples": examples, "refused": refused}
"""


def duckdb_answer(store: LakeStore, name: str) -> pa.Table:
    with open_duckdb(store, {name}) as connection:
        return connection.sql(f"SELECT * FROM {name}").to_arrow_table()


def spark_answer(folder: Path, name: str) -> pa.Table:
    with pa.memory_map(str(folder / name)) as source:
        return pa.ipc.open_file(source).read_all()


def in_any_order(table: pa.Table) -> list[str]:
    """The rows as text, sorted; a map by its names."""
    return sorted(repr({name: _plain(value) for name, value in row.items()}) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def test_spark_answers_as_duckdb_does(classic_driver: ClassicDriver, tmp_path: Path) -> None:
    small = small_store(tmp_path / "small").store
    damaged = damaged_store(tmp_path / "damaged")
    task = {
        "small": small.root.location,
        "damaged": damaged.root.location,
        "answers": str(tmp_path),
        "asked": ASKED,
        "views": sorted(views()),
        "examples": EXAMPLE.findall(DOCUMENT.read_text()),
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    output = classic_driver.run(CLASSIC, str(tmp_path / "task.json"), conf=QUICK)

    for name in ASKED:
        in_duckdb = duckdb_answer(small, name)
        assert in_duckdb.num_rows > 0
        assert in_any_order(spark_answer(tmp_path, name)) == in_any_order(in_duckdb), name
    problems = duckdb_answer(damaged, "audit")
    assert problems.num_rows > 26
    assert in_any_order(spark_answer(tmp_path, "audit")) == in_any_order(problems)

    with open_duckdb(small) as connection:
        documented = {
            name: [tuple(cells) for cells in re.findall(r"^\| `(\w+)` \| ([\w<>,]+) \|", section, re.MULTILINE)]
            for name, section in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", DOCUMENT.read_text(), re.M | re.S)
        }
        examples = [connection.sql(text).columns for text in task["examples"]]
    assert {name: [tuple(column) for column in columns] for name, columns in output["columns"].items()} == documented
    assert output["examples"] == examples
    assert "`nothing`" in output["refused"]


CONNECT = """
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from spark_jobs.query import query

(location,) = arguments
store = LakeStore.open(Root.parse(location))
lag = query(session, store, "SELECT * FROM lag").to_pylist()
sums = query(session, store, "SELECT range_hash(0, 10) AS sum, offset_hash(7) AS one, range_hash(3, 1) AS none")
answer = {"lag": lag, "sums": sums.to_pylist()[0]}
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
