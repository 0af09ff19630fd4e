"""A run that sleeps between its check of the staged files and its PUT, while a vacuum deletes them: it never commits a file
that is gone. A vacuum's own entry is the guard, and no clock is needed for it (``docs/decisions/0011-own-log.md``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rmq_store.commit.ctl import Action, Ctl, StagedFile
from rmq_store.commit.decide import MAX_RUN_AGE_MS
from rmq_store.errors import StagedFileGone, StaleAttempt
from rmq_store.lake.commit import commit as steps
from rmq_store.lake.commit.derived_tables import QUEUES
from rmq_store.lake.commit.dispatch import staged
from rmq_store.lake.commit.rebuild import rebuild
from rmq_store.lake.commit.tail import Tail
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_entry import VACUUM, entry_bytes
from rmq_store.lake.table.object_store import Put, Root
from rmq_store.utils.host import Host
from tests.faults import test_commit_loop as loop
from tests.faults.stores import TESTS, Lake, write_broker

STAGED = loop.ctl_file([Ctl("b" * 32, Action.SEND, TESTS)])
VACUUMED = Ctl("d" * 32, Action.VACUUM, TESTS, request_id="the vacuum")


def vacuum_entry() -> bytes:
    file = loop.ctl_file([VACUUMED])
    return entry_bytes(
        operation=VACUUM,
        now_ms=0,
        commit_ids=[VACUUMED.commit_id],
        files=[file],
        partition_by=tables.COMMITLOG_LAYOUT.partition_by,
    )


@dataclass
class Store(loop.Store):
    """What it does before the first PUT, while the run sleeps."""

    asleep: list[Callable[[], object]] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=lambda: {f"s/commitlog/{STAGED.path}": STAGED.size})

    def size(self, name: str) -> int:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def put_once(self, name: str, content: bytes) -> Put:
        if self.asleep:
            self.asleep.pop()()
        return super().put_once(name, content)


@pytest.fixture
def _staged_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "stage_ctl", lambda root, path, ctls, attempt: loop.ctl_file(ctls, attempt))


def commit(store: Store, *, started_ms: int = 0) -> steps.Committed:
    shard = loop.shard_of(store)
    shard.remember(loop.ctl_file([VACUUMED]).path, (VACUUMED,))
    host = Host(lambda: store.clock_ms, lambda n: bytes(n), lambda seconds: None, lambda least, most: most)
    proposal = replace(loop.proposal(), files=(STAGED,))
    return steps.commit(shard, proposal, host, started_ms=started_ms)


def vacuum(store: Store, *, later_ms: int = 0, deletes: bool = True) -> None:
    store.clock_ms += later_ms
    store.log.append(vacuum_entry())
    if deletes:
        store.files.clear()


def committed(store: Store) -> bool:
    return any(loop.proposal().ctl.commit_id in entry.commit_ids for entry in store.entries())


@pytest.mark.usefixtures("_staged_in_memory")
def test_without_a_vacuum_the_run_commits() -> None:
    store = Store()
    store.asleep = [lambda: store.log.append(loop.entry_of(loop.IMPORT))]
    commit(store)
    assert committed(store)


@pytest.mark.usefixtures("_staged_in_memory")
def test_whose_files_a_vacuum_deleted_does_not_commit_even_if_no_clock_shows_the_time() -> None:
    store = Store()
    store.asleep = [lambda: vacuum(store)]
    with pytest.raises(StagedFileGone):
        commit(store)
    assert not committed(store)


@pytest.mark.usefixtures("_staged_in_memory")
def test_who_slept_for_days_does_not_commit_while_the_vacuum_still_deletes() -> None:
    store = Store()
    store.asleep = [lambda: vacuum(store, later_ms=2 * MAX_RUN_AGE_MS, deletes=False)]
    with pytest.raises(StaleAttempt, match="began 48 h ago"):
        commit(store)
    assert not committed(store)


@pytest.mark.usefixtures("_staged_in_memory")
def test_a_young_run_commits_behind_a_vacuum() -> None:
    store = Store()
    store.asleep = [lambda: vacuum(store, later_ms=1000, deletes=False)]
    commit(store)
    assert committed(store)


# --- derived tables --------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "store")
    lake.load(write_broker(tmp_path / "broker"))
    return lake


def file_of(lake: Lake, file: StagedFile) -> Path:
    return Path(lake.store.root.location, lake.shard.consumequeue.path, file.path)


def test_a_dispatcher_that_slept_stages_its_rows_again(lake: Lake) -> None:
    table = lake.shard.consumequeue
    (file,) = staged(lake.shard, QUEUES, Tail(lake.shard.ctls_in(lake.shard.ctl_index.since(0))), lake.host)
    lake.shard.consumequeue.put([], {}, host=lake.host, operation=VACUUM)
    with pytest.raises(StaleAttempt):
        table.put([file], {}, host=lake.host)


def test_a_rebuild_that_slept_stages_its_rows_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.shard.consumequeue
    table.put([], {}, host=lake.host, removed=table.files().column("path").to_pylist())
    real, sleeps = Root.put_once, iter([True])

    def put_once(root: Root, name: str, content: bytes) -> Put:
        if "REBUILD" in content.decode() and next(sleeps, False):
            lake.shard.consumequeue.put([], {}, host=lake.host, operation=VACUUM)
            live = set(lake.shard.consumequeue.files().column("path").to_pylist())
            folder = Path(root.location, table.path)
            for path in [path for path in folder.glob("*.parquet") if path.name not in live]:
                path.unlink()
        return real(root, name, content)

    monkeypatch.setattr(Root, "put_once", put_once)
    reports = {report.table: report for report in rebuild(lake.shard, lake.host)}
    assert reports["consumequeue"].rebuilt
    live = lake.shard.consumequeue.files().column("path").to_pylist()
    assert live
    assert all(Path(lake.store.root.location, table.path, path).exists() for path in live)
