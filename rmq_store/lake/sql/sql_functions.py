"""The SQL functions that the views need in every engine, over Arrow arrays: ``audit`` recomputes hash sums with them.

This module imports little: a Spark worker loads it and nothing of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.positions import QueueRange
from rmq_store.lake.table.evidence import hashes, tally_of_range
from rmq_store.message.message import MessageQueue


def offset_hash(offsets: pa.Array) -> pa.Array:
    """SQL ``offset_hash(bigint)``: the hash of an offset, as 64 signed bits like in ctl rows."""
    hashed = hashes(_numbers(offsets)).view(np.int64)
    return pa.array(hashed, mask=~_valid(offsets))


def range_hash(begins: pa.Array, ends: pa.Array) -> pa.Array:
    """SQL ``range_hash(begin, end)``: the hash sum of all offsets of a range, signed; null for an invalid range and for
    one that is too long."""
    begin, end = _numbers(begins), _numbers(ends)
    valid = _valid(begins) & _valid(ends) & (begin >= 0) & (begin <= end)
    length = np.where(valid, end - begin, 0)
    valid &= length <= LONGEST_RANGE
    length = np.where(valid, length, 0)
    sums = np.zeros(len(begin), dtype=np.uint64)
    short = np.flatnonzero((length > 0) & (length <= _SHORT))
    if len(short):
        starts = np.cumsum(length[short]) - length[short]
        offsets = np.arange(length[short].sum()) + np.repeat(begin[short] - starts, length[short])
        sums[short] = np.add.reduceat(hashes(offsets), starts)
    for at in np.flatnonzero(length > _SHORT):
        sums[at] = tally_of_range(QueueRange(_NO_QUEUE, int(begin[at]), int(end[at])), _CHECK.get()).hash_sum
    return pa.array(sums.view(np.int64), mask=~valid)


LONGEST_RANGE: Final = 1 << 36
"""A consume queue of so many entries has 1.4 TB, and to hash them takes ten minutes, also for who committed the range. A longer
one is damaged, and its hash sum may take years."""

_SHORT = 256
"""Ranges of up to so many offsets are hashed together: most ranges are short, and one call for each takes longer."""

_NO_QUEUE = MessageQueue("", "", 0)


def _numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return numbers.astype(np.int64, copy=False)


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return valid


_CHECK: ContextVar[Callable[[], object]] = ContextVar("_CHECK", default=lambda: None)


def checked(function: Callable[..., pa.Array], check: Callable[[], object]) -> Callable[..., pa.Array]:
    """The function, which calls ``check`` again and again. DuckDB cannot interrupt a call of Python, so this has to raise."""

    @wraps(function)  # DuckDB counts the parameters
    def call(*columns: pa.Array) -> pa.Array:
        token = _CHECK.set(check)
        try:
            return function(*columns)
        finally:
            _CHECK.reset(token)

    return call


FUNCTIONS: Mapping[str, tuple[Callable[..., pa.Array], int]] = {
    "offset_hash": (offset_hash, 1),
    "range_hash": (range_hash, 2),
}
"""Scalar functions of both engines over BIGINT, with their number of arguments."""
