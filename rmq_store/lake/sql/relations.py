"""The base relations below the views, for any SQL engine, over one snapshot of each shard.

There are two sorts: rows of the tables' live files, which an engine reads itself (``FileRelation``), and small relations
that are made in memory (positions, and the commits that are not dispatched yet). ``BASE_SQL`` derives from them the other
relations that the views name. Every relation covers all shards and has the column ``shard`` first.

- ``positions``: the positions, decoded. They decide about offsets, and reading them needs no scan
- ``clock``: one row, the time of the snapshot
- ``live_files``: the live files of the commit log's table, by their path in it; ``placed_rows``: those of ``num_rows`` that
  are messages in a queue, or other rows with a place
- ``derived_files``: the live files of the derived tables
- ``msg``: message rows; ``archived``: those of the archive
- ``outcome_ranges``: ranges with an outcome and no message; ``key_rows``: keys of acked messages
- ``ctl_rows``: one row per commit, from the derived table ``commits`` and the commits that it lacks, so that a view is
  never behind the log and no file is opened per commit; ``ctl``: the same without its lists
- ``ctl_consumed``, ``ctl_produced``, ``ctl_moved``, ``ctl_blocked``, ``ctl_files``: its lists, one row per item, with the
  columns that name and order the commit
- ``ctl_redriven``: the dead letters that redrives have sent, one row each, with the topic that it was sent to
- ``ctl_claims``: the claims in the parameters of commits, one row per claim
- ``ctl_removed``: the ranges of offsets that retention has removed, one row each
- ``ctl_replaced``: the files that compactions have replaced, one row each
- ``ctl_observed``: the observations of imports, one row each; imports are few, so their own files are read
- ``segments``, ``offset_moves``: the rows of the derived tables ``consumequeue`` and ``offsets``, derived from the commits.
  The tables themselves are for readers of Delta tables without this project
- ``ctl_logged``, ``consumequeue_dispatched``, ``offsets_dispatched``: the ctl files of the commit log, and the rows of the
  derived tables, for the audit, which compares them with the relations above
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Action
from rmq_store.lake.commit.cursor import refuse_rolled_back
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS, MOVES, QUEUES, Derived
from rmq_store.lake.commit.tail import undispatched
from rmq_store.lake.sql.position_rows import POSITIONS, SHARD, position_rows
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host


def _stored(schema: pa.Schema) -> pa.Schema:
    return pa.schema([SHARD, *(field for field in schema if field.name not in tables.COMMITLOG_LAYOUT.partition_by)])


# --- relations that are files ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRelation:
    """Rows of the live Parquet files of a table."""

    table_name: str
    """Of a shard's tables."""
    schema: pa.Schema
    where: pc.Expression | None = None
    """Which of the files, as ``LakeTable.files`` takes it."""

    def table(self, shard: Shard) -> LakeTable:
        table: LakeTable = getattr(shard, self.table_name)
        return table


def _of_kind(kind: str) -> pc.Expression:
    return pc.field("partition.kind") == kind


def _may_have(action: Action) -> pc.Expression:
    return (pc.field("min.action") <= str(action)) & (pc.field("max.action") >= str(action))


_COMMITLOG = "commitlog"
_MAY_BE_IMPORT = _may_have(Action.IMPORT) | _may_have(Action.SALVAGE) | _may_have(Action.HAND_BACK)

FILE_RELATIONS: Mapping[str, FileRelation] = {
    "msg": FileRelation(_COMMITLOG, _stored(tables.MSG), _of_kind("msg")),
    "archived": FileRelation(_COMMITLOG, _stored(tables.MSG), _of_kind("archive")),
    "outcome_ranges": FileRelation(_COMMITLOG, _stored(tables.OUTCOME), _of_kind("outcome")),
    "key_rows": FileRelation(_COMMITLOG, _stored(tables.KEY), _of_kind("key")),
    "ctl_imports": FileRelation(_COMMITLOG, _stored(tables.CTL), _of_kind("ctl") & _MAY_BE_IMPORT),
    "ctl_logged": FileRelation(_COMMITLOG, _stored(tables.CTL), _of_kind("ctl")),
    "ctl_dispatched": FileRelation(COMMITS.name, _stored(COMMITS.layout.schema)),
    "consumequeue_dispatched": FileRelation(QUEUES.name, _stored(QUEUES.layout.schema)),
    "offsets_dispatched": FileRelation(MOVES.name, _stored(MOVES.layout.schema)),
}


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files of a relation in one shard."""

    shard: str
    folder: str
    """The table's folder, as pyarrow's file system takes it."""
    index: pa.Table
    """The files with their statistics, as ``LakeTable.files`` returns them."""

    def paths(self) -> list[str]:
        return [f"{self.folder}/{path}" for path in self.index.column("path").to_pylist()]


# --- relations that are made in memory ------------------------------------------------------------------------------------

_DAY_AND_COMMITS = ("store_day", "min_commit_id", "max_commit_id")

LIVE_FILES = pa.schema(
    [
        SHARD,
        ("file", pa.string()),
        ("kind", pa.string()),
        ("num_rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("placed_rows", pa.int64()),
        ("store_day", pa.date32()),
        ("min_commit_id", pa.string()),
        ("max_commit_id", pa.string()),
    ]
)

DERIVED_FILES = pa.schema(
    [SHARD, ("table_name", pa.string()), *(LIVE_FILES.field(name) for name in ("file", *_DAY_AND_COMMITS))]
)


class Snapshot:
    """The newest versions of a store's shards; every relation is of the same version of its shard's commit log.

    ``names``: the relations that will be read. Only their tables are opened. ``host``: its clock is the view ``clock``.
    ``group``: leave out the positions of the other groups. Raises DerivedTableDamaged when positions will be read and a commit
    log lacks its newest commits, by the tables that were made from it: a row of a position does not show that.
    """

    def __init__(self, store: LakeStore, names: Collection[str], host: Host, group: str | None = None) -> None:
        self._group = group
        self._now_ms = host.now_ms()
        self._shards = store.shards()
        self._filesystem_root = store.root.filesystem()[1]
        for shard in self._shards:
            # The derived tables first: then the commit log's handle is never behind them, and the tail closes the gap.
            files = {FILE_RELATIONS[name].table_name for name in names if name in FILE_RELATIONS}
            files |= {kind.name for kind in KINDS} if "derived_files" in names else set()
            shard.refresh(*sorted(files - {_COMMITLOG}))
            cursors = {"consumequeue", "offsets"} - files if "positions" in names else set()
            shard.refresh(_COMMITLOG, *sorted(cursors))
            if "positions" in names:
                refuse_rolled_back(shard)

    def positions(self) -> pa.Table:
        shards = [position_rows(shard.name, shard.positions(), self._group) for shard in self._shards]
        return pa.concat_tables([POSITIONS.empty_table(), *shards])

    def files(self, name: str) -> list[LiveFiles]:
        """The live files of a ``FILE_RELATIONS``, by shard."""
        relation = FILE_RELATIONS[name]
        live_files = []
        for shard in self._shards:
            table = relation.table(shard)
            index = table.files(relation.where)
            live_files.append(LiveFiles(shard.name, f"{self._filesystem_root}/{table.path}", index))
        return live_files

    def tail(self, kind: Derived) -> pa.Table:
        """The rows of the commits that a derived table lacks."""
        rows = [
            row | {"shard": shard.name}
            for shard in self._shards
            for row in undispatched(shard, kind.table(shard), claims=kind.claims).rows(kind)
        ]
        return pa.Table.from_pylist(rows, schema=_stored(kind.layout.schema))

    def live_files(self) -> pa.Table:
        return pa.concat_tables([LIVE_FILES.empty_table(), *map(_live_files, self._shards)])

    def derived_files(self) -> pa.Table:
        each = [_derived_files(shard, kind) for shard in self._shards for kind in KINDS]
        return pa.concat_tables([DERIVED_FILES.empty_table(), *each])

    def clock(self) -> pa.Table:
        return pa.table({"now_ms": pa.array([self._now_ms], pa.int64())})

    def small(self, name: str) -> pa.Table:
        """One of ``SMALL_RELATIONS``."""
        match name:
            case "positions":
                return self.positions()
            case "ctl_tail":
                return self.tail(COMMITS)
            case "consumequeue_tail":
                return self.tail(QUEUES)
            case "offsets_tail":
                return self.tail(MOVES)
            case "live_files":
                return self.live_files()
            case "derived_files":
                return self.derived_files()
            case _:
                return self.clock()


def _live_files(shard: Shard) -> pa.Table:
    """What the log says of the files of its table."""
    files = shard.commitlog.files()
    paths, rows = files.column("path"), files.column("num_records")
    columns = [
        pa.repeat(pa.scalar(shard.name), len(paths)),
        paths.cast(pa.string()),
        files.column("partition.kind").cast(pa.string()),
        rows,
        files.column("size_bytes"),
        pc.subtract(rows, files.column("null_count.rel")),
        *_day_and_commits(files),
    ]
    return pa.table(columns, schema=LIVE_FILES)


def _derived_files(shard: Shard, kind: Derived) -> pa.Table:
    files = kind.table(shard).files()
    names = [pa.repeat(pa.scalar(name), len(files)) for name in (shard.name, kind.name)]
    columns = [*names, files.column("path").cast(pa.string()), *_day_and_commits(files)]
    return pa.table(columns, schema=DERIVED_FILES)


def _day_and_commits(files: pa.Table) -> list[pa.ChunkedArray]:
    return [files.column(name) for name in ("partition.store_day", "min.commit_id", "max.commit_id")]


SMALL_RELATIONS = (
    "positions", "ctl_tail", "consumequeue_tail", "offsets_tail", "live_files", "derived_files", "clock"
)  # fmt: skip


# --- relations that are SQL over the others --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BaseSql:
    """A relation that is SQL over other relations."""

    sql: str
    """``{explode}`` stands for the engine's name of "one row per item of a list", ``{series}`` for that of "the list of the
    whole numbers from one to another, both included"."""
    needs: tuple[str, ...]


_OF_COMMIT = ("commit_id", "action", "read_version", "store_timestamp", "window_id", "request_id")
_ACTOR_AND_REASON = ("actor", "actor_source", "reason")


def _items(column: str, *of_commit: str, relation: str = "ctl_rows") -> BaseSql:
    """The items of a list of ctl rows with some columns of their commit."""
    carried = ", ".join([*_OF_COMMIT, *of_commit])
    fields = tables.CTL.field(column).type.value_type
    named = ", ".join(
        f"item.{field.name} AS observed_offset" if field.name == "offset" else f"item.{field.name}" for field in fields
    )
    items = f"SELECT shard, {carried}, {{explode}}({column}) AS item FROM {relation}"
    return BaseSql(f"SELECT shard, {carried}, {named} FROM ({items}) i", (relation,))


def _names(schema: pa.Schema, *without: str) -> str:
    return ", ".join(name for name in _stored(schema).names if name not in without)


_MOVE = _names(tables.OFFSETS, "from_offset", "to_offset")

BASE_SQL: dict[str, BaseSql] = {
    "ctl_rows": BaseSql(
        "SELECT * FROM ctl_dispatched UNION ALL SELECT * FROM ctl_tail", ("ctl_dispatched", "ctl_tail")
    ),
    "ctl": BaseSql(
        f"SELECT {', '.join(f.name for f in _stored(tables.CTL) if not pa.types.is_list(f.type))} FROM ctl_rows",
        ("ctl_rows",),
    ),
    "ctl_consumed": _items("consumed", "group_name", *_ACTOR_AND_REASON),
    "ctl_produced": _items("produced"),
    # A row per offset: then no dead letter is compared with every range of its queue, of which a redrive may have very many.
    "ctl_redriven": BaseSql(
        "SELECT c.shard, c.topic, c.broker_name, c.queue_id,"
        " {explode}({series}(c.begin_offset, c.end_offset - 1)) AS queue_offset, c.store_timestamp, c.commit_id, p.to_topic"
        " FROM ctl_consumed c LEFT JOIN (SELECT shard, commit_id, min(topic) AS to_topic FROM ctl_produced"
        " WHERE action = 'redrive' GROUP BY shard, commit_id) p ON p.shard = c.shard AND p.commit_id = c.commit_id"
        " WHERE c.action = 'redrive' AND c.begin_offset < c.end_offset",
        ("ctl_consumed", "ctl_produced"),
    ),
    "ctl_moved": _items("moved", *_ACTOR_AND_REASON),
    "ctl_blocked": _items("blocked", "group_name"),
    # Application ids are percent-encoded, so they contain no comma, quote, colon or brace. Braces are doubled for ``format``.
    "ctl_claims": BaseSql(
        "SELECT shard, commit_id, action, read_version, store_timestamp, request_id, group_name, actor, actor_source,"
        " reason, client_id, lease_end_s, split_part(item, '\"', 2) AS app_id,"
        " TRY_CAST(split_part(item, ':', 2) AS BIGINT) AS claim_number FROM ("
        'SELECT ctl.*, nullif(regexp_extract(parameters, \'"client_id":"([^"]*)"\', 1), \'\') AS client_id,'
        " TRY_CAST(regexp_extract(parameters, '\"lease_end_s\":([0-9]+)', 1) AS BIGINT) AS lease_end_s,"
        " {explode}(split(regexp_extract(parameters, '\"claims\":[{{]([^}}]*)[}}]', 1), ',')) AS item"
        " FROM ctl WHERE action IN ('claim', 'renew', 'release')) i WHERE item <> ''",
        ("ctl",),
    ),
    "ctl_observed": _items("observed", relation="ctl_imports"),
    "ctl_files": _items("files"),
    "ctl_replaced": BaseSql(
        "SELECT shard, commit_id, action, read_version, store_timestamp, replace(item, '\"', '') AS file FROM ("
        "SELECT shard, commit_id, action, read_version, store_timestamp,"
        " {explode}(split(regexp_extract(parameters, '\"replaced\":.([^]]*)', 1), ',')) AS item"
        " FROM ctl WHERE action = 'compact') i WHERE item <> ''",
        ("ctl",),
    ),
    # As for ctl_claims; an item is ``"min/Orders/broker-a/0":[0,225``. The ranges are the last parameter. Before them
    # are those that groups have lost, by group, and a group may be named ``removed``.
    "ctl_removed": BaseSql(
        "SELECT shard, commit_id, action, read_version, store_timestamp, request_id, actor, actor_source, reason,"
        " url_decode(split_part(app_id, '/', 2)) AS topic, url_decode(split_part(app_id, '/', 3)) AS broker_name,"
        " TRY_CAST(split_part(app_id, '/', 4) AS INT) AS queue_id,"
        " TRY_CAST(split_part(offsets, ',', 1) AS BIGINT) AS begin_offset,"
        " TRY_CAST(split_part(offsets, ',', 2) AS BIGINT) AS end_offset FROM ("
        "SELECT i.*, split_part(item, '\"', 2) AS app_id, regexp_extract(item, '([0-9]+,[0-9]+)', 1) AS offsets FROM ("
        "SELECT ctl.*, {explode}(split(regexp_extract(parameters, '\"removed\":[{{]([^}}]*)[}}][}}]$', 1), '],')) AS item"
        " FROM ctl WHERE action = 'retention') i WHERE item <> '') a",
        ("ctl",),
    ),
    "segments": BaseSql(
        f"SELECT {_names(tables.CONSUMEQUEUE, 'end_offset')}, base_offset + count AS end_offset FROM ctl_produced",
        ("ctl_produced",),
    ),
    "offset_moves": BaseSql(
        f"SELECT {_MOVE}, begin_offset AS from_offset, end_offset AS to_offset FROM ctl_consumed WHERE action <> 'redrive'"
        f" UNION ALL SELECT {_MOVE}, from_offset, to_offset FROM ctl_moved",
        ("ctl_consumed", "ctl_moved"),
    ),
}
"""In the order in which they are made."""


def base_needs(names: Iterable[str]) -> set[str]:
    """The relations, and the relations below them."""
    needed = set(names)
    for name, base in reversed(BASE_SQL.items()):
        if name in needed:
            needed.update(base.needs)
    return needed


# --- types -----------------------------------------------------------------------------------------------------------

_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
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
