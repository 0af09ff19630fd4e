"""Checkpoints of the logs, and what is deleted behind them: never what a process may still take for the end of a log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from rmq_store.errors import LogDamaged, StaleAttempt, StoreUnusable
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import ADVICE, Problem
from rmq_store.lake.commit import dispatch as dispatching
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.maintain.maintain import maintain
from rmq_store.lake.table import checkpoint
from rmq_store.lake.table.checkpoint import (
    LEAST_AGE_MS,
    checkpoint_if_due,
    checkpoint_name,
    clean_up,
    entries_since_checkpoint,
    write_checkpoint,
)
from rmq_store.lake.table.delta_log import DeltaLog, LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.request import MaintainRequest, Step
from rmq_store.utils.host import Host
from tests.faults.answers import Clock, clean_log, other_commits, set_clock
from tests.faults.stores import TESTS, Lake, write_broker
from tests.lake_fixtures import small_store
from tests.planted_shard import PlantedShard, Row


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    set_clock(monkeypatch, clock)
    return clock


@pytest.fixture
def lake(tmp_path: Path, clock: Clock) -> Lake:
    lake = Lake(tmp_path / "store", clock.host)
    lake.load(write_broker(tmp_path / "broker"))
    return lake


def names(table: LakeTable) -> list[str]:
    return sorted(path.name for path in Path(table.root.location, table.path, "_delta_log").glob("0*"))


def entries(table: LakeTable) -> list[int]:
    return [int(name[:20]) for name in names(table) if name.endswith(".json")]


def test_a_checkpoint_is_written_when_so_many_entries_came(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY", 4)
    other_commits(lake, 5)
    table = lake.shard.commitlog
    assert table.log.view.checkpoint >= 4
    assert not checkpoint_if_due(table)


def test_a_checkpoint_of_this_process_doubles_nothing(lake: Lake) -> None:
    table = lake.shard.commitlog
    other_commits(lake, 3)
    table.refresh()
    before = [file.path for file in table.added_since(0)]
    write_checkpoint(table)
    assert [file.path for file in table.added_since(0)] == before


def test_a_checkpoint_describes_a_table_as_its_entries_do(lake: Lake) -> None:
    """An upgrade writes the description into an entry again."""
    other_commits(lake, 1)
    for name in ("commitlog", "consumequeue", "offsets", "commits"):
        table = getattr(lake.shard, name)
        write_checkpoint(table)
        opened = getattr(lake.shard, name)
        assert opened.log.view.checkpoint == table.version
        assert opened.log.view.metadata == table.log.view.metadata
        assert opened.log.view.protocol == table.log.view.protocol


def test_entries_behind_the_checkpoint_that_was_opened_are_not_read_by_name(lake: Lake) -> None:
    other_commits(lake, 3)
    write_checkpoint(lake.shard.commitlog)
    table = lake.shard.commitlog
    assert table.added_since(table.version) == []
    with pytest.raises(LogCleaned):
        table.added_since(table.version - 1)


@pytest.mark.slow
def test_dispatch_takes_each_commit_once_across_checkpoints(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(dispatching, "COMMITS", replace(COMMITS, every=5))
    kept = Shard(lake.store.root, lake.shard_name)
    for n in range(6):
        lake.consume(f"2026-01-01-w{n}")
        lake.reset(f"2026-01-01-back{n}", n)
        dispatching.dispatch(kept, lake.host)
    assert lake.audit() == []
    assert [(report.differences, report.damage) for report in check(lake.shard)] == [((), "")] * 3


def test_nothing_is_deleted_behind_a_young_checkpoint(lake: Lake, clock: Clock) -> None:
    other_commits(lake, 3)
    table = lake.shard.commitlog
    write_checkpoint(table)
    clock.ms += LEAST_AGE_MS - 60_000
    assert clean_up(table) == 0
    assert entries(table) == list(range(table.version + 1))


def test_what_lies_behind_an_old_checkpoint_is_deleted_oldest_first(
    lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.shard.commitlog
    write_checkpoint(table)
    first = table.version
    other_commits(lake, 2)
    table.refresh()
    write_checkpoint(table)
    second = table.version
    clock.ms += LEAST_AGE_MS + 60_000
    other_commits(lake, 1)
    table.refresh()
    write_checkpoint(table)
    third, deleted = table.version, list[str]()
    newest = Path(table.root.location, checkpoint.checkpoint_name(table, third))
    os.utime(newest, (clock.ms / 1000, clock.ms / 1000))
    real = Root.delete

    def delete(root: Root, name: str) -> None:
        deleted.append(name)
        real(root, name)

    monkeypatch.setattr(Root, "delete", delete)
    assert clean_up(table) == len(deleted) == second + 1
    assert [int(Path(name).name[:20]) for name in deleted] == sorted([*range(second), first])
    assert entries(table) == list(range(second, third + 1))
    assert [int(name[:20]) for name in names(table) if "checkpoint" in name] == [second, third]
    assert lake.shard.positions() == table.positions


def test_a_checkpoint_that_cannot_be_read_counts_for_nothing(lake: Lake, clock: Clock) -> None:
    table = lake.shard.commitlog
    write_checkpoint(table)
    name = Path(table.root.location, checkpoint.checkpoint_name(table, table.version))
    name.write_bytes(name.read_bytes()[:100])
    clock.ms += LEAST_AGE_MS + 60_000
    assert clean_up(table) == 0
    assert lake.shard.positions() == table.positions


def flip_statistics(content: bytes) -> bytes:
    """Damage that only a reader of the statistics meets."""
    return content.replace(b"numRecords", b'numR"cords')


def cut(content: bytes) -> bytes:
    return content[:-1]


@pytest.mark.parametrize("damage", [flip_statistics, cut])
def test_a_damaged_checkpoint_does_not_get_into_the_next_one(lake: Lake, damage: Callable[[bytes], bytes]) -> None:
    table = lake.shard.commitlog
    write_checkpoint(table)
    name = Path(table.root.location, checkpoint.checkpoint_name(table, table.version))
    pq.write_table(pq.read_table(name), name, compression="none", use_dictionary=False)
    damaged = damage(name.read_bytes())
    assert damaged != name.read_bytes()
    name.write_bytes(damaged)
    other_commits(lake, 1)
    table.refresh()
    write_checkpoint(table)
    assert table.log.checkpoint_damage() is None
    assert table.log.sound_checkpoint(table.version)
    assert lake.shard.positions() == table.positions


def test_the_next_checkpoint_is_made_of_the_bytes_that_were_judged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.shard.commitlog
    write_checkpoint(table)
    name = checkpoint.checkpoint_name(table, table.version)
    other_commits(lake, 1)
    table.refresh()
    reads: list[str] = []
    for method in ("read", "look_at"):
        monkeypatch.setattr(Root, method, recorded(getattr(Root, method), reads))
    write_checkpoint(table)
    assert reads.count(name) == 1


def recorded(method: Callable[..., Any], reads: list[str]) -> Callable[..., Any]:
    def call(root: Root, file: str, *span: int) -> Any:
        reads.append(file)
        return method(root, file, *span)

    return call


def test_the_checkpoint_of_another_table_is_damage(lake: Lake) -> None:
    logs = [lake.shard.commitlog, lake.shard.commits]
    for table in logs:
        write_checkpoint(table)
    one, other = (Path(table.root.location, checkpoint.checkpoint_name(table, table.version)) for table in logs)
    positions = lake.shard.positions()
    one.write_bytes(other.read_bytes())
    assert "it is of another table" in str(logs[0].log.checkpoint_damage())
    assert Shard(lake.shard.root, lake.shard.name).positions() == positions


def test_a_checkpoint_is_of_the_version_that_was_read(lake: Lake) -> None:
    for _ in range(2):  # from entry 0, and from the checkpoint before
        other_commits(lake, 2)
        table = lake.shard.commitlog
        other_commits(lake, 1)
        write_checkpoint(table)
        assert lake.shard.commitlog.log.view.checkpoint == table.version
        assert lake.shard.commitlog.version == table.version + 1
    assert lake.audit() == []


def test_a_version_gets_one_checkpoint(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.shard.commitlog
    write_checkpoint(table)
    monkeypatch.setattr(checkpoint, "second_reading", lambda log, where: pytest.fail("there is one"))
    write_checkpoint(table)


@pytest.mark.parametrize("filled", [False, True], ids=["", "filled again"])
def test_a_log_that_was_cleaned_up_meanwhile_gets_no_checkpoint(lake: Lake, *, filled: bool) -> None:
    table = lake.shard.commitlog
    log = Path(table.root.location, table.path, "_delta_log")
    if filled:  # by a writer who took the name for the end of the log
        log.joinpath(f"{1:020}.json").write_bytes(log.joinpath(f"{2:020}.json").read_bytes())
    else:
        log.joinpath(f"{1:020}.json").unlink()
    with pytest.raises(OSError, match=r"no checkpoint .*1\.json was deleted meanwhile by a clean-up"):
        write_checkpoint(table)
    assert not [name for name in names(table) if "checkpoint" in name]


def test_a_hint_at_a_checkpoint_that_is_not_there_does_not_stop_checkpoints(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_EVERY", 4)
    log = Path(lake.shard.commitlog.root.location, lake.shard.commitlog.path, "_delta_log")
    (log / "_last_checkpoint").write_text('{"version":99999,"size":3}')
    other_commits(lake, 5)
    assert lake.shard.commitlog.log.view.checkpoint >= 4


def test_a_handle_that_slept_through_a_clean_up_goes_on(lake: Lake, clock: Clock) -> None:
    sleeper = Shard(lake.store.root, lake.shard_name)
    assert sleeper.commitlog.version >= 0
    for _ in range(2):
        other_commits(lake, 3)
        write_checkpoint(lake.shard.commitlog)
        clock.ms += LEAST_AGE_MS + 60_000
    assert clean_up(lake.shard.commitlog)
    sleeper.commitlog.refresh()
    assert sleeper.positions() == lake.shard.positions()
    assert lake.consume().status == "committed"
    assert lake.audit() == []


@pytest.mark.parametrize("filled", [False, True], ids=["", "filled again"])
@pytest.mark.parametrize("refreshes", [False, True])
def test_a_freed_name_is_not_taken_for_the_end_of_the_log_by_any_clock(
    lake: Lake, *, refreshes: bool, filled: bool
) -> None:
    """As where a host whose clock is ahead has cleaned up behind a checkpoint of seconds: the kept view looks young.
    ``filled``: the name before the freed one holds the entry of a writer who took it for the end."""
    older = lake.shard
    assert older.commitlog.version >= 0
    other_commits(lake, 1)
    kept = lake.shard
    assert kept.commitlog.version == older.commitlog.version + 1
    other_commits(lake, 3)
    clean_log(lake.shard.commitlog)
    if filled:
        with pytest.raises(StaleAttempt):
            older.commitlog.put([], {"x": 1}, host=lake.host)
        assert kept.commitlog.log.has_entry(kept.commitlog.version)
    if refreshes:
        kept.commitlog.refresh()
        assert kept.positions() == lake.shard.positions()
    else:
        with pytest.raises(StaleAttempt):
            kept.commitlog.put([], {"x": 1}, host=lake.host)
    assert lake.shard.positions().get("x") is None


def test_a_checkpoint_that_is_written_late_does_not_hide_a_clean_up(lake: Lake) -> None:
    """By a process that slept while the log behind its checkpoint went."""
    table = lake.shard.commitlog
    write_checkpoint(table)
    late = Path(table.root.location, checkpoint_name(table, table.version))
    kept, content = lake.shard, late.read_bytes()
    assert kept.commitlog.log.view.checkpoint == kept.commitlog.version
    other_commits(lake, 3)
    clean_log(lake.shard.commitlog)
    late.write_bytes(content)
    with pytest.raises(StaleAttempt):
        kept.commitlog.put([], {"x": 1}, host=lake.host)
    assert kept.commitlog.log.view.version == table.version + 3


def test_a_log_that_the_delta_library_cannot_read_is_an_error_in_words(lake: Lake) -> None:
    wrong: dict[str, Row] = {"add": {"modificationTime": "x"}}
    PlantedShard(lake.folder, lake.shard_name).edit_log(lambda kind, action: action | wrong.get(kind, {}))
    with pytest.raises(LogDamaged, match="modificationTime") as raised:
        write_checkpoint(lake.shard.commitlog)
    assert "\n" not in str(raised.value), "the stack of the library"
    assert "Run 'rmq audit --full'" in str(raised.value)


# --- the hint at the newest checkpoint -------------------------------------------------------------------------------

REQUEST = MaintainRequest(request_id="2026-01-03-checkpoint", actor=TESTS, steps=frozenset({Step.CHECKPOINT}))
NO_CHECKPOINT = "_last_checkpoint names a checkpoint of version {}, and there is none"


@dataclass(frozen=True, slots=True)
class Hinted:
    """A store whose tables have hints."""

    store: LakeStore

    @property
    def tables(self) -> list[LakeTable]:
        (shard,) = self.store.shards()
        tables = [shard.commitlog, *(kind.table(shard) for kind in KINDS)]
        for table in tables:
            table.refresh()
        return tables

    def hint(self, text: str) -> None:
        for table in self.tables:
            self.store.root.replace(hint_name(table), text.encode())

    def findings(self) -> set[tuple[str, str | None, str | None]]:
        return {(one.problem, one.file, one.detail) for one in audit(self.store)}

    def maintain(self, request: MaintainRequest = REQUEST) -> list[bool]:
        """Of which tables a checkpoint was written, or the hint."""
        (shard,) = self.store.shards()
        return [report.checkpoint for report in maintain(shard, request, Host())]


def hint_name(table: LakeTable) -> str:
    return f"{table.path}/_delta_log/_last_checkpoint"


@pytest.fixture
def hinted(root: Root) -> Hinted:
    """The commit log has a checkpoint of its newest version, ``offsets`` an older one, and the others none."""
    (shard,) = small_store(root, ["s1"]).store.shards()
    shard.offsets.refresh()
    write_checkpoint(shard.offsets)
    for _ in range(2):
        shard.offsets.put([], {}, host=Host())
    shard.commitlog.refresh()
    write_checkpoint(shard.commitlog)
    return Hinted(LakeStore.open(root))


@pytest.mark.parametrize(
    ("hint", "detail"),
    [
        ("{", "_last_checkpoint is damaged"),
        ('{"version":999,"size":5}', NO_CHECKPOINT.format(999)),
        ('{"version":0,"size":5}', NO_CHECKPOINT.format(0)),
    ],
    ids=["damaged", "later", "earlier"],
)
def test_a_hint_at_no_checkpoint_is_a_finding_and_the_maintenance_writes_it_again(
    hinted: Hinted, hint: str, detail: str
) -> None:
    assert hinted.findings() == set()
    hinted.hint(hint)
    names = ["commitlog", *(kind.name for kind in KINDS)]
    assert hinted.findings() == {(Problem.CHECKPOINT_UNREADABLE, name, detail) for name in names}
    assert hinted.maintain(replace(REQUEST, dry_run=True)) == [True] * 4
    assert hinted.maintain() == [True] * 4
    assert hinted.findings() == set()
    for table in hinted.tables:
        written = json.loads(table.root.read(hint_name(table)))
        content = table.root.read(checkpoint_name(table, table.version))
        assert (written["version"], written["size"]) == (table.version, pq.read_metadata(BytesIO(content)).num_rows)
        if table.root.is_local:
            assert DeltaTable(table.root.uri_of(table.path)).version() == table.version
    assert hinted.maintain() == [False] * 4


def test_a_folder_in_the_place_of_a_hint_is_named_and_once_it_is_gone_the_maintenance_writes_the_hint(
    lake: Lake,
) -> None:
    """Nothing removes a folder that it did not make."""
    store, table = lake.store, lake.shard.offsets
    write_checkpoint(table)
    folder = lake.folder / hint_name(table)
    folder.unlink()
    folder.mkdir()
    (finding,) = audit(store)
    assert (finding.problem, finding.file) == (Problem.CHECKPOINT_UNREADABLE, "offsets")
    assert str(finding.detail).endswith("/_last_checkpoint is not a file")
    assert "is not a file, remove that first" in ADVICE[Problem.CHECKPOINT_UNREADABLE].action
    with pytest.raises(StoreUnusable, match=r"_last_checkpoint at .*: Is a directory. Remove the folder"):
        Hinted(store).maintain()
    folder.rmdir()
    Hinted(store).maintain()
    assert audit(store) == []


def test_the_maintenance_writes_a_damaged_checkpoint_of_the_newest_version_again(hinted: Hinted) -> None:
    commitlog, *_ = hinted.tables
    hinted.store.root.replace(checkpoint_name(commitlog, commitlog.version), b"PAR1 no checkpoint PAR1")
    assert {(problem, file) for problem, file, _ in hinted.findings()} == {(Problem.CHECKPOINT_UNREADABLE, "commitlog")}
    assert hinted.maintain()[0]
    assert hinted.findings() == set()
    assert not hinted.maintain()[0]


@pytest.mark.parametrize("has_hint", [True, False], ids=["an older one", "none"])
@pytest.mark.parametrize("entries_after", [0, 1])
def test_a_damaged_checkpoint_that_the_hint_does_not_name_is_a_finding_and_the_maintenance_writes_it_again(
    lake: Lake, has_hint: bool, entries_after: int
) -> None:
    """As after a crash between the two writes. The Delta library does not open the table."""
    table = lake.shard.commitlog
    if has_hint:
        write_checkpoint(table)
    other_commits(lake, 2)
    table.refresh()
    damaged = table.version
    table.root.replace(checkpoint_name(table, damaged), b"PAR1 no checkpoint PAR1")
    other_commits(lake, entries_after)
    (finding,) = audit(LakeStore.open(lake.shard.root))
    assert (finding.problem, finding.file) == (Problem.CHECKPOINT_UNREADABLE, "commitlog")
    assert f"{damaged:020d}.checkpoint.parquet is damaged" in str(finding.detail)
    assert Hinted(LakeStore.open(lake.shard.root)).maintain()[0]
    assert audit(LakeStore.open(lake.shard.root)) == []
    assert DeltaTable(table.root.uri_of(table.path)).version() == damaged + entries_after


def test_the_doctor_counts_the_entries_behind_the_newest_checkpoint_that_is_there(hinted: Hinted) -> None:
    hinted.hint('{"version":999,"size":5}')
    assert [entries_since_checkpoint(table) for table in hinted.tables] == [table.version for table in hinted.tables]


def test_a_hint_at_an_older_checkpoint_than_the_newest_is_sound(lake: Lake) -> None:
    table = lake.shard.commitlog
    write_checkpoint(table)
    hint = table.root.read(hint_name(table))
    other_commits(lake, 2)
    table.refresh()
    write_checkpoint(table)
    table.root.replace(hint_name(table), hint)
    assert lake.audit() == []
    assert lake.shard.commitlog.log.checkpoint_damage() is None


def test_a_hint_at_a_checkpoint_of_another_tool_is_sound(lake: Lake) -> None:
    """In several parts, which rmq does not read."""
    table = lake.shard.commitlog
    part = f"{table.path}/_delta_log/{table.version:020d}.checkpoint.{1:010d}.{1:010d}.parquet"
    table.root.replace(part, b"PAR1")
    table.root.replace(hint_name(table), json.dumps({"version": table.version, "size": 9, "parts": 1}).encode())
    assert table.log.checkpoint_damage() is None


def test_a_hint_that_a_clean_up_has_overtaken_is_sound(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that it named is gone by the time that it is read, and the hint names a newer one."""
    table = lake.shard.commitlog
    write_checkpoint(table)
    older = table.root.read(hint_name(table))
    (Path(table.root.location) / checkpoint_name(table, table.version)).unlink()
    other_commits(lake, 1)
    table.refresh()
    write_checkpoint(table)
    newer = table.root.read(hint_name(table))
    hints = iter([older, newer])
    monkeypatch.setattr(DeltaLog, "_hint", lambda log: next(hints))
    assert table.log.checkpoint_damage() is None


def test_a_hint_is_not_set_back_by_a_handle_that_is_behind(lake: Lake) -> None:
    table, behind = lake.shard.commitlog, lake.shard.commitlog
    write_checkpoint(behind)
    other_commits(lake, 1)
    table.refresh()
    write_checkpoint(table)
    write_checkpoint(behind)
    assert json.loads(table.root.read(hint_name(table)))["version"] == table.version
