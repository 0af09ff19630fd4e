"""Edits and lookups of properties on whole columns: ``PropertyEdits.apply`` for a map array, without a dict per message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Values: TypeAlias = "str | pa.Array"
"""One value for all rows, or one per row."""


class MapLookup:
    """Values of a map array by name. Several names cost much less than as many ``pc.map_lookup``."""

    def __init__(self, maps: pa.MapArray) -> None:
        bounds = np.asarray(maps.offsets)
        begin, length = int(bounds[0]), int(bounds[-1] - bounds[0])  # a slice has the entries of all rows
        self._bounds = bounds - begin
        self._names = maps.keys.slice(begin, length).dictionary_encode()
        self._values = maps.items.slice(begin, length)

    def first(self, name: str) -> pa.Array:
        """The first value of the name in each map; null without one."""
        return self._chosen(name, slice(None, None, -1))

    def last(self, name: str) -> pa.Array:
        """The last value of the name in each map; null without one."""
        return self._chosen(name, slice(None))

    def _chosen(self, name: str, order: slice) -> pa.Array:
        number = pc.index(self._names.dictionary, name).as_py()
        entries = np.flatnonzero(np.asarray(self._names.indices) == number)[order]
        at = np.full(len(self._bounds) - 1, -1)
        at[np.searchsorted(self._bounds, entries, side="right") - 1] = entries  # of equal rows the last one stays
        return self._values.take(pa.array(at, mask=at < 0))


def edit_maps(
    maps: pa.Array, put: Mapping[str, Values], put_if_absent: Mapping[str, Values], remove: Sequence[str]
) -> pa.Array:
    """The maps with some names removed, some set, and some set only where they were missing. A null map is empty."""
    lists = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    rows = pc.list_parent_indices(lists).to_numpy()
    entries = pc.list_flatten(lists)
    keys, values = pc.struct_field(entries, "key"), pc.struct_field(entries, "value")

    removed = pa.array([*remove, *put], pa.string())
    kept = pc.invert(pc.is_in(keys, value_set=removed))
    missing = {name: np.setdiff1d(np.arange(len(maps)), rows[_equal(keys, name)]) for name in put_if_absent}

    parts = [(rows[kept.to_numpy(zero_copy_only=False)], keys.filter(kept), values.filter(kept))]
    parts += [_entries(np.arange(len(maps)), name, value) for name, value in put.items()]
    parts += [
        _entries(missing[name], name, value)
        for name, value in put_if_absent.items()
        if name not in put and name not in remove
    ]

    new_rows, new_keys, new_values = zip(*parts, strict=True)
    all_rows = np.concatenate(new_rows)
    order = pa.array(np.argsort(all_rows, kind="stable"))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(all_rows, minlength=len(maps)))]).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.concat_arrays(list(new_keys)).take(order), pa.concat_arrays(list(new_values)).take(order)
    )


def _equal(keys: pa.Array, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.equal(keys, name).to_numpy(zero_copy_only=False)
    return mask


def _entries(rows: np.ndarray, name: str, value: Values) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """One entry for each of these rows: the rows, the keys, the values."""
    values = _repeated(value, len(rows)) if isinstance(value, str) else value.take(pa.array(rows))
    return rows, _repeated(name, len(rows)), values


def _repeated(value: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows)
