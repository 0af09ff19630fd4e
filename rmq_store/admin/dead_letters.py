"""Dead letters: where one is stored, which of them a redrive takes, and what a dry run shows of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.times import format_time


class Place(NamedTuple):
    """Where one dead letter is stored in the group's dead-letter topic."""

    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters are taken: those that match every given condition, or ``all``."""

    from_ms: int | None = None
    """Dead-lettered at or after this time (UTC ms)."""
    until_ms: int | None = None
    """Dead-lettered before this time (UTC ms)."""
    original_topic: str | None = None
    """The topic in which the message was first read."""
    keys: frozenset[str] = frozenset()
    """One of them is among its KEYS, or is its unique key."""
    places: tuple[Place, ...] = ()
    """It is stored at one of them."""
    all: bool = False

    def __post_init__(self) -> None:
        conditions = (self.from_ms, self.until_ms, self.original_topic, self.keys or None, self.places or None)
        if self.all == any(value is not None for value in conditions):
            raise WrongUse(
                "choose which dead letters to send: by time (--from, --until), original topic (--original-topic), key "
                "(--key) or place in the dead-letter queue (--letter); or all of them (--all). Not both."
            )
        if self.from_ms is not None and self.until_ms is not None and self.until_ms <= self.from_ms:
            span = f"{format_time(self.from_ms)} to {format_time(self.until_ms)}"
            raise WrongUse(f"empty time range {span}: --until must be later than --from")

    @property
    def needs_properties(self) -> bool:
        """Whether a dead letter has to be read to decide if it matches; else its offset is enough."""
        return self.original_topic is not None or bool(self.keys)

    def matches(self, original_topic: str | None, keys: str | None, unique_key: str | None) -> bool:
        """Whether a dead letter with these properties matches. Times and places are compared as offsets, not here."""
        if self.original_topic is not None and original_topic != self.original_topic:
            return False
        return not self.keys or unique_key in self.keys or not self.keys.isdisjoint((keys or "").split(" "))

    def parameters(self) -> dict[str, Any]:
        """The given conditions, for the ctl row."""
        values = {"from_ms": self.from_ms, "until_ms": self.until_ms, "original_topic": self.original_topic}
        lists = {"keys": sorted(self.keys), "letters": [list(place) for place in sorted(self.places)]}
        return {name: value for name, value in (values | lists).items() if value not in (None, [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter as a dry run shows it."""

    queue: MessageQueue
    offset: int
    store_timestamp: int
    """When it was dead-lettered, UTC ms."""
    original_topic: str | None
    keys: str | None
    unique_key: str | None
    reconsume_times: int
