"""CPU time of small windows, of delivery and of queries in a store with few windows, in the same one with many, and after its
maintenance."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.bench import ACTOR, DAY, Bench, Lake, check, cpu_ms, group_of
from benchmarks.broker_log import QUEUES
from benchmarks.small_windows import WHOLE, SmallWindows
from benchmarks.table import Measurement, Target
from rmq_store.console.pages import LISTINGS
from rmq_store.console.reader import StoreReader
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.maintain import compact as compacting
from rmq_store.lake.maintain.derived import join
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.window.deliver import deliver_all

TITLE = "CPU time of this process, local disk, before and after many windows, and after their maintenance"
WINDOW_MESSAGES = 2 * QUEUES
RETRIES = 2
"""Messages that fail in a window of the group ``two``."""
HOUR_MS = 3_600_000
VIEWS = ("lag", "audit", "messages", "retries")
PAGES = ("groups", "queues", "windows", "offsets")
"""Lists of the console, of one of the groups."""
SAME = Target("<=", 1.1)
MAINTAINED = Target("<=", 1.2)
QUICK_VIEW = Target("<=", 3000)
QUICK_PAGE = Target("<=", 300)
FILES = Target("<=", 1000)


@dataclass(frozen=True, slots=True)
class Case:
    """A group whose windows fail nothing or a little, and the target of a window in ms."""

    group: str
    what: str
    listener: str
    target: Target


CASES = (
    Case("none", "none fail", "Named", Target("<=", 50)),
    Case("two", f"{RETRIES} fail", "QueueFails", Target("<=", 80)),
)


def measure(bench: Bench) -> Iterator[Measurement]:
    few = min(max(bench.windows // 6, 1), 30)  # windows of each group that warm up, and that are timed at each point
    each = -(-bench.windows // len(CASES))
    store, shard = bench.copy(bench.lake((each + 3 * few) * WINDOW_MESSAGES))
    groups = {
        case.group: SmallWindows(
            store, shard, group_of(case.group, case.listener), WINDOW_MESSAGES, bench.host, time.process_time
        )
        for case in CASES
    }

    pages = StoreReader(lambda: LakeStore.open(store.root))

    def run(count: int) -> None:
        for _ in range(count):
            for windows in groups.values():
                windows.run(1)

    def point() -> dict[str, tuple[float, ...]]:
        """CPU ms of a window of each group, of each view, and of delivery per message."""
        for windows in groups.values():
            windows.ms.clear()
        run(few)
        samples = {name: tuple(windows.ms[WHOLE]) for name, windows in groups.items()}
        samples |= bench.in_turns({view: partial(_of_view, store, view) for view in VIEWS})
        pages.listing(LISTINGS["groups"], {})  # opens the store
        samples |= bench.in_turns({f"page.{page}": partial(_of_page, pages, page) for page in PAGES})
        for windows in groups.values():
            windows.check()
        samples["deliver"] = (_of_delivery(bench, store, groups["two"].windows * RETRIES),)
        return samples

    run(few)
    first = sum(windows.windows for windows in groups.values())
    fresh = point()
    while (count := min(each - groups["two"].windows, 100)) > 0:
        run(count)
        newest = ", ".join(f"{name} {statistics.median(w.ms[WHOLE][-few:]):.0f}" for name, w in groups.items())
        bench.say(f"{2 * groups['two'].windows:,} windows, now CPU ms: {newest}")
    last = sum(windows.windows for windows in groups.values())
    after = point()
    yield from _rows(fresh, after, f"{first:,}", f"{last:,}")
    yield from _files(shard, "after", f"after {last:,} windows")
    maintain_ms = cpu_ms(partial(_maintain, shard, bench))
    yield Measurement("growth.maintain", f"maintenance after {last:,} windows", "CPU ms", (maintain_ms,))
    yield from _files(shard, "maintained", f"after {last:,} windows and maintenance", FILES)
    shard.commitlog.refresh()
    yield from _maintained_rows(fresh, point(), f"{last:,}")


def _files(shard: Shard, point: str, when: str, target: Target | None = None) -> Iterator[Measurement]:
    tables = (shard.commitlog, shard.consumequeue, shard.offsets, shard.commits)
    for table in tables:
        table.refresh()
    count = sum(len(table.files()) for table in tables)
    yield Measurement(
        f"growth.files.{point}",
        f"live files of the tables, {when}",
        "files",
        (count,),
        target=target,
        more_is_better=False,
    )


def _maintain(shard: Shard, bench: Bench) -> None:
    """The windows are all of the last hour, whose files are left alone otherwise."""
    with patch.object(compacting, "SETTLED_MS", -HOUR_MS):
        report = compacting.compact(shard, compacting.CompactRequest(f"{DAY}-maintain", ACTOR), bench.host)
    for kind in KINDS:
        join(shard, kind, bench.host)
    check("warnings of the maintenance", (report.overtaken, report.warnings), (0, ()))


def _maintained_rows(
    fresh: dict[str, tuple[float, ...]], maintained: dict[str, tuple[float, ...]], last: str
) -> Iterator[Measurement]:
    for key, what in _names().items():
        name, samples = f"{what}, after {last} windows and maintenance", maintained[key]
        target = QUICK_VIEW if key in VIEWS and key != "lag" else QUICK_PAGE if key.startswith("page.") else None
        yield Measurement(f"growth.{key}.maintained", name, "CPU ms", samples, target=target, more_is_better=False)
        ratio = statistics.median(samples) / statistics.median(fresh[key])
        name = f"{what}: maintained after {last} windows, relative to few windows"
        target = None if (key in VIEWS and key != "lag") or key.startswith("page.") else MAINTAINED
        yield Measurement(f"growth.{key}.of-fresh", name, "times", (ratio,), target=target, more_is_better=False)


def _names() -> dict[str, str]:
    names = {case.group: f"window of {WINDOW_MESSAGES} messages, {case.what}" for case in CASES}
    names |= {view: f"view {view}, store just opened" for view in VIEWS}
    names |= {f"page.{page}": f"console, list {page}, store open" for page in PAGES}
    return names | {"deliver": "delivery of all retries, for each"}


def _rows(
    fresh: dict[str, tuple[float, ...]], after: dict[str, tuple[float, ...]], first: str, last: str
) -> Iterator[Measurement]:
    targets = {case.group: case.target for case in CASES}
    for key, what in _names().items():
        for point, windows, samples in (("fresh", first, fresh[key]), ("after", last, after[key])):
            name = f"{what}, after {windows} windows"
            target = targets.get(key)
            yield Measurement(f"growth.{key}.{point}", name, "CPU ms", samples, target=target, more_is_better=False)
        ratio = statistics.median(after[key]) / statistics.median(fresh[key])
        name = f"{what}: growth from {first} to {last} windows"
        target = SAME if key in targets else None
        yield Measurement(f"growth.{key}", name, "times", (ratio,), target=target, more_is_better=False)


def _of_view(store: LakeStore, view: str) -> float:
    def count() -> None:
        rows = query(LakeStore.open(store.root), f"SELECT count(*) AS rows FROM {view}").column("rows")[0].as_py()
        check(f"rows of {view}", rows > 0, view != "audit")

    return cpu_ms(count)


def _of_page(pages: StoreReader, page: str) -> float:
    """CPU ms of the first page of a list."""

    def read() -> None:
        check(f"rows of {page}", pages.listing(LISTINGS[page], {"group": CASES[0].group})["total"] > 0, True)

    return cpu_ms(read)


def _of_delivery(bench: Bench, store: LakeStore, waiting: int) -> float:
    """CPU ms of one message, when all that wait are delivered; in a copy of the store, since the measured one keeps them."""
    copy, shard = bench.copy(Lake(Path(store.root.location), 0))
    now_ms = bench.host.now_ms() + HOUR_MS
    counts: list[int] = []

    def run() -> None:
        reports = deliver_all(
            f"{DAY}-deliver", lambda part: deliver(copy, shard, part, ACTOR, bench.host, now_ms=now_ms)
        )
        counts.extend(report.delivered for report in reports)

    took_ms = cpu_ms(run)
    check("delivered", sum(counts), waiting)
    bench.say(f"{waiting:,} retries delivered in {took_ms:,.0f} CPU ms")
    return took_ms / waiting
