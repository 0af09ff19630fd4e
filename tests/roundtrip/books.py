"""Who finished which message: the check of the round trip. Pure functions on the ledgers.

A group finishes a message when its consumer acks it, at the broker or in the lake, or when it becomes a dead letter. Every
message of a group's subscription must be finished exactly once. RocketMQ is at least once where a broker or a client is
killed: what a consumer read at or behind the offset that the broker had stored comes again, and is counted as repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Queue = tuple[str, int]
"""Topic and queue id."""


class Place(NamedTuple):
    """Where a group read a message."""

    group: str
    key: str
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.group, self.key)


class Delivery(NamedTuple):
    """A message that a group is to finish."""

    group: str
    key: str


class Sent(NamedTuple):
    """A message of a producer."""

    key: str
    topic: str
    tag: str


@dataclass(slots=True)
class Ledger:
    """What producers and consumers of the broker wrote down."""

    sent: set[Sent] = field(default_factory=set)
    """The broker has stored it."""
    unsure: set[Sent] = field(default_factory=set)
    """A send began; it may be stored or not."""
    rolled_back: set[Sent] = field(default_factory=set)
    acked: list[Place] = field(default_factory=list)
    failed: list[Place] = field(default_factory=list)


def read_ledger(lines: Iterable[str]) -> Ledger:
    """Raises ValueError for a line of another kind; the last line of a process that was killed may be cut off."""
    ledger = Ledger()
    sends = {"sent": ledger.sent, "sending": ledger.unsure, "rolled-back": ledger.rolled_back}
    reads = {"acked": ledger.acked, "failed": ledger.failed}
    for line in lines:
        if not line.endswith("\n"):
            continue
        word, *fields = line.rstrip("\n").split("\t")
        if word in sends and len(fields) == 3:
            sends[word].add(Sent(*fields))
        elif word in reads and len(fields) == 5:
            group, key, topic, queue_id, offset = fields
            reads[word].append(Place(group, key, topic, int(queue_id), int(offset)))
        else:
            raise ValueError(f"no line of a ledger: {line!r}")
    ledger.unsure -= ledger.sent
    return ledger


def repeatable(reads: Iterable[Place], offsets: Mapping[str, Mapping[Queue, int]]) -> set[Delivery]:
    """The deliveries that come again by RocketMQ's rules after a kill: what was read at or behind the stored offsets.

    ``offsets``: by group and queue, as the broker's ``consumerOffset.json`` had them; a queue that is not there has 0.
    """
    return {
        place.delivery
        for place in reads
        if place.queue_offset >= offsets.get(place.group, {}).get((place.topic, place.queue_id), 0)
    }


@dataclass(frozen=True, slots=True)
class Balance:
    """The result; a list has the deliveries concerned, sorted."""

    tried: int
    """How many deliveries had to be finished."""
    lost: tuple[Delivery, ...]
    """Never finished."""
    doubled: tuple[Delivery, ...]
    """Finished more than once, for no reason that the documentation names."""
    repeated: tuple[Delivery, ...]
    """Finished more than once, as a kill made the broker hand them out again."""
    unexpected: tuple[Delivery, ...]
    """Finished, though never sent, rolled back, or not of the group's subscription."""

    @property
    def sound(self) -> bool:
        return not (self.lost or self.doubled or self.unexpected)


def balance(
    due: Collection[Delivery],
    possible: Collection[Delivery],
    finished: Iterable[Delivery],
    repeats: Collection[Delivery],
) -> Balance:
    """``due``: must be finished. ``possible``: may be, as it is not known whether they were stored. ``finished``: one for
    each time. ``repeats``: may be finished more than once."""
    times = Counter(finished)
    many = {delivery for delivery, count in times.items() if count > 1}
    return Balance(
        tried=len(set(due)),
        lost=tuple(sorted(set(due) - times.keys())),
        doubled=tuple(sorted(many - set(repeats))),
        repeated=tuple(sorted(many & set(repeats))),
        unexpected=tuple(sorted(times.keys() - set(due) - set(possible))),
    )
