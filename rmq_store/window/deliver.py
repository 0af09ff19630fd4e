"""What a delivery commits and reports: RocketMQ's ScheduleMessageService (rules 11.3) and TimerMessageStore (rules 11.4).

``due.py`` says what is due. Progress is the offset of a system group, and moves in the commit that makes the delivered
copies visible. So each message is delivered once, oldest first, and never early by the clock of the host that commits. A
message that leaves a slot of the timer before it is due goes on to the queue of its second (``Step``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from shlex import quote

from rmq_store.commit.ctl import (
    SCHEDULE_GROUP,
    Action,
    Actor,
    Consumed,
    Ctl,
    Produced,
    Proposal,
    StagedFile,
    canonical_json,
    is_born_here,
)
from rmq_store.commit.positions import (
    Outcome,
    PositionKind,
    Positions,
    QueueRange,
    Tallies,
    Tally,
    grp_id,
    max_id,
    off_id,
)
from rmq_store.commit.request import Status, part_id
from rmq_store.consumer.pull import Slice
from rmq_store.consumer.retry import PropertyEdits, delivered_edits, rolled_edits
from rmq_store.consumer.timer import deliver_at_of, is_coarse, rolls, wheel_slot
from rmq_store.errors import BadData, HeldByAnother, RmqError, WrongUse
from rmq_store.message.java_text import parse_number
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import TIMER_TOPIC, MessageConst, group_of_retry_topic, retry_topic
from rmq_store.message.validators import stored_topic_problem
from rmq_store.settings.retention_settings import WAITING_TOPICS
from rmq_store.window.due import Due, Undeliverable, next_due_ms, start_in

CAP = 100_000
"""The most messages that one commit delivers; the next commit delivers the rest."""

CAUSE = "deliver"


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """A request to deliver what is due in one shard, by one commit."""

    request_id: str
    actor: Actor
    now_ms: int
    """What is due at this time (UTC ms) is delivered."""
    cap: int = CAP
    """The most messages to deliver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverReport:
    """What one commit of a delivery did."""

    status: Status
    """``COMMITTED``, ``ALREADY_COMMITTED`` or ``EMPTY``."""
    shard: str
    request_id: str
    delivered: int
    """Messages that reached their real topic."""
    more: bool
    """Whether messages are left that are due already: by the cap, or because one in their queue cannot be delivered. The next
    commit of the request delivers them, or says which message that is."""
    next_due_ms: int | None
    """When the next waiting message is due (UTC ms); None when nothing waits. Of a repeated delivery: of what waits now, so it
    may be past, and 0 is a due time that no delay reaches."""
    groups: tuple[str, ...] = ()
    """The groups whose retries reached their retry topic, sorted."""
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()
    """What failed after the commit, and what a repeated delivery cannot say."""


def deliver_proposal(
    request: DeliverRequest,
    positions: Positions,
    due: Sequence[Due],
    *,
    commit_id: str,
    produced: Sequence[Produced],
    files: Sequence[StagedFile],
    tally_of_range: Callable[[QueueRange], Tally],
) -> Proposal:
    """The commit of a delivery. ``produced``, ``files``: the copies of what is ``due``.

    It records whether something that is due is left, so that another attempt of the request goes on after it.
    """
    moving = [one for one in due if one.slices]
    grp = grp_id(SCHEDULE_GROUP)
    offsets = {off_id(SCHEDULE_GROUP, one.queue): one.range for one in moving}
    expect = {grp: positions.get(grp)}
    advance = {grp: positions.epoch(SCHEDULE_GROUP)}
    ctl = Ctl(
        commit_id=commit_id,
        action=Action.DELIVER,
        actor=request.actor,
        request_id=request.request_id,
        group=SCHEDULE_GROUP,
        epoch=positions.epoch(SCHEDULE_GROUP),
        parameters=canonical_json({"now_ms": request.now_ms, "more": _more(due)}),
        consumed=tuple(
            Consumed(one.range, 0, _tallies(one, tally_of_range), start_in(positions, one.queue).rule) for one in moving
        ),
        produced=tuple(produced),
    )
    return Proposal(
        ctl,
        expect | {app_id: positions.get(app_id) for app_id in offsets},
        advance | {app_id: range_.end for app_id, range_ in offsets.items()},
        tuple(files),
    )


def _tallies(due: Due, tally_of_range: Callable[[QueueRange], Tally]) -> Tallies:
    """The evidence: each message that moves is acked, and what a salvage has left out is lost."""
    ends = [*(gap.begin for gap in due.lost), due.range.end]
    runs = [
        QueueRange(due.queue, *bounds) for bounds in zip([due.begin, *(gap.end for gap in due.lost)], ends, strict=True)
    ]
    tallies = {Outcome.ACKED: sum(map(tally_of_range, runs), Tally())}
    return tallies | ({Outcome.LOST: sum(map(tally_of_range, due.lost), Tally())} if due.lost else {})


def committed_delivery(shard: str, ctl: Ctl, due: Sequence[Due]) -> DeliverReport:
    """The report of a delivery that has just been committed."""
    rolled = [segment.deliver_at for segment in ctl.produced if segment.queue.topic == TIMER_TOPIC]
    next_ms = min((at for at in (next_due_ms(due), *rolled) if at is not None), default=None)
    return DeliverReport(
        status=Status.COMMITTED,
        shard=shard,
        request_id=ctl.request_id,
        delivered=_messages(ctl),
        more=_more(due),
        next_due_ms=next_ms,
        groups=_groups(ctl),
        commit_id=ctl.commit_id,
    )


def already_delivered(shard: str, ctl: Ctl, first_due: Callable[[], int | None]) -> DeliverReport:
    """The report of a delivery that an earlier attempt has committed. ``first_due``: when the first message that waits now is
    due, as ``first_due`` of ``due.py``; where it raises BadData, that is a warning, since the commit stands."""
    warnings: tuple[str, ...] = ()
    next_ms = None
    try:
        next_ms = first_due()
    except BadData as error:
        warnings = (f"shard {shard}: committed before, but it is not known when the next message is due: {error}",)
    return DeliverReport(
        status=Status.ALREADY_COMMITTED,
        shard=shard,
        request_id=ctl.request_id,
        delivered=_messages(ctl),
        more=bool(ctl.parameter("more")),
        next_due_ms=next_ms,
        groups=_groups(ctl),
        commit_id=ctl.commit_id,
        warnings=warnings,
    )


def _more(due: Sequence[Due]) -> bool:
    return any(one.capped or one.undeliverable for one in due)


def _messages(ctl: Ctl) -> int:
    """The messages that reached their real topic; those that moved within the timer do not count."""
    return sum(segment.count for segment in ctl.produced if segment.queue.topic != TIMER_TOPIC)


def _groups(ctl: Ctl) -> tuple[str, ...]:
    return tuple(sorted(_groups_of({segment.queue.topic for segment in ctl.produced if segment.count})))


def _groups_of(topics: Iterable[str]) -> list[str]:
    """The groups whose retry topics are among these."""
    return [group for group in map(group_of_retry_topic, topics) if group is not None]


def nothing_due(shard: str, request_id: str, due: Sequence[Due]) -> DeliverReport:
    """The report of a delivery when nothing is due. Raises BadData where something is, and cannot be delivered: what else was
    due has been delivered before."""
    if waits := [one.undeliverable for one in due if one.undeliverable is not None]:
        more = f" And {len(waits) - _MOST_NAMED} queues more wait so." if len(waits) > _MOST_NAMED else ""
        raise BadData(f"shard {shard}: {' '.join(map(_undeliverable_text, waits[:_MOST_NAMED]))}{more}")
    return DeliverReport(
        status=Status.EMPTY, shard=shard, request_id=request_id, delivered=0, more=False, next_due_ms=next_due_ms(due)
    )


_MOST_NAMED = 3


def _undeliverable_text(message: Undeliverable) -> str:
    """Which message it is, why it cannot be delivered, and what to do."""
    queue, offset = message.queue, message.offset
    place = f"--topic {quote(queue.topic)} --queue {quote(queue.broker_name)}:{queue.queue_id}"
    text = (
        f"the message at offset {offset} of {queue.label} cannot be delivered: {message.reason}. What is behind it in its "
        "queue waits; other queues do not. "
    )
    if is_born_here(queue.broker_name):
        return f"{text}It was stored whole here: restore the store from a backup (docs/backup.md)."
    return (
        f"{text}'rmq print {place} --from-offset {offset} --max 1 --body' shows it. To pass over it: rmq reset --group "
        f"{SCHEDULE_GROUP} {place} --to-offset {offset + 1} --reason ... Then 'rmq send' sends it again, if you know where to."
    )


DeliverPart = Callable[[str], DeliverReport]
"""Makes one commit of a delivery in one shard, under the id that it gets."""


def deliver_all(request_id: str, deliver_part: DeliverPart) -> Iterator[DeliverReport]:
    """Commit after commit in one shard, until nothing more is due there. Yields at least one report.

    Each commit has an id of its own, so that another attempt of the request goes on where the last one stopped.
    """
    for number in count(1):
        report = deliver_part(part_id(request_id, number))
        yield report
        if not report.more:
            return


@dataclass(slots=True)
class Delivery:
    """A request to deliver in several shards, and what became of it."""

    request_id: str
    reports: list[DeliverReport] = field(default_factory=list)
    """One for each commit, in their order; of a shard without an error at least one."""
    errors: dict[str, Exception] = field(default_factory=dict)
    """Of the shards in which it failed, by name. What it has committed there before stays, and is in ``reports``."""

    def run(
        self, shards: Mapping[str, DeliverPart], finished: Callable[[DeliverReport], None] = lambda report: None
    ) -> None:
        """Deliver in all shards, one after the other: an error ends the work in its shard only. ``finished`` is called with
        each report. Raises WrongUse, and the errors of ``finished``, at once: no shard can do better."""
        for shard, deliver_part in shards.items():
            commits = deliver_all(self.request_id, deliver_part)
            while True:
                try:
                    report = next(commits, None)
                except WrongUse:
                    raise
                except Exception as error:
                    self.errors[shard] = error
                    break
                if report is None:
                    break
                self.reports.append(report)
                finished(report)

    def raise_error(self, preferred: tuple[type[Exception], ...] = ()) -> None:
        """Raise an error of a shard, if there is one: the first of the ``preferred`` types, else the first; that another
        request has a shard, or was faster, only where no shard has another error. An RmqError says in which shards the
        delivery was done and in which it failed, if there are several, and has the ``reports``."""
        if not self.errors:
            return

        def rank(error: Exception) -> int:
            in_use = getattr(error, "exit_code", None) == HeldByAnother.exit_code
            return 0 if isinstance(error, preferred) else 2 if in_use else 1

        error = min(self.errors.values(), key=rank)
        names = dict.fromkeys(report.shard for report in self.reports if report.shard not in self.errors)
        if isinstance(error, RmqError) and len(names) + len(self.errors) > 1:
            failed = ", ".join(f"{shard} ({type(one).__name__})" for shard, one in self.errors.items())
            where = f"was done in shard {', '.join(names)}, and failed" if names else "failed"
            rest = "the same request, run again, does the rest"
            error.add_done(f"The delivery {where} in shard {failed}: {rest}", tuple(self.reports))
        raise error


# --- the retry windows that it starts --------------------------------------------------------------------------------


def groups_with_retries(positions: Positions) -> list[str]:
    """The groups that have a retry topic in the shard."""
    return _groups_of(positions.names(PositionKind.MAX))


def unread_retries(positions: Positions, local_broker: str, groups: Iterable[str]) -> dict[str, int]:
    """Of these groups those with retries that were delivered in the shard and not read yet, each with the time of the newest
    such commit (UTC ms). Dead letters that were sent again count. Looks at positions only."""
    newest: dict[str, int] = {}
    for group in groups:
        for queue in positions.queues_of(retry_topic(group), local_broker):
            begin = max(positions.get(off_id(group, queue)) or 0, positions.min_offset(queue))
            if begin < positions.max_offset(queue):
                newest[group] = max(newest.get(group, 0), positions.updated_ms(max_id(queue)))
    return newest


def groups_to_start(
    asking: Iterable[str], delivered: Collection[str], unread: Mapping[str, int], since_ms: int | None
) -> list[str]:
    """The groups of which a run that delivers starts a window of retries, of those that are ``asking`` for it, in their order.

    These are the groups whose retries it has ``delivered``, and those whose delivery no run has reported: it was committed
    after the begin of the last run that could, by a run that failed then, or outside of them. ``unread``: as
    ``unread_retries``, of all shards. ``since_ms``: when that last run began (UTC ms); 0: there was none, so that all that is
    unread counts; None: it is not known, and a group whose windows fail would be started by each run.
    """
    unreported = {group for group, ms in unread.items() if since_ms is not None and ms >= since_ms}
    return [group for group in asking if group in delivered or group in unreported]


# --- where a message goes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """Where a message goes when it leaves its queue."""

    due_ms: int
    """When it is due for its consumers (UTC ms)."""
    queue: MessageQueue | None
    """The queue of the timer in which it waits until then; None: it goes to its ``real_queue``."""
    edits: PropertyEdits


def real_queue(topic: str | None, queue_id: str | None, broker_name: str) -> MessageQueue:
    """Where a delayed message goes, by its REAL_TOPIC and REAL_QID, at a broker. Raises BadData, which says what is wrong with
    them: no checksum of a broker covers the properties of an imported message. A broker would put a message into a negative
    queue; here no command could name that."""
    for name, text in ((MessageConst.REAL_TOPIC, topic), (MessageConst.REAL_QUEUE_ID, queue_id)):
        if text is None:
            raise BadData(f"it has no property {name}")
    if problem := stored_topic_problem(topic):
        raise BadData(f"its REAL_TOPIC {topic!r:.80} {problem}")
    if topic in WAITING_TOPICS:
        raise BadData(f"its REAL_TOPIC {topic} holds delayed messages, and nothing would deliver it from there")
    number = parse_number(queue_id or "", 32)
    if number is None or number < 0:
        raise BadData(f"its REAL_QID is {queue_id!r:.80}, it must be a whole number from 0 to 2147483647")
    return MessageQueue(topic or "", broker_name, number)


def place_problem(topic: str | None, queue_id: str | None) -> str | None:
    """What is wrong with a message's REAL_TOPIC and REAL_QID; None: it has a ``real_queue``."""
    try:
        real_queue(topic, queue_id, "")
    except BadData as error:
        return str(error)
    return None


def time_problem(queue: MessageQueue, timer_out: str | None) -> str | None:
    """What is wrong with the TIMER_OUT_MS of a message in the queue; None: nothing, or it does not matter there."""
    try:
        if is_coarse(queue):
            deliver_at_of(timer_out)
    except BadData as error:
        return str(error)
    return None


def step(slice_: Slice, due_ms: int, timer_out: str | None, now_ms: int) -> Step:
    """Where a message of the slice goes, and with which properties.

    ``due_ms``: when the slice is due (UTC ms). ``timer_out``: the message's TIMER_OUT_MS, which matters in the slots of the
    timer only. Raises BadData for a TIMER_OUT_MS that is no time.
    """
    queue, stored_ms = slice_.queue, slice_.store_timestamp or 0
    if is_coarse(queue):
        due_ms = deliver_at_of(timer_out)
        if rolls(due_ms, now_ms):
            slot = wheel_slot(due_ms, now_ms)
            return Step(due_ms, MessageQueue(queue.topic, queue.broker_name, slot.queue_id), rolled_edits(stored_ms))
    return Step(due_ms, None, delivered_edits(queue.topic, stored_ms, now_ms))


def moved_to(queue: MessageQueue, count: int, first_row: int, file: str, due_ms: int) -> Produced:
    """The segment of one queue in the file of a delivery. ``due_ms`` is when all of it is due, if the queue is one of the
    timer: such a queue has the messages of one second."""
    return Produced(queue, 0, count, first_row, file, deliver_at=due_ms if queue.topic == TIMER_TOPIC else None)
