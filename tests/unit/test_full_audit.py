"""What the tasks of a full audit get and find, without a store."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_store.lake.audit.file_content import BIRTHS, SEGMENTS, ContentJob, ContentTask, read_content
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.audit.full import births_of, origins_of, segments_by_file
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.message.message import MessageQueue

QUEUE = MessageQueue("Orders", "broker-a", 0)
LEVEL_QUEUE = MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 2)
NOTES = MessageQueue("Notes", "lake-broker-a", 0)
SECOND = MessageQueue("rmq_sys_wheel_timer", "lake-broker-a~", 88)
SLOT = MessageQueue("rmq_sys_wheel_timer", "lake-broker-a~", 512 + 234)
DUE_MS = 1_000_000_600_000
"""In the second 88 of 512."""
SLOT_MS = 256_000


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
    assert len(pickle.dumps(by_file["kind=msg/00007.parquet"])) < 3_000


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


Row = dict[str, object]
TIMES = (50, 10, 30)
ROWS: list[Row] = [{"store_timestamp": ms, "tags_code": 0} for ms in TIMES]
WAITING: list[Row] = [{"store_timestamp": ms, "tags_code": 100 + ms, "deliver_at": 100 + ms} for ms in TIMES]
FROM_10_TO_50 = {"min_store_timestamp": 10, "max_store_timestamp": 50}


def of_timer(due_ms: int) -> Row:
    return {"tags_code": 0, "properties": [("TIMER_OUT_MS", str(due_ms - 1000))]}


def births(*pairs: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(BIRTHS.names, pair, strict=True)) for pair in pairs], schema=BIRTHS)


def facts(
    tmp_path: Path, queue: MessageQueue, rows: Sequence[Row], born: pa.Table | None = None, **said: object
) -> list[tuple[str, object]]:
    """What is named of a file with these rows. ``born``: when its commits were made; ``said``: of its segment."""
    place = {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
    stored = "store_timestamp" in rows[0]
    each = [
        place | {"queue_offset": 10 + n if stored else None, "rel": n, "properties": []} | row
        for n, row in enumerate(rows)
    ]
    if queue.broker_name.startswith("lake-"):
        each = [
            {"body_crc": 0, "magic": -626843481, "sys_flag": 0, "flag": 0, "reconsume_times": 0} | row for row in each
        ]
    pq.write_table(pa.Table.from_pylist(each, schema=tables.MSG), tmp_path / "f.parquet")
    segment = place | {"base_offset": 10, "end_offset": 10 + len(rows), "first_row": 0, "rel": 0} | said
    task = ContentTask(
        path="f.parquet",
        kind="msg",
        sha256=None,
        segments=pa.Table.from_pylist([segment], schema=SEGMENTS),
        births=births() if born is None else born,
    )
    content = read_content(ContentJob(root=Root.parse(str(tmp_path)), table="."), task, "")
    assert content.error is None
    return [(str(one.detail), (one.begin, one.end)) for one in content.problems]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (FROM_10_TO_50, []),
        (FROM_10_TO_50 | {"trimmed": True}, []),
        (FROM_10_TO_50 | {"max_store_timestamp": 51}, [("of max_store_timestamp", (10, 13))]),
        (FROM_10_TO_50 | {"min_store_timestamp": 9}, [("of min_store_timestamp", (10, 13))]),
        ({"min_store_timestamp": 9, "max_store_timestamp": 51, "trimmed": True}, []),
        (
            FROM_10_TO_50 | {"min_store_timestamp": 11},
            [("of store_timestamp", (11, 12)), ("of min_store_timestamp", (10, 13))],
        ),
        (FROM_10_TO_50 | {"max_store_timestamp": 49, "trimmed": True}, [("of store_timestamp", (10, 11))]),
        (FROM_10_TO_50 | {"tags_codes": [0, 7]}, []),
        (FROM_10_TO_50 | {"tags_codes": [7]}, [("of tags_codes", (10, 13))]),
    ],
)
def test_a_segment_has_the_times_and_the_tags_codes_of_its_rows(
    said: dict[str, object], expected: list[tuple[str, object]], tmp_path: Path
) -> None:
    """Where messages were removed from its begin, it may have the times of these too."""
    assert facts(tmp_path, QUEUE, ROWS, **said) == expected


def test_a_moved_message_without_its_time_is_found(tmp_path: Path) -> None:
    rows: list[Row] = [*ROWS, {"store_timestamp": None, "tags_code": 0}]
    assert facts(tmp_path, QUEUE, rows, **FROM_10_TO_50) == [("of store_timestamp", (13, 14))]


@pytest.mark.parametrize(
    ("times", "commits", "expected"),
    [
        ((10, 20, 30), "abc", []),
        ((10, 11, 30), "abc", [("of store_timestamp", (11, 12))]),
        ((10, 30, 30), "abc", [("of store_timestamp", (11, 12))]),
        ((11, 21, 31), "abc", [("of store_timestamp", (10, 13))]),
        ((10, 11, 30), "axc", [("of commit_id", (11, 12))]),
        ((10, None, 30), "abc", [("of store_timestamp", (11, 12))]),
    ],
)
def test_a_moved_message_that_was_born_here_has_the_time_of_its_commit(
    times: Sequence[int | None], commits: str, expected: list[tuple[str, object]], tmp_path: Path
) -> None:
    """Also where it is between those of its segment, and where the segment has the same wrong times."""
    rows: list[Row] = [
        {"store_timestamp": ms, "commit_id": commit_id, "tags_code": 0}
        for ms, commit_id in zip(times, commits, strict=True)
    ]
    said = {"rel": None, "min_store_timestamp": times[0], "max_store_timestamp": times[-1]}
    born = births(("a", 10), ("b", 20), ("c", 30))
    assert facts(tmp_path, NOTES, rows, born, **said) == expected


def test_a_task_gets_the_commits_of_its_file_only() -> None:
    """By the least and the greatest commit id in the statistics, where there are some."""
    every = births(*((f"{n:032x}", n) for n in range(2_000)))
    joined = segments(1).drop_columns("file")
    of_file = births_of({"min_commit_id": f"{7:032x}", "max_commit_id": f"{9:032x}"}, joined, every)
    assert of_file.column("store_timestamp").to_pylist() == [7, 8, 9]
    assert len(pickle.dumps(of_file)) < 3_000
    assert births_of({"min_commit_id": None, "max_commit_id": None}, joined, every) == every
    known = joined.set_column(joined.column_names.index("commit_id"), "commit_id", pa.array(["a"]))
    assert len(births_of({"min_commit_id": None, "max_commit_id": None}, known, every)) == 0


@pytest.mark.parametrize(
    ("due_ms", "expected"),
    [
        (110, []),
        (109, [("of deliver_at", (10, 13))]),
        (111, [("of deliver_at", (11, 12)), ("of deliver_at", (10, 13))]),
    ],
)
def test_a_segment_of_a_level_queue_of_a_broker_is_due_with_its_first_row(
    due_ms: int, expected: list[tuple[str, object]], tmp_path: Path
) -> None:
    found = facts(tmp_path, LEVEL_QUEUE, WAITING, **FROM_10_TO_50, deliver_at=due_ms)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("queue", "said_ms", "row_ms", "is_sound"),
    [
        (SECOND, DUE_MS, DUE_MS, True),
        (SECOND, DUE_MS - 512_000, DUE_MS, False),
        (SLOT, DUE_MS // SLOT_MS * SLOT_MS, DUE_MS, True),
        (SLOT, (DUE_MS // SLOT_MS - 1024) * SLOT_MS, DUE_MS, False),
    ],
)
def test_a_message_in_the_timer_is_due_in_the_slot_of_its_segment(
    queue: MessageQueue, said_ms: int, row_ms: int, is_sound: bool, tmp_path: Path
) -> None:
    """The queue repeats every 512 s, or every 1024 slots."""
    expected = [] if is_sound else [("of deliver_at", (10, 11))]
    assert facts(tmp_path, queue, [of_timer(row_ms)], deliver_at=said_ms) == expected


@pytest.mark.parametrize("text", [None, "soon"])
def test_a_message_in_the_timer_without_its_time_is_found(text: str | None, tmp_path: Path) -> None:
    row = of_timer(DUE_MS) | {"properties": [] if text is None else [("TIMER_OUT_MS", text)]}
    assert facts(tmp_path, SECOND, [row], deliver_at=DUE_MS) == [("of deliver_at", (10, 11))]
