"""A breadth-first search through all interleavings of a few requests, over the proposals that the project really makes.

Each request is a run: it claims what it needs, reads, proposes, decides and puts its entry, each in a step of its own, and the
steps of all runs mix in every order. What is real: the plans, the proposals, ``take``, ``decide_in_turn``, ``check_age``,
``Content.conflicts`` and ``orphans``. What is modelled: a log whose PUTs are always answered (``log_explorer.py`` has the
others), and files that are only names. A run that is never continued has crashed.

After each commit a book (``proposal_book.py``) says what an audit would find wrong. A guard that is left out is named by the
function that makes the proposal and the kind of positions that it expects: ``("send", "max")``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rmq_store.commit.ctl import Action, Ctl, Proposal
from rmq_store.lake.commit.cursor import CURSOR
from rmq_store.lake.table.delta_entry import Entry
from rmq_store.lake.table.delta_log import Content
from rmq_store.maintain.orphans import DEFAULT_AGE_MS, NamedFiles, StoredFile, orphans
from tests.faults.proposal_book import INVARIANTS
from tests.faults.proposal_log import CURSOR_SEEN, Guards, Log, Read, Run, View
from tests.faults.proposal_operations import ANA, Draft, Operation

NOW_MS = 1_795_132_800_000
"""2026-11-20, the day of the request ids."""
_BETWEEN_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum(Operation):
    """Lists, puts its entry, and deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch(Operation):
    """Reads the log and the cursor of a derived table, and adds what came since."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``before``: requests that are complete, one after another; ``wait``: how many ms pass after them. ``ticks``: time that
    passes at any step, ms."""

    runs: tuple[Operation, ...]
    before: tuple[Operation, ...] = ()
    wait: int = 0
    ticks: tuple[int, ...] = ()


class State(NamedTuple):
    """``log``: the number of its view. ``staged``: files and when they were written; ``derived``: of each commit of a derived
    table, from where and up to where it covers the log."""

    log: int
    runs: tuple[Run, ...]
    ticks: int = 0
    staged: tuple[tuple[str, int], ...] = ()
    deleted: frozenset[str] = frozenset()
    derived: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """``wrong``: the first invariants that do not hold, and the steps to them. ``commits``: whose proposals were committed;
    ``guards``: what proposals expect."""

    wrong: tuple[str, ...]
    trace: tuple[str, ...]
    states: int
    commits: frozenset[str]
    guards: Guards


def explore(
    scenario: Scenario,
    without: Guards = frozenset(),
    watched: frozenset[str] = frozenset(INVARIANTS),
    most: int = 200_000,
) -> Result:
    """Every state that can be reached, up to the first violation of an invariant in ``watched``. Stops with an AssertionError
    when there are more states than ``most``."""
    assert watched <= INVARIANTS.keys()
    first, since_ms = View(), NOW_MS
    for operation in scenario.before:
        first = _alone(operation, first, since_ms)
        since_ms += _BETWEEN_MS
    model = _Model(Log(scenario.runs, without, first), scenario.ticks, since_ms + scenario.wait)
    start = State(0, (Run(),) * len(scenario.runs))
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    wrong: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    while level and not wrong:
        following = []
        for state in level:
            for step, reached in model.steps(state):
                if reached in came_from:
                    continue
                came_from[reached] = (state, step)
                following.append(reached)
                wrong = tuple(one for one in model.wrong(reached) if one.partition(":")[0] in watched)
                if wrong:
                    trace = _trace(came_from, reached)
                    break
            if wrong:
                break
        assert len(came_from) <= most, f"more than {most} states: the scenario is too big"
        level = following
    log = model.log
    return Result(wrong, trace, len(came_from), frozenset(log.commits), frozenset(log.guards))


def _alone(operation: Operation, first: View, since_ms: int) -> View:
    """After a request that nothing disturbs."""
    model = _Model(Log((operation,), frozenset(), first), (), since_ms)
    state = State(0, (Run(),))
    while steps := list(model.steps(state)):
        ((_, state),) = steps
    view = model.log.views[state.log]
    assert view.entries, f"{operation.name} has committed nothing"
    assert not model.wrong(state), model.wrong(state)
    return View(view.snapshot, view.book)


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (before := came_from[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))


Step = tuple[str, State, Run]


class _Model:
    def __init__(self, log: Log, ticks: tuple[int, ...], since_ms: int) -> None:
        self.log = log
        self._ticks, self._since_ms = ticks, since_ms
        self._operations = log.operations
        self._has_vacuum = any(isinstance(one, Vacuum) for one in self._operations)

    def wrong(self, state: State) -> tuple[str, ...]:
        view = self.log.views[state.log]
        gone = sorted(view.snapshot.live & state.deleted)
        ends = [0, *(end for _, end in state.derived)]
        apart = [begin for (begin, _), end in zip(state.derived, ends, strict=False) if begin != end]
        return (*view.wrong, *(f"gone: {path}" for path in gone), *(f"dispatch: from {begin}" for begin in apart))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for n, run in enumerate(state.runs):
            if run.at != "end":
                what, reached, after = self._step(state, n, run)
                runs = (*state.runs[:n], after, *state.runs[n + 1 :])
                yield f"{self._operations[n].name}: {what}", reached._replace(runs=runs)
        if state.ticks < len(self._ticks):
            yield "time passes", state._replace(ticks=state.ticks + 1)

    def _store_ms(self, state: State) -> int:
        return self._since_ms + sum(self._ticks[: state.ticks])

    def _step(self, state: State, n: int, run: Run) -> Step:
        operation = self._operations[n]
        read = Read(state.log, self._store_ms(state) + operation.skew_ms)
        if isinstance(operation, Vacuum):
            return self._vacuum(state, n, run, read)
        if isinstance(operation, Dispatch):
            return self._dispatch(state, run)
        match run.at:
            case "begin":
                return self._begun(state, n, run._replace(started_ms=read.ms), read)
            case "plan":
                return self._planned(state, n, run, read)
            case "decide":
                return self._decided(state, n, run, read)
            case "put":
                return self._put(state, n, run, read)
            case _:
                return self._claim_step(state, n, run, read)

    def _begun(self, state: State, n: int, run: Run, read: Read) -> Step:
        if not self._operations[n].claims:
            return self._planned(state, n, run, read)
        if self.log.taken(n, run.part, run.tries, read) is None:
            return "has nothing to claim", state, _ended(run)
        return "reads for its claim", state, run._replace(at="claim", claim=read)

    def _given_up(self, n: int, run: Run) -> Run:
        """After an error, or without work."""
        if run.claim is not None:
            return run._replace(at="release", plan=None, entry=0, decided=0)
        return Run(part=run.part, tries=run.tries + 1) if run.tries < self._operations[n].tries else _ended(run)

    def _planned(self, state: State, n: int, run: Run, read: Read) -> Step:
        planned = run._replace(at="renew" if self._operations[n].renews else "decide", plan=read)
        draft = self.log.draft(n, planned)
        if draft is None:
            return "has nothing to do", state, self._given_up(n, run)
        if self._has_vacuum:
            files = {(file.path, self._store_ms(state)) for file in draft.proposal.files}
            state = state._replace(staged=tuple(sorted(files.union(state.staged))))
        return "proposes", state, planned

    def _decided(self, state: State, n: int, run: Run, read: Read, what: str = "decides") -> Step:
        draft = self.log.draft(n, run)
        assert draft is not None
        gone = not state.deleted.isdisjoint(file.path for file in draft.proposal.files)
        run = run._replace(decided=0, entry=0)
        key = (n, run._replace(at="decide"), read, gone)
        entry = self.log.decision(key, draft, run, read, self._store_ms(state), gone=gone)
        if entry is None:
            return f"{what}: is refused", state, self._given_up(n, run)
        return what, state, run._replace(at="put", decided=read.view, entry=entry)

    def _put(self, state: State, n: int, run: Run, read: Read) -> Step:
        if any(self.log.conflict(run.entry, other) for other in self.log.newcomers(state.log, run.decided)):
            return self._decided(state, n, run, read, "finds its name taken, decides again")
        after = Run(part=run.part + 1) if run.part < self._operations[n].parts else _ended(run)
        return "commits", state._replace(log=self.log.appended(state.log, run.entry)), after

    # --- claims ---

    def _claim_step(self, state: State, n: int, run: Run, read: Read) -> Step:
        """A claim, its renewal or its release: what is read is a step, and decision and PUT are another one."""
        taken = self.log.taken_of(n, run)
        assert taken is not None
        match run.at:
            case "claim":
                draft = Draft(taken.proposal(), "claim")
                return self._small(
                    state, n, run, read, draft, run._replace(at="plan"), Run("begin", run.part, run.tries)
                )
            case "renew":
                _, proposal = taken.renewed(self.log.id_of(read.ms, n, run.part, "renewal"), read.ms)
                after = run._replace(at="decide")
                return self._small(state, n, run, read, Draft(proposal, "renewal"), after, after)
            case "release":
                return "reads for a release", state, run._replace(at="released", plan=read)
            case _:
                assert run.plan is not None
                positions = self.log.views[run.plan.view].snapshot.positions()
                released = taken.released(self.log.id_of(run.plan.ms, n, run.part, "release"), positions)
                after = self._given_up(n, run._replace(claim=None))
                if released is None:
                    return "holds no claim", state, after
                return self._small(state, n, run, read, Draft(released, "release"), after, after)

    def _small(self, state: State, n: int, run: Run, read: Read, draft: Draft, after: Run, refused: Run) -> Step:
        now = run._replace(started_ms=read.ms)
        entry = self.log.decision((n, now, read), self.log.mutated(draft), now, read, self._store_ms(state))
        if entry is None:
            return f"{draft.by}: is refused", state, refused
        return draft.by, state._replace(log=self.log.appended(state.log, entry)), after

    # --- maintenance ---

    def _vacuum(self, state: State, n: int, run: Run, read: Read) -> Step:
        now = Read(state.log, self._store_ms(state))
        if run.at == "begin":
            if not self._orphans(state, now, now.ms):
                return "has nothing to delete", state, _ended(run)
            return "lists", state, run._replace(at="put", claim=now)
        assert run.claim is not None
        if run.at == "put":
            ctl = Ctl(
                self.log.id_of(now.ms, n, 1, "vacuum"),
                Action.VACUUM,
                ANA,
                request_id=self._operations[n].request_id,
            )
            log = self.log.appended(state.log, self.log.vacuum(Draft(Proposal(ctl, {}, {}), "vacuum"), read, now.ms))
            return "puts its entry", state._replace(log=log), run._replace(at="delete", plan=Read(log, now.ms))
        assert run.plan is not None
        gone = self._orphans(state, run.plan, run.claim.ms)
        return "deletes", state._replace(deleted=state.deleted | gone), _ended(run)

    def _orphans(self, state: State, read: Read, listed_ms: int) -> frozenset[str]:
        """The files staged when they were listed that no entry names and that are old enough."""
        stored = [StoredFile(path, 1, ms) for path, ms in state.staged if ms <= listed_ms]
        named = NamedFiles(self.log.files(read.view))
        return frozenset(file.path for file in orphans(stored, named, read.ms, DEFAULT_AGE_MS))

    def _dispatch(self, state: State, run: Run) -> Step:
        length = len(self.log.views[state.log].entries)
        if run.at == "begin":
            cursor = state.derived[-1][1] if state.derived else 0
            if cursor == length:
                return "has nothing to add", state, _ended(run)
            return "reads", state, run._replace(at="put", decided=cursor, entry=length, tries=len(state.derived))
        newcomers = [Entry(0, positions=dict.fromkeys(CURSOR, end)) for _, end in state.derived[run.tries :]]
        content = Content(b"", () if CURSOR_SEEN in self.log.without else CURSOR)
        if any(content.conflicts(entry) for entry in newcomers):
            return "is overtaken", state, Run()
        return "commits", state._replace(derived=(*state.derived, (run.decided, run.entry))), _ended(run)


def _ended(run: Run) -> Run:
    return Run("end", run.part)
