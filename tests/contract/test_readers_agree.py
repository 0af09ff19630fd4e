"""Every reader of Delta tables finds in a table of the store what we find: the same files, rows and positions."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rmq_store.lake.commit.derived_tables import COMMITS, KINDS
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.commit.rebuild import rebuild
from rmq_store.lake.table.checkpoint import clean_up, write_checkpoint
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from tests.contract.rmq import ALL_DUE, Rmq
from tests.contract.test_dispatch import doubled
from tests.foreign_tools import log_of, protocol_ignored
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench, small_store
from tests.readers import assert_a_kept_view_agrees, assert_readers_agree, folder_of, tables_of


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    """Imported and consumed, with retries and dead letters."""
    return small_store(tmp_path / "store").store.shards()[0]


def test_of_a_store_without_a_message(tmp_path: Path) -> None:
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    assert_readers_agree(store.create_shard("broker-a"))


def test_of_every_table_of_a_small_store(shard: Shard) -> None:
    assert_readers_agree(shard)


def test_of_an_imported_broker(imported: Rmq) -> None:
    (shard,) = LakeStore.open(Root.parse(str(imported.root))).shards()
    imported.json("consume", "--group", "orders", "--engine", "local")
    imported.json("deliver", "--now", ALL_DUE)
    assert_readers_agree(shard)


@pytest.mark.parametrize("cleaned", [False, True])
def test_after_checkpoints(shard: Shard, cleaned: bool) -> None:
    """One with entries after it, then one at the newest version, then entries after that."""
    kept = tables_of(shard)
    for back in (3, 0):
        for table in tables_of(shard).values():
            DeltaTable(str(folder_of(table)), version=max(table.version - back, 0)).create_checkpoint()
            if cleaned:
                make_old(table)
                clean_up(table)
        assert_readers_agree(shard, all_entries=not cleaned)
    (entry,) = log_of(folder_of(kept["broker-a/commits"])).glob("*.json")
    assert entry.stem == f"{0:020d}", "a checkpoint's own entry stays"
    bench = Bench(Shard(shard.root, shard.name))
    bench.move("shop", QUEUE, None, 3)
    dispatch(bench.shard, bench.host)
    assert_readers_agree(shard, all_entries=not cleaned)
    for table in kept.values():
        assert_a_kept_view_agrees(table)


def make_old(table: LakeTable) -> None:
    """Checkpoints are old enough for a clean-up of what lies behind them."""
    for checkpoint in log_of(folder_of(table)).glob("*.checkpoint.parquet"):
        os.utime(checkpoint, (0, 0))


def test_after_a_rebuild_which_removes_files(shard: Shard) -> None:
    kept = tables_of(shard)
    for kind in (COMMITS, *KINDS):
        doubled(shard, kind)
    assert_readers_agree(shard)
    assert all(report.rebuilt for report in rebuild(shard, Bench(shard).host))
    assert_readers_agree(shard)
    for table in tables_of(shard).values():
        write_checkpoint(table)
    assert_readers_agree(shard)
    for table in kept.values():
        assert_a_kept_view_agrees(table)


def test_after_another_tool_has_changed_the_tables(shard: Shard) -> None:
    kept = tables_of(shard)
    for table in kept.values():
        with protocol_ignored(folder_of(table)) as other:
            if table.files().num_rows:
                other.optimize.compact()
                other.delete("store_day < '2026-01-01'")
    assert_readers_agree(shard)
    for table in kept.values():
        assert_a_kept_view_agrees(table)


@pytest.mark.parametrize("kind", ["msg", "outcome"])
@pytest.mark.parametrize("rows", [3, 300])
def test_duckdb_finds_the_nulls_beside_one_value(tmp_path: Path, kind: str, rows: int) -> None:
    """By the statistics of row groups it took all rows for nulls where a text had one value, nulls, and no dictionary."""
    gaps = {"topic": "T", "broker_name": "b", "group_name": "g", "keys": "K", "unique_key": "U", "tags": "A"}
    columns = {name: pa.array([value, None, value] * rows, pa.string()) for name, value in gaps.items()}
    columns["body"] = pa.array([b"x", None, b"x"] * rows, pa.binary())
    padding = {"error_message": pa.array(["e" * 100, None, None] * rows, pa.string())}
    table = pa.table(columns | padding)
    root = Root.parse(str(tmp_path))
    stats = ["topic", "broker_name", "group_name"]
    staged = stage(root, "table", NewFile(kind=kind, name="new", rows=table, stats=stats))
    with duckdb.connect() as connection:
        file = tmp_path / "table" / staged.path
        for name in columns:
            query = f"SELECT count(*) FROM read_parquet('{file}', hive_partitioning=false) WHERE {name} IS NULL"
            assert connection.execute(query).fetchall() == [(rows,)], name
