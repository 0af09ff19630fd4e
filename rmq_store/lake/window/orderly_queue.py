"""A queue of an orderly group in a task: its messages one batch after the other, by ``consumer/consume_orderly.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmq_store.commit.ctl import Blocked
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.consume_orderly import OrderlyRules, consume_orderly
from rmq_store.consumer.consume_result import DroppedRange, void_ranges
from rmq_store.consumer.pull import Slice
from rmq_store.lake.listener.task_listener import TaskListener, columns_for
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table.evidence import tally_of
from rmq_store.lake.window.chosen_rows import chosen_rows
from rmq_store.lake.window.consume_job import NO_OFFSETS, ConsumeJob, Offsets, RangeResult
from rmq_store.lake.window.retry_rows import COPY_COLUMNS, Failures, Origin
from rmq_store.lake.window.void_rows import with_epoch
from rmq_store.message.message import MessageExt, MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueResult:
    """What became of a queue."""

    range: RangeResult
    failures: Sequence[Failures]
    waits: Mapping[MessageQueue, int]
    blocked: Sequence[Blocked]
    dropped: Sequence[DroppedRange]


def consume_in_order(
    job: ConsumeJob,
    rules: OrderlyRules,
    listener: TaskListener,
    queue: MessageQueue,
    slices: Sequence[Slice],
    files: OpenFiles,
) -> QueueResult:
    """Consume a queue in order. Messages over the retry limit are its failures, and become dead letters."""
    pulled = _Pulled(job, listener, slices, files)
    tried = [blocked for blocked in job.tried if blocked.range.queue == queue]
    call = listener.in_order(queue, ahead=not tried)

    def is_over() -> bool:
        return job.is_over() and not listener.is_ahead

    result = consume_orderly(call, queue, pulled.messages(), rules, tried=tried, is_over=is_over)
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
    return QueueResult(
        range=RangeResult(QueueRange(queue, slices[0].begin, end), present),
        failures=failures,
        waits={} if result.waits_at is None else {queue: result.waits_at},
        blocked=result.blocked,
        dropped=void_ranges(queue, pulled.void_below(end).tolist()),
    )


class _Pulled:
    """The messages of a queue that match the subscription, read lazily; counts those that do not."""

    def __init__(self, job: ConsumeJob, listener: TaskListener, slices: Sequence[Slice], files: OpenFiles) -> None:
        self._job, self._slices, self._files = job, slices, files
        self._subscription = job.subscription(slices[0].queue.topic)
        columns = columns_for(listener, self._subscription)
        self._void_before = job.void_before(slices[0].queue)
        self._columns = with_epoch(columns and [*dict.fromkeys([*columns, "reconsume_times"])], self._void_before)
        self._filtered: list[Offsets] = []
        self._void: list[Offsets] = [NO_OFFSETS]

    def messages(self) -> Iterator[MessageExt]:
        for slice_ in self._slices:
            reader = SliceReader(self._job.root, self._job.table, slice_, self._files)
            for offsets, batch in reader.batches(self._columns):
                offsets, batch, void, filtered = chosen_rows(offsets, batch, self._subscription, self._void_before)
                self._void.append(void)
                self._filtered.append(filtered)
                yield from MessageViews(slice_.queue, offsets, batch).messages(0, batch.num_rows)

    def filtered_below(self, end: int) -> Tally:
        several = (tally_of(offsets[offsets < end]) for offsets in self._filtered)
        return sum(several, Tally())

    def void_below(self, end: int) -> Offsets:
        """The offsets of the retries from before the group was deleted."""
        offsets = np.concatenate(self._void)
        return offsets[offsets < end]
