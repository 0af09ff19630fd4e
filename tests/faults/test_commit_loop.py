"""The real ``commit`` of ``lake/commit/commit.py`` and the real log, against every way in which a store may answer (P3, P4).

A store in memory holds the log. Wherever it is asked something it may do what a store does: answer; take a PUT and lose the
reply; lose the PUT; let it arrive later; fall silent, once or from then on; and between two requests an operator may move the
group, or an import may commit something else. Every sequence with at most ``MISFORTUNES`` of these is played: each time the
last choice that had another option takes its next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from rmq_store.commit.append import PutAnswer
from rmq_store.commit.ctl import Action, Consumed, Ctl, Proposal, StagedFile
from rmq_store.commit.positions import Claim, Outcome, QueueRange, grp_id, import_id, off_id, own_id, tally
from rmq_store.errors import CommitOutcomeUnknown, RmqError, StaleAttempt, StoreUnusable
from rmq_store.lake.commit import commit as steps
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_entry import Entry, entry_bytes, parse_entry, protocol_action
from rmq_store.lake.table.delta_table import metadata_action
from rmq_store.lake.table.object_store import Put
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import statistics
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.faults.answers import NoAnswer
from tests.faults.stores import OPERATOR, TESTS

MISFORTUNES = 5
QUEUE = MessageQueue("T", "b", 0)
GRP, OWN, OFF = grp_id("g"), own_id("g"), off_id("g", QUEUE)
DAY = "1970-01-01"


class Choices:
    """A path through the tree of choices; 0 is always what goes well."""

    def __init__(self, path: list[int]) -> None:
        self._given = list(path)
        self.taken: list[int] = []
        self.offered: list[int] = []

    def choose(self, options: int) -> int:
        """One of ``options``, as long as there may be misfortunes."""
        if sum(map(bool, self.taken)) >= MISFORTUNES:
            return 0
        chosen = self._given[len(self.taken)] if len(self.taken) < len(self._given) else 0
        self.taken.append(chosen)
        self.offered.append(options)
        return chosen

    def following(self) -> list[int] | None:
        """The next path, None after the last one."""
        path = list(self.taken)
        while path and path[-1] + 1 == self.offered[len(path) - 1]:
            path.pop()
        return [*path[:-1], path[-1] + 1] if path else None


# --- commits ---------------------------------------------------------------------------------------------------------


def ctl_file(ctls: Sequence[Ctl], attempt: int = 0) -> StagedFile:
    """What ``stage_ctl`` returns, without the file."""
    stats = statistics(tables.ctl_table(ctls), tables.COMMITLOG_LAYOUT.stats)
    return StagedFile(f"{ctls[0].commit_id}-{attempt}", "ctl", 1, len(ctls), stats, DAY)


RESET = Ctl("f" * 32, Action.RESET, OPERATOR, request_id="the reset", group="g", epoch=4)
IMPORT = Ctl("e" * 32, Action.IMPORT, TESTS, request_id="the import")
MOVES = {RESET: {GRP: 4, OFF: 7}, IMPORT: {import_id("b"): 900}}
BEFORE = {GRP: 3, OWN: Claim(1, 120).packed(), OFF: 0}


@cache
def entry_of(ctl: Ctl) -> bytes:
    return entry_bytes(
        operation=str(ctl.action).upper(),
        now_ms=0,
        commit_ids=[ctl.commit_id],
        files=[ctl_file([ctl])],
        partition_by=tables.COMMITLOG_LAYOUT.partition_by,
        positions=MOVES[ctl],
    )


@cache
def first_entry() -> bytes:
    metadata = metadata_action(tables.COMMITLOG_LAYOUT)
    return entry_bytes(operation="CREATE TABLE", now_ms=0, first=[protocol_action(), metadata], positions=BEFORE)


def proposal() -> Proposal:
    range_ = QueueRange(QUEUE, 0, 5)
    consumed = Consumed(range_, 3, {Outcome.ACKED: tally(range(5))})
    ctl = Ctl("a" * 32, Action.CONSUME, TESTS, request_id="ours", group="g", epoch=3, consumed=(consumed,))
    held = Claim(1, 120)
    return Proposal(ctl, {GRP: 3, OWN: held.packed(), OFF: 0}, {GRP: 3, OWN: Claim(1, 0).packed(), OFF: 5})


# --- the store -------------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """The log in memory, with the calls of ``Root`` that the commit makes."""

    choices: Choices = field(default_factory=lambda: Choices([]))
    clock_ms: int = 0
    log: list[bytes] = field(default_factory=lambda: [first_entry()])
    flying: list[tuple[int, bytes]] = field(default_factory=list)
    silent: bool = False
    others: list[Ctl] = field(default_factory=lambda: [RESET, IMPORT])
    is_local = True
    sent: dict[int, set[bytes]] = field(default_factory=dict)
    """The contents that were sent for each version."""

    def uri_of(self, name: str) -> str:
        return name

    def server_time_ms(self, host: Host) -> int:
        return self.clock_ms

    def look_at(self, name: str) -> tuple[bytes | None, int]:
        """Before the answer: nothing, silence, silence from now on, a late PUT arrives, another commits."""
        if not name.endswith(".json"):
            return None, self.clock_ms
        if self.silent:
            raise NoAnswer("from now on")
        options: list[str | Ctl] = ["nothing", "silence", "silence from now on"]
        options += [*["late"] * bool(self.flying), *self.others]
        match options[self.choices.choose(len(options))]:
            case "silence":
                raise NoAnswer("once")
            case "silence from now on":
                self.silent = True
                raise NoAnswer("from now on")
            case "late":
                self.arrive()
            case Ctl() as other:
                self.others.remove(other)
                self.log.append(entry_of(other))
        version = int(name[-25:-5])
        return (self.log[version] if version < len(self.log) else None), self.clock_ms

    def names_in(self, folder: str, after: str = "") -> tuple[list[str], int]:
        return [f"{version:020d}.json" for version in range(len(self.log))], self.clock_ms

    def tail(self, name: str, most: int) -> tuple[bytes, int]:
        version = int(name[-25:-5])
        if version >= len(self.log):
            raise FileNotFoundError(name)
        return self.log[version][-most:], len(self.log[version])

    def put_once(self, name: str, content: bytes) -> Put:
        version = int(name[-25:-5])
        self.sent.setdefault(version, set()).add(content)
        if self.silent:
            return self._silence()
        others = [RESET] if RESET in self.others else []
        chosen = self.choices.choose(5 + len(others))
        if chosen == 5:  # an operator is faster
            self.others.remove(RESET)
            self.log.append(entry_of(RESET))
        if chosen == 4:
            return Put(PutAnswer.REFUSED, error=NoAnswer("refused, once"))
        if chosen == 3:
            self.flying.append((version, content))
        if chosen in (2, 3):
            return self._silence()
        free = version == len(self.log)
        if free:
            self.log.append(content)
        if chosen == 1:
            return self._silence()
        return Put(PutAnswer.CREATED if free else PutAnswer.TAKEN, self.clock_ms)

    def _silence(self) -> Put:
        return Put(PutAnswer.SILENT, error=NoAnswer("lost"))

    def arrive(self) -> None:
        version, content = self.flying.pop(0)
        if version == len(self.log):
            self.log.append(content)

    def entries(self) -> list[Entry]:
        return [parse_entry(content, version, "") for version, content in enumerate(self.log)]


def shard_of(store: Store) -> Shard:
    shard = Shard(store, "s")  # type: ignore[arg-type]
    for ctl in MOVES:
        shard.remember(ctl_file([ctl]).path, (ctl,))
    return shard


def play(choices: Choices) -> tuple[str, Store]:
    """One sequence: how it was reported, and the store after every late PUT has arrived."""
    store = Store()
    shard = shard_of(store)
    assert shard.positions().get(GRP) == 3
    store.choices = choices

    def sleep(seconds: float) -> None:
        store.clock_ms += steps.DEADLINE_MS // 2

    host = Host(lambda: store.clock_ms, lambda n: bytes(n), sleep, lambda least, most: most)
    try:
        report = f"committed {steps.commit(shard, proposal(), host, started_ms=0).ctl.commit_id}"
    except RmqError as error:
        report = f"{type(error).__name__}: {error}"
    while store.flying:
        store.arrive()
    return report, store


def every_sequence() -> Iterator[tuple[list[int], str, Store]]:
    path: list[int] | None = []
    while path is not None:
        choices = Choices(path)
        report, store = play(choices)
        yield choices.taken, report, store
        path = choices.following()


def problem(report: str, store: Store) -> str | None:
    """What is wrong about a report, seen against the log."""
    entries = store.entries()
    landed = sum(proposal().ctl.commit_id in entry.commit_ids for entry in entries)
    if landed > 1:
        return "committed twice"
    if report.startswith("committed") != bool(landed) and not report.startswith(CommitOutcomeUnknown.__name__):
        return "the report is not what the log shows"
    values = {app_id: value for entry in entries for app_id, value in entry.positions.items()}
    if RESET not in store.others and (values[GRP], values[OFF]) != (4, 7):
        return "the operator's move was overwritten"
    if any(len(contents) > 1 for contents in store.sent.values()):
        return "two contents were sent under one name"
    return None


@pytest.fixture(autouse=True)
def _staged_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def stage_ctl(root: Any, table_path: str, ctls: Sequence[Ctl], attempt: int) -> StagedFile:
        if root.choices.choose(2):
            raise NoAnswer("once")
        return ctl_file(ctls, attempt)

    monkeypatch.setattr(steps, "stage_ctl", stage_ctl)


@pytest.mark.slow
def test_whatever_the_store_answers_the_report_is_what_the_log_shows() -> None:
    reports: Counter[str] = Counter()
    for path, report, store in every_sequence():
        assert problem(report, store) is None, (path, report, [entry.commit_ids for entry in store.entries()])
        reports[report.split(" ")[0].rstrip(":")] += 1
    assert reports.keys() == {
        "committed",
        StaleAttempt.__name__,
        StoreUnusable.__name__,
        CommitOutcomeUnknown.__name__,
    }
    assert reports.total() > 1000, reports


@pytest.mark.slow
def test_who_was_overtaken_is_told_by_whom() -> None:
    overtaken = [report for _, report, _ in every_sequence() if report.startswith("StaleAttempt")]
    assert overtaken
    assert all("the reset of olga" in report for report in overtaken)
