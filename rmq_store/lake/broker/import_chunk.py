"""A chunk of a broker's commit log -> sorted Parquet files of the lake's commit log, and their segments.

Each chunk becomes a file per day: rows sorted by topic, queue and queue offset, so that every queue is one run of rows.
The consume queue is made from the log; where the broker's own 20-byte entries exist they must agree with it. Messages of
a topic that was deleted and made again are kept without an entry, as on the broker, where its queues began at 0 again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.ctl import FEW_TAGS_CODES, Produced, StagedFile
from rmq_store.lake.broker.entry_reader import Entries, EntryReader
from rmq_store.lake.broker.import_entries import (
    LogOrder,
    Run,
    compare,
    misplaced,
    of_a_deleted_topic,
    out_of_order,
    take_delivery_times,
)
from rmq_store.lake.broker.import_job import ImportJob, WithoutEntry
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.lake.read.slice_reader import lake_message_ids
from rmq_store.lake.table import tables
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.utils.host import day_of

_DAY_MS = 86_400_000

Mask = npt.NDArray[np.bool_]

_Run = tuple[int, int, Run]
"""Rows ``[begin, end)`` of a queue, whose queue offsets follow one another."""
_RowsOf = tuple[MessageQueue, int, int]
"""A queue and its rows ``[begin, end)``, whose queue offsets follow one another."""


@dataclass(slots=True)
class Chunks:
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
    skipped: list[Skipped] = field(default_factory=list)
    """As in the task's result: also the records that a salvage leaves out for their place."""
    misplaced: int = 0
    """How many messages that are."""

    def leave_out(self, job: ImportJob, damaged: Sequence[Skipped]) -> None:
        """Raises DamagedRecord for the first one when this is not a salvage."""
        if not job.salvage:
            raise min(damaged, key=lambda skip: skip.begin).as_error(self.file)
        self.skipped += damaged
        self.misplaced += len(damaged)

    def count_without_entry(self, run: Run, entries: Entries) -> None:
        """Count the messages of a run that have none of these entries."""
        at = np.flatnonzero(entries["size"] == 0)
        if not len(at):
            return
        self.without_entry += len(at)
        last = int(at[-1])
        record = WithoutEntry(run.begin + last, int(run.physical[last]), int(run.sizes[last]))
        key = (run.queue.topic, run.queue.queue_id)
        self.last_without[key] = max(record, self.last_without.get(key, record))


def without_misplaced(job: ImportJob, chunks: Chunks, rows: pa.Table) -> pa.Table:
    """The rows without those of the job's ``misplaced`` records."""
    if not job.misplaced:
        return rows
    physical = rows.column("commit_log_offset").to_numpy()
    is_misplaced = np.isin(physical, np.fromiter(job.misplaced, np.int64))
    sizes = dict(
        zip(physical[is_misplaced].tolist(), rows.column("store_size").to_numpy()[is_misplaced].tolist(), strict=True)
    )
    chunks.skipped += [Skipped(at, at + size, job.misplaced[at]) for at, size in sizes.items()]
    return rows.filter(pa.array(~is_misplaced))


def staged(
    job: ImportJob, chunks: Chunks, rows: pa.Table, part: int, attempt: str
) -> Iterator[tuple[StagedFile, list[Produced]]]:
    """The files of a chunk, one per day, and their segments. ``part``: the number of the first one."""
    days = rows.column("store_timestamp").to_numpy() // _DAY_MS
    for day in np.unique(days).tolist():
        of_day = (
            rows if days[0] == day and days[-1] == day and (days == day).all() else rows.filter(pa.array(days == day))
        )
        table, runs = _sorted(job, chunks, of_day, part)
        if not table.num_rows:  # all of them are left out
            continue
        name = f"{job.commit_id}-{part:08d}-{attempt}"
        new_file = NewFile(
            kind="msg",
            name=name,
            rows=table,
            store_day=day_of(day * _DAY_MS),
            runs=[begin for _, begin, _ in runs],
        )
        file = stage(job.root, job.table, new_file)
        yield file, [_segment(table, run, part, file.path) for run in runs]
        part += 1


def _sorted(job: ImportJob, chunks: Chunks, rows: pa.Table, part: int) -> tuple[pa.Table, list[_RowsOf]]:
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
    if reasons := _wrong_places(job, chunks, runs, entries_of, orphaned):
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
    job: ImportJob, chunks: Chunks, runs: Sequence[_Run], entries_of: Sequence[Entries], orphaned: Mask
) -> dict[int, str]:
    """Why records say a wrong place, by row: the entry of another one points to them, or, without an entry, the records around
    them in the log tell. Those of a BatchCQ topic are not looked at: only the log has their places."""
    reasons: dict[int, str] = {}
    for queue, of_queue in groupby(zip(runs, entries_of, strict=True), key=lambda item: item[0][2].queue):
        items = [(begin, run, entries) for (begin, end, run), entries in of_queue if not orphaned[begin:end].any()]
        if not items or (queue.topic, queue.queue_id) in job.batch_queues:
            continue
        for begin, run, entries in items:
            places = misplaced(chunks.reader, run, entries)
            reasons |= {begin + at: place.reason for at, place in places.items()}
        if all(entries["size"].all() for *_, entries in items):
            continue
        rows = np.concatenate([np.arange(begin, begin + len(entries)) for begin, _, entries in items])
        physical = np.concatenate([run.physical for _, run, _ in items])
        offsets = np.concatenate([np.arange(run.begin, run.slots.end) for _, run, _ in items])
        if (np.diff(physical) > 0).all() and (np.diff(offsets) > 0).all():
            continue
        has_entry = np.concatenate([entries["size"] > 0 for *_, entries in items])
        for at in np.flatnonzero(
            out_of_order(physical, offsets, has_damage=bool(chunks.skipped)) & ~has_entry
        ).tolist():
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
