"""What a send writes: messages into queues of the lake, as a decision over positions; one commit a call.

A queue that a broker filled belongs to that broker, so messages sent here go to queues of the shard's own broker name,
``lake-<shard>``. A topic that came with an import gets as many of these as the broker has, so that a sharding key means
the same queue number in both.

Offsets are taken at the commit. Sends to one topic share a position (``snd/``): the later of two plans again, sees the
queues that the other one made, and finds its own request if another attempt of it was quicker.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmq_store.commit.ctl import FEW_TAGS_CODES, Action, Actor, Ctl, Produced, Proposal, StagedFile, canonical_json
from rmq_store.commit.positions import Positions, max_id, send_id
from rmq_store.commit.request import Status
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.validators import is_user_topic
from rmq_store.producer.producer import Message, Placed, place, select_queue, unique_keys
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed

ATTEMPTS = 30
"""How often a send plans again after another send committed first. Each time that other send has made progress."""

MOST_QUEUES = 1024


@dataclass(frozen=True, slots=True)
class SentTo:
    """``count`` messages in one queue, from ``first_offset`` on (None in a dry run)."""

    queue: MessageQueue
    count: int
    first_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport:
    """What one commit of a send did, or would do."""

    status: Status
    """committed, already_committed or dry_run."""
    shard: str
    request_id: str
    sent: tuple[SentTo, ...]
    delayed: int
    """How many of the messages wait for their time."""
    created: Mapping[str, int]
    """Topics that are new in the shard, with their numbers of queues."""
    commit_id: str | None = None
    """None in a dry run."""
    warnings: tuple[str, ...] = ()
    """What went wrong after the commit."""

    @property
    def messages(self) -> int:
        return sum(one.count for one in self.sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    """Where the messages of a send go."""

    by_queue: Mapping[MessageQueue, Sequence[Placed]]
    """The messages of each queue in their order; the queues in RocketMQ's order."""
    new: tuple[MessageQueue, ...]
    """Queues that the commit makes."""
    topics: tuple[str, ...]
    """Sorted."""
    created: Mapping[str, int]
    """As in the report."""
    digest: str
    """``digest`` of the messages: a request that comes again must have the same ones."""

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
    """Where the messages go. ``lane``: of those that wait, the shard's ``lane("")``. ``create_queues``: so many for a
    topic that the shard does not have; None: refuse it.

    Messages without a queue or a sharding key take turns, from a queue that follows from the request id: another
    attempt of the request chooses the same queues. Raises WrongUse.
    """
    topics = tuple(sorted({message.topic for message in messages}))
    queues = {topic: queue_count(positions, topic) for topic in topics}
    created = {topic: _to_create(positions, topic, create_queues) for topic in topics if not queues[topic]}
    queues |= created
    known = [MessageQueue(topic, local_broker, queue_id) for topic in topics for queue_id in range(queues[topic])]
    turns = dict.fromkeys(topics, zlib.crc32(request_id.encode()))
    now_ms = host.now_ms()
    keys = unique_keys(host.entropy(10), now_ms)
    by_queue: dict[MessageQueue, list[Placed]] = defaultdict(list)
    for message in messages:
        chosen = select_queue(message, queues[message.topic], turns[message.topic])
        if message.queue_id is None and message.sharding_key is None:
            turns[message.topic] += 1
        queue = MessageQueue(message.topic, local_broker, chosen)
        placed = place(message, queue, next(keys), now_ms, levels=levels, lane=lane)
        by_queue[placed.queue].append(placed)
    return SendPlan(
        by_queue={queue: by_queue[queue] for queue in sorted(by_queue)},
        new=tuple(queue for queue in known if positions.get(max_id(queue)) is None),
        topics=topics,
        created=created,
        digest=digest(messages),
    )


def queue_count(positions: Positions, topic: str) -> int:
    """The queues of a topic at one broker, as far as this shard knows; 0: it does not know the topic."""
    return max((queue.queue_id + 1 for queue in positions.queues_of(topic)), default=0)


def user_topics(positions: Positions) -> list[str]:
    """The topics that can be sent to, sorted."""
    topics = {queue.topic for queue in positions.all_queues()}
    return sorted(topic for topic in topics if is_user_topic(topic))


_NO_DELAY = {"delay_ms": None, "deliver_at": None}


def digest(messages: Sequence[Message]) -> str:
    """What the messages are, in 64 hex digits: the same for the same ones in the same order."""
    sha256 = hashlib.sha256()
    for m in messages:
        facts = (m.topic, m.tags, m.keys, sorted(m.properties.items()), m.delay_level, m.queue_id, m.sharding_key)
        delay = {"delay_ms": m.delay_ms, "deliver_at": m.deliver_at}
        delays = [delay] if delay != _NO_DELAY else []  # so that the digests of older requests stay valid
        sha256.update(json.dumps([*facts, len(m.body), *delays]).encode())
        sha256.update(m.body)
    return sha256.hexdigest()


def segments(plan: SendPlan, path: str) -> tuple[Produced, ...]:
    """The plan's queues as runs of rows of one file."""
    runs, row = [], 0
    for queue, placed in plan.by_queue.items():
        codes = {one.tags_code for one in placed}
        how = placed[0]
        few = tuple(sorted(codes)) if not how.waits and len(codes) <= FEW_TAGS_CODES else None
        runs.append(
            Produced(queue, 0, len(placed), row, path, deliver_at=how.deliver_at, delay_ms=how.delay_ms, tags_codes=few)
        )
        row += len(placed)
    return tuple(runs)


def send_proposal(
    commit_id: str, request_id: str, actor: Actor, positions: Positions, plan: SendPlan, file: StagedFile
) -> Proposal:
    """The messages as a commit. It expects that no other send to these topics was committed in between."""
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
                "digest": plan.digest,
            }
        ),
        produced=segments(plan, file.path),
    )
    return Proposal(
        ctl,
        sends | {max_id(queue): None for queue in plan.new},
        {app_id: (before or 0) + 1 for app_id, before in sends.items()} | {max_id(queue): 0 for queue in plan.new},
        (file,),
        {max_id(queue): 0 for queue in plan.new},
    )


def sent(status: Status, shard: str, ctl: Ctl) -> SendReport:
    """The report of a committed send, from its ctl row."""
    return SendReport(
        status=status,
        shard=shard,
        request_id=ctl.request_id,
        sent=tuple(SentTo(segment.queue, segment.count, segment.base) for segment in ctl.produced),
        delayed=ctl.parameter("delayed"),
        created=ctl.parameter("created"),
        commit_id=ctl.commit_id,
    )


def sent_before(shard: str, ctl: Ctl, messages: Sequence[Message]) -> SendReport:
    """The report of a request that was committed before. Raises WrongUse when it sent other messages than these."""
    if ctl.parameter("digest") != digest(messages):
        raise WrongUse(
            f"the request {ctl.request_id} sent other messages ({sum(s.count for s in ctl.produced)} of them, commit "
            f"{ctl.commit_id}). Nothing was sent; give these a request of their own."
        )
    return sent(Status.ALREADY_COMMITTED, shard, ctl)


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


def _to_create(positions: Positions, topic: str, create_queues: int | None) -> int:
    if create_queues is None:
        known = user_topics(positions)
        raise WrongUse(
            f"there is no topic {topic}{did_you_mean(topic, known)}; known: {listed(known)}. A new one is made when you "
            "ask for it (--create)"
        )
    if isinstance(create_queues, bool) or not 1 <= create_queues <= MOST_QUEUES:  # True would be stored as such
        raise WrongUse(f"a topic has 1 to {MOST_QUEUES} queues, not {create_queues}")
    return create_queues
