"""The base relations below the views, for any SQL engine: what is in them, taken from one snapshot of each shard.

Two sorts: rows of the tables' live files, which an engine reads itself (``FileRelation``), and what is small enough to
be made here (``Snapshot.positions``, and the commits that are not dispatched yet). ``BASE_SQL`` makes of them the relations
that the views name. Every one of them covers all shards and has the column ``shard`` first.

- ``positions``: the positions, decoded. The truth about offsets; nothing is scanned for it
- ``msg``: message rows; ``outcome_ranges``: ranges with an outcome and no message
- ``ctl``: one row per commit; ``ctl_consumed``, ``ctl_produced``, ``ctl_moved``, ``ctl_observed``: its lists, one item a
  row, with what names and orders the commit
- ``segments``, ``offset_moves``: the derived tables and what they do not have yet, so a view is never behind the log
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.lake import tables
from rmq_store.lake.delta_table import LakeTable
from rmq_store.lake.dispatch import consumequeue_rows, offsets_rows, undispatched
from rmq_store.lake.shard import ABOUT_CLAIMS, Shard
from rmq_store.lake.store import LakeStore
from rmq_store.offsets import ABSENT, Positions, split_id
from rmq_store.store import Ctl

SHARD = pa.field("shard", pa.string())


def _stored(schema: pa.Schema) -> pa.Schema:
    return pa.schema([SHARD, *(field for field in schema if field.name not in tables.PARTITION_BY)])


# --- relations that are files ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRelation:
    """Rows of live Parquet files. ``kind``: the partition of the commit log, None for a table without kinds."""

    table: Callable[[Shard], LakeTable]
    kind: str | None
    schema: pa.Schema


FILE_RELATIONS: Mapping[str, FileRelation] = {
    "msg": FileRelation(lambda shard: shard.commitlog, "msg", _stored(tables.MSG)),
    "ctl_rows": FileRelation(lambda shard: shard.commitlog, "ctl", _stored(tables.CTL)),
    "outcome_ranges": FileRelation(lambda shard: shard.commitlog, "outcome", _stored(tables.OUTCOME)),
    "segments_dispatched": FileRelation(lambda shard: shard.consumequeue, None, _stored(tables.CONSUMEQUEUE)),
    "offset_moves_dispatched": FileRelation(lambda shard: shard.offsets, None, _stored(tables.OFFSETS)),
}


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files of one shard behind a relation: ``folder`` is the table's, ``index`` as ``LakeTable.files`` returns it."""

    shard: str
    folder: str
    index: pa.Table

    def paths(self) -> list[str]:
        return [f"{self.folder}/{path}" for path in self.index.column("path").to_pylist()]


# --- relations that are made here ------------------------------------------------------------------------------------

POSITIONS = pa.schema(
    [
        SHARD,
        pa.field("app_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("group_name", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("broker_name", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("value", pa.int64()),
        pa.field("updated_ms", pa.int64()),
    ]
)
_PARTS: Mapping[str, tuple[str, ...]] = {
    "off": ("group_name", "topic", "broker_name", "queue_id"),
    "pas": ("group_name", "topic", "broker_name", "queue_id"),
    "max": ("topic", "broker_name", "queue_id"),
    "min": ("topic", "broker_name", "queue_id"),
    "own": ("group_name", "topic", "broker_name", "queue_id"),
    "grp": ("group_name",),
    "red": ("group_name",),
    "import": ("broker_name",),
    "cutover": ("broker_name",),
}
"""What the parts of an application id are, by its kind (design 3.1)."""

TAIL_RELATIONS: Mapping[str, tuple[str, Callable[[Ctl], list[dict[str, Any]]]]] = {
    "segments_tail": ("segments_dispatched", consumequeue_rows),
    "offset_moves_tail": ("offset_moves_dispatched", offsets_rows),
}


def position_rows(shard: str, positions: Positions) -> list[dict[str, Any]]:
    """One row per position that is there."""
    rows = []
    for app_id, value in positions.values.items():
        if value == ABSENT:
            continue
        kind, *parts = split_id(app_id)
        row: dict[str, Any] = dict(zip(_PARTS.get(kind, ()), parts, strict=False))
        if "queue_id" in row:
            row["queue_id"] = int(row["queue_id"])
        known = {"shard": shard, "app_id": app_id, "kind": kind, "value": value}
        rows.append(row | known | {"updated_ms": positions.updated_ms.get(app_id) or None})
    return rows


class Snapshot:
    """The shards of a store as they are now; every relation is of the same version of its shard's commit log.

    ``names``: the relations that will be asked for. Only their tables are opened.
    """

    def __init__(self, store: LakeStore, names: Collection[str]) -> None:
        self._shards = store.shards()
        self._filesystem_root = store.root.filesystem()[1]
        for shard in self._shards:
            # The derived tables first: then the commit log's handle is never behind them, and the tail closes the gap.
            for name in sorted(set(names) & set(FILE_RELATIONS)):
                FILE_RELATIONS[name].table(shard).refresh()
            shard.commitlog.refresh()

    def positions(self) -> pa.Table:
        rows = [row for shard in self._shards for row in position_rows(shard.name, shard.positions())]
        return pa.Table.from_pylist(rows, schema=POSITIONS)

    def files(self, name: str) -> list[LiveFiles]:
        """The live files of a ``FILE_RELATIONS``, by shard."""
        relation = FILE_RELATIONS[name]
        found = []
        for shard in self._shards:
            table = relation.table(shard)
            index = table.files()
            if relation.kind is not None and index.num_rows:
                index = index.filter(pc.field("partition.kind") == relation.kind)
            found.append(LiveFiles(shard.name, f"{self._filesystem_root}/{table.path}", index))
        return found

    def tail(self, name: str) -> pa.Table:
        """The rows of a ``TAIL_RELATIONS``: of the commits that its derived table does not have yet."""
        derived, rows_of = TAIL_RELATIONS[name]
        relation = FILE_RELATIONS[derived]
        rows = [
            row | {"shard": shard.name}
            for shard in self._shards
            for ctl in undispatched(shard, relation.table(shard))
            for row in rows_of(ctl)
        ]
        return pa.Table.from_pylist(rows, schema=relation.schema)

    def small(self, name: str) -> pa.Table:
        """A relation that is made here."""
        return self.positions() if name == "positions" else self.tail(name)


SMALL_RELATIONS = ("positions", *TAIL_RELATIONS)


# --- relations that are SQL over the others --------------------------------------------------------------------------

_ABOUT_CLAIMS = " AND ".join(f"action <> '{action}'" for action in ABOUT_CLAIMS)
_OF_COMMIT = ("commit_id", "action", "read_version", "store_timestamp")


def _items(column: str, *of_commit: str, where: str = _ABOUT_CLAIMS) -> str:
    """The items of a list of ctl rows with some columns of their commit. Half of all commits are about claims and have
    none; statistics on the action then spare their files."""
    carried = ", ".join([*_OF_COMMIT, *of_commit])
    fields = tables.CTL.field(column).type.value_type
    named = ", ".join(
        f"item.{field.name} AS observed_offset" if field.name == "offset" else f"item.{field.name}" for field in fields
    )
    items = f"SELECT shard, {carried}, {{explode}}({column}) AS item FROM ctl_rows WHERE {where}"
    return f"SELECT shard, {carried}, {named} FROM ({items}) i"


@dataclass(frozen=True, slots=True)
class BaseSql:
    """``sql`` with ``{explode}`` where the engine's name for "one row per item of a list" goes."""

    sql: str
    needs: tuple[str, ...]


BASE_SQL: Mapping[str, BaseSql] = {
    "ctl": BaseSql(
        f"SELECT {', '.join(f.name for f in _stored(tables.CTL) if not pa.types.is_list(f.type))} FROM ctl_rows",
        ("ctl_rows",),
    ),
    "ctl_consumed": BaseSql(_items("consumed", "group_name", "window_id", "request_id"), ("ctl_rows",)),
    "ctl_produced": BaseSql(_items("produced"), ("ctl_rows",)),
    "ctl_moved": BaseSql(_items("moved"), ("ctl_rows",)),
    "ctl_observed": BaseSql(_items("observed", where="action IN ('import', 'salvage')"), ("ctl_rows",)),
    **{
        name: BaseSql(
            f"SELECT * FROM {name}_dispatched UNION ALL SELECT * FROM {name}_tail",
            (f"{name}_dispatched", f"{name}_tail"),
        )
        for name in ("segments", "offset_moves")
    },
}


def base_needs(names: Iterable[str]) -> set[str]:
    """The relations with those below them."""
    wanted = set(names)
    return wanted | {below for name in wanted if name in BASE_SQL for below in BASE_SQL[name].needs}


# --- types -----------------------------------------------------------------------------------------------------------

_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}


def sql_type(type_: pa.DataType) -> str:
    """The type as Spark SQL spells it, which is how ``docs/sql.md`` names types too."""
    if pa.types.is_map(type_):
        return f"map<{sql_type(type_.key_type)},{sql_type(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{sql_type(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'`{field.name}`:{sql_type(field.type)}' for field in type_)}>"
    return _SQL_TYPES[type_]
