"""A part of an import as a commit: its row, its evidence, and the positions that it moves.

The broker's offsets and configuration are recorded by the import's last part, when all messages are there that its groups
have consumed: an offset that was observed never lies beyond the messages. Until then a group without an offset here cannot
start in the broker's queues (``window/plan.py``), so that its start does not depend on how far the import is. They are
recorded only when they differ from those of the last import; else ``configs_of`` names the commit that has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

from rmq_store.broker_files.batch_consume_queue import FOLDER as BATCH_FOLDER
from rmq_store.broker_files.batch_consume_queue import BatchConsumeQueueFiles
from rmq_store.broker_files.consume_queue_file import FOLDER, ConsumeQueueFiles
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.ctl import Action, Actor, Ctl, Moved, Produced, Proposal, canonical_json
from rmq_store.commit.positions import PositionKind, Positions, import_id, kind_of, max_id, min_id
from rmq_store.errors import BadData
from rmq_store.lake.broker.broker_configs import BrokerConfigs, queues_of_others, queues_of_users, same_configs
from rmq_store.lake.broker.import_job import ImportJob
from rmq_store.lake.broker.import_part import LogRead, fingerprint
from rmq_store.lake.broker.last_records import last_records, tail
from rmq_store.lake.broker.rocksdb_source import RocksDbSource
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.lake.table.imports import CONFIGS_OF, END_NOTE, LAST_RECORDS, TAIL
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import LMQ_PREFIX

GONE = "the broker removed it before it was imported"
MISSING_FILES = "the log's files are missing here"
NO_MESSAGE = "no message is here, but the queue goes on"
LEFT_OUT = "a salvage left out these messages, of which the consume queue has entries"

_QueueFiles = ConsumeQueueFiles | BatchConsumeQueueFiles


@dataclass(frozen=True, slots=True)
class PartOf:
    """Which part of which request it is."""

    request_id: str
    actor: Actor
    number: int
    """From 1."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its row records of the log that its broker name continues."""
    reason: str = ""
    records_before: list[Any] | None = None
    """The last records of the import before (``last_records_of``)."""
    tail_before: list[Any] | None = None
    """Its TAIL."""
    moved: tuple[Moved, ...] = ()
    """The offsets with which groups begin the queues of a broker name that continues another one's log."""


@dataclass(frozen=True, slots=True)
class QueueGap:
    """Offsets ``[begin, end)`` of a queue in which a salvage found no message, but one behind them, or entries of them."""

    topic: str
    queue_id: int
    begin: int
    end: int
    reason: str = NO_MESSAGE


@dataclass(frozen=True, slots=True)
class ImportCommit:
    """A part before its commit."""

    ctl: Ctl
    advance: Mapping[str, int]
    """Positions of queues that it moves."""
    has_new_configs: bool

    @property
    def is_needed(self) -> bool:
        """Whether it has anything that was not imported before."""
        begin, end = self.ctl.parameter("range")
        return end > begin or bool(self.advance) or self.has_new_configs or self.ctl.action is Action.SALVAGE


def import_commit(
    job: ImportJob,
    part: PartOf,
    read: LogRead,
    configs: BrokerConfigs,
    before: Ctl | None,
    positions: Positions,
    *,
    may_be_left_out: Callable[[MessageQueue], bool],
    salvages: Callable[[], Iterable[Ctl]],
) -> ImportCommit:
    """The part as a commit. ``before``: the import that recorded the configuration last, None: there is none.
    ``may_be_left_out``: whether earlier parts or imports may have left out messages of a queue that has had none here.
    ``salvages``: reads those of the log before this part, also the earlier parts of the request.

    Raises BadData when a queue's offsets overlap the imported ones, or leave a gap and this is not a salvage.
    """
    imported = positions.get(import_id(job.broker_name))
    skipped = skipped_bytes(read, imported)
    is_from_begin = imported is not None or not read.log.files[0].start_offset

    @cache
    def all_skipped() -> list[Skipped]:
        rows = (row for ctl in salvages() for row in ctl.parameter("skipped") or ())
        return sorted([*(Skipped(*row) for row in rows), *skipped], key=lambda skip: skip.end)

    def begin_of_new(queue: MessageQueue, first: int) -> int:
        if (skipped and is_from_begin) or may_be_left_out(queue):
            return 0
        # At the begin of a log that is not its first file the broker may have removed what a queue lacks.
        key = (queue.topic, queue.queue_id)
        files = job.batch_queues.get(key) or job.queues.get(key)
        return first if files is None else _begin_of_gap(files, first, read.log.files[0].start_offset, all_skipped())

    advance, gaps = _queue_positions(job, positions, read, begin_of_new)
    unlisted: dict[str, int] = {}
    if read.is_last:
        without, left_out = _without_messages(job, positions, read, configs, advance, all_skipped)
        advance |= without
        gaps += left_out
        others = queues_of_others(configs.topics, job.broker_name)
        unlisted = Counter(q.topic for q in others if max_id(q) not in advance and positions.get(max_id(q)) is None)
    ctl = Ctl(
        job.commit_id,
        Action.SALVAGE if skipped or gaps else Action.IMPORT,
        part.actor,
        reason=part.reason,
        request_id=part.request_id,
        request_part=part.number,
        request_complete=read.is_last,
        parameters=canonical_json(configs.parameters),
        produced=read.produced,
        moved=part.moved,
        observed=configs.observed,
    )
    has_new_configs = read.is_last and (before is None or not same_configs(before, ctl))
    mark, last = fingerprint(job.source, read.log, read.end), read.last
    records = part.records_before if last is None else last_records(job.source, read.log, last, mark[0])
    log_tail = part.tail_before if last is None else tail(job.source, read.log, last)
    facts = dict(part.facts) | {
        "broker_name": job.broker_name,
        "range": [read.begin, read.end],
        "messages": read.messages,
        "deleted": read.deleted,
        "unlisted": [sum(unlisted.values()), len(unlisted)],
        **({"other_levels": sorted(map(list, read.delays.items()))} if read.delays else {}),
        "fingerprint": mark,
        **({LAST_RECORDS: records} if records and records != [mark[0], read.end, mark[1]] else {}),
        **({TAIL: log_tail} if log_tail else {}),
        **({END_NOTE: read.note} if read.is_last and read.note else {}),
        "skipped": [[skip.begin, skip.end, skip.reason] for skip in skipped],
        "queue_gaps": [[gap.topic, gap.queue_id, gap.begin, gap.end, gap.reason] for gap in gaps],
        "missing_files": [[gap.first, gap.last, gap.count] for gap in read.log.missing],
    }
    if has_new_configs:
        ctl = replace(ctl, parameters=canonical_json(configs.parameters | facts))
    else:
        known_from = {CONFIGS_OF: before.commit_id if before else None}
        ctl = replace(ctl, parameters=canonical_json(known_from | facts), observed=())
    return ImportCommit(ctl, advance, has_new_configs)


def skipped_bytes(read: LogRead, imported: int | None) -> list[Skipped]:
    """The bytes of the log up to its end that a salvage leaves out, in order."""
    skipped = [skip for result in read.results for skip in result.skipped]
    if imported is not None and imported < read.begin:
        skipped.append(Skipped(imported, read.begin, GONE))
    between = ((before.end_offset, after.start_offset) for before, after in pairwise(read.log.files))
    skipped += [
        Skipped(*hole, MISSING_FILES) for hole in between if hole[0] < hole[1] and read.begin < hole[1] <= read.end
    ]
    return sorted(skipped, key=lambda skip: skip.begin)


def _queue_positions(
    job: ImportJob, positions: Positions, read: LogRead, begin_of_new: Callable[[MessageQueue, int], int]
) -> tuple[dict[str, int], list[QueueGap]]:
    """``max/`` of every queue that grew, ``min/`` of those that begin with a trimmed log, and the gaps in queues.
    ``begin_of_new``: where a queue begins whose first message here has this offset: salvages may have left out what it lacks
    from there on.

    Raises BadData when a queue's offsets overlap the imported ones, or leave a gap and this is not a salvage.
    """
    advance: dict[str, int] = {}
    gaps: list[QueueGap] = []
    ends = {queue: positions.get(max_id(queue)) for queue in {segment.queue for segment in read.produced}}
    for segment in sorted(read.produced, key=lambda s: (s.queue, s.base or 0)):
        base, known = segment.base or 0, ends[segment.queue] or 0
        if not known and base and (known := begin_of_new(segment.queue, base)):
            # The queue has had no message here: the broker removed what is before its begin before the first import.
            advance[min_id(segment.queue)] = known
        if base < known:
            raise BadData(_comes_again(job, read, segment, known))
        if base > known and job.salvage:
            gaps.append(QueueGap(segment.queue.topic, segment.queue.queue_id, known, base))
        elif base > known:
            raise BadData(
                f"{segment.queue}: no message at [{known}, {base}), the log continues at {base}. Nothing after byte "
                f"{read.begin} of the log was imported; import with --salvage to continue and record the gap."
            )
        ends[segment.queue] = base + segment.count
    advance |= {max_id(queue): offset for queue, offset in ends.items() if offset is not None}
    return advance, gaps


def new_generations(job: ImportJob, positions: Positions, read: LogRead) -> dict[QueueKey, int]:
    """The queues that begin again in this part, because their topic was deleted and made again at the broker, and their next
    offset in the lake: the base of the new generation.

    It is certain where the log before the part is known to be the imported one, and the broker's entry proves that the offset
    is that of the newest generation: then the messages of those before have no entry. A generation begins at the broker's
    offset 0; where this salvage leaves its message out, its entry shows it. An offset that comes again elsewhere begins none.
    In a queue without entries the last message with offset 0 begins the newest generation that the log has.
    """
    if positions.get(import_id(job.broker_name)) != read.begin:
        return {}
    firsts = {segment.queue for segment in read.produced if not broker_offset(job, segment)}
    begun = {queue for queue in firsts if _has_messages(job, positions, queue) and _is_newest(job, queue)}
    if skipped := skipped_bytes(read, read.begin):
        queues = (MessageQueue(topic, job.broker_name, queue_id) for topic, queue_id in job.queues)
        begun |= {
            queue for queue in queues if _has_messages(job, positions, queue) and _is_left_out(job, queue, skipped)
        }
    return {(queue.topic, queue.queue_id): positions.max_offset(queue) for queue in begun}


def _has_messages(job: ImportJob, positions: Positions, queue: MessageQueue) -> bool:
    """Whether offsets of the newest generation that is known here were imported before this part."""
    return positions.max_offset(queue) > job.base(queue)


def _is_newest(job: ImportJob, queue: MessageQueue) -> bool:
    """Whether a message with offset 0 begins the newest generation. Where it has an entry, that it is one of this message was
    compared before."""
    return 0 in job.written(queue) or job.without_entries(queue)


def _is_left_out(job: ImportJob, queue: MessageQueue, skipped: Sequence[Skipped]) -> bool:
    """Whether the entry at the broker's offset 0 points to what a salvage leaves out in this part. In a queue that goes on it
    points further back, or retention has removed it."""
    files = job.queues[queue.topic, queue.queue_id]
    if files.files[0].start_offset:
        return False
    place = files.entry(0).commit_log_offset
    return any(skip.begin <= place < skip.end for skip in skipped)


def broker_offset(job: ImportJob, segment: Produced) -> int:
    """The broker's offset of the segment's first message."""
    return (segment.base or 0) - job.base(segment.queue)


def _comes_again(job: ImportJob, read: LogRead, segment: Produced, known: int) -> str:
    queue, base = segment.queue, segment.base or 0
    offset, again = broker_offset(job, segment), "the topic was deleted and made again at the broker"
    if isinstance(job.source, RocksDbSource):
        why = (
            f"this is another broker's store, or {again}, or it is a BatchCQ topic, whose offsets a broker with RocksDB gives "
            "out twice after a restart. The entries of its consume queue, which may tell, are in RocksDB, and are not read."
        )
    elif (queue.topic, queue.queue_id) in job.batch_queues:
        why = f"{again}. The entries of a BatchCQ topic, which may tell, are not read. {_without(BATCH_FOLDER, queue)}"
    elif job.without_entries(queue):
        why = (
            "this is another broker's store, or the broker has given offsets out twice, or "
            f"{again} and the first message after that is lost, or a record of this queue says a wrong queue or offset, which "
            "no checksum covers: import a copy of the store with its consume queues, which tell."
        )
    else:
        why = (
            "this is another broker's store, or the broker has given offsets out twice, or "
            f"{again} and entries of its consume queue are lost; --salvage cannot repair that. {_without(FOLDER, queue)}"
        )
    return (
        f"{queue}: offset {offset} comes again, but the queue was imported up to {known - base + offset}. Nothing after byte "
        f"{read.begin} of the log was imported: {why} Import the store under another broker name (--broker), from a copy "
        "without the files of its log that have the earlier messages of the queue"
    )


def _without(folder: str, queue: MessageQueue) -> str:
    return (
        f"Import a copy of the store without {folder}/{queue.topic}/{queue.queue_id}: the order of the log then tells which "
        "messages are of the deleted topic. If that is refused too:"
    )


def _without_messages(
    job: ImportJob,
    positions: Positions,
    read: LogRead,
    configs: BrokerConfigs,
    grown: Mapping[str, int],
    all_skipped: Callable[[], Sequence[Skipped]],
) -> tuple[dict[str, int], list[QueueGap]]:
    """The positions of queues that are not known here and have no message in the log: those that retention has emptied, of
    which the end is still known (``ConsumeQueue``, rules 2.2), those whose messages salvages leave out (``all_skipped``), with
    the gaps in them, and those of topics that users made.

    Raises BadData when there is a gap and this is not a salvage."""
    advance: dict[str, int] = {}
    gaps: list[QueueGap] = []
    log_begin = read.log.files[0].start_offset
    of_queues: dict[QueueKey, _QueueFiles] = {**job.queues, **job.batch_queues}
    for (topic, queue_id), files in sorted(of_queues.items()):
        queue = MessageQueue(topic, job.broker_name, queue_id)
        if max_id(queue) not in grown and positions.get(max_id(queue)) is None:
            end = files.max_offset(read.end)
            begin = _begin_of_gap(files, end, log_begin, all_skipped())
            advance |= {min_id(queue): begin, max_id(queue): end}
            gaps += [QueueGap(topic, queue_id, begin, end, LEFT_OUT)] if begin < end else []
    for queue in queues_of_users(configs.topics, job.broker_name):
        if max_id(queue) not in grown and positions.get(max_id(queue)) is None:
            advance.setdefault(max_id(queue), 0)
    if gaps and not job.salvage:
        gap = gaps[0]
        raise BadData(
            f"{MessageQueue(gap.topic, job.broker_name, gap.queue_id)}: no message at [{gap.begin}, {gap.end}), of which its "
            "consume queue has entries: an earlier part or import left them out. Nothing after byte "
            f"{read.begin} of the log was imported; import with --salvage to continue and record the gap."
        )
    return advance, gaps


def _begin_of_gap(files: _QueueFiles, end: int, log_begin: int, skipped: Sequence[Skipped]) -> int:
    """From which offset on, up to ``end``, a queue's messages are those that salvages leave out (``skipped``, by end), as its
    entries show; ``end``: from none. What the log has lost before its begin counts as removed by the broker.

    A message with INNER_MULTI_DISPATCH has entries in several queues and is here in that of its topic, so an entry whose
    message is there makes no gap. A queue of LMQ has no other ones, and is left out."""
    begin = end
    if files.topic.startswith(LMQ_PREFIX):
        return end
    for skip in reversed(skipped):
        if skip.end <= log_begin:
            break
        offsets = files.offsets_in(max(skip.begin, log_begin), skip.end)
        if offsets.stop < begin:
            break
        begin = min(begin, offsets.start)
    return begin


def proposal_of(part: ImportCommit, read: LogRead, broker_name: str, positions: Positions) -> Proposal:
    """It expects that none of its positions has moved since ``positions`` were read."""
    advance = {**part.advance, import_id(broker_name): read.end}
    emptied = [app_id for app_id, offset in advance.items() if kind_of(app_id) == PositionKind.MAX and not offset]
    newest_ms = {max_id(segment.queue): segment.max_store_timestamp or 0 for segment in part.ctl.produced}
    return Proposal(
        part.ctl,
        expect={app_id: positions.get(app_id) for app_id in advance},
        advance=advance,
        files=tuple(file for result in read.results for file in result.files),
        updated_ms=dict.fromkeys(emptied, 0) | newest_ms,
    )
