"""Consumption windows in a warm Spark session, from plan to read-back, next to other ways to process the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial

from benchmarks.bench import ACTOR, DAY, Bench, Lake, check, column_sums, group_of
from benchmarks.broker_log import queue_ends
from benchmarks.listeners import failing
from benchmarks.peers import Peer, consuming_streams, peers
from benchmarks.table import Measurement, Target
from rmq_store.commit.positions import Outcome
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest

TITLE = "window, warm Spark session, plan to read-back"
MILLION = 1_000_000
SMALL = 1_000
"""Messages in a small window."""
UNIT = "M messages/s"


@dataclass(frozen=True, slots=True)
class Case:
    """A listener, and the target of its windows."""

    key: str
    what: str
    listener: str
    _: KW_ONLY
    every: int = 0
    """One message of this many fails; 0: none."""
    batch: int = 1
    """consumeMessageBatchMaxSize"""
    reach: float | None = None
    """The target, in million messages a second."""
    peers: tuple[str, ...] = ()
    """Keys of other ways to process the same rows."""


_COPIES = ("peer.parquet", "peer.append", "peer.stream", "peer.delta-rs")
CASES = (
    Case(
        "window.named",
        "Arrow listener, 3 columns, 0 % fail",
        "Named",
        reach=3.0,
        peers=(*_COPIES, "peer.map-named", "peer.consume-named"),
    ),
    Case(
        "window.named-83",
        "Arrow listener, 3 columns, 1.2 % fail",
        "NamedFails83",
        every=83,
        reach=3.0,
        peers=("peer.map-named", "peer.consume-named-83"),
    ),
    Case(
        "window.named-10",
        "Arrow listener, 3 columns, 10 % fail",
        "NamedFails10",
        every=10,
        peers=("peer.map-named", "peer.consume-named-10"),
    ),
    Case(
        "window.all",
        "Arrow listener, all columns, 0 % fail",
        "Everything",
        reach=2.0,
        peers=(*_COPIES, "peer.map-all"),
    ),
    Case(
        "window.all-83",
        "Arrow listener, all columns, 1.2 % fail",
        "EverythingFails83",
        every=83,
        reach=2.0,
        peers=("peer.map-all", "peer.consume-all-83"),
    ),
    Case(
        "window.all-10",
        "Arrow listener, all columns, 10 % fail",
        "EverythingFails10",
        every=10,
        peers=("peer.map-all",),
    ),
    Case("window.json", "json.loads of every body, 0 % fail", "JsonBodies", reach=0.6, peers=_COPIES),
    Case(
        "window.fields",
        "MessageExt objects, six fields read, 0 % fail",
        "message_fields",
        batch=32,
        reach=0.35,
        peers=_COPIES,
    ),
)


def measure(bench: Bench) -> Iterator[Measurement]:
    lake = bench.lake(bench.messages)
    windows = Windows(bench, lake, bench.engine)
    cases: dict[str, Callable[[], float]] = {case.key: partial(windows.rate, case) for case in CASES}
    others = peers(bench, lake)
    cases |= {peer.key: partial(_rate, lake, peer) for peer in others}
    samples_of = bench.in_turns(cases)
    for case in CASES:
        target = None if case.reach is None else Target(">=", case.reach)
        yield Measurement(case.key, case.what, UNIT, samples_of[case.key], target=target, peers=case.peers)
    few, none = samples_of["window.named-83"], samples_of["window.named"]
    yield Measurement(
        "window.ratio-named-83",
        "1.2 % fail, 3 columns: speed relative to 0 %",
        "times",
        tuple(some_fail / all_good for some_fail, all_good in zip(few, none, strict=True)),
        target=Target(">=", 0.8),
    )
    for columns in ("named", "all"):
        none, tenth = samples_of[f"window.{columns}"], samples_of[f"window.{columns}-10"]
        yield Measurement(
            f"window.slower-{columns}",
            f"10 % fail, {'3' if columns == 'named' else columns} columns: time relative to 0 %",
            "times",
            tuple(all_good / some_fail for all_good, some_fail in zip(none, tenth, strict=True)),
            target=Target("<=", 2.0),
            more_is_better=False,
        )
    for peer in others:
        yield Measurement(peer.key, peer.what, UNIT, samples_of[peer.key], is_peer=True, short=peer.short)
    yield from _small(bench)


def _small(bench: Bench) -> Iterator[Measurement]:
    """A window of the usual size where many groups consume every few minutes. ``auto`` runs it in this process."""
    lake = bench.lake(SMALL)
    windows = Windows(bench, lake, LocalEngine(bench.host))
    stream = next(peer for peer in consuming_streams(bench, lake) if peer.key == "peer.consume-named-83")
    case = next(case for case in CASES if case.key == "window.named-83")
    samples = bench.in_turns(
        {"small": lambda: 1000 * windows.seconds(case), "stream": lambda: 1000 * stream.seconds()},
        rounds=1 if bench.quick else 5,
    )
    what = f"{SMALL:,} messages, {case.what}, this process"
    yield Measurement("window.small", what, "ms", samples["small"], peers=("peer.consume-small",), more_is_better=False)
    yield Measurement(
        "peer.consume-small",
        f"{SMALL:,} messages: {stream.what}",
        "ms",
        samples["stream"],
        is_peer=True,
        short=stream.short,
        more_is_better=False,
    )


def _rate(lake: Lake, peer: Peer) -> float:
    return lake.messages / peer.seconds() / MILLION


class Windows:
    """Windows over all messages in one store, each of a new group."""

    def __init__(self, bench: Bench, lake: Lake, engine: Engine) -> None:
        self._bench = bench
        self._lake = lake
        self._engine = engine
        self._number = 0
        self._store, self._shard = bench.copy(lake)

    def rate(self, case: Case) -> float:
        """Million messages a second."""
        return self._lake.messages / self.seconds(case) / MILLION

    def seconds(self, case: Case) -> float:
        self._number += 1
        name = f"{case.listener}-{self._number}"
        group = group_of(name, case.listener, batch=case.batch)
        request = ConsumeRequest(f"{DAY}-{name}", ACTOR)
        started = time.perf_counter()
        report = consume_window(
            self._store, self._shard, group, request, lambda plan: self._engine, host=self._bench.host
        )
        took = time.perf_counter() - started
        check_window(self._store, self._shard, report, self._lake.messages, case.every)
        return took


def check_window(store: LakeStore, shard: Shard, report: WindowReport, messages: int, every: int) -> None:
    """Raises WrongResult unless a group's first window, over ``messages`` messages, has the results of its listener."""
    ends = queue_ends(messages)
    failed = [failing(end, every) for end in ends]
    retried = sum(map(len, failed))
    counts = {outcome: count for outcome, count in report.counts().items() if count}
    expected = {Outcome.ACKED: messages - retried, Outcome.RETRIED: retried}
    check("the window", report.status, "committed")
    check("outcomes", counts, {outcome: count for outcome, count in expected.items() if count})
    check("offsets", [consumed.range.end for consumed in report.consumed], ends)
    if retried:
        copies = column_sums(_produced_files(store, shard, report), ["origin_queue_offset"])
        check("copies of what failed", copies, {"rows": retried, "origin_queue_offset": sum(map(sum, failed))})


def _produced_files(store: LakeStore, shard: Shard, report: WindowReport) -> list[str]:
    ctl = shard.ctl_of(report.commit_id or "")
    assert ctl
    return sorted({f"{store.root.location}/{shard.commitlog.path}/{segment.file}" for segment in ctl.produced})
