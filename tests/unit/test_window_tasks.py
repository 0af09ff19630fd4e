"""How a window's messages are dealt out to tasks."""

from __future__ import annotations

import pytest

from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, canonical_json
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.listener import ListenerKind
from rmq_store.consumer.pull import Slice
from rmq_store.lake.window.window_tasks import ROWS_PER_MS, in_bins, rows_per_ms, task_rows, tasks_of
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
    assert task_rows(rows, slots, ROWS_PER_MS[kind], 1) == expected


@pytest.mark.parametrize(
    ("rows", "slots", "rate", "least", "expected"),
    [
        (100_000, 8, 0.5, 1, 1_000),
        (1_000, 8, 0.5, 1, 125),
        (300, 8, 0.01, 1, 19),
        (300, 8, 0.0001, 1, 1),
        (1_000, 8, 0.0001, 1, 2),
        (100_000, 8, 0.01, 1, 196),
        (100_000, 8, 0.01, 1_000, 1_000),
        (1_000, 8, 0.01, 32, 32),
        (0, 8, 0.01, 1, 2),
    ],
    ids=[
        "two seconds", "a quarter of a second", "two tasks a slot", "one message is the least", "two messages",
        "64 tasks a slot at most", "a call of a batch listener", "a call of a message listener", "no message",
    ],
)  # fmt: skip
def test_the_tasks_of_a_slow_listener_are_smaller(
    rows: int, slots: int, rate: float, least: int, expected: int
) -> None:
    assert task_rows(rows, slots, rate, least) == expected


LISTENER = "demo.listener:consume"


def window_of(messages: int, task_ms: int | None, listener: str = LISTENER) -> Ctl:
    parameters = {} if task_ms is None else {"task_ms": task_ms}
    consumed = (Consumed(QueueRange(MessageQueue("T", "b", 0), 0, messages), 0, {}),) if messages else ()
    return Ctl(
        "c",
        Action.CONSUME,
        Actor("ana", "os"),
        parameters=canonical_json(parameters),
        listener=listener,
        consumed=consumed,
    )


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, 200.0),
        (window_of(5_000, None), 200.0),
        (window_of(5_000, 10_000), 0.5),
        (window_of(10, 1_000), 0.01),
        (window_of(10, 999), 200.0),
        (window_of(0, 5_000), 200.0),
        (window_of(5_000, 10_000, "demo.listener:another"), 200.0),
        (window_of(9_000_000, 10_000), 200.0),
    ],
    ids=[
        "no window before", "one of an earlier version", "slow", "just long enough", "too short", "no message",
        "another listener", "fast because of its filter",
    ],
)  # fmt: skip
def test_the_rate_of_a_listener_is_that_of_the_last_window(last: Ctl | None, expected: float) -> None:
    assert rows_per_ms(MESSAGE, LISTENER, last) == expected


@pytest.mark.parametrize(("pieces", "most"), [((10,) * 7, 30), ((50, 1, 1, 1), 30), ((3,), 30), ((29, 29, 29), 30)])
def test_tasks_are_of_about_one_size_and_leave_nothing_out(pieces: tuple[int, ...], most: int) -> None:
    slices = [Slice(MessageQueue("T", "b", n), 0, rows, "f", 0) for n, rows in enumerate(pieces)]
    bins = list(in_bins([[slice_] for slice_ in slices], most))
    assert [slice_ for bin_ in bins for slice_ in bin_] == slices
    assert len(bins) <= -(-sum(pieces) // most)
    assert all(sum(map(len, bin_)) <= most + max(pieces) for bin_ in bins)


def test_no_pieces_are_no_task() -> None:
    assert list(in_bins([], 30)) == []


@pytest.mark.parametrize(("mode", "tasks"), [("concurrently", 8), ("orderly", 2)])
def test_in_order_a_queue_is_the_work_of_one_task(mode: str, tasks: int) -> None:
    queues = [MessageQueue("T", "b", n) for n in range(2)]
    slices = {queue: [Slice(queue, begin, begin + 250_000, "f", 0) for begin in (0, 250_000)] for queue in queues}
    found = tasks_of(
        group(mode=mode, consumers=1), {queue: slices[queue] * 2 for queue in queues}, 100, BATCH, ROWS_PER_MS[BATCH]
    )
    assert len(found) == tasks
    for queue in queues if mode == "orderly" else ():
        assert [task.slices for task in found if task.slices[0].queue == queue] == [tuple(slices[queue] * 2)]
