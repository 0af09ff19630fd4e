"""The stage that runs where the rows are: an executor of Spark, or the driver's own process (design 4.1).

A task reads its row ranges from Parquet with pyarrow, filters, asks the listener batch by batch, and writes a file of
the failures' copies. Nothing goes through the JVM, and no body is copied on success. It returns evidence: per range,
how many offsets had which outcome, and their hash sums.

- only the columns that the listener names are read, plus ``rel`` (the position) and what the filter needs
- order is file order; positions come from ``rel``, whose contiguity is checked for every batch
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
import pyarrow.compute as pc

from rmq_store.commit.ctl import Blocked
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.ask import ask
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
from rmq_store.consumer.own_process import OwnProcess
from rmq_store.consumer.pull import Slice, rows_per_time_check
from rmq_store.errors import ListenerError
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import Mask, filter_columns, matching
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS, SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.evidence import hashes, tally_of
from rmq_store.lake.table.stage import stage
from rmq_store.lake.window.batch_answers import judge_batch
from rmq_store.lake.window.consume_job import NO_OFFSETS, ConsumeJob, ConsumeTask, Offsets, RangeDone, TaskResult
from rmq_store.lake.window.retry_rows import COPY_COLUMNS, TOLD_BY_PROPERTIES, Failures, retry_rows
from rmq_store.lake.window.void_rows import void_rows, with_epoch, without_epoch
from rmq_store.message.message import MessageExt, MessageQueue

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

    def done(self) -> dict[Outcome, Tally]:
        return {outcome: Tally(count, self.sums[outcome]) for outcome, count in self.counts.items() if count}


def run_task(job: ConsumeJob, task: ConsumeTask, attempt: str) -> TaskResult:
    """Consume the task's slices. ``attempt``: a text no other attempt of the task has, for the names of its files.

    Raises ListenerError for an answer that is none, BadData for a file that does not hold what its segment says.
    """
    with OwnProcess():
        return _run_task(job, task, attempt)


def _run_task(job: ConsumeJob, task: ConsumeTask, attempt: str) -> TaskResult:
    listener = load_listener(job.listener)
    done, failures = [], []
    waits: dict[MessageQueue, int] = {}
    blocked: list[Blocked] = []
    dropped: list[DroppedRange] = []
    if job.in_order is None:
        for number, slice_ in enumerate(task.slices):
            if number and (slice_.queue in waits or job.is_over()):
                waits.setdefault(slice_.queue, slice_.begin)
                continue
            end, tallies, failed, given_up = _consume(job, listener, task, slice_)
            if end < slice_.end:
                waits[slice_.queue] = end
            done.append(RangeDone(QueueRange(slice_.queue, slice_.begin, end), tallies))
            failures += failed
            dropped += given_up
    else:
        for queue, slices in groupby(task.slices, key=lambda slice_: slice_.queue):
            found = _consume_in_order(job, job.in_order, listener, queue, list(slices))
            done.append(found.done)
            failures += found.failures
            blocked += found.blocked
            waits |= found.waits
            dropped += found.dropped
    not_acked = _not_acked(failures, dropped) if job.absorbs else ()
    if not failures:
        return TaskResult(
            task.number, tuple(done), waits=waits, blocked=tuple(blocked), dropped=tuple(dropped), failed=not_acked
        )
    rows, segments = retry_rows(
        failures, job.retry, part=task.number, window_id=job.window_id, commit_id=job.commit_id, epoch=job.epoch
    )
    name = f"{job.commit_id}-{task.number:05d}-{attempt}"
    runs = [segment.first_row for segment in segments]
    file = stage(job.root, job.table, "msg", name, rows, tables.COMMITLOG_STATS, runs=runs)
    produced = tuple(segment.in_file(file.path) for segment in segments)
    return TaskResult(
        task.number, tuple(done), (file,), produced, waits, tuple(blocked), tuple(dropped), failed=not_acked
    )


def _not_acked(
    failures: Sequence[Failures], dropped: Sequence[DroppedRange]
) -> tuple[tuple[MessageQueue, Offsets], ...]:
    given_up = ((item.range.queue, np.arange(item.range.begin, item.range.end)) for item in dropped)
    return (*((several.queue, several.offsets) for several in failures), *given_up)


# --- one slice -------------------------------------------------------------------------------------------------------


def _consume(
    job: ConsumeJob, listener: Listener, task: ConsumeTask, slice_: Slice
) -> tuple[int, dict[Outcome, Tally], list[Failures], list[DroppedRange]]:
    """What became of a slice, up to where; what failed has its rows, or is given up where the group broadcasts."""
    subscription = job.subscriptions[slice_.queue.topic]
    reader = SliceReader(job.root, job.table, slice_)
    void_before = job.void_before(slice_.queue)
    columns = with_epoch(_columns_for(listener, subscription), void_before)
    tallies = _Tallies()
    void: list[Offsets] = []
    answers: list[Answer] = []
    failed_offsets: list[npt.NDArray[np.int64]] = []
    failed_rows: list[pa.RecordBatch] = []
    end = slice_.begin
    for offsets, batch in _pieces(job, listener, reader.batches(columns)):
        if end > slice_.begin and job.is_over():
            break
        end = int(offsets[-1]) + 1
        looked_at = task.looks_at(slice_.queue, offsets)
        if looked_at is not None:
            offsets, batch = offsets[looked_at], batch.filter(pa.array(looked_at))
        if void_before is not None:
            gone = void_rows(batch, void_before)
            void.append(offsets[gone])
            offsets, batch = offsets[~gone], without_epoch(batch).filter(pa.array(~gone))
        if not len(offsets):
            continue
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
    given_up: list[DroppedRange] = []
    if void:
        tallies.add(Outcome.DROPPED, hashes(np.concatenate(void)))
        given_up = void_ranges(slice_.queue, np.concatenate(void).tolist())
    if not answers:
        return end, tallies.done(), [], given_up
    offsets = np.concatenate(failed_offsets)
    if job.broadcasting:
        tallies.add(Outcome.DROPPED, hashes(offsets))
        return end, tallies.done(), [], dropped_ranges(slice_.queue, zip(offsets.tolist(), answers, strict=True))
    rows = _completed(reader, pa.Table.from_batches(failed_rows), offsets)
    failures = Failures(slice_.queue, job.passes[slice_.queue], offsets, answers, rows)
    dead = failures.dead(job.retry)
    hashed = hashes(offsets)
    tallies.add(Outcome.DEAD, hashed[dead])
    tallies.add(Outcome.RETRIED, hashed[~dead])
    return end, tallies.done(), [failures], given_up


def _pieces(
    job: ConsumeJob, listener: Listener, batches: Iterator[tuple[Offsets, pa.RecordBatch]]
) -> Iterator[tuple[Offsets, pa.RecordBatch]]:
    """As large as they come, unless the window has an end: then small enough to look at the clock between them. A listener
    of record batches gets these whole."""
    if job.ends_at_ms is None or listener.kind is ListenerKind.BATCH:
        yield from batches
        return
    rows = rows_per_time_check(job.batch_max_size)
    for offsets, batch in batches:
        for begin in range(0, len(offsets), rows):
            yield offsets[begin : begin + rows], batch.slice(begin, rows)


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


def refuse_unknown_columns(listener: Listener) -> None:
    """Raise ListenerError for a listener that names a column which no message has."""
    if strange := [name for name in listener.columns or () if name not in tables.MSG.names]:
        raise ListenerError(
            f"listener {listener.name}: its columns name {', '.join(strange):.200}, which no message has; "
            f"known are {', '.join(MESSAGE_COLUMNS)}"
        )


def _ask(
    job: ConsumeJob, listener: Listener, slice_: Slice, offsets: npt.NDArray[np.int64], batch: pa.RecordBatch
) -> tuple[Mask | None, Sequence[Answer]]:
    """Which rows failed (None: none) and the answer for each of these."""
    switches: _Switches = {"all_or_nothing": job.all_or_nothing, "secrets": listener.secrets}
    context = partial(ConsumeConcurrentlyContext, slice_.queue, job.group)
    if listener.kind is ListenerKind.BATCH:
        view = batch if listener.columns is None else batch.select(list(listener.columns))
        began_ms = job.now_ms()
        mask, told = ask(listener, (slice_.queue, int(offsets[0])), view, context, partial(judge_batch, **switches))
        took_ms = job.now_ms() - began_ms
        return _unless_expired(mask, told, batch.num_rows, took_ms, job.consume_timeout_ms)
    views = MessageViews(slice_, offsets, batch)
    size = job.batch_max_size
    failed: list[int] = []
    why: list[Answer] = []
    now_ms, timeout_ms = job.now_ms, job.consume_timeout_ms
    read = partial(_read, switches)
    began_ms = now_ms()
    for begin in range(0, batch.num_rows, size):
        end = min(begin + size, batch.num_rows)
        judged = ask(listener, (slice_.queue, int(offsets[begin])), views.messages(begin, end), context, read)
        ended_ms = now_ms()
        began_ms, took_ms = ended_ms, ended_ms - began_ms
        if judged is None:
            if not is_expired(took_ms, timeout_ms):
                continue
            judged = (ACKED,) * (end - begin)
        for index, one in enumerate(clean_expired_msg(judged, took_ms, timeout_ms), begin):
            if not one.acked:
                failed.append(index)
                why.append(one)
    if not failed:
        return None, why
    mask = np.zeros(batch.num_rows, dtype=np.bool_)
    mask[failed] = True
    return mask, why


def _read(
    switches: _Switches, answer: Any, n: int, context: ConsumeConcurrentlyContext, error: BaseException | None
) -> tuple[Answer, ...] | None:
    """None: all are acked."""
    if error is None and _all_succeeded(answer, context):
        return None
    return judge(answer, n, context, error, **switches)


def _unless_expired(
    failed: Mask | None, why: Sequence[Answer], n: int, took_ms: int, timeout_ms: int | None
) -> tuple[Mask | None, Sequence[Answer]]:
    """Which of the ``n`` rows of a call failed and why, when it is known how long it took."""
    if not is_expired(took_ms, timeout_ms):
        return failed, why
    told = iter(why)
    answers = [ACKED] * n if failed is None else [next(told) if no else ACKED for no in failed.tolist()]
    return np.ones(n, dtype=np.bool_), clean_expired_msg(answers, took_ms, timeout_ms)


def _all_succeeded(answer: object, context: ConsumeConcurrentlyContext) -> bool:
    """The usual answer, recognised without building an Answer per message, and without a ``==`` of the listener's own."""
    is_success = answer is _SUCCESS or (type(answer) is str and answer == _SUCCESS)
    return is_success and _is_untouched(context)


def _is_untouched(context: ConsumeConcurrentlyContext) -> bool:
    level = getattr(context, "delay_level_when_next_consume", None)
    return getattr(context, "ack_index", None) is INT_MAX and type(level) is int and level == 0


# --- one queue in order ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _QueueDone:
    done: RangeDone
    failures: Sequence[Failures]
    waits: Mapping[MessageQueue, int]
    blocked: Sequence[Blocked]
    dropped: Sequence[DroppedRange]


def _consume_in_order(
    job: ConsumeJob, rules: OrderlyRules, listener: Listener, queue: MessageQueue, slices: Sequence[Slice]
) -> _QueueDone:
    """A queue by the rules of orderly consumption; what is over the limit fails, and its route is the dead letters."""
    pulled = _Pulled(job, listener, slices)
    tried = [blocked for blocked in job.tried if blocked.range.queue == queue]
    found = consume_orderly(listener, queue, pulled.messages(), rules, tried, job.is_over)
    end = slices[-1].end if found.waits_at is None else found.waits_at
    dead = {letter.offset: letter for letter in found.dead}
    failures = []
    for slice_ in slices:
        letters = [letter for offset, letter in dead.items() if slice_.begin <= offset < slice_.end]
        if letters:
            offsets = np.array([letter.offset for letter in letters], dtype=np.int64)
            rows = SliceReader(job.root, job.table, slice_).rows(offsets, COPY_COLUMNS)
            times = pa.array([letter.reconsume_times for letter in letters], pa.int32())
            rows = rows.set_column(rows.column_names.index("reconsume_times"), "reconsume_times", times)
            failures.append(Failures(queue, job.passes[queue], offsets, [letter.answer for letter in letters], rows))
    tallies = {
        Outcome.ACKED: found.acked,
        Outcome.FILTERED: pulled.filtered_below(end),
        Outcome.DROPPED: tally_of(pulled.void_below(end)),
        Outcome.DEAD: tally_of(np.array(list(dead), dtype=np.int64)),
    }
    return _QueueDone(
        RangeDone(
            QueueRange(queue, slices[0].begin, end), {name: tally for name, tally in tallies.items() if tally.count}
        ),
        failures,
        {} if found.waits_at is None else {queue: found.waits_at},
        found.blocked,
        void_ranges(queue, pulled.void_below(end).tolist()),
    )


class _Pulled:
    """The wanted messages of a queue, read as they are asked for; remembers what the filter kept back."""

    def __init__(self, job: ConsumeJob, listener: Listener, slices: Sequence[Slice]) -> None:
        self._job, self._slices = job, slices
        self._subscription = job.subscriptions[slices[0].queue.topic]
        columns = _columns_for(listener, self._subscription)
        self._void_before = job.void_before(slices[0].queue)
        self._columns = with_epoch(columns and [*dict.fromkeys([*columns, "reconsume_times"])], self._void_before)
        self._filtered: list[Offsets] = []
        self._void: list[Offsets] = [NO_OFFSETS]

    def messages(self) -> Iterator[MessageExt]:
        for slice_ in self._slices:
            for offsets, batch in SliceReader(self._job.root, self._job.table, slice_).batches(self._columns):
                if self._void_before is not None:
                    gone = void_rows(batch, self._void_before)
                    self._void.append(offsets[gone])
                    offsets, batch = offsets[~gone], without_epoch(batch).filter(pa.array(~gone))
                wanted = matching(batch, self._subscription)
                if wanted is not None:
                    self._filtered.append(offsets[~wanted])
                    offsets, batch = offsets[wanted], batch.filter(pa.array(wanted))
                yield from MessageViews(slice_, offsets, batch).messages(0, batch.num_rows)

    def filtered_below(self, end: int) -> Tally:
        several = (tally_of(offsets[offsets < end]) for offsets in self._filtered)
        return sum(several, Tally())

    def void_below(self, end: int) -> npt.NDArray[np.int64]:
        """The offsets of what waited when the group was deleted."""
        offsets = np.concatenate(self._void)
        return offsets[offsets < end]
