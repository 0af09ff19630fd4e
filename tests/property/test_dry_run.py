"""A dry run says what the run that follows on unchanged data does: window by window, queue by queue, and to the byte."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rmq_store.admin.replay import as_replay
from rmq_store.commit.positions import Outcome, QueueRange
from rmq_store.errors import RmqError
from rmq_store.lake.window.dry_run import plan_in_shard
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.dry_run import ShardPlan, WindowPlan
from tests.contract.engines import LakeWorld
from tests.contract.world import ANA, DAY, NOON, Listen, fail, listening, succeed
from tests.property.histories import GROUPS, SUSPEND, Cast, Teller, printed, tell
from tests.property.steps import MINUTE, Fill, Trim
from tests.property.strategies import CASTS, FILLS, HISTORIES, SENDS

MORE = int(os.environ.get("HISTORIES", "0"))
BUDGET = settings(
    derandomize=not MORE,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.generate],
)
FINISHED = (Outcome.ACKED, Outcome.RETRIED, Outcome.DEAD, Outcome.DUPLICATE)


def compare(world: LakeWorld, window: WindowPlan, report: WindowReport, group: GroupSettings) -> None:
    """The window did what was planned. A queue that a failed message blocks ends early: nobody could know that."""
    blocked = {one.range.queue for one in report.blocked}
    consumed = {one.range.queue: one for one in report.consumed}
    assert [queue.range.queue for queue in window.queues] == list(consumed)
    for plan in window.queues:
        actual, counts = consumed[plan.range.queue], plan.counts
        assert (plan.start_rule, plan.range.begin) == (actual.start_rule, actual.range.begin)
        if plan.range.queue in blocked:
            assert plan.range.end > actual.range.end
            continue
        finished = sum(actual.tally(outcome).count for outcome in FINISHED)
        dropped = actual.tally(Outcome.DROPPED).count
        assert plan.range.end == actual.range.end
        assert counts.lost == actual.tally(Outcome.LOST).count
        assert counts.filtered == actual.tally(Outcome.FILTERED).count
        assert counts.matched + counts.dropped == finished + dropped
        assert counts.messages == actual.messages
        assert group.broadcasting or counts.dropped == dropped
        assert counts.bytes == bytes_of(world, plan.range)
    if not blocked:
        assert window.complete == report.complete


def bytes_of(world: LakeWorld, range_: QueueRange) -> int:
    least = max(range_.begin, world.positions().min_offset(range_.queue))
    stored = world.stored(range_.queue)
    return sum(len(message.row.body or b"") for message in stored if least <= message.queue_offset < range_.end)


def files_below(folder: str) -> dict[Path, int]:
    return {path: path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}


def plan_of(world: LakeWorld, group: GroupSettings, request: ConsumeRequest, scope: Scope = LIVE) -> ShardPlan:
    """The dry run of a request, which writes nothing."""
    before = files_below(world.root.location)
    plan = plan_in_shard(world.store, world.shard, group, request, world.another_host(), scope)
    assert files_below(world.root.location) == before
    return plan


# --- whole requests --------------------------------------------------------------------------------------------------

GAPS = st.sampled_from([(), (Fill("Orders", 2, ("TagA", "TagB")), Fill("Orders", 2, ("TagA",), gap=2))])
STORES = st.lists(st.one_of(FILLS, FILLS, SENDS, st.builds(Trim, st.integers(0, 2), st.integers(0, 100))), max_size=7)
WAITS_S = st.sampled_from([0, 5, 10, 30, 3600])


@settings(BUDGET, max_examples=MORE or 8)
@given(
    CASTS, st.tuples(FILLS, SENDS), GAPS, STORES, st.sampled_from([None, None, 3, 7]), WAITS_S, st.booleans(), st.data()
)
def whole_requests(
    seen: Counter[str],
    cast: Cast,
    first: Any,
    gaps: Any,
    more: Any,
    cap: int | None,
    wait_s: int,
    all_fail: bool,
    data: Any,
) -> None:
    with TemporaryDirectory() as folder, printed([cast, *first, *gaps, *more]):
        world = LakeWorld(Path(folder))
        teller = Teller(world, cast)
        for step in (*first, *gaps, *more):
            step.tell(teller)
        for n in range(2):
            for name in GROUPS:
                group = teller.settings[name]
                whole(world, seen, group, ConsumeRequest(f"{DAY}-{name}-{n}", ANA, max_messages=cap), LIVE, all_fail)
            topic = "Orders"
            from_ms = NOON - data.draw(st.sampled_from([60, 90, 5, 200])) * MINUTE
            replay = as_replay(teller.settings["prices"], topic, from_ms, ConsumeRequest(f"{DAY}-replay-{n}", ANA))
            whole(world, seen, *replay, all_fail)
            deliver_due(world, seen, teller, wait_s)


def whole(
    world: LakeWorld,
    seen: Counter[str],
    group: GroupSettings,
    request: ConsumeRequest,
    scope: Scope,
    all_fail: bool,
) -> None:
    """Plan a whole request, then run it."""
    plan = plan_of(world, group, request, scope)
    windows = list(plan.windows)
    reports: list[WindowReport] = []
    raised = None
    try:
        with listening(answering(group, all_fail)):
            while not (reports and reports[-1].is_last):
                reports.append(world.consume_window(group, request, world.host, scope))
    except RmqError as error:
        raised = error
        seen[type(error).__name__] += 1
    assert type(plan.error) is type(raised)
    if reports and reports[0].status != "committed":
        assert (windows, plan.status, plan.idle) == ([], reports[0].status, reports[0].idle)
        seen[reports[0].status] += 1
        return
    is_blocked = any(report.blocked for report in reports)
    for window, report in zip(windows, reports, strict=not is_blocked):
        compare(world, window, report, group)
        if report.blocked:
            break  # what is blocked is left out of later windows, so their caps have other shares
        if all_fail and group.mode == "concurrently" and not group.broadcasting:
            dead, duplicates = (
                sum(c.tally(o).count for c in report.consumed) for o in (Outcome.DEAD, Outcome.DUPLICATE)
            )
            assert duplicates or dead == window.counts.last_attempts
            seen["dead letters"] += dead
        seen["later windows"] += window.part > 1
        for what in ("filtered", "lost", "dropped", "bytes"):
            seen[what] += getattr(window.counts, what)
    seen["retries"] += plan.retries.read


def answering(group: GroupSettings, all_fail: bool) -> Listen:
    if group.mode == "orderly":
        return lambda msgs, context: SUSPEND if all_fail else "SUCCESS"
    return fail if all_fail else succeed


def deliver_due(world: LakeWorld, seen: Counter[str], teller: Teller, wait_s: int) -> None:
    """What a dry run counts as due is what a delivery delivers at that time."""
    world.clock.advance(wait_s * 1000)
    names = [name for name in GROUPS if not name.startswith("radio")]
    retries = {}
    for n, name in enumerate(names):
        request = ConsumeRequest(f"{DAY}-due-{name}-{n}", ANA)
        retries[name] = plan_of(world, teller.settings[name], request).retries
    ends = {name: retried(world, name) for name in names}
    world.deliver(f"{DAY}-deliver-{world.clock.now_ms}-{seen['deliveries']}")
    assert {name: retried(world, name) - ends[name] for name in names} == {n: r.due for n, r in retries.items()}
    seen["deliveries"] += 1
    seen["due"] += sum(r.due for r in retries.values())
    seen["waiting"] += sum(r.waiting for r in retries.values())


def retried(world: LakeWorld, name: str) -> int:
    positions = world.positions()
    return sum(positions.max_offset(queue) for queue in positions.queues_of(f"%RETRY%{name}"))


@pytest.mark.slow
def test_a_whole_request_does_what_its_dry_run_says() -> None:
    seen: Counter[str] = Counter()
    whole_requests(seen)
    names = ["later windows", "filtered", "lost", "bytes", "retries", "due", "waiting", "dead letters", "empty"]
    assert not [name for name in names if not seen[name]], seen


# --- the windows of a history ----------------------------------------------------------------------------------------


class PlannedWorld(LakeWorld):
    """Every window is planned by a dry run before it runs, and compared with it."""

    def __init__(self, folder: Path, seen: Counter[str]) -> None:
        super().__init__(folder)
        self.seen = seen
        self.has_steps = False

    def consume_window(self, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope) -> WindowReport:
        if self._at_work or self.has_steps:  # what is planned now would be overtaken
            return super().consume_window(group, request, host, scope)
        plan = plan_of(self, group, request, scope)
        if plan.error is not None and not plan.windows:
            self.seen["errors"] += 1
            with pytest.raises(type(plan.error)):
                super().consume_window(group, request, host, scope)
            raise plan.error
        report = super().consume_window(group, request, host, scope)
        if report.status == "committed":
            compare(self, plan.windows[0], report, group)
        else:
            assert (plan.windows, plan.status, plan.idle) == ((), report.status, report.idle)
        self.seen[report.status] += 1
        return report

    @contextmanager
    def at_step(self, step: str, happens: Callable[[], object]) -> Iterator[None]:
        self.has_steps = True
        try:
            with super().at_step(step, happens):
                yield
        finally:
            self.has_steps = False


@settings(BUDGET, max_examples=MORE or 3)
@given(CASTS, HISTORIES)
def windows_of_a_history(seen: Counter[str], cast: Cast, steps: tuple[Any, ...]) -> None:
    with TemporaryDirectory() as folder:
        tell(PlannedWorld(Path(folder), seen), cast, steps[:12], checked=False)


def test_every_window_of_a_history_does_what_its_dry_run_says() -> None:
    seen: Counter[str] = Counter()
    windows_of_a_history(seen)
    assert {"committed", "already_committed", "empty"} <= set(seen), seen
