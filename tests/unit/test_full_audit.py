"""What the tasks of a full audit get and find, without a store."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_store.lake.audit.file_content import SEGMENTS, ContentJob, ContentTask, read_content
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.audit.full import origins_of, segments_by_file
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
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


@pytest.mark.parametrize(("has_filters", "wrong"), [(True, {Problem.PROPERTIES_DIFFER}), (False, set())])
def test_a_file_without_single_keys_is_wrong_where_a_search_looks_into_its_filters(
    has_filters: bool, wrong: set[Problem], tmp_path: Path
) -> None:
    """One of an earlier version has neither, and a search reads its rows."""
    rows = pa.Table.from_pylist([{"keys": "a b", "properties": [("KEYS", "a b")], "tags_code": 0}], schema=tables.MSG)
    pq.write_table(rows, tmp_path / "f.parquet", bloom_filter_options={"keys": True} if has_filters else None)
    job = ContentJob(root=Root.parse(str(tmp_path)), table=".")
    content = read_content(job, ContentTask(path="f.parquet", kind="msg", sha256=None), "")
    assert (content.error, {one.problem for one in content.problems}) == (None, wrong)
