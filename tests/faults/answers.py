"""A store that answers wrongly: what it does with a PUT is a test's decision; what is in the log stays the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rmq_store.lake.table import delta_table
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.utils.host import Host
from tests.faults.stores import Lake

_real_put = LakeTable.put


class NoAnswer(DeltaError):
    """What a client sees when the store falls silent."""


@dataclass(frozen=True)
class InFlight:
    """The one object that a commit writes, held back on its way: it still lands where its name is free."""

    path: Path
    content: bytes

    def arrive(self) -> bool:
        """Whether the store took it, as for any PUT with If-None-Match."""
        try:
            with self.path.open("xb") as file:
                file.write(self.content)
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class Put:
    """One call of ``LakeTable.put``."""

    table: LakeTable
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def action(self) -> str:
        return str(self.options["metadata"]["action"])

    @property
    def positions(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self.arguments[1]
        return found

    def send(self) -> None:
        """The real one."""
        _real_put(self.table, *self.arguments, **self.options)

    def held_back(self) -> InFlight:
        """What ``send`` would write now. It is made on a copy of the table, so the table is as it was."""
        log = Path(self.table.root.location, self.table.path)
        with TemporaryDirectory() as folder:
            copytree(log, Path(folder, self.table.path))
            twin = LakeTable.open(Root.parse(folder), self.table.path, self.table.schema, self.table.partition_by)
            _real_put(twin, *self.arguments, **self.options)
            twin.refresh()
            name = f"_delta_log/{twin.version:020}.json"
            return InFlight(log / name, Path(folder, self.table.path, name).read_bytes())


def answer_puts(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Put], None]) -> None:
    """``answer`` takes the place of every put of every table. What it does not send does not happen."""
    monkeypatch.setattr(LakeTable, "put", lambda table, *arguments, **options: answer(Put(table, arguments, options)))


def fall_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing of any log can be read."""

    def silence(*arguments: object, **options: object) -> None:
        raise OSError("silence")

    monkeypatch.setattr(DeltaTable, "update_incremental", silence)
    monkeypatch.setattr(delta_table, "DeltaTable", silence)


@dataclass
class Clock:
    """The clock of the hosts and of the store. It stands still but for sleeping, which takes ``stride_ms`` at least.

    ``while_asleep``: what happens meanwhile, once each.
    """

    ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    stride_ms: int = 0
    while_asleep: list[Callable[[], object]] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.ms += max(round(seconds * 1000), self.stride_ms)
        if self.while_asleep:
            self.while_asleep.pop(0)()

    @property
    def host(self) -> Host:
        return Host(now_ms=lambda: self.ms, sleep=self.sleep, uniform=lambda least, most: most)


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Host:
    monkeypatch.setattr(Root, "server_time_ms", lambda self, host: clock.ms)
    return clock.host


def other_commits(lake: Lake, count: int) -> None:
    """Commits that have nothing to do with the group."""
    done = len(lake.commits("reset", "other"))
    for n in range(done, done + count):
        lake.reset(f"2026-01-01-other-{n}", 0, group="other")


def clean_log(table: LakeTable) -> None:
    """A checkpoint of the newest version; what is older is removed from the log, as its retention does in time."""
    table.refresh()
    table._handle.create_checkpoint()
    for file in Path(table.root.location, table.path, "_delta_log").glob("*.json"):
        if int(file.stem) < table.version:
            file.unlink()
