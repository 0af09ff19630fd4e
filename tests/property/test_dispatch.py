"""The derived tables hold every commit once, however slow the traffic is, whenever the log is cleaned, and whoever lags behind.

Histories over several days: the clock is moved between the commits, the tables are brought up every few versions, and the
entries of the log that a checkpoint covers are deleted, as Delta does it. At a step the clocks of the host and of the store
may be wrong by days. The same examples every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.errors import ClockSkew
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.commit import dispatch as module
from rmq_store.lake.commit.derived_tables import COMMITS, MOVES, QUEUES, Derived
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.commit.tail import undispatched
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import ABOUT_CLAIMS, Shard
from rmq_store.producer.producer import Message
from rmq_store.utils.host import day_of
from tests.contract.engines import LakeWorld
from tests.contract.world import HOUR, SHARD, fail, group, orders, several
from tests.faults.answers import clean_log

WHAT = ("import", "window", "send", "reset", "dispatch")
DAYS = 24 * HOUR
EVERY = {"COMMITS": 8, "QUEUES": 3, "MOVES": 2}
"""How many versions a table may lag behind, so that a short history has both roads of ``undispatched`` in it."""

Step = tuple[str, int, int, bool]
"""What happens, how many hours after the step before, by how many days its clocks are wrong, and whether the log is cleaned
after it."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(WHAT), st.sampled_from((0, 1, 2, 20, 30, 40)), st.sampled_from((0, 0, 5, -3)), st.booleans()
    ),
    min_size=1,
    max_size=9,
)
SLOW_TRAFFIC: list[Step] = [
    ("import", 0, 0, False), ("window", 0, 0, False), ("send", 0, 0, False),
    ("send", 40, 0, False), ("send", 0, 0, False), ("reset", 0, 0, False), ("reset", 2, 0, False), ("reset", 0, 0, True),
]  # fmt: skip
"""Two days with little to do, then commits behind the cursor of a log that was cleaned."""
AHEAD_AND_BACK: list[Step] = [
    ("import", 0, 0, False), *[("send", 0, 5, False)] * 6, ("reset", 0, 0, True), ("dispatch", 0, -3, False),
    ("send", 1, -3, False), ("reset", 1, 5, False), ("send", 1, 0, True), ("send", 0, 0, True),
]  # fmt: skip
"""The cursor is written by a clock that is ahead; what follows has smaller ids, and the log is cleaned."""


@pytest.mark.slow
@settings(
    derandomize=True, database=None, deadline=None, max_examples=5, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@example(SLOW_TRAFFIC)
@example(AHEAD_AND_BACK)
@given(STEPS)
def test_every_commit_is_dispatched_once_over_days_of_slow_traffic(steps: list[Step]) -> None:
    with TemporaryDirectory() as folder, lagging():
        world = LakeWorld(Path(folder))
        for n, (what, hours, wrong_by, cleaned) in enumerate(steps):
            world.clock.advance(hours * HOUR)
            world.clock.advance(wrong_by * DAYS)
            with suppress(ClockSkew):  # a queue that a clock ahead has filled takes nothing from a right one
                happen(world, what, n)
            world.clock.advance(-wrong_by * DAYS)
            if cleaned:
                clean_log(world.shard.commitlog)
            shard, ctls = world.store.shards(SHARD)[0], world.ctls()
            for kind in (COMMITS, QUEUES, MOVES):
                assert told(shard, kind) == Counter(ids(ctls, kind))
        assert audit(world.store) == []
        windows = query(world.store, "SELECT commit_id FROM windows").column("commit_id").to_pylist()
        assert sorted(windows) == sorted(ctl.commit_id for ctl in ctls if ctl.action is Action.CONSUME)


@contextmanager
def lagging() -> Iterator[None]:
    kinds = {name: replace(getattr(module, name), every=every) for name, every in EVERY.items()}
    with mock.patch.multiple(module, **kinds):
        yield


def happen(world: LakeWorld, what: str, n: int) -> None:
    request_id = f"{day_of(world.clock())}-{what}-{n}"
    match what:
        case "import":
            world.fill(orders(), several(4, n * 10))
        case "window" if world.positions().queues_of("Orders"):
            world.consume(group(), request_id, fail, max_messages=6)
        case "send":
            world.send([Message(f"Orders{n}", b"%d" % n)], request_id, create_queues=1)
        case "reset" if world.positions().queues_of("Orders"):
            world.reset_to(ResetTo.MIN, request_id=request_id)
        case "dispatch":
            dispatch(world.store.shards(SHARD)[0], world.host)


def told(shard: Shard, kind: Derived) -> Counter[object]:
    """The commits of the rows of a table, with those that it does not have yet."""
    table = kind.table(shard)
    stored = table.read(table.files().column("path").to_pylist(), ["commit_id"]).column("commit_id").to_pylist()
    return Counter(stored) + Counter(ids(undispatched(shard, table, claims=kind.claims).ctls, kind))


def ids(ctls: Iterable[Ctl], kind: Derived) -> list[str]:
    """The id of a commit for each row that it has in the table."""
    return [ctl.commit_id for ctl in ctls for _ in kind.rows(ctl) if kind.claims or ctl.action not in ABOUT_CLAIMS]
