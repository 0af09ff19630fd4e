"""The work of one group looks at the positions of that group and its topics only, however many others there are.

Counted are the methods that are called on application ids: a walk over ids that filters or decodes them calls one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.admin.set_offsets import unknown_queues
from rmq_store.commit.claim import take
from rmq_store.commit.ctl import SCHEDULE_GROUP, Actor, Ctl, Observed, Produced, lane
from rmq_store.commit.decide import Clocks, decide
from rmq_store.commit.positions import (
    Claim,
    PositionKind,
    Positions,
    QueueRange,
    grp_id,
    ids_of,
    max_id,
    min_id,
    off_id,
    own_queue_id,
    sub_id,
)
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import WindowReport, WindowResult, consume_proposal, next_window, wish
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.plan import Plan, Planner
from rmq_store.window.shard_view import ShardView
from rmq_store.window.sub_version import sub_version_of, subscription_text


class CountedId(str):
    """An application id that counts how often code looks into it."""

    __slots__ = ()
    looks = 0

    def split(self, *arguments: Any) -> list[str]:
        CountedId.looks += 1
        return super().split(*arguments)

    def partition(self, separator: str, /) -> tuple[str, str, str]:
        CountedId.looks += 1
        return super().partition(separator)

    def startswith(self, *arguments: Any) -> bool:
        CountedId.looks += 1
        return super().startswith(*arguments)


# --- the methods of Positions ----------------------------------------------------------------------------------------

GROUPS = [f"g{n}" for n in range(50)]
ORDERS = [MessageQueue(f"Orders{topic}", "broker-a", n) for topic in range(50) for n in range(4)]


@pytest.mark.parametrize(
    ("look", "most"),
    [
        (lambda positions: positions.get(off_id("g7", ORDERS[0])), 0),
        (lambda positions: positions.updated_ms(max_id(ORDERS[0])), 0),
        (lambda positions: positions.offsets_of("g7"), 3 * 4),
        (lambda positions: list(positions.prefixed(ids_of(PositionKind.BLOCKED, "g7"))), 0),
        (lambda positions: list(positions.prefixed(ids_of(PositionKind.OFFSET, "g7"))), 2 * 4),
        (lambda positions: positions.queues_of("Orders7"), 3 * 4),
        (lambda positions: positions.queues_of("Orders7", "broker-b"), 0),
        (lambda positions: positions.names(PositionKind.OFFSET), 0),
        (lambda positions: positions.brokers_of("Orders7"), 0),
        (lambda positions: list(positions.of_kind(PositionKind.EPOCH)), 2 * 50),
        (lambda positions: positions.all_queues(), 3 * 200),
        (lambda positions: positions.advanced(2, {"off/g7/T/b/0": 1}, {}), 0),
    ],
)
def test_only_the_ids_in_question_are_looked_at(look: Callable[[Positions], Any], most: int) -> None:
    ids = [off_id(name, queue) for name in GROUPS for queue in ORDERS[:4]]
    ids += [make(queue) for make in (max_id, min_id) for queue in ORDERS] + [grp_id(name) for name in GROUPS]
    positions = Positions(1, {CountedId(app_id): 5 for app_id in ids})
    CountedId.looks = 0
    look(positions)
    assert CountedId.looks <= most


# --- the work of a group ---------------------------------------------------------------------------------------------

NOW_MS = 1_790_000_000_000
ANA = Actor("ana", "os")
LOCAL = "lake-a"
SUBSCRIPTION = build_subscription_data("Orders", "*")
SHARED = [MessageQueue("Orders", "broker-a", n) for n in range(4)]


def values_of_group(name: str, ends: int) -> dict[str, int]:
    """A group that has consumed all but ``ends`` messages of each queue; one retry waits in each of its lanes."""
    own = [MessageQueue(topic(name), LOCAL, 0) for topic in (retry_topic, dlq_topic)]
    lanes = [MessageQueue(SCHEDULE_TOPIC, lane(LOCAL, name), level) for level in range(18)]
    lanes += [MessageQueue(TIMER_TOPIC, lane(LOCAL, name), 1)]
    values = {off_id(name, queue): 10 - ends for queue in (*SHARED, own[0])}
    values |= {off_id(SCHEDULE_GROUP, queue): 4 for queue in lanes} | {max_id(queue): 5 for queue in lanes}
    values |= {max_id(queue): 10 for queue in own} | {
        own_queue_id(name, queue): Claim(3, 0).packed() for queue in SHARED
    }
    values |= {grp_id(name): 1, sub_id(name): sub_version_of(1, subscription_text([SUBSCRIPTION])).packed()}
    return values


class Shard:
    """A shard with some groups that read the same topic."""

    name = "a"
    local_broker = LOCAL

    def __init__(self, groups: int, ends: int) -> None:
        values = {max_id(queue): 10 for queue in SHARED}
        for n in range(groups):
            values |= values_of_group(f"g{n}", ends)
        self._positions = Positions(1, {CountedId(app_id): value for app_id, value in values.items()})

    def positions(self) -> Positions:
        return self._positions

    def others(self) -> Iterable[ShardView]:
        return ()

    def search_offsets(self, positions: Positions, queues: Sequence[MessageQueue], ms: int) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 3)

    def body_sizes(self, range_: QueueRange) -> Iterable[tuple[int, int]]:
        return ()

    def incomplete_imports(self) -> dict[str, int]:
        return {}

    def observed(self) -> Iterable[Observed]:
        return ()

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        return True

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        raise AssertionError("there is one shard")

    def delete_epochs(self, group: str) -> list[int]:
        return []

    def windows_since(self, group: str | None, ms: int) -> Iterable[Ctl]:
        return ()


def window(shard: Shard) -> None:
    """Plan, claim, plan again and commit a window of g1; without messages, how many retries wait."""
    group = GroupSettings(name="g1", listener="demo.listener:consume", subscriptions=(SUBSCRIPTION,))
    request = ConsumeRequest("2026-03-01-1", ANA)
    plan = next_window(Planner(shard, group, NOW_MS), request, [], segments_of)
    if isinstance(plan, WindowReport):
        assert plan.waiting is not None
        assert plan.waiting.retries == 19
        return
    taken = take(wish(plan, request), "c1", shard.name, shard.positions(), lambda ms: (), NOW_MS)
    plan = next_window(Planner(shard, group, NOW_MS), request, [], segments_of, before=plan, taken=taken)
    assert isinstance(plan, Plan)
    result = WindowResult(tallies={}, produced=(), files=(), waits={}, blocked=(), keys=None)
    proposal = taken.ended_by(consume_proposal(plan, request, result, commit_id=f"{7:032x}", window_id="w"))
    decide(taken.proposal(), shard.positions(), Clocks(NOW_MS, NOW_MS))
    claimed = shard.positions().advanced(2, taken.proposal().advance, {})
    decide(proposal, claimed, Clocks(NOW_MS, NOW_MS))


def segments_of(ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, Sequence[Produced]]:
    """Each range as one segment of a file."""
    return {
        range_.queue: [Produced(range_.queue, 0, len(range_), 0, "f", base=range_.begin, deliver_at=NOW_MS)]
        for range_ in ranges
    }


def moved(request: CloneRequest | DeleteGroupRequest | ResetRequest) -> Callable[[Shard], None]:
    def work(shard: Shard) -> None:
        positions = shard.positions()
        proposal = request.proposal("c1", positions, request.moves(shard, positions))
        decide(proposal, positions, Clocks(NOW_MS, NOW_MS))

    return work


WORK: Mapping[str, Callable[[Shard], object]] = {
    "window": window,
    "reset": moved(ResetRequest("g1", "Orders", ResetTo.MIN, "2026-03-01-1", ANA, "why")),
    "delete": moved(DeleteGroupRequest("g1", "2026-03-01-1", ANA, "why")),
    "clone": moved(CloneRequest("g-new", "g1", "2026-03-01-1", ANA, "why")),
    "set offsets": lambda shard: unknown_queues(dict.fromkeys(SHARED, 3), [shard.positions()]),
}


@pytest.mark.parametrize("ends", [0, 3])
@pytest.mark.parametrize("work", WORK)
def test_the_work_of_a_group_costs_the_same_whatever_the_number_of_groups(work: str, ends: int) -> None:
    looks = []
    for groups in (2, 40):
        shard = Shard(groups, ends)
        CountedId.looks = 0
        WORK[work](shard)
        looks.append(CountedId.looks)
    few, many = looks
    assert many == few
