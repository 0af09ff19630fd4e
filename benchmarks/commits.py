"""Small windows, one after the other in this process: the cost of a commit."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench, group_of
from benchmarks.small_windows import PARTS, WHOLE, SmallWindows
from benchmarks.table import Measurement, Target

TITLE = "small windows, local disk, this process, 1.2 % fail"
WINDOW_MESSAGES = 800
FEW = 30
"""Windows that warm up."""

COMMIT = "6.settled"


def measure(bench: Bench) -> Iterator[Measurement]:
    count = 20 if bench.quick else 100
    store, shard = bench.copy(bench.lake((count + FEW) * WINDOW_MESSAGES))
    windows = SmallWindows(store, shard, group_of("small", "NamedFails83"), WINDOW_MESSAGES, bench.host)
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
