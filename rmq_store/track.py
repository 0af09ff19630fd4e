"""Which groups have consumed a message (S13.5, ``MessageTrack``), with the outcome and every hop of its retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.offsets import Outcome

WAITING = "waiting"
"""A copy whose delay has not ended, or that nobody has delivered yet."""

UNREAD = "unread"
"""The group's next offset is not behind it yet."""

REDRIVEN = "redriven"
"""A dead letter that was sent again, to a topic that was named or to the group's retry topic, where its life goes on."""


class TrackType(StrEnum):
    """What became of a message in a group. The first four are RocketMQ's; it says CONSUMED of the others too, since it
    compares nothing but offsets."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    UNKNOWN = "UNKNOWN"
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


def track_type(offset: int, held_by: str, next_offset: int | None, hops: Sequence[Hop]) -> TrackType:
    """What to call it: not yet while the group stands before it, also after a reset; else how its last hop ended.

    Behind the group's offset and in no window: a living broker's group has consumed it, another one was moved over it.
    """
    if next_offset is not None and next_offset <= offset:
        return TrackType.NOT_CONSUME_YET
    if hops:
        return _TYPE_OF.get(hops[-1].outcome, TrackType.UNKNOWN)
    if held_by == "broker":
        return TrackType.CONSUMED
    return TrackType.SKIPPED
