"""Small windows, one after the other in this process: the cost of a commit, and whether it grows with the store."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bench import ACTOR, DAY, Bench, check, group_of
from benchmarks.table import Measurement, Target
from rmq_store.commit.positions import Outcome
from rmq_store.lake.commit import commit
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.window.consume_request import ConsumeRequest

COMMIT_TITLE = "small windows, local disk, this process, 1.2 % fail"
HISTORY_TITLE = "the same store after many windows"
WINDOW_MESSAGES = 800
HISTORY_MESSAGES = 16
FEW = 30
"""Windows that are timed at the beginning and at the end of a history."""

PARTS = {
    "1.planned": "plan",
    "2.claimed": "claim",
    "3.staged": "run the listener, stage",
    "6.read-back": "commit (steps 4 to 6)",
    "7.dispatched": "dispatch",
}
"""The parts of a window: each ends with this step of ``lake/commit/commit.py``, and begins where the one above ends."""

assert set(PARTS) <= set(commit.STEPS)

COMMIT = "6.read-back"
WHOLE = "whole"


class SmallWindows:
    """Windows of one group, each with ``messages`` messages. ``ms``: the times of their parts."""

    def __init__(self, bench: Bench, store: LakeStore, shard: Shard, messages: int) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)
        self._bench = bench
        self._store = store
        self._shard = shard
        self._messages = messages
        self._group = group_of("small", "NamedFails83")
        self._engine = LocalEngine(bench.host)
        self._windows = 0
        self._retried = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            self._windows += 1
            request = ConsumeRequest(f"{DAY}-{self._windows}", ACTOR, max_messages=self._messages)
            started = time.perf_counter()
            with _steps() as reached:
                report = consume_window(
                    self._store, self._shard, self._group, request, lambda plan: self._engine, host=self._bench.host
                )
            self.ms[WHOLE].append((time.perf_counter() - started) * 1000)
            before = started
            for step in PARTS:
                self.ms[step].append((reached[step] - before) * 1000)
                before = reached[step]
            check(f"window {self._windows}", (report.status, report.messages()), ("committed", self._messages))
            self._retried += report.counts()[Outcome.RETRIED]

    def check(self) -> None:
        """Raises WrongResult unless the positions and copies are those that the windows reported."""
        positions = self._shard.positions()
        consumed = sum(positions.get(app_id) or 0 for app_id in positions.values if app_id.startswith("off/small/"))
        check("messages consumed", consumed, self._windows * self._messages)
        waiting = sum(
            value for app_id, value in positions.values.items() if app_id.startswith("max/SCHEDULE_TOPIC_XXXX/")
        )
        check("copies that wait", waiting, self._retried)


@contextmanager
def _steps() -> Iterator[dict[str, float]]:
    """The time of each step, by the hook that tests use."""
    reached: dict[str, float] = {}
    previous, commit.on_step = commit.on_step, lambda step: reached.update({step: time.perf_counter()})
    try:
        yield reached
    finally:
        commit.on_step = previous


def measure_commit(bench: Bench) -> Iterator[Measurement]:
    count = 20 if bench.quick else 100
    store, shard = bench.copy(bench.lake((count + FEW) * WINDOW_MESSAGES))
    windows = SmallWindows(bench, store, shard, WINDOW_MESSAGES)
    windows.run(FEW)
    windows.ms.clear()
    windows.run(count)
    windows.check()
    bench.say(f"{count} windows of {WINDOW_MESSAGES} messages, after {FEW} to warm up")

    def row(key: str, what: str, part: str, target: Target | None = None, quantile: float = 0.5) -> Measurement:
        samples = tuple(windows.ms[part])
        return Measurement(key, what, "ms", samples, target=target, more_is_better=False, quantile=quantile)

    yield row("commit.p50", f"{PARTS[COMMIT]}, p50", COMMIT, Target("<=", 60))
    yield row("commit.p99", f"{PARTS[COMMIT]}, p99", COMMIT, quantile=0.99)
    yield row("commit.window", f"whole window of {WINDOW_MESSAGES} messages, p50", WHOLE)
    yield row("commit.window-p99", f"whole window of {WINDOW_MESSAGES} messages, p99", WHOLE, quantile=0.99)
    for step, what in PARTS.items():
        if step != COMMIT:
            yield row(f"commit.{step}", f"of it: {what}", step)


def measure_history(bench: Bench) -> Iterator[Measurement]:
    store, shard = bench.copy(bench.lake((bench.windows + 2 * FEW) * HISTORY_MESSAGES))
    windows = SmallWindows(bench, store, shard, HISTORY_MESSAGES)
    windows.run(FEW)
    windows.ms.clear()
    windows.run(FEW)
    first = {part: tuple(samples) for part, samples in windows.ms.items()}
    while (missing := bench.windows - len(windows.ms[WHOLE])) > 0:
        windows.run(min(missing, 250))
        bench.say(f"{len(windows.ms[WHOLE]):,} windows, now {statistics.median(windows.ms[WHOLE][-FEW:]):.0f} ms")
    windows.check()
    last = {part: tuple(samples[-FEW:]) for part, samples in windows.ms.items()}
    what = f"window of {HISTORY_MESSAGES} messages"
    yield Measurement("history.first", f"{what}, fresh store", "ms", first[WHOLE], more_is_better=False)
    yield Measurement(
        "history.last", f"{what}, after {bench.windows:,} windows", "ms", last[WHOLE], more_is_better=False
    )
    for part, name in (*PARTS.items(), (WHOLE, "whole window")):
        slower = statistics.median(last[part]) / statistics.median(first[part])
        target = Target("<", 1.3) if part == WHOLE else None
        yield Measurement(
            f"history.{part}",
            f"{name}: time relative to a fresh store",
            "times",
            (slower,),
            target=target,
            more_is_better=False,
        )
