"""A vacuum deletes nothing that a version names, that a reader in flight uses, or that a run which can still commit has staged:
after random histories of runs, joins, checkpoints and clean-ups, with hosts whose clocks are wrong, and runs that sleep between
their last check and their PUT while a vacuum runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from rmq_store.commit.ctl import Action, Actor, Ctl, Proposal, StagedFile
from rmq_store.commit.decide import MAX_RUN_AGE_MS, MAX_SKEW_MS
from rmq_store.errors import ClockSkew, StagedFileGone, StaleAttempt
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.maintain.vacuum import VacuumRequest, vacuum
from rmq_store.lake.table import object_store, tables
from rmq_store.lake.table.checkpoint import clean_up, write_checkpoint
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.maintain.orphans import DEFAULT_AGE_MS, LEAST_AGE_MS
from rmq_store.utils.host import Host, day_of, epoch_ms

HOUR_MS = 3_600_000
ANA = Actor("ana", "tests")
AGES = st.sampled_from([LEAST_AGE_MS, DEFAULT_AGE_MS])
HOURS = st.sampled_from([0, 1, 3, 23, 26, 49, 100])
SKEWS = st.sampled_from([0, 0, 0, MAX_SKEW_MS - 1000, 1000 - MAX_SKEW_MS, 72 * HOUR_MS, -72 * HOUR_MS])
STEPS = st.one_of(
    st.tuples(st.just("stage"), SKEWS),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("set clocks"), st.just(0)),
    st.tuples(st.just("commit, asleep for"), HOURS),
    st.tuples(st.just("join"), st.just(0)),
    st.tuples(st.just("hours"), HOURS),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("checkpoint"), st.just(0)),
    st.tuples(st.just("vacuum"), AGES),
)


@dataclass
class Run:
    started_ms: int
    skew_ms: int
    file: StagedFile
    began_ms: int
    """By the store's clock."""
    never_set: bool = True


@dataclass
class World:
    folder: Path
    now_ms: int = field(default_factory=epoch_ms)
    """The store's clock."""
    shard: Shard = field(init=False)
    runs: list[Run] = field(default_factory=list)
    readers: list[tuple[int, set[str]]] = field(default_factory=list)
    asleep: list[Callable[[], object]] = field(default_factory=list)
    names: int = 0

    def host(self, skew_ms: int = 0) -> Host:
        return Host(now_ms=lambda: self.now_ms + skew_ms, sleep=lambda seconds: None)

    def opened(self) -> Shard:
        shard = Shard(Root.parse(str(self.folder)), "s")
        shard.commitlog.refresh()
        return shard

    def stamp(self) -> None:
        """Files have the age that the store's clock gives them."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_nlink and path not in self._stamped:
                os.utime(path, (self.now_ms / 1000, self.now_ms / 1000))
                self._stamped.add(path)

    def __post_init__(self) -> None:
        self._stamped: set[Path] = set()
        root = Root.parse(str(self.folder))
        LakeTable.create(root, "s/commitlog", tables.COMMITLOG_LAYOUT)
        LakeTable.create(root, "s/consumequeue", tables.CONSUMEQUEUE_LAYOUT)
        self.shard = Shard(root, "s")
        self.stamp()

    def put_once(self, root: Root, name: str, content: bytes) -> object_store.Put:
        if self.asleep:
            self.asleep.pop()()
        answer = REAL_PUT(root, name, content)
        self.stamp()
        return answer

    def staged(self, rows: int = 1, *, data_change: bool = True) -> StagedFile:
        self.names += 1
        table = pa.Table.from_pylist([{"commit_id": "c", "part": 0, "rel": n} for n in range(rows)], tables.OUTCOME)
        day = day_of(self.now_ms)
        file = NewFile(kind="outcome", name=f"f{self.names}", rows=table, store_day=day)
        staged = stage(self.shard.root, self.shard.commitlog.path, file)
        self.stamp()
        return replace(staged, data_change=data_change)

    def live(self) -> set[str]:
        return set(self.opened().commitlog.files().column("path").to_pylist())

    def there(self, path: str) -> bool:
        return (self.folder / "s/commitlog" / path).exists()

    # --- steps ---

    def happen(self, what: str, value: int) -> None:
        match what:
            case "stage":
                self.runs.append(Run(self.now_ms + value, value, self.staged(), self.now_ms))
            case "set clocks":
                self.runs = [replace(run, skew_ms=0, never_set=run.skew_ms == 0) for run in self.runs]
            case "commit" if self.runs:
                self.commit(self.runs.pop(0))
            case "commit, asleep for" if self.runs:
                self.asleep = [lambda: self.sleep(value)]
                self.commit(self.runs.pop(0))
                self.asleep = []
            case "join":
                self.join()
            case "hours":
                self.now_ms += value * HOUR_MS
            case "read":
                self.readers.append((self.now_ms, self.live()))
            case "checkpoint":
                table = self.opened().commitlog
                write_checkpoint(table)
                self.stamp()
                clean_up(table)
            case "vacuum":
                self.vacuum(value)

    def sleep(self, hours: int) -> None:
        self.now_ms += hours * HOUR_MS
        self.vacuum(LEAST_AGE_MS)

    def commit(self, run: Run) -> None:
        host = self.host(run.skew_ms)
        ctl = Ctl(host.new_commit_id(), Action.SEND, ANA, request_id="r")
        try:
            commit(self.opened(), Proposal(ctl, {}, {}, (run.file,)), host, started_ms=run.started_ms)
        except (StaleAttempt, StagedFileGone, ClockSkew) as error:
            event(type(error).__name__)

    def join(self) -> None:
        shard = self.opened()
        paths = [path for path in sorted(self.live()) if path.startswith("kind=outcome/")][:2]
        if len(paths) == 2:
            host = self.host()
            ctl = Ctl(host.new_commit_id(), Action.SEND, ANA, request_id="r")
            file = self.staged(2, data_change=False)
            commit(shard, Proposal(ctl, {}, {}, (file,), removed=tuple(paths)), host, started_ms=self.now_ms)

    def end(self) -> None:
        """Everything that no version names is deleted in the end."""
        self.runs, self.readers = [], []
        self.happen("checkpoint", 0)
        self.now_ms += 4 * DEFAULT_AGE_MS
        self.happen("checkpoint", 0)
        self.vacuum(DEFAULT_AGE_MS)
        folder = self.folder / "s/commitlog"
        assert {str(path.relative_to(folder)) for path in folder.glob("kind=*/*")} == self.live()

    def vacuum(self, age_ms: int) -> int:
        before = {path for _, paths in self.readers for path in paths if self.there(path)}
        shard = self.opened()
        report = vacuum(shard, shard.commitlog, VacuumRequest(request_id="v", actor=ANA, age_ms=age_ms), self.host())
        self.stamp()
        gone = {file.path for file in report.deleted}
        for read_ms, paths in self.readers:
            if self.now_ms - read_ms < age_ms:
                assert not gone & paths & before, "a reader in flight uses it"
        for run in self.runs:
            if run.never_set and abs(run.skew_ms) < MAX_SKEW_MS and self.now_ms - run.began_ms <= MAX_RUN_AGE_MS:
                assert self.there(run.file.path), "its run can still commit"
        assert not [file.path for file in report.deleted if self.there(file.path)]
        event("deleted" if gone else "nothing deleted")
        return len(gone)


REAL_PUT = Root.put_once


TWICE = ("vacuum", LEAST_AGE_MS), ("hours", 23), ("vacuum", LEAST_AGE_MS)
RUN = ("stage", 0), ("commit", 0)


@pytest.mark.slow
@settings(max_examples=25)
@example([("stage", 0), ("hours", 23), ("vacuum", LEAST_AGE_MS), ("commit", 0)])
@example([("stage", 0), ("commit, asleep for", 49)])
@example([*RUN, *RUN, ("hours", 26), ("read", 0), ("join", 0), ("vacuum", LEAST_AGE_MS)])
@example(
    [
        *RUN,
        *RUN,
        ("hours", 26),
        ("read", 0),
        ("join", 0),
        *RUN,
        ("checkpoint", 0),
        ("hours", 3),
        *RUN,
        ("checkpoint", 0),
        *TWICE,
    ]
)
@given(st.lists(STEPS, min_size=5, max_size=25))
def test_a_vacuum_deletes_nothing_that_anything_needs(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        with (
            mock.patch("os.fsync"),
            mock.patch.object(Root, "local_time_ms", staticmethod(lambda: world.now_ms)),
            mock.patch.object(Root, "server_time_ms", side_effect=lambda host: world.now_ms),
            mock.patch.object(Root, "put_once", lambda self, name, content: world.put_once(self, name, content)),
        ):
            for step in steps:
                world.happen(*step)
                if step[0] != "hours":
                    assert all(map(world.there, world.live())), f"a live file is gone after {step}"
            world.end()
