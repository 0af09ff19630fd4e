"""What runs do in the search of ``proposal_explorer.py``: each operation plans and proposes with the functions of the project.

What a run would read of files, or write into them, is given: which messages fail, what a broker's log has, where a new file
would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.redrive import RedrivePlan, RedriveRequest, plan_redrive, redrive_proposal
from rmq_store.commit.claim import Taken, Wish
from rmq_store.commit.ctl import (
    SCHEDULE_GROUP,
    Action,
    Actor,
    Blocked,
    Produced,
    Proposal,
    StagedFile,
    lane,
)
from rmq_store.commit.positions import (
    Outcome,
    QueueRange,
    Tally,
    tally,
)
from rmq_store.consumer.delay import DelayLevels
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rmq_store.producer.producer import Message
from rmq_store.producer.send import Part, plan_send, send_proposal
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport, WindowResult, consume_proposal, next_window, wish
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.deliver import CAP, DeliverRequest, deliver_proposal, moved_to
from rmq_store.window.due import Due, select_due, still_due
from rmq_store.window.plan import Plan, Planner
from tests.faults.proposal_view import LOCAL, SHARD, Snapshot

DAY = "2026-11-20"
ANA = Actor("ana", "test")
LEVELS = DelayLevels()
RETRY_LEVEL = 3


@dataclass(frozen=True, slots=True)
class Moment:
    """When a run proposes: what it has read, at which time (UTC ms, of its host), with which claim. ``planned``: what it had
    read before the claim, and when."""

    view: Snapshot
    now_ms: int
    commit_id: str
    taken: Taken | None = None
    planned: tuple[Snapshot, int] | None = None

    @property
    def file(self) -> str:
        return f"{self.commit_id}.parquet"

    def staged(self, kind: str = "msg") -> StagedFile:
        return StagedFile(self.file, kind, 0, 1, "")


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal, the name of the function that made it, and what it does that its row does not say."""

    proposal: Proposal
    by: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A request. ``skew_ms``: how far the clock of its host is ahead; ``tries``: how often it plans again after it was
    overtaken; ``renews``: whether it renews its claim while it runs; ``parts``: the most commits that it makes."""

    name: str
    skew_ms: int = 0
    tries: int = 1
    renews: bool = False
    parts: int = 1

    claims: ClassVar[bool] = False

    @property
    def request_id(self) -> str:
        return f"{DAY}-{self.name.rstrip('*')}"

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        """The claims that it needs; None: nothing is to be done. Not called if it ``claims`` nothing."""
        raise NotImplementedError

    def draft(self, moment: Moment) -> Draft | None:
        """None: nothing is to be done."""
        raise NotImplementedError


def evidence(range_: QueueRange) -> Tally:
    return tally(range(range_.begin, range_.end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume(Operation):
    """A window. ``failing``: the queues and offsets of messages that are retried, ``dead``: that become dead letters;
    ``waits``: where queues of an orderly group are blocked; ``keys``: the keys of messages; ``most``: how many messages the
    request consumes; ``facts``: what else its rows say."""

    claims: ClassVar[bool] = True

    group: GroupSettings
    failing: frozenset[tuple[MessageQueue, int]] = frozenset()
    dead: frozenset[tuple[MessageQueue, int]] = frozenset()
    waits: tuple[tuple[MessageQueue, int], ...] = ()
    keys: tuple[tuple[tuple[MessageQueue, int], str], ...] = ()
    most: int | None = None
    client: str | None = None
    scope: Scope = LIVE
    facts: tuple[tuple[str, object], ...] = ()

    @property
    def request(self) -> ConsumeRequest:
        return ConsumeRequest(
            self.request_id,
            ANA,
            max_messages=self.most,
            parameters=dict(self.facts),
            client_id=self.client,
            client_ids=("c1", "c2") if self.client else (),
        )

    def _plan(
        self, view: Snapshot, now_ms: int, before: Plan | None = None, taken: Taken | None = None
    ) -> Plan | WindowReport:
        planner = Planner(view, self.group, now_ms, self.scope)
        parts = [ctl for ctl in view.parts(self.request_id, Action.CONSUME) if ctl.group == self.group.name]
        return next_window(planner, self.request, parts, view.segments_of, before=before, taken=taken)

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        plan = self._plan(view, now_ms)
        return wish(plan, self.request) if isinstance(plan, Plan) else None

    def draft(self, moment: Moment) -> Draft | None:
        assert moment.planned is not None
        before = self._plan(*moment.planned)
        assert isinstance(before, Plan)
        plan = self._plan(moment.view, moment.now_ms, before, moment.taken)
        if not isinstance(plan, Plan):
            return None
        ranges = {planned.queue: planned.range for planned in plan.ranges}
        waits = {q: at for q, at in self.waits if q in ranges and ranges[q].begin <= at < ranges[q].end}
        tallies: dict[MessageQueue, dict[Outcome, Tally]] = {}
        copies: list[tuple[MessageQueue, int]] = []
        keys: list[str] = []
        for planned in plan.ranges:
            queue = planned.queue
            end = waits.get(queue, planned.range.end)
            of_queue: dict[Outcome, set[int]] = {Outcome.LOST: set(range(planned.begin, planned.range.begin))}
            for offset in range(planned.range.begin, end):
                outcome = self._outcome(moment.view, queue, offset, keys)
                of_queue.setdefault(outcome, set()).add(offset)
            tallies[queue] = {outcome: tally(offsets) for outcome, offsets in of_queue.items() if offsets}
            retried, dead = of_queue.get(Outcome.RETRIED, set()), of_queue.get(Outcome.DEAD, set())
            local = MessageQueue(SCHEDULE_TOPIC, lane(LOCAL, self.group.name), RETRY_LEVEL - 1)
            copies += [(local, len(retried))] if retried else []
            copies += [(MessageQueue(dlq_topic(self.group.name), LOCAL, 0), len(dead))] if dead else []
        result = WindowResult(
            tallies=tallies,
            produced=_segments(copies, moment),
            files=[moment.staged()] if copies else [],
            waits=waits,
            blocked=[Blocked(QueueRange(queue, at, at + 1), 1, "SUSPEND") for queue, at in waits.items()],
            keys=None,
        )
        proposal = consume_proposal(plan, self.request, result, commit_id=moment.commit_id, window_id="w")
        return Draft(proposal, "consume", tuple(keys))

    def _outcome(self, view: Snapshot, queue: MessageQueue, offset: int, keys: list[str]) -> Outcome:
        if (queue, offset) in self.failing:
            return Outcome.RETRIED
        if (queue, offset) in self.dead:
            return Outcome.DEAD
        key = dict(self.keys).get((queue, offset))
        if key is not None and self.group.absorb_duplicates:
            if key in keys or key in self._acked(view):
                return Outcome.DUPLICATE
            keys.append(key)
        return Outcome.ACKED

    def _acked(self, view: Snapshot) -> set[str]:
        """The keys of what the group has acked since the last operator's action."""
        epoch = view.stored.get(f"grp/{self.group.name}") or 0
        windows = [
            c for c in view.ctls if (c.group, c.action, c.epoch or 0) == (self.group.name, Action.CONSUME, epoch)
        ]
        ranges = [consumed.range for ctl in windows for consumed in ctl.consumed]
        return {key for (q, o), key in self.keys if any(r.queue == q and r.begin <= o < r.end for r in ranges)}


def _segments(copies: list[tuple[MessageQueue, int]], moment: Moment) -> list[Produced]:
    counts: dict[MessageQueue, int] = {}
    for queue, count in copies:
        counts[queue] = counts.get(queue, 0) + count
    produced, row = [], 0
    for queue, count in sorted(counts.items()):
        delay_ms = LEVELS.delay_ms(queue.queue_id + 1) if queue.topic == SCHEDULE_TOPIC else None
        produced.append(Produced(queue, 0, count, row, moment.file, delay_ms=delay_ms))
        row += count
    return produced


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Operation):
    claims: ClassVar[bool] = True

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        request = DeliverRequest(self.request_id, ANA, now_ms)
        if view.parts(self.request_id, Action.DELIVER) or not any(one.slices for one in self._due(view, request)):
            return None
        return Wish.of_whole(self.request_id, ANA, "~deliver", group=SCHEDULE_GROUP)

    def _due(self, view: Snapshot, request: DeliverRequest) -> list[Due]:
        return select_due(
            view.stored, view.segments_of, LOCAL, LEVELS, now_ms=request.now_ms, cap=CAP, clock_ms=request.now_ms
        )

    def draft(self, moment: Moment) -> Draft | None:
        assert moment.planned is not None
        view, (before, before_ms) = moment.view, moment.planned
        request = DeliverRequest(self.request_id, ANA, before_ms)
        if view.parts(self.request_id, Action.DELIVER):
            return None
        due = self._due(before, request)
        if not still_due(view.stored, due):
            due = self._due(view, request)
        if not any(one.slices for one in due):
            return None
        produced, row = [], 0
        for one in due:
            for due_ms, slice_ in one.slices:
                group = slice_.queue.broker_name.partition("~")[2]
                queue = MessageQueue(retry_topic(group) if group else "Orders", LOCAL, 0)
                produced.append(moved_to(queue, len(slice_), row, moment.file, due_ms))
                row += len(slice_)
        proposal = deliver_proposal(
            request,
            view.stored,
            due,
            commit_id=moment.commit_id,
            produced=produced,
            files=[moment.staged()],
            tally_of_range=evidence,
        )
        return Draft(proposal, "deliver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive(Operation):
    """``at_once``: how many dead letters a commit sends at most."""

    claims: ClassVar[bool] = True

    group: str
    to_topic: str | None = None
    at_once: int = 10

    @property
    def request(self) -> RedriveRequest:
        return RedriveRequest(
            group=self.group,
            dead_letters=DeadLetterFilter(all=True),
            request_id=self.request_id,
            actor=ANA,
            reason="fixed",
            to_topic=self.to_topic,
        )

    def _waiting(self, view: Snapshot) -> RedrivePlan | None:
        parts = view.parts(self.request_id, Action.REDRIVE)
        if any(part.request_complete for part in parts):
            return None
        redrives = [c for c in view.ctls if (c.group, c.action) == (self.group, Action.REDRIVE)]
        plan = plan_redrive(view, self.request, parts, redrives)
        return plan if plan.waiting else None

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        if self._waiting(view) is None:
            return None
        return Wish.of_whole(self.request_id, ANA, "~redrive", self.group, group=self.group)

    def draft(self, moment: Moment) -> Draft | None:
        plan = self._waiting(moment.view)
        if plan is None:
            return None
        offsets = [(q, o) for q, ranges in plan.waiting.items() for begin, end in ranges for o in range(begin, end)]
        sending = offsets[: self.at_once]
        queue = MessageQueue(self.request.target_topic, LOCAL, 0)
        proposal = redrive_proposal(
            moment.commit_id,
            self.request,
            plan,
            sent={queue: [o for q, o in sending if q == queue] for queue, _ in sending},
            complete=len(sending) == len(offsets),
            produced=[Produced(queue, 0, len(sending), 0, moment.file)],
            files=[moment.staged()],
            tally_of_range=evidence,
        )
        return Draft(proposal, "redrive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Operation):
    """``queue_ids``: those of the messages."""

    topic: str
    queue_ids: tuple[int, ...]
    create_queues: int | None = 2
    delay_level: int = 0

    def draft(self, moment: Moment) -> Draft | None:
        if moment.view.parts(self.request_id, Action.SEND):
            return None
        host = Host(now_ms=lambda: moment.now_ms, entropy=lambda size: bytes(size))
        messages = [Message(self.topic, b"1", queue_id=n, delay_level=self.delay_level) for n in self.queue_ids]
        plan = plan_send(
            moment.view.stored, LOCAL, lane(LOCAL, ""), messages, self.request_id, LEVELS, self.create_queues, host
        )
        file = moment.staged()
        part = Part.alone(SHARD, messages)
        proposal = send_proposal(
            moment.commit_id, self.request_id, ANA, moment.view.stored, plan=plan, part=part, file=file
        )
        return Draft(proposal, "send")
