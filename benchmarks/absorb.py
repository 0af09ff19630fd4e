"""The cost of absorbing duplicates: the same window with and without it, in turns, in a warm Spark session."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bench import ACTOR, BROKER, DAY, Bench, Lake, check, group_of, made_once
from benchmarks.broker_log import TOPIC, unique_keys
from benchmarks.table import Measurement, Target
from rmq_store.commit.positions import Outcome
from rmq_store.consumer.duplicates import UNIQ_KEY, AbsorbRule
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.key_files import stage_keys
from rmq_store.lake.window.window import consume_window
from rmq_store.lake.window.window_keys import Keys, text_hashes
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import day_of
from rmq_store.window.consume_request import ConsumeRequest

TITLE = "window that absorbs duplicates, warm Spark session"
MILLION = 1_000_000
_RULE = AbsorbRule(UNIQ_KEY, 366 * 86_400_000)
_OTHERS = 10**11  # no message has a key from this number on


@dataclass(frozen=True, slots=True)
class Horizon:
    """The keys that a group has acked before."""

    group: str
    files: int
    """The number of key files."""
    every: int = 0
    """One of this many messages has its key among them; 0: none."""


FEW, MANY, TENTH = Horizon("few-files", 10), Horizon("many-files", 200), Horizon("a-tenth", 10, 10)


@dataclass(frozen=True, slots=True)
class Case:
    """A listener, and the keys that its group has acked before."""

    key: str
    what: str
    listener: str
    horizon: Horizon = FEW


CASES = (
    Case("named", "Arrow listener, 3 columns", "Named"),
    Case("named-200", "... in 200 files", "Named", MANY),
    Case("keyed", "Arrow listener, 3 columns and the key", "Keyed"),
    Case("all", "Arrow listener, all columns", "Everything"),
    Case("all-10", "... a tenth are duplicates", "Everything", TENTH),
    Case("json", "json.loads of every body", "JsonBodies"),
)


def measure(bench: Bench) -> Iterator[Measurement]:
    messages, keys = bench.messages * 2 // 5, bench.messages * 2
    lake = _with_horizons(bench, bench.lake(messages), keys)
    windows = Windows(bench, lake)
    turns: dict[str, Callable[[], float]] = {}
    for case in CASES:
        turns.setdefault(f"{case.listener}.plain", partial(windows.seconds, replace(case, horizon=FEW), absorbs=False))
        turns[case.key] = partial(windows.seconds, case, absorbs=True)
    samples_of = bench.in_turns(turns)
    horizon = f"{keys / MILLION:g} M keys"
    for case in CASES:
        plain, absorbing = samples_of[f"{case.listener}.plain"], samples_of[case.key]
        times = tuple(slow / fast for slow, fast in zip(absorbing, plain, strict=True))
        what = f"{case.what}, {horizon}: time relative to without"
        yield Measurement(f"absorb.{case.key}", what, "times", times, target=Target("<=", 2.0), more_is_better=False)
    for key, samples in samples_of.items():
        rates = tuple(messages / MILLION / took for took in samples)
        yield Measurement(f"absorb.rate.{key}", f"window of {messages / MILLION:g} M, {key}", "M messages/s", rates)


class Windows:
    """First windows of groups over all messages, each in a copy of the store that is removed afterwards."""

    def __init__(self, bench: Bench, lake: Lake) -> None:
        self._bench = bench
        self._lake = lake

    def seconds(self, case: Case, *, absorbs: bool) -> float:
        store, shard = self._bench.copy(self._lake)
        group = replace(group_of(case.horizon.group, case.listener), absorb_duplicates=_RULE if absorbs else None)
        engine = self._bench.engine
        started = time.perf_counter()
        report = consume_window(
            store, shard, group, ConsumeRequest(f"{DAY}-absorb", ACTOR), lambda plan: engine, host=self._bench.host
        )
        took = time.perf_counter() - started
        duplicates = self._lake.messages // case.horizon.every if absorbs and case.horizon.every else 0
        expected = {Outcome.ACKED: self._lake.messages - duplicates, Outcome.DUPLICATE: duplicates}
        check("the window", report.status, "committed")
        check("outcomes", {o: n for o, n in report.counts().items() if n}, {o: n for o, n in expected.items() if n})
        shutil.rmtree(Path(store.root.location))
        return took


# --- what was acked before -------------------------------------------------------------------------------------------


def _with_horizons(bench: Bench, lake: Lake, keys: int) -> Lake:
    """The lake with the key files of every group, made once."""

    def write(fresh: Path) -> None:
        shutil.copytree(lake.folder, fresh, copy_function=os.link, dirs_exist_ok=True)
        shard = LakeStore.open(Root.parse(str(fresh))).shards(BROKER)[0]
        for horizon in (FEW, MANY, TENTH):
            bench.say(f"writing {keys:,} keys of group {horizon.group}")
            _write(bench, shard, lake, horizon, keys)

    return Lake(made_once(bench.folder / "data" / f"absorb-{lake.messages}-{keys}", write), lake.messages)


def _write(bench: Bench, shard: Shard, lake: Lake, horizon: Horizon, keys: int) -> None:
    """One commit with all key files of a group."""
    numbers = np.arange(keys) + _OTHERS
    if horizon.every:
        numbers[: lake.messages // horizon.every] = np.arange(0, lake.messages, horizon.every)
        np.random.default_rng(1).shuffle(numbers)
    now_ms = bench.host.now_ms()
    staged = []
    for part in np.array_split(numbers, horizon.files):
        texts = pa.array(unique_keys(part))
        rows = Keys(
            [MessageQueue(TOPIC, BROKER, 0)],
            np.array([0, len(part)]),
            np.arange(len(part)),
            pa.chunked_array([texts]),
            text_hashes(texts),
        )
        commit_id = bench.host.new_commit_id()
        file = stage_keys(
            shard.root, shard.commitlog.path, rows, commit_id=commit_id, group=horizon.group, epoch=0, attempt="1"
        )
        staged.append(replace(file, store_day=day_of(now_ms)))
    shard.commitlog.put(staged, {f"benchmarks/{horizon.group}": 1}, host=bench.host)
    shard.commitlog.refresh()
