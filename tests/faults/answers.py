"""A store that answers wrongly: what it does with a PUT is a test's decision; what is in the log stays the truth."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from rmq_store.commit.append import PutAnswer
from rmq_store.lake.table import object_store
from rmq_store.lake.table.delta_log import LOG_FOLDER
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.utils.host import Host
from tests.faults.stores import HOUR_MS, Lake

_real_put = Root.put_once


class NoAnswer(OSError):
    """What a client sees when the store falls silent."""


@dataclass(frozen=True)
class InFlight:
    """An entry that is held back on its way: it still lands where its name is free."""

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
    """One attempt to create an entry of a log."""

    root: Root
    name: str
    content: bytes
    answers: list[object_store.Put] = field(default_factory=list)

    @property
    def table(self) -> str:
        """``<shard>/<table>``."""
        return self.name.split(f"/{LOG_FOLDER}/")[0]

    @property
    def actions(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.content.splitlines()]

    @property
    def action(self) -> str:
        return str(self.actions[0]["commitInfo"]["operation"]).lower()

    @property
    def positions(self) -> Mapping[str, int]:
        return {action["txn"]["appId"]: action["txn"]["version"] for action in self.actions if "txn" in action}

    def send(self) -> None:
        """The real one."""
        self.answers.append(_real_put(self.root, self.name, self.content))

    def held_back(self) -> InFlight:
        """It is on its way, and not there."""
        return InFlight(Path(self.root.location, self.name), self.content)


def answer_puts(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Put], None]) -> None:
    """``answer`` takes the place of every PUT of an entry. What it does not send does not happen; the store says what the
    last ``send`` was told, or that all is well."""

    def put_once(root: Root, name: str, content: bytes) -> object_store.Put:
        put = Put(root, name, content)
        try:
            answer(put)
        except NoAnswer as error:
            return object_store.Put(PutAnswer.SILENT, 0, error)
        return put.answers[-1] if put.answers else object_store.Put(PutAnswer.CREATED, root.local_time_ms())

    monkeypatch.setattr(Root, "put_once", put_once)


def fall_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing of any log can be read or written."""

    def silence(*arguments: object, **options: object) -> None:
        raise NoAnswer("silence")

    monkeypatch.setattr(Root, "look_at", silence)
    monkeypatch.setattr(Root, "names_in", silence)
    put = object_store.Put(PutAnswer.SILENT, 0, NoAnswer("silence"))
    monkeypatch.setattr(Root, "put_once", lambda *arguments: put)


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
    monkeypatch.setattr(Root, "local_time_ms", staticmethod(lambda: clock.ms))
    return clock.host


def other_commits(lake: Lake, count: int) -> None:
    """Commits that have nothing to do with the group."""
    done = len(lake.commits("reset", "other"))
    for n in range(done, done + count):
        lake.reset(f"2026-01-01-other-{n}", 0, group="other")


def clean_log(table: LakeTable) -> None:
    """A checkpoint of the newest version; what is older is removed from the log. A real clean-up removes it hours later."""
    table.refresh()
    DeltaTable(table.root.uri_of(table.path)).create_checkpoint()
    for file in Path(table.root.location, table.path, LOG_FOLDER).glob("*.json"):
        if int(file.stem) < table.version:
            file.unlink()


def clean_log_after_hours(table: LakeTable, clock: Clock) -> None:
    """As a real clean-up: what it removes lies behind a checkpoint of two hours."""
    clean_log(table)
    clock.ms += 2 * HOUR_MS
