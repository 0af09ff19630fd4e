"""CPU time of one group's small windows and queries, in a shard in which other groups have positions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import BROKER, Bench, check, cpu_ms, group_of
from benchmarks.broker_log import QUEUES
from benchmarks.small_windows import PLAN, WHOLE, SmallWindows
from benchmarks.table import Measurement, Target
from rmq_store.commit.positions import Claim, SubVersion, grp_id, max_id, off_id, own_queue_id, sub_id
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host

TITLE = "CPU time of this process beside other groups of 16 queues, local disk"
COUNTS = (0, 100, 1_000)
"""Numbers of other groups."""
WINDOW_MESSAGES = 2 * QUEUES
EARLIER = 5
"""Windows that warm up."""
COMMITS = 100
"""The positions of the other groups are written in so many commits. That many make a checkpoint."""
GROUP = "one"
OTHER_QUEUES = [MessageQueue("Others", BROKER, queue_id) for queue_id in range(16)]
OTHER_OFFSET = 10


@dataclass(frozen=True, slots=True)
class Beside:
    """A store with a number of other groups, and the windows of the measured group."""

    others: int
    store: LakeStore
    windows: SmallWindows

    @classmethod
    def make(cls, bench: Bench, others: int, windows: int) -> Beside:
        store, shard = bench.copy(bench.lake(windows * WINDOW_MESSAGES))
        bench.say(f"writing the positions of {others:,} groups")
        _write_positions(shard, others, bench.host)
        group = group_of(GROUP, "Named")
        return cls(others, store, SmallWindows(store, shard, group, WINDOW_MESSAGES, bench.host, time.process_time))

    def lag(self, *, of_all: bool) -> float:
        """CPU ms of the view ``lag``, of one group as ``rmq lag --group`` reads it, or of all."""

        def count() -> None:
            where = "" if of_all else f" WHERE group_name = '{GROUP}'"
            store, text = LakeStore.open(self.store.root), f"SELECT * FROM lag{where}"
            rows = query(store, text, group=None if of_all else GROUP).num_rows
            check("rows of lag", rows, QUEUES + (self.others * len(OTHER_QUEUES) if of_all else 0))

        return cpu_ms(count)


def measure(bench: Bench) -> Iterator[Measurement]:
    few = min(max(bench.windows // 12, 1), 20)
    stores = [Beside.make(bench, others, EARLIER + few) for others in COUNTS]
    for count in (EARLIER, few):
        for beside in stores:
            beside.windows.ms.clear()
        for _ in range(count):
            for beside in stores:  # in turns, so that a busy machine affects all
                beside.windows.run(1)
    lags = bench.in_turns(
        {
            f"{'all' if of_all else 'one'}.{beside.others}": partial(beside.lag, of_all=of_all)
            for of_all in (False, True)
            for beside in stores
        }
    )
    for beside in stores:
        beside.windows.check()
    for key, what, part in (("window", f"window of {WINDOW_MESSAGES}", WHOLE), ("plan", "its plan", PLAN)):
        samples = {beside.others: tuple(beside.windows.ms[part]) for beside in stores}
        yield from _rows(key, what, samples, Target("<=", 1.1) if key == "window" else None)
    for key, what in (("one", "lag of one group"), ("all", "lag of all groups")):
        yield from _rows(key, what, {others: lags[f"{key}.{others}"] for others in COUNTS}, None)


def _rows(
    key: str, what: str, samples_of: dict[int, tuple[float, ...]], target: Target | None
) -> Iterator[Measurement]:
    for others, samples in samples_of.items():
        name = f"{what}, {others:,} other groups"
        yield Measurement(f"groups.{key}.{others}", name, "CPU ms", samples, more_is_better=False)
    few, many = min(samples_of), max(samples_of)
    ratio = statistics.median(samples_of[many]) / statistics.median(samples_of[few])
    name = f"{what}: growth from {few} to {many:,} other groups"
    yield Measurement(f"groups.{key}", name, "times", (ratio,), target=target, more_is_better=False)


def _write_positions(shard: Shard, others: int, host: Host) -> None:
    """As the groups' own windows leave them: epoch, subscription, and for each queue an offset and a released claim."""
    ends = {max_id(queue): OTHER_OFFSET for queue in OTHER_QUEUES}
    for number in range(COMMITS):
        positions = dict(ends)
        for group in (f"other-{other}" for other in range(number, others, COMMITS)):
            positions |= {grp_id(group): 0, sub_id(group): SubVersion(1, 1).packed()}
            positions |= {off_id(group, queue): OTHER_OFFSET for queue in OTHER_QUEUES}
            positions |= {own_queue_id(group, queue): Claim(1, 0).packed() for queue in OTHER_QUEUES}
        shard.commitlog.put([], positions, host=host)
        shard.commitlog.refresh()
