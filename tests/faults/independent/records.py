"""What the tables of a shard say, as plain values: commits, messages and outcomes, with offsets worked out from the text of
docs/architecture.md and docs/decisions.

A message born in the lake has no offset in its row until a compaction: its offset is the base of its segment plus its row in
the file (docs/architecture.md, "The store").
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

from tests.faults.independent.delta_tables import TableState, replay

OUTCOMES = ("acked", "filtered", "retried", "dead", "duplicate", "dropped", "lost", "skipped")
WAITING = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
SCHEDULE_GROUP = "CID_RMQ_SYS_SCHEDULE"
DEAD, RETRY = "%DLQ%", "%RETRY%"
_MASK = (1 << 64) - 1


class Queue(NamedTuple):
    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker}:{self.number}"


class Place(NamedTuple):
    """A message: a queue and an offset."""

    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets ``[begin, end)`` that a commit has consumed for a group, with its evidence."""

    commit_id: str
    action: str
    request: str
    group: str
    queue: Queue
    begin: int
    end: int
    pass_: int
    start_rule: str
    counts: Mapping[str, int]
    hashes: Mapping[str, int]
    """Sums of ``offset_hash`` modulo 2^64."""


@dataclass(frozen=True, slots=True)
class Move:
    """An operator's move of an offset. -1 as ``to``: the offset was deleted."""

    group: str
    queue: Queue
    from_offset: int | None
    to_offset: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A ctl row."""

    commit_id: str
    action: str
    request: str
    group: str | None
    epoch: int | None
    read_version: int
    subscription: str | None
    parameters: Mapping[str, Any]
    ranges: tuple[Range, ...]
    moves: tuple[Move, ...]
    segments: tuple[Mapping[str, Any], ...]

    @property
    def order(self) -> tuple[int, str]:
        """Commits of an entry have one read version and are ordered by their ids (docs/decisions/0011-own-log.md)."""
        return self.read_version, self.commit_id


@dataclass(frozen=True, slots=True)
class Message:
    """A message row."""

    commit_id: str
    place: Place | None
    """None: no segment has the row."""
    keys: str | None
    tags: str | None
    group: str | None
    """For a copy: whose consumption made it."""
    pass_: int | None
    cause: str | None
    origin: Place | None

    @property
    def outcome(self) -> str | None:
        """What the copy proves of its origin; None: it is no copy."""
        if self.group is None or self.place is None:
            return None
        topic = self.place.queue.topic
        if self.cause in ("deliver", "redrive"):
            return "delivered" if self.cause == "deliver" else "redriven"
        if topic.startswith(DEAD):
            return "dead"
        return "retried" if topic in WAITING else None


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """Offsets ``[begin, end)`` with an outcome other than acked and filtered, by a row or by a copy."""

    commit_id: str
    group: str
    queue: Queue
    begin: int
    end: int
    outcome: str
    pass_: int | None


def offset_hash(offset: int) -> int:
    """The 64-bit hash whose sums are the evidence: the finaliser of splitmix64."""
    z = (offset + 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def hash_sum(offsets: Iterable[int]) -> int:
    return sum(map(offset_hash, offsets)) & _MASK


@dataclass(slots=True)
class ShardRecords:
    """A shard, read once."""

    name: str
    table: TableState
    commits: list[Commit]
    messages: list[Message]
    rows: list[OutcomeRow]
    """Rows of kind ``outcome`` only; ``evidence`` has the copies too."""
    _by_place: dict[Place, list[Message]] = field(default_factory=dict)

    def position(self, *parts: object) -> int | None:
        """A position by the decoded parts of its application id; None where it is absent or deleted."""
        value = self._positions().get(tuple(map(str, parts)))
        return None if value is None or value < 0 else value

    def _positions(self) -> dict[tuple[str, ...], int]:
        return {tuple(map(unquote, name.split("/"))): value for name, value in self.table.positions.items()}

    def queue_positions(self, kind: str) -> dict[tuple[str, Queue], int]:
        """The positions ``off``, ``max`` and ``min`` that are there, by group ("" where the kind has none) and queue."""
        result = {}
        for parts, value in self._positions().items():
            if parts[0] == kind and value >= 0:
                *head, topic, broker, number = parts[1:]
                result[head[0] if head else "", Queue(topic, broker, int(number))] = value
        return result

    def evidence(self) -> list[OutcomeRow]:
        """Every outcome that has a row or a copy."""
        copies = [
            OutcomeRow(
                one.commit_id,
                one.group or "",
                one.origin.queue,
                one.origin.offset,
                one.origin.offset + 1,
                outcome,
                one.pass_,
            )
            for one in self.messages
            if (outcome := one.outcome) and one.origin
        ]
        return [*self.rows, *copies]

    def by_place(self) -> Mapping[Place, list[Message]]:
        """The messages of each place: one, if the store is sound."""
        if not self._by_place:
            for message in self.messages:
                if message.place:
                    self._by_place.setdefault(message.place, []).append(message)
        return self._by_place


def read_store(folder: Path) -> list[ShardRecords]:
    """The shards of a store, by name. Raises LogBroken."""
    names = sorted(path.stem for path in (folder / "shards").glob("*.json"))
    return [_read_shard(name, replay(folder / name / "commitlog")) for name in names]


def _read_shard(name: str, table: TableState) -> ShardRecords:
    commits = sorted((_commit(row) for row in _rows(table.of_kind("ctl"), _CTL)), key=lambda one: one.order)
    segments: dict[tuple[str, int], list[tuple[int, int, int, Queue]]] = defaultdict(list)
    for commit in commits:
        if commit.action != "compact":
            for one in commit.segments:
                place = (one["first_row"], one["count"], one["base_offset"], _queue(one))
                segments[commit.commit_id, one["part"]].append(place)
    messages = [
        _message(row, segments.get((row["commit_id"], row["part"]), ()))
        for row in _rows(table.of_kind("msg"), _MESSAGE)
        if row["rel"] is not None
    ]
    return ShardRecords(
        name, table, commits, messages, [_outcome(row) for row in _rows(table.of_kind("outcome"), _OUTCOME)]
    )


_QUEUE = ("topic", "broker_name", "queue_id")
_CTL = (
    *("commit_id", "action", "request_id", "group_name", "epoch", "read_version", "subscription", "parameters"),
    *("consumed", "moved", "produced"),
)
_MESSAGE = (
    *("commit_id", "part", "rel", *_QUEUE, "queue_offset", "keys", "tags", "group_name", "pass", "cause"),
    *("origin_topic", "origin_broker_name", "origin_queue_id", "origin_queue_offset"),
)
_OUTCOME = ("commit_id", *_QUEUE, "group_name", "begin_offset", "end_offset", "outcome", "pass")


def _rows(files: Sequence[Path], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for path in files:
        yield from pq.ParquetFile(path).read(columns=list(columns)).to_pylist()


def _queue(row: Mapping[str, Any], prefix: str = "") -> Queue:
    return Queue(*(row[prefix + name] for name in _QUEUE))


def _commit(row: Mapping[str, Any]) -> Commit:
    return Commit(
        row["commit_id"],
        row["action"],
        row["request_id"] or "",
        row["group_name"],
        row["epoch"],
        row["read_version"],
        row["subscription"],
        json.loads(row["parameters"] or "{}"),
        tuple(_range(row, one) for one in row["consumed"] or ()),
        tuple(Move(one["group_name"], _queue(one), one["from_offset"], one["to_offset"]) for one in row["moved"] or ()),
        tuple(row["produced"] or ()),
    )


def _range(row: Mapping[str, Any], one: Mapping[str, Any]) -> Range:
    return Range(
        row["commit_id"],
        row["action"],
        row["request_id"] or "",
        row["group_name"] or "",
        _queue(one),
        one["begin_offset"],
        one["end_offset"],
        one["pass"],
        one["start_rule"],
        {name: one[name] for name in OUTCOMES},
        {name: one[f"{name}_hash"] & _MASK for name in OUTCOMES},
    )


def _message(row: Mapping[str, Any], segments: Iterable[tuple[int, int, int, Queue]]) -> Message:
    queue, offset = _queue(row), row["queue_offset"]
    if offset is None:
        for first, count, base, of_segment in segments:
            if of_segment == queue and first <= row["rel"] < first + count:
                offset = base + row["rel"] - first
    is_copy = row["origin_queue_offset"] is not None
    return Message(
        row["commit_id"],
        None if offset is None else Place(queue, offset),
        row["keys"],
        row["tags"],
        row["group_name"],
        row["pass"],
        row["cause"],
        Place(_queue(row, "origin_"), row["origin_queue_offset"]) if is_copy else None,
    )


def _outcome(row: Mapping[str, Any]) -> OutcomeRow:
    return OutcomeRow(
        row["commit_id"],
        row["group_name"],
        _queue(row),
        row["begin_offset"],
        row["end_offset"],
        row["outcome"],
        row["pass"],
    )
