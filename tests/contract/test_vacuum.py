"""A vacuum of a folder and of S3: what it deletes, what it records, and when it deletes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rmq_store.commit.ctl import Action, Actor
from rmq_store.errors import BadData, OtherFormat, StoreUnusable, WrongUse
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.maintain import compact as compacting
from rmq_store.lake.maintain import vacuum as vacuuming
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.maintain.vacuum import VacuumReport, VacuumRequest, vacuum
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table import tables
from rmq_store.lake.table.checkpoint import clean_up, write_checkpoint
from rmq_store.lake.table.delta_entry import entry_bytes, protocol_action
from rmq_store.lake.table.delta_log import Content
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.maintain.files_to_join import Limits
from rmq_store.maintain.orphans import StoredFile
from rmq_store.utils.host import Host, day_of, epoch_ms
from tests.faults.stores import Lake, group_named, write_broker
from tests.s3 import S3Root

AGE_MS = 50 * 3_600_000
REQUEST = VacuumRequest(request_id="2026-01-01-vacuum", actor=Actor("ana", "tests"), reason="a test")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "store")
    lake.load(write_broker(tmp_path / "broker"))
    lake.consume()
    return lake


def orphan(table: LakeTable, name: str = "orphan") -> str:
    rows = pa.Table.from_pylist([{"commit_id": "c", "part": 0, "rel": 0}], tables.OUTCOME)
    return stage(table.root, table.path, NewFile(kind="outcome", name=name, rows=rows, store_day="2026-01-01")).path


def age(table: LakeTable) -> None:
    """Everything in the table's folder was written AGE_MS ago."""
    then = (epoch_ms() - AGE_MS) / 1000
    for path in Path(table.root.location, table.path).rglob("*"):
        os.utime(path, (then, then))


def paths(report: VacuumReport) -> list[str]:
    return [file.path for file in report.deleted]


def test_what_no_version_names_is_deleted_and_the_commit_log_says_who_did_it(lake: Lake) -> None:
    shard = lake.shard
    name, progress = orphan(shard.commitlog), list[tuple[int, int]]()
    temporary = Path(shard.root.location, shard.commitlog.path, "_delta_log", f".x.json.{'0' * 32}.tmp")
    temporary.touch()
    age(shard.commitlog)
    orphan(shard.commitlog, "young")
    report = vacuum(shard, shard.commitlog, REQUEST, lake.host, lambda *counts: progress.append(counts))
    assert paths(report) == [f"_delta_log/{temporary.name}", name]
    assert progress == [(2, 2)]
    assert not shard.root.exists(f"{shard.commitlog.path}/{name}")
    assert not temporary.exists()
    (ctl,) = [ctl for ctl in lake.shard.ctls_since(0) if ctl.action is Action.VACUUM]
    assert (ctl.actor.name, ctl.reason, ctl.parameter("files")) == ("ana", "a test", 2)
    assert lake.audit() == []
    assert [(one.differences, one.damage) for one in check(lake.shard)] == [((), "")] * 3
    assert DeltaTable(shard.root.uri_of(shard.commitlog.path)).to_pyarrow_table().num_rows
    assert vacuum(lake.shard, lake.shard.commitlog, REQUEST, lake.host).deleted == ()


def test_a_vacuum_that_has_nothing_to_delete_writes_nothing(lake: Lake) -> None:
    for table in (lake.shard.commitlog, lake.shard.consumequeue, lake.shard.offsets):
        age(table)
    shard = lake.shard
    for table in (shard.commitlog, shard.consumequeue, shard.offsets, shard.commits):
        before = table.version
        assert vacuum(shard, table, REQUEST, lake.host).deleted == ()
        table.refresh()
        assert table.version == before


def test_a_dry_run_lists_what_would_be_deleted(lake: Lake) -> None:
    shard = lake.shard
    name, version = orphan(shard.offsets), shard.offsets.version
    age(shard.offsets)
    assert paths(vacuum(shard, shard.offsets, replace(REQUEST, dry_run=True), lake.host)) == [name]
    assert shard.root.exists(f"{shard.offsets.path}/{name}")
    assert lake.shard.offsets.version == version


def test_in_a_derived_table_an_entry_without_positions_comes_first(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = lake.shard
    name, positions = orphan(shard.offsets), shard.offsets.positions
    age(shard.offsets)
    entries = list[int]()
    real = Root.delete_all

    def delete_all(root: Root, names: list[str]) -> None:
        entries.append(lake.shard.offsets.version)
        real(root, names)

    monkeypatch.setattr(Root, "delete_all", delete_all)
    before = shard.offsets.version
    assert paths(vacuum(shard, shard.offsets, REQUEST, lake.host)) == [name]
    assert entries == [before + 1]
    assert dict(lake.shard.offsets.positions.prefixed("dispatch/")) == dict(positions.prefixed("dispatch/"))


def _no_listing(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: refuse(path) if "kind=msg" in str(path) else real(path))


def _damaged_entry(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    def refuse(table: LakeTable, name: str) -> None:
        raise BadData(f"{name} is damaged")

    monkeypatch.setattr(vacuuming, "_entry", refuse)


def _absolute_path(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    table = lake.shard.commitlog
    path = table.files().column("path").to_pylist()[0]
    where = table.root.uri_of(table.path)
    monkeypatch.setattr(vacuuming, "files_of_segments", lambda consumequeue: {f"file://{where}/{path}"})


@pytest.mark.parametrize(
    ("trouble", "error"),
    [(_no_listing, StoreUnusable), (_damaged_entry, BadData), (_absolute_path, OtherFormat)],
)
def test_what_cannot_be_listed_or_read_ends_a_vacuum_before_it_deletes(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[pytest.MonkeyPatch, Lake], None],
    error: type[Exception],
) -> None:
    shard = lake.shard
    name = orphan(shard.commitlog)
    age(shard.commitlog)
    trouble(monkeypatch, lake)
    with pytest.raises(error):
        vacuum(shard, shard.commitlog, REQUEST, lake.host)
    assert shard.root.exists(f"{shard.commitlog.path}/{name}")


def test_a_file_that_only_a_segment_names_is_kept(lake: Lake) -> None:
    """As after an OPTIMIZE by a tool that ignores the protocol: consumers still read the file."""
    shard = lake.shard
    (file, *_) = [path for path in shard.commitlog.files().column("path").to_pylist() if path.startswith("kind=msg/")]
    shard.commitlog.put([], {}, host=lake.host, removed=[file])
    age(shard.commitlog)
    assert vacuum(shard, shard.commitlog, REQUEST, lake.host).deleted == ()
    assert lake.consume("2026-01-01-r2").status


def test_an_age_at_which_a_run_may_commit_is_refused(lake: Lake) -> None:
    with pytest.raises(WrongUse, match="25h"):
        vacuum(lake.shard, lake.shard.offsets, replace(REQUEST, age_ms=3_600_000), lake.host)


def test_two_vacuums_at_once_delete_the_same_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lake.shard, lake.shard
    name = orphan(first.offsets)
    age(first.offsets)
    assert second.offsets.version
    real = LakeTable.put

    def put(table: LakeTable, *arguments: object, **options: object) -> None:
        monkeypatch.undo()
        assert paths(vacuum(second, second.offsets, REQUEST, lake.host)) == [name]
        real(table, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LakeTable, "put", put)
    assert paths(vacuum(first, first.offsets, REQUEST, lake.host)) == [name]


def test_in_s3_files_are_listed_in_all_partitions_and_deleted(s3_root: S3Root, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, host = Shard.create(s3_root.root, "s"), Host()
    table = shard.commitlog
    names = [orphan(table, f"o{n}") for n in range(3)]
    kept = stage(
        table.root,
        table.path,
        NewFile(
            kind="outcome",
            name="kept",
            rows=pa.Table.from_pylist([{"commit_id": "c", "part": 0, "rel": 0}], tables.OUTCOME),
            store_day=day_of(host.now_ms()),
        ),
    )
    table.put([kept], {}, host=host)
    assert vacuum(shard, table, REQUEST, host).deleted == ()
    real = vacuuming._listed

    def older(table: LakeTable) -> list[StoredFile]:
        return [replace(file, modified_ms=file.modified_ms - AGE_MS) for file in real(table)]

    monkeypatch.setattr(vacuuming, "_listed", older)
    assert paths(vacuum(shard, table, REQUEST, host)) == names
    left = [name for name, _ in table.root.list(table.path) if name.endswith(".parquet")]
    assert [name.rsplit("/", 1)[1] for name in left if "kind=ctl" not in name] == ["kept.parquet"]


def test_a_change_of_the_table_beside_a_vacuum_is_met(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that another process has overtaken by an entry that conflicts with everything is made again."""
    shard = lake.shard
    name = orphan(shard.offsets)
    age(shard.offsets)
    real, others = Root.put_once, [True]

    def put_once(root: Root, path: str, content: bytes) -> object:
        if others:
            others.pop()
            other = lake.shard.offsets
            text = entry_bytes(operation="X", now_ms=0, commit_ids=("x",), first=[protocol_action()])
            other.log.append(Content(text, ()), lake.host, deadline_ms=lake.host.now_ms() + 1000)
        return real(root, path, content)

    monkeypatch.setattr(Root, "put_once", put_once)
    assert paths(vacuum(shard, shard.offsets, REQUEST, lake.host)) == [name]


def test_files_that_a_compaction_replaced_are_deleted_and_every_reader_goes_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "SETTLED_MS", 0)
    lake.consume("2026-01-01-r2", group_named("others"))
    request = CompactRequest("2026-01-02-maintain", REQUEST.actor, "daily", Limits(least_files=2))
    views = ("messages", "windows", "outcomes")
    before = [query(lake.store, f"SELECT * FROM {view} ORDER BY shard").to_pylist() for view in views]
    replaced = compact(lake.shard, request, lake.host).replaced_files
    table = lake.shard.commitlog
    write_checkpoint(table)
    age(table)
    table.refresh()
    clean_up(table)
    # The removal is of today: the checkpoint says so, and the entries that did are gone.
    assert not set(paths(vacuum(lake.shard, table, REQUEST, lake.host)))
    monkeypatch.setattr(vacuuming, "_of_checkpoint", tombstones_of(AGE_MS))
    shard = lake.shard
    assert len(vacuum(shard, shard.commitlog, REQUEST, lake.host).deleted) == replaced > 4
    after = [query(lake.store, f"SELECT * FROM {view} ORDER BY shard").to_pylist() for view in views]
    assert [sorted(map(repr, rows)) for rows in after] == [sorted(map(repr, rows)) for rows in before]
    lake.consume("2026-01-03-after", group_named("others"))
    lake.deliver()
    assert lake.audit() == []
    assert [(one.differences, one.damage) for one in check(lake.shard)] == [((), "")] * 3


def tombstones_of(age_ms: int) -> Callable[[LakeTable, str], tuple[set[str], dict[str, int]]]:
    """What a checkpoint says, when its removals are so old."""
    real = vacuuming._of_checkpoint

    def read(table: LakeTable, name: str) -> tuple[set[str], dict[str, int]]:
        added, removed_ms = real(table, name)
        return added, {path: at_ms - age_ms for path, at_ms in removed_ms.items()}

    return read
