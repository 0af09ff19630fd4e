"""Which groups have consumed a message, with the outcome and every hop of its retries
(``DefaultMQAdminExtImpl#messageTrackDetail``, rules 13.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.commit.positions import Outcome
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.filter.subscription import SUB_ALL, SubscriptionData

WAITING = "waiting"
"""A copy whose delay has not ended, or that nobody has delivered yet."""

UNREAD = "unread"
"""The group's next offset is not behind it yet."""

REDRIVEN = "redriven"
"""A dead letter that was sent again, to a topic that was named or to the group's retry topic, where its life goes on."""


class TrackType(StrEnum):
    """What became of a message in a group. The first seven are RocketMQ's; it says CONSUMED of the others too, since it
    compares nothing but offsets. NOT_ONLINE, PULL and CONSUME_BROADCASTING need a group's living consumers
    (``message_track_type``): no ``Track`` has them."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    UNKNOWN = "UNKNOWN"
    NOT_ONLINE = "NOT_ONLINE"
    PULL = "PULL"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    RETRYING = "RETRYING"
    DEAD = "DEAD"
    DUPLICATE = "DUPLICATE"
    DROPPED = "DROPPED"
    LOST = "LOST"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class Hop:
    """One place at which the message stood for the group, and what became of it there.

    ``outcome``: of the window at ``committed_at`` (UTC ms), else WAITING (until ``due_at``), UNREAD or REDRIVEN. ``pass_``:
    the pass of the queue; a message is consumed again in a later one. ``attempt``: 0 for the message itself, and again
    for a letter that was sent again.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    attempt: int
    outcome: str
    pass_: int = 0
    committed_at: int | None = None
    window_id: str | None = None
    due_at: int | None = None
    error_type: str | None = None
    error_text: str | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """``held_by``: lake, or broker for a group whose offset is only known from its living broker. ``next_offset``: of the
    group in the message's own queue. ``hops``: in the order in which they happened."""

    group: str
    type: TrackType
    held_by: str
    next_offset: int | None
    hops: tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """A group's living consumers as their broker knows them (RocketMQ's class of that name). ``actively``: they pull for
    themselves. ``subscriptions``: by topic."""

    message_model: MessageModel
    subscriptions: Mapping[str, SubscriptionData]
    actively: bool = False


_TYPE_OF: Mapping[str, TrackType] = {
    Outcome.ACKED: TrackType.CONSUMED,
    Outcome.FILTERED: TrackType.CONSUMED_BUT_FILTERED,
    Outcome.RETRIED: TrackType.RETRYING,
    Outcome.DEAD: TrackType.DEAD,
    Outcome.DUPLICATE: TrackType.DUPLICATE,
    Outcome.DROPPED: TrackType.DROPPED,
    Outcome.LOST: TrackType.LOST,
    Outcome.SKIPPED: TrackType.SKIPPED,
    WAITING: TrackType.RETRYING,
    UNREAD: TrackType.RETRYING,
    REDRIVEN: TrackType.DEAD,
}


def track_type(
    offset: int, held_by: str, next_offset: int | None, hops: Sequence[Hop], observed: int | None = None
) -> TrackType:
    """What to call it: not yet while the group stands before it, also after a reset; else how its last hop ended.

    Behind the group's offset and in no window: what its broker was seen behind (``observed``: its offset there) was
    consumed on the broker; over the rest the group was moved.
    """
    if next_offset is not None and not is_consumed(offset, next_offset):
        return TrackType.NOT_CONSUME_YET
    if hops:
        return _TYPE_OF.get(hops[-1].outcome, TrackType.UNKNOWN)
    if held_by == "broker" or (observed is not None and is_consumed(offset, observed)):
        return TrackType.CONSUMED
    return TrackType.SKIPPED


def is_consumed(offset: int, next_offset: int) -> bool:
    """``DefaultMQAdminExtImpl#consumed``: the group's next offset is behind the message."""
    return next_offset > offset


def message_track_type(
    connection: ConsumerConnection | None, topic: str, tag: str | None, offset: int, next_offset: int | None
) -> TrackType:
    """What RocketMQ says of a group and a message of ``topic`` at ``offset`` (``DefaultMQAdminExtImpl#messageTrackDetail``).

    ``connection``: None when none of its consumers is there. ``next_offset``: the group's in the queue, None without. A
    message that the broker let pass by the hash of its tag, or dropped by SQL92, counts as consumed.
    """
    if connection is None:
        return TrackType.NOT_ONLINE
    if connection.actively:
        return TrackType.PULL
    if connection.message_model is MessageModel.BROADCASTING:
        return TrackType.CONSUME_BROADCASTING
    if next_offset is None or not is_consumed(offset, next_offset):
        return TrackType.NOT_CONSUME_YET
    data = connection.subscriptions.get(topic)
    wanted = data is None or not data.tags or tag in data.tags or SUB_ALL in data.tags
    return TrackType.CONSUMED if wanted else TrackType.CONSUMED_BUT_FILTERED
