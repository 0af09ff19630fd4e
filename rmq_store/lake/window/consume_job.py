"""What a window gives to its tasks and gets back from them (``consume_slice.py`` does the work between)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rmq_store.commit.ctl import Blocked, Produced, StagedFile
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.consume_orderly import OrderlyRules
from rmq_store.consumer.consume_result import DroppedRange
from rmq_store.consumer.pull import Slice
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import Mask
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.window.retry_rows import RetryPolicy
from rmq_store.message.message import MessageQueue, retry_topic
from rmq_store.utils.host import epoch_ms


@dataclass(frozen=True, slots=True)
class ConsumeJob:
    """What all tasks of a window have in common. ``in_order``: None for concurrent consumption. ``now_ms``: the clock where
    a task runs. ``ends_at_ms``: when the window ends (UTC ms); a queue is the work of one task then. ``deleted``: the
    group's epoch at its last delete."""

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
    broadcasting: bool = False
    in_order: OrderlyRules | None = None
    tried: tuple[Blocked, ...] = ()
    absorbs: bool = False
    consume_timeout_ms: int | None = None
    now_ms: Callable[[], int] = epoch_ms
    ends_at_ms: int | None = None
    deleted: int | None = None

    def is_over(self) -> bool:
        """Whether nothing more is to be asked. A task does its first piece in any case."""
        return self.ends_at_ms is not None and self.now_ms() >= self.ends_at_ms

    def void_before(self, queue: MessageQueue) -> int | None:
        """The epoch before which a queue's messages are dropped; None where there are none of those."""
        return self.deleted if queue.topic == retry_topic(self.group) else None


Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ConsumeTask:
    """What one task does: slices of one consumer's queues, in offset order per queue; in order all slices of a queue.

    ``only``: the offsets that are looked at, None for all; ``leave``: those that are not. Ascending, per queue.
    """

    number: int
    consumer: str
    slices: tuple[Slice, ...]
    only: Mapping[MessageQueue, Offsets] | None = None
    leave: Mapping[MessageQueue, Offsets] = field(default_factory=dict)

    def looks_at(self, queue: MessageQueue, offsets: Offsets) -> Mask | None:
        """Which of these neighbours, None for all."""
        if self.only is not None:
            return _mark(offsets, self.only.get(queue, NO_OFFSETS))
        left = _mark(offsets, self.leave.get(queue, NO_OFFSETS))
        return ~left if left.any() else None


NO_OFFSETS: Offsets = np.array([], dtype=np.int64)


def _mark(offsets: Offsets, these: Offsets) -> Mask:
    begin, end = np.searchsorted(these, [offsets[0], offsets[-1] + 1])
    mask = np.zeros(len(offsets), dtype=np.bool_)
    mask[these[begin:end] - offsets[0]] = True
    return mask


@dataclass(frozen=True, slots=True)
class RangeDone:
    """The evidence for one slice; in order for the finished part of a queue."""

    range: QueueRange
    tallies: Mapping[Outcome, Tally]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task brings back; its files are in no version of the table yet.

    ``waits``: the queues that do not come to the end of their slices, and how far they do; ``blocked``: why. ``failed``:
    what was asked about and not acked, where the group absorbs duplicates.
    """

    number: int
    done: tuple[RangeDone, ...]
    files: tuple[StagedFile, ...] = ()
    produced: tuple[Produced, ...] = ()
    waits: Mapping[MessageQueue, int] = field(default_factory=dict)
    blocked: tuple[Blocked, ...] = ()
    dropped: tuple[DroppedRange, ...] = ()
    failed: tuple[tuple[MessageQueue, Offsets], ...] = ()
