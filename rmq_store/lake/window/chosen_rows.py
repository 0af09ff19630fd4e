"""Which rows of a batch a window gives to its listener: one function for concurrent and orderly groups and for dry runs."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import matching
from rmq_store.lake.window.consume_job import NO_OFFSETS, Offsets
from rmq_store.lake.window.void_rows import void_rows, without_epoch


class ChosenRows(NamedTuple):
    """The rows of a batch that the listener gets, and the offsets of the others."""

    offsets: Offsets
    rows: pa.RecordBatch
    void: Offsets
    """Retries from before their group was deleted."""
    filtered: Offsets
    """What does not match the subscription."""


def chosen_rows(
    offsets: Offsets, batch: pa.RecordBatch, subscription: SubscriptionData, void_before: int | None
) -> ChosenRows:
    """``void_before``: see ``void_rows.py``; the batch has the epoch if it is not None."""
    void = filtered = NO_OFFSETS
    if void_before is not None:
        is_void = void_rows(batch, void_before)
        void, offsets, batch = offsets[is_void], offsets[~is_void], without_epoch(batch).filter(pa.array(~is_void))
    matches = matching(batch, subscription) if len(offsets) else None
    if matches is not None:
        filtered, offsets, batch = offsets[~matches], offsets[matches], batch.filter(pa.array(matches))
    return ChosenRows(offsets, batch, void, filtered)
