"""Redrive: dead letters of a group, sent again, each once. RocketMQ has no command for it (rules 13.7): its dashboard runs the
listener once more and leaves the letter where it is.

A letter goes to the group's own retry topic, where only this group reads, or to a topic that is named. Its retries begin
at 0 again. Where dead letters lie nothing changes: which have been sent is said by the commits of the group's redrives,
as ranges of the dead-letter queue, and ``red/<group>`` makes two of them exclude each other
(``docs/decisions/0004-redrive.md``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from rmq_store.admin.dead_letters import Letter, Letters
from rmq_store.admin.replay import known_settings, replayed_group
from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Produced, Proposal, StagedFile, canonical_json
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
from rmq_store.commit.request import refuse_other_request
from rmq_store.consumer.retry import PropertyEdits, retry_queue_id
from rmq_store.consumer.timer import TIMER_PROPERTIES
from rmq_store.errors import WrongUse
from rmq_store.message.message import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageConst,
    MessageQueue,
    dlq_topic,
    retry_topic,
)
from rmq_store.message.validators import is_system_topic
from rmq_store.settings.settings import Settings
from rmq_store.utils.offset_ranges import OffsetRange, runs, without
from rmq_store.window.plan import ShardView, bounds_of

CAP = 100_000
"""Letters that a commit sends at most; the next part of the request sends what is left."""

LISTED = 1_000
"""Letters that a dry run shows at most; it counts them all."""

CAUSE = "redrive"


# --- what is asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """``to_topic`` None: the group's retry topic, which has ``retry_queue_nums`` queues. ``limit``: letters of a shard at
    most, oldest first. ``reason`` is asked of everybody."""

    group: str
    letters: Letters
    request_id: str
    actor: Actor
    reason: str
    to_topic: str | None = None
    limit: int | None = None
    retry_queue_nums: int = 1
    dry_run: bool = False

    def __post_init__(self) -> None:
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
class RedriveReport:
    """What a redrive did in a shard. ``status``: committed, already_committed, dry_run, or empty (nothing to send).

    ``letters``: sent by the whole request so far, or what a dry run would send; ``listed``: its first ones.
    ``complete``: whether nothing of the request is left. ``readers``: the groups that read the topic they go to, as far
    as the store knows. ``warnings``: what went wrong after commits.
    """

    status: str
    shard: str
    group: str
    request_id: str
    topic: str
    letters: int
    complete: bool = True
    readers: tuple[str, ...] = ()
    listed: tuple[Letter, ...] = ()
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()


# --- what is decided -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """The next part of a request in one shard.

    ``waiting``: per dead-letter queue the offsets that may be sent, in pieces that ascend; which letters are meant among
    them is asked of ``Letters.include``. ``left``: how many more the limit allows, None: any number. ``queue_nums``:
    queues of the topic that they go to.
    """

    group: str
    positions: Positions
    waiting: Mapping[MessageQueue, tuple[OffsetRange, ...]]
    bounds: Mapping[MessageQueue, int]
    part: int
    left: int | None
    queue_nums: int
    sent_before: int

    @property
    def epoch(self) -> int:
        """Of the group that the copies are for."""
        return self.positions.get(grp_id(self.group)) or 0

    def hulls(self) -> list[QueueRange]:
        """Per queue one range around its pieces."""
        return [QueueRange(queue, pieces[0][0], pieces[-1][1]) for queue, pieces in self.waiting.items()]

    def most(self, dry_run: bool) -> int | None:
        """How many letters have to be found: one more than a commit holds tells that there is another part."""
        if dry_run:
            return self.left
        return CAP + 1 if self.left is None else min(self.left, CAP + 1)

    def target_queue_id(self, queue: MessageQueue, offset: int) -> int:
        """By the letter's place, not by chance, so that a rerun does the same."""
        found = retry_queue_id(queue.topic, queue.broker_name, queue.queue_id, offset, self.queue_nums)
        return found or 0


def refuse_other(request: RedriveRequest, parts: Sequence[Ctl]) -> None:
    """Raise WrongUse for a request that has sent other letters, or to another place, under the same id."""
    if parts:
        asked = (
            dict.fromkeys(("from_ms", "until_ms", "original_topic", "keys", "letters")) | request.letters.parameters()
        )
        asked |= {"to_topic": request.to_topic, "limit": request.limit}
        refuse_other_request(request.request_id, json.loads(parts[0].parameters), asked)


def plan_redrive(
    shard: ShardView, request: RedriveRequest, parts: Sequence[Ctl], redrives: Iterable[Ctl]
) -> RedrivePlan:
    """Which offsets the next part of the request may send. ``parts``: what it has committed; ``redrives``: all redrives of
    the group in this shard, whose letters are not sent again.

    Raises WrongUse: a letter that is not there, a topic that the shard has not.
    """
    positions, letters = shard.positions(), request.letters
    queues = positions.queues_of(dlq_topic(request.group))
    # Who dies after the request has begun is not meant.
    bounds = bounds_of(parts[0]) if parts else {queue: positions.max_offset(queue) for queue in queues}
    spans = {queue: (positions.min_offset(queue), bounds[queue]) for queue in queues if queue in bounds}
    if letters.from_ms is not None:
        first = shard.search_offsets(positions, list(spans), letters.from_ms)
        spans = {queue: (max(begin, first[queue]), end) for queue, (begin, end) in spans.items()}
    if letters.until_ms is not None:
        last = shard.search_offsets(positions, list(spans), letters.until_ms)
        spans = {queue: (begin, min(end, last[queue])) for queue, (begin, end) in spans.items()}
    asked = {queue: [span] for queue, span in spans.items()}
    if letters.places:
        asked = _at_places(shard.name, positions, request, asked)
    sent = _sent(redrives)
    waiting = {queue: tuple(without(asked[queue], sent.get(queue, ()))) for queue in sorted(asked)}
    before = sum(len(consumed.range) for part in parts for consumed in part.consumed)
    return RedrivePlan(
        request.group,
        positions,
        {queue: pieces for queue, pieces in waiting.items() if pieces},
        bounds,
        len(parts) + 1,
        None if request.limit is None else request.limit - before,
        _queue_nums(shard.name, positions, request),
        before,
    )


NO_SUCH_LETTER = "no matching dead letter is left to send; redriven_at in the view dead_letters shows which were sent"


def no_letters(group: str) -> str:
    return f"group {group} has no dead letters"


def of_settings(request: RedriveRequest, settings: Settings) -> tuple[RedriveRequest, tuple[str, ...]]:
    """The request with what the settings say of its group, and the groups that read its topic by them."""
    group = known_settings(settings, request.group)
    readers = [g.name for g in settings.groups if any(s.topic == request.to_topic for s in g.subscriptions)]
    nums = request.retry_queue_nums if group is None else group.retry_queue_nums
    return replace(request, retry_queue_nums=nums), tuple(readers)


def readers_of(positions: Positions, request: RedriveRequest) -> tuple[str, ...]:
    """The groups that read the topic that the letters go to: those with an offset in it, except replays, which end where
    they were told to; of a retry topic its own."""
    if request.to_topic is None:
        return (request.group,)
    offsets = positions.of_kind(PositionKind.OFFSET)
    groups = {group_of(app_id) for app_id, _ in offsets if queue_of(app_id).topic == request.to_topic}
    return tuple(sorted(group for group in groups if replayed_group(group) is None))


def letter_edits(request: RedriveRequest, own_id: str) -> PropertyEdits:
    """What changes in the properties of a letter that is sent again. ``own_id``: the letter's, for one that does not name
    the first copy of its chain.

    Nothing that would delay it or count its attempts stays (a broker leaves DELAY, issue #2724). It keeps
    ORIGIN_MESSAGE_ID and its unique key, so a listener can tell that it has seen it. In another topic its life begins
    anew: where it was first read is said there when it fails.
    """
    removed = (*_OF_THE_LAST_LIFE, *((MessageConst.RETRY_TOPIC,) if request.to_topic is not None else ()))
    return PropertyEdits({}, {MessageConst.ORIGIN_MESSAGE_ID: own_id}, removed)


_OF_THE_LAST_LIFE = (
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
) -> Proposal:
    """A part of a redrive as a commit. ``sent``: per queue the offsets of the letters, which ascend."""
    positions, red, grp = plan.positions, red_id(request.group), grp_id(request.group)
    epoch = positions.get(grp)
    expect = {red: positions.get(red)}
    advance = {red: (positions.get(red) or 0) + 1}
    expect[grp] = epoch
    advance[grp] = ABSENT if epoch is None else epoch  # a group without a window must not look as if it had had one
    parameters: dict[str, Any] = {"to_topic": request.to_topic, "limit": request.limit} | request.letters.parameters()
    if plan.part == 1:
        parameters["bounds"] = [[q.topic, q.broker_name, q.queue_id, end] for q, end in sorted(plan.bounds.items())]
    ranges = [QueueRange(queue, *piece) for queue, offsets in sorted(sent.items()) for piece in runs(offsets)]
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


# --- what is reported ------------------------------------------------------------------------------------------------


def redriven(
    status: str, shard: str, request: RedriveRequest, positions: Positions, ctls: Sequence[Ctl]
) -> RedriveReport:
    """The report of a request with these commits; of one without any it says that there was nothing to send."""
    letters = sum(len(consumed.range) for ctl in ctls for consumed in ctl.consumed)
    return RedriveReport(
        status if ctls else "empty",
        shard,
        request.group,
        request.request_id,
        request.target_topic,
        letters,
        complete=ctls[-1].request_complete if ctls and status == "committed" else True,
        readers=readers_of(positions, request),
        commit_id=ctls[-1].commit_id if ctls else None,
    )


def would_send(
    shard: str, request: RedriveRequest, plan: RedrivePlan, count: int, listed: Sequence[Letter]
) -> RedriveReport:
    """The report of a dry run."""
    return RedriveReport(
        "dry_run",
        shard,
        request.group,
        request.request_id,
        request.target_topic,
        plan.sent_before + count,
        readers=readers_of(plan.positions, request),
        listed=tuple(listed),
    )


# --- ranges ----------------------------------------------------------------------------------------------------------


def check_redrive(shard: str, positions: Positions, request: RedriveRequest) -> None:
    """Raise WrongUse for what a shard cannot do: a letter that it has not, a topic that nobody would read there."""
    _queue_nums(shard, positions, request)
    _at_places(shard, positions, request, {})


def _at_places(
    shard: str, positions: Positions, request: RedriveRequest, asked: Mapping[MessageQueue, list[OffsetRange]]
) -> dict[MessageQueue, list[OffsetRange]]:
    """Exactly the letters at the places, of what is asked for otherwise."""
    offsets: dict[MessageQueue, set[int]] = {}
    for (broker_name, queue_id), places in groupby(sorted(request.letters.places), key=itemgetter(0, 1)):
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
        queue: [
            piece for begin, end in asked.get(queue, ()) for piece in runs(sorted(o for o in of if begin <= o < end))
        ]
        for queue, of in offsets.items()
    }


def _sent(redrives: Iterable[Ctl]) -> dict[MessageQueue, list[OffsetRange]]:
    """Per queue what has been sent, in pieces that ascend."""
    found: dict[MessageQueue, list[OffsetRange]] = defaultdict(list)
    for consumed in (consumed for ctl in redrives for consumed in ctl.consumed):
        found[consumed.range.queue].append((consumed.range.begin, consumed.range.end))
    return {queue: sorted(pieces) for queue, pieces in found.items()}


def _queue_nums(shard: str, positions: Positions, request: RedriveRequest) -> int:
    if request.to_topic is None:
        return request.retry_queue_nums
    queues = positions.queues_of(request.to_topic)
    if not queues:
        raise WrongUse(f"shard {shard} has no topic {request.to_topic}: no group could read the dead letters there")
    return max(queue.queue_id for queue in queues) + 1
