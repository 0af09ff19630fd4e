"""Requests to S3 of small windows and of short queries: how many one after the other, how many in all, and their price.

A real S3 server runs on loopback (``s3_server.py``), behind a proxy that counts and adds the delay of S3
(``s3_proxy.py``). "kept": by a process that has the store open; "fresh": by a command, from its start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import ACTOR, BROKER, DAY, Bench, check, group_of
from benchmarks.broker_log import QUEUES
from benchmarks.commands import answer, rmq, settings_text
from benchmarks.s3_proxy import DELAY_S, S3Proxy, S3Request, by_kind, dollars, serial
from benchmarks.s3_server import s3_server_in
from benchmarks.small_windows import SmallWindows
from benchmarks.table import Measurement, Target
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.window.consume_request import ConsumeRequest

TITLE = f"requests to S3, {DELAY_S * 1000:.0f} ms each"
WINDOW_MESSAGES = 2 * QUEUES
EARLIER = 5
"""Windows of each group before the ones that are measured."""
HOUR_MS = 3_600_000
LISTENER_OF = {"none": "Named", "two": "QueueFails", "waiting": "QueueFails", "caught-up": "Named"}
"""The listener of each group. ``waiting``: its retries are delivered; ``caught-up``: it has consumed everything."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is measured, and the target of its serial requests."""

    key: str
    what: str
    run: Callable[[], object]
    target: int | None = None


def measure(bench: Bench) -> Iterator[Measurement]:
    folder = bench.new_folder("s3")
    folder.mkdir(parents=True)
    with s3_server_in(folder) as server, S3Proxy(server.endpoint, delay_s=0) as proxy:
        environment = {**server.env, "AWS_ENDPOINT_URL": proxy.endpoint}
        root = Root.parse(f"s3://{server.new_bucket()}/store", environment)
        bench.import_into(root, (EARLIER + 2 * bench.rounds) * WINDOW_MESSAGES)
        store = LakeStore.open(root)
        shard = store.shards(BROKER)[0]
        settings = folder / "consumers.toml"
        settings.write_text("".join(settings_text(name, listener) for name, listener in LISTENER_OF.items()))
        environment |= {"RMQ_ROOT": root.location, "RMQ_SETTINGS": str(settings)}
        for operation in _operations(bench, store, shard, os.environ | environment):
            rounds = 1 if operation.key == "deliver" else bench.rounds  # the retries are delivered once
            proxy.delay_s = DELAY_S
            samples = [_requests_of(proxy, operation.run) for _ in range(rounds)]
            proxy.delay_s = 0
            kinds = ", ".join(f"{count} {kind}" for kind, count in by_kind(samples[-1]).items())
            bench.say(f"{operation.what}: {serial(samples[-1])} one after the other; {kinds}")
            yield from _rows(operation, samples)


def _requests_of(proxy: S3Proxy, run: Callable[[], object]) -> list[S3Request]:
    proxy.requests.clear()
    run()
    return list(proxy.requests)


def _rows(operation: Operation, samples: list[list[S3Request]]) -> Iterator[Measurement]:
    def row(what: str, unit: str, values: Iterator[float], target: Target | None = None) -> Measurement:
        key = f"requests.{operation.key}.{what.split()[0]}"
        name = f"{operation.what}: {what}"
        return Measurement(key, name, unit, tuple(values), target=target, more_is_better=False)

    target = None if operation.target is None else Target("<=", operation.target)
    yield row("serial requests", "requests", (serial(sample) for sample in samples), target)
    yield row("all requests", "requests", (len(sample) for sample in samples))
    yield row("price of 1,000", "US$", (1000 * dollars(sample) for sample in samples))


def _operations(bench: Bench, store: LakeStore, shard: Shard, environment: dict[str, str]) -> Iterator[Operation]:
    """The operations; what one needs to be there is made just before it is yielded."""
    windows = {
        name: SmallWindows(store, shard, group_of(name, listener), WINDOW_MESSAGES, bench.host)
        for name, listener in LISTENER_OF.items()
    }
    what = f"window of {WINDOW_MESSAGES}"

    def delivered() -> None:
        now_ms = bench.host.now_ms() + HOUR_MS
        report = deliver(store, shard, f"{DAY}-deliver", ACTOR, bench.host, now_ms=now_ms)
        check("delivered", (report.status, report.delivered), ("committed", 2 * EARLIER))

    def command(group: str, *more: str, status: str = "committed") -> None:
        check("the command", answer("consume", "--group", group, *more, environment=environment)["status"], status)

    def empty() -> None:
        group, request = group_of("caught-up", LISTENER_OF["caught-up"]), ConsumeRequest(f"{DAY}-empty", ACTOR)
        report = consume_window(store, shard, group, request, lambda plan: LocalEngine(bench.host), host=bench.host)
        check("the empty window", report.status, "empty")

    def lag() -> None:
        text = "SELECT count(*) AS queues FROM lag WHERE group_name = 'none'"
        check("the queues", rmq("sql", text, "--format", "csv", environment=environment), f"queues\n{QUEUES}")

    windows["waiting"].run(EARLIER)
    yield Operation("deliver", f"deliver the retries of {EARLIER} windows, kept", delivered)
    for name, failures in (("none", "none fail"), ("two", "2 fail")):
        windows[name].run(EARLIER)
        yield Operation(f"{name}.kept", f"{what}, {failures}, kept", partial(windows[name].run, 1), 15)
    for name, failures in (("none", "none fail"), ("two", "2 fail")):
        run_command = partial(command, name, "--max-messages", str(WINDOW_MESSAGES), "--engine", "local")
        yield Operation(f"{name}.fresh", f"{what}, {failures}, fresh", run_command, 25)
    command("caught-up", "--engine", "local")
    shard.commitlog.refresh()
    yield Operation("empty.kept", "empty window, kept", empty)
    yield Operation("empty.fresh", "empty window, fresh", lambda: command("caught-up", status="empty"), 6)
    yield Operation("lag", "lag of a group by rmq sql, fresh", lag, 8)
