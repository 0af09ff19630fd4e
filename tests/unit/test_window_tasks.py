"""How a window's messages are dealt out to tasks."""

from __future__ import annotations

import pytest

from rmq_store.consumer.listener import ListenerKind
from rmq_store.consumer.pull import Slice
from rmq_store.lake.window.window_tasks import _packed, task_rows, tasks_of
from rmq_store.message.message import MessageQueue
from tests.contract.world import group

BATCH, MESSAGE = ListenerKind.BATCH, ListenerKind.MESSAGE


@pytest.mark.parametrize(
    ("rows", "slots", "kind", "expected"),
    [
        (0, 2, BATCH, 250_000),
        (300_000, 2, BATCH, 250_000),
        (5_000_000, 2, BATCH, 1_250_000),
        (5_000_001, 2, BATCH, 1_250_001),
        (5_000_000, 16, BATCH, 250_000),
        (100_000_000, 2, BATCH, 2_000_000),
        (100_000, 2, MESSAGE, 50_000),
        (5_000_000, 40, MESSAGE, 62_500),
        (5_000_000, 2, MESSAGE, 400_000),
        (300_000, 1, MESSAGE, 300_000),
        (5_000_000, 1, BATCH, 2_000_000),
    ],
)
def test_a_task_takes_long_enough_and_not_too_long(rows: int, slots: int, kind: ListenerKind, expected: int) -> None:
    assert task_rows(rows, slots, kind) == expected


@pytest.mark.parametrize(("pieces", "most"), [((10,) * 7, 30), ((50, 1, 1, 1), 30), ((3,), 30), ((29, 29, 29), 30)])
def test_tasks_are_of_about_one_size_and_leave_nothing_out(pieces: tuple[int, ...], most: int) -> None:
    slices = [Slice(MessageQueue("T", "b", n), 0, rows, "f", 0) for n, rows in enumerate(pieces)]
    bins = list(_packed([[slice_] for slice_ in slices], most))
    assert [slice_ for bin_ in bins for slice_ in bin_] == slices
    assert len(bins) <= -(-sum(pieces) // most)
    assert all(sum(map(len, bin_)) <= most + max(pieces) for bin_ in bins)


def test_no_pieces_are_no_task() -> None:
    assert list(_packed([], 30)) == []


@pytest.mark.parametrize(("mode", "tasks"), [("concurrently", 8), ("orderly", 2)])
def test_in_order_a_queue_is_the_work_of_one_task(mode: str, tasks: int) -> None:
    queues = [MessageQueue("T", "b", n) for n in range(2)]
    slices = {queue: [Slice(queue, begin, begin + 250_000, "f", 0) for begin in (0, 250_000)] for queue in queues}
    found = tasks_of(group(mode=mode, consumers=1), {queue: slices[queue] * 2 for queue in queues}, 100, BATCH)
    assert len(found) == tasks
    for queue in queues if mode == "orderly" else ():
        assert [task.slices for task in found if task.slices[0].queue == queue] == [tuple(slices[queue] * 2)]
