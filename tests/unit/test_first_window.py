"""What a group's first window chooses for the queues of other shards (decision 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from rmq_store.commit.ctl import Action, Actor, Ctl, Observed, canonical_json
from rmq_store.commit.positions import Positions, del_id, grp_id, max_id
from rmq_store.consumer.start import ConsumeFromWhere, Start, StartRule
from rmq_store.errors import NothingThere
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.first_window import STARTS_ELSEWHERE, StartElsewhere, starts_chosen, starts_parameter
from rmq_store.window.plan import Plan, Planner, request_parameters

HERE, THERE, BESIDE = (MessageQueue("Orders", broker, 0) for broker in ("broker-a", "broker-b", "broker-c"))
REQUEST = ConsumeRequest("2026-03-01-1", Actor("ana", "os"))
LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
GROUP = GroupSettings("billing", "demo:consume", (build_subscription_data("Orders", "*"),), consume_from_where=LAST)


@dataclass
class Shard:
    """A shard of one queue."""

    queue: MessageQueue
    end: int
    window: Ctl | None = None
    """The group's first one."""
    deleted: int | None = None
    """The group's epoch at its last delete."""
    imported: Mapping[str, int] = field(default_factory=dict)
    others_: Sequence[Shard] = ()

    @property
    def name(self) -> str:
        return self.queue.broker_name

    @property
    def local_broker(self) -> str:
        return f"lake-{self.name}"

    def positions(self) -> Positions:
        values = {max_id(self.queue): self.end}
        values |= {} if self.deleted is None else {del_id("billing"): self.deleted, grp_id("billing"): self.deleted}
        return Positions(1, values if self.window is None else values | {grp_id("billing"): 0})

    def others(self) -> Sequence[Shard]:
        return self.others_

    def search_offsets(self, positions: Positions, queues: Sequence[MessageQueue], ms: int) -> dict[MessageQueue, int]:
        raise AssertionError("no start is by time")

    def body_sizes(self, range_: object) -> list[tuple[int, int]]:
        raise AssertionError("there is no max_bytes")

    def incomplete_imports(self) -> Mapping[str, int]:
        return self.imported

    def observed(self) -> list[Observed]:
        return []

    def has_consumed(self, group: str, epoch: int) -> bool:
        return self.window is not None

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        return self.window

    def windows_since(self, group: str | None, ms: int) -> list[Ctl]:
        return []


def planned(shard: Shard) -> Plan:
    return Planner(shard, GROUP, 1_772_366_400_000).plan(REQUEST, [])


def committed(plan: Plan) -> Ctl:
    return window(request_parameters(plan, REQUEST))


def window(parameters: str) -> Ctl:
    return Ctl("1", Action.CONSUME, Actor("ana", "os"), group="billing", parameters=parameters)


def recorded(starts: Mapping[MessageQueue, Start | None], deleted: int | None = None) -> Ctl:
    rows = starts_parameter(StartElsewhere(queue, start, deleted) for queue, start in starts.items())
    return window(canonical_json({STARTS_ELSEWHERE: rows}))


def start_of(plan: Plan) -> tuple[int, str]:
    (one,) = plan.ranges
    return one.begin, one.start_rule


def last(offset: int) -> Start:
    return Start(offset, StartRule.LAST_OFFSET)


def test_the_first_window_says_where_the_queues_of_other_shards_start() -> None:
    there = Shard(THERE, 7)
    first = planned(Shard(HERE, 3, others_=[there, Shard(MessageQueue("Refunds", "broker-c", 0), 5)]))
    assert first.elsewhere == (StartElsewhere(THERE, last(7), None),)
    here = Shard(HERE, 3, committed(first))
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (7, "last_offset")
    assert start_of(planned(Shard(BESIDE, 9, others_=[here, there]))) == (0, "later_queue_from_min")


def test_a_window_that_is_not_the_first_one_says_nothing() -> None:
    here = Shard(HERE, 3, committed(planned(Shard(HERE, 3))))
    assert planned(Shard(THERE, 7, others_=[here])).elsewhere is None
    assert planned(Shard(HERE, 3, here.window, others_=[Shard(THERE, 7)])).elsewhere is None


def test_a_queue_in_the_middle_of_an_import_starts_where_the_import_ends() -> None:
    there = Shard(THERE, 7, imported={"broker-b": 4096})
    first = planned(Shard(HERE, 3, others_=[there]))
    assert first.elsewhere == (StartElsewhere(THERE, None, None),)
    here = Shard(HERE, 3, committed(first))
    with pytest.raises(NothingThere, match="its log was imported up to 8192"):
        planned(Shard(THERE, 8, imported={"broker-b": 8192}, others_=[here]))
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (9, "last_offset")


def test_a_store_that_is_restored_to_before_a_start_begins_at_its_end() -> None:
    here = Shard(HERE, 3, recorded({THERE: last(7)}))
    assert start_of(planned(Shard(THERE, 5, others_=[here]))) == (5, "last_offset")


def test_a_delete_in_the_other_shard_makes_a_start_before_it_void() -> None:
    before = planned(Shard(HERE, 3, others_=[Shard(THERE, 7)]))
    after = planned(Shard(HERE, 3, others_=[Shard(THERE, 7, deleted=2)]))
    starts = [
        start_of(planned(Shard(THERE, 9, deleted=2, others_=[Shard(HERE, 3, committed(first))])))
        for first in (before, after)
    ]
    assert starts == [(9, "last_offset"), (7, "last_offset")]


@pytest.mark.parametrize(
    ("records", "chosen"),
    [
        ([], {}),
        ([{THERE: last(7)}], {THERE: last(7)}),
        ([{THERE: last(7)}, {THERE: last(5)}], {THERE: last(5)}),
        ([{THERE: None}, {THERE: last(5)}], {THERE: last(5)}),
        ([{THERE: None}], {THERE: None}),
        ([{THERE: last(7), BESIDE: last(1)}, {BESIDE: last(2)}], {BESIDE: last(1)}),
        ([{THERE: last(7)}, {}], {}),
    ],
)
def test_of_several_first_windows_the_one_that_knew_less_decides(
    records: list[dict[MessageQueue, Start | None]], chosen: dict[MessageQueue, Start | None]
) -> None:
    later = window("{}")
    assert starts_chosen([*map(recorded, records), later], None) == chosen
