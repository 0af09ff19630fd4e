"""Property edits on whole columns: ``PropertyEdits.apply`` for a map array, without a dict per message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Values: TypeAlias = "str | pa.Array"
"""One value for all rows, or one per row."""


def edit_maps(
    maps: pa.Array, put: Mapping[str, Values], put_if_absent: Mapping[str, Values], remove: Sequence[str]
) -> pa.Array:
    """The maps with some names removed, some set, and some set only where they were missing. A null map is empty."""
    lists = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    rows = pc.list_parent_indices(lists).to_numpy()
    entries = pc.list_flatten(lists)
    keys, values = pc.struct_field(entries, "key"), pc.struct_field(entries, "value")

    gone = pa.array([*remove, *put], pa.string())
    kept = pc.invert(pc.is_in(keys, value_set=gone))
    missing = {name: np.setdiff1d(np.arange(len(maps)), rows[_equal(keys, name)]) for name in put_if_absent}

    new_rows = [rows[kept.to_numpy(zero_copy_only=False)]]
    new_keys, new_values = [keys.filter(kept)], [values.filter(kept)]
    for name, value in put.items():
        _append(new_rows, new_keys, new_values, np.arange(len(maps)), name, value)
    for name, value in put_if_absent.items():
        if name not in put and name not in remove:
            _append(new_rows, new_keys, new_values, missing[name], name, value)

    all_rows = np.concatenate(new_rows)
    order = pa.array(np.argsort(all_rows, kind="stable"))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(all_rows, minlength=len(maps)))]).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.concat_arrays(new_keys).take(order), pa.concat_arrays(new_values).take(order)
    )


def _equal(keys: pa.Array, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.equal(keys, name).to_numpy(zero_copy_only=False)
    return found


def _append(
    rows: list[np.ndarray], keys: list[pa.Array], values: list[pa.Array], where: np.ndarray, name: str, value: Values
) -> None:
    rows.append(where)
    keys.append(_repeated(name, len(where)))
    values.append(_repeated(value, len(where)) if isinstance(value, str) else value.take(pa.array(where)))


def _repeated(value: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows)
