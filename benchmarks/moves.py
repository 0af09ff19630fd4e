"""Delivery of retries that are due, and offsets by time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow.dataset as ds

from benchmarks.bench import ACTOR, BROKER, DAY, Bench, Lake, check, group_of
from benchmarks.broker_log import FIRST_STORE_TIMESTAMP, MESSAGES_A_MS, QUEUES, TOPIC
from benchmarks.table import Measurement, Target
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.window.consume_request import ConsumeRequest

DELIVER_TITLE = "delivery of retries that are due, this process"
SEEK_TITLE = "seek by time"
DELIVERED = 100_000
HOUR_MS = 3_600_000


def measure_deliver(bench: Bench) -> Iterator[Measurement]:
    messages = DELIVERED // 10 if bench.quick else DELIVERED
    store, shard = bench.copy(bench.lake(messages))
    number = 0

    def rate() -> float:
        nonlocal number
        number += 1
        name = f"all-fail-{number}"
        request, group = ConsumeRequest(f"{DAY}-{name}", ACTOR), group_of(name, "AllFail")
        consume_window(store, shard, group, request, lambda plan: LocalEngine(bench.host), host=bench.host)
        due_ms = bench.host.now_ms() + HOUR_MS
        started = time.perf_counter()
        report = deliver(store, shard, f"{DAY}-deliver-{number}", ACTOR, bench.host, now_ms=due_ms)
        took = time.perf_counter() - started
        check("delivered", (report.status, report.delivered, report.more), ("committed", messages, False))
        back = MessageQueue(retry_topic(name), shard.local_broker, 0)
        check("messages in the retry topic", shard.positions().max_offset(back), messages)
        return messages / took / 1000

    samples = bench.in_turns({"deliver": rate})
    yield Measurement(
        "deliver", f"{messages:,} messages in one commit", "k messages/s", samples["deliver"], target=Target(">=", 20)
    )


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
