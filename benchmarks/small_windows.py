"""Small windows of one group, one after the other in this process, with the time of their parts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.bench import ACTOR, DAY, check
from rmq_store.commit.positions import Outcome
from rmq_store.lake.commit import commit
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest

PLAN = "1.planned"
PARTS = {
    PLAN: "plan",
    "2.claimed": "claim",
    "3.staged": "run the listener, stage",
    "6.settled": "commit (steps 4 to 6)",
    "7.dispatched": "dispatch",
}
"""The parts of a window: each ends with this step of ``lake/commit/commit.py``, and begins where the one above ends."""

assert set(PARTS) <= set(commit.STEPS)

WHOLE = "whole"


class SmallWindows:
    """Windows of one group, each with ``messages`` messages.

    ``clock``: the seconds that are measured; ``time.process_time`` for the CPU time of this process. ``ms``: what the parts
    of each window took, in milliseconds.
    """

    def __init__(
        self,
        store: LakeStore,
        shard: Shard,
        group: GroupSettings,
        messages: int,
        host: Host,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)
        self.windows = 0
        self._store = store
        self._shard = shard
        self._group = group
        self._messages = messages
        self._host = host
        self._clock = clock
        self._retried = 0

    def run(self, count: int) -> None:
        """Raises WrongResult unless each window consumes its messages."""
        engine = LocalEngine(self._host)
        for _ in range(count):
            self.windows += 1
            name = f"{self._group.name}, window {self.windows}"
            request = ConsumeRequest(f"{DAY}-{self._group.name}-{self.windows}", ACTOR, max_messages=self._messages)
            started = self._clock()
            with _steps(self._clock) as reached:
                report = consume_window(
                    self._store, self._shard, self._group, request, lambda plan: engine, host=self._host
                )
            self.ms[WHOLE].append((self._clock() - started) * 1000)
            before = started
            for step in PARTS:
                self.ms[step].append((reached[step] - before) * 1000)
                before = reached[step]
            check(name, (report.status, report.messages()), ("committed", self._messages))
            self._retried += report.counts()[Outcome.RETRIED]

    def check(self) -> None:
        """Raises WrongResult unless the positions and copies are those that the windows reported."""
        positions, lane = self._shard.positions(), self._shard.lane(self._group.name)
        consumed = sum(positions.offsets_of(self._group.name).values())
        check("messages consumed", consumed, self.windows * self._messages)
        waiting = sum(positions.max_offset(queue) for queue in positions.all_queues() if queue.broker_name == lane)
        check("copies that wait", waiting, self._retried)


@contextmanager
def _steps(clock: Callable[[], float]) -> Iterator[dict[str, float]]:
    """The time of each step, by the hook that tests use."""
    reached: dict[str, float] = {}
    previous, commit.on_step = commit.on_step, lambda step: reached.update({step: clock()})
    try:
        yield reached
    finally:
        commit.on_step = previous
