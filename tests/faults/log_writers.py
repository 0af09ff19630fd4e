"""What a writer of the search does: open, read to the end, plan, decide, send its entry, and understand the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rmq_store.commit.append import VIEW_TRUST_MS, Append, NameState, PutAnswer, Request, Verdict
from tests.faults.log_decisions import Member, Work
from tests.faults.log_entries import Entry
from tests.faults.log_states import Answer, State, Writer
from tests.faults.log_store import Store

Steps = Iterator[tuple[str, State, Writer]]


class Writers:
    def __init__(self, store: Store) -> None:
        self.store, self.scenario, self.contents = store, store.scenario, store.contents
        self.has = store.has

    def steps(self, state: State, writer: Writer) -> Steps:
        append = writer.append
        if writer.answer is not None:
            yield from self._look(state, writer, writer.answer)
        elif writer.at == "start":
            if self.scenario.opens:
                yield from self._open(state, writer, "opens")
            yield from self._walk(state, writer)
        elif writer.at == "walk":
            yield from self._walk(state, writer)
        elif append is not None and append.request is Request.REOPEN:
            yield from self._open(state, writer, "opens again")
        elif append is not None:
            if append.request is Request.PUT:
                yield from self._put(state, writer, append)
            else:
                yield from self._read(state, writer, append)
            if self.scenario.gives_up and (append.settled or not self.has("settled")):
                yield "gives up", state, self._next_job(self._reported(state, writer, writer.members))
            if append.unanswered and len(writer.members) > 1 and not self.has("all or none"):
                yield "drops a window", state, self._without_first(state, writer)

    # --- views ---

    def _open(self, state: State, writer: Writer, what: str) -> Steps:
        view, listed = self.store.opened(state, writer.view)
        opened = writer._replace(at="walk", view=view, age=0, listed=max(listed, 0), base=len(view), answer=None)
        if listed == len(view):
            yield from self._at_end(state, opened, what)
        else:
            yield what, state, opened

    def _walk(self, state: State, writer: Writer) -> Steps:
        """The next entry, up to where the LIST has ended, or to the first absent name."""
        listing, name = bool(writer.listed), len(writer.view) + 1
        guard = "young while opening" if listing else "young to walk"
        if self.store.is_old(writer.age) and self.has(guard):
            yield from self._open(state, writer, "opens again")
            return
        if listing and self.store.content(state, name) is None:
            yield from self._open(state, writer, f"{name} is gone, opens again")
            return
        answer = self.store.answer(state, name)
        if self.scenario.folder and listing and name < writer.listed:  # the look at the end is for all of them
            yield f"reads {name}", state, writer._replace(at="walk", view=(*writer.view, answer.entry))
        elif self.scenario.folder:
            yield f"reads {name}", state, writer._replace(at="walk", answer=answer)
        else:
            yield from self._walked(state, writer, answer)

    def _walked(self, state: State, writer: Writer, answer: Answer) -> Steps:
        view = self.store.walked(state, writer.view, answer)
        if view is None:
            yield from self._at_end(state, writer._replace(at="walk", age=0), f"{answer.name} is absent")
        elif len(view) == writer.listed:
            yield from self._at_end(state, writer._replace(view=view), f"reads {answer.name}")
        else:
            yield f"reads {answer.name}", state, writer._replace(at="walk", view=view)

    def _look(self, state: State, writer: Writer, answer: Answer) -> Steps:
        """Behind an answer, at the entry before its name."""
        if writer.listed:
            freed = self.store.is_passed(state, writer.base)
        else:
            freed = self.store.is_freed(state, writer.view, writer.base)
        writer = writer._replace(answer=None)
        append = writer.append
        if append is None or writer.at == "walk":
            if freed:
                yield from self._open(state, writer, f"{len(writer.view)} is gone, opens again")
            else:
                yield from self._walked(state, writer, answer)
        elif not answer.name:
            after = self._put_answered(state, writer, append, PutAnswer.CREATED, freed=freed)
            yield f"looks at {len(writer.view)}", state, after
        elif freed:
            again = append.read_answered(NameState.ABSENT, 0, freed=True)
            assert isinstance(again, Append), "nothing is settled under a freed name"
            yield from self._open(state, writer._replace(append=again), f"{len(writer.view)} is gone, opens again")
        else:
            yield from self._settled(state, writer, append, answer)

    def _at_end(self, state: State, writer: Writer, what: str) -> Steps:
        writer = writer._replace(listed=0)
        if writer.append is not None:
            yield what, state, self._reopened(state, writer, writer.append)
        elif writer.members:
            yield f"{what}, decides again", state, self._decided(state, writer, writer.members)
        else:
            for plan, after in self._planned(state, writer):
                yield f"{what}, {plan}", state, after

    def _reopened(self, state: State, writer: Writer, append: Append) -> Writer:
        mine = any(self.contents.holds(writer.view, member.commit_id) for member in writer.members)
        committed = mine and self.has("look after opening")
        answer = append.reopened(len(writer.view), 0, committed=committed)
        return self._answered(state, writer, answer)

    # --- plan and decide ---

    def _planned(self, state: State, writer: Writer) -> Iterator[tuple[str, Writer]]:
        works = self.scenario.jobs[writer.name][writer.job]
        if self.store.claims and works[0].kind == "window" and not writer.own:
            yield from self._claims(state, writer, works[0])
            return
        members, reports = list[Member](), list[str]()
        for work in works:
            plan = self.contents.planned(work, self._commit_id(writer, work), writer.view, writer.own)
            if isinstance(plan, Member):
                members.append(plan)
            else:
                reports.append(plan)
                self._check_nothing_to_do(state, writer, work, plan)
        yield (", ".join(reports) or "plans"), self._decided(state, writer, tuple(members))

    def _commit_id(self, writer: Writer, work: Work) -> str:
        return f"{writer.name}.{work.request}{writer.part}"

    def _claims(self, state: State, writer: Writer, work: Work) -> Iterator[tuple[str, Writer]]:
        plan = self.contents.planned(work, "", writer.view, ((work.queues[0], 0),))
        if plan in ("already committed", "nothing to do"):
            self._check_nothing_to_do(state, writer, work, str(plan))
            yield str(plan), self._next_job(writer)
            return
        for late in (False, True):
            if late and not (self.scenario.leases_end and self.contents.leased(work, writer.view)):
                continue
            claim_id = f"{writer.name}.claim{writer.claims + 1}"
            claim = self.contents.claimed(work, claim_id, writer.view, late=late)
            if claim is None:
                yield "the claim is held", self._next_job(writer)
                continue
            commit, own = claim
            member = Member(work, claim_id, len(writer.view), None, ())
            claiming = writer._replace(claims=writer.claims + 1, own=own, members=(member,))
            entry = self.contents.number(Entry((commit,)))
            yield f"takes a claim{' that is over' * late}", self._appending(claiming, entry)

    def _is_claim(self, writer: Writer) -> bool:
        return any(commit.kind == "claim" for commit in self.contents.commits(writer.entry))

    def _decided(self, state: State, writer: Writer, members: tuple[Member, ...]) -> Writer:
        """The entry for those who are not overtaken."""
        decision = self.contents.decided(members, writer.view)
        commits = decision.commits
        if writer.entry and decision.overtaken and not self.has("new bases"):
            stay = {member.commit_id for member in decision.members}
            commits = tuple(commit for commit in self.contents.commits(writer.entry) if commit.id in stay)
        writer = self._reported(state, writer, decision.overtaken)
        if not commits:
            return self._next_job(writer)
        return self._appending(writer._replace(members=decision.members), self.contents.number(Entry(commits)))

    def _appending(self, writer: Writer, entry: int) -> Writer:
        append = Append(len(writer.view) + 1, 0)
        return writer._replace(at="append", entry=entry, append=append)

    # --- requests and answers ---

    def _now_ms(self, writer: Writer, guard: str) -> int:
        """The time of an answer, where the view's is 0."""
        if not self.has(guard):
            return 0
        return VIEW_TRUST_MS * writer.age // self.scenario.view_trust

    def _put(self, state: State, writer: Writer, append: Append) -> Steps:
        name, entry = append.version, writer.entry
        what = f"PUT {name}"
        if self.store.exists(state, name):
            reached, answer = state, PutAnswer.TAKEN
        else:
            reached, answer = self.store.created(state, name, entry), PutAnswer.CREATED
        if self.scenario.folder and answer is PutAnswer.CREATED:
            after = writer._replace(answer=Answer(0, entry, len(reached.log)))
        else:
            after = self._put_answered(reached, writer, append, answer)
        yield f"{what}: {answer}", reached, after
        if state.losses:
            lost = state._replace(losses=state.losses - 1)
            yield f"{what} is lost", lost, self._silence(lost, writer, append)
            if answer is PutAnswer.CREATED:
                lost = reached._replace(losses=state.losses - 1)
                yield f"{what}: created, the reply is lost", lost, self._silence(lost, writer, append)
        if state.late:
            flying = tuple(sorted((*state.flying, (name, entry))))
            late = state._replace(late=state.late - 1, flying=flying)
            yield f"{what} is late", late, self._silence(late, writer, append)

    def _silence(self, state: State, writer: Writer, append: Append) -> Writer:
        if not self.has("silence is unknown"):
            return self._next_job(self._reported(state, writer, writer.members))
        if not self.has("same name"):
            return writer._replace(append=Append(append.version + 1, 0))
        return self._put_answered(state, writer, append, PutAnswer.SILENT)

    def _put_answered(
        self, state: State, writer: Writer, append: Append, answer: PutAnswer, *, freed: bool = False
    ) -> Writer:
        if answer is PutAnswer.TAKEN and not self.has("taken is read"):
            return writer._replace(append=Append(append.version + 1, 0))
        now_ms = self._now_ms(writer, "young when created")
        if not self.has("time, not hint"):
            now_ms = VIEW_TRUST_MS if state.hint >= append.version else 0
        after = append.put_answered(answer, now_ms, freed=freed)
        if after is not Verdict.COMMITTED:
            return self._answered(state, writer, after)
        return self._answered(state, writer._replace(view=(*writer.view, writer.entry), age=0), after)

    def _read(self, state: State, writer: Writer, append: Append) -> Steps:
        answer = self.store.answer(state, append.version)
        if self.scenario.folder:
            yield f"reads {answer.name}", state, writer._replace(answer=answer)
        else:
            yield from self._settled(state, writer, append, answer)

    def _settled(self, state: State, writer: Writer, append: Append, answer: Answer) -> Steps:
        """After the name was read."""
        content = answer.entry
        mine = content >= 0 and self._is_mine(writer, content)
        guard = "young when mine" if mine else "young when another's"
        now_ms = self._now_ms(writer, guard)
        if self.store.is_old(writer.age) and now_ms:
            again = append.read_answered(NameState.MINE if mine else NameState.ABSENT, now_ms)
            assert isinstance(again, Append), "nothing is settled in an old view"
            assert again.request is Request.REOPEN, "an old view is dropped"
            yield from self._open(state, writer._replace(append=replace(again, view_ms=0)), "opens again")
            return
        if content < 0:
            if not self.has("taken, then absent"):
                append = Append(append.version, 0, append.request, append.unanswered)
            after = writer
            if not self.has("same bytes"):
                entry = self.contents.entry(writer.entry)
                after = writer._replace(entry=self.contents.number(entry._replace(copy=entry.copy + 1)))
            yield "is absent", state, self._answered(state, after, append.read_answered(NameState.ABSENT, now_ms))
            return
        self.store.applied(state, writer.view, append.version, content)
        read = writer._replace(view=(*writer.view, content))
        if mine:
            yield "is mine", state, self._answered(state, read, append.read_answered(NameState.MINE, now_ms))
            return
        touches = self.contents.touches(writer.entry, content) and self.has("newcomer compared")
        name_state = NameState.CONFLICTING if touches else NameState.UNRELATED
        yield (
            f"is {self.store.named(content)}",
            state,
            self._answered(state, read, append.read_answered(name_state, now_ms)),
        )

    def _is_mine(self, writer: Writer, content: int) -> bool:
        mine = {member.commit_id for member in writer.members}
        return any(commit.id in mine for commit in self.contents.commits(content))

    def _answered(self, state: State, writer: Writer, answer: Append | Verdict) -> Writer:
        if isinstance(answer, Append):
            age = 0 if answer.view_ms else writer.age
            return writer._replace(at="append", age=age, append=replace(answer, view_ms=0))
        match answer:
            case Verdict.COMMITTED:
                return self._committed(state, writer)
            case Verdict.OVERTAKEN if self._is_claim(writer):
                return writer._replace(at="walk", append=None, entry=0, members=(), own=())
            case Verdict.OVERTAKEN if writer.at == "walk":
                return self._decided(state, writer, writer.members)
            case Verdict.OVERTAKEN:
                return writer._replace(at="walk", append=None)
            case Verdict.REWOUND:
                self.store.violated("R4", f"{writer.name} believes that the log is another one")
                return self._decided(state, writer, writer.members)

    # --- reports ---

    def _committed(self, state: State, writer: Writer) -> Writer:
        for member in writer.members:
            if not self.contents.holds(state.log, member.commit_id):
                self.store.violated("I7", f"{member.commit_id} is reported as committed and is not in the log")
        if self._is_claim(writer):
            return writer._replace(at="walk", append=None, entry=0, members=())
        if any(member.rest for member in writer.members):
            return self._begun(writer, writer.job, writer.part + 1)
        return self._next_job(writer)

    def _reported(self, state: State, writer: Writer, members: tuple[Member, ...]) -> Writer:
        """After the failure of these has been reported."""
        for member in members:
            if self.contents.holds(state.log, member.commit_id):
                self.store.violated("I7b", f"{member.commit_id} is reported as failed and is in the log")
        return writer._replace(reported=tuple(sorted({*writer.reported, *(member.commit_id for member in members)})))

    def _without_first(self, state: State, writer: Writer) -> Writer:
        failed = self._reported(state, writer, writer.members[:1])
        decision = self.contents.decided(writer.members[1:], writer.view)
        return failed._replace(members=decision.members, entry=self.contents.number(Entry(decision.commits)))

    def _next_job(self, writer: Writer) -> Writer:
        if writer.job + 1 == len(self.scenario.jobs[writer.name]):
            return Writer(writer.name, "end", reported=writer.reported)
        return self._begun(writer, writer.job + 1, 1)

    def _begun(self, writer: Writer, job: int, part: int) -> Writer:
        """It keeps its view."""
        kept = Writer(writer.name, "walk", writer.view, writer.age, reported=writer.reported)
        return kept._replace(job=job, part=part, claims=writer.claims)

    def _check_nothing_to_do(self, state: State, writer: Writer, work: Work, report: str) -> None:
        if report != "already committed" or self.contents.is_complete(state.log, work.request):
            return
        believed = self.contents.is_complete(writer.view, work.request)
        self.store.violated(
            "I7a" if believed else "I9", f"{work.request} is reported as committed and is not in the log"
        )
