"""The real ``commit`` of ``lake/commit/commit.py`` against every way in which a store may answer it (P3, P4).

A shard in memory stands for the store. Wherever it is asked something it may do what a store does: answer; take a PUT and
lose the reply; lose the PUT; let it arrive later; fall silent, for once or for good; and between two questions an operator
may move the group. Every sequence with at most ``MISFORTUNES`` of these is played, by choosing anew from the last choice
that had alternatives left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from rmq_store.commit.ctl import Action, Consumed, Ctl, Proposal, StagedFile
from rmq_store.commit.positions import Claim, Outcome, Positions, QueueRange, grp_id, off_id, own_id, tally
from rmq_store.errors import CommitOutcomeUnknown, RmqError, StaleAttempt, StoreUnusable
from rmq_store.lake.commit import commit as steps
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.faults.answers import NoAnswer
from tests.faults.stores import OPERATOR, TESTS

MISFORTUNES = 5
QUEUE = MessageQueue("T", "b", 0)
GRP, OWN, OFF = grp_id("g"), own_id("g"), off_id("g", QUEUE)
DAY = "2026-01-01"


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


@dataclass
class Commit:
    ctl: Ctl
    positions: Mapping[str, int]


@dataclass
class Store:
    """The shard, its commit log and its root in one; what ``commit`` asks of each."""

    choices: Choices
    clock_ms: int = 0
    log: list[Commit] = field(default_factory=list)
    flying: list[tuple[int, Commit]] = field(default_factory=list)
    ctls: dict[str, Ctl] = field(default_factory=dict)
    version: int = 0
    silent: bool = False
    operator_may: bool = True
    path = "commitlog"

    def __post_init__(self) -> None:
        first = Ctl("0" * 32, Action.RESET, TESTS, group="g")
        self.log.append(Commit(first, {GRP: 3, OWN: Claim(1, 120).packed(), OFF: 0}))

    @property
    def commitlog(self) -> Store:
        return self

    @property
    def root(self) -> Store:
        return self

    def server_time_ms(self, host: Host) -> int:
        return self.clock_ms

    # --- reading ---

    def refresh(self) -> None:
        """Before the answer: nothing, silence, silence for good, a late PUT arrives, an operator moves the group."""
        if self.silent:
            raise NoAnswer("for good")
        options = ["nothing", "silence", "silence for good"]
        options += ["late"] * bool(self.flying) + ["operator"] * self.operator_may
        match options[self.choices.choose(len(options))]:
            case "silence":
                raise NoAnswer("for once")
            case "silence for good":
                self.silent = True
                raise NoAnswer("for good")
            case "late":
                self.arrive()
            case "operator":
                self.operator_may = False
                reset = Ctl("f" * 32, Action.RESET, OPERATOR, request_id="the reset", group="g", epoch=4)
                self.log.append(Commit(reset, {GRP: 4, OFF: 7}))
        self.version = len(self.log)

    def arrive(self) -> None:
        slot, commit = self.flying.pop(0)
        if slot == len(self.log):
            self.log.append(commit)

    def positions(self) -> Positions:
        return Positions(self.version, self.values(self.version))

    def values(self, version: int | None = None) -> dict[str, int]:
        found: dict[str, int] = {}
        for commit in self.log[:version]:
            found |= commit.positions
        return found

    def ctl_of(self, commit_id: str) -> Ctl | None:
        return next((c.ctl for c in self.log[: self.version] if c.ctl.commit_id == commit_id), None)

    def ctls_since(self, ms: int) -> list[Ctl]:
        return [commit.ctl for commit in self.log[: self.version]]

    def remember(self, path: str, ctls: tuple[Ctl, ...]) -> None:
        """Ours are remembered when they are staged."""

    # --- writing ---

    def stage_ctl(self, ctl: Ctl, attempt: int) -> StagedFile:
        if self.choices.choose(2):
            raise NoAnswer("for once")
        file = StagedFile(f"{ctl.commit_id}-{attempt}", "ctl", 1, 1, "{}", DAY)
        self.ctls[file.path] = ctl
        return file

    def put(self, files: list[StagedFile], positions: Mapping[str, int], *rest: object, **options: object) -> None:
        commit = Commit(self.ctls[files[0].path], dict(positions))
        if any(commit.positions.keys() & other.positions.keys() for other in self.log[self.version :]):
            raise NoAnswer("a conflict")
        if self.silent:
            raise NoAnswer("for good")
        chosen = self.choices.choose(4)
        if chosen in (0, 1):
            self.log.append(commit)
        if chosen == 3:
            self.flying.append((len(self.log), commit))
        if chosen:
            raise NoAnswer("lost")


def proposal() -> Proposal:
    range_ = QueueRange(QUEUE, 0, 5)
    consumed = Consumed(range_, 3, {Outcome.ACKED: tally(range(5))})
    ctl = Ctl("a" * 32, Action.CONSUME, TESTS, request_id="ours", group="g", epoch=3, consumed=(consumed,))
    held = Claim(1, 120)
    return Proposal(ctl, {GRP: 3, OWN: held.packed(), OFF: 0}, {GRP: 3, OWN: Claim(1, 0).packed(), OFF: 5})


def play(choices: Choices) -> tuple[str, Store]:
    """One sequence: how it was reported, and the store after every late PUT has arrived."""
    store = Store(choices)

    def sleep(seconds: float) -> None:
        store.clock_ms += steps.DEADLINE_MS // 2

    host = Host(lambda: store.clock_ms, lambda n: bytes(n), sleep, lambda least, most: most)
    try:
        report = f"committed {steps.commit(store, proposal(), host, started_ms=0).ctl.commit_id}"  # type: ignore[arg-type]
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
    actions = [commit.ctl.action for commit in store.log]
    landed = actions.count(Action.CONSUME)
    if landed > 1:
        return "committed twice"
    if report.startswith("committed") != bool(landed) and not report.startswith(CommitOutcomeUnknown.__name__):
        return "the report is not what the log shows"
    values = store.values()
    if actions.count(Action.RESET) == 2 and (values[GRP], values[OFF]) != (4, 7):
        return "the operator's word does not stand"
    return None


@pytest.fixture(autouse=True)
def _staged_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def stage_ctl(root: Any, table_path: str, ctl: Ctl, attempt: int) -> StagedFile:
        staged: StagedFile = root.stage_ctl(ctl, attempt)
        return staged

    monkeypatch.setattr(steps, "stage_ctl", stage_ctl)


def test_whatever_the_store_answers_the_report_is_what_the_log_shows() -> None:
    reports: Counter[str] = Counter()
    for path, report, store in every_sequence():
        assert problem(report, store) is None, (path, report, [commit.ctl.action for commit in store.log])
        kind = report.split(" ")[0].rstrip(":")
        reports[f"{kind}, withdrawn" if "withdrawn" in report else kind] += 1
    assert reports.keys() == {
        "committed",
        StaleAttempt.__name__,
        f"{StaleAttempt.__name__}, withdrawn",
        StoreUnusable.__name__,
        CommitOutcomeUnknown.__name__,
    }
    assert reports.total() > 1000, reports


def test_who_was_overtaken_is_told_by_whom() -> None:
    overtaken = [
        report for _, report, _ in every_sequence() if report.startswith("StaleAttempt") and "withdrawn" not in report
    ]
    assert overtaken
    assert all("the reset of olga" in report for report in overtaken)
