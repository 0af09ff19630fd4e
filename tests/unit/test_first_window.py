"""What a group's first window chooses for the queues of other shards (decision 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.commit.ctl import Action, Actor, Ctl, Observed, canonical_json
from rmq_store.commit.positions import Positions, del_id, grp_id, max_id, min_id, off_id
from rmq_store.consumer.start import ConsumeFromWhere, Start, StartRule
from rmq_store.errors import NothingThere
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest, of_retries_only
from rmq_store.window.first_window import STARTS_ELSEWHERE, ShardStarts, starts_parameter
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
    begin: int = 0
    """The first readable offset."""
    deleted: int | None = None
    """The group's epoch at its last delete."""
    offset: int | None = None
    """The group's, in the queue."""
    found: int | None = None
    """The offset at a time."""
    imported: Mapping[str, int] = field(default_factory=dict)
    others_: Sequence[Shard] = ()

    @property
    def name(self) -> str:
        return self.queue.broker_name

    @property
    def local_broker(self) -> str:
        return f"lake-{self.name}"

    def positions(self) -> Positions:
        values = {max_id(self.queue): self.end, min_id(self.queue): self.begin}
        values |= {} if self.offset is None else {off_id("billing", self.queue): self.offset, grp_id("billing"): 1}
        values |= {} if self.deleted is None else {del_id("billing"): self.deleted, grp_id("billing"): self.deleted}
        return Positions(1, values if self.window is None else {grp_id("billing"): 0} | values)

    def others(self) -> Sequence[Shard]:
        return self.others_

    def search_offsets(self, positions: Positions, queues: Sequence[MessageQueue], ms: int) -> dict[MessageQueue, int]:
        assert self.found is not None, "no start is by time"
        return dict.fromkeys(queues, self.found)

    def body_sizes(self, range_: object) -> list[tuple[int, int]]:
        raise AssertionError("there is no max_bytes")

    def incomplete_imports(self) -> Mapping[str, int]:
        return self.imported

    def observed(self) -> list[Observed]:
        return []

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        window = self.first_window(group, epoch)
        return window is not None and not (topics and of_retries_only(window))

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        return self.window if self.window and (self.window.epoch or 0) >= epoch else None

    def delete_epochs(self, group: str) -> list[int]:
        return [] if self.deleted is None else [self.deleted]

    def windows_since(self, group: str | None, ms: int) -> list[Ctl]:
        return []


def planned(shard: Shard, group: GroupSettings = GROUP) -> Plan:
    return Planner(shard, group, 1_772_366_400_000).plan(REQUEST, [])


def committed(plan: Plan) -> Ctl:
    return window(request_parameters(plan, REQUEST))


def window(parameters: str) -> Ctl:
    return Ctl("1", Action.CONSUME, Actor("ana", "os"), group="billing", parameters=parameters)


def recorded(starts: Mapping[MessageQueue, Start | None]) -> Ctl:
    return window(canonical_json({STARTS_ELSEWHERE: starts_parameter({"broker-b": ShardStarts(starts=starts)})}))


def start_of(plan: Plan) -> tuple[int, str]:
    (one,) = plan.ranges
    return one.begin, one.start_rule


def last(offset: int) -> Start:
    return Start(offset, StartRule.LAST_OFFSET)


def test_the_first_window_says_where_the_queues_of_other_shards_start() -> None:
    there = Shard(THERE, 7)
    first = planned(Shard(HERE, 3, others_=[there, Shard(MessageQueue("Refunds", "broker-c", 0), 5)]))
    assert first.elsewhere == {"broker-b": ShardStarts(starts={THERE: last(7)}), "broker-c": ShardStarts()}
    here = Shard(HERE, 3, committed(first))
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (7, "last_offset")
    assert start_of(planned(Shard(BESIDE, 9, others_=[here, there]))) == (0, "later_queue_from_min")


def test_a_queue_that_has_an_offset_in_another_shard_gets_a_start_as_if_it_had_none() -> None:
    """An undo may take the offset away before the group's first window there."""
    first = planned(Shard(HERE, 3, others_=[Shard(THERE, 7, offset=2)]))
    assert first.elsewhere == {"broker-b": ShardStarts(starts={THERE: last(7)})}
    here = Shard(HERE, 3, committed(first))
    assert start_of(planned(Shard(THERE, 9, offset=2, others_=[here]))) == (2, "stored")
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (7, "last_offset")


def test_it_gets_a_start_by_time_too() -> None:
    timed = replace(
        GROUP, consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, consume_timestamp="2026-03-01T00:00:00Z"
    )
    there = Shard(THERE, 7, offset=2, found=4)
    first = planned(Shard(HERE, 3, others_=[there], found=1), timed)
    assert first.elsewhere == {"broker-b": ShardStarts(starts={THERE: Start(4, StartRule.TIMESTAMP)})}


def test_a_start_that_an_earlier_version_left_open_is_chosen_by_the_first_window_there() -> None:
    here = Shard(HERE, 3, recorded({THERE: None}))
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (9, "last_offset")


def test_a_later_first_window_passes_on_what_the_first_one_chose() -> None:
    here = Shard(HERE, 3, committed(planned(Shard(HERE, 3, others_=[Shard(THERE, 7), Shard(BESIDE, 5)]))))
    second = planned(Shard(THERE, 9, others_=[here, Shard(BESIDE, 8)]))
    assert second.elsewhere == {
        "broker-a": ShardStarts(starts={HERE: None}),
        "broker-c": ShardStarts(starts={BESIDE: last(5)}),
    }


def test_what_another_group_setting_chose_at_the_first_window_counts() -> None:
    first_offset = replace(GROUP, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    as_rocketmq = replace(GROUP, later_queues_start_at_min=False)
    starts = [
        start_of(planned(Shard(THERE, 9, others_=[Shard(HERE, 3, committed(first))])))
        for first in (
            planned(Shard(HERE, 3, others_=[Shard(THERE, 7)]), group) for group in (first_offset, as_rocketmq)
        )
    ]
    assert starts == [(0, "first_offset"), (7, "last_offset")]


def test_a_window_that_is_not_the_first_one_says_nothing() -> None:
    here = Shard(HERE, 3, committed(planned(Shard(HERE, 3))))
    assert planned(Shard(HERE, 3, here.window, others_=[Shard(THERE, 7)])).elsewhere is None


def test_a_queue_in_the_middle_of_an_import_starts_where_the_import_ends() -> None:
    """Also one that is not there yet."""
    first = planned(Shard(HERE, 3, others_=[Shard(THERE, 7, imported={"broker-b": 4096})]))
    assert first.elsewhere == {"broker-b": ShardStarts(None, frozenset({"broker-b"}), {THERE: None})}
    here = Shard(HERE, 3, committed(first))
    with pytest.raises(NothingThere, match="its log was imported up to 8192"):
        planned(Shard(THERE, 8, imported={"broker-b": 8192}, others_=[here]))
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (9, "last_offset")
    assert start_of(planned(Shard(MessageQueue("Orders", "broker-b", 1), 6, others_=[here]))) == (6, "last_offset")


def test_a_start_is_within_the_queue() -> None:
    """A restored store may have less, and retention does not wait for a group without an offset."""
    here = Shard(HERE, 3, recorded({THERE: last(7)}))
    assert start_of(planned(Shard(THERE, 5, others_=[here]))) == (5, "last_offset")
    assert start_of(planned(Shard(THERE, 20, begin=9, others_=[here]))) == (9, "last_offset")


def test_a_delete_in_a_shard_makes_what_was_chosen_for_it_before_void() -> None:
    before = planned(Shard(HERE, 3, others_=[Shard(THERE, 7)]))
    after = planned(Shard(HERE, 3, others_=[Shard(THERE, 7, deleted=2)]))
    unknown = planned(Shard(HERE, 3))
    starts = [
        start_of(planned(Shard(THERE, 9, deleted=2, others_=[Shard(HERE, 3, committed(first))])))
        for first in (before, after, unknown)
    ]
    assert starts == [(9, "last_offset"), (7, "last_offset"), (9, "last_offset")]


def test_a_delete_in_the_shard_of_the_first_window_leaves_what_was_chosen_for_others() -> None:
    """The group goes on in broker-b, whose own first window knew the queues of broker-a and what was chosen for broker-c."""
    here = Shard(HERE, 3, committed(planned(Shard(HERE, 3, others_=[Shard(THERE, 7), Shard(BESIDE, 5)]))))
    second = committed(planned(Shard(THERE, 7, others_=[here, Shard(BESIDE, 5)])))
    there = Shard(THERE, 7, second)
    assert start_of(planned(Shard(HERE, 4, deleted=1, others_=[there]))) == (4, "last_offset")
    assert start_of(planned(Shard(BESIDE, 9, others_=[Shard(HERE, 4, deleted=1), there]))) == (5, "last_offset")


def test_a_delete_in_the_shard_of_the_first_window_alone_ends_no_start_that_it_chose() -> None:
    """The group lives in broker-a no more, and has had no window elsewhere."""
    first = committed(planned(Shard(HERE, 3, others_=[Shard(THERE, 7)])))
    here = Shard(HERE, 4, first, deleted=1)
    assert start_of(planned(Shard(THERE, 9, others_=[here]))) == (7, "last_offset")
    assert start_of(planned(Shard(MessageQueue("Orders", "broker-b", 1), 6, others_=[here]))) == (
        0,
        "later_queue_from_min",
    )
    assert start_of(planned(Shard(BESIDE, 9, others_=[here, Shard(THERE, 9)]))) == (0, "later_queue_from_min")
    again = planned(Shard(HERE, 4, first, deleted=1, others_=[Shard(THERE, 9)]))
    assert start_of(again) == (4, "last_offset")
    assert again.elsewhere == {"broker-b": ShardStarts(starts={THERE: last(7)})}


def test_after_a_delete_in_all_shards_nothing_is_left_of_the_first_window() -> None:
    """Also in a shard that it did not know."""
    first = committed(planned(Shard(HERE, 3, others_=[Shard(THERE, 7)])))
    here, there = Shard(HERE, 4, first, deleted=1), Shard(THERE, 9, deleted=1)
    assert start_of(planned(replace(there, others_=[here]))) == (9, "last_offset")
    assert start_of(planned(Shard(BESIDE, 9, others_=[here, there]))) == (9, "last_offset")
    again = planned(replace(here, others_=[there]))
    assert again.elsewhere == {"broker-b": ShardStarts(1, starts={THERE: last(9)})}


def test_a_delete_is_needed_where_a_first_window_elsewhere_chose_the_start() -> None:
    request = DeleteGroupRequest(group="billing", request_id="2026-03-01-d", actor=Actor("ana", "os"), reason="old")
    first = committed(planned(Shard(HERE, 3, others_=[Shard(THERE, 7)])))

    def needed(*shards: Shard) -> list[bool]:
        return [
            request.has_something(shard, shard.positions())
            for shard in (replace(one, others_=[other for other in shards if other is not one]) for one in shards)
        ]

    here = Shard(HERE, 4, first, deleted=1)
    assert needed(here, Shard(THERE, 9), Shard(BESIDE, 1)) == [False, True, False]
    assert needed(replace(here, deleted=None), Shard(THERE, 9), Shard(BESIDE, 1)) == [False, True, False]
    assert needed(here, Shard(THERE, 9, deleted=1), Shard(BESIDE, 1)) == [False, False, False]
    assert request.moves(replace(here, queue=THERE, window=None, deleted=None, others_=[here]), Positions(1, {})) == ()


@pytest.mark.parametrize(
    ("records", "start"),
    [
        ([{THERE: last(7)}], (7, "last_offset")),
        ([{THERE: last(7)}, {THERE: last(5)}], (5, "last_offset")),
        ([{THERE: None}, {THERE: last(5)}], (5, "last_offset")),
        ([{THERE: None}], (9, "last_offset")),
        ([{THERE: last(7)}, {}], (0, "later_queue_from_min")),
    ],
)
def test_of_several_first_windows_the_one_that_knew_less_decides(
    records: list[dict[MessageQueue, Start | None]], start: tuple[int, str]
) -> None:
    others = [Shard(MessageQueue("Orders", f"broker-{n}", 0), 3, recorded(one)) for n, one in enumerate(records)]
    assert start_of(planned(Shard(THERE, 9, others_=others))) == start


def test_a_first_window_of_an_earlier_version_knew_no_queue_elsewhere() -> None:
    assert start_of(planned(Shard(THERE, 9, others_=[Shard(HERE, 3, window("{}"))]))) == (0, "later_queue_from_min")
