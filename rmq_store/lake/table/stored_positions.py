"""The positions of a checkpoint: Arrow columns, of which only the groups and topics that are looked at become objects.

Every command opens the log, and most look at one group: a shard with 1,000 groups has more than 100,000 positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.position_index import Txns, indexed
from rmq_store.commit.positions import Positions

STORED = pa.schema([("app_id", pa.string()), ("value", pa.int64()), ("updated_ms", pa.int64())])
"""A row for each ``txn`` action, deleted positions included; ``updated_ms`` is 0 where it is not known."""


class StoredTxns(Mapping[str, Txns]):
    """A part of a ``position_index.Index``: what it has under a kind and the part after it, by the next part."""

    def __init__(self, whole: pa.Table, begin: int, end: int) -> None:
        """``whole``: schema STORED; its rows ``[begin, end)``."""
        self._whole = whole
        self._begin = begin
        self._end = end

    @property
    def rows(self) -> pa.Table:
        """Schema STORED."""
        return self._whole.slice(self._begin, self._end - self._begin)

    @cached_property
    def _read(self) -> Mapping[str, Txns]:
        app_ids, values, updated_ms = (column.to_pylist() for column in self.rows.columns)
        index = indexed(dict(zip(app_ids, values, strict=True)), dict(zip(app_ids, updated_ms, strict=True)))
        ((under_kind),) = index.values()
        ((read),) = under_kind.values()
        return read

    def __getitem__(self, part: str) -> Txns:
        return self._read[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def __reduce__(self) -> tuple[type, tuple[Mapping[str, Txns]]]:
        return dict, (self._read,)


def stored_positions(version: int, app_ids: pa.Array, values: pa.Array, updated_ms: pa.Array) -> Positions:
    """The positions of a version, from the columns of its ``txn`` actions."""
    parts = pc.split_pattern(app_ids, "/", max_splits=2)
    places = pc.binary_join(pc.list_slice(parts, 0, 2), "/").dictionary_encode()
    place_of = places.indices.to_numpy()
    order = pa.array(np.argsort(place_of, kind="stable"))
    columns = [app_ids.cast(pa.string()), values.cast(pa.int64()), pc.fill_null(updated_ms.cast(pa.int64()), 0)]
    whole = pa.table(columns, schema=STORED).take(order)
    ends = np.cumsum(np.bincount(place_of, minlength=len(places.dictionary))).tolist()
    index: dict[str, dict[str, Mapping[str, Txns]]] = {}
    for place, begin, end in zip(places.dictionary.to_pylist(), [0, *ends], ends, strict=False):
        kind, _, first = place.partition("/")
        index.setdefault(kind, {})[first] = StoredTxns(whole, begin, end)
    return Positions.of_index(version, index)
