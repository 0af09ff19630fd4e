"""The windows of many groups in one process, with common commits.

``consume_all`` does for each group what ``consume_window`` (``window.py``) does for one, by the same rules and with the same
result: window after window in one shard, then the next shard; an error ends the work of its group only. The groups share

- the refresh of a shard's tables,
- the commit of the claims of all groups that have work,
- the commits of their windows: one takes every window that is ready, and while it is written, more become ready,
- the renewal of the claims of all that still run, the release of those that committed nothing, and the dispatch.

One thread plans, claims, renews and commits. The windows run in a pool of threads, so that a slow group delays the others
only when as many as there are threads are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Event
from typing import TypeVar

from rmq_store.admin.sentences import blocked_warnings
from rmq_store.commit.claim import RENEW_EVERY_S, Taken
from rmq_store.commit.ctl import Proposal
from rmq_store.errors import CommitOutcomeUnknown, RmqError, StaleAttempt, Terminated
from rmq_store.lake.commit.claim import release_together, renew_together, take_together
from rmq_store.lake.commit.commit import Committed, Member, commit_together, reached
from rmq_store.lake.commit.cursor import refuse_rolled_back
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.listener.task_listener import listener_kind
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consumption import shards_of
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.lake.window.group_course import Course, GroupReport
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.lake.window.window import Work, plan_window, run_work, work_of
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport, committed_window, ends_at_ms, held_of, wish
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.plan import Plan, Planner

Item = TypeVar("Item")

THREADS = 20
"""So many windows run at once: as RocketMQ's ``consumeThreadMin``."""
_LOOK_EVERY_S = RENEW_EVERY_S / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeAllReport:
    """What became of a request of many groups."""

    request_id: str
    groups: tuple[GroupReport, ...]
    warnings: tuple[str, ...] = ()
    """What failed after commits, and that queues of orderly groups are blocked."""


def consume_all(
    store: LakeStore,
    groups: Sequence[GroupSettings],
    request: ConsumeRequest,
    engine_of: Callable[[Plan], Engine],
    host: Host,
    *,
    shard: str | None = None,
    threads: int = THREADS,
    finished: Callable[[GroupReport], None] = lambda report: None,
) -> ConsumeAllReport:
    """Consume what these groups have not consumed yet. Each group has its own request, with this id.

    ``shard``: only this one. ``threads``: how many windows run at once. ``finished`` is called with the report of each group
    when its work is over. The errors of a group are in its report; StoreUnusable is raised when the shards cannot be
    listed, BadData when the log of a shard is damaged. Claims are released when the process is stopped.
    """
    opened = store.shards()
    tick = _Tick(store, request, engine_of, host, threads, finished)
    courses = [Course(group) for group in groups]
    for course in courses:
        with course.own_errors():
            course.shards.extend(shards_of(store, course.group, chosen=shard, opened=opened))
    tick.run(courses)
    reports = tuple(course.report() for course in courses)
    blocked = [text for report in reports for text in blocked_warnings(report.group, report.unread)]
    warnings = (*tick.warnings, *blocked)
    return ConsumeAllReport(request_id=request.request_id, groups=reports, warnings=warnings)


@dataclass(slots=True, eq=False)
class _Running:
    """A window that is claimed, until it is committed or given up."""

    course: Course
    shard: Shard
    work: Work
    taken: Taken
    renewed_ms: int
    """When its claims were taken, or their renewal was last tried (UTC ms)."""
    is_held: bool = True
    """False: another run has taken a claim over, and the commit will be refused."""
    result: Future[Proposal] | None = None

    @property
    def proposal(self) -> Proposal | BaseException:
        """The commit of the window, or the error that ended it."""
        assert self.result is not None
        return self.result.exception() or self.result.result()


class _Tick:
    """The loop of the one thread that plans and commits."""

    def __init__(
        self,
        store: LakeStore,
        request: ConsumeRequest,
        engine_of: Callable[[Plan], Engine],
        host: Host,
        threads: int,
        finished: Callable[[GroupReport], None],
    ) -> None:
        self.warnings: list[str] = []
        self._store = store
        self._request = request
        self._engine_of = engine_of
        self._host = host
        self._finished = finished
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="window")
        self._stopped = Event()
        self._running: set[_Running] = set()
        self._ended: SimpleQueue[_Running] = SimpleQueue()

    def run(self, courses: Sequence[Course]) -> None:
        """Until the work of all groups is over."""
        waiting = self._unfinished(courses)
        try:
            while waiting or self._running:
                waiting = self._begin(waiting) if waiting else self._finish(self._next_ended())
        except BaseException:
            self._stop()
            raise
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _unfinished(self, courses: Iterable[Course]) -> list[Course]:
        """Those whose work is not over; the others are reported."""
        unfinished = []
        for course in courses:
            if course.is_over:
                self._finished(course.report())
            else:
                unfinished.append(course)
        return unfinished

    # --- plan and claim ---

    def _begin(self, courses: Sequence[Course]) -> list[Course]:
        """Begin the next window of each group. Returns the groups that have none in their shard, and go on in another."""
        for shard, several in _grouped((course.shards[0], course) for course in courses):
            self._begin_in(shard, several)
        running = {id(one.course) for one in self._running}
        return self._unfinished(course for course in courses if id(course) not in running)

    def _begin_in(self, shard: Shard, courses: Sequence[Course]) -> None:
        started_ms = self._host.now_ms()
        try:
            shard.refresh("commitlog", "consumequeue", "offsets")
            refuse_rolled_back(shard)
        except Exception as error:
            for course in courses:
                course.error = error
            return
        # 1. Plan.
        planned: list[tuple[Course, Plan, Engine]] = []
        for course in courses:
            with course.own_errors():
                plan = plan_window(shard, self._planner(shard, course, started_ms), self._request)
                if isinstance(plan, WindowReport):
                    course.add(plan)
                    continue
                listener_kind(course.group, self._host.now_ms)
                planned.append((course, plan, self._engine_of(plan)))
        if not planned:
            return
        reached("1.planned")
        planned_at = shard.commitlog.version
        # 2. Claim.
        claims = take_together(shard, [wish(plan, self._request) for _, plan, _ in planned], self._host)
        running: list[_Running] = []
        given_up: list[Taken] = []
        try:
            claimed_at = shard.commitlog.version
            for (course, plan, engine), taken in zip(planned, claims, strict=True):
                if isinstance(taken, RmqError):
                    course.error = taken
                    continue
                given_up.append(taken)
                with course.own_errors():
                    if taken.held or not plan.is_claimed_as_next(planned_at, claimed_at):
                        planner = self._planner(shard, course, started_ms)
                        again = plan_window(shard, planner, self._request, before=plan, taken=taken)
                        if isinstance(again, WindowReport):
                            course.add(again)
                            continue
                        plan = again
                    work = work_of(self._store, shard, plan, self._request, engine, self._host, started_ms=started_ms)
                    running.append(_Running(course, shard, work, given_up.pop(), started_ms))
        except BaseException:
            self._release(shard, [taken for taken in claims if isinstance(taken, Taken)])
            raise
        self._running.update(running)
        reached("2.claimed")
        # 3. Run.
        for one in running:
            one.result = self._pool.submit(self._run, one)
            one.result.add_done_callback(lambda _, one=one: self._ended.put(one))  # type: ignore[misc]
        self._release(shard, given_up)

    def _planner(self, shard: Shard, course: Course, started_ms: int) -> Planner:
        return Planner(ShardLookup(shard), course.group, started_ms)

    # --- run, in a thread of the pool ---

    def _run(self, one: _Running) -> Proposal:
        job, group = one.work.job, one.course.group
        # The window's time begins when it runs, not while it waits for a thread.
        job = replace(job, ends_at_ms=ends_at_ms(group, self._now_ms()))
        if isinstance(one.work.engine, LocalEngine):
            job = replace(job, now_ms=self._now_ms)
        # A group that absorbs duplicates looks its keys up in the table, whose handle belongs to the other thread.
        shard = one.shard if group.absorb_duplicates is None else Shard(one.shard.root, one.shard.name)
        return run_work(shard, replace(one.work, job=job))

    def _now_ms(self) -> int:
        """The clock of the windows. It is read between two calls of a listener, and ends a window that is to stop."""
        if self._stopped.is_set():
            raise Terminated
        return self._host.now_ms()

    # --- commit ---

    def _next_ended(self) -> list[_Running]:
        """All windows that have ended, at least one. Until then claims are renewed."""
        ended: list[_Running] = []
        while not ended:
            self._renew()
            with suppress(Empty):
                ended.append(self._ended.get(timeout=_LOOK_EVERY_S))
        with suppress(Empty):
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def _finish(self, ended: Sequence[_Running]) -> list[Course]:
        """Commit what has ended. Returns the groups that go on."""
        for shard, several in _grouped((one.shard, one) for one in ended):
            self._finish_in(shard, several)
        return self._unfinished(one.course for one in ended)

    def _finish_in(self, shard: Shard, ended: Sequence[_Running]) -> None:
        ready: list[tuple[_Running, Proposal]] = []
        given_up = []
        for one in ended:
            proposal = one.proposal
            if isinstance(proposal, Proposal):
                ready.append((one, one.taken.ended_by(proposal)))
            elif isinstance(proposal, Exception):
                one.course.error = proposal
                given_up.append(one.taken)
            else:  # the listener, or what it called, stops the process
                raise proposal
        if ready:
            reached("3.staged")
            # 4. Decide. 5. Put. 6. Settle.
            members = [Member(proposal, one.work.started_ms) for one, proposal in ready]
            outcomes = commit_together(shard, members, self._host)
            for (one, _), outcome in zip(ready, outcomes, strict=True):
                if isinstance(outcome, Committed):
                    plan, engine = one.work.plan, one.work.engine.name
                    held = held_of(plan, one.taken)
                    one.course.add(committed_window(shard.name, engine, plan, outcome.ctl, outcome.version, held))
                    continue
                one.course.error = outcome
                if not isinstance(outcome, CommitOutcomeUnknown):  # else write nothing more: the lease ends by itself
                    given_up.append(one.taken)
        self._running.difference_update(ended)
        self._release(shard, given_up)
        if ready:
            # 7. Follow up.
            self.warnings += follow_up(shard, self._host)
            reached("7.dispatched")

    # --- claims ---

    def _renew(self) -> None:
        """Renew the claims of all that run, when the first is due: in one commit per shard."""
        now_ms = self._host.now_ms()
        running = [one for one in self._running if one.is_held]
        if not any(now_ms - one.renewed_ms >= RENEW_EVERY_S * 1000 for one in running):
            return
        for shard, several in _grouped((one.shard, one) for one in running):
            renewed = renew_together(shard, [one.taken for one in several], self._host)
            for one, outcome in zip(several, renewed, strict=True):
                one.renewed_ms = now_ms
                if isinstance(outcome, Taken):
                    one.taken = outcome
                one.is_held = not isinstance(outcome, StaleAttempt)

    def _release(self, shard: Shard, several: Sequence[Taken]) -> None:
        """End claims without a commit. Errors of the store are ignored: leases end by themselves."""
        if several:
            with suppress(RmqError, OSError):
                shard.commitlog.refresh()
                release_together(shard, several, self._host)

    def _stop(self) -> None:
        """Call listeners no more, and give the claims back."""
        self._stopped.set()
        for shard, several in _grouped((one.shard, one) for one in self._running):
            self._release(shard, [one.taken for one in several])


def _grouped(pairs: Iterable[tuple[Shard, Item]]) -> list[tuple[Shard, list[Item]]]:
    """The items of each shard, in their order."""
    groups: dict[int, tuple[Shard, list[Item]]] = {}
    for shard, item in pairs:
        groups.setdefault(id(shard), (shard, []))[1].append(item)
    return list(groups.values())
