"""A broker that writes on while its log is imported, or was killed while it wrote: neither is damage nor a hole."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import DamagedRecord
from rmq_store.lake.broker import import_part, import_slice
from rmq_store.lake.sql.sql import query
from tests.contract.test_import_store import (
    BROKER,
    FILE_BYTES,
    Lake,
    bodies,
    commit_log,
    punch,
    record_starts,
    store_of,
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def broker(tmp_path: Path, broker_store: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(broker_store("market-killed"), tmp_path / "broker"))


def written_after_a_read(broker: Path, begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log ends at ``begin`` until the file there was read; then the broker writes all that follows."""
    newest = {path: path.read_bytes() for path in (broker / "commitlog").iterdir()}
    punch(broker, begin, len(newest) * FILE_BYTES)
    read = LocalFileSource.read
    name = f"commitlog/{begin // FILE_BYTES * FILE_BYTES:020}"

    def read_and_write(source: LocalFileSource, of_name: str, first: int, last: int) -> bytes:
        data = read(source, of_name, first, last)
        if of_name == name and last - first == FILE_BYTES:
            for path, content in newest.items():
                path.write_bytes(content)
        return data

    monkeypatch.setattr(LocalFileSource, "read", read_and_write)


@pytest.mark.parametrize("part_bytes", [FILE_BYTES, 100 * FILE_BYTES])
@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("number", [200, -200])
def test_what_a_running_broker_writes_between_two_reads_is_imported(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch, number: int, salvage: bool, part_bytes: int
) -> None:
    """Into the files that follow, and into the newest file only."""
    monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: part_bytes)
    starts = record_starts()
    written_after_a_read(broker, starts[number][0], monkeypatch)
    reports = [lake.load(broker, salvage=salvage), lake.load(broker)]
    assert sum(report.messages for report in reports) == len(starts)
    assert [(report.salvaged, report.queue_gaps) for report in reports] == [((), ())] * 2
    assert lake.positions()[f"import/{BROKER}"] == sum(starts[-1])


@pytest.mark.parametrize("part_bytes", [FILE_BYTES, 2 * FILE_BYTES, 100 * FILE_BYTES])
def test_records_after_several_files_without_any_are_not_imported_before_the_position(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: part_bytes)
    starts = record_starts()
    punch(broker, 0, 2 * FILE_BYTES)
    with pytest.raises(DamagedRecord, match="a later file has records"):
        lake.load(broker)
    assert lake.positions() == {}
    report = lake.load(broker, salvage=True)
    assert 0 < report.messages == sum(start >= 2 * FILE_BYTES for start, _ in starts)


# --- a torn record: the last write of a broker that was killed, or one that is being made -----------------------------

SIZE = 96
"""Bytes of a record of ``store_of``."""


def torn_at(folder: Path, begin: int, kept: int) -> None:
    """Of the record at ``begin``, the log's last one, the first ``kept`` bytes are written."""
    file = commit_log(folder, begin // FILE_BYTES * FILE_BYTES)
    data = file.read_bytes()[: begin % FILE_BYTES + kept]
    file.write_bytes(data.ljust(FILE_BYTES, b"\0"))


@pytest.mark.parametrize("chunk_bytes", [SIZE * 3, FILE_BYTES])
@pytest.mark.parametrize("kept", [4, 8, SIZE // 2, SIZE - 6])
@pytest.mark.parametrize("salvage", [False, True])
def test_a_log_ends_at_a_torn_record_and_goes_on_there_when_the_broker_has_cut_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salvage: bool, kept: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", chunk_bytes)
    first, second = {"stored_body": b"one!"}, {"stored_body": b"two!"}
    folder = store_of(tmp_path / "made", first, second, {"stored_body": b"torn"})
    torn_at(folder, 2 * SIZE, kept)
    for status in ("committed", "unchanged"):
        report = lake.load(folder, salvage=salvage)
        assert (report.status, report.end, report.salvaged) == (status, 2 * SIZE, ())
        (note,) = [note for note in report.notes if "it cuts its log there" in note]
        assert f"byte {2 * SIZE} of commitlog/{0:020}" in note
    assert lake.positions()[f"import/{BROKER}"] == 2 * SIZE
    third, fourth = {"stored_body": b"new!"}, {"stored_body": b"more"}
    newer = store_of(tmp_path / "newer", first, second, third, fourth)
    report = lake.load(newer, salvage=salvage)
    assert (report.messages, report.end, report.notes) == (2, 4 * SIZE, lake.load(newer).notes)
    assert bodies(lake) == [b"one!", b"two!", b"new!", b"more"]


PROPERTIES = {"UNIQ_KEY": "U1", "TAGS": "paid"}


@pytest.mark.parametrize("chunk_bytes", [SIZE * 3, FILE_BYTES])
@pytest.mark.parametrize("missing", [1, 3, 10, len("UNIQ_KEY.U1.TAGS.paid")])
@pytest.mark.parametrize("salvage", [False, True])
def test_a_last_record_whose_properties_are_not_written_is_imported_when_they_are(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salvage: bool, missing: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", chunk_bytes)
    first, second = {"stored_body": b"one!"}, {"stored_body": b"two!", "properties": PROPERTIES}
    folder = store_of(tmp_path / "made", first, second)
    file = commit_log(folder, 0)
    whole = file.read_bytes()
    torn_at(folder, SIZE, len(whole.rstrip(b"\0")) - SIZE - missing)
    report = lake.load(folder, salvage=salvage)
    assert (report.messages, report.end, report.salvaged) == (1, SIZE, ())
    assert any("its topic or properties have a zero" in note for note in report.notes)
    file.write_bytes(whole)
    report = lake.load(folder, salvage=salvage)
    assert (report.messages, [note for note in report.notes if "zero" in note]) == (1, [])
    (row,) = query(lake.store, "SELECT unique_key, tags FROM messages WHERE queue_offset = 1").to_pylist()
    assert row == {"unique_key": "U1", "tags": "paid"}


@pytest.mark.parametrize("behind", [0, 3, 7, 8, 9])
@pytest.mark.parametrize("salvage", [False, True])
def test_a_last_record_that_is_not_whole_is_not_imported_wherever_a_chunk_of_reading_ends_behind_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, salvage: bool, behind: int
) -> None:
    folder = store_of(tmp_path / "made", {"stored_body": b"one!"}, {"stored_body": b"two!", "properties": PROPERTIES})
    file = commit_log(folder, 0)
    whole = file.read_bytes()
    end = len(whole.rstrip(b"\0"))
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", end + behind)
    torn_at(folder, SIZE, end - SIZE - 5)
    report = lake.load(folder, salvage=salvage)
    assert (report.messages, report.end, report.salvaged) == (1, SIZE, ())
    file.write_bytes(whole)
    assert lake.load(folder, salvage=salvage).messages == 1
    (row,) = query(lake.store, "SELECT unique_key, tags FROM messages WHERE queue_offset = 1").to_pylist()
    assert row == {"unique_key": "U1", "tags": "paid"}


@pytest.mark.parametrize("zero_page", [1, 2])
@pytest.mark.parametrize("salvage", [False, True])
def test_a_last_record_of_which_a_page_is_not_written_is_imported_when_it_is(
    lake: Lake, tmp_path: Path, salvage: bool, zero_page: int
) -> None:
    """As a copy has it that read one page before the broker wrote it, and the next one after."""
    long = {"UNIQ_KEY": "U1", "a": "1" * 5000, "TAGS": "paid", "z": "2" * 9000}
    folder = store_of(tmp_path / "made", {"stored_body": b"one!"}, {"stored_body": b"two!", "properties": long})
    file = commit_log(folder, 0)
    whole = file.read_bytes()
    assert len(whole.rstrip(b"\0")) > (zero_page + 1) * 4096, "the next page has the record's end"
    file.write_bytes(whole[: zero_page * 4096] + bytes(4096) + whole[(zero_page + 1) * 4096 :])
    for _ in range(2):
        report = lake.load(folder, salvage=salvage)
        assert (report.end, report.salvaged) == (SIZE, ())
        assert any("its topic or properties have a zero" in note for note in report.notes)
    file.write_bytes(whole)
    assert lake.load(folder, salvage=salvage).messages == 1
    (row,) = query(lake.store, "SELECT tags, properties['a'] AS a FROM messages WHERE queue_offset = 1").to_pylist()
    assert row == {"tags": "paid", "a": "1" * 5000}


@pytest.mark.parametrize("salvage", [False, True])
def test_properties_with_a_zero_before_others_are_whole(lake: Lake, tmp_path: Path, salvage: bool) -> None:
    first, second = {"properties": {"TAGS": "a\0"}}, {"stored_body": b"two!"}
    report = lake.load(store_of(tmp_path / "made", first, second), salvage=salvage)
    assert (report.messages, report.salvaged) == (2, ())


@pytest.mark.parametrize("salvage", [False, True])
def test_a_torn_record_before_others_is_damage(lake: Lake, broker: Path, salvage: bool) -> None:
    """The broker would cut its log there and lose what follows."""
    starts = record_starts()
    last, _ = [one for one in starts if one[0] < FILE_BYTES][-1]
    torn_at(broker, last, 90)
    if not salvage:
        with pytest.raises(DamagedRecord, match=r"TOTALSIZE is .*, but a later file has records") as raised:
            lake.load(broker)
        assert raised.value.commit_log_offset == last
        assert lake.positions() == {}
        return
    report = lake.load(broker, salvage=True)
    assert report.messages == len(starts) - 1
    assert [(one.begin, one.end) for one in report.salvaged] == [(last, FILE_BYTES)]
    assert "TOTALSIZE is" in report.salvaged[0].reason


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_record_that_a_running_broker_is_writing_is_imported_when_it_is_whole(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool, salvage: bool
) -> None:
    """With a record behind it that is written before the import looks again, and without."""
    starts = record_starts()
    begin = starts[-3][0]
    file = commit_log(broker, begin // FILE_BYTES * FILE_BYTES)
    whole = file.read_bytes()
    torn_at(broker, begin, 90)
    if goes_on:
        end = sum(starts[-2]) % FILE_BYTES
        torn = file.read_bytes()[: sum(starts[-3]) % FILE_BYTES] + whole[starts[-2][0] % FILE_BYTES : end]
        file.write_bytes(torn.ljust(FILE_BYTES, b"\0"))
    read = LocalFileSource.read

    def read_and_write(source: LocalFileSource, of_name: str, first: int, last: int) -> bytes:
        data = read(source, of_name, first, last)
        if of_name.endswith(file.name) and last - first == FILE_BYTES:
            file.write_bytes(whole)
        return data

    monkeypatch.setattr(LocalFileSource, "read", read_and_write)
    reports = [lake.load(broker, salvage=salvage), lake.load(broker)]
    assert sum(report.messages for report in reports) == len(starts)
    assert [(report.salvaged, report.queue_gaps) for report in reports] == [((), ())] * 2


def test_a_damaged_last_record_that_a_broker_would_keep_is_damage(lake: Lake, tmp_path: Path) -> None:
    """Its place is wrong, which the broker does not check: it would not cut it."""
    folder = store_of(tmp_path / "made", {}, {"commit_log_offset": 7})
    with pytest.raises(DamagedRecord, match="PHYSICALOFFSET is 7"):
        lake.load(folder)


def test_a_body_that_does_not_decompress_is_damage_however_often_it_is_read(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its CRC is right and its record whole, so the record alone looks as if a broker had ended its write."""
    packed = {"stored_body": zlib.compress(b"a body")[:-1], "sys_flag": 1}
    folder = store_of(tmp_path / "made", {}, packed, {"queue_offset": 1})
    read, reads = LocalFileSource.read, 0

    def count(source: LocalFileSource, name: str, first: int, last: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 50, "it is read again and again"
        return read(source, name, first, last)

    monkeypatch.setattr(LocalFileSource, "read", count)
    with pytest.raises(DamagedRecord, match="does not decompress as ZLIB"):
        lake.load(folder)
    report = lake.load(folder, salvage=True)
    assert [skipped.begin for skipped in report.salvaged] == [96]
    assert bodies(lake) == [b"body", b"body"]
