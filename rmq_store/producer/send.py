"""What a send writes: messages into queues of the lake, decided from positions; one commit per call.

A queue that was imported belongs to its broker, so messages that are sent here go to queues of the shard's own broker
name, ``lake-<shard>``. An imported topic gets as many of these as it has on the broker, so that a sharding key gives
the same queue id in both.

Offsets are assigned at the commit. Sends to one topic share a position (``snd/``): the later of two plans again, then
sees the queues that the other one created, and finds its own request if another attempt of it has committed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from rmq_store.commit.ctl import FEW_TAGS_CODES, Action, Actor, Ctl, Produced, Proposal, StagedFile, canonical_json
from rmq_store.commit.positions import PositionKind, Positions, max_id, send_id
from rmq_store.commit.request import Status
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.validators import is_user_topic
from rmq_store.producer.producer import Message, Placed, place, select_queue, unique_keys
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed

ATTEMPTS = 30
"""How often a send plans after other sends have committed first. Each time one of them has made progress."""

CREATE_MAKES_IT = "--create makes it, from Python create_queues="
"""In the texts of errors."""

MOST_QUEUES = 1024
"""The most queues of a topic."""


@dataclass(frozen=True, slots=True)
class SentTo:
    """``count`` messages in one queue, from ``first_offset`` on (None in a dry run)."""

    queue: MessageQueue
    count: int
    first_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport:
    """What a send did."""

    status: Status
    """COMMITTED, ALREADY_COMMITTED or DRY_RUN."""
    shard: str
    request_id: str
    sent: tuple[SentTo, ...]
    delayed: int
    """How many of the messages wait for their time."""
    created: Mapping[str, int]
    """Topics that are new in the shard, with their number of queues."""
    commit_id: str | None = None
    """None in a dry run."""
    warnings: tuple[str, ...] = ()
    """What went wrong after the commit."""

    @property
    def messages(self) -> int:
        return sum(one.count for one in self.sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    """What a send will commit."""

    by_queue: Mapping[MessageQueue, Sequence[Placed]]
    """The messages of each queue in their order; queues in RocketMQ's order."""
    new_queues: tuple[MessageQueue, ...]
    """Queues that do not exist yet."""
    topics: tuple[str, ...]
    created: Mapping[str, int]
    """As in ``SendReport``."""

    @property
    def placed(self) -> list[Placed]:
        return [one for several in self.by_queue.values() for one in several]


def plan_send(
    positions: Positions,
    local_broker: str,
    lane: str,
    messages: Sequence[Message],
    request_id: str,
    levels: DelayLevels,
    create_queues: int | None,
    host: Host,
) -> SendPlan:
    """The plan of a send. ``lane``: of messages that wait, the shard's ``lane("")``. ``create_queues``: the number of
    queues of a new topic; None: refuse a new topic.

    The first queue in turn follows from the request id, so another attempt of the request makes the same plan. Raises
    WrongUse for an unknown topic or queue.
    """
    topics = tuple(sorted({message.topic for message in messages}))
    queues = {topic: queue_count(positions, topic) for topic in topics}
    created = {topic: _to_create(positions, topic, create_queues) for topic in topics if not queues[topic]}
    queues |= created
    local_queues = [
        MessageQueue(topic, local_broker, queue_id) for topic in topics for queue_id in range(queues[topic])
    ]
    turns = dict.fromkeys(topics, zlib.crc32(request_id.encode()))
    now_ms = host.now_ms()
    keys = unique_keys(host.entropy(10), now_ms)
    by_queue: dict[MessageQueue, list[Placed]] = defaultdict(list)
    for message in messages:
        queue_id = select_queue(message, queues[message.topic], turns[message.topic])
        if message.queue_id is None and message.sharding_key is None:
            turns[message.topic] += 1
        queue = MessageQueue(message.topic, local_broker, queue_id)
        placed = place(message, queue, next(keys), now_ms, levels=levels, lane=lane)
        by_queue[placed.queue].append(placed)
    return SendPlan(
        by_queue={queue: by_queue[queue] for queue in sorted(by_queue)},
        new_queues=tuple(queue for queue in local_queues if positions.get(max_id(queue)) is None),
        topics=topics,
        created=created,
    )


def queue_count(positions: Positions, topic: str) -> int:
    """The most queues that the topic has at one broker of this shard; 0: the shard does not have the topic."""
    return max((queue.queue_id + 1 for queue in positions.queues_of(topic)), default=0)


def user_topics(positions: Positions) -> list[str]:
    """The topics that can be sent to, sorted."""
    return sorted(topic for topic in positions.names(PositionKind.MAX) if is_user_topic(topic))


_NO_DELAY = {"delay_ms": None, "deliver_at": None}


def digest(messages: Sequence[Message]) -> str:
    """SHA-256 of the messages, as hex: equal for equal messages in the same order."""
    hash_ = hashlib.sha256()
    for m in messages:
        facts = (m.topic, m.tags, m.keys, sorted(m.properties.items()), m.delay_level, m.queue_id, m.sharding_key)
        delay = {"delay_ms": m.delay_ms, "deliver_at": m.deliver_at_ms}
        delays = [delay] if delay != _NO_DELAY else []  # so the digests of older versions stay the same
        hash_.update(json.dumps([*facts, len(m.body), *delays]).encode())
        hash_.update(m.body)
    return hash_.hexdigest()


@dataclass(frozen=True, slots=True)
class Whole:
    """A request with all its parts. Each part records it, so that another request under the id is seen before it sends."""

    messages: int
    digest: str
    """SHA-256 of the digests of the parts, in their order, as hex."""
    shards: Mapping[str, str]
    """The shard of each topic, where a repetition sends what is missing."""

    def is_of(self, ctl: Ctl) -> bool:
        """Whether the commit is a part of it, or of an earlier version, which recorded nothing of the whole."""
        recorded = whole_of(ctl)
        return recorded is None or (recorded.messages, recorded.digest) == (self.messages, self.digest)


@dataclass(frozen=True, slots=True)
class Part:
    """What one commit sends, and the request that it is a part of."""

    digest: str
    """Of the commit's messages (``digest``)."""
    whole: Whole

    @classmethod
    def alone(cls, shard: str, messages: Sequence[Message]) -> Part:
        """The only part of its request."""
        return parts_of({shard: [messages]})[0]


def parts_of(by_shard: Mapping[str, Sequence[Sequence[Message]]]) -> list[Part]:
    """The parts of a request, from the messages of each in their order."""
    parts = [messages for of_shard in by_shard.values() for messages in of_shard]
    digests = [digest(messages) for messages in parts]
    whole = Whole(
        messages=sum(map(len, parts)),
        digest=hashlib.sha256("".join(digests).encode()).hexdigest(),
        shards={message.topic: name for name, several in by_shard.items() for part in several for message in part},
    )
    return [Part(of_part, whole) for of_part in digests]


def whole_of(ctl: Ctl) -> Whole | None:
    """The request that a commit is a part of; None: it is one of an earlier version."""
    recorded = ctl.parameter("whole")
    return None if recorded is None else Whole(**recorded)


def segments(plan: SendPlan, path: str) -> tuple[Produced, ...]:
    """The plan's queues as segments of one file."""
    produced, row = [], 0
    for queue, placed in plan.by_queue.items():
        codes = {one.tags_code for one in placed}
        first = placed[0]
        few = tuple(sorted(codes)) if not first.waits and len(codes) <= FEW_TAGS_CODES else None
        segment = Produced(queue, 0, len(placed), row, path, tags_codes=few)
        produced.append(replace(segment, deliver_at=first.deliver_at, delay_ms=first.delay_ms))
        row += len(placed)
    return tuple(produced)


def send_proposal(
    commit_id: str,
    request_id: str,
    actor: Actor,
    positions: Positions,
    *,
    plan: SendPlan,
    part: Part,
    file: StagedFile,
) -> Proposal:
    """The messages as a commit. It expects that no other send to the topics came in between or created their queues."""
    sends = {send_id(topic): positions.get(send_id(topic)) for topic in plan.topics}
    ctl = Ctl(
        commit_id,
        Action.SEND,
        actor,
        request_id=request_id,
        parameters=canonical_json(
            {
                "topics": list(plan.topics),
                "created": dict(plan.created),
                "delayed": sum(one.waits for one in plan.placed),
                "digest": part.digest,
                "whole": asdict(part.whole),
            }
        ),
        produced=segments(plan, file.path),
    )
    max_ids = [max_id(queue) for queue in plan.new_queues]
    return Proposal(
        ctl=ctl,
        expect=sends | dict.fromkeys(max_ids),
        advance={app_id: (before or 0) + 1 for app_id, before in sends.items()} | dict.fromkeys(max_ids, 0),
        files=(file,),
        updated_ms=dict.fromkeys(max_ids, 0),
    )


def sent(status: Status, shard: str, ctl: Ctl) -> SendReport:
    """The report of a send that is in the log."""
    return SendReport(
        status=status,
        shard=shard,
        request_id=ctl.request_id,
        sent=tuple(SentTo(segment.queue, segment.count, segment.base) for segment in ctl.produced),
        delayed=ctl.parameter("delayed"),
        created=ctl.parameter("created"),
        commit_id=ctl.commit_id,
    )


def is_same(ctl: Ctl, part: Part) -> bool:
    """Whether the commit sent these messages, for a request with the same messages in all."""
    return ctl.parameter("digest") == part.digest and part.whole.is_of(ctl)


def sent_before(shard: str, ctl: Ctl, part: Part) -> SendReport:
    """The report of a part that was committed before. Raises WrongUse when it sent other messages than these."""
    if not is_same(ctl, part):
        raise other_messages(ctl.request_id, [ctl])
    return sent(Status.ALREADY_COMMITTED, shard, ctl)


def other_messages(request_id: str, ctls: Sequence[Ctl]) -> WrongUse:
    """The error of a request whose id was used for other messages, by these commits."""
    stored, whole = sum(segment.count for ctl in ctls for segment in ctl.produced), whole_of(ctls[0])
    count = f"{stored:,}" if whole is None or whole.messages == stored else f"{stored:,} of {whole.messages:,}"
    return WrongUse(
        f"request id {request_id} was already used for other messages (in the store: {count}; commit "
        f"{ctls[0].commit_id}). Nothing more was sent; use a new id."
    )


def would_send(shard: str, request_id: str, plan: SendPlan) -> SendReport:
    """The report of a dry run."""
    return SendReport(
        status=Status.DRY_RUN,
        shard=shard,
        request_id=request_id,
        sent=tuple(SentTo(queue, len(placed), None) for queue, placed in plan.by_queue.items()),
        delayed=sum(one.waits for one in plan.placed),
        created=plan.created,
    )


def wait_s(attempt: int, host: Host) -> float:
    """How long to wait before planning again, in seconds."""
    return host.uniform(0, min(0.02 * attempt, 0.5))


def no_such_topic(topic: str, known: Sequence[str]) -> WrongUse:
    """The error of a send to a topic that is not among the ``known`` and is not to be created."""
    return WrongUse(f"there is no topic {topic}{did_you_mean(topic, known)}; known: {listed(known)}. {CREATE_MAKES_IT}")


def _to_create(positions: Positions, topic: str, create_queues: int | None) -> int:
    if create_queues is None:
        raise no_such_topic(topic, user_topics(positions))
    if isinstance(create_queues, bool) or not 1 <= create_queues <= MOST_QUEUES:  # True would be stored as such
        raise WrongUse(f"a topic has 1 to {MOST_QUEUES} queues, not {create_queues}")
    return create_queues
