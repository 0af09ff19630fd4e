"""Delivery of retries that are due, offsets by time, and messages by key."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

from benchmarks.bench import ACTOR, BROKER, DAY, Bench, Lake, check, cpu_ms, group_of, made_once
from benchmarks.broker_log import FIRST_STORE_TIMESTAMP, MESSAGES_A_MS, QUEUES, TOPIC, keys, unique_keys
from benchmarks.small_windows import SmallWindows
from benchmarks.table import Measurement, Target
from rmq_store.lake.read.message_search import Message, messages_by_key, messages_by_unique_key
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic

DELIVER_TITLE = "delivery of retries that wait, this process"
SEEK_TITLE = "seek by time"
KEY_TITLE = "a message by its key"
WAITING, SEGMENTS = 100_000, 1_000
FAILING = "all-fail"
HOUR_MS = 3_600_000


def measure_deliver(bench: Bench) -> Iterator[Measurement]:
    messages, segments = (WAITING // 50, SEGMENTS // 50) if bench.quick else (WAITING, SEGMENTS)
    many, one = _with_retries(bench, messages, segments), _with_retries(bench, messages, 1)
    samples = bench.in_turns(
        {
            "many": lambda: messages / _seconds_to_deliver(bench, many) / 1000,
            "one": lambda: messages / _seconds_to_deliver(bench, one) / 1000,
            "none": lambda: _ms_of_nothing_due(bench, many),
        }
    )
    what = f"{messages:,} messages in {segments:,} segments, one commit"
    yield Measurement("deliver", what, "k messages/s", samples["many"], target=Target(">=", 50))
    yield Measurement("deliver.one", f"{messages:,} messages in one segment", "k messages/s", samples["one"])
    what = f"nothing due, {messages:,} messages wait in {segments:,} segments, store just opened"
    target = Target("<=", 50)
    yield Measurement("deliver.none", what, "CPU ms", samples["none"], target=target, more_is_better=False)


def _with_retries(bench: Bench, messages: int, windows: int) -> Lake:
    """The lake after windows of one group in which every message failed: each leaves a segment that waits."""
    lake = bench.lake(messages)

    def write(fresh: Path) -> None:
        shutil.copytree(lake.folder, fresh, copy_function=os.link, dirs_exist_ok=True)
        store = LakeStore.open(Root.parse(str(fresh)))
        bench.say(f"{windows:,} windows in which {messages:,} messages fail")
        group = group_of(FAILING, "AllFail")
        small = SmallWindows(store, store.shards(BROKER)[0], group, messages // windows, bench.host)
        small.run(windows)
        small.check()

    return Lake(made_once(bench.folder / "data" / f"retries-{messages}-{windows}", write), messages)


def _seconds_to_deliver(bench: Bench, lake: Lake) -> float:
    """Deliver everything that waits, in a copy of the lake."""
    store, shard = bench.copy(lake)
    now_ms = bench.host.now_ms() + HOUR_MS
    started = time.perf_counter()
    report = deliver(store, shard, f"{DAY}-deliver", ACTOR, bench.host, now_ms=now_ms)
    took = time.perf_counter() - started
    check("delivered", (report.status, report.delivered, report.more), ("committed", lake.messages, False))
    back = MessageQueue(retry_topic(FAILING), shard.local_broker, 0)
    check("messages in the retry topic", shard.positions().max_offset(back), lake.messages)
    shutil.rmtree(store.root.location)
    return took


def _ms_of_nothing_due(bench: Bench, lake: Lake) -> float:
    def look() -> None:
        store = LakeStore.open(Root.parse(str(lake.folder)))
        shard = store.shards(BROKER)[0]
        report = deliver(store, shard, f"{DAY}-none", ACTOR, bench.host, now_ms=bench.host.now_ms() - 24 * HOUR_MS)
        check("nothing is due", (report.status, report.delivered), ("empty", 0))

    return cpu_ms(look)


def measure_seek(bench: Bench) -> Iterator[Measurement]:
    lake = bench.lake(2 * bench.messages)
    queues = [MessageQueue(TOPIC, BROKER, queue_id) for queue_id in range(QUEUES)]
    times = _store_times(lake)
    rng = np.random.default_rng(2)
    ms: list[float] = []
    count = 10 if bench.quick else 40
    for moment in rng.integers(-2, lake.messages // MESSAGES_A_MS + 2, count) + FIRST_STORE_TIMESTAMP:
        started = time.perf_counter()
        shard = LakeStore.open(Root.parse(str(lake.folder))).shards(BROKER)[0]
        offsets = search_offsets(shard, shard.positions(), queues, int(moment))
        ms.append((time.perf_counter() - started) * 1000)
        expected = {queue: int(np.searchsorted(times[queue.queue_id], moment, "left")) for queue in queues}
        check(f"offsets at {moment}", offsets, expected)
    bench.say(f"{count} times looked up, the slowest in {max(ms):.0f} ms")
    what = f"all {QUEUES} queues of {lake.messages / 1e6:g} M messages, store just opened"
    yield Measurement("seek", f"{what}, p50", "ms", tuple(ms), target=Target("<", 1000), more_is_better=False)
    yield Measurement("seek.p99", f"{what}, p99", "ms", tuple(ms), more_is_better=False, quantile=0.99)


def measure_key(bench: Bench) -> Iterator[Measurement]:
    lake = bench.lake(2 * bench.messages)
    rng = np.random.default_rng(3)

    def search(number: int) -> dict[str, Callable[[], list[Message]]]:
        numbers = np.array([number])
        ((key,), (unique_key,)) = keys(numbers), unique_keys(numbers)
        return {
            "key": lambda: messages_by_key(opened(lake), TOPIC, key),
            "key.unique": lambda: messages_by_unique_key(opened(lake), unique_key),
            "key.absent": lambda: messages_by_key(opened(lake), TOPIC, f"{key}-absent"),
        }

    samples: dict[str, list[float]] = {}
    for number in rng.integers(0, lake.messages, 3 if bench.quick else 20).tolist():
        for name, case in search(number).items():
            started = time.perf_counter()
            messages = case()
            samples.setdefault(name, []).append((time.perf_counter() - started) * 1000)
            expected = [] if name == "key.absent" else [(number % QUEUES, number // QUEUES)]
            check(f"{name} {number}", [(one["queue_id"], one["queue_offset"]) for one in messages], expected)
    what = {"key": "by key", "key.unique": "by unique key", "key.absent": "by a key that no message has"}
    for name, ms in samples.items():
        text = f"{what[name]}, among {lake.messages / 1e6:g} M messages, store just opened, p50"
        yield Measurement(name, text, "ms", tuple(ms), target=Target("<", 1000), more_is_better=False)


def opened(lake: Lake) -> LakeStore:
    return LakeStore.open(Root.parse(str(lake.folder)))


def _store_times(lake: Lake) -> list[np.ndarray]:
    """For each queue the store times of its messages in offset order, by plain pyarrow."""
    columns = ["queue_id", "queue_offset", "store_timestamp"]
    rows = ds.dataset(lake.files, format="parquet").to_table(columns=columns)
    queue_ids, offsets, times = (rows.column(name).to_numpy() for name in columns)
    times_of_queues = []
    for queue_id in range(QUEUES):
        of_queue = queue_ids == queue_id
        times_of_queues.append(times[of_queue][np.argsort(offsets[of_queue])])
    return times_of_queues
