"""Dead letters: where one lies, which of them somebody means, and how one is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.times import format_time


class Place(NamedTuple):
    """Where one letter lies in the group's dead-letter topic."""

    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Letters:
    """Which letters are meant: those of which everything given is true, or ``all``.

    ``from_ms``, ``until_ms``: when they died, ``[from, until)`` in UTC ms. ``original_topic``: where the message was first
    read. ``keys``: one of them is among its KEYS or is its unique key. ``places``: exactly these.
    """

    from_ms: int | None = None
    until_ms: int | None = None
    original_topic: str | None = None
    keys: frozenset[str] = frozenset()
    places: tuple[Place, ...] = ()
    all: bool = False

    def __post_init__(self) -> None:
        named = (self.from_ms, self.until_ms, self.original_topic, self.keys or None, self.places or None)
        if self.all == any(value is not None for value in named):
            raise WrongUse(
                "choose which dead letters to send: by time (--from, --until), original topic (--original-topic), key "
                "(--key) or place in the dead-letter queue (--letter); or all of them (--all). Not both."
            )
        if self.from_ms is not None and self.until_ms is not None and self.until_ms <= self.from_ms:
            span = f"{format_time(self.from_ms)} to {format_time(self.until_ms)}"
            raise WrongUse(f"empty time range {span}: --until must be later than --from")

    @property
    def look_inside(self) -> bool:
        """Whether a letter has to be read to know if it is meant; else its offset tells."""
        return self.original_topic is not None or bool(self.keys)

    def include(self, original_topic: str | None, keys: str | None, unique_key: str | None) -> bool:
        """Whether a letter with these properties is meant; its time and place are looked at elsewhere."""
        if self.original_topic is not None and original_topic != self.original_topic:
            return False
        return not self.keys or unique_key in self.keys or not self.keys.isdisjoint((keys or "").split(" "))

    def parameters(self) -> dict[str, Any]:
        """For the ctl row: what was given."""
        found = {"from_ms": self.from_ms, "until_ms": self.until_ms, "original_topic": self.original_topic}
        lists = {"keys": sorted(self.keys), "letters": [list(place) for place in sorted(self.places)]}
        return {name: value for name, value in (found | lists).items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as a dry run shows it. ``store_timestamp``: when it died (UTC ms)."""

    queue: MessageQueue
    offset: int
    store_timestamp: int
    original_topic: str | None
    keys: str | None
    unique_key: str | None
    reconsume_times: int
