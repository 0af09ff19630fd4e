"""Redrive: send dead letters of a group again, each once. RocketMQ has no command for it (rules 13.7): its dashboard runs the
listener once more and leaves the dead letter where it is.

A dead letter is sent to the group's own retry topic, which only this group reads, or to a named topic. Its retry count
restarts at 0. The dead-letter queue does not change: the commits of the group's redrives record which offsets were sent,
as ranges of that queue, and the position ``red/<group>`` makes two redrives conflict (``docs/decisions/0004-redrive.md``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from rmq_store.admin.dead_letters import DeadLetter, DeadLetterFilter
from rmq_store.admin.json_edits import DoesNotApply
from rmq_store.admin.redrive_edits import MessageEdits, Preview
from rmq_store.admin.replay import known_settings
from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Produced, Proposal, StagedFile, canonical_json
from rmq_store.commit.decide import check_not_ahead
from rmq_store.commit.positions import (
    ABSENT,
    Outcome,
    PositionKind,
    Positions,
    QueueRange,
    Tally,
    group_of,
    grp_id,
    queue_of,
    red_id,
)
from rmq_store.commit.request import Status, refuse_other_request
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.consumer.retry import PropertyEdits, retry_queue_id
from rmq_store.consumer.timer import TIMER_PROPERTIES
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageConst,
    dlq_topic,
    retry_topic,
)
from rmq_store.message.validators import is_system_topic
from rmq_store.settings.settings import Settings
from rmq_store.utils.offset_ranges import OffsetRange, runs, without
from rmq_store.utils.redaction import cleaned
from rmq_store.utils.times import format_time
from rmq_store.window.consume_request import BOUNDS, bounds_of, bounds_parameter
from rmq_store.window.shard_view import ShardView

CAP = 100_000
"""Dead letters that a commit sends at most; the next part of the request sends the rest."""

LISTED = 1_000
"""Dead letters, and failed ones, that a report lists at most; it counts them all."""

PREVIEWED = 5
"""Dead letters of which a dry run shows what the edits change."""

PART_S = 60
"""With a rate, how many seconds' worth of dead letters a commit sends at most."""

CAUSE = "redrive"
FAILED = "redrive_failed"
"""The outcome, in the rows of a redrive, of a dead letter to which its edits do not apply."""

_NO_EDITS = MessageEdits()


# --- the request -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveRequest:
    """Dead letters of a group to send again."""

    group: str
    dead_letters: DeadLetterFilter
    request_id: str
    actor: Actor
    reason: str
    """Not empty."""
    to_topic: str | None = None
    """None: the group's retry topic."""
    limit: int | None = None
    """Dead letters to send per shard at most, oldest first; None: no limit."""
    retry_queue_nums: int = 1
    """How many queues the group's retry topic has."""
    edits: MessageEdits = _NO_EDITS
    """What is changed in the copies. A dead letter to which they do not apply is not sent."""
    all_or_nothing: bool = False
    """Whether nothing is sent if the edits do not apply to one of them."""
    rate: int | None = None
    """Dead letters to send per second and shard at most, over a minute; None: no limit."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.rate is not None and self.rate < 1:
            raise WrongUse(f"invalid rate {self.rate}: it must be 1 or more dead letters per second")
        if not self.reason.strip():
            raise WrongUse("a redrive needs a reason (--reason); it is recorded permanently in the commit log")
        if self.limit is not None and self.limit < 1:
            raise WrongUse(f"invalid limit {self.limit}: it must be 1 or more")
        topic = self.to_topic
        if topic is None and self.retry_queue_nums < 1:
            raise WrongUse(f"group {self.group} has no retry queue: name a topic for its dead letters (--to-topic)")
        prefixes = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
        if topic is not None and (topic.startswith(prefixes) or is_system_topic(topic)):
            raise WrongUse(f"cannot redrive to system topic {topic}. Omit --to-topic to use the group's retry topic.")

    @property
    def target_topic(self) -> str:
        return retry_topic(self.group) if self.to_topic is None else self.to_topic


@dataclass(frozen=True, slots=True)
class Failure:
    """A dead letter that was not sent, because the edits do not apply to it."""

    queue: MessageQueue
    offset: int
    unique_key: str | None
    reason: str

    @classmethod
    def of(cls, queue: MessageQueue, offset: int, unique_key: str | None, error: DoesNotApply) -> Failure:
        """``error``: why; it may quote the message."""
        return cls(queue, offset, unique_key, cleaned(str(error)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveReport:
    """What a redrive did in a shard."""

    status: Status
    shard: str
    group: str
    request_id: str
    topic: str
    """Where the dead letters were sent to."""
    letters: int
    """How many the whole request has sent so far, or a dry run would send."""
    complete: bool = True
    """Whether the request has no further part."""
    readers: tuple[str, ...] = ()
    """The groups that read ``topic``, as far as the store knows."""
    listed: tuple[DeadLetter, ...] = ()
    """The first ones, of a dry run."""
    failed: int = 0
    """Dead letters that matched and were not sent, or would not be, because the edits do not apply to them."""
    failures: tuple[Failure, ...] = ()
    """The first of them, if this run, or dry run, has read them."""
    previews: tuple[Preview, ...] = ()
    """What the edits change in the first ones, of a dry run."""
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()
    """Errors after the commit, such as a failed dispatch."""


# --- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """The next part of a request in one shard."""

    group: str
    positions: Positions
    waiting: Mapping[MessageQueue, tuple[OffsetRange, ...]]
    """Per dead-letter queue the offset ranges that may be sent, ascending. ``DeadLetterFilter.matches`` decides about the
    messages in them."""
    bounds: Mapping[MessageQueue, int]
    """Per dead-letter queue the offset at which the request ends, excluded."""
    part: int
    """The number of the part, from 1."""
    allowed: int | None
    """How many more the limit allows; None: no limit."""
    queue_nums: int
    """Queues of the target topic."""
    sent_before: int
    """Dead letters that earlier parts have sent."""
    failed_before: int
    """Dead letters to which the edits did not apply in earlier parts."""
    cap: int
    """Dead letters that this part reads at most."""

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return self.positions.epoch(self.group)

    def hulls(self) -> list[QueueRange]:
        """Per queue one range around its waiting ranges."""
        return [QueueRange(queue, ranges[0][0], ranges[-1][1]) for queue, ranges in self.waiting.items()]

    def most(self, request: RedriveRequest) -> int:
        """How many dead letters to look for: one more than the part can read shows that there is another part. With edits the
        limit does not say it, as only those that are sent count."""
        return self.cap + 1 if self.allowed is None or request.edits else min(self.allowed, self.cap + 1)

    def target_queue_id(self, queue: MessageQueue, offset: int) -> int:
        """The queue of the target topic. It follows from the dead letter's place, so that a rerun chooses the same."""
        return retry_queue_id(queue.topic, queue.broker_name, queue.queue_id, offset, self.queue_nums) or 0


def refuse_other(request: RedriveRequest, parts: Sequence[Ctl]) -> None:
    """Raise WrongUse when the request's id was used with another filter, target topic, limit or edits. Its rate may change."""
    if parts:
        conditions = dict.fromkeys(("from_ms", "until_ms", "original_topic", "where", "keys", "letters", *_OPTIONAL))
        requested = conditions | request.dead_letters.parameters() | _edit_parameters(request)
        requested |= {"to_topic": request.to_topic, "limit": request.limit}
        committed = json.loads(parts[0].parameters)
        if "edits" in committed:
            committed["edits"] = MessageEdits.of_parameter(committed["edits"]).text
        refuse_other_request(request.request_id, committed, requested)


_OPTIONAL = ("edits", "all_or_nothing")
"""Parameters that are recorded only where they are given."""


def _edit_parameters(request: RedriveRequest) -> dict[str, Any]:
    values = {"edits": request.edits.text if request.edits else None, "all_or_nothing": request.all_or_nothing}
    return {name: value for name, value in values.items() if value}


def wait_ms(request: RedriveRequest, parts: Sequence[Ctl], now_ms: int) -> int:
    """How long (ms) the next part has to wait, by the rate and what the last part has sent. The log says it, so a run that
    takes over keeps the rate. ``now_ms``: this host's clock, UTC ms.

    It is never longer than what the last part has sent takes: a part of a later time was sent by a host whose clock is ahead.
    Raises ClockSkew, as the commit of the next part would, when it is too far ahead.
    """
    sent = sum(len(consumed.range) for consumed in parts[-1].consumed) if parts else 0
    if request.rate is None or not sent:
        return 0
    at_ms, part_ms = parts[-1].store_timestamp, -(-sent * 1000 // request.rate)
    for produced in parts[-1].produced:
        check_not_ahead(produced.queue, at_ms, now_ms)
    return max(min(at_ms + part_ms - now_ms, part_ms), 0)


def waiting_line(shard: str, sent: int, until_ms: int) -> str:
    """What people read while a rate makes a redrive wait. ``sent``: by all parts so far; ``until_ms``: UTC ms."""
    return (
        f"shard {shard}: {sent:,} dead letters are sent, and the rate lets it send the next at {format_time(until_ms)}"
    )


def plan_redrive(
    shard: ShardView, request: RedriveRequest, parts: Sequence[Ctl], redrives: Iterable[Ctl]
) -> RedrivePlan:
    """Which offsets the next part of the request may send.

    ``parts``: the request's commits so far. ``redrives``: all redrives of the group in this shard; what they sent is not
    sent again. Raises WrongUse for a dead letter or a topic that the shard does not have.
    """
    positions, conditions = shard.positions(), request.dead_letters
    queues = positions.queues_of(dlq_topic(request.group))
    # What is dead-lettered after the request has begun is not part of it.
    bounds = bounds_of(parts[0]) if parts else {queue: positions.max_offset(queue) for queue in queues}
    spans = {queue: (positions.min_offset(queue), bounds[queue]) for queue in queues if queue in bounds}
    begin_ms, end_ms = conditions.times
    if begin_ms is not None:
        first = shard.search_offsets(positions, list(spans), begin_ms)
        spans = {queue: (max(begin, first[queue]), end) for queue, (begin, end) in spans.items()}
    if end_ms is not None:
        last = shard.search_offsets(positions, list(spans), end_ms)
        spans = {queue: (begin, min(end, last[queue])) for queue, (begin, end) in spans.items()}
    for broker_name, queue_id, end in (place for part in parts for place in part.parameter("examined") or ()):
        queue = MessageQueue(dlq_topic(request.group), broker_name, queue_id)
        if queue in spans:  # those before it were sent, or the edits do not apply to them
            spans[queue] = (max(spans[queue][0], end), spans[queue][1])
    ranges = {queue: [span] for queue, span in spans.items()}
    if conditions.places:
        ranges = _at_places(shard.name, positions, request, ranges)
    sent = _sent(redrives)
    waiting = {queue: tuple(without(ranges[queue], sent.get(queue, ()))) for queue in sorted(ranges)}
    sent_before = sum(len(consumed.range) for part in parts for consumed in part.consumed)
    return RedrivePlan(
        group=request.group,
        positions=positions,
        waiting={queue: of_queue for queue, of_queue in waiting.items() if of_queue},
        bounds=bounds,
        part=len(parts) + 1,
        allowed=None if request.limit is None else request.limit - sent_before,
        queue_nums=_queue_nums(shard.name, positions, request),
        sent_before=sent_before,
        failed_before=_failed(parts),
        cap=CAP if request.rate is None else min(CAP, request.rate * PART_S),
    )


def _failed(parts: Iterable[Ctl]) -> int:
    return sum(part.parameter("failed") or 0 for part in parts)


NO_MATCH = (
    "no matching dead letter is left to send; redriven_at in the view dead_letters shows which were sent, removed_ranges "
    "which retention has removed"
)


def no_dead_letters(group: str) -> str:
    return f"group {group} has no dead letters"


def of_settings(request: RedriveRequest, settings: Settings) -> tuple[RedriveRequest, tuple[str, ...]]:
    """The request with the settings of its group, and the groups that read its target topic by the settings."""
    group = known_settings(settings, request.group)
    readers = [g.name for g in settings.groups if any(s.topic == request.to_topic for s in g.subscriptions)]
    nums = request.retry_queue_nums if group is None else group.retry_queue_nums
    return replace(request, retry_queue_nums=nums), tuple(readers)


def readers_of(positions: Positions, request: RedriveRequest) -> tuple[str, ...]:
    """The groups that read the target topic: those with an offset in it, except replays, whose end is fixed. A retry topic
    is read by its own group."""
    if request.to_topic is None:
        return (request.group,)
    offsets = positions.of_kind(PositionKind.OFFSET)
    groups = {group_of(app_id) for app_id, _ in offsets if queue_of(app_id).topic == request.to_topic}
    return tuple(sorted(group for group in groups if replayed_group(group) is None))


def redrive_edits(request: RedriveRequest, own_id: str) -> PropertyEdits:
    """What changes in the properties of a dead letter that is sent again. ``own_id``: its offset message id, which becomes
    ORIGIN_MESSAGE_ID if it has none.

    The properties that would delay it or count its attempts are removed (a broker leaves DELAY, issue #2724). It keeps
    ORIGIN_MESSAGE_ID and its unique key, so that a listener can recognise it. In a named topic it is a new message:
    RETRY_TOPIC is set there when it fails.
    """
    removed = (*_DELAYS_AND_ATTEMPTS, *((MessageConst.RETRY_TOPIC,) if request.to_topic is not None else ()))
    return PropertyEdits({}, {MessageConst.ORIGIN_MESSAGE_ID: own_id}, removed)


_DELAYS_AND_ATTEMPTS = (
    MessageConst.DELAY_TIME_LEVEL,
    MessageConst.REAL_TOPIC,
    MessageConst.REAL_QUEUE_ID,
    MessageConst.RECONSUME_TIME,
    MessageConst.MAX_RECONSUME_TIMES,
    *TIMER_PROPERTIES,
)


def redrive_proposal(
    commit_id: str,
    request: RedriveRequest,
    plan: RedrivePlan,
    sent: Mapping[MessageQueue, Sequence[int]],
    complete: bool,
    produced: Sequence[Produced],
    files: Sequence[StagedFile],
    tally_of_range: Callable[[QueueRange], Tally],
    failures: Sequence[Failure] = (),
) -> Proposal:
    """A part of a redrive as a commit. ``sent``: per dead-letter queue the sent offsets, ascending. ``failures``: the dead
    letters to which the edits do not apply. ``complete``: whether it is the last part."""
    positions, red, grp = plan.positions, red_id(request.group), grp_id(request.group)
    epoch = positions.get(grp)
    expect = {red: positions.get(red)}
    advance = {red: (positions.get(red) or 0) + 1}
    expect[grp] = epoch
    advance[grp] = ABSENT if epoch is None else epoch  # a group without a window must not get an epoch here
    parameters: dict[str, Any] = {
        "to_topic": request.to_topic,
        "limit": request.limit,
    } | request.dead_letters.parameters()
    parameters |= _edit_parameters(request)
    if request.rate is not None:
        parameters["rate"] = request.rate
    if failures:
        parameters["failed"] = len(failures)
        examined: dict[MessageQueue, int] = {queue: offsets[-1] + 1 for queue, offsets in sent.items()}
        for failure in failures:
            examined[failure.queue] = max(failure.offset + 1, examined.get(failure.queue, 0))
        parameters["examined"] = [[q.broker_name, q.queue_id, end] for q, end in sorted(examined.items())]
    if plan.part == 1:
        parameters[BOUNDS] = bounds_parameter(plan.bounds)
    ranges = [QueueRange(queue, *run) for queue, offsets in sorted(sent.items()) for run in runs(offsets)]
    ctl = Ctl(
        commit_id,
        Action.REDRIVE,
        request.actor,
        reason=request.reason,
        request_id=request.request_id,
        request_part=plan.part,
        request_complete=complete,
        group=request.group,
        epoch=plan.epoch,
        parameters=canonical_json(parameters),
        consumed=tuple(Consumed(range_, 0, {Outcome.ACKED: tally_of_range(range_)}, CAUSE) for range_ in ranges),
        produced=tuple(produced),
    )
    return Proposal(ctl, expect, advance, tuple(files))


# --- the report ------------------------------------------------------------------------------------------------------


def redriven(
    status: Status,
    shard: str,
    request: RedriveRequest,
    positions: Positions,
    ctls: Sequence[Ctl],
    failures: Sequence[Failure] = (),
) -> RedriveReport:
    """The report of a request with these commits; without any, its status is empty. ``failures``: of the last one."""
    return RedriveReport(
        status=status if ctls else Status.EMPTY,
        shard=shard,
        group=request.group,
        request_id=request.request_id,
        topic=request.target_topic,
        letters=sum(len(consumed.range) for ctl in ctls for consumed in ctl.consumed),
        complete=ctls[-1].request_complete if ctls and status == Status.COMMITTED else True,
        readers=readers_of(positions, request),
        failed=_failed(ctls),
        failures=tuple(failures[:LISTED]),
        commit_id=ctls[-1].commit_id if ctls else None,
    )


def would_send(
    shard: str,
    request: RedriveRequest,
    plan: RedrivePlan,
    count: int,
    listed: Sequence[DeadLetter],
    failures: Sequence[Failure] = (),
    previews: Sequence[Preview] = (),
) -> RedriveReport:
    """The report of a dry run."""
    return RedriveReport(
        status=Status.DRY_RUN,
        shard=shard,
        group=request.group,
        request_id=request.request_id,
        topic=request.target_topic,
        letters=plan.sent_before + count,
        readers=readers_of(plan.positions, request),
        listed=tuple(listed),
        failed=plan.failed_before + len(failures),
        failures=tuple(failures[:LISTED]),
        previews=tuple(previews),
    )


def refuse_failures(shard: str, failures: Sequence[Failure]) -> None:
    """Raise WrongUse, with the first of them, if there are any: for a request that sends all or nothing."""
    if failures:
        first = [f"{f.queue.broker_name}:{f.queue.queue_id}:{f.offset}: {f.reason}" for f in failures[:3]]
        raise WrongUse(
            f"the edits do not apply to {len(failures):,} of the dead letters of shard {shard}, so nothing was sent "
            f"(all or nothing): {'; '.join(first)}{'; ...' if len(failures) > 3 else ''}"
        )


# --- ranges ----------------------------------------------------------------------------------------------------------


def check_redrive(shard: str, positions: Positions, request: RedriveRequest) -> None:
    """Raise WrongUse when the shard does not have a named dead letter, or the target topic."""
    _queue_nums(shard, positions, request)
    _at_places(shard, positions, request, {})


def _at_places(
    shard: str, positions: Positions, request: RedriveRequest, ranges: Mapping[MessageQueue, list[OffsetRange]]
) -> dict[MessageQueue, list[OffsetRange]]:
    """The offsets of the named dead letters that are in the ranges."""
    offsets: dict[MessageQueue, set[int]] = {}
    for (broker_name, queue_id), places in groupby(sorted(request.dead_letters.places or ()), key=itemgetter(0, 1)):
        queue = MessageQueue(dlq_topic(request.group), broker_name, queue_id)
        offsets[queue] = {place.offset for place in places}
        least, most = positions.min_offset(queue), positions.max_offset(queue)
        for offset in sorted(offsets[queue]):
            if not least <= offset < most:
                raise WrongUse(
                    f"shard {shard} has no dead letter at {broker_name}:{queue_id}:{offset}; that queue of {queue.topic} "
                    f"has the offsets [{least}, {most})"
                )
    return {
        queue: [run for begin, end in ranges.get(queue, ()) for run in runs(sorted(o for o in of if begin <= o < end))]
        for queue, of in offsets.items()
    }


def _sent(redrives: Iterable[Ctl]) -> dict[MessageQueue, list[OffsetRange]]:
    """Per dead-letter queue the ranges that have been sent, ascending."""
    sent: dict[MessageQueue, list[OffsetRange]] = defaultdict(list)
    for consumed in (consumed for ctl in redrives for consumed in ctl.consumed):
        sent[consumed.range.queue].append((consumed.range.begin, consumed.range.end))
    return {queue: sorted(ranges) for queue, ranges in sent.items()}


def _queue_nums(shard: str, positions: Positions, request: RedriveRequest) -> int:
    if request.to_topic is None:
        return request.retry_queue_nums
    queues = positions.queues_of(request.to_topic)
    if not queues:
        raise WrongUse(f"shard {shard} has no topic {request.to_topic}: no group could read the dead letters there")
    return max(queue.queue_id for queue in queues) + 1
