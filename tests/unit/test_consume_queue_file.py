"""Consume queues that are made here: bounds, entries, offset by time; real ones are read by tests/conformance."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.broker_files.consume_queue_file import QueueBounds, list_consume_queues
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData
from rmq_store.log.consume_queue import (
    FILLER,
    BoundaryType,
    ConsumeQueueEntry,
    decode_entries,
    earliest_from_here,
    entry_tags_code,
    latest_so_far,
    max_offset,
    min_offset,
    offset_by_time,
)
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.message.properties import tags_code


def test_an_entry_is_20_bytes_big_endian() -> None:
    entry = ConsumeQueueEntry(0, 117, tags_code("TagA"))
    assert entry.encode().hex() == "000000000000000000000075000000000027a807"
    assert list(decode_entries(entry.encode() * 2)) == [entry, entry]
    assert entry.is_written
    assert not ConsumeQueueEntry(0, 0, 0).is_written


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("T", {"TAGS": "TagA", "DELAY": "3"}, 2598919),
        ("T", {}, 0),
        (SCHEDULE_TOPIC, {"TAGS": "TagA"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "0"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "-1"}, 2598919),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "3"}, 1_000_000 + 30_000),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "99"}, 1_000_000 + 50_000),
        (SCHEDULE_TOPIC, {"TAGS": "TagA", "DELAY": "4"}, 1_000_000 + 1000),
    ],
)
def test_schedule_entries_hold_the_due_time_with_levels_clamped(
    topic: str, properties: dict[str, str], code: int
) -> None:
    levels = {1: 10_000, 2: 20_000, 3: 30_000, 5: 50_000}
    assert entry_tags_code(topic, properties, 1_000_000, levels) == code


def test_a_due_time_beyond_64_bits_is_what_java_makes_of_it() -> None:
    assert entry_tags_code(SCHEDULE_TOPIC, {"DELAY": "1"}, 2**63 - 1, {1: 1000}) == -(2**63) + 999


def test_min_moves_to_the_first_retained_entry_and_to_max_when_none_is_left() -> None:
    entries = {offset: ConsumeQueueEntry(100 * offset, 90, 0) for offset in range(5, 10)}
    for log_min, expected in ((0, 5), (500, 5), (501, 6), (900, 9), (901, 10), (5000, 10)):
        assert min_offset(range(5, 10), entries.__getitem__, log_min) == expected


def test_max_drops_entries_of_records_that_the_log_no_longer_holds_whole() -> None:
    entries = {offset: ConsumeQueueEntry(100 * offset, 90, 0) for offset in range(5, 10)}
    for log_max, expected in ((990, 10), (989, 9), (590, 6), (589, 5), (0, 5)):
        assert max_offset(range(5, 10), entries.__getitem__, log_max) == expected


def test_recovery_extends_a_queue_by_what_the_log_makes() -> None:
    on_disk = QueueBounds(5, 10, 990)
    assert on_disk.with_log(range(7, 12)) == QueueBounds(5, 12, 990)
    assert on_disk.with_log(range(0)) == on_disk
    assert QueueBounds(10, 10, 990).with_log(range(12, 13)) == QueueBounds(12, 13, 990)


@given(times=st.lists(st.integers(0, 20)), timestamp=st.integers(-1, 21), first=st.integers(0, 5))
def test_where_the_clock_stepped_back_the_answer_is_still_the_bound_over_the_rows(
    times: list[int], timestamp: int, first: int
) -> None:
    readable = range(first, first + len(times))
    later, earlier = latest_so_far(times), earliest_from_here(times)
    lower = offset_by_time(readable, lambda offset: later[offset - first], timestamp)
    upper = offset_by_time(readable, lambda offset: earlier[offset - first], timestamp, BoundaryType.UPPER)
    rows = list(enumerate(times, first))
    assert lower == min((offset for offset, time in rows if time >= timestamp), default=readable.stop)
    assert upper == max((offset for offset, time in rows if time <= timestamp), default=readable.start)


# ------------------------------------------------------------------ files made here


def queue_of(root: Path, files: dict[int, bytes], path: str = "T/0") -> LocalFileSource:
    folder = root / "consumequeue" / path
    folder.mkdir(parents=True)
    for start, data in files.items():
        (folder / f"{start:020}").write_bytes(data)
    return LocalFileSource(root)


def entries(begin: int, end: int) -> bytes:
    return b"".join(ConsumeQueueEntry(100 * offset, 90, offset).encode() for offset in range(begin, end))


def test_fillers_before_and_zeros_after_are_no_entries(tmp_path: Path) -> None:
    files = {400: FILLER.encode() * 5 + entries(25, 30), 600: entries(30, 33) + bytes(140)}
    (queue,) = list_consume_queues(queue_of(tmp_path, files))
    assert (queue.topic, queue.queue_id) == ("T", 0)
    assert queue.written() == range(25, 33)
    assert [entry.tags_code for entry in queue.entries(28, 32)] == [28, 29, 30, 31]
    assert queue.bounds(0, 10_000) == QueueBounds(25, 33, 3290)
    assert queue.bounds(2700, 3190) == QueueBounds(27, 32, 3190)
    assert queue.bounds(9999, 10_000) == QueueBounds(33, 33, 3290)
    with pytest.raises(BadData, match="has 0 of the entries"):
        queue.entries(19, 20)


def test_a_queue_without_entries_keeps_its_place(tmp_path: Path) -> None:
    (queue,) = list_consume_queues(queue_of(tmp_path, {400: bytes(200)}))
    assert queue.written() == range(20, 20)
    assert queue.bounds(0, 0) == QueueBounds(20, 20, 0)


def test_a_store_without_consume_queues_has_none(tmp_path: Path) -> None:
    assert list_consume_queues(LocalFileSource(tmp_path)) == []


@pytest.mark.parametrize(
    ("path", "files", "message"),
    [
        ("T", {0: bytes(40)}, "not of the form"),
        ("T/x", {0: bytes(40)}, "not of the form"),
        ("T/0", {0: bytes(30)}, r"T/0/0{20} has 30 bytes.*a copy of the store without consumequeue/T/0"),
        ("T/0", {0: bytes(40), 80: bytes(40)}, r"0{18}40\. Restore .*without consumequeue/T/0"),
    ],
)
def test_files_that_are_no_consume_queue_are_refused(
    tmp_path: Path, path: str, files: dict[int, bytes], message: str
) -> None:
    with pytest.raises(BadData, match=message):
        list_consume_queues(queue_of(tmp_path, files, path))
