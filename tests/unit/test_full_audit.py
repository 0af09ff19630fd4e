"""What the tasks of a full audit get and find, without a store."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa

from rmq_store.lake.audit.file_content import SEGMENTS
from rmq_store.lake.audit.full import origins_of, segments_by_file
from rmq_store.message.message import MessageQueue

QUEUE = MessageQueue("Orders", "broker-a", 0)


def segments(files: int) -> pa.Table:
    """One segment of ten messages in each file."""
    rows = [
        {"topic": "Orders", "broker_name": "broker-a", "queue_id": 0, "base_offset": 10 * n, "end_offset": 10 * n + 10}
        | {"first_row": 0, "file": f"kind=msg/{n:05}.parquet"}
        for n in range(files)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([*SEGMENTS, ("file", pa.string())]))


def test_a_task_gets_the_segments_of_its_file_only() -> None:
    """Arrow pickles a slice with the whole table behind it."""
    by_file = segments_by_file(segments(2_000))
    assert len(by_file) == 2_000
    assert by_file["kind=msg/00007.parquet"].to_pylist()[0]["base_offset"] == 70
    assert len(pickle.dumps(by_file["kind=msg/00007.parquet"])) < 2_000


def test_a_task_gets_the_origins_in_its_file_only() -> None:
    file = segments(3).slice(1, 1)
    origins = {QUEUE: np.array([3, 9, 10, 15, 20]), MessageQueue("Other", "broker-a", 0): np.array([12])}
    (of_file,) = origins_of(file, origins).items()
    assert (of_file[0], of_file[1].tolist()) == (QUEUE, [10, 15])
    assert origins_of(segments(3).slice(1, 1), {}) == {}
