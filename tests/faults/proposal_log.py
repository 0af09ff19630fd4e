"""The log of the search of ``proposal_explorer.py``: who reads what, proposes what, and what an entry makes of it.

Views and entries have numbers, and everything that follows from them is worked out once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from rmq_store.commit.claim import Taken, take
from rmq_store.commit.decide import Clocks, Decided, check_age, decide_in_turn
from rmq_store.commit.positions import Positions, kind_of
from rmq_store.errors import RmqError, StagedFileGone, StaleAttempt
from rmq_store.lake.table.delta_entry import VACUUM, Entry
from rmq_store.lake.table.delta_log import Content
from rmq_store.utils.host import uuid7
from tests.faults.proposal_book import Book, Facts
from tests.faults.proposal_operations import Draft, Moment, Operation
from tests.faults.proposal_view import SHARD, Snapshot

T = TypeVar("T")

Guard = tuple[str, str]
"""Whose proposal, and the kind of positions that it expects, or another field of it; "any": of every proposal."""
Guards = frozenset[Guard]

AGE, VACUUM_SEEN, WRITTEN, TIME = (("any", what) for what in ("age", "vacuum", "written", "time"))
CURSOR_SEEN = ("dispatch", "cursor")
OTHERS = {
    AGE: "the age of a run is checked at each decision",
    VACUUM_SEEN: "an entry of a vacuum conflicts with every other one",
    WRITTEN: "what is expected is written too",
    TIME: "the time of a message is not before that of the newest one in its queue",
    CURSOR_SEEN: "a dispatch sets the cursor of its table",
}
"""Guards that are no expected positions."""


class Read(NamedTuple):
    """A view that was read, and when (UTC ms, by the host)."""

    view: int
    ms: int


class Run(NamedTuple):
    """``at``: the next step. ``claim``, ``plan``: what was read before the claim, and for the proposal; ``entry``: what was
    decided, on the view ``decided``."""

    at: str = "begin"
    part: int = 1
    tries: int = 1
    started_ms: int = 0
    claim: Read | None = None
    plan: Read | None = None
    decided: int = 0
    entry: int = 0


@dataclass(frozen=True, slots=True)
class DecidedEntry:
    decided: Decided
    draft: Draft
    planned: Snapshot
    is_vacuum: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """``entries``: since the first one of the search; ``wrong``: the invariants that the last one breaks."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    book: Book = field(default_factory=Book)
    entries: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()


@dataclass
class Log:
    """``without``: guards that are left out. ``guards``: what proposals expect; ``commits``: who has committed."""

    operations: Sequence[Operation]
    without: Guards
    first: View = field(default_factory=View)
    guards: set[Guard] = field(default_factory=set)
    commits: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.views = [self.first]
        self.entries: list[DecidedEntry] = []
        self._drafts: dict[tuple[object, ...], Draft | None] = {}
        self._taken: dict[tuple[object, ...], Taken | None] = {}
        self._decisions: dict[tuple[object, ...], int | None] = {}
        self._after: dict[tuple[int, int], int] = {}
        self._conflicts: dict[tuple[int, int], bool] = {}

    def id_of(self, ms: int, n: int, part: int, what: str) -> str:
        text = f"{self.operations[n].name}/{part}/{what}"
        return uuid7(ms, hashlib.sha256(text.encode()).digest())

    # --- what runs propose ---

    def taken(self, n: int, part: int, tries: int, read: Read) -> Taken | None:
        """The claims that the run would get; None: it needs none, or others hold them."""
        key = n, part, tries, read
        if key not in self._taken:
            self._taken[key] = _answer(lambda: self._take(n, part, read))
        return self._taken[key]

    def _take(self, n: int, part: int, read: Read) -> Taken | None:
        snapshot = self.views[read.view].snapshot
        wish = self.operations[n].wish(snapshot, read.ms)
        if wish is None:
            return None
        commit_id = self.id_of(read.ms, n, part, "claim")
        return take(wish, commit_id, SHARD, snapshot.positions(), snapshot.ctls_since, read.ms)

    def taken_of(self, n: int, run: Run) -> Taken | None:
        return None if run.claim is None else self.taken(n, run.part, run.tries, run.claim)

    def draft(self, n: int, run: Run) -> Draft | None:
        assert run.plan is not None
        key = n, run.part, run.tries, run.claim, run.plan
        if key not in self._drafts:
            plan = run.plan
            self._drafts[key] = _answer(lambda: self._draft(n, run, plan))
        return self._drafts[key]

    def _draft(self, n: int, run: Run, plan: Read) -> Draft | None:
        taken = self.taken_of(n, run)
        before = None if run.claim is None else (self.views[run.claim.view].snapshot, run.claim.ms)
        commit_id = self.id_of(plan.ms, n, run.part, f"main{run.tries}")
        draft = self.operations[n].draft(Moment(self.views[plan.view].snapshot, plan.ms, commit_id, taken, before))
        if draft is None:
            return None
        proposal = draft.proposal if taken is None else taken.ended_by(draft.proposal)
        assert proposal.expect.keys() <= proposal.advance.keys(), "as a commit checks it"
        return self.mutated(replace(draft, proposal=proposal))

    def mutated(self, draft: Draft) -> Draft:
        """Without the guards that are left out."""
        proposal, by = draft.proposal, draft.by
        self.guards |= {(by, kind_of(app_id)) for app_id in proposal.expect}
        fields = {name: getattr(proposal, name) for name in ("closed", "begins", "removed") if getattr(proposal, name)}
        fields |= {} if proposal.behind is None else {"behind": proposal.behind}
        self.guards |= {(by, name) for name in fields}
        if not any(guard[0] == by for guard in self.without):
            return draft
        expect = {id_: value for id_, value in proposal.expect.items() if (by, kind_of(id_)) not in self.without}
        return replace(
            draft,
            proposal=replace(
                proposal,
                expect=expect,
                closed=() if (by, "closed") in self.without else proposal.closed,
                begins={} if (by, "begins") in self.without else proposal.begins,
                behind=None if (by, "behind") in self.without else proposal.behind,
            ),
        )

    # --- decisions ---

    def decision(
        self, key: tuple[object, ...], draft: Draft, run: Run, read: Read, store_ms: int, *, gone: bool = False
    ) -> int | None:
        """The number of the entry, decided on what was ``read``; None: it was refused. ``gone``: a vacuum has deleted a file of
        it."""
        if key not in self._decisions:
            self._decisions[key] = _answer(lambda: self.added(self._decide(draft, run, read, store_ms, gone=gone)))
        return self._decisions[key]

    def _decide(self, draft: Draft, run: Run, read: Read, store_ms: int, *, gone: bool) -> DecidedEntry:
        proposal, snapshot = draft.proposal, self.views[read.view].snapshot
        if AGE not in self.without:
            check_age(proposal.ctl, run.started_ms, read.ms)
        positions = snapshot.positions()
        if TIME in self.without:
            positions = Positions(positions.version, {app_id: value for app_id, (value, _) in positions.items()})
        (decided,) = decide_in_turn([proposal], positions, Clocks(read.ms, store_ms))
        if isinstance(decided, RmqError):
            raise decided
        if gone:
            raise StagedFileGone("a vacuum has deleted it")
        if not snapshot.live.issuperset(proposal.removed) and (draft.by, "removed") not in self.without:
            raise StaleAttempt("a file is not live any more")
        return DecidedEntry(decided, draft, self.views[(run.plan or read).view].snapshot)

    def vacuum(self, draft: Draft, read: Read, store_ms: int) -> int:
        """The number of the entry of a vacuum."""
        entry = self._decide(draft, Run(started_ms=read.ms), read, store_ms, gone=False)
        return self.added(replace(entry, is_vacuum=True))

    def added(self, entry: DecidedEntry) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    # --- entries ---

    def appended(self, view: int, number: int) -> int:
        """The view after an entry."""
        key = view, number
        if key not in self._after:
            before, entry = self.views[view], self.entries[number]
            proposal = entry.draft.proposal
            snapshot = before.snapshot.after(entry.decided, proposal.removed)
            added = tuple(file.path for file in proposal.files)
            facts = Facts(entry.planned.positions(), entry.draft.keys, added, tuple(proposal.removed))
            book = before.book.copy()
            wrong = book.enter(entry.decided, facts, snapshot.positions())
            self._after[key] = len(self.views)
            self.views.append(View(snapshot, book, (*before.entries, number), tuple(wrong)))
            self.commits.add(entry.draft.by)
        return self._after[key]

    def newcomers(self, view: int, since: int) -> tuple[int, ...]:
        return self.views[view].entries[len(self.views[since].entries) :]

    def conflict(self, mine: int, other: int) -> bool:
        key = mine, other
        if key not in self._conflicts:
            self._conflicts[key] = self._content(mine).conflicts(self._entry(other))
        return self._conflicts[key]

    def _content(self, number: int) -> Content:
        entry = self.entries[number]
        proposal = entry.draft.proposal
        ids = set(entry.decided.positions)
        ids -= proposal.expect.keys() if WRITTEN in self.without else set()
        return Content(b"", ids, proposal.closed, proposal.removed)

    def _entry(self, number: int) -> Entry:
        entry = self.entries[number]
        info = {"operation": VACUUM} if entry.is_vacuum and VACUUM_SEEN not in self.without else {}
        return Entry(0, removed=tuple(entry.draft.proposal.removed), positions=entry.decided.positions, info=info)

    def files(self, view: int) -> set[str]:
        """All files that entries up to the view have added."""
        proposals = (self.entries[number].draft.proposal for number in self.views[view].entries)
        return {file.path for proposal in proposals for file in proposal.files}


def _answer(ask: Callable[[], T | None]) -> T | None:
    """None where the project refuses."""
    try:
        return ask()
    except RmqError:
        return None
