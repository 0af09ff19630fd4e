"""The values between a window and its tasks: the job, the tasks, and their results. ``consume_slice.py`` runs a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rmq_store.commit.ctl import Blocked, Produced, StagedFile
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.consumer.consume_result import DroppedRange
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.pull import Slice
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import Mask
from rmq_store.lake.table.object_store import Root
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import epoch_ms
from rmq_store.window.consume import subscriptions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeJob:
    """What all tasks of a window have in common. Spark sends it to its workers in pickled form, so it stays small."""

    root: Root
    table: str
    """The path of the commit log table below the root."""
    group: GroupSettings
    commit_id: str
    window_id: str
    epoch: int
    """The group's epoch."""
    passes: Mapping[MessageQueue, int]
    """Of each queue of the window."""
    levels: DelayLevels
    """The store's delay levels."""
    local_broker: str
    """The broker name of the shard's lake-born queues, those of dead letters among them."""
    lane: str
    """The broker name of the group's own schedule queues in the shard."""
    tried: tuple[Blocked, ...] = ()
    """What blocks queues of an orderly group, and how often it was tried."""
    deleted: int | None = None
    """The group's epoch at its last delete."""
    ends_at_ms: int | None = None
    """When the window ends (UTC ms); then a queue is the work of one task. None: no limit."""
    now_ms: Callable[[], int] = epoch_ms
    """The clock of the host on which a task runs."""

    def is_over(self) -> bool:
        """Whether the listener is called no more. A task does its first batch in any case."""
        return self.ends_at_ms is not None and self.now_ms() >= self.ends_at_ms

    def subscription(self, topic: str) -> SubscriptionData:
        return subscriptions_of(self.group)[topic]

    def void_before(self, queue: MessageQueue) -> int | None:
        """The epoch before which a queue's messages are dropped, as their group was deleted; None: no message is."""
        return self.deleted if queue.topic == retry_topic(self.group.name) else None


Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ConsumeTask:
    """What one task does."""

    number: int
    """Its number in the window, which is the part of its file in the commit."""
    consumer: str
    slices: tuple[Slice, ...]
    """Slices of one consumer's queues, per queue in offset order. In an orderly group all slices of a queue."""
    only: Mapping[MessageQueue, Offsets] | None = None
    """The offsets to consume, ascending; None: all."""
    leave: Mapping[MessageQueue, Offsets] = field(default_factory=dict)
    """The offsets to leave out, ascending."""

    def selected(self, queue: MessageQueue, offsets: Offsets) -> Mask | None:
        """Which of these neighbouring offsets the task consumes; None: all."""
        if self.only is not None:
            return _mark(offsets, self.only.get(queue, NO_OFFSETS))
        omitted = _mark(offsets, self.leave.get(queue, NO_OFFSETS))
        return ~omitted if omitted.any() else None


NO_OFFSETS: Offsets = np.array([], dtype=np.int64)


def _mark(offsets: Offsets, marked: Offsets) -> Mask:
    """Which of the neighbouring ``offsets`` are ``marked``, which ascend."""
    begin, end = np.searchsorted(marked, [offsets[0], offsets[-1] + 1])
    mask = np.zeros(len(offsets), dtype=np.bool_)
    mask[marked[begin:end] - offsets[0]] = True
    return mask


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The evidence for one slice; in an orderly group for the finished part of a queue."""

    range: QueueRange
    tallies: Mapping[Outcome, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task returns. Its files are in no version of the table yet."""

    number: int
    ranges: tuple[RangeResult, ...]
    files: tuple[StagedFile, ...] = ()
    produced: tuple[Produced, ...] = ()
    """The segments of the copies in its files."""
    waits: Mapping[MessageQueue, int] = field(default_factory=dict)
    """The queues that stop before the end of their slices, with the offset at which they stop."""
    blocked: tuple[Blocked, ...] = ()
    """The messages because of which orderly queues stop."""
    dropped: tuple[DroppedRange, ...] = ()
    failed: tuple[tuple[MessageQueue, Offsets], ...] = ()
    """The consumed messages that were not acked, in a group that absorbs duplicates."""
    took_ms: int = 0
    """How long the task took once the listener was loaded, ms of wall time."""
    listener_version: str = ""
    """See ``Listener``."""
    deaths: int | None = None
    """``TaskListener.deaths_of_task``."""
