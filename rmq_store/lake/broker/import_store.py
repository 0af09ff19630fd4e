"""Import: a broker's files become commits of the lake (RocketMQ's files: rules 1.7, 2.2 and 3).

Incremental by physical offset: only bytes after the position ``import/<broker>`` are read, once the bytes before it are
known to be the same as before. All or nothing: a damaged record, a gap or a contradiction stops the import before anything
is committed, unless ``salvage`` says to skip and record it. The broker's offsets and configs are kept as observations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rmq_store.broker_files.batch_consume_queue import refuse_batch_topics
from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles, list_consume_queues
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.broker_files.rocks_db import refuse_rocksdb
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Action, Actor, Ctl, Produced, Proposal, canonical_json
from rmq_store.commit.positions import PositionKind, Positions, cutover_id, import_id, kind_of, max_id, min_id
from rmq_store.commit.request import Status, refuse_other_request
from rmq_store.errors import BadData, DamagedRecord, UnsupportedRecord, WrongUse
from rmq_store.lake.broker.broker_configs import BrokerConfigs, queues_of_users, read_configs, same_configs
from rmq_store.lake.broker.import_slice import ImportJob, ImportResult
from rmq_store.lake.broker.import_tasks import run_tasks, tasks_of
from rmq_store.lake.broker.salvage import HOLE, Skipped
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.imports import last_import
from rmq_store.lake.table.object_store import Root, file_source
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import Engine
from rmq_store.log.commit_log import Damage
from rmq_store.message.message import MessageQueue
from rmq_store.message.sys_flag import MAX_BODY_BYTES, MOST_BODY_BYTES
from rmq_store.utils.host import Host

_FINGERPRINT_BYTES = 4096

GONE = "the broker removed it before it was imported"
MISSING_FILES = "the log's files are missing here"
NO_MESSAGE = "no message is here, but the queue goes on"


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


@dataclass(frozen=True, slots=True)
class QueueGap:
    """Offsets ``[begin, end)`` of a queue in which a salvage found no message, between others that it found."""

    topic: str
    queue_id: int
    begin: int
    end: int
    reason: str = NO_MESSAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did."""

    status: Status
    """COMMITTED, ALREADY_COMMITTED or UNCHANGED."""
    shard: str
    broker_name: str
    request_id: str
    begin: int
    """First physical offset of the broker's log that was read."""
    end: int
    """Physical offset up to which the log was read (exclusive)."""
    messages: int = 0
    queues: int = 0
    """How many queues have new messages."""
    salvaged: tuple[Skipped, ...] = ()
    """Bytes of the log that a salvage left out."""
    queue_gaps: tuple[QueueGap, ...] = ()
    """Queue offsets that have no message because of that."""
    notes: tuple[str, ...] = ()
    """What the operator should know, such as a ``.bak`` that was used."""
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()
    """What failed after the commit."""


@dataclass(frozen=True, slots=True)
class _LogRead:
    """The part ``[begin, end)`` of the broker's log that was read, and what each task found in it."""

    log: MappedFileQueue
    results: Sequence[ImportResult]
    begin: int
    end: int

    @property
    def produced(self) -> tuple[Produced, ...]:
        return tuple(segment for result in self.results for segment in result.produced)


def import_store(
    store: LakeStore,
    source: Root,
    request: ImportRequest,
    host: Host,
    engine: Engine,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Import what is new in a broker's store directory.

    ``progress(read_bytes, all_bytes)`` is called as files have been read. Raises BadData (not a broker's store, one in
    RocksDB, files that do not fit together, a gap), DamagedRecord, UnsupportedRecord (also with ``salvage``), WrongUse (no
    such folder, the broker was cut over), HeldByAnother, and the errors of ``commit``.
    """
    broker_name, salvage = request.broker_name, request.salvage
    if not 1 <= request.max_body_bytes <= MOST_BODY_BYTES:
        raise WrongUse(
            f"max_body_bytes must be a whole number from 1 to {MOST_BODY_BYTES}; it is {request.max_body_bytes}"
        )
    started_ms = host.now_ms()
    files = file_source(source)
    log = list_commit_log(files, allow_missing=salvage)
    refuse_rocksdb(files)
    configs = read_configs(files, broker_name)
    shard = store.create_shard(request.shard_name)
    shard.commitlog.refresh()
    if earlier := _commit_of(shard, request):
        return _report(Status.ALREADY_COMMITTED, shard, request, earlier, configs)
    refuse_batch_topics(files, configs.topics)
    refuse_other_history(shard, shard.consumequeue)
    reached("1.planned")
    with claimed(shard, Wish.of_whole(request.request_id, request.actor, "~import", broker_name), host) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        if earlier := _commit_of(shard, request):  # by another attempt, before this one had the claim
            claim.release()
            return _report(Status.ALREADY_COMMITTED, shard, request, earlier, configs)
        positions = shard.positions()
        if positions.get(cutover_id(broker_name)):
            raise WrongUse(
                f"broker {broker_name} was cut over to shard {request.shard_name}: its files cannot be imported any more"
            )
        before = last_import(shard, broker_name)
        begin = _begin(files, log, positions.get(import_id(broker_name)), before, salvage)
        job = ImportJob(
            source=files,
            root=shard.root,
            table=shard.commitlog.path,
            commit_id=host.new_commit_id(),
            broker_name=broker_name,
            levels=store.levels,
            queues={(queue.topic, queue.queue_id): queue for queue in list_consume_queues(files)},
            file_bytes=log.files[0].size_bytes,
            salvage=salvage,
            max_body_bytes=request.max_body_bytes,
        )
        tasks = tasks_of(job, [file for file in log.files if file.end_offset > begin], begin)
        all_bytes = sum(task.end - task.begin for task in tasks)
        report_progress = progress or (lambda _read, _all: None)
        results = run_tasks(job, tasks, engine, lambda read: report_progress(read, all_bytes))
        results = _over_holes(log, results) if salvage else results
        end = _checked_end(log, results, begin)
        if any(result.has_bytes_after and result.end == end for result in results):
            configs = replace(configs, notes=(*configs.notes, _hole_note(log, end)))
        ctl, advance = _ctl(job, request, _LogRead(log, results, begin, end), configs, positions)
        is_new = end > begin or ctl.action is Action.SALVAGE or advance
        if not is_new and before is not None and same_configs(before, ctl):
            claim.release()
            return ImportReport(
                status=Status.UNCHANGED,
                shard=shard.name,
                broker_name=broker_name,
                request_id=request.request_id,
                begin=begin,
                end=end,
                notes=configs.notes,
            )
        reached("3.staged")
        claim.stop_renewing()
        proposal = _proposal(ctl, advance | {import_id(broker_name): end}, results, positions)
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    return replace(_report(Status.COMMITTED, shard, request, committed.ctl, configs), warnings=warnings)


def _proposal(ctl: Ctl, advance: Mapping[str, int], results: Iterable[ImportResult], positions: Positions) -> Proposal:
    """The import as a commit. It expects that no position in ``advance`` has moved since ``positions`` were read."""
    emptied = [app_id for app_id, offset in advance.items() if kind_of(app_id) == PositionKind.MAX and not offset]
    newest_ms = {max_id(segment.queue): segment.max_store_timestamp or 0 for segment in ctl.produced}
    return Proposal(
        ctl,
        expect={app_id: positions.get(app_id) for app_id in advance},
        advance=advance,
        files=tuple(file for result in results for file in result.files),
        updated_ms=dict.fromkeys(emptied, 0) | newest_ms,
    )


def _commit_of(shard: Shard, request: ImportRequest) -> Ctl | None:
    """The commit of an earlier attempt. Raises WrongUse when the request id has imported another broker."""
    ctl = next(iter(shard.ctls_of_request(request.request_id, None, Action.IMPORT, Action.SALVAGE)), None)
    if ctl is not None:
        recorded = {"broker_name": ctl.parameter("broker_name")}
        refuse_other_request(request.request_id, recorded, {"broker_name": request.broker_name})
    return ctl


def _report(status: Status, shard: Shard, request: ImportRequest, ctl: Ctl, configs: BrokerConfigs) -> ImportReport:
    begin, end = ctl.parameter("range")
    return ImportReport(
        status=status,
        shard=shard.name,
        broker_name=request.broker_name,
        request_id=request.request_id,
        begin=begin,
        end=end,
        messages=ctl.parameter("messages"),
        queues=len({segment.queue for segment in ctl.produced}),
        salvaged=tuple(Skipped(*item) for item in ctl.parameter("skipped") or ()),
        queue_gaps=tuple(QueueGap(*item) for item in ctl.parameter("queue_gaps") or ()),
        notes=configs.notes,
        commit_id=ctl.commit_id,
    )


# --- where to begin ---------------------------------------------------------------------------------------------------


def _begin(source: FileSource, log: MappedFileQueue, imported: int | None, before: Ctl | None, salvage: bool) -> int:
    """The physical offset to read from. Raises BadData when the log is not the one that was imported, or has a gap."""
    first, end = log.files[0].start_offset, log.files[-1].end_offset
    if imported is None or before is None:
        return first
    if imported > end:
        raise BadData(
            f"the log of {source} ends at {end}, but this broker's log was imported up to {imported}: this is an older copy, "
            "or the store of another broker. Nothing was changed."
        )
    if imported < first:
        if not salvage:
            raise BadData(
                f"the broker removed [{imported}, {first}) of its log before it was imported. Nothing was changed; "
                "import with --salvage to continue and record the loss."
            )
        return first
    at, digest = before.parameter("fingerprint")
    if at >= first and _fingerprint(source, log, imported) != [at, digest]:
        raise BadData(
            f"the log of {source} differs from the imported one in the bytes before {imported}: this is the store of "
            "another broker, or its log was cut and written again. Nothing was changed."
        )
    return imported


def _fingerprint(source: FileSource, log: MappedFileQueue, end: int) -> list[Any]:
    """Where the last bytes before ``end`` begin, and their hash."""
    file = next((f for f in log.files if f.start_offset < end <= f.end_offset), None)
    if file is None:
        return [end, ""]
    begin = max(file.start_offset, end - _FINGERPRINT_BYTES)
    data = source.read(file.name, begin - file.start_offset, end - file.start_offset)
    return [begin, hashlib.sha256(data).hexdigest()]


# --- reading it -------------------------------------------------------------------------------------------------------


def _over_holes(log: MappedFileQueue, results: list[ImportResult]) -> list[ImportResult]:
    """The results of a salvage, which continues with the next file where one ends early and a later one has records."""
    continued = []
    for number, result in enumerate(results):
        file = log.file_at(result.begin)
        if not result.full and not result.stopped_by and any(later.messages for later in results[number + 1 :]):
            hole = Skipped(result.end, file.end_offset, HOLE)
            result = replace(result, end=file.end_offset, full=True, skipped=(*result.skipped, hole))
        continued.append(result)
    return continued


def _checked_end(log: MappedFileQueue, results: Sequence[ImportResult], begin: int) -> int:
    """Where the log ends. Raises DamagedRecord or UnsupportedRecord for the first such record, DamagedRecord also when a
    file ends early and a later one has records."""
    end = begin
    for result, following in zip(results, [*results[1:], None], strict=True):
        file = log.file_at(result.begin)
        if result.stopped_by:
            offset = result.stopped_by.commit_log_offset
            kind = DamagedRecord if isinstance(result.stopped_by, Damage) else UnsupportedRecord
            raise kind(file.name, offset - file.start_offset, offset, result.stopped_by.reason)
        end = result.end
        if not result.full:
            if following is not None and following.messages:
                raise DamagedRecord(
                    file.name, end - file.start_offset, end, "nothing is written here, but a later file has records"
                )
            return end
    return end


def _hole_note(log: MappedFileQueue, end: int) -> str:
    """A note, not damage: a running broker may just be writing the record."""
    file = log.file_at(end)
    return (
        f"the log ends at byte {end - file.start_offset} of {file.name} (commit log offset {end}), where nothing is written, "
        "but other bytes follow. If the next import reports this again, the copy has a hole: restore the file, or import with "
        "--salvage to continue after it"
    )


# --- the commit -------------------------------------------------------------------------------------------------------


def _ctl(
    job: ImportJob, request: ImportRequest, read: _LogRead, configs: BrokerConfigs, positions: Positions
) -> tuple[Ctl, dict[str, int]]:
    """The commit's row, and the queue positions that it moves."""
    skipped = _skipped(read, positions.get(import_id(job.broker_name)))
    advance, gaps = _queue_positions(job, positions, read)
    empty = (queue for queue in queues_of_users(configs.topics, job.broker_name) if max_id(queue) not in advance)
    advance |= {max_id(queue): 0 for queue in empty if positions.get(max_id(queue)) is None}
    ctl = Ctl(
        job.commit_id,
        Action.SALVAGE if skipped or gaps else Action.IMPORT,
        request.actor,
        request_id=request.request_id,
        parameters=canonical_json(
            configs.parameters
            | {
                "broker_name": job.broker_name,
                "range": [read.begin, read.end],
                "messages": sum(result.messages for result in read.results),
                "fingerprint": _fingerprint(job.source, read.log, read.end),
                "skipped": [[skip.begin, skip.end, skip.reason] for skip in skipped],
                "queue_gaps": [[gap.topic, gap.queue_id, gap.begin, gap.end, gap.reason] for gap in gaps],
                "missing_files": [[gap.first, gap.last, gap.count] for gap in read.log.missing],
            }
        ),
        produced=read.produced,
        observed=configs.observed,
    )
    return ctl, advance


def _skipped(read: _LogRead, imported: int | None) -> list[Skipped]:
    """The bytes of the log up to its end that a salvage leaves out, in order."""
    skipped = [skip for result in read.results for skip in result.skipped]
    if imported is not None and imported < read.begin:
        skipped.append(Skipped(imported, read.begin, GONE))
    between = ((before.end_offset, after.start_offset) for before, after in pairwise(read.log.files))
    skipped += [
        Skipped(*hole, MISSING_FILES) for hole in between if hole[0] < hole[1] and read.begin < hole[1] <= read.end
    ]
    return sorted(skipped, key=lambda skip: skip.begin)


def _queue_positions(job: ImportJob, positions: Positions, read: _LogRead) -> tuple[dict[str, int], list[QueueGap]]:
    """``max/`` of every queue that grew, ``min/`` of those that begin with a trimmed log, and the gaps in queues.

    Raises BadData when a queue's offsets overlap the imported ones, or leave a gap and this is not a salvage.
    """
    advance: dict[str, int] = {}
    gaps: list[QueueGap] = []
    ends = {queue: positions.get(max_id(queue)) for queue in {segment.queue for segment in read.produced}}
    for segment in sorted(read.produced, key=lambda s: (s.queue, s.base or 0)):
        base, known = segment.base or 0, ends[segment.queue]
        if not known:  # the queue is new: the broker removed what it lacks before the first import
            if base:
                advance[min_id(segment.queue)] = base
        elif base < known:
            raise BadData(
                f"{segment.queue}: offset {base} comes again, but the queue was imported up to {known}. Nothing was changed: "
                "the topic was deleted and made again at the broker, or this is another broker's store; --salvage cannot "
                "repair that. Import the store into a new shard (--shard), together with its consumequeue folder, which tells "
                "the messages of the deleted topic from those of the new one."
            )
        elif base > known and job.salvage:
            gaps.append(QueueGap(segment.queue.topic, segment.queue.queue_id, known, base))
        elif base > known:
            raise BadData(
                f"{segment.queue}: no message at [{known}, {base}), the log continues at {base}. Nothing was changed; import "
                "with --salvage to continue and record the gap."
            )
        ends[segment.queue] = base + segment.count
    advance |= {max_id(queue): offset for queue, offset in ends.items() if offset is not None}
    for (topic, queue_id), files in sorted(job.queues.items()):
        queue = MessageQueue(topic, job.broker_name, queue_id)
        if queue not in ends and positions.get(max_id(queue)) is None:
            advance |= _emptied(queue, files, read.log.files[0].start_offset, read.end)
    return advance, gaps


def _emptied(queue: MessageQueue, files: ConsumeQueueFiles, log_begin: int, log_end: int) -> dict[str, int]:
    """A queue whose messages have all been removed by retention: nothing is readable, its end is still known: ``ConsumeQueue``
    (rules 2.2)."""
    bounds = files.bounds(log_begin, log_end)
    return {min_id(queue): bounds.max_offset, max_id(queue): bounds.max_offset}
