"""A broker that writes on while its log is imported: what it wrote between two reads is neither damage nor a hole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import DamagedRecord
from rmq_store.lake.broker import import_part
from tests.contract.test_import_store import BROKER, FILE_BYTES, Lake, punch, record_starts


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
    monkeypatch.setattr(import_part, "part_bytes", lambda queues: part_bytes)
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
    monkeypatch.setattr(import_part, "part_bytes", lambda queues: part_bytes)
    starts = record_starts()
    punch(broker, 0, 2 * FILE_BYTES)
    with pytest.raises(DamagedRecord, match="a later file has records"):
        lake.load(broker)
    assert lake.positions() == {}
    report = lake.load(broker, salvage=True)
    assert 0 < report.messages == sum(start >= 2 * FILE_BYTES for start, _ in starts)
