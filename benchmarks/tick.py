"""One tick of many groups with a little work each: ``rmq consume --all`` in one process, one shard."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.bench import ACTOR, DAY, Bench, check, group_of
from benchmarks.broker_log import QUEUES
from benchmarks.table import Measurement, Target
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consume_all import consume_all
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.window.consume_request import ConsumeRequest

TITLE = "rmq consume --all, local disk"
MESSAGES = 2 * QUEUES
"""Of each group in each tick."""


def measure(bench: Bench) -> Iterator[Measurement]:
    count, ticks = (20, 2) if bench.quick else (1_000, 5)
    store, shard = bench.copy(bench.lake(ticks * MESSAGES))
    groups = [group_of(f"group-{number}", "Named") for number in range(count)]
    engine = LocalEngine(bench.host)
    walls, cpus, entries = [], [], []
    messages = {f"tick-{number}": count * MESSAGES for number in range(ticks)} | {"idle": 0}
    for name, expected in messages.items():
        bench.say(f"{name} of {count:,} groups")
        request = ConsumeRequest(f"{DAY}-{name}", ACTOR, max_messages=MESSAGES)
        version, wall, cpu = shard.commitlog.version, time.perf_counter(), time.process_time()
        report = consume_all(LakeStore.open(store.root), groups, request, lambda plan: engine, bench.host)
        walls.append(time.perf_counter() - wall)
        cpus.append((time.process_time() - cpu) * 1000 / count)
        check(f"errors of {name}", [group.error for group in report.groups if group.error], [])
        check(f"messages of {name}", sum(group.messages for group in report.groups), expected)
        shard.commitlog.refresh()
        entries.append(float(shard.commitlog.version - version))
    what = f"{count:,} groups, {MESSAGES} messages each"
    target = None if bench.quick else Target("<=", 60)
    yield Measurement("tick", what, "s", tuple(walls[1:-1]), target=target, more_is_better=False)
    yield Measurement("tick.cpu", f"{what}: CPU time", "ms a group", tuple(cpus[1:-1]), more_is_better=False)
    yield Measurement("tick.entries", f"{what}: log entries", "", tuple(entries[1:-1]), more_is_better=False)
    yield Measurement("tick.idle", f"{count:,} groups with nothing to read", "s", (walls[-1],), more_is_better=False)
