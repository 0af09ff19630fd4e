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
"""A copy whose delay has not ended, or that has not been delivered yet."""

UNREAD = "unread"
"""The group has not read it yet: its next offset is at or before the message."""

REDRIVEN = "redriven"
"""A dead letter that was sent again, to a named topic or to the group's retry topic, where its next hops are."""


REMOVED = "removed"
"""Retention has removed the copy that was made here, so it is not known what became of it."""


class TrackType(StrEnum):
    """What became of a message in a group. The first seven are RocketMQ's; it answers CONSUMED for the others too, since it
    compares only offsets. NOT_ONLINE, PULL and CONSUME_BROADCASTING need a group's running consumers
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
    """One place at which the group reads the message or a copy of it, and the outcome there."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    attempt: int
    """0 for the message itself, and for a dead letter that was sent again."""
    outcome: str
    """That of the window at ``committed_at``, else WAITING, UNREAD, REDRIVEN or REMOVED."""
    pass_: int = 0
    """The pass of the queue. A message is consumed again in a later pass."""
    committed_at: int | None = None
    """ms, UTC"""
    window_id: str | None = None
    due_at: int | None = None
    """When a WAITING copy is due (ms, UTC)."""
    error_type: str | None = None
    error_text: str | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """What became of a message in one group."""

    group: str
    type: TrackType
    held_by: str
    """lake, or broker for a group whose offset only an import observed"""
    next_offset: int | None
    """The group's, in the message's own queue."""
    hops: tuple[Hop, ...]
    """In the order in which they happened."""


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """A group's running consumers as their broker knows them (RocketMQ's class of that name)."""

    message_model: MessageModel
    subscriptions: Mapping[str, SubscriptionData]
    """By topic."""
    actively: bool = False
    """They are pull consumers (CONSUME_ACTIVELY)."""


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
    """NOT_CONSUME_YET while the group's offset is at or before the message, also after a reset; else its last hop's outcome.

    Without a hop, a message before the broker's ``observed`` offset was consumed on the broker; any other was skipped by an
    operator's move.
    """
    if next_offset is not None and not is_consumed(offset, next_offset):
        return TrackType.NOT_CONSUME_YET
    if hops:
        return _TYPE_OF.get(hops[-1].outcome, TrackType.UNKNOWN)
    if held_by == "broker" or (observed is not None and is_consumed(offset, observed)):
        return TrackType.CONSUMED
    return TrackType.SKIPPED


def is_consumed(offset: int, next_offset: int) -> bool:
    """``DefaultMQAdminExtImpl#consumed``: the group's next offset is greater than the message's."""
    return next_offset > offset


def message_track_type(
    connection: ConsumerConnection | None, topic: str, tag: str | None, offset: int, next_offset: int | None
) -> TrackType:
    """RocketMQ's answer for a group and a message of ``topic`` at ``offset`` (``DefaultMQAdminExtImpl#messageTrackDetail``).

    ``connection``: None when no consumer of the group is online. ``next_offset``: the group's in the queue, None: it has
    none. A message whose tag only has the same hash, or that SQL92 filtered out, counts as consumed.
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
    selected = data is None or not data.tags or tag in data.tags or SUB_ALL in data.tags
    return TrackType.CONSUMED if selected else TrackType.CONSUMED_BUT_FILTERED
