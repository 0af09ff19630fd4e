"""A task of a window, which runs in a Spark executor or in the driver's own process.

A task reads its row ranges from Parquet with pyarrow, filters them, calls the listener batch by batch, and writes one file
with the copies of the failed messages. No message goes through the JVM, and no body is copied on success. The task returns
evidence: per range, how many offsets had which outcome, and the sums of their hashes.

- Only the columns that the listener names are read, with ``rel`` (the row's place in the file) and what the filter needs.
- Slices of one file follow each other, so that a row group which they share is read once.
- The order of a slice is that of the file. Offsets follow from ``rel``, and each batch is checked to have no gap in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.commit.ctl import Blocked, Produced, StagedFile
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.call_listener import call_listener
from rmq_store.consumer.consume_orderly import OrderlyRules, consume_orderly
from rmq_store.consumer.consume_result import (
    DroppedRange,
    clean_expired_msg,
    dropped_ranges,
    is_expired,
    void_ranges,
)
from rmq_store.consumer.listener import (
    ACKED,
    INT_MAX,
    Answer,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    Listener,
    ListenerKind,
    judge,
    load_listener,
)
from rmq_store.consumer.listener_process import OwnProcess
from rmq_store.consumer.pull import Slice, by_file, rows_per_time_check
from rmq_store.errors import ListenerError
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import Mask, filter_columns, matching
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS, SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.evidence import hashes, tally_of
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.window.batch_answers import judge_batch
from rmq_store.lake.window.consume_job import NO_OFFSETS, ConsumeJob, ConsumeTask, Offsets, RangeResult, TaskResult
from rmq_store.lake.window.failed_rows import FailedSlice, failures_by_file
from rmq_store.lake.window.retry_rows import COPY_COLUMNS, Failures, Origin, retry_rows
from rmq_store.lake.window.void_rows import void_rows, with_epoch, without_epoch
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.window.consume import orderly_rules

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class _Switches(TypedDict):
    all_or_nothing: bool
    secrets: Sequence[str]


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
    with OwnProcess():
        return _run_task(job, task, attempt)


def _run_task(job: ConsumeJob, task: ConsumeTask, attempt: str) -> TaskResult:
    listener = load_listener(job.group.listener)
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
            result = _consume_in_order(job, rules, listener, queue, list(slices), files)
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


def _consume(job: ConsumeJob, listener: Listener, task: ConsumeTask, slice_: Slice, files: OpenFiles) -> _Consumed:
    subscription = job.subscription(slice_.queue.topic)
    reader = SliceReader(job.root, job.table, slice_, files)
    void_before = job.void_before(slice_.queue)
    columns = with_epoch(_columns_for(listener, subscription), void_before)
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
        if void_before is not None:
            is_void = void_rows(batch, void_before)
            void.append(offsets[is_void])
            offsets, batch = offsets[~is_void], without_epoch(batch).filter(pa.array(~is_void))
        if not len(offsets):
            continue
        hashed = hashes(offsets)
        matches = matching(batch, subscription)
        if matches is not None:
            tallies.add(Outcome.FILTERED, hashed[~matches])
            offsets, hashed, batch = offsets[matches], hashed[matches], batch.filter(pa.array(matches))
        if not len(offsets):
            continue
        failed, failed_answers = _ask(job, listener, slice_, offsets, batch)
        if failed is None:
            tallies.add(Outcome.ACKED, hashed)
            continue
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
    job: ConsumeJob, listener: Listener, batches: Iterator[tuple[Offsets, pa.RecordBatch]]
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


def _columns_for(listener: Listener, subscription: SubscriptionData) -> list[str] | None:
    """The columns that the listener and the filter need; None: all."""
    if listener.columns is None:
        return None
    return [*dict.fromkeys([*listener.columns, *filter_columns(subscription)])]


def refuse_unknown_columns(listener: Listener) -> None:
    """Raise ListenerError for a listener that names a column which no message has."""
    if unknown := [name for name in listener.columns or () if name not in tables.MSG.names]:
        raise ListenerError(
            f"listener {listener.name}: unknown columns {', '.join(unknown):.200}; known columns are "
            f"{', '.join(MESSAGE_COLUMNS)}"
        )


def _ask(
    job: ConsumeJob, listener: Listener, slice_: Slice, offsets: Offsets, batch: pa.RecordBatch
) -> tuple[Mask | None, Sequence[Answer]]:
    """Call the listener: which rows failed (None: none), and the answer for each of these."""
    group, timeout_ms = job.group, job.group.consume_timeout_ms
    switches: _Switches = {"all_or_nothing": group.all_or_nothing, "secrets": listener.secrets}
    context = partial(ConsumeConcurrentlyContext, slice_.queue, group.name)
    if listener.kind is ListenerKind.BATCH:
        view = batch if listener.columns is None else batch.select(list(listener.columns))
        began_ms = job.now_ms()
        mask, answers = call_listener(
            listener, (slice_.queue, int(offsets[0])), view, context, partial(judge_batch, **switches)
        )
        took_ms = job.now_ms() - began_ms
        return _unless_expired(mask, answers, batch.num_rows, took_ms, timeout_ms)
    views = MessageViews(slice_, offsets, batch)
    size = group.consume_message_batch_max_size
    failed: list[int] = []
    failed_answers: list[Answer] = []
    now_ms = job.now_ms
    read = partial(_read, switches)
    began_ms = now_ms()
    for begin in range(0, batch.num_rows, size):
        end = min(begin + size, batch.num_rows)
        judged = call_listener(listener, (slice_.queue, int(offsets[begin])), views.messages(begin, end), context, read)
        ended_ms = now_ms()
        began_ms, took_ms = ended_ms, ended_ms - began_ms
        if judged is None:
            if not is_expired(took_ms, timeout_ms):
                continue
            judged = (ACKED,) * (end - begin)
        for index, answer in enumerate(clean_expired_msg(judged, took_ms, timeout_ms), begin):
            if not answer.acked:
                failed.append(index)
                failed_answers.append(answer)
    if not failed:
        return None, failed_answers
    mask = np.zeros(batch.num_rows, dtype=np.bool_)
    mask[failed] = True
    return mask, failed_answers


def _read(
    switches: _Switches, answer: Any, n: int, context: ConsumeConcurrentlyContext, error: BaseException | None
) -> tuple[Answer, ...] | None:
    """The answer for each message; None: all are acked."""
    if error is None and _all_succeeded(answer, context):
        return None
    return judge(answer, n, context, error, **switches)


def _unless_expired(
    failed: Mask | None, failed_answers: Sequence[Answer], n: int, took_ms: int, timeout_ms: int | None
) -> tuple[Mask | None, Sequence[Answer]]:
    """Which of the ``n`` rows of a call failed, with their answers: all of them if the call took too long."""
    if not is_expired(took_ms, timeout_ms):
        return failed, failed_answers
    rest = iter(failed_answers)
    answers = [ACKED] * n if failed is None else [next(rest) if no else ACKED for no in failed.tolist()]
    return np.ones(n, dtype=np.bool_), clean_expired_msg(answers, took_ms, timeout_ms)


def _all_succeeded(answer: object, context: ConsumeConcurrentlyContext) -> bool:
    """The usual answer, recognised without building an Answer per message, and without a ``==`` of the listener's own."""
    is_success = answer is _SUCCESS or (type(answer) is str and answer == _SUCCESS)
    return is_success and _is_untouched(context)


def _is_untouched(context: ConsumeConcurrentlyContext) -> bool:
    level = getattr(context, "delay_level_when_next_consume", None)
    return getattr(context, "ack_index", None) is INT_MAX and type(level) is int and level == 0


# --- one queue in order ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueueResult:
    range: RangeResult
    failures: Sequence[Failures]
    waits: Mapping[MessageQueue, int]
    blocked: Sequence[Blocked]
    dropped: Sequence[DroppedRange]


def _consume_in_order(
    job: ConsumeJob,
    rules: OrderlyRules,
    listener: Listener,
    queue: MessageQueue,
    slices: Sequence[Slice],
    files: OpenFiles,
) -> _QueueResult:
    """Consume a queue in order. Messages over the retry limit are its failures, and become dead letters."""
    pulled = _Pulled(job, listener, slices, files)
    tried = [blocked for blocked in job.tried if blocked.range.queue == queue]
    result = consume_orderly(listener, queue, pulled.messages(), rules, tried=tried, is_over=job.is_over)
    end = slices[-1].end if result.waits_at is None else result.waits_at
    failures = []
    for slice_ in slices:
        dead = [one for one in result.dead if slice_.begin <= one.offset < slice_.end]
        if dead:
            offsets = np.array([one.offset for one in dead], dtype=np.int64)
            rows = SliceReader(job.root, job.table, slice_, files).rows(offsets, COPY_COLUMNS)
            times = pa.array([one.reconsume_times for one in dead], pa.int32())
            rows = rows.set_column(rows.column_names.index("reconsume_times"), "reconsume_times", times)
            origin = Origin(queue, job.passes[queue], offsets)
            failures.append(Failures([origin], [one.answer for one in dead], rows))
    tallies = {
        Outcome.ACKED: result.acked,
        Outcome.FILTERED: pulled.filtered_below(end),
        Outcome.DROPPED: tally_of(pulled.void_below(end)),
        Outcome.DEAD: tally_of(np.array([one.offset for one in result.dead], dtype=np.int64)),
    }
    present = {outcome: tally for outcome, tally in tallies.items() if tally.count}
    return _QueueResult(
        range=RangeResult(QueueRange(queue, slices[0].begin, end), present),
        failures=failures,
        waits={} if result.waits_at is None else {queue: result.waits_at},
        blocked=result.blocked,
        dropped=void_ranges(queue, pulled.void_below(end).tolist()),
    )


class _Pulled:
    """The messages of a queue that match the subscription, read lazily; counts those that do not."""

    def __init__(self, job: ConsumeJob, listener: Listener, slices: Sequence[Slice], files: OpenFiles) -> None:
        self._job, self._slices, self._files = job, slices, files
        self._subscription = job.subscription(slices[0].queue.topic)
        columns = _columns_for(listener, self._subscription)
        self._void_before = job.void_before(slices[0].queue)
        self._columns = with_epoch(columns and [*dict.fromkeys([*columns, "reconsume_times"])], self._void_before)
        self._filtered: list[Offsets] = []
        self._void: list[Offsets] = [NO_OFFSETS]

    def messages(self) -> Iterator[MessageExt]:
        for slice_ in self._slices:
            reader = SliceReader(self._job.root, self._job.table, slice_, self._files)
            for offsets, batch in reader.batches(self._columns):
                if self._void_before is not None:
                    is_void = void_rows(batch, self._void_before)
                    self._void.append(offsets[is_void])
                    offsets, batch = offsets[~is_void], without_epoch(batch).filter(pa.array(~is_void))
                matches = matching(batch, self._subscription)
                if matches is not None:
                    self._filtered.append(offsets[~matches])
                    offsets, batch = offsets[matches], batch.filter(pa.array(matches))
                yield from MessageViews(slice_, offsets, batch).messages(0, batch.num_rows)

    def filtered_below(self, end: int) -> Tally:
        several = (tally_of(offsets[offsets < end]) for offsets in self._filtered)
        return sum(several, Tally())

    def void_below(self, end: int) -> Offsets:
        """The offsets of the retries that waited when the group was deleted."""
        offsets = np.concatenate(self._void)
        return offsets[offsets < end]
