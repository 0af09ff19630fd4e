"""The example of ``Planner.plan``, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Observed
from rmq_store.commit.positions import Outcome, Positions, QueueRange, Tally, max_id, off_id
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.plan import Plan, Planner, request_parameters
from rmq_store.window.shard_view import ShardView

QUEUES = [MessageQueue("Orders", "broker-a", n) for n in range(2)]
GROUP = GroupSettings(
    name="billing",
    listener="demo.listener:consume",
    subscriptions=(build_subscription_data("Orders", "*"),),
    max_messages=40,
)
REQUEST = ConsumeRequest("2026-03-01-1", Actor("ana", "os"))


class Shard:
    """Two queues, with the next offsets of the group and the ends of the queues."""

    name = "a"
    local_broker = "lake-a"

    def __init__(self, offsets: Sequence[int], ends: Sequence[int]) -> None:
        values = {off_id("billing", queue): offset for queue, offset in zip(QUEUES, offsets, strict=True)}
        values |= {max_id(queue): end for queue, end in zip(QUEUES, ends, strict=True)}
        self._positions = Positions(1, values)

    def positions(self) -> Positions:
        return self._positions

    def others(self) -> Iterable[ShardView]:
        return ()

    def search_offsets(self, positions: Positions, queues: Sequence[MessageQueue], ms: int) -> dict[MessageQueue, int]:
        raise AssertionError("the example has no times")

    def body_sizes(self, range_: QueueRange) -> Iterable[tuple[int, int]]:
        raise AssertionError("the example has no max_bytes")

    def incomplete_imports(self) -> dict[str, int]:
        return {}

    def observed(self) -> Iterable[Observed]:
        return ()

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        return False

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        raise AssertionError("there is one shard")

    def delete_epochs(self, group: str) -> list[int]:
        return []

    def windows_since(self, group: str | None, ms: int) -> Iterable[Ctl]:
        return ()


def ranges(plan: Plan) -> list[tuple[int, int]]:
    return [(planned.range.begin, planned.range.end) for planned in plan.ranges]


def committed(plan: Plan) -> Ctl:
    """The commit of a window that acked everything."""
    consumed = tuple(
        Consumed(planned.range, planned.pass_, {Outcome.ACKED: Tally(len(planned.range))}) for planned in plan.ranges
    )
    parameters = request_parameters(plan, REQUEST)
    actor = REQUEST.actor
    return Ctl("c1", Action.CONSUME, actor, parameters=parameters, consumed=consumed)


def test_two_windows_share_the_bounds_of_the_first() -> None:
    first = Planner(Shard([70, 10], [100, 40]), GROUP, 0).plan(REQUEST, [])
    assert (first.part, ranges(first)) == (1, [(70, 90), (10, 30)])
    assert dict(first.bounds) == dict(zip(QUEUES, [100, 40], strict=True))
    assert first.unfinished == set(QUEUES)
    second = Planner(Shard([90, 30], [110, 40]), GROUP, 0).plan(REQUEST, [committed(first)])
    assert (second.part, ranges(second)) == (2, [(90, 100), (30, 40)])
    assert second.bounds == first.bounds
    assert not second.unfinished


def test_a_queue_that_another_request_holds_stays_unfinished() -> None:
    planner = Planner(Shard([70, 10], [100, 40]), GROUP, 0)
    before = planner.plan(REQUEST, [])
    plan = planner.plan(REQUEST, [], before, {QUEUES[0]})
    assert ranges(plan) == [(70, 100)]
    assert plan.unfinished == {QUEUES[1]}
