"""Staging: data files in the table's folder, under names that no other attempt uses, but in no version of the table.

A file carries min, max and null count for exactly the columns of ``delta.dataSkippingStatsColumns``: partial statistics
make pyarrow and DuckDB lose rows silently. Staged rows hold no clock; their times come from the ctl row.

The rows may be the result of hours of work by listeners, so a file that could not be written is tried again for about a
minute (``TRIES``). Every try has a name of its own: a part of an earlier one may still arrive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tenacity

from rmq_store.commit.ctl import Ctl, StagedFile
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table import tables
from rmq_store.lake.table.digest_name import with_digest
from rmq_store.lake.table.key_filters import filter_options, with_key_words
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store_errors import is_refused
from rmq_store.lake.table.table_layout import TableLayout
from rmq_store.utils.host import day_of
from rmq_store.utils.redaction import cleaned, secret_values

ROW_GROUP_ROWS = 10_000
LONG_RUN_ROWS = 4_000
LONGEST_STATISTIC = 32
"""A text has so many characters at most in a statistic."""

_LAST_CHARACTER = "\U0010ffff"
_GROWING = {"rel", "queue_offset", "commit_log_offset", "store_timestamp", "born_timestamp", "origin_queue_offset"}
"""Numbers that grow from row to row. Written as their differences, they take a third of the space and a quarter of the
time to read."""

_PLAIN = _GROWING | {"body", "unique_key", "keys", "offset_msg_id", "body_crc", "key_hash", "key_text"}
"""Columns whose values differ in every row, so that a dictionary would not make them smaller."""

_PROPERTY_NAMES = "properties.key_value.key"

_SMALL_BYTES = 16 * 1024
"""Rows of so few bytes are written as they are: to a ctl row with its 78 columns, compression, dictionaries and statistics of
row groups would add more than they save, and make it twice as slow to write and to read."""

_HASH = "key_hash"
"""Numbers without a pattern, which every window that absorbs duplicates reads: written without compression, and their
files without statistics of row groups, which are not used."""


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, OSError | StoreUnusable) and not is_refused(error)


TRIES = tenacity.Retrying(
    retry=tenacity.retry_if_exception(_may_pass),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
    stop=tenacity.stop_after_delay(60) | tenacity.stop_after_attempt(15),
    reraise=True,
)
"""How often and for how long writing a file is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A data file to be staged."""

    kind: str
    """The partition ``kind`` of the commit log; "" for derived tables, which have none."""
    name: str
    """File name without its ending, and without the digest that a file of the kind ``ctl`` gets. It must be new."""
    rows: pa.Table
    stats: Sequence[str] = tables.COMMITLOG_LAYOUT.stats
    """The columns with Delta statistics."""
    store_day: str | None = None
    """The partition ``store_day``; None: the commit sets it."""
    runs: Sequence[int] = ()
    """The rows, in order, at which another queue begins."""
    row_group_rows: int = ROW_GROUP_ROWS
    """At most so many rows in a row group."""

    @property
    def path(self) -> str:
        """The path in the table's folder."""
        return f"kind={self.kind}/{self.name}.parquet" if self.kind else f"{self.name}.parquet"


def statistics(table: pa.Table, columns: Sequence[str]) -> str:
    """The Delta statistics (JSON) of a file with the rows of ``table``."""
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
            least[name] = least[name][:LONGEST_STATISTIC]
            if len(most[name]) > LONGEST_STATISTIC:
                most[name] = max(most[name], most[name][:LONGEST_STATISTIC] + _LAST_CHARACTER)
    return json.dumps(
        {"numRecords": table.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}, ensure_ascii=False
    )


def stage(root: Root, table_path: str, file: NewFile) -> StagedFile:
    """Write the file; after a temporary failure of the store under a name that begins with ``file.name``.

    Raises StoreUnusable when the store refuses the file, or cannot be written for about a minute.
    """
    try:
        for attempt in TRIES.copy():
            with attempt:
                number = attempt.retry_state.attempt_number
                name = file.name if number == 1 else f"{file.name}-{number}"
                staged = _stage_once(root, table_path, replace(file, name=name))
    except (OSError, StoreUnusable) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"cannot write {file.path} at {root.location}: {error}"
        raise StoreUnusable(
            f"{cleaned(reason, secret_values(root.storage_options))}. This commit was not made, and earlier ones stay; run the "
            "same request again when the store can be written again."
        ) from None
    return staged


def _stage_once(root: Root, table_path: str, file: NewFile) -> StagedFile:
    is_msg = file.kind == "msg"
    rows = with_key_words(file.rows) if is_msg else file.rows
    names = rows.schema.names
    groups = list(row_groups(rows.num_rows, file.runs, file.row_group_rows))
    is_small = not is_msg and rows.nbytes <= _SMALL_BYTES
    dictionary = [
        column.name for column in rows.schema if not (column.name in _PLAIN or pa.types.is_nested(column.type))
    ]
    if "properties" in names:
        dictionary.append(_PROPERTY_NAMES)
    compression: str | dict[str, str] = "zstd"
    if _HASH in names:
        compression = {name: "none" if name == _HASH else "zstd" for name in names}
    of_row_groups: bool | list[str] = _HASH not in names
    gaps = _texts_with_gaps(rows)
    if is_small:
        compression = "none"
        of_row_groups = [name for name in file.stats if name in names]  # the audit compares them with Delta's
        dictionary = [name for name in of_row_groups if name in gaps]
    elif of_row_groups and not gaps.isdisjoint(_PLAIN):
        of_row_groups = [name for name in names if name not in gaps & _PLAIN]
    # First in memory, so that an error in the middle of the encoding leaves no file.
    encoded = pa.BufferOutputStream()
    with pq.ParquetWriter(
        encoded,
        rows.schema,
        compression=compression,
        use_dictionary=dictionary,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _GROWING},
        store_schema=False,
        write_statistics=of_row_groups,
        bloom_filter_options=filter_options(rows, groups) if is_msg else None,
    ) as writer:
        for begin, end in groups:
            writer.write_table(rows.slice(begin, end - begin), row_group_size=end - begin)
    content = encoded.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    if file.kind == "ctl":
        file = replace(file, name=with_digest(file.name, sha256))
    root.write_file(f"{table_path}/{file.path}", content)
    return StagedFile(
        path=file.path,
        kind=file.kind,
        size=content.size,
        rows=rows.num_rows,
        stats=statistics(rows, file.stats),
        sha256=sha256,
        store_day=file.store_day,
    )


def _texts_with_gaps(rows: pa.Table) -> set[str]:
    """The columns of texts and bytes of which some rows, not all, are null.

    In a file they need a dictionary, or no statistics: DuckDB 2.0 reads a row group whose statistics say that it has nulls and
    one value, and which has no dictionary, as if ``IS NULL`` held for all its rows.
    """
    return {
        name
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if 0 < column.null_count < rows.num_rows and _is_text(column.type)
    }


def _is_text(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return any(
        of_type(type_)
        for of_type in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def row_groups(rows: int, runs: Sequence[int], most: int = ROW_GROUP_ROWS) -> Iterator[tuple[int, int]]:
    """The bounds of row groups of at most ``most`` rows. A long run has row groups of its own, so that reading it reads no
    rows of its neighbours; short runs share."""
    cuts = {0, rows}
    for begin, end in pairwise([*runs, rows]):
        if end - begin >= LONG_RUN_ROWS:
            cuts |= {begin, end}
    for begin, end in pairwise(sorted(cuts)):
        groups = -(-(end - begin) // most)
        yield from pairwise([begin + (end - begin) * group // groups for group in range(groups + 1)])


def stage_ctl(root: Root, table_path: str, ctls: Sequence[Ctl], attempt: int) -> StagedFile:
    """A file of the ctl rows of commits of one day that share an entry. Written once: a commit has its own tries."""
    name, day = f"{ctls[0].commit_id}-{attempt}", day_of(ctls[0].store_timestamp)
    return _stage_once(root, table_path, NewFile(kind="ctl", name=name, rows=tables.ctl_table(ctls), store_day=day))


def derived(
    root: Root,
    table_path: str,
    name: str,
    rows: Iterable[dict[str, Any]],
    layout: TableLayout,
    day: str,
) -> StagedFile:
    """A file of a derived table (partitioned by day only). Written once: the next dispatch can do it again."""
    stored = pa.schema([field for field in layout.schema if field.name != "store_day"])
    table = pa.Table.from_pylist(list(rows), schema=stored)
    return _stage_once(root, table_path, NewFile(kind="", name=name, rows=table, stats=layout.stats, store_day=day))
