"""A commit as data: its ctl row, and the proposal from which it is decided.

``Ctl`` is what the commit did. ``Proposal`` adds which positions it moves and which values they must still have.
``commit/decide.py`` decides whether it may be committed; ``lake/commit/commit.py`` makes it one atomic change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any

from rmq_store.commit.positions import Outcome, QueueRange, Tallies, Tally
from rmq_store.message.message import MessageQueue

FORMAT_VERSION = 2
"""The format version in ``store.json``. A higher one was written by newer code; ``lake/admin/upgrade.py`` brings a lower one
to this."""

SCHEDULE_GROUP = "CID_RMQ_SYS_SCHEDULE"
"""The system group whose offsets say how far the delay levels have been delivered."""

_LAKE = "lake-"


class Action(StrEnum):
    """Why a commit was made."""

    IMPORT = "import"
    SALVAGE = "salvage"
    CUTOVER = "cutover"
    HAND_BACK = "hand_back"
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
    UNDO = "undo"
    COMPACT = "compact"
    VACUUM = "vacuum"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who made the request."""

    name: str
    source: str
    """How the name is known: airflow (a login), schedule, os (the OS user) or unverified."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """A range of one queue that a group has consumed, and the evidence per outcome."""

    range: QueueRange
    pass_: int
    tallies: Tallies
    start_rule: str = "stored"
    """Which rule chose the begin of the range (``consumer/start.py``)."""

    @property
    def messages(self) -> int:
        """Offsets of the range that had a message. Lost ones have none, and do not count towards ``max_messages``."""
        return len(self.range) - self.tally(Outcome.LOST).count

    def tally(self, outcome: Outcome) -> Tally:
        return self.tallies.get(outcome, Tally())


FEW_TAGS_CODES = 16
"""A segment with at most so many different tags codes lists them, so that readers can skip it."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A segment: messages of one queue with neighbouring offsets, in neighbouring rows of one staged file.

    A row has its place in that file (``rel``), so its queue offset is ``base + rel - first_row``.
    """

    queue: MessageQueue
    part: int
    """The number of the file in its commit."""
    count: int
    first_row: int
    file: str
    base: int | None = None
    """The queue offset of the first message; None until the commit assigns it."""
    min_store_timestamp: int | None = None
    """ms, UTC; None until the commit, for messages born in the lake"""
    max_store_timestamp: int | None = None
    """ms, UTC; None until the commit, for messages born in the lake"""
    deliver_at: int | None = None
    """When the whole segment is due (ms, UTC); None: it is not delayed, or the commit adds ``delay_ms``."""
    delay_ms: int | None = None
    """The delay of its level, from the store timestamp on; None: it has none."""
    tags_codes: tuple[int, ...] | None = None
    """The tags codes in the segment if they are at most FEW_TAGS_CODES, else None."""
    commit_id: str = ""
    """Set when the segment is read back."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.first_row < 0:
            raise ValueError(f"not a segment: {self}")


@dataclass(frozen=True, slots=True)
class Moved:
    """An operator's move of a group's offset in one queue."""

    group: str
    queue: MessageQueue
    from_offset: int | None
    """None: the group had no offset in the queue."""
    to_offset: int
    """ABSENT: the offset was deleted with its group."""
    pass_: int


@dataclass(frozen=True, slots=True)
class Observed:
    """An offset that an import read from a broker's files. It counts only while the group has no position here."""

    group: str
    queue: MessageQueue
    offset: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Messages that block a queue of an orderly group: the next window begins at them, or before."""

    range: QueueRange
    attempts: int
    """How often each of them has failed; 0 for one that was kept, or rolled back, without a COMMIT."""
    status: str
    """The listener's last answer."""
    first_failed_at: int | None = None
    """ms, UTC; None: the time of this commit"""
    error_type: str | None = None
    error_text: str | None = None


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file in the table's folder that no version of the table names yet."""

    path: str
    kind: str
    size: int
    """bytes"""
    rows: int
    stats: str
    """Delta's statistics of the file, JSON."""
    store_day: str | None = None
    """The UTC day of its partition; None: that of the commit."""
    data_change: bool = True
    """Delta's ``dataChange``: False where the file has only rows of files that the same commit removes."""
    sha256: str | None = None
    """Of its bytes, as hex; None: not known, as for files in memory."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that a commit added, as it was written. It never changes."""

    path: str
    rows: int
    size: int
    """bytes"""
    sha256: str | None
    """Of its bytes, as hex; None: not known."""


@dataclass(frozen=True, slots=True)
class Ctl:
    """One commit: its ctl row."""

    commit_id: str
    action: Action
    actor: Actor
    _: KW_ONLY
    reason: str = ""
    request_id: str = ""
    request_part: int = 1
    """The number of this commit in its request, from 1."""
    request_complete: bool = True
    """Whether it is the request's last commit."""
    group: str | None = None
    epoch: int | None = None
    """The group's epoch that the plan read, or that an operator's action set."""
    window_id: str | None = None
    read_version: int = -1
    """The version of the commit log on which the commit was decided; -1: not decided yet."""
    store_timestamp: int = 0
    """ms, UTC; 0: not decided yet"""
    parameters: str = "{}"
    """What was requested and found, as canonical JSON."""
    subscription: str | None = None
    """JSON, see ``window/sub_version.py``."""
    subscription_version: int | None = None
    listener: str | None = None
    """The listener's name in the settings."""
    consumed: tuple[Consumed, ...] = ()
    produced: tuple[Produced, ...] = ()
    moved: tuple[Moved, ...] = ()
    observed: tuple[Observed, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    files: tuple[WrittenFile, ...] = ()
    """The data files that the commit added, without that of its ctl row. None in rows from before format 2."""

    @property
    def moves_offsets(self) -> bool:
        """Whether its consumed ranges move offsets. A redrive consumes dead letters from anywhere in their queue."""
        return self.action is not Action.REDRIVE

    def parameter(self, name: str) -> Any:
        """A value of ``parameters``, None if it has none."""
        return json.loads(self.parameters).get(name)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A commit before its decision.

    Segments without a base get theirs from the MAX position of their queue at the decision, which also advances it.
    """

    ctl: Ctl
    expect: Mapping[str, int | None]
    """By application id, the numbers that positions must still have (None: absent) when the commit is decided."""
    advance: Mapping[str, int]
    """What positions become. It has every expected one, even if unchanged: a commit that moves it in between then conflicts
    with this one."""
    files: tuple[StagedFile, ...] = ()
    updated_ms: Mapping[str, int] = field(default_factory=dict)
    """The ``lastUpdated`` of positions (ms, UTC) where it is not the store timestamp of the commit."""
    closed: tuple[str, ...] = ()
    """Prefixes of application ids: no other positions than the expected ones may exist under them."""
    removed: tuple[str, ...] = ()
    """Paths of live files that leave the table with this commit. They must still be live when it is decided."""
    behind: frozenset[str] | None = None
    """The OFFSET positions that may be before the MIN positions that this commit sets; None: any may be."""
    begins: Mapping[str, int] = field(default_factory=dict)
    """By MIN position the first offset, or the older one, that the commit gives a group. It must not be before that position.
    The commit sets the position again as it is, so a commit that moves it in between conflicts."""


REPLACED = "replaced"
"""The parameter of a compaction that lists the files whose rows it has written into another file."""


def replaced_files(ctls: Iterable[Ctl]) -> frozenset[str]:
    """The files that these commits have replaced. A segment that names one of them has another place now, which a segment
    of the compaction names."""
    return frozenset(path for ctl in ctls if ctl.action is Action.COMPACT for path in ctl.parameter(REPLACED) or ())


def local_broker(shard: str) -> str:
    """The broker name of a shard's queues born in the lake."""
    return f"{_LAKE}{shard}"


def lane(broker_name: str, group: str) -> str:
    """The broker name of a group's own schedule queues in the shard with this local broker. Group "" is the sending lane: the
    queues of messages that are sent with a delay."""
    return f"{broker_name}~{group}"


def is_born_here(broker_name: str) -> bool:
    """Whether it is a local broker or a lane of one."""
    return broker_name.startswith(_LAKE)


def shard_of(broker_name: str) -> str | None:
    """The shard whose local broker it is, or a lane of that; None for a broker's own name."""
    return broker_name.removeprefix(_LAKE).partition("~")[0] if is_born_here(broker_name) else None


def lake_message_id(commit_id: str, part: int, row: int) -> str:
    """The offset message id of a message born in the lake: RocketMQ's IPv6 form
    (``MessageDecoder#createMessageId``, rules 1.8), in which the host is the commit's id, the port the part, and the
    commit log offset the row in its file."""
    return f"{commit_id.upper()}{part:08X}{row:016X}"


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces, so that equal parameters are equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
