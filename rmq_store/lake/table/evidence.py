"""The hash sums of ``commit/positions.py`` over arrays: the same numbers, without a Python call per message."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rmq_store.commit.positions import QueueRange, Tally, tally

_CHUNK = 1 << 14  # fits in the cache of a core
_SHORT = 16  # up to so many offsets, hashing one by one is quicker than making an array

Offsets = npt.NDArray[np.int64] | npt.NDArray[np.uint64]


def hashes(offsets: Offsets) -> npt.NDArray[np.uint64]:
    """``offset_hash`` of every offset."""
    z = offsets.astype(np.uint64)
    z += np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def tally_of(offsets: Offsets) -> Tally:
    return Tally(len(offsets), int(hashes(offsets).sum(dtype=np.uint64)))


def tally_of_range(range_: QueueRange, check: Callable[[], object] = lambda: None) -> Tally:
    """The tally of all offsets of a range. ``check``: called again and again, as a long range takes long; may raise."""
    if len(range_) <= _SHORT:
        return tally(range(range_.begin, range_.end))
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for begin in range(range_.begin, range_.end, _CHUNK):
            check()
            chunk = np.arange(begin, min(begin + _CHUNK, range_.end), dtype=np.uint64)
            total += hashes(chunk).sum(dtype=np.uint64)
    return Tally(len(range_), int(total))
