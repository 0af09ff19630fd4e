"""A breadth-first search through everything that can happen on the way into the Delta log, over the real rules.

What is real: ``Append`` (``commit/append.py``), ``decide_in_turn`` (``commit/decide.py``), ``take`` (``commit/claim.py``) and
``Content.conflicts`` (``lake/table/delta_log.py``). What is modelled: the store, which creates a name only if it is absent;
checkpoints, their hint and the clean-up; and the order in which a writer and a reader ask
(``docs/decisions/0011-own-log.md``).

A writer opens the log or uses a view that it has kept, reads to the end, plans and decides what its requests do, and sends
one entry for all of them. Its PUT is answered, or the reply is lost, or the PUT, or it arrives later, at any time. A crash
needs no step: a writer that is never continued has crashed, or has reported that it does not know; a second writer with the
same request is the next attempt.

Around the writers: readers that keep a view, operators, another producer, maintainers that write checkpoints and set the
hint, a clean-up of one name at a time, and time in steps, of which ``view_trust`` are the age at which a view is old, and
``checkpoint_trust`` the age at which entries behind a checkpoint go.

What has no effect that another can see happens with the step before it: plan and decide with the read that found the end, and
an answer that only says "open again" with that opening.

In a ``folder`` time says nothing: the entries behind any checkpoint may go at any moment. There each answer is followed by a
look at the entry before the name, which is a step of its own.

Not in it: vacuum, LISTs in several pages, data files, liveness. ``GUARDS`` names what can be left out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.log_states import GUARDS, INVARIANTS, Reader, Scenario, State, Violation
from tests.faults.log_store import Store
from tests.faults.log_writers import Writers


@dataclass(frozen=True, slots=True)
class Result:
    """The first violation, if there is one, the steps to it, and how many states were seen until then."""

    violation: str | None
    trace: tuple[str, ...]
    states: int


def explore(
    scenario: Scenario,
    without: frozenset[str] = frozenset(),
    watched: frozenset[str] = frozenset(INVARIANTS),
    most: int = 2_000_000,
) -> Result:
    """Every state that can be reached, breadth first, up to the first violation of an invariant in ``watched``. Stops with an
    AssertionError when there are more than ``most``, so that a search is never taken for complete that is not."""
    assert without <= GUARDS.keys()
    assert watched <= INVARIANTS.keys()
    gc.disable()  # states have no cycles, and the collector would walk through all of them again and again
    try:
        return _explored(_Model(scenario, without, watched), scenario.first(), most)
    finally:
        gc.enable()


def _explored(model: _Model, first: State, most: int) -> Result:
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    level = [first]
    while level:
        following = []
        for state in level:
            try:
                for step, reached in model.steps(state):
                    way = state, step
                    if came_from.setdefault(reached, way) is way:  # hashed once: that takes long
                        following.append(reached)
            except Violation as violation:
                return Result(str(violation.args[0]), (*_trace(came_from, state), str(violation)), len(came_from))
        assert len(came_from) <= most, f"more than {most} states: the scenario is too big"
        level = following
    return Result(None, (), len(came_from))


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (before := came_from[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))


class _Model:
    def __init__(self, scenario: Scenario, without: frozenset[str], watched: frozenset[str]) -> None:
        self.scenario = scenario
        self.store = Store(scenario, without, watched)
        self.writers = Writers(self.store)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for n, writer in enumerate(state.writers):
            if writer.at == "end":
                continue
            if writer.at == "start" and self._has_twin_before(state, n):
                continue
            for what, reached, after in self.writers.steps(state, writer):
                writers = (*reached.writers[:n], after, *reached.writers[n + 1 :])
                yield f"{writer.name}: {what}", reached._replace(writers=writers)
        for n, reader in enumerate(state.readers):
            for what, read in self._reader_steps(state, reader):
                readers = tuple(sorted((*state.readers[:n], read, *state.readers[n + 1 :])))
                yield f"reader: {what}", state._replace(readers=readers)
        for n, (name, entry) in enumerate(state.flying):
            landed = state._replace(flying=(*state.flying[:n], *state.flying[n + 1 :]))
            if not self.store.exists(state, name):
                landed = self.store.created(landed, name, entry)
            yield f"the PUT of {self.store.named(entry)} as {name} arrives", landed
        for n, (action, *rest) in enumerate(state.others):
            others = (*state.others[:n], *((tuple(rest),) if rest else ()), *state.others[n + 1 :])
            entry = self.store.contents.of_other(action, state.log)
            yield f"other: {action}", self.store.landed(state, entry)._replace(others=tuple(sorted(others)))
        yield from self.store.maintenance(state)
        if state.ticks:
            yield "time passes", self.store.later(state)

    def _has_twin_before(self, state: State, n: int) -> bool:
        """Attempts of a request are alike: the first one starts first."""
        jobs = self.scenario.jobs
        mine = jobs[state.writers[n].name]
        return any(one.at == "start" and jobs[one.name] == mine for one in state.writers[:n])

    def _reader_steps(self, state: State, reader: Reader) -> Iterator[tuple[str, Reader]]:
        first, listing = len(reader.view) + 1, bool(reader.listed)
        if self.store.is_old(reader.age) and self.store.has("young while opening" if listing else "young to walk"):
            yield "opens again", self._opened(state, reader)
            return
        last = first + self.scenario.at_once - 1
        names = range(first, (min(last, reader.listed) if listing else last) + 1)
        if len(reader.answers) == len(names):
            yield "looks at those before", self._applied(state, reader)
            return
        for name in {*names} - {answer.name for answer in reader.answers}:
            answers = tuple(sorted((*reader.answers, self.store.answer(state, name))))
            after = reader._replace(answers=answers)
            is_last = len(answers) == len(names) and not self.scenario.folder
            yield f"reads {name}", self._applied(state, after) if is_last else after

    def _opened(self, state: State, reader: Reader) -> Reader:
        view, listed = self.store.opened(state, reader.view)
        return Reader(view, 0, listed if listed > len(view) else 0, len(view))

    def _applied(self, state: State, reader: Reader) -> Reader:
        """The answers in the order of their names, up to the first absent one."""
        view, age = reader.view, reader.age
        for answer in reader.answers:
            if reader.listed:
                freed = self.scenario.folder and self.store.is_passed(state, reader.base)
            else:
                freed = self.store.is_freed(state, view, reader.base)
            if freed:
                return self._opened(state, reader)
            if answer.entry >= 0:
                self.store.applied(state, view, len(view) + 1, answer.entry)
                view = (*view, answer.entry)
                continue
            if reader.listed:
                return self._opened(state, reader)
            age = answer.age if self.store.has("time of the answer") else 0
            if answer.end > len(view):
                self.store.violated("R2", f"{answer.name} was absent, but the log ended at {answer.end}")
            if self.store.has("behind an absent name"):
                break
        return Reader(view, age, reader.listed if reader.listed > len(view) else 0, reader.base)
