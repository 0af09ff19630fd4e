"""Retries from before their group was deleted: ``is_void`` of ``consumer/consume_result.py`` over columns.

``void_before`` is the group's epoch at its last delete, for the queues of its retry topic. It is None where no message can
be void; then the epoch is not read.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.consumer.consume_result import is_void
from rmq_store.lake.read.filter import Mask
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS


def with_epoch(columns: list[str] | None, void_before: int | None) -> list[str] | None:
    """The columns to read: with the epoch where messages may be void. None: all columns."""
    return columns if void_before is None else [*(MESSAGE_COLUMNS if columns is None else columns), "epoch"]


def without_epoch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without the epoch, as it is read where no message can be void."""
    return batch.select([name for name in batch.schema.names if name != "epoch"])


def void_rows(batch: pa.RecordBatch, void_before: int) -> Mask:
    """``is_void`` of every row. Files of older versions, and imported ones, have no epoch."""
    if "epoch" not in batch.schema.names:
        return np.full(batch.num_rows, is_void(None, void_before), dtype=np.bool_)
    epochs = batch.column("epoch")
    values = epochs.unique().to_pylist()
    void = pa.array([value for value in values if is_void(value, void_before)], pa.int64())
    mask: Mask = pc.is_in(epochs, value_set=void).to_numpy(zero_copy_only=False)
    return mask
