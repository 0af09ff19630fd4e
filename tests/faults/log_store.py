"""The store of the search: names that are created only if they are absent, checkpoints, clean-up, and the invariants of
everything that lands."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.commit.positions import ABSENT
from tests.faults.log_decisions import MAX, Values, Work
from tests.faults.log_entries import Commit, Contents, View
from tests.faults.log_states import Answer, Checkpoint, Maintainer, Reader, Scenario, State, Violation


class Store:
    def __init__(self, scenario: Scenario, without: frozenset[str], watched: frozenset[str]) -> None:
        self.scenario, self.without, self.watched = scenario, without, watched
        works = [work for jobs in scenario.jobs.values() for job in jobs for work in job]
        self.claims = scenario.claims and "claim" not in without
        self.contents = Contents(
            works or [Work("none")], without, claims=self.claims, offset=scenario.offset, known=scenario.known
        )

    def has(self, guard: str) -> bool:
        return guard not in self.without

    def violated(self, invariant: str, text: str) -> None:
        if invariant in self.watched:
            raise Violation(invariant, text)

    def later(self, state: State) -> State:
        old, gone = self.scenario.view_trust, self.scenario.checkpoint_trust
        return state._replace(
            ticks=state.ticks - 1,
            writers=tuple(w if w.at == "end" else w._replace(age=min(w.age + 1, old)) for w in state.writers),
            readers=tuple(_older(reader, old) for reader in state.readers),
            checkpoints=tuple(one._replace(age=min(one.age + 1, gone)) for one in state.checkpoints),
            ages=tuple(min(age + 1, gone) for age in state.ages),
        )

    # --- views ---

    def opened(self, state: State, kept: View) -> tuple[View, int]:
        """The entries behind the checkpoint that an opening finds, and the end of the log according to its LIST; -1: there was
        no LIST, so the end has to be read. ``kept``: what was read before."""
        complete = [one.version for one in state.checkpoints if one.complete]
        if not complete:
            self.violated("R3", "no complete checkpoint, and the first entry is gone")
            return (), -1
        if state.hint not in complete and not self.has("hint may be absent"):
            return (), -1
        if state.hint in complete and not self.has("list"):
            return state.log[: state.hint], -1
        end = len(state.log)
        if not self.has("checkpoint before names"):
            return kept, end
        return state.log[: max(complete)], end

    def is_old(self, age: int) -> bool:
        return age >= self.scenario.view_trust

    def answer(self, state: State, name: int) -> Answer:
        entry = self.content(state, name)
        return Answer(name, -1 if entry is None else entry, len(state.log))

    def walked(self, state: State, view: View, answer: Answer) -> View | None:
        """The view with the next entry, None at the end."""
        if answer.entry < 0:
            if len(view) != answer.end:
                self.violated("R2", f"{answer.name} was absent, but the log ended at {answer.end}")
            return None
        self.applied(state, view, answer.name, answer.entry)
        return (*view, answer.entry)

    def is_freed(self, state: State, view: View, base: int) -> bool:
        """Whether the entry before the next name is not the one that was read: the oldest go first. ``base``: the checkpoint
        from which the view was opened."""
        if not self.scenario.folder or not self.has("look before"):
            return False
        if len(view) == base:
            return self.is_passed(state, base)
        entry = self.content(state, len(view))
        return entry is None or (entry != view[-1] and self.has("look compared"))

    def is_passed(self, state: State, checkpoint: int) -> bool:
        """Whether a LIST shows a newer checkpoint, behind which a clean-up may have deleted entries."""
        return self.has("newer checkpoint") and any(one.version > checkpoint for one in state.checkpoints)

    def applied(self, state: State, view: View, name: int, entry: int) -> None:
        if state.log[:name] != (*view, entry):
            self.violated("R1", f"{self.named(entry)} is read as {name} and is not in the log there")
        if any(self.contents.holds(view, commit.id) for commit in self.contents.commits(entry)):
            self.violated("D", f"{self.named(entry)} is read twice in a view")

    # --- names ---

    def exists(self, state: State, name: int) -> bool:
        return state.deleted < name <= len(state.log) or any(one == name for one, _ in state.again)

    def content(self, state: State, name: int) -> int | None:
        if state.deleted < name <= len(state.log):
            return state.log[name - 1]
        return dict(state.again).get(name)

    def created(self, state: State, name: int, entry: int) -> State:
        if name <= len(state.log):
            return state._replace(again=tuple(sorted((*state.again, (name, entry)))))
        if name > len(state.log) + 1:
            self.violated("G", f"{name} is created, the log ends at {len(state.log)}")
            return state
        return self.landed(state, entry)

    def maintenance(self, state: State) -> Iterator[tuple[str, State]]:
        for n, one in enumerate(state.maintainers):
            for what, reached, after in self._maintainer_steps(state, one):
                maintainers = tuple(sorted((*state.maintainers[:n], after, *state.maintainers[n + 1 :])))
                yield f"maintainer: {what}", reached._replace(maintainers=maintainers)
        if not state.maintainers:
            return
        counting = [one for one in state.checkpoints if one.complete or not self.has("checkpoint read back")]
        trust = 0 if self.scenario.folder else self.scenario.checkpoint_trust
        aged = [one.version for one in counting if one.age >= trust]
        behind = max(aged, default=0)
        if not self.has("checkpoint age"):
            behind = max(one.version for one in counting)
        names = [*(name for name, _ in state.again), state.deleted + 1]
        if (name := min(names)) < behind and (self.has("checkpoint age") or self._is_aged(state, name)):
            if name > state.deleted:
                yield f"clean-up of {name}", state._replace(deleted=name)
            else:
                again = tuple(one for one in state.again if one[0] != name)
                yield f"clean-up of {name}", state._replace(again=again)
        if not self.has("checkpoints go late"):
            behind = max((one.version for one in state.checkpoints if one.complete), default=0)
        kept = tuple(one for one in state.checkpoints if one.version >= behind)
        if kept != state.checkpoints:
            yield "clean-up of checkpoints", state._replace(checkpoints=kept)

    def _is_aged(self, state: State, name: int) -> bool:
        return state.ages[name - 1] >= self.scenario.checkpoint_trust

    def _maintainer_steps(self, state: State, one: Maintainer) -> Iterator[tuple[str, State, Maintainer]]:
        if self.scenario.slow:
            if one.target < 0:
                if one.rounds:
                    yield (
                        f"the end is {len(state.log)}",
                        state,
                        one._replace(rounds=one.rounds - 1, target=len(state.log)),
                    )
            elif one.written:
                yield f"sets the hint to {one.target}", state._replace(hint=one.target), Maintainer(one.rounds)
            else:
                yield f"checkpoint {one.target}", self._checkpointed(state, one.target), one._replace(written=True)
        elif one.rounds:
            target = len(state.log)
            reached = self._checkpointed(state, target)
            if reached != state:
                yield f"checkpoint {target}", reached._replace(hint=target), Maintainer(one.rounds - 1)
                if state.damages:
                    damaged = self._checkpointed(state, target, complete=False)._replace(damages=state.damages - 1)
                    yield f"checkpoint {target}, damaged", damaged._replace(hint=target), Maintainer(one.rounds - 1)

    def _checkpointed(self, state: State, version: int, *, complete: bool = True) -> State:
        if any(one.version == version for one in state.checkpoints):
            return state
        return state._replace(checkpoints=tuple(sorted((*state.checkpoints, Checkpoint(version, 0, complete)))))

    # --- the log ---

    def landed(self, state: State, entry: int) -> State:
        """Append, after the invariants."""
        commits, before = self.contents.commits(entry), state.log
        values = self.contents.values(before)
        for commit in commits:
            self._check(state, commit, values)
            values = self.contents.after(values, [commit])
            if commit.kind == "delete" and any(
                at != ABSENT for at in self.contents.offsets(values, commit.group).values()
            ):
                self.violated("I4", "an offset has outlived its group")
        ages = (*state.ages, 0) if not self.has("checkpoint age") else ()
        return state._replace(log=(*before, entry), ages=ages)

    def _check(self, state: State, commit: Commit, values: Values) -> None:
        """What must be true of everything that becomes visible."""
        log, contents = state.log, self.contents
        if contents.holds(log, commit.id):
            self.violated("D", f"{commit.id} is in the log twice")
        if any(commit.id in writer.reported for writer in state.writers):
            self.violated("I7b", f"{commit.id} lands after its failure was reported")
        if not set(commit.removes) <= contents.files(log):
            self.violated("C", f"{commit.id} removes what is not live, and adds it again")
        if commit.kind == "window":
            self._check_window(log, commit, values)
        if commit.kind in ("window", "compaction", "claim"):
            for number in log[commit.read :]:
                if any(contents.share_ids(commit, other) for other in contents.commits(number)):
                    self.violated("I8", f"{commit.id} was decided before {self.named(number)}, which shares an id")

    def _check_window(self, log: View, commit: Commit, values: Values) -> None:
        contents = self.contents
        if contents.is_complete(log, commit.request):
            self.violated("I3", f"request {commit.request} is committed twice")
        for number in log[commit.planned :]:
            for other in contents.commits(number):
                if other.group != commit.group:
                    continue
                if other.kind in ("reset", "away", "back"):
                    self.violated("I6", f"{commit.id} was planned before the operator's {other.id}")
                if other.kind == "delete":
                    self.violated("I4", f"{commit.id} belongs to a group that was deleted")
        for n, begin in commit.begins:
            offset = max(contents.offset(values, commit.group, n), 0)
            if begin != offset:
                self.violated("I1", f"{commit.id} begins at {begin} of {n}, the committed offset is {offset}")
        if commit.base != contents.value(values, MAX):
            self.violated("I2", f"{commit.id} has base {commit.base}, the queue ends at {contents.value(values, MAX)}")

    def named(self, entry: int) -> str:
        return " + ".join(commit.id for commit in self.contents.commits(entry)) or "the empty entry"


def _older(reader: Reader, old: int) -> Reader:
    answers = tuple(answer._replace(age=min(answer.age + 1, old)) for answer in reader.answers)
    return reader._replace(age=min(reader.age + 1, old), answers=answers)
