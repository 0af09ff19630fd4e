"""A breadth-first search through everything that can happen around a commit, over the real decisions.

What is real: ``decide`` and ``compare`` (``commit/decide.py``) and ``take`` (``commit/claim.py``). What is modelled:
the log, delta-rs as *check* (a commit after the handle touched one of my ids: conflict) and *PUT* (lands if its slot is
free, also if the slot was taken and then cleaned away), and the order of the steps around them; the real loop of
``lake/commit/commit.py`` has a search of its own (``test_commit_loop.py``).

One shard, one group that reads one queue or several, each with one message, and a window produces one copy into a level
queue. The steps of a run: claim what it wants of them (a lease may count as over at any moment, which covers every clock
and every pause), plan what it got, decide, PUT with read-back, again, and after two tries withdraw. When others held some
of its queues, its request has a next part, which begins like the first. A crash needs no step of its own: a run that is
never continued has crashed.
Around the runs, each as often as a scenario says: a PUT that gets lost or arrives later, a reset, a reset away and back,
a delete (at once, or planned first and decided later, by its real proposal), another producer to the same queue, a
clean-up of the log.

Two pairs of steps are taken as one, because what can come between them shows one step later just the same: decide with
delta-rs' first check (a later commit is met by the check that follows a taken slot), and a PUT with its read-back (a
commit that lands after it is met by the look at the start of the next decision or of the withdrawal).

Not in it: files, parts of a request that a cap made, deliveries, liveness; a withdrawal is one step, always answered.

``GUARDS`` names what can be left out, to see that the search would notice.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from rmq_store.admin.delete_group import DeleteGroupRequest, delete_moves
from rmq_store.commit.claim import LEASE_S, Wish, take
from rmq_store.commit.ctl import Action, Actor, Ctl, Produced, Proposal, canonical_json
from rmq_store.commit.decide import Clocks, compare, decide
from rmq_store.commit.positions import ABSENT, Claim, Positions, grp_id, max_id, off_id, own_queue_id
from rmq_store.errors import HeldByAnother, StaleAttempt
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC

_SOURCES, _LEVEL = [MessageQueue("T", "b", n) for n in range(3)], MessageQueue(SCHEDULE_TOPIC, "lake-s~g", 2)
GRP, MAX = grp_id("g"), max_id(_LEVEL)
OWNS, OFFS = [own_queue_id("g", queue) for queue in _SOURCES], [off_id("g", queue) for queue in _SOURCES]
MESSAGES = 1
_DELETE = DeleteGroupRequest("g", "2026-11-20-delete", Actor("", ""), "old")
_CLOCKS = Clocks(own_ms=0, store_ms=0)
_LONG_AFTER_MS = 10 * LEASE_S * 1000
_TRIES = 2

GUARDS = {
    "grp compare": "the epoch is among the positions that the plan expects",
    "own compare": "so is the number of the claim",
    "off compare": "so is the offset",
    "grp txn": "the epoch is part of the commit, so two commits of a group conflict",
    "own txn": "so is the claim",
    "off txn": "so is the offset",
    "max txn": "so is the end of every queue that was produced to",
    "epoch raised": "an operator's action raises the group's epoch",
    "claim": "a run takes a claim before it plans",
    "lease": "a claim that is held by another request is not taken before its lease is over",
    "claim number raised": "who takes a claim gives it a new number",
    "claim found by id": "whether a claim was taken is read back by the commit's id, not by the claim's number",
    "held left out": "a run plans only the queues of which it got the claim",
    "request check": "a request that is in the log is not run again",
    "new bases": "every try takes its bases anew",
    "found by id": "whether a commit landed is read back by its id, not by the offset that it wanted",
    "error read back": "an error is read back before anything is reported",
    "success read back": "so is a success",
    "look before drop": "a decision first looks whether its own commit has landed",
    "delete closed": "a delete expects that its group has no offset but those that it has seen",
    "withdrawal": "giving up first takes the slot that a PUT might still fill",
}


# --- states ----------------------------------------------------------------------------------------------------------


Numbers = tuple[tuple[int, int], ...]
"""Queues by number, each with a value."""


class Commit(NamedTuple):
    """``values`` in the order of the model's ids, None: not touched. ``begins``, ``base``, ``planned``, ``read``: for
    windows, what was believed: where the ranges begin, the base of the copy, the versions at the plan and at the decision.
    ``complete``: whether nothing of the request was left."""

    id: str
    kind: str
    request: str
    values: tuple[int | None, ...]
    touched: tuple[bool, ...]
    begins: Numbers = ()
    base: int = 0
    planned: int = 0
    read: int = 0
    complete: bool = True


class Run(NamedTuple):
    """One attempt of a request. ``at``: its next step, or how it ended. ``off``, ``own``: what it has planned (ABSENT: no
    offset) and claimed. ``part``: its windows, from 1; ``left``: whether this one leaves something to the next."""

    name: str
    request: str
    at: str = "start"
    planned: int = 0
    epoch: int | None = None
    off: Numbers = ()
    own: Numbers = ()
    part: int = 1
    left: bool = False
    claims: int = 0
    tries: int = 0
    slot: int = 0
    ready: Commit | None = None

    @property
    def commit_id(self) -> str:
        return f"{self.name}.window{self.part}" if self.at != "put claim" else f"{self.name}.claim{self.claims}"


class State(NamedTuple):
    """``log`` from version 1 on; ``now``: the positions, in the order of the model's ids; ``cleaned``: versions up to it are
    gone as files; ``flying``: a PUT on its way, its slot."""

    log: tuple[Commit, ...]
    now: tuple[int, ...]
    runs: tuple[Run, ...]
    flying: tuple[int, Commit] | None
    cleaned: int
    losses: int
    clean_ups: int
    producers: int
    operator: tuple[str, ...]
    leases_end: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who takes part. ``runs``: name and request; ``wants``: the queues of each request, one for all unless given;
    ``operator``: his actions, in order; ``losses``: PUTs that are lost or late; ``offset``: the group's at first; ``known``:
    it had a window before, of another queue at least; ``leases_end`` False: nobody waits so long."""

    runs: tuple[tuple[str, str], ...]
    operator: tuple[str, ...] = ()
    wants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    losses: int = 0
    clean_ups: int = 0
    producers: int = 0
    offset: int = ABSENT
    leases_end: bool = True
    known: bool = False

    def first(self) -> State:
        runs = tuple(Run(name, request) for name, request in self.runs)
        known = 0 if self.known or self.offset != ABSENT else ABSENT
        now = (known, 0, *(0,) * self.queues, *(self.offset,) * self.queues)
        return State(
            (), now, runs, None, 0, self.losses, self.clean_ups, self.producers, self.operator, self.leases_end
        )

    @property
    def queues(self) -> int:
        return 1 + max((n for wanted in self.wants.values() for n in wanted), default=0)


@dataclass(frozen=True, slots=True)
class Found:
    """The first violation, if there is one, and how many states were seen until then."""

    violation: str | None
    trace: tuple[str, ...]
    states: int


class Violation(Exception):
    """An invariant does not hold."""


# --- the search ------------------------------------------------------------------------------------------------------


def explore(scenario: Scenario, without: frozenset[str] = frozenset(), most: int = 2_000_000) -> Found:
    """Every state that can be reached, breadth first, up to the first violation. Stops with an AssertionError when there
    are more than ``most``, so that a search is never taken for complete that is not."""
    assert without <= GUARDS.keys()
    gc.disable()  # states have no cycles, and the collector would walk through all of them again and again
    try:
        return _explored(_Model(without, scenario), scenario.first(), most)
    finally:
        gc.enable()


def _explored(model: _Model, first: State, most: int) -> Found:
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    level = [first]
    while level:
        following = []
        for state in level:
            try:
                for step, reached in model.steps(state):
                    if reached not in came_from:
                        came_from[reached] = (state, step)
                        following.append(reached)
            except Violation as violation:
                return Found(str(violation.args[0]), (*_trace(came_from, state), str(violation)), len(came_from))
        assert len(came_from) <= most, f"more than {most} states: the scenario is too big"
        level = following
    return Found(None, (), len(came_from))


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (before := came_from[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))


@dataclass(frozen=True, slots=True)
class _Model:
    without: frozenset[str]
    scenario: Scenario
    ids: tuple[str, ...] = field(init=False)
    checked: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        n = self.scenario.queues
        object.__setattr__(self, "ids", (GRP, MAX, *OWNS[:n], *OFFS[:n]))
        checked = frozenset(id_ for id_ in self.ids if self.has(f"{id_[:3]} compare"))
        object.__setattr__(self, "checked", checked)

    def has(self, guard: str) -> bool:
        return guard not in self.without

    # --- who may do something ---

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for n, run in enumerate(state.runs):
            if run.at.startswith("end"):
                continue
            if run.at == "start" and any(one.at == "start" and one.request == run.request for one in state.runs[:n]):
                continue  # attempts of a request are alike: the first one starts first
            for what, step in self._run_steps(state, run):
                yield f"{run.name}: {what}", _with_run(step[0], n, step[1])
        if state.flying is not None:
            slot, commit = state.flying
            landed = self._land(state, commit) if slot == len(state.log) + 1 else state
            yield f"the PUT of {commit.id} arrives", landed._replace(flying=None)
        if state.operator:
            yield f"operator: {state.operator[0]}", self._operate(state)
        if state.producers:
            other = self._commit(f"other{state.producers}", "produce", {MAX: state.now[1] + 1})
            yield "another producer", self._land(state._replace(producers=state.producers - 1), other)
        if state.clean_ups and len(state.log) > 1:
            yield "clean-up", state._replace(clean_ups=state.clean_ups - 1, cleaned=len(state.log) - 1)

    def _operate(self, state: State) -> State:
        what, *rest = state.operator
        if what == "delete later":
            offsets = [self._off(state, n) for n in range(self.scenario.queues)]
            return state._replace(operator=(f"delete of {' '.join(map(str, (state.now[0], *offsets)))}", *rest))
        if what.startswith("delete of "):
            epoch, *offsets = map(int, what.split()[2:])
            return self._delete(state._replace(operator=tuple(rest)), epoch, tuple(offsets))
        epoch = max(state.now[0], 0) + self.has("epoch raised")
        offset = {"reset": 0, "away": MESSAGES, "back": 0, "delete": ABSENT}[what]
        known = [n for n in range(self.scenario.queues) if what != "delete" or self._off(state, n) != ABSENT]
        commit = self._commit(f"{what}{len(state.log)}", what, {GRP: epoch} | {OFFS[n]: offset for n in known})
        return self._land(state._replace(operator=tuple(rest)), commit)

    def _delete(self, state: State, epoch: int, offsets: tuple[int, ...]) -> State:
        """Decide and PUT; a conflict would only decide again."""
        values = _delete_decided(epoch, offsets, self.has("delete closed"), self.ids, state.now)
        if values is None:
            return state
        landed = self._land(state, self._commit(f"delete{len(state.log)}", "delete", values))
        if any(self._off(landed, n) != ABSENT for n in range(self.scenario.queues)):
            raise Violation("I4", "an offset has outlived its group")
        return landed

    # --- one run ---

    def _run_steps(self, state: State, run: Run) -> Iterator[tuple[str, tuple[State, Run]]]:
        match run.at:
            case "start" | "claim":
                if self.has("request check") and _is_done(state, run.request):
                    yield "already committed", (state, run._replace(at="end: already"))
                elif self.has("claim"):
                    yield from self._claim(state, run)
                else:
                    yield self._plan(state, run)
            case "plan":
                yield self._plan(state, run)
            case "decide":
                yield self._decide(state, run)
            case "put" | "put claim":
                yield from self._put(state, run)
            case "give up":
                yield self._give_up(state, run)
            case unknown:
                raise ValueError(unknown)

    def _claim(self, state: State, run: Run) -> Iterator[tuple[str, tuple[State, Run]]]:
        """Steps 2 and, for the claim's own commit, 4."""
        wanted = [n for n in self._wants(run) if self._off(state, n) < MESSAGES]
        if not wanted:
            yield "nothing to do", (state, run._replace(at="end: empty"))
            return
        current = tuple((n, self._own(state, n)) for n in wanted)
        holders = tuple(_holder(state, OWNS[n], self.ids) if self.has("lease") else run.request for n in wanted)
        for what, now_ms in (("takes a claim", 0), ("takes a claim that is over", _LONG_AFTER_MS)):
            if now_ms and not (any(Claim.of(own).lease_end_s for _, own in current) and state.leases_end):
                continue
            taken = _taken(current, holders, run.request, now_ms)
            if not taken:
                yield "claim is held", (state, run._replace(at="end: held"))
                continue
            if not self.has("claim number raised"):
                taken = tuple((n, Claim(Claim.of(dict(current)[n]).number or 1, LEASE_S).packed()) for n, _ in taken)
            named = run._replace(at="put claim", claims=run.claims + 1, own=taken, slot=_next(state))
            ready = self._commit(named.commit_id, "claim", {OWNS[n]: own for n, own in taken}, run.request)
            yield what, (state, named._replace(ready=ready))

    def _plan(self, state: State, run: Run) -> tuple[str, tuple[State, Run]]:
        """Step 1, which is repeated under the claim."""
        if self.has("request check") and _is_done(state, run.request):
            return "already committed", (state, run._replace(at="end: already"))
        waiting = {n: self._off(state, n) for n in self._wants(run) if self._off(state, n) < MESSAGES}
        mine = dict(run.own) if self.has("claim") and self.has("held left out") else waiting
        planned = tuple((n, off) for n, off in waiting.items() if n in mine)
        if not planned:
            return "nothing to do", (state, run._replace(at="end: held" if waiting else "end: empty"))
        ready = run._replace(at="decide", planned=len(state.log), epoch=_known(state.now[0]), off=planned, ready=None)
        return "plans", (state, ready._replace(left=len(planned) < len(waiting)))

    def _decide(self, state: State, run: Run) -> tuple[str, tuple[State, Run]]:
        """Step 4, and the check of step 5."""
        if self.has("look before drop") and _in_log(state, run.commit_id):
            return "finds its commit", (state, self._ended(state, run, "committed"))
        values = _decided(run.epoch, run.off, run.own, self.checked, self.ids, state.now)
        if values is None:
            return "drops", (state, self._ended(state, run, "dropped"))
        if run.ready is not None and not self.has("new bases"):
            values = run.ready.values
        touched = tuple(
            value is not None and self.has(f"{id_[:3]} txn") for id_, value in zip(self.ids, values, strict=True)
        )
        begins = tuple((n, max(off, 0)) for n, off in run.off)
        ready = Commit(
            run.commit_id, "window", run.request, values, touched, begins, (values[1] or 0) - 1, run.planned,
            len(state.log), not run.left,
        )  # fmt: skip
        return "decides", (state, run._replace(at="put", ready=ready, slot=_next(state)))

    def _put(self, state: State, run: Run) -> Iterator[tuple[str, tuple[State, Run]]]:
        """Steps 5 and 6."""
        commit = run.ready
        assert commit is not None
        if run.slot == _next(state):
            landed = self._land(state, commit)
            yield "PUT lands", (landed, self._read_back(landed, run, "ok"))
            if state.losses:
                after = state._replace(losses=state.losses - 1)
                yield "PUT is lost", (after, self._read_back(after, run, "error"))
                if not self.has("error read back"):
                    landed = landed._replace(losses=state.losses - 1)
                    yield "PUT lands, its reply is lost", (landed, self._read_back(landed, run, "error"))
                if state.flying is None:
                    late = after._replace(flying=(run.slot, commit))
                    yield "PUT is late", (late, self._read_back(late, run, "error"))
        elif run.slot <= state.cleaned:
            yield "PUT fills a cleaned slot", (state, self._read_back(state, run, "ok"))
        elif any(_conflict(commit, other) for other in state.log[run.slot - 1 :]):
            yield "PUT conflicts", (state, self._read_back(state, run, "error"))
        else:
            yield "PUT finds its slot taken", (state, run._replace(slot=_next(state)))

    def _read_back(self, state: State, run: Run, answer: str) -> Run:
        claim = run.at == "put claim"
        if not claim and answer == "error" and not self.has("error read back"):
            return self._ended(state, run, "dropped")
        if not claim and answer == "ok" and not self.has("success read back"):
            return self._ended(state, run, "committed")
        if claim:
            by_number = all(self._own(state, n) == own for n, own in run.own)
            found = _in_log(state, run.commit_id) if self.has("claim found by id") else by_number
            return run._replace(at="plan" if found else "claim", ready=None, slot=0)
        by_offset = all(self._off(state, n) >= MESSAGES for n, _ in run.off)
        found = _in_log(state, run.commit_id) if self.has("found by id") else by_offset
        if found:
            return self._ended(state, run, "committed")
        tries = run.tries + 1
        return run._replace(at="decide" if tries < _TRIES else "give up", tries=tries, slot=0)

    def _give_up(self, state: State, run: Run) -> tuple[str, tuple[State, Run]]:
        """The withdrawal."""
        if not self.has("withdrawal"):
            return "gives up", (state, self._ended(state, run, "dropped"))
        if _in_log(state, run.commit_id):
            return "finds its commit", (state, self._ended(state, run, "committed"))
        if _has_moved(run.epoch, run.off, run.own, self.checked, self.ids, state.now):
            return "drops", (state, self._ended(state, run, "dropped"))
        values = {GRP: state.now[0]} | {OFFS[n]: self._off(state, n) for n, _ in run.off}
        values |= {OWNS[n]: Claim(Claim.of(self._own(state, n)).number, 0).packed() for n, _ in run.own}
        withdrawn = self._land(state, self._commit(f"{run.name}.release{run.part}", "release", values))
        return "withdraws", (withdrawn, self._ended(withdrawn, run, "dropped"))

    def _ended(self, state: State, run: Run, how: str) -> Run:
        landed = _in_log(state, run.commit_id)
        if how == "committed" and not landed:
            raise Violation("I7", f"{run.name} reports a success that is not in the log")
        if how == "dropped" and landed:
            raise Violation("I7b", f"{run.name} reports a failure, and its commit is in the log")
        if how == "committed" and run.left:
            return Run(run.name, run.request, part=run.part + 1, claims=run.claims)
        return Run(run.name, run.request, f"end: {how}", part=run.part)

    # --- the log ---

    def _land(self, state: State, commit: Commit) -> State:
        """Append, after the invariants."""
        if commit.kind == "window":
            self._check(state, commit)
        now = tuple(old if new is None else new for old, new in zip(state.now, commit.values, strict=True))
        return state._replace(log=(*state.log, commit), now=now)

    def _check(self, state: State, commit: Commit) -> None:
        """What must be true of every window that becomes visible."""
        windows = [other for other in state.log if other.kind == "window"]
        if any(other.request == commit.request and other.complete for other in windows):
            raise Violation("I3", f"request {commit.request} is committed twice")
        for other in state.log[commit.planned :]:
            if other.kind in ("reset", "away", "back"):
                raise Violation("I6", f"{commit.id} was planned before the operator's {other.id}")
            if other.kind == "delete":
                raise Violation("I4", f"{commit.id} belongs to a group that was deleted")
        for n, begin in commit.begins:
            if begin != max(self._off(state, n), 0):
                raise Violation(
                    "I1", f"{commit.id} begins at {begin} of {n}, the committed offset is {self._off(state, n)}"
                )
        if commit.base != state.now[1]:
            raise Violation("I2", f"{commit.id} has base {commit.base}, the queue ends at {state.now[1]}")
        if any(other in state.log[commit.read :] for other in windows):
            raise Violation("I8g", f"{commit.id} was decided before another commit of its group landed")
        if any(run.commit_id == commit.id and run.at == "end: dropped" for run in state.runs):
            raise Violation("I7b", f"{commit.id} lands after its run has reported a failure")

    # --- a state ---

    def _wants(self, run: Run) -> tuple[int, ...]:
        return self.scenario.wants.get(run.request, (0,))

    def _own(self, state: State, n: int) -> int:
        return state.now[2 + n]

    def _off(self, state: State, n: int) -> int:
        return state.now[2 + self.scenario.queues + n]

    def _commit(self, id_: str, kind: str, moves: dict[str, int], request: str = "") -> Commit:
        values = tuple(moves.get(app_id) for app_id in self.ids)
        return Commit(id_, kind, request, values, tuple(value is not None for value in values))


def _with_run(state: State, n: int, run: Run) -> State:
    return state._replace(runs=(*state.runs[:n], run, *state.runs[n + 1 :]))


def _next(state: State) -> int:
    return len(state.log) + 1


def _known(value: int) -> int | None:
    return None if value == ABSENT else value


def _in_log(state: State, commit_id: str) -> bool:
    return any(commit.id == commit_id for commit in state.log)


def _is_done(state: State, request: str) -> bool:
    """Whether the window that completes the request is there."""
    return any(commit.kind == "window" and commit.request == request and commit.complete for commit in state.log)


def _conflict(mine: Commit, other: Commit) -> bool:
    return any(one and two for one, two in zip(mine.touched, other.touched, strict=True))


def _holder(state: State, own: str, ids: tuple[str, ...]) -> str | None:
    """The request that made the claim as it stands."""
    at = ids.index(own)
    for commit in reversed(state.log):
        value = commit.values[at]
        if commit.kind == "claim" and value is not None and Claim.of(value).number == Claim.of(state.now[at]).number:
            return commit.request
    return None


# --- the real decisions ----------------------------------------------------------------------------------------------


@cache
def _taken(current: Numbers, holders: tuple[str | None, ...], request: str, now_ms: int) -> Numbers:
    """What the request gets of what it wants."""
    claims = [
        Ctl("", Action.CLAIM, Actor("", ""), request_id=who, parameters=_said(OWNS[n], own))
        for (n, own), who in zip(current, holders, strict=True)
        if who is not None
    ]
    wish = Wish(request, Actor("", ""), "g", queues=tuple(OWNS[n] for n, _ in current))
    positions = Positions(0, {OWNS[n]: own for n, own in current})
    try:
        taken = take(wish, "", "s", positions, lambda _: claims, now_ms)
    except HeldByAnother:
        return ()
    # The lease ends after the same time for all: only whether it has begun counts here.
    return tuple((OWNS.index(id_), Claim(claim.number, LEASE_S).packed()) for id_, claim in taken.claims.items())


def _said(own: str, value: int) -> str:
    return canonical_json({"claims": {own: Claim.of(value).number}})


def _proposal(epoch: int | None, off: Numbers, own: Numbers, checked: frozenset[str]) -> Proposal:
    """What a window proposes. Only what is in ``checked`` is expected."""
    ctl = Ctl("window", Action.CONSUME, Actor("", ""), produced=(Produced(_LEVEL, 0, 1, 0, "file", delay_ms=0),))
    expect = {GRP: epoch} | {OFFS[n]: _known(at) for n, at in off} | {OWNS[n]: claim for n, claim in own}
    advance = {GRP: epoch or 0} | {OFFS[n]: MESSAGES for n, _ in off}
    advance |= {OWNS[n]: Claim(Claim.of(claim).number, 0).packed() for n, claim in own}
    return Proposal(ctl, {id_: value for id_, value in expect.items() if id_ in checked}, advance)


@cache
def _decided(
    epoch: int | None, off: Numbers, own: Numbers, checked: frozenset[str], ids: tuple[str, ...], now: tuple[int, ...]
) -> tuple[int | None, ...] | None:
    """The positions that the commit writes; None: it was overtaken."""
    proposal = _proposal(epoch, off, own, checked)
    try:
        decided = decide(proposal, Positions(0, dict(zip(ids, now, strict=True))), _CLOCKS)
    except StaleAttempt:
        return None
    return tuple(decided.positions.get(id_) for id_ in ids)


@cache
def _delete_decided(
    epoch: int, offsets: tuple[int, ...], closed: bool, ids: tuple[str, ...], now: tuple[int, ...]
) -> dict[str, int] | None:
    """What a delete writes that was planned at this epoch and these offsets; None: it was overtaken."""
    planned = Positions(0, {GRP: epoch, **dict(zip(OFFS, offsets, strict=False))})
    proposal = _DELETE.proposal("delete", planned, delete_moves(planned, "g"))
    if not closed:
        proposal = replace(proposal, closed=())
    try:
        decided = decide(proposal, Positions(0, dict(zip(ids, now, strict=True))), _CLOCKS)
    except StaleAttempt:
        return None
    return {id_: value for id_, value in decided.positions.items() if id_ in ids}


@cache
def _has_moved(
    epoch: int | None, off: Numbers, own: Numbers, checked: frozenset[str], ids: tuple[str, ...], now: tuple[int, ...]
) -> bool:
    try:
        compare(_proposal(epoch, off, own, checked), Positions(0, dict(zip(ids, now, strict=True))))
    except StaleAttempt:
        return True
    return False
