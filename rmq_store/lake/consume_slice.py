"""The stage that runs where the rows are: an executor of Spark, or the driver's own process (design 4.1).

A task reads its row ranges from Parquet with pyarrow, filters, asks the listener batch by batch, and writes a file of
the failures' copies. Nothing goes through the JVM, and no body is copied on success. It returns evidence: per range,
how many offsets had which outcome, and their hash sums.

- only the columns that the listener names are read, plus ``rel`` (the position) and what the filter needs
- order is file order; positions come from ``rel``, whose contiguity is checked for every batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.consumer.listener import (
    Answer,
    ConsumeConcurrentlyContext,
    Listener,
    ListenerKind,
    ask,
    judge,
    load_listener,
)
from rmq_store.consumer.pull import Slice
from rmq_store.lake import tables
from rmq_store.lake.batch_answers import judge_batch
from rmq_store.lake.evidence import hashes
from rmq_store.lake.filter import Mask, filter_columns, matching
from rmq_store.lake.message_view import MessageViews
from rmq_store.lake.object_store import Root
from rmq_store.lake.retry_rows import COPY_COLUMNS, TOLD_BY_PROPERTIES, Failures, RetryPolicy, retry_rows
from rmq_store.lake.slice_reader import SliceReader
from rmq_store.lake.stage import stage
from rmq_store.message import MessageQueue
from rmq_store.offsets import Outcome, QueueRange, Tally
from rmq_store.store import Produced, StagedFile
from rmq_store.subscription import SubscriptionData


@dataclass(frozen=True, slots=True)
class ConsumeJob:
    """What all tasks of a window have in common."""

    root: Root
    table: str
    commit_id: str
    group: str
    epoch: int
    window_id: str
    listener: str
    batch_max_size: int
    all_or_nothing: bool
    subscriptions: Mapping[str, SubscriptionData]
    passes: Mapping[MessageQueue, int]
    retry: RetryPolicy


@dataclass(frozen=True, slots=True)
class ConsumeTask:
    """What one task does: slices of one consumer's queues, in offset order per queue."""

    number: int
    consumer: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class RangeDone:
    """The evidence for one slice."""

    range: QueueRange
    tallies: Mapping[Outcome, Tally]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task brings back; its files are in no version of the table yet."""

    number: int
    done: tuple[RangeDone, ...]
    files: tuple[StagedFile, ...] = ()
    produced: tuple[Produced, ...] = ()


@dataclass(slots=True)
class _Tallies:
    counts: dict[Outcome, int] = field(default_factory=dict)
    sums: dict[Outcome, int] = field(default_factory=dict)

    def add(self, outcome: Outcome, hashed: npt.NDArray[np.uint64]) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + len(hashed)
        self.sums[outcome] = self.sums.get(outcome, 0) + int(hashed.sum(dtype=np.uint64)) & (1 << 64) - 1

    def done(self) -> dict[Outcome, Tally]:
        return {outcome: Tally(count, self.sums[outcome]) for outcome, count in self.counts.items() if count}


def run_task(job: ConsumeJob, task: ConsumeTask, attempt: str) -> TaskResult:
    """Consume the task's slices. ``attempt``: a text no other attempt of the task has, for the names of its files.

    Raises ListenerError for an answer that is none, BadData for a file that does not hold what its segment says.
    """
    listener = load_listener(job.listener)
    done, failures = [], []
    for slice_ in task.slices:
        tallies, failed = _consume(job, listener, slice_)
        done.append(RangeDone(QueueRange(slice_.queue, slice_.begin, slice_.end), tallies))
        failures += failed
    if not failures:
        return TaskResult(task.number, tuple(done))
    rows, segments = retry_rows(failures, job.retry, part=task.number, window_id=job.window_id, commit_id=job.commit_id)
    name = f"{job.commit_id}-{task.number:05d}-{attempt}"
    runs = [segment.first_row for segment in segments]
    file = stage(job.root, job.table, "msg", name, rows, tables.COMMITLOG_STATS, runs=runs)
    produced = tuple(segment.in_file(file.path) for segment in segments)
    return TaskResult(task.number, tuple(done), (file,), produced)


# --- one slice -------------------------------------------------------------------------------------------------------


def _consume(job: ConsumeJob, listener: Listener, slice_: Slice) -> tuple[dict[Outcome, Tally], list[Failures]]:
    subscription = job.subscriptions[slice_.queue.topic]
    reader = SliceReader(job.root, job.table, slice_)
    columns = _columns_for(listener, subscription)
    tallies = _Tallies()
    answers: list[Answer] = []
    failed_offsets: list[npt.NDArray[np.int64]] = []
    failed_rows: list[pa.RecordBatch] = []
    for offsets, batch in reader.batches(columns):
        hashed = hashes(offsets)
        wanted = matching(batch, subscription)
        if wanted is not None:
            tallies.add(Outcome.FILTERED, hashed[~wanted])
            offsets, hashed, batch = offsets[wanted], hashed[wanted], batch.filter(pa.array(wanted))
        if not len(offsets):
            continue
        failed, why = _ask(job, listener, slice_, offsets, batch)
        if failed is None:
            tallies.add(Outcome.ACKED, hashed)
            continue
        tallies.add(Outcome.ACKED, hashed[~failed])
        answers += why
        failed_offsets.append(offsets[failed])
        failed_rows.append(batch.select([n for n in COPY_COLUMNS if n in batch.schema.names]).filter(pa.array(failed)))
    if not answers:
        return tallies.done(), []
    offsets = np.concatenate(failed_offsets)
    rows = _completed(reader, pa.Table.from_batches(failed_rows), offsets)
    failures = Failures(slice_.queue, job.passes[slice_.queue], offsets, answers, rows)
    dead = failures.dead(job.retry)
    hashed = hashes(offsets)
    tallies.add(Outcome.DEAD, hashed[dead])
    tallies.add(Outcome.RETRIED, hashed[~dead])
    return tallies.done(), [failures]


def _completed(reader: SliceReader, rows: pa.Table, offsets: npt.NDArray[np.int64]) -> pa.Table:
    """The failed rows with the columns that the listener did not name, read now, where something failed."""
    missing = [name for name in COPY_COLUMNS if name not in rows.column_names]
    columns = {name: rows.column(name) for name in rows.column_names}
    if read := [name for name in missing if name not in TOLD_BY_PROPERTIES]:
        more = reader.rows(offsets, read)
        columns |= {name: more.column(name) for name in read}
    told = {name: TOLD_BY_PROPERTIES[name] for name in missing if name in TOLD_BY_PROPERTIES}
    columns |= {name: pc.map_lookup(columns["properties"], key, "first") for name, key in told.items()}
    whole = pa.table({name: columns[name] for name in COPY_COLUMNS})
    return whole if "offset_msg_id" in missing else reader.with_ids(whole, offsets)


def _columns_for(listener: Listener, subscription: SubscriptionData) -> list[str] | None:
    """What must be read for the listener and the filter; None: everything."""
    if listener.columns is None:
        return None
    return [*dict.fromkeys([*listener.columns, *filter_columns(subscription)])]


def _ask(
    job: ConsumeJob, listener: Listener, slice_: Slice, offsets: npt.NDArray[np.int64], batch: pa.RecordBatch
) -> tuple[Mask | None, Sequence[Answer]]:
    """Which rows failed (None: none) and the answer for each of these."""
    if listener.kind is ListenerKind.BATCH:
        context = ConsumeConcurrentlyContext(slice_.queue, job.group)
        view = batch if listener.columns is None else batch.select(list(listener.columns))
        answer, error = ask(listener, view, context)
        return judge_batch(answer, batch.num_rows, context, error, all_or_nothing=job.all_or_nothing)
    views = MessageViews(slice_, offsets, batch)
    size = job.batch_max_size
    failed: list[int] = []
    why: list[Answer] = []
    for begin in range(0, batch.num_rows, size):
        messages = views.messages(begin, min(begin + size, batch.num_rows))
        context = ConsumeConcurrentlyContext(slice_.queue, job.group)
        answer, error = ask(listener, messages, context)
        if error is None and _all_succeeded(answer, context):
            continue
        judged = judge(answer, len(messages), context, error, all_or_nothing=job.all_or_nothing)
        for index, one in enumerate(judged, begin):
            if not one.acked:
                failed.append(index)
                why.append(one)
    if not failed:
        return None, why
    mask = np.zeros(batch.num_rows, dtype=np.bool_)
    mask[failed] = True
    return mask, why


def _all_succeeded(answer: object, context: ConsumeConcurrentlyContext) -> bool:
    """The usual answer, recognised without building an Answer per message."""
    return answer == "CONSUME_SUCCESS" and context.ack_index == 2_147_483_647
