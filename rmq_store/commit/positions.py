"""Positions and their application ids, ranges of offsets, and the tallies that prove a range was consumed.

A position is a Delta ``txn`` action: an application id and a number
(``docs/decisions/0002-what-a-row-and-a-position-say.md``). An id is a kind and percent-encoded parts, joined by ``/``:
``off/orders/OrderEvents/broker-a/3`` is the next offset that group orders reads in queue 3. This module names and parses
ids; ``commit/decide.py`` decides whether a commit may change a position. A consumer offset is the next one to read;
ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from rmq_store.commit.position_index import Index, Txn, Txns, indexed, merged, txn_of, under
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue

ABSENT = -1
"""The value of a deleted position, which reads as absent (a Delta ``txn`` cannot be removed)."""

_MASK_64 = (1 << 64) - 1
_LEASE_BITS = 34
_HASH_BITS = 32


class Outcome(StrEnum):
    """What became of one offset of a range. Every offset has exactly one (``docs/invariants.md``, P2)."""

    ACKED = "acked"
    FILTERED = "filtered"
    RETRIED = "retried"
    DEAD = "dead"
    DUPLICATE = "duplicate"
    DROPPED = "dropped"
    LOST = "lost"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets ``[begin, end)`` of one queue."""

    queue: MessageQueue
    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            raise ValueError(f"not a range of offsets: [{self.begin}, {self.end}) of {self.queue}")

    def __len__(self) -> int:
        return self.end - self.begin


# --- application ids -------------------------------------------------------------------------------------------------


class PositionKind(StrEnum):
    """What a position counts: the first part of its application id. The functions below say what each number means."""

    EPOCH = "grp"
    OFFSET = "off"
    PASS = "pas"
    BLOCKED = "blk"
    MAX = "max"
    MIN = "min"
    ARCHIVED = "arc"
    SUBSCRIPTION = "sub"
    CLAIM = "own"
    IMPORT = "import"
    CUTOVER = "cutover"
    DIVERGED = "diverged"
    SENDS = "snd"
    DELETED = "del"
    REDRIVES = "red"


def _joined(kind: PositionKind, *parts: str | int) -> str:
    return "/".join([kind, *map(_encoded, parts)])


def _encoded(part: str | int) -> str:
    try:
        return quote(str(part), safe="")
    except UnicodeEncodeError as error:
        raise WrongUse(
            f"the name {part!r} contains an unpaired surrogate (U+D800 to U+DFFF), which is not a character"
        ) from error


def grp_id(group: str) -> str:
    """The group's epoch, raised by every operator action; part of every commit of the group."""
    return _joined(PositionKind.EPOCH, group)


def off_id(group: str, queue: MessageQueue) -> str:
    """Next offset that the group consumes from the queue."""
    return _joined(PositionKind.OFFSET, group, *queue_key(queue))


def pas_id(group: str, queue: MessageQueue) -> str:
    """The pass of the queue: the group's epoch when an action last named it (absent: 0)."""
    return _joined(PositionKind.PASS, group, *queue_key(queue))


def blk_id(group: str, queue: MessageQueue) -> str:
    """The time (ms of its commit id) of the window that left the orderly queue blocked (absent: it is not blocked)."""
    return _joined(PositionKind.BLOCKED, group, *queue_key(queue))


def max_id(queue: MessageQueue) -> str:
    """Next offset to assign in the queue. Its ``last_updated`` is the store timestamp (ms) of the newest message."""
    return _joined(PositionKind.MAX, *queue_key(queue))


def min_id(queue: MessageQueue) -> str:
    """First readable offset of the queue (absent: 0)."""
    return _joined(PositionKind.MIN, *queue_key(queue))


def arc_id(queue: MessageQueue) -> str:
    """The end of the removed messages that go to the archive (absent: 0)."""
    return _joined(PositionKind.ARCHIVED, *queue_key(queue))


def sub_id(group: str) -> str:
    """The subscription that the group reads with, see ``SubVersion``: one for all clients of a broadcasting group."""
    return _joined(PositionKind.SUBSCRIPTION, group.partition("@")[0])


def own_id(*scope: str | int) -> str:
    """The claim on ``scope``: a group as a whole, or ``~import/<broker>`` and the like."""
    return _joined(PositionKind.CLAIM, *scope)


def own_queue_id(group: str, queue: MessageQueue) -> str:
    """The group's claim on the queue."""
    return own_id(group, *queue_key(queue))


def import_id(broker_name: str) -> str:
    """Next physical offset to import from the broker's commit log."""
    return _joined(PositionKind.IMPORT, broker_name)


def cutover_id(broker_name: str) -> str:
    """1 while the broker's import is closed and its groups belong to the lake: from a cut-over to a hand-back."""
    return _joined(PositionKind.CUTOVER, broker_name)


def diverged_id(broker_name: str) -> str:
    """Physical offset at which the broker lost the end of its log. From there on it is imported under another broker name
    (absent: it was not)."""
    return _joined(PositionKind.DIVERGED, broker_name)


def send_id(topic: str) -> str:
    """Sends committed to the topic. Part of every send, so that two of them, or two attempts of one, are ordered."""
    return _joined(PositionKind.SENDS, topic)


def del_id(group: str) -> str:
    """The group's epoch at its last delete (absent: never deleted). Copies of an older epoch are those of the deleted group."""
    return _joined(PositionKind.DELETED, group)


def red_id(group: str) -> str:
    """Redrives committed of a group's dead letters."""
    return _joined(PositionKind.REDRIVES, group)


def ids_of(kind: PositionKind, group: str, *of_queues: str) -> str:
    """The prefix of a group's ids of a kind that has one per queue: OFFSET, PASS or BLOCKED. ``of_queues``: only of a topic, or
    of a topic and a broker."""
    return _joined(kind, group, *of_queues) + "/"


def queue_key(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def split_id(app_id: str) -> tuple[str, ...]:
    """The kind and the decoded parts of an application id."""
    return tuple(unquote(part) for part in app_id.split("/"))


def kind_of(app_id: str) -> str:
    """The kind, to be compared with ``PositionKind``. Decodes nothing: a decision looks at thousands of ids."""
    return app_id.partition("/")[0]


def group_of(app_id: str) -> str:
    """The group of an EPOCH, OFFSET, PASS, BLOCKED, DELETED or REDRIVES position."""
    return split_id(app_id)[1]


def claimed_queue(app_id: str) -> MessageQueue | None:
    """The queue of a claim that ``own_queue_id`` named, None for a claim on other work."""
    return queue_of(app_id) if len(split_id(app_id)) == _PARTS_OF_QUEUE_CLAIM else None


_PARTS_OF_QUEUE_CLAIM = 5  # kind, group, topic, broker, queue id


def queue_of(app_id: str) -> MessageQueue:
    """The queue that ends the id of an OFFSET, PASS, BLOCKED, MAX, MIN or ARCHIVED position, or of a claim on a queue."""
    topic, broker_name, queue_id = split_id(app_id)[-3:]
    return MessageQueue(topic, broker_name, int(queue_id))


class Claim(NamedTuple):
    """A claim as stored in ``own/…``: a growing number and the second (UTC) at which its lease ends.

    ``lease_end_s`` 0 means released.
    """

    number: int
    lease_end_s: int

    def packed(self) -> int:
        return self.number << _LEASE_BITS | self.lease_end_s

    @classmethod
    def of(cls, value: int | None) -> Claim:
        return (
            cls(0, 0) if value is None or value == ABSENT else cls(value >> _LEASE_BITS, value & (1 << _LEASE_BITS) - 1)
        )


class SubVersion(NamedTuple):
    """A group's subscription as stored in ``sub/…``: its version, 1 to 2^31 - 1, and a 32-bit hash of its text."""

    version: int
    text_hash: int

    def packed(self) -> int:
        return self.version << _HASH_BITS | self.text_hash

    @classmethod
    def of(cls, value: int | None) -> SubVersion | None:
        """None where nothing is recorded."""
        if value is None or value == ABSENT:
            return None
        return cls(value >> _HASH_BITS, value & (1 << _HASH_BITS) - 1)


# --- positions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False)
class Positions:
    """All positions of a shard in one version of its commit log. A value: ``advanced`` makes the next one.

    The cost of a method follows the ids that it returns, not the ids of the shard.
    """

    version: int
    _index: Index

    def __init__(self, version: int, values: Mapping[str, int], updated_ms: Mapping[str, int] | None = None) -> None:
        """``values``: the numbers by application id; ABSENT: deleted. ``updated_ms``: the ``lastUpdated`` of each ``txn``, UTC
        ms; 0 where it is missing."""
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "_index", indexed(values, updated_ms or {}))

    @classmethod
    def of_index(cls, version: int, index: Index) -> Positions:
        """The positions of an index, which must not change."""
        positions = cls(version, {})
        object.__setattr__(positions, "_index", index)
        return positions

    def advanced(self, version: int, values: Mapping[str, int], updated_ms: Mapping[str, int]) -> Positions:
        """The positions of a later version, with the changes of the versions between. Copies only what they change."""
        return Positions.of_index(version, merged(self._index, indexed(values, updated_ms)))

    def items(self) -> Iterator[tuple[str, Txn]]:
        """Every ``txn``, deleted positions included: the application id, and its number and ``lastUpdated``."""
        return (item for part in self.parts() for txns in part.values() for item in txns.items())

    def parts(self, kind: PositionKind | None = None, name: str | None = None) -> Iterator[Mapping[str, Txns]]:
        """The index under each kind and the part after it, deleted positions included. ``kind``: those of a kind only;
        ``name``: of one of its ``names``."""
        kinds = self._index if kind is None else (kind,)
        if name is None:
            return (part for one in kinds for part in self._index.get(one, {}).values())
        return (self._index.get(one, {}).get(_encoded(name), {}) for one in kinds)

    def get(self, app_id: str) -> int | None:
        """The number, or None when it was never set or has been deleted."""
        value, _ = txn_of(self._index, app_id) or _UNKNOWN
        return None if value == ABSENT else value

    def updated_ms(self, app_id: str) -> int:
        """The ``lastUpdated`` of the ``txn``, UTC ms; 0 when it is not known."""
        _, updated_ms = txn_of(self._index, app_id) or _UNKNOWN
        return updated_ms

    def prefixed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The ids that begin like this, with their numbers. ``prefix``: encoded text, at least a kind and its slash."""
        kind, *parts = prefix.split("/")[:-1]
        several = _present(under(self._index, kind, *parts[:2]))
        return ((app_id, value) for app_id, value in several if app_id.startswith(prefix))

    def of_kind(self, kind: PositionKind) -> Iterator[tuple[str, int]]:
        """The ids of a kind, with their numbers."""
        return _present(under(self._index, kind))

    def names(self, kind: PositionKind) -> set[str]:
        """The first part of the ids of a kind: the groups of OFFSET, the topics of MAX, the brokers of IMPORT."""
        firsts = self._index.get(kind, {})
        return {unquote(first) for first in firsts if any(_present(under(self._index, kind, first)))}

    def brokers_of(self, topic: str) -> set[str]:
        """The brokers that have queues of a topic, in ``queues_of``."""
        first = _encoded(topic)
        brokers = self._index.get(PositionKind.MAX, {}).get(first, {})
        return {unquote(name) for name in brokers if any(_present(under(self._index, PositionKind.MAX, first, name)))}

    def offsets_of(self, group: str) -> dict[MessageQueue, int]:
        """The group's next offset in every queue of which it has one."""
        return {queue_of(app_id): value for app_id, value in self.prefixed(ids_of(PositionKind.OFFSET, group))}

    def queues_of(self, topic: str, broker_name: str | None = None) -> list[MessageQueue]:
        """The queues of a topic, or of one broker of it, that hold or held messages, in RocketMQ's order
        (``MessageQueue#compareTo``, rules 6.1)."""
        parts = (topic,) if broker_name is None else (topic, broker_name)
        return sorted(queue_of(app_id) for app_id, _ in self.prefixed(_joined(PositionKind.MAX, *parts) + "/"))

    def all_queues(self) -> list[MessageQueue]:
        return sorted(queue_of(app_id) for app_id, _ in self.of_kind(PositionKind.MAX))

    def min_offset(self, queue: MessageQueue) -> int:
        return self.get(min_id(queue)) or 0

    def max_offset(self, queue: MessageQueue) -> int:
        return self.get(max_id(queue)) or 0

    def archived_to(self, queue: MessageQueue) -> int:
        return self.get(arc_id(queue)) or 0

    def epoch(self, group: str) -> int:
        """How often operators have moved or deleted the group; 0 also for one that has not consumed."""
        return self.get(grp_id(group)) or 0


_UNKNOWN: Txn = (ABSENT, 0)


def _present(several: Iterable[Txns]) -> Iterator[tuple[str, int]]:
    """The positions that are not deleted."""
    return ((app_id, value) for txns in several for app_id, (value, _) in txns.items() if value != ABSENT)


# --- evidence --------------------------------------------------------------------------------------------------------


def offset_hash(offset: int) -> int:
    """A 64-bit hash of one offset (the finaliser of splitmix64); sums of it modulo 2^64 are the evidence."""
    z = (offset + 0x9E3779B97F4A7C15) & _MASK_64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK_64
    return z ^ z >> 31


@dataclass(frozen=True, slots=True)
class Tally:
    """How many offsets, and the sum of their hashes modulo 2^64."""

    count: int = 0
    hash_sum: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, self.hash_sum + other.hash_sum & _MASK_64)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.count - other.count, self.hash_sum - other.hash_sum & _MASK_64)


def tally(offsets: Iterable[int]) -> Tally:
    """The tally of some offsets. ``lake/table/evidence.py`` has the same over arrays."""
    count = hash_sum = 0
    for offset in offsets:
        count += 1
        hash_sum += offset_hash(offset)
    return Tally(count, hash_sum & _MASK_64)


Tallies = Mapping[Outcome, Tally]


def total(tallies: Tallies) -> Tally:
    return sum(tallies.values(), Tally())
