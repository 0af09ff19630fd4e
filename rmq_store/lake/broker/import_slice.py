"""The import stage: one commit log file of a broker, in chunks, as sorted Parquet files of the lake's commit log.

Each chunk becomes a file per day: rows sorted by topic, queue and queue offset, so that every queue is one run of rows.
The consume queue is made from the log; where the broker's own 20-byte entries exist they must agree with it. Messages of
a topic that was deleted and made again are kept without an entry, as on the broker, where its queues began at 0 again.
Queues without entries get the place at which the newest generation begins when the whole part was read (``begins``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.broker_files.batch_consume_queue import BatchConsumeQueueFiles
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.ctl import FEW_TAGS_CODES, Produced, StagedFile
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import BadData, DamagedRecord
from rmq_store.lake.broker.import_entries import (
    Entries,
    EntryReader,
    LogOrder,
    Run,
    compare,
    misplaced,
    newest_entries,
    of_a_deleted_topic,
    out_of_order,
    take_delivery_times,
)
from rmq_store.lake.broker.inner_batches import with_inner_messages
from rmq_store.lake.broker.last_records import Written, over_marker
from rmq_store.lake.broker.records import record_batches
from rmq_store.lake.broker.rocksdb_source import RocksDbSource
from rmq_store.lake.broker.salvage import (
    CHUNK_BYTES,
    HOLE,
    Skipped,
    is_last_written,
    is_unwritten,
    is_whole_now,
    place_after_damage,
    record_after_hole,
)
from rmq_store.lake.read.slice_reader import lake_message_ids
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.log.commit_log import (
    BEHIND_BYTES,
    Blank,
    Damage,
    FileEnd,
    MoreBytes,
    NothingWritten,
    Stop,
    Unsupported,
    only_zeros,
)
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.message.sys_flag import MAX_BODY_BYTES
from rmq_store.utils.host import day_of

PART_BYTES = 256 << 20
"""Of a table in memory; a chunk becomes larger than CHUNK_BYTES only by decompression."""

PARTS_PER_FILE = 4096
"""At most so many staged files for one commit log file."""

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportJob:
    """What all tasks of an import have in common."""

    source: FileSource
    root: Root
    table: str
    """Path of the commit log's table below ``root``."""
    commit_id: str
    broker_name: str
    levels: DelayLevels
    queues: Mapping[QueueKey, ConsumeQueueFiles]
    """The broker's consume queue files."""
    batch_queues: Mapping[QueueKey, BatchConsumeQueueFiles]
    """Those of BatchCQ topics. Their entries are made from the log; those of the files tell where queues end, and what a
    salvage leaves out."""
    file_bytes: int
    """Size of each file of the broker's log."""
    salvage: bool
    max_body_bytes: int = MAX_BODY_BYTES
    """How large a body may become when it is decompressed."""
    bases: Mapping[QueueKey, int] = field(default_factory=dict)
    """What is added to the broker's queue offsets: the base of the queue's newest generation."""
    begins: Mapping[QueueKey, int] = field(default_factory=dict)
    """Of queues ``without_entries`` the commit log offset at which the newest generation begins: the messages before it in the
    part have no queue offset."""
    misplaced: Mapping[int, str] = field(default_factory=dict)
    """Why the records at these commit log offsets are left out: they say a wrong place (``misplaced_records``)."""

    def base(self, queue: MessageQueue) -> int:
        """What is added to the broker's offsets of the queue."""
        return self.bases.get((queue.topic, queue.queue_id), 0)

    def without_entries(self, queue: MessageQueue) -> bool:
        """Whether the broker has no entry of the queue, so that only the order of the log tells its generations. Never so for
        a BatchCQ topic, which has other entries, and with RocksDB, where offsets may come again without a delete."""
        key = (queue.topic, queue.queue_id)
        if key in self.batch_queues or isinstance(self.source, RocksDbSource):
            return False
        return not self.written(queue)

    def written(self, queue: MessageQueue) -> range:
        """The queue offsets that have entries of messages that the log has."""
        files = self.queues.get((queue.topic, queue.queue_id))
        return newest_entries(self.source, files, self.file_bytes).written if files else range(0)


@dataclass(frozen=True, slots=True)
class ImportTask:
    """Bytes ``[begin, end)`` of the broker's log, all in one file. The file's first task begins at a record."""

    number: int
    file: MappedFile
    begin: int
    end: int

    is_cut: bool = False
    """Whether it begins where a consume queue says that a record does."""


class WithoutEntry(NamedTuple):
    """A message of which the broker has no entry."""

    commit_log_offset: int
    store_size: int
    queue_offset: int
    """The broker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of a task."""

    number: int
    """The task's."""
    begin: int
    end: int
    """Physical offset up to which the file was read (exclusive)."""
    full: bool
    """Whether the log continues there: in the next file, or with the task's next neighbour in the same file."""
    messages: int
    files: tuple[StagedFile, ...]
    produced: tuple[Produced, ...]
    deleted: int = 0
    """How many of the messages are of topics that were deleted and made again: they have no queue offset."""
    delays: Mapping[int, int] = field(default_factory=dict)
    """By delay level the delay (ms) that the broker's entries show, where the store's levels have another one."""
    stopped_by: Damage | Unsupported | None = None
    """What stopped the task; None: nothing."""
    skipped: tuple[Skipped, ...] = ()
    torn: Damage | None = None
    """The record at ``end``, if the log ends at a torn one."""
    has_bytes_after: bool = False
    """Whether bytes other than 0 follow ``end``, where no record begins, in the next CHUNK_BYTES: the rest of a file, which may
    be a gigabyte, is not read for that."""
    orders: Mapping[QueueKey, LogOrder] = field(default_factory=dict)
    """What the task shows of the queues without entries, as far as they have messages in it."""
    without_entry: int = 0
    """How many of the messages have no entry that shows their place, but those of BatchCQ topics."""
    last_without: Mapping[QueueKey, WithoutEntry] = field(default_factory=dict)
    """The last one of them in each queue."""
    last: Written | None = None
    """The last record; None: the task has read none."""
    failed: bool = False
    """Whether an error ended a task that may not have begun at a record; a task for the whole file finds out which."""


def import_file(job: ImportJob, task: ImportTask, attempt: str) -> ImportResult:
    """Read, check and stage one file, or a chunk of it. Raises BadData when the broker's consume queue contradicts its log."""
    try:
        return _imported(job, task, attempt)
    except BadData:
        if not task.is_cut:
            raise
        begin = task.begin
        return ImportResult(
            number=task.number, begin=begin, end=begin, full=False, messages=0, files=(), produced=(), failed=True
        )


def _imported(job: ImportJob, task: ImportTask, attempt: str) -> ImportResult:
    at, chunk_bytes, read_end = task.begin, CHUNK_BYTES, task.end
    files: list[StagedFile] = []
    produced: list[Produced] = []
    skipped: list[Skipped] = []
    messages = deleted = 0
    torn: Damage | None = None
    last: Written | None = None
    reader = EntryReader(job.source, job.queues, job.file_bytes)
    chunks = _Chunks(reader, task.file)
    while True:
        end = min(at + chunk_bytes, read_end)
        data = job.source.read(task.file.name, at - task.file.start_offset, end - task.file.start_offset)
        if len(data) < end - at:
            raise BadData(f"{task.file.name} became shorter while it was read: import again once its copy is complete")
        chunks.left = -(-(task.end - at) // max(len(data), 1))
        stop: Stop = NothingWritten(at)
        for item in _parsed(job, data, at, task.file.end_offset):
            if not isinstance(item, pa.Table):
                stop = item
                break
            last = _last_of(item)
            item = _without_misplaced(job, chunks, item)
            messages += item.num_rows
            part = task.number * PARTS_PER_FILE + len(files)
            before = len(chunks.misplaced)
            for file, segments in _staged(job, chunks, item, part, attempt):
                if len(files) == PARTS_PER_FILE:
                    raise BadData(_too_many_files(task))
                files.append(file)
                produced += segments
                deleted -= sum(segment.count for segment in segments)
            left_out = len(chunks.misplaced) - before
            messages -= left_out
            deleted += (pc.sum(item.column("indexed")).as_py() or 0) - left_out
        match stop:
            case MoreBytes(offset, needed) if end < task.end:
                at, chunk_bytes = offset, max(CHUNK_BYTES, needed)
                continue
            # The task's last record may need the first bytes of the next task, which tell whether it is whole.
            case MoreBytes(offset, needed) if offset < task.end < offset + needed <= task.end + BEHIND_BYTES:
                at, chunk_bytes, read_end = offset, needed, offset + needed
                continue
            case Damage() if stop.torn and is_last_written(job.source, task.file, stop, end):
                torn = stop
            # A running broker writes in order: what was followed by something is whole by now, or it is damage.
            case Damage(offset) if is_whole_now(job.source, task.file, stop):
                at, chunk_bytes = offset, CHUNK_BYTES
                continue
            case Damage() if job.salvage:
                place = place_after_damage(job.source, task.file, stop)
                if place is None:
                    torn = stop
                else:
                    skipped.append(Skipped(stop.commit_log_offset, place, stop.reason))
                    if place < task.file.end_offset:
                        at, chunk_bytes = place, CHUNK_BYTES
                        continue
                    stop = FileEnd(task.file.end_offset)
            case NothingWritten(hole) if (
                job.salvage and (record_at := record_after_hole(job.source, task.file, hole)) is not None
            ):
                skipped += [Skipped(hole, record_at, HOLE)] if record_at > hole else []
                at, chunk_bytes = record_at, CHUNK_BYTES
                continue
            case _:
                pass
        if isinstance(stop, Blank):
            last = over_marker(last, stop.commit_log_offset, task.begin, task.file.start_offset)
        is_file_end = isinstance(stop, Blank | FileEnd)
        stopped_by = stop if isinstance(stop, Damage | Unsupported) and not torn else None
        has_bytes_after = isinstance(stop, NothingWritten) and not (
            only_zeros(data, stop.commit_log_offset - at)
            and is_unwritten(job.source, task.file, end, stop.commit_log_offset + CHUNK_BYTES)
        )
        reached = task.file.end_offset if is_file_end else stop.commit_log_offset
        return ImportResult(
            number=task.number,
            begin=task.begin,
            end=reached,
            full=is_file_end or reached == task.end,
            messages=messages,
            deleted=deleted,
            delays=chunks.delays,
            orders=chunks.orders,
            without_entry=chunks.without_entry,
            last_without=chunks.last_without,
            files=tuple(files),
            produced=tuple(produced),
            stopped_by=stopped_by,
            skipped=(*skipped, *chunks.misplaced),
            torn=torn,
            has_bytes_after=has_bytes_after,
            last=last,
        )


def _last_of(rows: pa.Table) -> Written:
    """The last record. The rows are in log order, but for those of inner batches, which come last."""
    places = rows.column("commit_log_offset")
    begin = pc.max(places).as_py()
    return Written(begin, begin + rows.column("store_size")[pc.index(places, begin).as_py()].as_py())


def _too_many_files(task: ImportTask) -> str:
    return (
        f"{task.file.name} would become more than {PARTS_PER_FILE} files: its store times fall on too many days, or it is "
        "damaged in too many places. Nothing was changed; restore the file, or import a copy of the store without it with "
        "--salvage"
    )


def _parsed(job: ImportJob, data: bytes, start: int, file_end: int) -> Iterator[pa.Table | Stop]:
    """The records of some bytes, in tables of about PART_BYTES, and as the last item why they end."""
    delays_ms = dict(enumerate(job.levels.delays_ms, 1))
    batches: list[pa.RecordBatch] = []
    part_bytes = 0
    for item in record_batches(data, start, file_end, delay_levels=delays_ms, max_body_bytes=job.max_body_bytes):
        if isinstance(item, pa.RecordBatch):
            item = with_inner_messages(item, delays_ms)
            if isinstance(item, Unsupported):  # the records before it are not imported either
                yield item
                return
            batches.append(item)
            part_bytes += item.nbytes
        if batches and (part_bytes >= PART_BYTES or not isinstance(item, pa.RecordBatch)):
            table = pa.Table.from_batches(batches)
            batches, part_bytes = [], 0
            yield table
    yield item


# --- one chunk --------------------------------------------------------------------------------------------------------


Mask = npt.NDArray[np.bool_]

_Run = tuple[int, int, Run]
"""Rows ``[begin, end)`` of a queue, whose queue offsets follow one another."""
_RowsOf = tuple[MessageQueue, int, int]
"""A queue and its rows ``[begin, end)``, whose queue offsets follow one another."""


@dataclass(slots=True)
class _Chunks:
    """What the chunks of a task have in common, and what they show."""

    reader: EntryReader
    """Reads the entries of the task's queues."""
    file: MappedFile
    left: int = 1
    """How many chunks are still to read, this one included."""
    delays: dict[int, int] = field(default_factory=dict)
    """As in the task's result, and so are the next ones."""
    orders: dict[QueueKey, LogOrder] = field(default_factory=dict)
    without_entry: int = 0
    last_without: dict[QueueKey, WithoutEntry] = field(default_factory=dict)
    misplaced: list[Skipped] = field(default_factory=list)
    """The records that a salvage leaves out for their place."""

    def leave_out(self, job: ImportJob, damaged: Sequence[Skipped]) -> None:
        """Raises DamagedRecord for the first one when this is not a salvage."""
        if not job.salvage:
            first = min(damaged, key=lambda skip: skip.begin)
            raise DamagedRecord(self.file.name, first.begin - self.file.start_offset, first.begin, first.reason)
        self.misplaced += damaged

    def count_without_entry(self, run: Run, entries: Entries) -> None:
        at = np.flatnonzero(entries["size"] == 0)
        if not len(at):
            return
        self.without_entry += len(at)
        last = int(at[run.physical[at].argmax()])
        record = WithoutEntry(int(run.physical[last]), int(run.sizes[last]), run.begin + last)
        key = (run.queue.topic, run.queue.queue_id)
        self.last_without[key] = max(record, self.last_without.get(key, record))


def _without_misplaced(job: ImportJob, chunks: _Chunks, rows: pa.Table) -> pa.Table:
    """The rows without those of the job's ``misplaced`` records."""
    if not job.misplaced:
        return rows
    physical = rows.column("commit_log_offset").to_numpy()
    is_misplaced = np.isin(physical, np.fromiter(job.misplaced, np.int64))
    sizes = dict(
        zip(physical[is_misplaced].tolist(), rows.column("store_size").to_numpy()[is_misplaced].tolist(), strict=True)
    )
    chunks.misplaced += [Skipped(at, at + size, job.misplaced[at]) for at, size in sizes.items()]
    return rows.filter(pa.array(~is_misplaced))


def _staged(
    job: ImportJob, chunks: _Chunks, rows: pa.Table, part: int, attempt: str
) -> Iterator[tuple[StagedFile, list[Produced]]]:
    """The files of a chunk, one per day, and their segments."""
    days = rows.column("store_timestamp").to_numpy() // _DAY_MS
    for number, day in enumerate(np.unique(days).tolist()):
        of_day = (
            rows if days[0] == day and days[-1] == day and (days == day).all() else rows.filter(pa.array(days == day))
        )
        table, runs = _sorted(job, chunks, of_day, part + number)
        name = f"{job.commit_id}-{part + number:08d}-{attempt}"
        new_file = NewFile(
            kind="msg",
            name=name,
            rows=table,
            store_day=day_of(day * _DAY_MS),
            runs=[begin for _, begin, _ in runs],
        )
        file = stage(job.root, job.table, new_file)
        yield file, [_segment(table, run, part + number, file.path) for run in runs]


def _sorted(job: ImportJob, chunks: _Chunks, rows: pa.Table, part: int) -> tuple[pa.Table, list[_RowsOf]]:
    """Rows of schema MSG in queue order, those without an entry last, and the runs of rows of each queue."""
    indexed = rows.column("indexed").to_numpy()
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
    topic_rank = rank[topics.indices.to_numpy()]
    queue_ids = rows.column("queue_id").to_numpy()
    offsets = rows.column("queue_offset").to_numpy()
    order = np.lexsort((offsets, queue_ids, topic_rank, ~indexed))
    count = int(indexed.sum())
    topic_rank, queue_ids, offsets = topic_rank[order], queue_ids[order], offsets[order]
    table = rows.take(pa.array(order))

    starts = _run_starts(topic_rank[:count], queue_ids[:count], offsets[:count])
    names_by_rank = sorted(names)
    runs: list[_Run] = []
    sizes, physical = table.column("store_size").to_numpy(), table.column("commit_log_offset").to_numpy()
    codes = table.column("tags_code").to_numpy().copy()
    waiting = np.zeros(len(order), dtype=np.bool_)
    orphaned = np.zeros(len(order), dtype=np.bool_)
    for begin, end in pairwise([*starts.tolist(), count]):
        queue = MessageQueue(names_by_rank[topic_rank[begin]], job.broker_name, int(queue_ids[begin]))
        of_run = physical[begin:end], sizes[begin:end], codes[begin:end]
        runs.append((begin, end, Run(queue, int(offsets[begin]), *of_run)))
    entries_of = chunks.reader.read([run.slots for *_, run in runs], chunks.left)
    for (begin, end, run), entries in zip(runs, entries_of, strict=True):
        orphaned[begin:end] = of_a_deleted_topic(chunks.reader, run, entries, job.salvage)
        orphaned[begin:end] |= run.physical < job.begins.get((run.queue.topic, run.queue.queue_id), 0)
    if reasons := _wrong_places(job, chunks.reader, runs, entries_of, orphaned):
        chunks.leave_out(
            job, [Skipped(int(physical[at]), int(physical[at] + sizes[at]), reasons[at]) for at in reasons]
        )
        return _sorted(job, chunks, table.filter(pa.array(~np.isin(np.arange(len(order)), list(reasons)))), part)
    if orphaned.any():
        has_entry = table.column("indexed").to_numpy() & ~orphaned
        at = table.schema.get_field_index("indexed")
        return _sorted(job, chunks, table.set_column(at, table.schema.field(at), pa.array(has_entry)), part)
    for (begin, end, run), entries in zip(runs, entries_of, strict=True):
        key = (run.queue.topic, run.queue.queue_id)
        if not entries["size"].any() and job.without_entries(run.queue):
            shown = LogOrder.of(run.physical, offsets[begin:end])
            chunks.orders[key] = chunks.orders.get(key, shown).with_piece(shown)
        if run.queue.topic == SCHEDULE_TOPIC:
            if take_delivery_times(run.codes, entries):
                last = int(np.flatnonzero(entries["size"])[-1])
                delay_ms = int(run.codes[last]) - table.column("store_timestamp")[begin + last].as_py()
                if delay_ms > 0:
                    chunks.delays[run.queue.queue_id + 1] = delay_ms
            waiting[begin:end] = True
        compare(run, entries)
        if key not in job.batch_queues:
            chunks.count_without_entry(run, entries)
    chunks.without_entry += len(order) - count
    for begin, end, run in runs:
        offsets[begin:end] += job.base(run.queue)
    columns = {
        "tags_code": pa.array(codes),
        "deliver_at": pa.array(codes, mask=~waiting),
        "queue_offset": pa.array(offsets),
    }
    return _as_msg(job, table, columns, part, count), [(run.queue, begin, end) for begin, end, run in runs]


def _wrong_places(
    job: ImportJob, reader: EntryReader, runs: Sequence[_Run], entries_of: Sequence[Entries], orphaned: Mask
) -> dict[int, str]:
    """Why records say a wrong place, by row: the entry of another one points to them, or, without an entry, the records around
    them in the log tell. Those of a BatchCQ topic are not looked at: only the log has their places."""
    reasons: dict[int, str] = {}
    for queue, of_queue in groupby(zip(runs, entries_of, strict=True), key=lambda item: item[0][2].queue):
        items = [(begin, run, entries) for (begin, end, run), entries in of_queue if not orphaned[begin:end].any()]
        if not items or (queue.topic, queue.queue_id) in job.batch_queues:
            continue
        for begin, run, entries in items:
            places = misplaced(reader, run, entries)
            reasons |= {begin + at: place.reason for at, place in places.items()}
        if all(entries["size"].all() for *_, entries in items):
            continue
        rows = np.concatenate([np.arange(begin, begin + len(entries)) for begin, _, entries in items])
        physical = np.concatenate([run.physical for _, run, _ in items])
        offsets = np.concatenate([np.arange(run.begin, run.slots.end) for _, run, _ in items])
        if (np.diff(physical) > 0).all() and (np.diff(offsets) > 0).all():
            continue
        has_entry = np.concatenate([entries["size"] > 0 for *_, entries in items])
        for at in np.flatnonzero(out_of_order(physical, offsets) & ~has_entry).tolist():
            reasons[int(rows[at])] = (
                f"its QUEUEOFFSET {offsets[at]} is not the one that the messages of {queue} before and after it leave"
            )
    return reasons


def _run_starts(*keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where a new run begins: another queue, or an offset that does not follow the one before."""
    topic_rank, queue_ids, offsets = keys
    if not len(offsets):
        return np.array([], dtype=np.int64)
    new = (np.diff(topic_rank) != 0) | (np.diff(queue_ids) != 0) | (np.diff(offsets) != 1)
    return np.concatenate([[0], np.flatnonzero(new) + 1])


def _as_msg(job: ImportJob, table: pa.Table, made: dict[str, pa.Array], part: int, indexed: int) -> pa.Table:
    n = table.num_rows
    columns = {name: table.column(name) for name in table.column_names if name in tables.MSG.names} | made
    rel = np.arange(n)
    if columns["offset_msg_id"].null_count:  # one of several messages in a record
        columns["offset_msg_id"] = pc.coalesce(columns["offset_msg_id"], lake_message_ids(job.commit_id, part, rel))
    columns["rel"] = pa.array(rel, mask=rel >= indexed)
    for name, value in {"commit_id": job.commit_id, "part": part, "broker_name": job.broker_name}.items():
        columns[name] = pa.repeat(pa.scalar(value, tables.MSG.field(name).type), n)
    filled = [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in tables.MSG]
    return pa.table(filled, names=tables.MSG.names).cast(tables.MSG)


def _segment(table: pa.Table, run: _RowsOf, part: int, path: str) -> Produced:
    queue, begin, end = run
    rows = table.slice(begin, end - begin)
    times = pc.min_max(rows.column("store_timestamp")).as_py()
    codes = pc.unique(rows.column("tags_code"))
    deliver_at = pc.min(rows.column("deliver_at")).as_py() if queue.topic == SCHEDULE_TOPIC else None
    return Produced(
        queue,
        part,
        end - begin,
        begin,
        path,
        base=rows.column("queue_offset")[0].as_py(),
        min_store_timestamp=times["min"],
        max_store_timestamp=times["max"],
        deliver_at=deliver_at,
        tags_codes=tuple(sorted(codes.to_pylist())) if len(codes) <= FEW_TAGS_CODES else None,
    )
