"""Small windows, one after the other in this process: the cost of a commit, and whether it grows with the store."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.bench import Bench, group_of
from benchmarks.small_windows import PARTS, WHOLE, SmallWindows
from benchmarks.table import Measurement, Target

COMMIT_TITLE = "small windows, local disk, this process, 1.2 % fail"
HISTORY_TITLE = "the same store after many windows"
WINDOW_MESSAGES = 800
HISTORY_MESSAGES = 16
FEW = 30
"""Windows that are timed at the beginning and at the end of a history."""

COMMIT = "6.read-back"


def measure_commit(bench: Bench) -> Iterator[Measurement]:
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


def measure_history(bench: Bench) -> Iterator[Measurement]:
    store, shard = bench.copy(bench.lake((bench.windows + 2 * FEW) * HISTORY_MESSAGES))
    windows = SmallWindows(store, shard, group_of("small", "NamedFails83"), HISTORY_MESSAGES, bench.host)
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
