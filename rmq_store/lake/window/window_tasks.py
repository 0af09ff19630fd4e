"""The tasks of a window: its queues are allocated to consumers, and each consumer's work is cut into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq_store.consumer.listener import ListenerKind
from rmq_store.consumer.pull import Slice
from rmq_store.lake.window.consume_job import ConsumeTask
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import shares

TASKS_PER_SLOT = 2
"""So many tasks of a window each task slot of the engine gets, if that makes them neither too short nor too long."""
LEAST_TASK_MS = 250
MOST_TASK_MS = 2_000
ROWS_PER_MS = {ListenerKind.BATCH: 1_000, ListenerKind.MESSAGE: 200}
"""How many messages a core processes in a millisecond with a listener that does little (``docs/speed.md``), by its form: a
call with messages costs Python objects, a call with a record batch does not."""


def task_rows(rows: int, slots: int, kind: ListenerKind) -> int:
    """How many messages a task gets in a window of ``rows`` messages, 1 or more.

    Few tasks, as each costs tens of milliseconds, but enough that the slots end at about the same time, and none so long
    that running it again is expensive. A single slot waits for no other.
    """
    even = -(-rows // (slots * TASKS_PER_SLOT)) if slots > 1 else rows
    return min(max(even, LEAST_TASK_MS * ROWS_PER_MS[kind]), MOST_TASK_MS * ROWS_PER_MS[kind])


def tasks_of(
    group: GroupSettings, slices: dict[MessageQueue, list[Slice]], slots: int, kind: ListenerKind
) -> list[ConsumeTask]:
    """Allocate the queues to consumers (``shares``), and cut each consumer's work into tasks. ``kind``: of the listener."""
    tasks: list[ConsumeTask] = []
    most = task_rows(sum(len(slice_) for of_queue in slices.values() for slice_ in of_queue), slots, kind)
    whole = group.mode == "orderly" or group.max_minutes is not None
    for consumer, queues in shares(group, slices, slots):
        if whole:  # a queue is the work of one task, however long: the task may end in the middle of it
            units = [slices[queue] for queue in queues if slices[queue]]
        else:
            units = [[cut] for queue in queues for slice_ in slices[queue] for cut in slice_.cut(most)]
        for bin_ in _packed(units, most):
            tasks.append(ConsumeTask(len(tasks), consumer, tuple(bin_)))
    return tasks


def _packed(units: Sequence[Sequence[Slice]], most: int) -> Iterable[list[Slice]]:
    """Bins of neighbouring units, of about the same size, with about ``most`` rows at most. No unit is cut."""
    sizes = [sum(map(len, unit)) for unit in units]
    total = sum(sizes)
    bins = -(-total // most)
    bin_: list[Slice] = []
    rows = full = 0
    for unit, size in zip(units, sizes, strict=True):
        bin_ += unit
        rows += size
        if rows * bins >= total * (full + 1):
            yield bin_
            bin_, full = [], full + 1
