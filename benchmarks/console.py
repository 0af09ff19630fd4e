"""The console's pages over a store with a long history of windows: each request once the first one has opened the store."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import partial

from fastapi import Request

from benchmarks.bench import ACTOR, DAY, Bench, check, group_of, seconds
from benchmarks.broker_log import QUEUES, TOPIC
from benchmarks.table import Measurement, Target
from rmq_store.console.access import Access
from rmq_store.console.app import create_app
from rmq_store.console.pages import LISTINGS
from rmq_store.console.reader import StoreReader
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consume_all import consume_all
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.window.consume_request import ConsumeRequest

TITLE = "the console's pages, local disk"
MESSAGES = 2 * QUEUES
"""Of each group in each tick."""
_GROUP = "group-0"
_REQUEST = f"{DAY}-tick-0"  # the first one
_VALUES: Mapping[str, str] = {"group": _GROUP, "topic": TOPIC, "request": _REQUEST}
_OF_A_GROUP = ("windows", "offsets", "owners")
"""The page of a group shows these lists of it. They need no filter."""


def measure(bench: Bench) -> Iterator[Measurement]:
    from fastapi.testclient import TestClient  # warns about its HTTP library, and only this scenario needs it

    groups, ticks = (10, 2) if bench.quick else (1_000, 10)
    store = _with_history(bench, groups, ticks)
    access = Access(dependency=_everyone, may_edit=lambda request, dag_id: True)
    client = TestClient(create_app(StoreReader(lambda: LakeStore.open(store.root)), access))
    what = f"{groups * ticks:,} windows of {groups:,} groups"

    def ms(path: str) -> float:
        return seconds(lambda: check(path, client.get(path).status_code, 200)) * 1000

    yield Measurement(
        "console.first", f"the first page, {what}", "ms", (ms("/api/lists/groups"),), more_is_better=False
    )
    paths = _paths()
    samples = bench.in_turns({name: partial(ms, path) for name, path in paths.items()}, rounds=1 if bench.quick else 5)
    slowest = max(samples, key=lambda name: statistics.median(samples[name]))
    target = None if bench.quick else Target("<=", 300)
    shown = {"groups": "groups", "windows": "windows", "slowest": slowest}
    for key, name in shown.items():
        words = f"{name}: the slowest of {len(paths)} lists" if key == "slowest" else name
        yield Measurement(f"console.{key}", words, "ms", samples[name], target=target, more_is_better=False)


def _with_history(bench: Bench, groups: int, ticks: int) -> LakeStore:
    """A store in which each group has consumed in each of the ticks."""
    store, _ = bench.copy(bench.lake(ticks * MESSAGES))
    settings = [group_of(f"group-{number}", "Named") for number in range(groups)]
    engine = LocalEngine(bench.host)
    for number in range(ticks):
        bench.say(f"tick {number + 1} of {ticks}: {groups:,} windows")
        request = ConsumeRequest(f"{DAY}-tick-{number}", ACTOR, max_messages=MESSAGES)
        report = consume_all(LakeStore.open(store.root), settings, request, lambda plan: engine, bench.host)
        check("messages", sum(group.messages for group in report.groups), groups * MESSAGES)
    return LakeStore.open(Root.parse(store.root.location))


def _paths() -> dict[str, str]:
    """The request of each list and of the chart, as the pages make it."""
    filters = {
        name: (*listing.needs, *(("group",) if name in _OF_A_GROUP else ())) for name, listing in LISTINGS.items()
    }
    queries = {name: "&".join(f"{key}={_VALUES[key]}" for key in keys) for name, keys in filters.items()}
    lists = {name: f"/api/lists/{name}" + (f"?{query}" if query else "") for name, query in queries.items()}
    return lists | {"lag over time": f"/api/lag?group={_GROUP}"}


def _everyone(request: Request) -> None:
    """There is no login in a benchmark."""
