"""What a commit says of the files that it adds: their names, rows, sizes and SHA-256 (docs/decisions/0018-digests.md)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rmq_store.commit.ctl import WrittenFile
from rmq_store.lake.audit.full import full
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.engine import LocalEngine
from tests.contract.test_compact import lived
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import HOUR_MS, OPERATOR, Lake, write_broker


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """An import, windows with failures and keys, deliveries, a redrive; then the small files were joined, and more followed."""
    folder, clock = tmp_path_factory.mktemp("written"), Clock()
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_clock(monkeypatch, clock)
        lake = Lake(folder / "store", clock.host)
        lake.load(write_broker(folder / "broker"))
        lived(lake, clock, "1")
        lake.redrive()
        clock.ms += 2 * HOUR_MS
        compact(lake.shard, CompactRequest("2026-01-01-join", OPERATOR), lake.host)
        lake.load(write_broker(folder / "broker", 60), "2026-01-02-import")
        lake.consume("2026-01-02-r1")
    return lake


def written(shard: Shard) -> list[WrittenFile]:
    return [file for ctl in shard.ctls_since(0) for file in ctl.files]


def test_each_file_of_rows_is_named_once_with_its_bytes(built: Lake) -> None:
    shard = built.shard
    files = written(shard)
    by_path = {file.path: file for file in files}
    assert len(by_path) == len(files)
    live = {row["path"]: row for row in shard.commitlog.files().to_pylist() if row["partition.kind"] != "ctl"}
    assert {row["partition.kind"] for row in live.values()} == {"msg", "outcome", "key"}
    assert live.keys() <= by_path.keys()
    for path, row in live.items():
        content = (Path(shard.root.location) / shard.commitlog.path / path).read_bytes()
        expected = WrittenFile(path, row["num_records"], len(content), hashlib.sha256(content).hexdigest())
        assert by_path[path] == expected


def test_what_was_joined_is_named_by_the_commit_that_joined_it(built: Lake) -> None:
    joins = [ctl for ctl in built.shard.ctls_since(0) if ctl.action == "compact"]
    assert joins
    for ctl in joins:
        assert len(ctl.files) >= 1
        assert {segment.file for segment in ctl.produced} <= {file.path for file in ctl.files}


def test_a_sound_store_has_no_finding_and_every_file_is_covered(built: Lake) -> None:
    report = full(built.store, LocalEngine(built.host))
    assert report.findings == []
    assert report.without_digest == 0
    assert report.copies > 0
    assert (report.copies_without_message, report.ranges_not_checked) == (0, 0)
    assert report.ranges > 0
