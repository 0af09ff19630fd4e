"""Where the work on the keys of a window runs, and what tasks send and return."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.consumer.pull import Slice
from rmq_store.lake.window import key_tasks
from rmq_store.lake.window.engine import LocalEngine, ThreadsEngine
from rmq_store.lake.window.key_files import HashSet
from rmq_store.lake.window.key_tasks import engine_of_keys, parts_of
from rmq_store.lake.window.window_keys import COMPARED_BYTES, PartKeys, bits_of, comparable, keys_of, mask_of, within
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host

QUEUES = [MessageQueue("Orders", "broker-a", number) for number in range(3)]
THREADS = ThreadsEngine(2)


@pytest.mark.parametrize(
    ("on_cluster", "slots", "rows", "in_tasks"),
    [
        (False, 1, 100, False),  # this process
        (False, 4, 100, False),  # Spark on this host
        (False, 5, 100, True),  # a Connect server with more cores than this host has
        (True, 1, 100, True),
        (True, 64, 100, True),
        (True, 64, 99, False),
        (False, 64, 99, False),
    ],
)
def test_work_on_keys_is_the_engines_where_it_has_other_hosts_and_there_is_much(
    on_cluster: bool, slots: int, rows: int, in_tasks: bool
) -> None:
    engine = LocalEngine(Host(), "spark", slots, on_cluster)
    assert engine_of_keys(engine, THREADS, rows, 100, cores=4) is (engine if in_tasks else THREADS)


def test_the_slots_of_an_engine_are_not_asked_for_little_work() -> None:
    class Cold:
        name, on_cluster = "spark", False

        @property
        def slots(self) -> int:
            raise AssertionError

        def __call__(self, run: object, job: object, tasks: object) -> list[object]:
            raise AssertionError

    assert engine_of_keys(Cold(), THREADS, 99, 100) is THREADS  # type: ignore[arg-type]


def twice(job: int, task: int, attempt: str) -> tuple[int, str]:
    return 2 * job * task, attempt


@pytest.mark.parametrize("count", [0, 1, 5])
def test_threads_are_an_engine(count: int) -> None:
    results = THREADS(twice, 3, range(count))
    assert [number for number, _ in results] == [6 * task for task in range(count)]
    assert len({attempt for _, attempt in results}) == count


# --- what is sent and returned ---------------------------------------------------------------------------------------


def test_a_set_of_hashes_is_sent_without_its_table() -> None:
    hashes = np.sort(np.random.default_rng(1).integers(-(1 << 62), 1 << 62, 1_000))
    pickled = pickle.dumps(HashSet(hashes))
    assert len(pickled) < 8 * len(hashes) + 500
    copy = pickle.loads(pickled)
    assert copy.contains(np.append(hashes, 1 << 62)).tolist() == [True] * len(hashes) + [False]
    assert copy.maybe_in([hashes])[0].tolist() == list(range(len(hashes)))


TEXTS = st.lists(st.text("aé", max_size=COMPARED_BYTES + 2) | st.text("ab", min_size=100, max_size=101))


@given(TEXTS, TEXTS)
def test_short_bytes_are_compared_in_place_of_texts(some: list[str], others: list[str]) -> None:
    texts = pa.chunked_array([some, others], pa.large_string())
    compared = comparable(texts).to_pylist()
    assert all(len(one) <= COMPARED_BYTES for one in compared)
    assert len(set(compared)) == len(set(texts.to_pylist())) == len(set(zip(texts.to_pylist(), compared, strict=True)))
    short = [(text.encode(), one) for text, one in zip([*some, *others], compared, strict=True) if one[:1] != b"\xff"]
    assert all(text == one for text, one in short)


@given(st.lists(st.booleans(), max_size=20))
def test_a_bit_for_each_is_read_back(mask: list[bool]) -> None:
    assert mask_of(bits_of(np.array(mask, dtype=np.bool_)), len(mask)).tolist() == mask


def slices_of(*bounds: tuple[int, int, int]) -> list[Slice]:
    return [Slice(QUEUES[number], begin, end, f"{number}-{begin}", 0) for number, begin, end in bounds]


@pytest.mark.parametrize("kept", [None, [True, False, True, False, True, True]])
def test_the_keys_of_parts_have_their_places(kept: list[bool] | None) -> None:
    slices = slices_of((0, 5, 7), (0, 9, 10), (1, 0, 3))
    count = 6 if kept is None else sum(kept)
    bits = None if kept is None else bits_of(np.array(kept))
    texts = pa.chunked_array([[f"K{number}" for number in range(count)]], pa.large_string())
    first = PartKeys(0, bits, np.arange(count), texts)
    second = PartKeys(1, None, np.array([70]), pa.chunked_array([["L"]], pa.large_string()))
    keys = keys_of([(slices, first), (slices_of((1, 3, 4)), second)])
    offsets = {queue: found.tolist() for queue, found in keys.by_queue(np.arange(count + 1)).items()}
    assert offsets == {
        QUEUES[0]: [5, 6, 9] if kept is None else [5, 9],
        QUEUES[1]: [0, 1, 2, 3] if kept is None else [1, 2, 3],
    }
    assert (keys.hashes[-1], len(keys.texts or ())) == (70, count + 1)
    second = PartKeys(1, None, np.array([70]), None)
    assert keys_of([(slices, first), (slices_of((1, 3, 4)), second)]).texts is None


def test_parts_are_neighbouring_slices_and_no_slice_of_them_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_tasks, "PART_ROWS", 4)
    slices = slices_of((0, 0, 10), (1, 0, 1), (1, 1, 2), (2, 0, 1))
    parts = parts_of(slices, 4)
    assert [part.number for part in parts] == [0, 1, 2, 3]
    assert [[(cut.queue.queue_id, cut.begin, cut.end) for cut in part.slices] for part in parts] == [
        [(0, 0, 4)], [(0, 4, 8)], [(0, 8, 10)], [(1, 0, 1), (1, 1, 2), (2, 0, 1)],
    ]  # fmt: skip
    assert parts_of([], 4) == []


def test_a_task_gets_the_offsets_of_its_slices_only() -> None:
    offsets = {QUEUES[0]: np.array([1, 4, 5, 9, 20]), QUEUES[1]: np.array([3])}
    chosen = within(offsets, slices_of((0, 4, 6), (0, 9, 12), (1, 0, 3), (2, 0, 9)))
    assert {queue: of_queue.tolist() for queue, of_queue in chosen.items()} == {QUEUES[0]: [4, 5, 9]}
