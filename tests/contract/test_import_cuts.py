"""Where a commit log file is cut into tasks, and how their results come."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.commit.ctl import Actor
from rmq_store.lake.broker import import_tasks
from rmq_store.lake.broker.import_job import ImportJob, ImportResult, ImportTask
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_slice import import_file
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.broker.import_tasks import cut_points, record_places, run_tasks
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.utils.host import Host
from tests.unit.test_entry_reader import QUEUES, reader_of, source_of

FILE_BYTES = 1_048_576
BROKER = "broker-a"


@given(st.lists(st.integers(1, 5000)), st.integers(1, 1000), st.integers(0, 100), st.integers(100, 6000))
def test_cuts_are_places_and_no_chunk_is_longer_than_the_places_make_it(
    numbers: list[int], step: int, begin: int, end: int
) -> None:
    places = np.unique(np.array([n for n in numbers if begin < n < end], np.int64))
    cuts = cut_points(begin, end, places, step)
    assert set(cuts) <= set(places.tolist())
    edges = [begin, *cuts]
    assert edges == sorted(set(edges))
    for before, after in pairwise(edges):
        between = places[(places > before) & (places < after)]
        assert after - before <= step or not len(between)
    assert not len(places) or places[-1] - edges[-1] <= step


def test_the_places_are_those_that_the_entries_of_a_queue_name() -> None:
    source = source_of(written=120)
    files = reader_of(source).files(QUEUES[0])
    assert files is not None
    source.reads.clear()
    assert record_places(source, files, 60, 95).tolist() == list(range(61, 95))
    assert len(source.reads) <= 4  # the heads of some files, and the one that holds the places
    assert record_places(source, files, 100, 10_000).tolist() == list(range(101, 120))
    assert record_places(source, files, 119, 10_000).tolist() == []


# --- the results ------------------------------------------------------------------------------------------------------


@dataclass
class RoundsEngine:
    """Runs rounds of tasks in threads; ``run`` replaces what a task does."""

    run: Callable[[ImportTask], ImportResult]
    name: str = "rounds"
    slots: int = 2
    on_cluster: bool = False
    ran: list[list[int]] = field(default_factory=list)

    def __call__(self, run: Any, job: Any, tasks: Sequence[Any]) -> list[Any]:
        self.ran.append([task.number for task in tasks])
        return [self.run(task) for task in reversed(tasks)]


def result_of(task: ImportTask, **changes: Any) -> ImportResult:
    values: dict[str, Any] = {"begin": task.begin, "end": task.end, "full": True, "messages": 1}
    return ImportResult(number=task.number, files=(), produced=(), **(values | changes))


def chunks(count: int, file: MappedFile) -> list[ImportTask]:
    return [ImportTask(n, file, 10 * n, 10 * n + 10, is_cut=n > 0) for n in range(count)]


def test_tasks_of_the_next_round_run_while_a_slow_one_of_this_round_does_and_results_are_in_order() -> None:
    """Task 0 waits for one of the second round."""
    later = threading.Event()

    def run(task: ImportTask) -> ImportResult:
        if task.number == 0:
            assert later.wait(60), "the second round waits for the first"
        if task.number >= 4:
            later.set()
        return result_of(task)

    job: ImportJob = None  # type: ignore[assignment]
    seen: list[int] = []
    results = run_tasks(job, chunks(9, MappedFile("f", 0, 90)), RoundsEngine(run), seen.append)
    assert [result.number for result in results] == list(range(9))
    assert seen == [10 * n for n in range(1, 10)]


@pytest.mark.parametrize("bad", [{"end": 25}, {"full": False}, {"failed": True, "full": False, "end": 20}, {"end": 90}])
def test_a_file_of_which_a_chunk_ends_elsewhere_is_read_again_by_one_task(bad: dict[str, Any]) -> None:
    files = [MappedFile("a", 0, 40), MappedFile("b", 40, 40)]
    tasks = chunks(4, files[0]) + [
        ImportTask(task.number + 4, files[1], task.begin + 40, task.end + 40, task.is_cut)
        for task in chunks(4, files[1])
    ]

    def run(task: ImportTask) -> ImportResult:
        return result_of(task, **(bad if task.number == 2 else {}))

    engine = RoundsEngine(run)
    results = run_tasks(None, tasks, engine)  # type: ignore[arg-type]
    assert engine.ran[-1] == [0]
    assert [(result.begin, result.end) for result in results] == [(0, 40)] + [
        (40 + 10 * n, 50 + 10 * n) for n in range(4)
    ]


# --- imports in chunks ------------------------------------------------------------------------------------------------


def load(source: Path, lake: Path) -> tuple[LakeStore, ImportReport]:
    host = Host()
    store, _ = LakeStore.init(Root.parse(str(lake)))
    request = ImportRequest(broker_name=BROKER, shard_name="s1", request_id="2026-01-01-i", actor=Actor("t", "t"))
    return store, import_store(store, Root.parse(str(source)), request, host, LocalEngine(host))


def content(store: LakeStore) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All messages but the names of commits and files, and the positions but claims."""
    rows = query(store, "SELECT * FROM msg ORDER BY commit_log_offset").to_pylist()
    for row in rows:
        for name in ("commit_id", "part", "rel"):
            del row[name]
    (shard,) = store.shards()
    items = shard.positions().items()
    return rows, {app_id: value for app_id, (value, _) in items if not app_id.startswith("own/")}


def counted_tasks(monkeypatch: pytest.MonkeyPatch) -> list[ImportTask]:
    real, tasks = import_file, list[ImportTask]()

    def run(job: ImportJob, task: ImportTask, attempt: str) -> ImportResult:
        tasks.append(task)
        return real(job, task, attempt)

    monkeypatch.setattr(import_tasks, "import_file", run)
    return tasks


@pytest.mark.parametrize("name", ["market-clean", "market-killed", "market-trimmed"])
def test_an_import_in_chunks_is_the_import_in_files(
    name: str, broker_store: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = broker_store(name)
    in_files, report = load(source, tmp_path / "files")
    tasks = counted_tasks(monkeypatch)
    monkeypatch.setattr(import_tasks, "CHUNK_BYTES", 100_000)
    in_chunks, again = load(source, tmp_path / "chunks")
    assert content(in_chunks) == content(in_files)
    assert (again.messages, again.queues, again.end) == (report.messages, report.queues, report.end)
    assert sum(task.is_cut for task in tasks) > 9
    assert len({task.begin for task in tasks}) == len(tasks)  # none was read again


@pytest.mark.parametrize("shift", [1, 28])
def test_a_cut_that_is_no_record_is_detected_and_the_file_is_read_by_one_task(
    shift: int, broker_store: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = broker_store("market-clean")
    in_files, _ = load(source, tmp_path / "files")
    tasks = counted_tasks(monkeypatch)
    monkeypatch.setattr(import_tasks, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(import_tasks, "record_places", lambda *arguments: record_places(*arguments) + shift)
    in_chunks, _ = load(source, tmp_path / "chunks")
    assert content(in_chunks) == content(in_files)
    assert any(task.is_cut for task in tasks)
    assert [task for task in tasks if not task.is_cut and (task.begin, task.end) == (0, FILE_BYTES)]


def test_a_record_in_the_body_of_another_is_no_place_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names its own place, as a record does, and its check sum is right."""
    values: dict[str, Any] = {"topic": "T", "queue_id": 0, "properties": {}}
    values |= {"born_timestamp": 1, "store_timestamp": 1_700_000_000_000}
    head = 88  # bytes of a record before its body
    first = encode(new_record(**values, queue_offset=0, commit_log_offset=0, stored_body=b"x" * 500))
    inner_at = len(first) + head
    inner = encode(new_record(**values, queue_offset=9, commit_log_offset=inner_at, stored_body=b"y" * 300))
    second = encode(new_record(**values, queue_offset=1, commit_log_offset=len(first), stored_body=inner))
    assert second.find(inner) == head
    log = first + second
    folder = tmp_path / "broker"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "consumequeue" / "T" / "0").mkdir(parents=True)
    (folder / "commitlog" / f"{0:020}").write_bytes(log + bytes(FILE_BYTES - len(log)))
    (folder / "consumequeue" / "T" / "0" / f"{0:020}").write_bytes(bytes(2000))
    tasks = counted_tasks(monkeypatch)
    monkeypatch.setattr(import_tasks, "CHUNK_BYTES", 200)
    monkeypatch.setattr(import_tasks, "record_places", lambda *_: np.array([len(first), inner_at, len(log) + 300]))
    store, report = load(folder, tmp_path / "lake")
    assert report.messages == 2
    assert [row["queue_offset"] for row in content(store)[0]] == [0, 1]
    assert [(task.begin, task.is_cut) for task in tasks] == [
        (0, False),
        (len(first), True),
        (inner_at, True),
        (len(log) + 300, True),
        (0, False),
    ]


def test_a_file_of_records_that_have_a_zero_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {"topic": "T", "queue_id": 0, "stored_body": b"x" * 300, "properties": {"TAGS": "a\0"}}
    values |= {"born_timestamp": 1, "store_timestamp": 1_700_000_000_000}
    log = bytearray()
    for number in range(9):
        record = new_record(**values, queue_offset=number, commit_log_offset=len(log))
        log += encode(record)
    rest = FILE_BYTES - len(log)
    log += struct.pack(">iI", rest, 0xCBD43194) + bytes(rest - 8)
    folder = tmp_path / "broker"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "consumequeue" / "T" / "0").mkdir(parents=True)
    (folder / "commitlog" / f"{0:020}").write_bytes(log)
    (folder / "consumequeue" / "T" / "0" / f"{0:020}").write_bytes(bytes(2000))
    tasks = counted_tasks(monkeypatch)
    monkeypatch.setattr(import_tasks, "CHUNK_BYTES", 500)
    places = np.arange(1, 9) * record.store_size
    monkeypatch.setattr(import_tasks, "record_places", lambda *_: places)
    _, report = load(folder, tmp_path / "lake")
    assert report.messages == 9
    assert sum(task.is_cut for task in tasks) > 5
    assert len({task.begin for task in tasks}) == len(tasks)
