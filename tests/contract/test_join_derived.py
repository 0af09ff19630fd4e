"""Small files of derived tables become few, and nobody who reads or writes meanwhile notices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import QueueRange
from rmq_store.errors import BadData, StoreUnusable
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.commit.cursor import cursor_of
from rmq_store.lake.commit.derived_tables import KINDS, MOVES, QUEUES, Derived
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.maintain import checked_file
from rmq_store.lake.maintain import derived as joining
from rmq_store.lake.maintain.derived import join
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table import object_store
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.maintain.files_to_join import Limits
from tests.faults.stores import Lake, group_named, write_broker
from tests.planted_shard import PlantedShard

WINDOWS = 4
SQL = "SELECT * FROM offset_moves ORDER BY ALL"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    lake = Lake(folder / "store")
    lake.load(write_broker(folder / "broker"))
    for n in range(WINDOWS):
        lake.consume(f"2026-01-01-w{n}", group_named(max_messages=6))
    return folder / "store"


@pytest.fixture
def lake(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(joining, "LIMITS", Limits(least_files=2, target_rows=10_000))
    shutil.copytree(filled, tmp_path / "store")
    return Lake(tmp_path / "store")


def rows(lake: Lake, kind: Derived) -> list[str]:
    table = kind.table(lake.shard)
    return sorted(map(repr, table.read(table.files().column("path").to_pylist()).to_pylist()))


def segments(shard: Shard) -> list[object]:
    queues = sorted(shard.positions().all_queues())
    ranges = [QueueRange(queue, 0, max(shard.positions().max_offset(queue), 1)) for queue in queues]
    return [(queue, of_queue) for queue, of_queue in sorted(segments_of(shard, ranges).items())]


def test_small_files_become_one_with_the_same_rows(lake: Lake) -> None:
    before, cursors = {kind.name: rows(lake, kind) for kind in KINDS}, [cursor_of(k.table(lake.shard)) for k in KINDS]
    progress = list[tuple[int, int]]()
    for kind in (QUEUES, MOVES):
        files = kind.table(lake.shard).files().num_rows
        assert files >= WINDOWS
        dry = join(lake.shard, kind, lake.host, dry_run=True)
        assert (dry.files_before, dry.files_after, dry.joined) == (files, files, files)
        report = join(lake.shard, kind, lake.host, progress=lambda *counts: progress.append(counts))
        assert (report.files_before, report.files_after, report.joined) == (files, 1, files)
        assert report.bytes_after < report.bytes_before
        again = join(lake.shard, kind, lake.host)
        assert (again.files_before, again.files_after, again.joined) == (1, 1, 0)
    assert {kind.name: rows(lake, kind) for kind in KINDS} == before
    assert [cursor_of(kind.table(lake.shard)) for kind in KINDS] == cursors
    assert [(one.differences, one.damage) for one in check(lake.shard)] == [((), "")] * 3
    assert all(one == of for one, of in progress)
    assert lake.audit() == []


def test_the_files_are_sorted_and_have_statistics_and_other_readers_read_them(lake: Lake) -> None:
    join(lake.shard, QUEUES, lake.host)
    table = lake.shard.consumequeue
    stored = table.read(table.files().column("path").to_pylist())
    assert stored.equals(stored.sort_by([(name, "ascending") for name in QUEUES.layout.stats]))
    (file,) = table.files().to_pylist()
    assert (file["min.topic"], file["max.topic"]) == (
        min(stored["topic"].to_pylist()),
        max(stored["topic"].to_pylist()),
    )
    other = DeltaTable(table.root.uri_of(table.path)).to_pyarrow_table()
    assert other.num_rows == stored.num_rows
    assert not any(one.data_change for one in table.added_since(table.version - 1))


def test_many_rows_become_several_files_that_are_not_joined_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(lake, MOVES)
    monkeypatch.setattr(joining, "LIMITS", Limits(least_files=2, target_rows=7))
    report = join(lake.shard, MOVES, lake.host)
    assert report.files_after == -(-len(before) // 7) > 1
    assert rows(lake, MOVES) == before
    assert join(lake.shard, MOVES, lake.host).joined == 0


def test_who_reads_meanwhile_sees_the_same_rows_at_every_step(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = lake.shard
    expected = segments(kept), query(lake.store, SQL).to_pylist()
    polls = list[str]()

    def poll(when: str) -> None:
        assert (segments(lake.shard), query(lake.store, SQL).to_pylist()) == expected, when
        assert segments(kept) == expected[0], when
        polls.append(when)

    real_put = Root.put_once

    def put_once(root: Root, name: str, content: bytes) -> object_store.Put:
        poll("before the commit")
        answer = real_put(root, name, content)
        poll("after the commit")
        return answer

    def polled(root: Root, path: str, file: NewFile) -> StagedFile:
        staged = stage(root, path, file)
        poll("staged")
        return staged

    monkeypatch.setattr(Root, "put_once", put_once)
    monkeypatch.setattr(checked_file, "stage", polled)
    for kind in (QUEUES, MOVES):
        join(lake.shard, kind, lake.host)
    assert polls == ["staged", "before the commit", "after the commit"] * 2
    kept.refresh("consumequeue", "offsets")
    poll("with the old handle, refreshed")


def before_the_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Another process does ``step`` before the first JOIN is put."""
    real, steps = Root.put_once, [step]

    def put_once(root: Root, name: str, content: bytes) -> object_store.Put:
        if b'"JOIN"' in content and steps:
            steps.pop()()
        return real(root, name, content)

    monkeypatch.setattr(Root, "put_once", put_once)


def test_of_two_joiners_one_plans_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(lake, QUEUES)
    before_the_commit(monkeypatch, lambda: join(lake.shard, QUEUES, lake.host))
    report = join(lake.shard, QUEUES, lake.host)
    assert (report.files_after, report.joined) == (1, 0)
    assert rows(lake, QUEUES) == before


def test_a_dispatcher_is_not_disturbed_and_does_not_disturb(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before_the_commit(monkeypatch, lambda: lake.consume("2026-01-01-more"))
    shard = lake.shard
    report = join(shard, QUEUES, lake.host)
    assert report.joined == report.files_before
    assert report.files_after > 1  # with that of the window
    assert [(one.differences, one.damage) for one in check(lake.shard)] == [((), "")] * 3


def test_a_rebuild_meanwhile_wins(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def rebuilt() -> None:
        table = lake.shard.offsets
        paths = table.files().column("path").to_pylist()
        lake.shard.offsets.put([], {"dispatch/version": -1}, host=lake.host, removed=paths)
        dispatch(lake.shard, lake.host)

    before = rows(lake, MOVES)
    before_the_commit(monkeypatch, rebuilt)
    join(lake.shard, MOVES, lake.host)
    assert rows(lake, MOVES) == before


def test_what_is_read_back_wrongly_is_not_committed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(root: Root, path: str, file: NewFile) -> StagedFile:
        return stage(root, path, replace(file, rows=file.rows.slice(1)))

    before, version = rows(lake, MOVES), lake.shard.offsets.version
    monkeypatch.setattr(checked_file, "stage", cut)
    with pytest.raises(StoreUnusable, match="read back"):
        join(lake.shard, MOVES, lake.host)
    assert (rows(lake, MOVES), lake.shard.offsets.version) == (before, version)


def test_a_window_and_an_audit_after_it_are_as_before(lake: Lake) -> None:
    for kind in (QUEUES, MOVES):
        join(lake.shard, kind, lake.host)
    lake.deliver()
    lake.consume("2026-01-01-last")
    assert lake.audit() == []
    dispatch(lake.shard, lake.host)
    assert [(one.differences, one.damage) for one in check(lake.shard)] == [((), "")] * 3


def test_a_file_without_a_day_ends_a_join_in_words(lake: Lake) -> None:
    """Another tool wrote the entry again: the audit finds it too."""
    at = PlantedShard(lake.folder, lake.shard_name)
    add = at.add_of(at.files("offsets")[0], "offsets")
    at.add_entry({"add": add | {"partitionValues": {"store_day": None}}}, table="offsets")
    with pytest.raises(BadData, match=r"offsets does not say of which day \S+ is"):
        join(lake.shard, MOVES, lake.host)
    assert Problem.STATISTICS_DIFFER in {finding.problem for finding in lake.audit()}
