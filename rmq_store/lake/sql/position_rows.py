"""The relation ``positions``: all positions as rows, their application ids decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.position_index import Txns
from rmq_store.commit.positions import ABSENT, PositionKind, Positions
from rmq_store.lake.table.stored_positions import STORED, StoredTxns

SHARD = pa.field("shard", pa.string())
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
_OF_GROUP = ("group_name", "topic", "broker_name", "queue_id")
_OF_QUEUE = ("topic", "broker_name", "queue_id")
_OF_BROKER = ("broker_name",)
_PARTS: Mapping[PositionKind, tuple[str, ...]] = {
    PositionKind.OFFSET: _OF_GROUP,
    PositionKind.PASS: _OF_GROUP,
    PositionKind.BLOCKED: _OF_GROUP,
    PositionKind.CLAIM: _OF_GROUP,
    PositionKind.EPOCH: _OF_GROUP,
    PositionKind.SUBSCRIPTION: _OF_GROUP,
    PositionKind.REDRIVES: _OF_GROUP,
    PositionKind.DELETED: _OF_GROUP,
    PositionKind.MAX: _OF_QUEUE,
    PositionKind.MIN: _OF_QUEUE,
    PositionKind.ARCHIVED: _OF_QUEUE,
    PositionKind.IMPORT: _OF_BROKER,
    PositionKind.CUTOVER: _OF_BROKER,
    PositionKind.DIVERGED: _OF_BROKER,
}
"""The columns for the parts of an application id after its kind; an id may have fewer parts."""


def position_rows(shard: str, positions: Positions, group: str | None = None) -> pa.Table:
    """One row per present position of a shard (schema POSITIONS). ``group``: without those of other groups."""
    stored = _stored(positions, group)
    stored = stored.filter(pc.not_equal(stored.column("value"), ABSENT)).combine_chunks()
    ids, values, updated_ms = (
        column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in stored.columns
    )
    parts = pc.split_pattern(ids, "/")
    kinds = _part(parts, 0)
    columns = {
        "shard": pa.repeat(pa.scalar(shard, pa.string()), len(ids)),
        "app_id": ids,
        "kind": kinds,
        "value": values,
        "updated_ms": pc.if_else(pc.equal(updated_ms, 0), None, updated_ms),
    }
    for name in _OF_GROUP:
        decoded = pa.nulls(len(ids), pa.string())
        for place in range(1, 1 + len(_OF_GROUP)):
            of_kinds = [str(kind) for kind, names in _PARTS.items() if names[place - 1 : place] == (name,)]
            if of_kinds:
                decoded = pc.if_else(pc.is_in(kinds, pa.array(of_kinds)), _decoded(_part(parts, place)), decoded)
        columns[name] = decoded.cast(POSITIONS.field(name).type)
    return pa.table({name: columns[name] for name in POSITIONS.names}, schema=POSITIONS)


def _stored(positions: Positions, group: str | None) -> pa.Table:
    """Schema STORED. What comes from a checkpoint is taken as its columns."""
    tables, txns = [STORED.empty_table()], list[tuple[str, int, int]]()
    for part in _parts(positions, group):
        if isinstance(part, StoredTxns):
            tables.append(part.rows)
        else:
            txns += ((app_id, *txn) for under in part.values() for app_id, txn in under.items())
    app_ids, values, updated_ms = zip(*txns, strict=True) if txns else ((), (), ())
    changed = [pa.array(app_ids, pa.string()), pa.array(values, pa.int64()), pa.array(updated_ms, pa.int64())]
    return pa.concat_tables([*tables, pa.table(changed, schema=STORED)])


def _parts(positions: Positions, group: str | None) -> Iterator[Mapping[str, Txns]]:
    if group is None:
        return positions.parts()
    return chain.from_iterable(
        positions.parts(kind, group if _PARTS.get(kind) == _OF_GROUP else None) for kind in PositionKind
    )


def _part(parts: pa.ListArray, place: int) -> pa.Array:
    """An item of each list, null where the list is shorter."""
    return pc.list_slice(parts, place, place + 1, return_fixed_size_list=True).flatten()


def _decoded(encoded: pa.Array) -> pa.Array:
    """Few different names are in many ids, so each is decoded once."""
    names = encoded.dictionary_encode()
    decoded = pa.array([unquote(name) for name in names.dictionary.to_pylist()], pa.string())
    return decoded.take(names.indices)
