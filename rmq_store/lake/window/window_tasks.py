"""The tasks of a window: its queues are allocated to consumers, and each consumer's work is cut into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq_store.commit.ctl import Ctl
from rmq_store.consumer.listener import ListenerKind
from rmq_store.consumer.pull import Slice
from rmq_store.lake.window.consume_job import ConsumeTask
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import shares
from rmq_store.window.plan import TASK_MS

TASKS_PER_SLOT = 2
"""So many tasks of a window each task slot of the engine gets, if that makes them neither too short nor too long."""
LEAST_TASK_MS = 250
MOST_TASK_MS = 2_000
ROWS_PER_MS = {ListenerKind.BATCH: 1_000, ListenerKind.MESSAGE: 200}
"""How many messages a core processes in a millisecond with a listener that does little (``docs/speed.md``), by its form: a
call with messages costs Python objects, a call with a record batch does not."""
MEASURED_MS = 1_000
"""The tasks of a window that took less in all say more about how long a task takes to start than about the listener."""
MOST_TASKS_PER_SLOT = 64
"""A rate is only that of the last window. If it is much too low, a window has at most so many tasks for each slot."""
ROWS_PER_BATCH = 1_000
"""The least task of a listener with record batches: a call costs about the same for fewer messages."""


def rows_per_ms(kind: ListenerKind, listener: str, last: Ctl | None) -> float:
    """How many messages a core processes in a millisecond, more than 0, with ``listener`` (its name in the settings).

    As in ``last``, the group's last window, if that had the same listener and was long enough; None: there was none. At most
    ``ROWS_PER_MS``: a filter can make many messages cost nothing, and the next ones may all match.
    """
    estimate = ROWS_PER_MS[kind]
    if last is None or last.listener != listener:
        return estimate
    task_ms = last.parameter(TASK_MS) or 0
    messages = sum(consumed.messages for consumed in last.consumed)
    return min(messages / task_ms, estimate) if messages and task_ms >= MEASURED_MS else estimate


def task_rows(rows: int, slots: int, rate: float, least: int) -> int:
    """How many messages a task gets in a window of ``rows`` messages, ``least`` (1 or more) or more. ``rate``: messages per
    ms (``rows_per_ms``).

    Few tasks, as each costs tens of milliseconds, but enough that the slots end at about the same time, and none so long
    that running it again is expensive. A single slot waits for no other.
    """
    even = -(-rows // (slots * TASKS_PER_SLOT)) if slots > 1 else rows
    most = min(max(even, int(LEAST_TASK_MS * rate)), int(MOST_TASK_MS * rate))
    return max(most, -(-rows // (slots * MOST_TASKS_PER_SLOT)), least)


def tasks_of(
    group: GroupSettings, slices: dict[MessageQueue, list[Slice]], slots: int, kind: ListenerKind, rate: float
) -> list[ConsumeTask]:
    """Allocate the queues to consumers (``shares``), and cut each consumer's work into tasks. ``kind``: of the listener;
    ``rate``: messages per ms (``rows_per_ms``)."""
    tasks: list[ConsumeTask] = []
    rows = sum(len(slice_) for of_queue in slices.values() for slice_ in of_queue)
    least = ROWS_PER_BATCH if kind is ListenerKind.BATCH else group.consume_message_batch_max_size
    most = task_rows(rows, slots, rate, least)
    whole = group.mode == "orderly" or group.max_minutes is not None
    for consumer, queues in shares(group, slices, slots):
        if whole:  # a queue is the work of one task, however long: the task may end in the middle of it
            units = [slices[queue] for queue in queues if slices[queue]]
        else:
            units = [[cut] for queue in queues for slice_ in slices[queue] for cut in slice_.cut(most)]
        for bin_ in in_bins(units, most):
            tasks.append(ConsumeTask(len(tasks), consumer, tuple(bin_)))
    return tasks


def in_bins(units: Sequence[Sequence[Slice]], most: int) -> Iterable[list[Slice]]:
    """Bins of neighbouring units, of about the same size, with about ``most`` rows (1 or more) at most. No unit is cut."""
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
