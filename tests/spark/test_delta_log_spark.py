"""Delta Lake's own library on our log, and ours on what it wrote: the same files, rows and positions, or a refusal in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.checkpoint import clean_up, write_checkpoint
from rmq_store.lake.table.delta_entry import protocol_action
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from tests.contract.test_readers_agree import make_old
from tests.foreign_tools import OPEN_TO_ALL, append_entry, log_of, newest_version
from tests.lake_fixtures import small_store
from tests.readers import assert_delta_rs_agrees, counted, folder_of, rows_of, tables_of
from tests.spark.processes import ClassicDriver

CODE = """
import json
import pyarrow as pa

(file,) = arguments
task = json.load(open(file))

def read(spark, name, folder):
    frame = spark.read.format("delta").load(folder)
    table = frame.toArrow()
    with pa.OSFile(task["answers"] + "/" + name, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    snapshot = log_of(spark, folder).unsafeVolatileSnapshot()
    txns = snapshot.setTransactions()
    txns = [txns.apply(n) for n in range(txns.size())]
    return {
        "version": snapshot.version(),
        "files": sorted(row[0] for row in frame.select("_metadata.file_path").distinct().collect()),
        "positions": {t.appId(): [t.version(), time_of(t.lastUpdated())] for t in txns},
    }

def time_of(option):
    return option.get() if option.isDefined() else 0

def log_of(spark, folder):
    return spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, folder)

def refusal(spark, text):
    try:
        spark.sql(text).collect()
        return ""
    except Exception as error:
        return str(error)

refusals = {text: refusal(session, text) for text in task["refused"]}
for text in task["statements"]:
    session.sql(text).collect()
for folder in task["checkpoints"]:
    log_of(session, folder).checkpoint()
tables = {name: read(session, name, folder) for name, folder in task["read"].items()}
answer = {"refusals": refusals, "tables": tables}
"""

CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
REFUSED = (
    "OPTIMIZE {}",
    "VACUUM {} RETAIN 0 HOURS",
    "DELETE FROM {}",
    "UPDATE {} SET store_day = DATE'2020-01-01'",
    "INSERT INTO {} SELECT * FROM {}",
    "RESTORE TABLE {} TO VERSION AS OF 0",
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
)


class Stores:
    """Copies of one store, and what Spark says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "answers").mkdir()
        small_store(folder / "first")
        for name in ("cleaned", "optimized", "vectors", "mapped"):
            shutil.copytree(folder / "first", folder / name)
        self.answer: dict[str, Any] = {}

    def shard(self, name: str) -> Shard:
        return LakeStore.open(Root.parse(str(self.folder / name))).shards()[0]

    def commit_log(self, name: str) -> Path:
        return self.folder / name / "broker-a" / "commitlog"

    def rows(self, name: str) -> pa.Table:
        with pa.memory_map(str(self.folder / "answers" / name)) as source:
            return pa.ipc.open_file(source).read_all()


def statement(stores: Stores, text: str) -> str:
    return text.replace("{}", f"delta.`{stores.commit_log('first')}`")


@pytest.fixture(scope="module")
def stores(classic_driver: ClassicDriver, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    stores = Stores(tmp_path_factory.mktemp("stores"))
    for table in tables_of(stores.shard("cleaned")).values():
        write_checkpoint(table)
        make_old(table)
        clean_up(table)
    for name in ("optimized", "vectors", "mapped"):
        append_entry(stores.commit_log(name), OPEN_TO_ALL)
    optimized, vectors, mapped = (f"delta.`{stores.commit_log(name)}`" for name in ("optimized", "vectors", "mapped"))
    task = {
        "answers": str(stores.folder / "answers"),
        "refused": [statement(stores, text) for text in REFUSED],
        "statements": [
            f"OPTIMIZE {optimized}",
            f"ALTER TABLE {vectors} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            f"DELETE FROM {vectors} WHERE queue_offset = 3",
            f"ALTER TABLE {mapped} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
            f"ALTER TABLE {mapped} RENAME COLUMN topic TO subject",
        ],
        "checkpoints": [str(stores.commit_log("optimized"))],
        "read": {
            f"{name}-{table.path.rpartition('/')[2]}": str(folder_of(table))
            for name in ("first", "cleaned")
            for table in tables_of(stores.shard(name)).values()
        },
    }
    (stores.folder / "task.json").write_text(json.dumps(task))
    stores.answer = classic_driver.run(CODE, str(stores.folder / "task.json"), conf=CONF)
    return stores


@pytest.mark.parametrize("name", ["first", "cleaned"])
def test_spark_finds_the_files_rows_and_positions_that_we_find(stores: Stores, name: str) -> None:
    for table in tables_of(stores.shard(name)).values():
        key = f"{name}-{table.path.rpartition('/')[2]}"
        answer = stores.answer["tables"][key]
        paths = table.files().column("path").to_pylist()
        assert answer["version"] == table.version
        assert answer["files"] == sorted(f"file:{folder_of(table)}/{path}" for path in paths)
        assert answer["positions"] == {app_id: list(txn) for app_id, txn in table.positions.items()}
        rows = stores.rows(key).drop_columns([*table.layout.partition_by])
        assert counted(rows.cast(table.read([]).schema)) == rows_of(table)


@pytest.mark.parametrize("text", REFUSED)
def test_spark_refuses_to_write(stores: Stores, text: str) -> None:
    refusal = stores.answer["refusals"][statement(stores, text)]
    assert "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE" in refusal
    assert "rmqStore" in refusal


def test_what_spark_optimized_and_its_checkpoint_are_followed(stores: Stores) -> None:
    folder = stores.commit_log("optimized")
    before = stores.shard("first").commitlog
    append_entry(folder, protocol_action())
    for cleaned in (False, True):
        table = stores.shard("optimized").commitlog
        assert table.log.view.checkpoint == newest_version(folder) - 1
        assert table.files().num_rows < before.files().num_rows
        assert dict(table.positions.items()) == dict(before.positions.items())
        assert rows_of(table) == rows_of(before)
        assert_delta_rs_agrees(table, rows_of(table))
        if not cleaned:
            for entry in log_of(folder).glob("*.json"):
                if int(entry.stem) < table.log.view.checkpoint:
                    entry.unlink()


def test_deletion_vectors_of_spark_are_named(stores: Stores) -> None:
    log = log_of(stores.commit_log("vectors"))
    with pytest.raises(StoreUnusable, match=rf"{log}/\d+\.json, written by Apache-Spark.*reader version 3.*backup"):
        _ = stores.shard("vectors").commitlog


def test_a_column_that_spark_renamed_is_named(stores: Stores) -> None:
    log = log_of(stores.commit_log("mapped"))
    with pytest.raises(StoreUnusable, match=rf"{log}/\d+\.json, written by Apache-Spark.*reader version 2.*backup"):
        _ = stores.shard("mapped").commitlog
