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
    SUBSCRIPTION = "sub"
    CLAIM = "own"
    IMPORT = "import"
    CUTOVER = "cutover"
    SENDS = "snd"
    DELETED = "del"
    REDRIVES = "red"


def _joined(kind: PositionKind, *parts: str | int) -> str:
    return "/".join([kind, *(quote(str(part), safe="") for part in parts)])


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
    """1 once the broker's import is closed permanently and its groups belong to the lake."""
    return _joined(PositionKind.CUTOVER, broker_name)


def send_id(topic: str) -> str:
    """Sends committed to the topic. Part of every send, so that two of them, or two attempts of one, are ordered."""
    return _joined(PositionKind.SENDS, topic)


def del_id(group: str) -> str:
    """The group's epoch at its last delete (absent: never deleted). Copies of an older epoch are those of the deleted group."""
    return _joined(PositionKind.DELETED, group)


def red_id(group: str) -> str:
    """Redrives committed of a group's dead letters."""
    return _joined(PositionKind.REDRIVES, group)


def ids_of(kind: PositionKind, group: str) -> str:
    """The prefix of a group's ids of a kind that has one per queue: OFFSET, PASS or BLOCKED."""
    return _joined(kind, group) + "/"


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
    """The queue that ends the id of an OFFSET, PASS, BLOCKED, MAX or MIN position, or of a claim on a queue."""
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

_Txns = Mapping[str, tuple[int, int]]
"""By application id the number and the ``lastUpdated`` of its ``txn``."""
_Index = Mapping[str, Mapping[str, _Txns]]
"""By the kind, and by the encoded part after it: the group, topic or broker."""


@dataclass(frozen=True, slots=True, init=False)
class Positions:
    """All positions of a shard in one version of its commit log. A value: ``advanced`` makes the next one.

    What a method costs follows the ids that it returns, not the ids of the shard.
    """

    version: int
    _index: _Index

    def __init__(self, version: int, values: Mapping[str, int], updated_ms: Mapping[str, int] | None = None) -> None:
        """``values``: the numbers by application id; ABSENT: deleted. ``updated_ms``: the ``lastUpdated`` of each ``txn``, UTC
        ms; 0 where it is missing."""
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "_index", _indexed(values, updated_ms or {}))

    def advanced(self, version: int, values: Mapping[str, int], updated_ms: Mapping[str, int]) -> Positions:
        """The positions of a later version, with what the versions between changed. Copies only what has changed."""
        advanced = Positions(version, {})
        object.__setattr__(advanced, "_index", _merged(self._index, _indexed(values, updated_ms)))
        return advanced

    def get(self, app_id: str) -> int | None:
        """The number, or None when it was never set or has been deleted."""
        value, _ = self._txn(app_id)
        return None if value == ABSENT else value

    def updated_ms(self, app_id: str) -> int:
        """The ``lastUpdated`` of the ``txn``, UTC ms; 0 when it is not known."""
        return self._txn(app_id)[1]

    def _txn(self, app_id: str) -> tuple[int, int]:
        kind, part = _place(app_id)
        return self._index.get(kind, {}).get(part, {}).get(app_id, (ABSENT, 0))

    def items(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Every ``txn``, deleted positions included: the application id, and its number and ``lastUpdated``."""
        return (item for parts in self._index.values() for txns in parts.values() for item in txns.items())

    def prefixed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The ids that begin like this, with their numbers. ``prefix``: encoded text, at least a kind and its slash."""
        kind, *encoded = prefix.split("/")
        parts = self._index.get(kind, {})
        several = [parts.get(encoded[0], {})] if len(encoded) > 1 else parts.values()
        return ((app_id, value) for app_id, value in _present(several) if app_id.startswith(prefix))

    def of_kind(self, kind: PositionKind) -> Iterator[tuple[str, int]]:
        """The ids of a kind, with their numbers."""
        return _present(self._index.get(kind, {}).values())

    def offsets_of(self, group: str) -> dict[MessageQueue, int]:
        """The group's next offset in every queue of which it has one."""
        return {queue_of(app_id): value for app_id, value in self.prefixed(ids_of(PositionKind.OFFSET, group))}

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that hold or held messages, in RocketMQ's order
        (``MessageQueue#compareTo``, rules 6.1)."""
        return sorted(queue_of(app_id) for app_id, _ in self.prefixed(_joined(PositionKind.MAX, topic) + "/"))

    def all_queues(self) -> list[MessageQueue]:
        return sorted(queue_of(app_id) for app_id, _ in self.of_kind(PositionKind.MAX))

    def min_offset(self, queue: MessageQueue) -> int:
        return self.get(min_id(queue)) or 0

    def max_offset(self, queue: MessageQueue) -> int:
        return self.get(max_id(queue)) or 0


def _place(app_id: str) -> tuple[str, str]:
    """Where the index has an id: its kind and the encoded part after it, "" if there is none."""
    kind, _, rest = app_id.partition("/")
    return kind, rest.partition("/")[0]


def _indexed(
    values: Mapping[str, int], updated_ms: Mapping[str, int]
) -> dict[str, dict[str, dict[str, tuple[int, int]]]]:
    index: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}
    for app_id, value in values.items():
        kind, part = _place(app_id)
        index.setdefault(kind, {}).setdefault(part, {})[app_id] = value, updated_ms.get(app_id, 0)
    return index


def _merged(index: _Index, changes: _Index) -> _Index:
    """Shares what has not changed with ``index``."""
    merged = dict(index)
    for kind, parts in changes.items():
        before = index.get(kind, {})
        merged[kind] = {**before, **{part: {**before.get(part, {}), **txns} for part, txns in parts.items()}}
    return merged


def _present(several: Iterable[_Txns]) -> Iterator[tuple[str, int]]:
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
