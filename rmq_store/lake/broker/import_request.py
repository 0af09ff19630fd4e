"""What an import of a broker's files is asked for, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from rmq_store.broker_files.limits import MAX_CONFIG_BYTES, MAX_QUEUES
from rmq_store.commit.ctl import Actor, Ctl
from rmq_store.commit.request import Status
from rmq_store.lake.broker.diverged_log import Continuation, ContinuedLog, continued_log
from rmq_store.lake.broker.import_commit import QueueGap
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.lake.table.import_parameters import parameter_of_import
from rmq_store.lake.table.imports import BEGUN_AGAIN
from rmq_store.lake.table.shard import Shard
from rmq_store.message.sys_flag import MAX_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """One import of a broker's store directory."""

    broker_name: str
    shard_name: str
    """The shard that gets the messages; it is made when it is missing."""
    request_id: str
    actor: Actor
    salvage: bool = False
    """Whether to skip what is damaged or missing, and record it."""
    max_body_bytes: int = MAX_BODY_BYTES
    """How large a body may become when it is decompressed, from 1 to MOST_BODY_BYTES."""
    max_config_bytes: int = MAX_CONFIG_BYTES
    """How large each of the broker's config files may be, from 1 to MOST_CONFIG_BYTES."""
    max_queues: int = MAX_QUEUES
    """How many queues a topic may have, from 1 to MOST_QUEUES; all topics together may have four times as many."""
    continues: Continuation | None = None
    """The other broker name whose log this name continues. Ignored once it does."""
    dry_run: bool = False
    """Only for an import that continues another log: whether to report where it was cut, and change nothing."""


@dataclass(frozen=True, slots=True)
class QueueBegunAgain:
    """A queue that began at offset 0 again at the broker. In the lake it goes on."""

    topic: str
    queue_id: int
    base: int
    """The offset in the lake of its offset 0 at the broker."""


@dataclass(frozen=True, slots=True)
class OtherLevel:
    """A delay level that has another delay at the broker than in the store."""

    level: int
    delay_ms: int
    """The broker's, as the entry of a message shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did."""

    status: Status
    """COMMITTED, ALREADY_COMMITTED, UNCHANGED or DRY_RUN."""
    shard: str
    broker_name: str
    request_id: str
    begin: int
    """First physical offset of the broker's log that was read."""
    end: int
    """Physical offset up to which the log was read (exclusive)."""
    parts: int = 1
    """How many commits it was."""
    messages: int = 0
    queues: int = 0
    """How many queues have new messages."""
    unlisted_queues: int = 0
    """How many queues of the broker the lake does not list, since they have no messages and users cannot read them: those of
    ``unlisted_topics`` system topics, retry topics and topics without the permission."""
    unlisted_topics: int = 0
    salvaged: tuple[Skipped, ...] = ()
    """Bytes of the log that a salvage left out."""
    queue_gaps: tuple[QueueGap, ...] = ()
    """Queue offsets that have no message because of that."""
    begun_again: tuple[QueueBegunAgain, ...] = ()
    """Queues whose topic was deleted and made again at the broker since the last import."""
    deleted: int = 0
    """How many of the messages are of topics that were deleted and made again before this import. They have no queue offset,
    so no group reads them."""
    other_levels: tuple[OtherLevel, ...] = ()
    """The delay levels of the broker's messages that the store has otherwise: what fails here waits by the store's levels."""
    notes: tuple[str, ...] = ()
    """What the operator should know, such as a ``.bak`` that was used."""
    continued: ContinuedLog | None = None
    """Of the import with which the broker name began to continue another one's log."""
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()
    """What failed after the commit."""


def report_of(
    status: Status, shard: Shard, request: ImportRequest, parts: Sequence[Ctl], notes: tuple[str, ...]
) -> ImportReport:
    """The report of these parts of the request, at least one."""
    unlisted = parts[-1].parameter("unlisted") or (0, 0)
    delays = {level: delay_ms for part in parts for level, delay_ms in part.parameter("other_levels") or ()}
    return ImportReport(
        status=status,
        shard=shard.name,
        broker_name=request.broker_name,
        request_id=request.request_id,
        begin=parameter_of_import(parts[0], "range")[0],
        end=parameter_of_import(parts[-1], "range")[1],
        parts=len(parts),
        messages=sum(parameter_of_import(part, "messages") for part in parts),
        queues=len({segment.queue for part in parts for segment in part.produced}),
        unlisted_queues=unlisted[0],
        unlisted_topics=unlisted[1],
        salvaged=tuple(Skipped(*item) for part in parts for item in part.parameter("skipped") or ()),
        continued=continued_log(parts[0]),
        queue_gaps=tuple(QueueGap(*item) for part in parts for item in part.parameter("queue_gaps") or ()),
        begun_again=tuple(QueueBegunAgain(*item) for part in parts for item in part.parameter(BEGUN_AGAIN) or ()),
        deleted=sum(part.parameter("deleted") or 0 for part in parts),
        other_levels=tuple(starmap(OtherLevel, sorted(delays.items()))),
        notes=notes,
        commit_id=parts[-1].commit_id,
    )
