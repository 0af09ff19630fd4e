"""Staging: data files that lie in the table's folder under names no other attempt uses, but in no version of it.

A file carries min, max and null count for exactly the columns of ``delta.dataSkippingStatsColumns``: partial statistics
make pyarrow and DuckDB lose rows silently. Staged rows hold no clock; their times come from the ctl row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.host import day_of
from rmq_store.lake import tables
from rmq_store.lake.object_store import Root
from rmq_store.store import Ctl, StagedFile

ROW_GROUP_ROWS = 10_000
_LONGEST_STATISTIC = 32
_LAST_CHARACTER = "\U0010ffff"
_PLAIN = {"body", "properties.key_value.value", "unique_key", "offset_msg_id"}


def statistics(table: pa.Table, columns: Sequence[str]) -> str:
    """The Delta statistics (JSON) of a file that holds ``table``."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in columns:
        if name not in table.column_names:
            nulls[name] = table.num_rows
            continue
        column = table.column(name)
        nulls[name] = column.null_count
        if column.null_count == table.num_rows:
            continue
        low_high = pc.min_max(column).as_py()
        least[name], most[name] = low_high["min"], low_high["max"]
        if isinstance(most[name], str):
            least[name] = least[name][:_LONGEST_STATISTIC]
            if len(most[name]) > _LONGEST_STATISTIC:
                most[name] = most[name][:_LONGEST_STATISTIC] + _LAST_CHARACTER
    return json.dumps(
        {"numRecords": table.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}, ensure_ascii=False
    )


def stage(
    root: Root,
    table_path: str,
    kind: str,
    name: str,
    rows: pa.Table,
    stats: Sequence[str],
    store_day: str | None = None,
) -> StagedFile:
    """Write ``rows`` to ``<table>/kind=<kind>/<name>.parquet``; the name must be new."""
    path = f"kind={kind}/{name}.parquet" if kind else f"{name}.parquet"
    dictionary = [
        column.name for column in rows.schema if column.name not in _PLAIN and not pa.types.is_nested(column.type)
    ]
    filesystem, base = root.filesystem()
    target = f"{base}/{table_path}/{path}"
    if root.is_local:
        filesystem.create_dir(target.rsplit("/", 1)[0], recursive=True)
    with filesystem.open_output_stream(target) as sink:
        pq.write_table(
            rows, sink, compression="zstd", row_group_size=ROW_GROUP_ROWS, use_dictionary=dictionary, store_schema=False
        )
        size = sink.tell()
    return StagedFile(path, kind, size, rows.num_rows, statistics(rows, stats), store_day)


def stage_ctl(root: Root, table_path: str, ctl: Ctl, attempt: int) -> StagedFile:
    """The one row that makes a commit what it is."""
    return stage(
        root,
        table_path,
        "ctl",
        f"{ctl.commit_id}-{attempt}",
        tables.ctl_table([ctl]),
        tables.COMMITLOG_STATS,
        day_of(ctl.store_timestamp),
    )


def derived(
    root: Root,
    table_path: str,
    name: str,
    rows: Iterable[dict[str, Any]],
    schema: pa.Schema,
    stats: Sequence[str],
    day: str,
) -> StagedFile:
    """A file of a derived table (partitioned by day only)."""
    stored = pa.schema([field for field in schema if field.name != "store_day"])
    return stage(root, table_path, "", name, pa.Table.from_pylist(list(rows), schema=stored), stats, day)
