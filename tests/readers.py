"""What other readers of Delta tables find in a table: the same files, rows and positions as ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard


def tables_of(shard: Shard) -> dict[str, LakeTable]:
    """The tables, as a process opens them that has read nothing before."""
    fresh = Shard(shard.root, shard.name)
    return {table.path: table for table in (fresh.commitlog, fresh.consumequeue, fresh.offsets, fresh.commits)}


def folder_of(table: LakeTable) -> Path:
    return Path(table.root.uri_of(table.path))


def files_of(table: LakeTable) -> list[dict[str, Any]]:
    """Paths, sizes, partitions and statistics."""
    files: list[dict[str, Any]] = table.files().sort_by("path").to_pylist()
    return files


def rows_of(table: LakeTable) -> Counter[str]:
    paths = table.files().column("path").to_pylist()
    return counted(table.read(paths))


def counted(rows: pa.Table) -> Counter[str]:
    names = sorted(rows.column_names)
    return counted_values(names, zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def counted_values(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Counter[str]:
    """Of rows with values of these columns; the names count, too."""
    return Counter([repr(names), *map(repr, rows)])


def assert_delta_rs_agrees(table: LakeTable, expected: Counter[str]) -> None:
    other = DeltaTable(str(folder_of(table)))
    assert other.version() == table.version
    adds = pa.table(other.get_add_actions(flatten=True)).sort_by("path")
    columns = table.files().column_names
    if adds.num_rows:  # without files it has no columns of statistics
        assert adds.select([name for name in columns if name in adds.column_names]).to_pylist() == [
            {name: value for name, value in file.items() if name in adds.column_names} for file in files_of(table)
        ]
        assert {name for name in columns if name not in adds.column_names} <= _without_values(table)
    else:
        assert files_of(table) == []
    positions = {app_id: number for app_id, (number, _) in table.positions.items()}
    assert {app_id: other.transaction_version(app_id) for app_id in positions} == positions
    rows = other.to_pyarrow_table()
    assert counted(rows.drop_columns([*table.layout.partition_by])) == expected
    days = Counter(tuple(row.values()) for row in rows.select([*table.layout.partition_by]).to_pylist())
    names = [f"partition.{name}" for name in table.layout.partition_by]
    ours: Counter[tuple[Any, ...]] = Counter()
    for file in files_of(table):
        ours[tuple(file[name] for name in names)] += file["num_records"]
    assert days == ours


def _without_values(table: LakeTable) -> set[str]:
    files = table.files()
    return {name for name in files.column_names if files.column(name).null_count == files.num_rows}


def assert_plain_replay_agrees(table: LakeTable) -> None:
    """Of a log that has all its entries: a replay by json and pyarrow alone."""
    folder = folder_of(table)
    adds: dict[str, Mapping[str, Any]] = {}
    positions: dict[str, tuple[int, int]] = {}
    entries = sorted((folder / "_delta_log").glob("*.json"))
    assert [int(entry.stem) for entry in entries] == list(range(table.version + 1)), "every entry is there"
    for entry in entries:
        actions: Sequence[Mapping[str, Any]] = [json.loads(line) for line in entry.read_text("utf-8").splitlines()]
        for path in (unquote(action["remove"]["path"]) for action in actions if "remove" in action):
            adds.pop(path, None)
        adds |= {unquote(action["add"]["path"]): action["add"] for action in actions if "add" in action}
        txns = (action["txn"] for action in actions if "txn" in action)
        positions |= {txn["appId"]: (txn["version"], txn.get("lastUpdated", 0)) for txn in txns}
    assert positions == dict(table.positions.items())
    assert sorted(adds) == table.files().sort_by("path").column("path").to_pylist()
    for file in files_of(table):
        path = folder / file["path"]
        assert path.stat().st_size == file["size_bytes"] == adds[file["path"]]["size"]
        content = pq.read_table(path, partitioning=None)
        assert content.num_rows == file["num_records"]
        for name in content.column_names:
            if f"null_count.{name}" in file:
                assert content.column(name).null_count == file[f"null_count.{name}"]
                values = [value for value in content.column(name).to_pylist() if value is not None]
                _assert_bounds(file[f"min.{name}"], file[f"max.{name}"], values)


def _assert_bounds(least: Any, most: Any, values: Sequence[Any]) -> None:
    """Bounds are exact, but for long texts, which they enclose."""
    if not values:
        assert (least, most) == (None, None)
    elif isinstance(least, str) and isinstance(most, str):
        assert least <= min(values)
        assert max(values) <= most
    elif least is not None:
        assert (least, most) == (min(values), max(values))


def assert_polars_agrees(table: LakeTable, expected: Counter[str]) -> None:
    """By polars alone: the newest checkpoint, the entries after it, and the data files."""
    log, checkpointed = folder_of(table) / "_delta_log", -1
    adds: dict[str, int] = {}
    positions: dict[str, int] = {}
    frames = []
    if checkpoints := sorted(log.glob("*.checkpoint.parquet")):
        checkpointed = int(checkpoints[-1].name[:20])
        frames.append(pl.read_parquet(checkpoints[-1]))
    entries = [entry for entry in sorted(log.glob("*.json")) if int(entry.stem) > checkpointed]
    frames += [pl.read_ndjson(entry, infer_schema_length=None) for entry in entries]
    for frame in frames:
        actions = {kind: frame[kind].drop_nulls().to_list() for kind in frame.columns}
        if frame is not frames[0] or checkpointed < 0:  # those of a checkpoint are gone already
            for removed in actions.get("remove", ()):
                adds.pop(unquote(removed["path"]), None)
        adds |= {unquote(added["path"]): added["size"] for added in actions.get("add", ())}
        positions |= {txn["appId"]: txn["version"] for txn in actions.get("txn", ())}
    assert positions == {app_id: number for app_id, (number, _) in table.positions.items()}
    assert adds == {file["path"]: file["size_bytes"] for file in files_of(table)}
    stored = sorted(set(table.layout.schema.names) - set(table.layout.partition_by))
    files = [pl.read_parquet(folder_of(table) / path, hive_partitioning=False) for path in adds]
    rows = (tuple(map(_plain, row)) for file in files for row in _of_columns(file, stored).iter_rows())
    assert counted_values(stored, rows) == expected


def _of_columns(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """These columns in this order; those that a file lacks are null."""
    return frame.select(name if name in frame.columns else pl.lit(None).alias(name) for name in names)


def _plain(value: Any) -> Any:
    """As pyarrow has it, for which a map is a list of pairs."""
    return list(value.items()) if isinstance(value, dict) else value


def assert_readers_agree(shard: Shard, *, all_entries: bool = True) -> None:
    """``all_entries``: no log of the shard has been cleaned."""
    for table in tables_of(shard).values():
        rows = rows_of(table)
        assert_delta_rs_agrees(table, rows)
        assert_polars_agrees(table, rows)
        if all_entries:
            assert_plain_replay_agrees(table)


def assert_a_kept_view_agrees(kept: LakeTable) -> None:
    """A view that followed the entries is that of a process that opens the log now."""
    kept.refresh()
    fresh = LakeTable.open(kept.root, kept.path, kept.layout)
    assert kept.version == fresh.version
    assert files_of(kept) == files_of(fresh)
    assert kept.positions == fresh.positions
