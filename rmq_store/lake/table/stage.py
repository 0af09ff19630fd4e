"""Staging: data files that lie in the table's folder under names no other attempt uses, but in no version of it.

A file carries min, max and null count for exactly the columns of ``delta.dataSkippingStatsColumns``: partial statistics
make pyarrow and DuckDB lose rows silently. Staged rows hold no clock; their times come from the ctl row.

The rows may be what listeners answered for hours, so a file that a store did not take is written again for about a minute
(``TRIES``). Every try has a name of its own: a part of an earlier one may still arrive.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tenacity

from rmq_store.commit.ctl import Ctl, StagedFile
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root, is_refused
from rmq_store.utils.host import day_of
from rmq_store.utils.redaction import cleaned, secret_values

ROW_GROUP_ROWS = 10_000
LONG_RUN_ROWS = 4_000
_LONGEST_STATISTIC = 32
_LAST_CHARACTER = "\U0010ffff"
_GROWING = {"rel", "queue_offset", "commit_log_offset", "store_timestamp", "born_timestamp", "origin_queue_offset"}
"""Numbers that grow from row to row: written as their differences, they take a third and are read in a quarter."""

_PLAIN = _GROWING | {"body", "unique_key", "keys", "offset_msg_id", "body_crc", "key_hash", "key_text"}
"""Columns whose values differ in every row: a dictionary of them would be as long as they are."""

_PROPERTY_NAMES = "properties.key_value.key"

_HASH = "key_hash"
"""Numbers without a pattern, which every window that absorbs duplicates reads: written without compression, and their
files without the statistics of row groups, which nobody looks at."""


_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno not in _REFUSALS and not is_refused(error)


TRIES = tenacity.Retrying(
    retry=tenacity.retry_if_exception(_may_pass),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
    stop=tenacity.stop_after_delay(60) | tenacity.stop_after_attempt(15),
    reraise=True,
)
"""How often and for how long a file is written again."""


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
        if pa.types.is_dictionary(column.type):
            column = pa.chunked_array([chunk.dictionary for chunk in column.chunks])  # no value lies outside
        low_high = pc.min_max(column).as_py()
        least[name], most[name] = low_high["min"], low_high["max"]
        if isinstance(most[name], str):
            least[name] = least[name][:_LONGEST_STATISTIC]
            if len(most[name]) > _LONGEST_STATISTIC:
                most[name] = max(most[name], most[name][:_LONGEST_STATISTIC] + _LAST_CHARACTER)
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
    runs: Sequence[int] = (),
    row_group_rows: int = ROW_GROUP_ROWS,
) -> StagedFile:
    """Write ``rows`` to ``<table>/kind=<kind>/<name>.parquet``, or after a hiccup of the store under a name that begins so;
    the name must be new. ``runs``: the rows, in order, with which another queue begins. ``row_group_rows``: at most so many
    rows in a row group.

    Raises StoreUnusable when the store refuses the file, or takes none for about a minute.
    """
    try:
        for attempt in TRIES.copy():
            with attempt:
                number = attempt.retry_state.attempt_number
                try_name = name if number == 1 else f"{name}-{number}"
                file = _stage_once(root, table_path, kind, try_name, rows, stats, store_day, runs, row_group_rows)
    except OSError as error:
        said = cleaned(str(error), secret_values(root.storage_options))
        raise StoreUnusable(
            f"cannot write kind={kind}/{name}.parquet at {root.location}: {said}. Nothing of this run was committed; when the "
            "store takes files again, run the same request again."
        ) from None
    return file


def _stage_once(
    root: Root,
    table_path: str,
    kind: str,
    name: str,
    rows: pa.Table,
    stats: Sequence[str],
    store_day: str | None = None,
    runs: Sequence[int] = (),
    row_group_rows: int = ROW_GROUP_ROWS,
) -> StagedFile:
    path = f"kind={kind}/{name}.parquet" if kind else f"{name}.parquet"
    names = rows.schema.names
    dictionary = [
        column.name for column in rows.schema if not (column.name in _PLAIN or pa.types.is_nested(column.type))
    ]
    if "properties" in names:
        dictionary.append(_PROPERTY_NAMES)
    compression: str | dict[str, str] = "zstd"
    if _HASH in names:
        compression = {name: "none" if name == _HASH else "zstd" for name in names}
    filesystem, base = root.filesystem()
    target = f"{base}/{table_path}/{path}"
    if root.is_local:
        filesystem.create_dir(target.rsplit("/", 1)[0], recursive=True)
    with filesystem.open_output_stream(target) as sink:
        with pq.ParquetWriter(
            sink,
            rows.schema,
            compression=compression,
            use_dictionary=dictionary,
            column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _GROWING},
            store_schema=False,
            write_statistics=_HASH not in names,
        ) as writer:
            for begin, end in row_groups(rows.num_rows, runs, row_group_rows):
                writer.write_table(rows.slice(begin, end - begin), row_group_size=end - begin)
        size = sink.tell()
    return StagedFile(path, kind, size, rows.num_rows, statistics(rows, stats), store_day)


def row_groups(rows: int, runs: Sequence[int], most: int = ROW_GROUP_ROWS) -> Iterator[tuple[int, int]]:
    """The bounds of row groups of at most ``most`` rows. A long run has its own, so that who reads it reads no rows of
    its neighbours; short ones share."""
    cuts = {0, rows}
    for begin, end in pairwise([*runs, rows]):
        if end - begin >= LONG_RUN_ROWS:
            cuts |= {begin, end}
    for begin, end in pairwise(sorted(cuts)):
        pieces = -(-(end - begin) // most)
        yield from pairwise([begin + (end - begin) * piece // pieces for piece in range(pieces + 1)])


def stage_ctl(root: Root, table_path: str, ctl: Ctl, attempt: int) -> StagedFile:
    """The one row that makes a commit what it is. Written once: a commit has its own tries."""
    return _stage_once(
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
    """A file of a derived table (partitioned by day only). Written once: who follows up can do it again."""
    stored = pa.schema([field for field in schema if field.name != "store_day"])
    return _stage_once(root, table_path, "", name, pa.Table.from_pylist(list(rows), schema=stored), stats, day)
