"""What a commit says: the values behind one ``ctl`` row, shared by both engines.

A commit is data: what it did (``Ctl``), which positions it moves, and what must still be true of them (``Proposal``).
The engines (``lake``, ``memory``) turn it into one atomic change; ``commit/decide.py`` decides whether they may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rmq_store.commit.positions import Outcome, QueueRange, Tallies, Tally
from rmq_store.message.message import MessageQueue

FORMAT_VERSION = 1
"""Of ``store.json``; a store with a higher one was written by newer code."""

SCHEDULE_GROUP = "CID_RMQ_SYS_SCHEDULE"
"""The system group whose offsets say how far the delay levels have been delivered."""

_LAKE = "lake-"


class Action(StrEnum):
    """Why a commit was made."""

    IMPORT = "import"
    SALVAGE = "salvage"
    CUTOVER = "cutover"
    CLAIM = "claim"
    RENEW = "renew"
    RELEASE = "release"
    CONSUME = "consume"
    DELIVER = "deliver"
    RESET = "reset"
    REPLAY = "replay"
    SEND = "send"
    REDRIVE = "redrive"
    CLONE = "clone"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asked for it and how that is known."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Consumed:
    """A range of one queue that a group is done with, and the evidence per outcome."""

    range: QueueRange
    pass_: int
    tallies: Tallies
    start_rule: str = "stored"

    @property
    def messages(self) -> int:
        """The offsets of the range that held one, so that what is lost uses up no cap."""
        return len(self.range) - self.tally(Outcome.LOST).count

    def tally(self, outcome: Outcome) -> Tally:
        return self.tallies.get(outcome, Tally())


FEW_TAGS_CODES = 16
"""A segment with no more different tags codes names them, so that readers may pass over it."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A segment: ``count`` messages of one queue in one staged file, from row ``first_row`` on.

    A row says its place in that file itself (``rel``), so its queue offset is ``base + rel - first_row``. ``base`` is
    None until the commit assigns it. ``tags_codes``: the codes in the segment when they are few, else None.
    ``commit_id``: set when read back.
    """

    queue: MessageQueue
    part: int
    count: int
    first_row: int
    file: str
    base: int | None = None
    min_store_timestamp: int | None = None
    max_store_timestamp: int | None = None
    deliver_at: int | None = None
    delay_ms: int | None = None
    tags_codes: tuple[int, ...] | None = None
    commit_id: str = ""

    def __post_init__(self) -> None:
        if self.count < 1 or self.first_row < 0:
            raise ValueError(f"not a segment: {self}")


@dataclass(frozen=True, slots=True)
class Moved:
    """An operator moved a group's offset; None: there was none. ``to_offset`` ABSENT: it is void."""

    group: str
    queue: MessageQueue
    from_offset: int | None
    to_offset: int
    pass_: int


@dataclass(frozen=True, slots=True)
class Observed:
    """An offset that a living broker holds for a group; it only seeds a lake group without a position."""

    group: str
    queue: MessageQueue
    offset: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Messages that hold up a queue of an orderly group: the next window begins there, or before.

    ``attempts``: how often each of them was tried here in vain; 0 for one that was kept, or rolled back, without a
    COMMIT. ``status``: the listener's last answer. ``first_failed_at``: epoch ms, None for the time of this commit.
    """

    range: QueueRange
    attempts: int
    status: str
    first_failed_at: int | None = None
    error_type: str | None = None
    error_text: str | None = None


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file that lies in the table's folder but in no version of it yet."""

    path: str
    kind: str
    size: int
    rows: int
    stats: str
    store_day: str | None = None


@dataclass(frozen=True, slots=True)
class Ctl:
    """One commit, as one row. Times are UTC ms; ``parameters`` is canonical JSON."""

    commit_id: str
    action: Action
    actor: Actor
    reason: str = ""
    request_id: str = ""
    request_part: int = 1
    request_complete: bool = True
    group: str | None = None
    epoch: int | None = None
    window_id: str | None = None
    read_version: int = -1
    store_timestamp: int = 0
    parameters: str = "{}"
    subscription: str | None = None
    subscription_version: int | None = None
    listener: str | None = None
    consumed: tuple[Consumed, ...] = ()
    produced: tuple[Produced, ...] = ()
    moved: tuple[Moved, ...] = ()
    observed: tuple[Observed, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    @property
    def moves_offsets(self) -> bool:
        """Whether its consumed ranges move offsets. A redrive takes letters from anywhere in their queue."""
        return self.action is not Action.REDRIVE

    def parameter(self, name: str) -> Any:
        return json.loads(self.parameters).get(name)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A commit that waits for its decision.

    ``expect``: positions that must still have these numbers (None: absent) when the commit is decided.
    ``advance``: what they become. What is expected is also written, if only as it is, so that whoever moves it in between
    conflicts with the commit. Segments without a base get theirs from ``max/`` at the decision; their queues'
    ``max/`` positions are advanced by it. ``closed``: beginnings of ids under which nothing may be but what is expected.
    """

    ctl: Ctl
    expect: Mapping[str, int | None]
    advance: Mapping[str, int]
    files: tuple[StagedFile, ...] = ()
    updated_ms: Mapping[str, int] = field(default_factory=dict)
    closed: tuple[str, ...] = ()


def local_broker(shard: str) -> str:
    """The broker name of a shard's queues born in the lake."""
    return f"{_LAKE}{shard}"


def lane(broker_name: str, group: str) -> str:
    """The broker name of a group's own schedule queues in the shard with this local broker; "": of what is sent with a
    delay."""
    return f"{broker_name}~{group}"


def is_born_here(broker_name: str) -> bool:
    """Whether it is a local broker or a lane of one."""
    return broker_name.startswith(_LAKE)


def lake_message_id(commit_id: str, part: int, row: int) -> str:
    """The offset message id of a message born in the lake: RocketMQ's IPv6 form
    (``MessageDecoder#createMessageId``, rules 1.8), in which the host is the commit's id, the port the part, and the
    commit log offset the row in its file."""
    return f"{commit_id.upper()}{part:08X}{row:016X}"


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces, so that equal parameters are equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
