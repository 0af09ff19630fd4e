"""A task of a window, which runs in a Spark executor or in the driver's own process.

A task reads its row ranges from Parquet with pyarrow, filters them, calls the listener batch by batch, and writes one file
with the copies of the failed messages. No message goes through the JVM, and no body is copied on success. The task returns
evidence: per range, how many offsets had which outcome, and the sums of their hashes.

- Only the columns that the listener names are read, with ``rel`` (the row's place in the file) and what the filter needs.
- Slices of one file follow each other, so that a row group which they share is read once.
- The order of a slice is that of the file. Offsets follow from ``rel``, and each batch is checked to have no gap in it.

``lake/listener/`` calls the listener, ``orderly_queue.py`` consumes the queues of an orderly group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.commit.ctl import Blocked, Produced, StagedFile
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.consume_result import DroppedRange, dropped_ranges, void_ranges
from rmq_store.consumer.listener import Answer, ListenerKind
from rmq_store.consumer.listener_process import OwnProcess
from rmq_store.consumer.pull import Slice, by_file, rows_per_time_check
from rmq_store.lake.listener.calls import RowsToConsume
from rmq_store.lake.listener.task_listener import TaskListener, columns_for, opened_listener
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table.evidence import hashes
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.window.chosen_rows import chosen_rows
from rmq_store.lake.window.consume_job import ConsumeJob, ConsumeTask, Offsets, RangeResult, TaskResult
from rmq_store.lake.window.failed_rows import FailedSlice, failures_by_file
from rmq_store.lake.window.orderly_queue import consume_in_order
from rmq_store.lake.window.retry_rows import COPY_COLUMNS, Failures, retry_rows
from rmq_store.lake.window.void_rows import with_epoch
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import monotonic_ms
from rmq_store.window.consume import orderly_rules


@dataclass(slots=True)
class _Tallies:
    counts: dict[Outcome, int] = field(default_factory=dict)
    sums: dict[Outcome, int] = field(default_factory=dict)

    def add(self, outcome: Outcome, hashed: npt.NDArray[np.uint64]) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + len(hashed)
        self.sums[outcome] = self.sums.get(outcome, 0) + int(hashed.sum(dtype=np.uint64)) & (1 << 64) - 1

    def by_outcome(self) -> dict[Outcome, Tally]:
        return {outcome: Tally(count, self.sums[outcome]) for outcome, count in self.counts.items() if count}


def run_task(job: ConsumeJob, task: ConsumeTask, attempt: str) -> TaskResult:
    """Consume the task's slices. ``attempt``: a text that no other attempt of the task has, for the names of its files.

    Raises ListenerError for an invalid answer of the listener, BadData for a file that differs from its segments.
    """
    with OwnProcess(), opened_listener(job.group, job.now_ms) as listener:
        return _run_task(job, task, attempt, listener)


def _run_task(job: ConsumeJob, task: ConsumeTask, attempt: str, listener: TaskListener) -> TaskResult:
    began_ms = monotonic_ms()
    rules = orderly_rules(job.group)
    ranges: list[RangeResult] = []
    failures: list[Failures] = []
    waits: dict[MessageQueue, int] = {}
    blocked: list[Blocked] = []
    dropped: list[DroppedRange] = []
    files = OpenFiles(job.root)
    if rules is None:
        consumed: list[_Consumed] = []
        for number, slice_ in enumerate(by_file(task.slices)):
            if number and (slice_.queue in waits or job.is_over()):
                waits.setdefault(slice_.queue, slice_.begin)
                continue
            consumed.append(_consume(job, listener, task, slice_, files))
            if consumed[-1].end < slice_.end:
                waits[slice_.queue] = consumed[-1].end
        failures = failures_by_file(job, files, [one.failed for one in consumed if one.failed])
        ranges = [one.result() for one in consumed]
        dropped = [drop for one in consumed for drop in one.dropped]
    else:
        for queue, slices in groupby(task.slices, key=lambda slice_: slice_.queue):
            result = consume_in_order(job, rules, listener, queue, list(slices), files)
            ranges.append(result.range)
            failures += result.failures
            blocked += result.blocked
            waits |= result.waits
            dropped += result.dropped
    file, produced = _copies_file(job, task, failures, attempt) if failures else (None, ())
    return TaskResult(
        number=task.number,
        ranges=tuple(ranges),
        files=() if file is None else (file,),
        produced=produced,
        waits=waits,
        blocked=tuple(blocked),
        dropped=tuple(dropped),
        failed=_not_acked(failures, dropped) if job.group.absorb_duplicates else (),
        took_ms=monotonic_ms() - began_ms,
        listener_version=listener.version,
        deaths=listener.deaths_of_task,
    )


def _copies_file(
    job: ConsumeJob, task: ConsumeTask, failures: Sequence[Failures], attempt: str
) -> tuple[StagedFile, tuple[Produced, ...]]:
    """The task's file with the copies of what failed, and its segments."""
    rows, segments = retry_rows(failures, job, task.number)
    name = f"{job.commit_id}-{task.number:05d}-{attempt}"
    runs = [segment.first_row for segment in segments]
    file = stage(job.root, job.table, NewFile(kind="msg", name=name, rows=rows, runs=runs))
    return file, tuple(segment.in_file(file.path) for segment in segments)


def _not_acked(
    failures: Sequence[Failures], dropped: Sequence[DroppedRange]
) -> tuple[tuple[MessageQueue, Offsets], ...]:
    drops = ((item.range.queue, np.arange(item.range.begin, item.range.end)) for item in dropped)
    return (*((origin.queue, origin.offsets) for several in failures for origin in several.origins), *drops)


# --- one slice -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Consumed:
    """What became of a slice up to ``end``. ``tallies``: without those of ``failed``."""

    slice: Slice
    end: int
    tallies: _Tallies
    failed: FailedSlice | None = None
    dropped: Sequence[DroppedRange] = ()

    def result(self) -> RangeResult:
        """The evidence, once it is known which of the failed messages are dead."""
        if self.failed is not None:
            hashed = hashes(self.failed.offsets)
            self.tallies.add(Outcome.DEAD, hashed[self.failed.dead])
            self.tallies.add(Outcome.RETRIED, hashed[~self.failed.dead])
        return RangeResult(QueueRange(self.slice.queue, self.slice.begin, self.end), self.tallies.by_outcome())


def _consume(job: ConsumeJob, listener: TaskListener, task: ConsumeTask, slice_: Slice, files: OpenFiles) -> _Consumed:
    subscription = job.subscription(slice_.queue.topic)
    reader = SliceReader(job.root, job.table, slice_, files)
    void_before = job.void_before(slice_.queue)
    columns = with_epoch(columns_for(listener, subscription), void_before)
    tallies = _Tallies()
    void: list[Offsets] = []
    answers: list[Answer] = []
    failed_offsets: list[Offsets] = []
    failed_rows: list[pa.RecordBatch] = []
    end = slice_.begin
    for offsets, batch in _timed_batches(job, listener, reader.batches(columns)):
        if end > slice_.begin and job.is_over():
            break
        end = int(offsets[-1]) + 1
        selected = task.selected(slice_.queue, offsets)
        if selected is not None:
            offsets, batch = offsets[selected], batch.filter(pa.array(selected))
        offsets, batch, void_offsets, filtered = chosen_rows(offsets, batch, subscription, void_before)
        if len(void_offsets):
            void.append(void_offsets)
        if len(filtered):
            tallies.add(Outcome.FILTERED, hashes(filtered))
        if not len(offsets):
            continue
        hashed = hashes(offsets)
        failed_rows_of, failed_answers = listener.ask(RowsToConsume(slice_.queue, offsets, batch))
        if not len(failed_rows_of):
            tallies.add(Outcome.ACKED, hashed)
            continue
        failed = np.zeros(len(offsets), dtype=np.bool_)
        failed[failed_rows_of] = True
        tallies.add(Outcome.ACKED, hashed[~failed])
        answers += failed_answers
        failed_offsets.append(offsets[failed])
        failed_rows.append(batch.select([n for n in COPY_COLUMNS if n in batch.schema.names]).filter(pa.array(failed)))
    dropped: list[DroppedRange] = []
    if void:
        tallies.add(Outcome.DROPPED, hashes(np.concatenate(void)))
        dropped = void_ranges(slice_.queue, np.concatenate(void).tolist())
    if not answers:
        return _Consumed(slice_, end, tallies, dropped=dropped)
    offsets = np.concatenate(failed_offsets)
    if job.group.broadcasting:
        tallies.add(Outcome.DROPPED, hashes(offsets))
        dropped = dropped_ranges(slice_.queue, zip(offsets.tolist(), answers, strict=True))
        return _Consumed(slice_, end, tallies, dropped=dropped)
    several = FailedSlice(slice_, offsets, answers, pa.Table.from_batches(failed_rows))
    return _Consumed(slice_, end, tallies, several, dropped)


def _timed_batches(
    job: ConsumeJob, listener: TaskListener, batches: Iterator[tuple[Offsets, pa.RecordBatch]]
) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """The batches, cut where the window has an end, so that the clock is read between them. A listener of record batches
    gets them whole."""
    if job.ends_at_ms is None or listener.kind is ListenerKind.BATCH:
        yield from batches
        return
    rows = rows_per_time_check(job.group.consume_message_batch_max_size)
    for offsets, batch in batches:
        for begin in range(0, len(offsets), rows):
            yield offsets[begin : begin + rows], batch.slice(begin, rows)
