"""Commits of windows by several writers of one shard at once, each of a group of its own and with handles of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.bench import ACTOR, BROKER, DAY, Bench, check
from benchmarks.broker_log import TOPIC
from benchmarks.s3_proxy import DELAY_S, S3Proxy
from benchmarks.s3_server import s3_server_in
from benchmarks.table import Measurement, Target
from rmq_store.commit.ctl import Action, Consumed, Ctl, Proposal
from rmq_store.commit.positions import Outcome, QueueRange, grp_id, off_id, tally
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.request_counter import Kind
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host

TITLE = "commits by several writers of one shard, threads with handles of their own"
QUEUE = MessageQueue(TOPIC, BROKER, 0)
MANY = 8
"""The number of writers that is compared with one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a number of writers did together."""

    commits: int
    cpu_s: float
    """CPU time of this process. On S3 it includes the proxy."""
    wall_s: float


def measure(bench: Bench) -> Iterator[Measurement]:
    counts = (1, MANY) if bench.quick else (1, 2, 4, MANY, 16)
    yield from _local(bench, counts, 3 if bench.quick else 20)
    yield from _s3(bench, counts, 2 if bench.quick else 5)


def _local(bench: Bench, counts: Sequence[int], each: int) -> Iterator[Measurement]:
    cpu_ms: dict[int, float] = {}
    rates: dict[int, float] = {}
    for count in counts:
        store, _ = LakeStore.init(Root.parse(str(bench.new_folder("writers"))))
        sample = Writers(store, count, bench.host).measured(each)
        bench.say(f"local disk, {_named(count)}: {sample}")
        cpu_ms[count], rates[count] = 1000 * sample.cpu_s / sample.commits, sample.commits / sample.wall_s
        what = f"local disk, {_named(count)}"
        yield Measurement(f"writers.cpu.{count}", f"{what}: a commit", "CPU ms", (cpu_ms[count],), more_is_better=False)
        yield Measurement(f"writers.rate.{count}", what, "commits/s", (rates[count],))
        if count == MANY:
            name, target = f"local disk: a commit, {MANY} writers relative to one", Target("<=", 1.5)
            ratio = cpu_ms[MANY] / cpu_ms[1]
            yield Measurement("writers.cpu", name, "times", (ratio,), target=target, more_is_better=False)
            yield _faster("writers.rate", "local disk", rates)


def _s3(bench: Bench, counts: Sequence[int], each: int) -> Iterator[Measurement]:
    folder = bench.new_folder("s3")
    folder.mkdir(parents=True)
    place = f"S3 at {DELAY_S * 1000:.0f} ms"
    rates: dict[int, float] = {}
    with s3_server_in(folder) as server, S3Proxy(server.endpoint) as proxy:
        for count in counts:
            proxy.delay_s = 0
            environment = {**server.env, "AWS_ENDPOINT_URL": proxy.endpoint}
            store, _ = LakeStore.init(Root.parse(f"s3://{server.new_bucket()}/store", environment))
            writers = Writers(store, count, bench.host)
            proxy.delay_s = DELAY_S
            proxy.requests.clear()
            sample = writers.measured(each)
            entries = [sent for sent in proxy.requests if sent.kind == Kind.PUT and "/_delta_log/" in sent.key]
            puts = len(entries) / sample.commits
            bench.say(f"{place}, {_named(count)}: {sample}, {puts:.3g} PUTs a commit")
            rates[count] = sample.commits / sample.wall_s
            what = f"{place}, {_named(count)}"
            yield Measurement(f"writers.s3.rate.{count}", what, "commits/s", (rates[count],))
            name = f"{what}: PUTs of log entries a commit"
            yield Measurement(f"writers.s3.puts.{count}", name, "requests", (puts,), more_is_better=False)
            if count == MANY:
                yield _faster("writers.s3.rate", place, rates)


def _faster(key: str, place: str, rates: Mapping[int, float]) -> Measurement:
    name = f"{place}: commits/s, {MANY} writers relative to one"
    return Measurement(key, name, "times", (rates[MANY] / rates[1],), target=Target(">=", 2.0))


def _named(count: int) -> str:
    return "1 writer" if count == 1 else f"{count} writers"


class Writers:
    """Writers of one new shard, each with a commit behind it that does not count."""

    def __init__(self, store: LakeStore, count: int, host: Host) -> None:
        store.create_shard(BROKER)
        self._store = store
        self._host = host
        self._groups = [f"writer-{number}" for number in range(count)]
        self._shards = [LakeStore.open(store.root).shards(BROKER)[0] for _ in self._groups]
        self._commit(range(1))

    def measured(self, each: int) -> Sample:
        """``each`` commits by each writer. Raises WrongResult unless all of them are there afterwards."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        self._commit(range(1, each + 1))
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        positions = self._store.shards(BROKER)[0].positions()
        offsets = [positions.get(off_id(group, QUEUE)) for group in self._groups]
        check("offsets", offsets, [each + 1] * len(self._groups))
        return Sample(each * len(self._groups), cpu_s, wall_s)

    def _commit(self, offsets: range) -> None:
        def write(shard: Shard, group: str) -> None:
            for offset in offsets:
                commit(shard, _proposal(group, offset, self._host), self._host, started_ms=self._host.now_ms())

        with ThreadPoolExecutor(len(self._groups)) as pool:
            list(pool.map(write, self._shards, self._groups))


def _proposal(group: str, offset: int, host: Host) -> Proposal:
    """The commit of a window of one message that was acked."""
    range_ = QueueRange(QUEUE, offset, offset + 1)
    ctl = Ctl(
        host.new_commit_id(),
        Action.CONSUME,
        ACTOR,
        group=group,
        epoch=0,
        window_id=f"{group}-0-{offset}",
        request_id=f"{DAY}-{group}-{offset}",
        consumed=(Consumed(range_, 0, {Outcome.ACKED: tally([offset])}),),
    )
    expect = {grp_id(group): 0 if offset else None, off_id(group, QUEUE): offset or None}
    return Proposal(ctl, expect, {grp_id(group): 0, off_id(group, QUEUE): offset + 1})
