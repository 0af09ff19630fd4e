"""Several consumers of one group (rules 6): who gets which queue, who comes and goes while others work, and what then
becomes of every message. At the end of each story every message of the group has exactly one outcome (rules 6.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.claim import LEASE_S, Held, Holder
from rmq_store.commit.ctl import Action, Ctl, Proposal
from rmq_store.commit.positions import max_id, off_id, total
from rmq_store.consumer.allocate_rule import AllocateRule, allocate_rule_of
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import HeldByAnother, ListenerError, StaleAttempt, WrongUse
from rmq_store.lake.commit.commit import commit as commit_in_lake
from rmq_store.lake.sql.sql import query
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest, only_retries
from rmq_store.window.first_window import STARTS_ELSEWHERE
from rmq_store.window.plan import Planner
from tests.contract.engines import LakeWorld, MemoryWorld, story
from tests.contract.world import (
    ANA,
    BEN,
    BILLING,
    DAY,
    LOCAL,
    Listen,
    World,
    consumed,
    counts,
    fail,
    group,
    listening,
    orders,
    several,
    succeed,
)
from tests.oracle.memory.commit import commit as commit_in_memory
from tests.oracle.memory.commit import tally_of_range
from tests.oracle.memory.shard import MemoryShard

LATE = group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
ONE, TWO, THREE = ("c1",), ("c1", "c2"), ("c1", "c2", "c3")


def share(
    world: World,
    client: str,
    clients: tuple[str, ...],
    request: str,
    listener: Listen = succeed,
    of: GroupSettings = BILLING,
    meanwhile: Callable[[], object] | None = None,
    **more: Any,
) -> WindowReport:
    """A window of one of several consumers. ``meanwhile``: what happens after its claim and before its commit."""
    host = world.another_host(meanwhile, before_id=2)
    return world.consume(of, f"{DAY}-{request}", listener, host=host, client_id=client, client_ids=clients, **more)


def fill(world: World, queues: int, messages: int = 4) -> None:
    for n in range(queues):
        world.fill(orders(n), several(messages, first=100 * n))


def begin(world: World, of: GroupSettings = BILLING) -> None:
    """The group's first window, which takes nothing: later ones need not have all of their claims."""
    assert world.consume(of, f"{DAY}-0", max_messages=0).status == "committed"


def since(minute: int) -> GroupSettings:
    """A group that begins so many minutes after the first message of ``several``."""
    where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return group(consume_from_where=where, consume_timestamp=f"2024-06-03T11:{minute:02}:00Z")


def queue_ids(report: WindowReport) -> list[int]:
    return [queue.queue_id for queue in consumed(report)]


def assert_each_once(world: World, name: str = "billing", topics: tuple[str, ...] = ("Orders",)) -> None:
    """Windows tile every queue from its first message to its end, and the outcomes of each add up."""
    positions = world.positions()
    queues = [q for topic in (*topics, f"%RETRY%{name}") for q in positions.queues_of(topic)]
    windows = [ctl for ctl in world.ctls() if (ctl.action, ctl.group) == (Action.CONSUME, name)]
    done = [part for ctl in windows for part in ctl.consumed]
    assert {part.range.queue for part in done} == set(queues)
    for queue in queues:
        at: int | None = None
        for part in done:
            if part.range.queue == queue:
                assert at is None or part.range.begin == at
                assert total(part.tallies) == tally_of_range(part.range)
                at = part.range.end
        assert at == positions.max_offset(queue) == positions.get(off_id(name, queue))
    assert not [one for one in world.ctls() if one.action is Action.CLAIM and "claims" not in one.parameters]
    if isinstance(world, LakeWorld):
        assert query(world.store, "SELECT * FROM audit").to_pylist() == []


# --- who gets what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        ("AVG", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4, 7], [2, 5]]),
    ],
)
@story
def test_each_consumer_gets_its_queues_as_rocketmq_deals_them_out(
    world: World, strategy: str, shares: list[list[int]]
) -> None:
    fill(world, 8, messages=1)
    of = group(allocate_strategy=AllocateRule(strategy))
    reports = [share(world, client, THREE, client, of=of) for client in THREE]
    assert [queue_ids(report) for report in reports] == shares
    assert all(report.complete for report in reports)
    assert_each_once(world)


@story
def test_a_consistent_hash_gives_every_queue_to_one_consumer(world: World) -> None:
    fill(world, 8, messages=1)
    of = group(allocate_strategy=AllocateRule("CONSISTENT_HASH"))
    got = [queue_ids(share(world, client, THREE, client, of=of)) for client in THREE]
    assert sorted(queue_id for queues in got for queue_id in queues) == list(range(8))
    assert_each_once(world)


@story
def test_a_list_of_queues_per_consumer_leaves_the_others_unread_until_somebody_reads_all(world: World) -> None:
    fill(world, 4, messages=2)
    rule = allocate_rule_of({"name": "CONFIG", "queues": {"c1": ["broker-a:0", "broker-a:3"], "c2": ["broker-a:1"]}})
    of = group(allocate_strategy=rule)
    got = [queue_ids(share(world, client, ("c1", "c2"), client, of=of)) for client in ("c1", "c2")]
    assert got == [[0, 3], [1]]
    assert world.offset(orders(2)) in (None, 0)
    assert queue_ids(world.consume(of, f"{DAY}-all")) == [2]
    assert_each_once(world)


@story
def test_what_was_shared_is_recorded_with_the_request(world: World) -> None:
    fill(world, 4)
    share(world, "c2", ("c2", "c1"), "2")
    (ctl,) = [ctl for ctl in world.ctls() if ctl.action is Action.CONSUME]
    assert (ctl.parameter("client_id"), ctl.parameter("client_ids")) == ("c2", ["c1", "c2"])
    assert [row[:3] for row in ctl.parameter("bounds")] == [["Orders", "broker-a", 2], ["Orders", "broker-a", 3]]
    share(world, "c1", TWO, "1")
    assert_each_once(world)


@story
def test_every_consumer_has_requests_of_its_own(world: World) -> None:
    fill(world, 2)
    share(world, "c1", TWO, "1")
    with pytest.raises(WrongUse, match=f"request {DAY}-1 was started by client c1"):
        share(world, "c2", TWO, "1")
    assert share(world, "c1", ONE, "1").status == "already_committed"
    share(world, "c2", TWO, "2")
    assert_each_once(world)


@story
def test_a_request_of_one_consumer_is_known_to_who_reads_all_queues(world: World) -> None:
    fill(world, 4)
    share(world, "c1", ("c1",), "1")
    assert world.consume(BILLING, f"{DAY}-1").status == "already_committed"


@story
def test_with_fewer_queues_than_consumers_some_have_nothing_to_do_and_are_told(world: World) -> None:
    fill(world, 2)
    idle = share(world, "c3", THREE, "3")
    assert (idle.status, idle.complete) == ("empty", True)
    assert idle.idle == "client c3 gets no queue here: AVG gives them to others of c1, c2, c3"
    assert [queue_ids(share(world, client, THREE, client)) for client in TWO] == [[0], [1]]
    assert_each_once(world)


@story
def test_a_client_that_is_not_among_the_consumers_gets_nothing_and_is_told(world: World) -> None:
    fill(world, 2)
    report = share(world, "c9", TWO, "9")
    assert (report.status, report.idle) == (
        "empty",
        "client c9 gets no queue: it is not in the list of consumers c1, c2",
    )
    assert world.offset(orders(0)) is None
    assert [ctl for ctl in world.ctls() if ctl.action is not Action.IMPORT] == []


@story
def test_consumers_are_named_all_or_none_and_broadcasting_shares_nothing(world: World) -> None:
    fill(world, 2)
    for clients in ({"client_id": "c1"}, {"client_ids": TWO}):
        with pytest.raises(WrongUse, match="need both"):
            world.consume(BILLING, f"{DAY}-1", **clients)
    for bad in ("", "c 1", "c,1", 'c"1'):
        with pytest.raises(WrongUse, match="invalid client id"):
            share(world, bad, TWO, "1")
    with pytest.raises(WrongUse, match="broadcasting: every client gets all queues"):
        share(world, "c1", TWO, "1", of=group("billing@c1", message_model=MessageModel.BROADCASTING))


def test_a_topic_is_shared_over_all_shards_as_over_all_brokers(world: LakeWorld | MemoryWorld) -> None:
    """Shard by shard the first consumer would get the only queue of each."""
    here = [("broker-a", 0), ("broker-b", 0), ("broker-c", 0), ("broker-c", 1)]
    for broker, queue_id in here:
        shard = world.store.create_shard(broker)
        ctl = Ctl(world.host.new_commit_id(), Action.IMPORT, BEN, request_id=f"{DAY}-{broker}-{queue_id}")
        proposal = Proposal(ctl, {}, {max_id(MessageQueue("Orders", broker, queue_id)): 5})
        if isinstance(shard, MemoryShard):
            commit_in_memory(shard, proposal, world.host, started_ms=world.clock())
        else:
            commit_in_lake(shard, proposal, world.host, started_ms=world.clock())

    def planned(client: str, of: GroupSettings) -> list[tuple[str, int]]:
        request = ConsumeRequest(f"{DAY}-1", BEN, client_id=client, client_ids=THREE)
        shards = [shard for shard in world.store.shards() if of.shards is None or shard.name in of.shards]
        views = [shard if isinstance(shard, MemoryShard) else ShardLookup(shard) for shard in shards]
        plans = [Planner(view, of, world.clock()).plan(request, []) for view in views]
        return [(p.queue.broker_name, p.queue.queue_id) for plan in plans for p in plan.ranges]

    assert [planned(client, BILLING) for client in THREE] == [here[:2], here[2:3], here[3:]]
    some = group(shards=("broker-b", "broker-c"))
    assert [planned(client, some) for client in THREE] == [here[1:2], here[2:3], here[3:]]


@story
def test_the_retry_topic_is_shared_on_its_own(world: World) -> None:
    fill(world, 4, messages=2)
    of = group(retry_queue_nums=2)
    for client in TWO:
        assert counts(share(world, client, TWO, client, fail, of)) == {"retried": 4}
    world.clock.advance(3_600_000)
    world.deliver(f"{DAY}-d")
    retries = world.positions().queues_of("%RETRY%billing")
    assert [queue.queue_id for queue in retries] == [0, 1]
    world.fill(orders(0), several(1, first=50))
    reports = [share(world, client, TWO, f"again-{client}", of=of) for client in TWO]
    assert [list(consumed(report)) for report in reports] == [[retries[0], orders(0)], [retries[1]]]
    assert_each_once(world)


@story
def test_the_first_window_chooses_where_the_other_consumers_begin_too(world: World) -> None:
    """Else what they begin with would look as if it had come later, and they would begin at its beginning."""
    of = group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    fill(world, 4)
    first = share(world, "c1", TWO, "1", of=of)
    assert dict(consumed(first)) == {orders(n): (4, 4) for n in range(4)}
    assert first.complete
    for n in range(4):
        world.fill(orders(n), several(1, first=100 * n + 4))
    assert consumed(share(world, "c2", TWO, "2", of=of)) == {orders(2): (4, 5), orders(3): (4, 5)}
    assert consumed(share(world, "c1", TWO, "3", of=of)) == {orders(0): (4, 5), orders(1): (4, 5)}
    assert_each_once(world)


@story
def test_the_first_window_of_a_group_needs_all_its_queues(world: World) -> None:
    """Else those that another consumer holds would be left without a start, should that one commit nothing."""
    of = since(2)
    world.fill(orders(0), several(4, step_ms=60_000))
    world.fill(orders(1), several(4, first=100, step_ms=60_000)[2:])

    def killed() -> None:
        with pytest.raises(HeldByAnother, match=rf"/0 is held by request {DAY}-1 of ana, client c1"):
            share(world, "c2", TWO, "2", of=of)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(world, "c1", TWO, "1", of=of, meanwhile=killed)
    assert [consumed(share(world, client, TWO, f"{client}-3", of=of)) for client in TWO] == [
        {orders(0): (2, 4)}, {orders(1): (0, 2)},
    ]  # fmt: skip


def begin_with_retries(world: World, queues: int) -> None:
    """The group's first window reads a retry that waits here, and leaves the queues of the topic to the broker, which is not
    cut over."""
    fill(world, queues)
    world.fill(MessageQueue(retry_topic(LATE.name), LOCAL, 0), several(1, first=900))
    request, scope = only_retries(ConsumeRequest(f"{DAY}-retries", ANA))
    with listening(succeed):
        assert world.consume_window(LATE, request, world.host, scope).messages() == 1
    assert [world.offset(orders(n)) for n in range(queues)] == [None] * queues


@story
def test_the_first_window_of_topics_chooses_for_the_other_consumers_what_retries_left_to_a_broker(world: World) -> None:
    begin_with_retries(world, 4)
    assert consumed(share(world, "c1", TWO, "1", of=LATE)) == {orders(n): (4, 4) for n in range(4)}
    for n in range(4):
        world.fill(orders(n), several(1, first=100 * n + 4))
    assert consumed(share(world, "c2", TWO, "2", of=LATE)) == {orders(2): (4, 5), orders(3): (4, 5)}
    assert consumed(share(world, "c1", TWO, "3", of=LATE)) == {orders(0): (4, 5), orders(1): (4, 5)}
    assert_each_once(world)


@story
def test_the_first_window_of_topics_needs_all_queues_that_retries_left_to_a_broker(world: World) -> None:
    begin_with_retries(world, 2)

    def killed() -> None:
        with pytest.raises(HeldByAnother, match=rf"/0 and 1 more are held by request {DAY}-1 of ana, client c1"):
            world.consume(LATE, f"{DAY}-2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(world, "c1", TWO, "1", of=LATE, meanwhile=killed)
    world.clock.advance(LEASE_S * 1000)
    assert consumed(world.consume(LATE, f"{DAY}-3")) == {orders(0): (4, 4), orders(1): (4, 4)}


@story
def test_a_first_window_of_topics_after_retries_that_an_operator_overtakes_before_its_claim_is_refused(
    world: World,
) -> None:
    begin_with_retries(world, 2)
    late = world.another_host(lambda: world.reset_to(ResetTo.MAX, queues=(orders(1),)), before_id=1)
    with pytest.raises(StaleAttempt, match="was moved in shard broker-a while its first window claimed its queues"):
        world.consume(LATE, f"{DAY}-1", host=late)
    assert consumed(world.consume(LATE, f"{DAY}-2")) == {orders(0): (4, 4)}


@story
def test_a_queue_that_comes_after_a_first_window_was_killed_leaves_no_other_one_out(world: World) -> None:
    fill(world, 2)

    def killed() -> None:
        world.fill(orders(2), several(3, first=200))
        with pytest.raises(HeldByAnother, match=rf"/0 and 1 more are held by request {DAY}-1 of ana"):
            world.consume(LATE, f"{DAY}-2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.consume(LATE, f"{DAY}-1", host=world.another_host(killed, before_id=2))
    assert consumed(world.consume(LATE, f"{DAY}-3")) == {orders(0): (4, 4), orders(1): (4, 4), orders(2): (3, 3)}


@story
def test_of_two_first_windows_the_second_one_is_none_after_its_claim(world: World) -> None:
    """It goes on from the starts that the first one chose, which has an earlier consume_timestamp, and reads nothing of the
    other consumer's queue."""
    for n in range(2):
        world.fill(orders(n), several(7, first=100 * n, step_ms=600_000))

    def is_first() -> None:
        assert share(world, "c1", TWO, "1", of=since(10), max_messages=0).status == "committed"

    late = world.another_host(is_first, before_id=1)
    report = world.consume(since(30), f"{DAY}-2", host=late, client_id="c2", client_ids=TWO)
    assert [(c.range.queue, c.range.begin, c.range.end, c.start_rule) for c in report.consumed] == [
        (orders(1), 1, 7, "stored")
    ]
    assert world.offset(orders(0)) == 1
    windows = [ctl for ctl in world.ctls() if ctl.action is Action.CONSUME]
    assert [ctl.parameter(STARTS_ELSEWHERE) is None for ctl in windows] == [False, True]


@story
def test_a_first_window_that_an_operator_overtakes_before_its_claim_is_refused(world: World) -> None:
    """The queue that gets its start back to choose was no part of its claim."""
    fill(world, 2)
    world.reset_to(ResetTo.MAX, queues=(orders(0),))

    late = world.another_host(world.undo, before_id=1)
    with pytest.raises(StaleAttempt, match="was moved in shard broker-a while its first window claimed its queues"):
        world.consume(LATE, f"{DAY}-1", host=late)
    assert consumed(world.consume(LATE, f"{DAY}-1")) == {orders(0): (4, 4), orders(1): (4, 4)}


@story
def test_a_window_is_refused_whose_group_is_deleted_before_its_claim(world: World) -> None:
    """It would be the first one of the new group, with the starts and claims of the old one."""
    fill(world, 2)
    begin(world, LATE)
    fill(world, 1)
    late = world.another_host(world.delete, before_id=1)
    with pytest.raises(StaleAttempt, match="while its first window claimed its queues"):
        world.consume(LATE, f"{DAY}-1", host=late)
    assert consumed(world.consume(LATE, f"{DAY}-1")) == {orders(0): (8, 8), orders(1): (4, 4)}


@story
def test_a_request_that_goes_on_after_a_delete_chooses_where_all_queues_begin(world: World) -> None:
    world.fill(orders(0), several(4))
    share(world, "c1", TWO, "1", of=group(max_messages=2))
    world.fill(orders(1), several(3, first=100))
    world.delete()
    share(world, "c1", TWO, "1", of=LATE)
    assert [world.offset(orders(n)) for n in range(2)] == [4, 3]


# --- at the same time ------------------------------------------------------------------------------------------------


@story
def test_consumers_with_different_queues_work_at_the_same_time_and_all_commit(world: World) -> None:
    fill(world, 4)
    inner: list[WindowReport] = []

    def the_other() -> None:
        inner.append(share(world, "c2", TWO, "2", fail))

    outer = share(world, "c1", TWO, "1", fail, meanwhile=the_other)
    assert (queue_ids(outer), queue_ids(inner[0])) == ([0, 1], [2, 3])
    assert (outer.held, inner[0].held, outer.complete, inner[0].complete) == ((), (), True, True)
    assert len(world.lane(3)) == 16  # both have put their retries into one queue
    assert world.positions().max_offset(world.lane(3)[0].queue) == 16
    assert_each_once(world)


@story
def test_who_joins_in_mid_run_waits_for_the_queues_that_are_being_consumed(world: World) -> None:
    fill(world, 4)

    def joins() -> None:
        with pytest.raises(HeldByAnother) as held:
            share(world, "c2", TWO, "2")
        told = str(held.value)
        assert f"/2 and 1 more are held by request {DAY}-1 of ana, client c1 (claim 1) for 120 s more" in told

    assert queue_ids(share(world, "c1", ONE, "1", meanwhile=joins)) == [0, 1, 2, 3]
    assert share(world, "c2", TWO, "2").status == "empty"
    fill(world, 4, messages=1)
    assert [queue_ids(share(world, client, TWO, f"next-{client}")) for client in TWO] == [[0, 1], [2, 3]]
    assert_each_once(world)


@story
def test_hosts_whose_clocks_differ_agree_when_a_lease_ends(world: World) -> None:
    """c1 is 55 s behind the store's clock. 28 s later comes c2, which is 55 s ahead of it."""
    fill(world, 1)
    world.store_skew_ms = 55_000

    def joins() -> None:
        world.clock.advance(28_000 + 110_000)
        world.store_skew_ms = -55_000
        with pytest.raises(HeldByAnother, match=f"for {LEASE_S - 28} s more"):
            share(world, "c2", ("c2",), "2")

    assert counts(share(world, "c1", ONE, "1", meanwhile=joins)) == {"acked": 4}


@story
def test_two_views_at_once_overlap_and_no_message_has_two_outcomes(world: World) -> None:
    """c1 knows of c2; c2 believes to be alone. It takes what is free, and the rest when c1 has done it: nothing."""
    fill(world, 4)
    begin(world)
    reports: list[WindowReport] = []

    def alone() -> None:
        reports.append(share(world, "c2", ("c2",), "2"))
        with pytest.raises(HeldByAnother, match=rf"request {DAY}-1 of ana, client c1"):
            share(world, "c2", ("c2",), "2")

    outer = share(world, "c1", TWO, "1", meanwhile=alone)
    (inner,) = reports
    assert (queue_ids(outer), queue_ids(inner), inner.complete) == ([0, 1], [2, 3], False)
    c1 = Holder(f"{DAY}-1", "ana", 2, "c1")
    assert [(one.queue, one.remaining_s, one.holder) for one in inner.held] == [
        (orders(0), LEASE_S, c1), (orders(1), LEASE_S, c1),
    ]  # fmt: skip
    again = share(world, "c2", ("c2",), "2")
    assert (again.status, again.messages(), again.complete) == ("already_committed", 8, True)
    assert_each_once(world)


@story
def test_queues_that_were_held_are_done_by_the_next_part_up_to_the_bounds_of_the_first(world: World) -> None:
    fill(world, 4)
    begin(world)
    reports: list[WindowReport] = []

    def nonsense(msgs: list[MessageExt], context: Any) -> str:
        return "what?"

    with pytest.raises(ListenerError):
        share(world, "c1", TWO, "1", nonsense, meanwhile=lambda: reports.append(share(world, "c2", ("c2",), "2")))
    fill(world, 4, messages=3)  # of the next request
    again = share(world, "c2", ("c2",), "2")
    assert consumed(reports[0]) == {orders(2): (0, 4), orders(3): (0, 4)}
    assert consumed(again) == {orders(0): (0, 4), orders(1): (0, 4)}
    assert [(r.status, r.complete) for r in (reports[0], again)] == [("committed", False), ("committed", True)]
    assert share(world, "c1", ONE, "3").messages() == 12
    assert_each_once(world)


@story
def test_a_capped_request_uses_its_cap_on_what_is_free(world: World) -> None:
    fill(world, 2)
    begin(world)
    reports: list[WindowReport] = []

    def alone() -> None:
        reports.append(share(world, "c2", ("c2",), "2", max_messages=3))
        reports.append(share(world, "c2", ("c2",), "3", max_messages=3))

    share(world, "c1", TWO, "1", meanwhile=alone)
    assert [(consumed(r), r.complete) for r in reports] == [
        ({orders(1): (0, 3)}, True), ({orders(1): (3, 4)}, False),
    ]  # fmt: skip
    assert share(world, "c2", ("c2",), "3", max_messages=3).status == "already_committed"
    assert_each_once(world)


@story
def test_a_request_goes_on_where_a_request_that_was_done_meanwhile_left_it(world: World) -> None:
    """What c2 claims has been done between its plan and its claim; what is left is held: it is told by whom."""
    fill(world, 2)
    begin(world)

    def alone() -> None:
        late = world.another_host(lambda: share(world, "c1", ("c0", "c1"), "3"), before_id=1)
        with pytest.raises(HeldByAnother, match=rf"/0 is held by request {DAY}-1 of ana, client c1"):
            world.consume(BILLING, f"{DAY}-2", host=late)

    share(world, "c1", TWO, "1", meanwhile=alone)
    assert world.consume(BILLING, f"{DAY}-2").status == "empty"
    assert_each_once(world)


# --- who leaves, who dies --------------------------------------------------------------------------------------------


@story
def test_the_queues_of_one_who_left_are_taken_by_the_next_run_of_the_others(world: World) -> None:
    fill(world, 4)
    assert queue_ids(share(world, "c1", TWO, "1")) == [0, 1]  # c2 never came
    assert queue_ids(share(world, "c1", ONE, "2")) == [2, 3]
    assert_each_once(world)


@story
def test_one_who_leaves_in_mid_run_lets_the_others_in_at_once(world: World) -> None:
    fill(world, 4)

    def leaves(msgs: list[MessageExt], context: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(world, "c2", TWO, "2", leaves)
    report = share(world, "c1", ONE, "1")
    assert (queue_ids(report), report.held) == ([0, 1, 2, 3], ())
    reasons = [ctl.reason for ctl in world.ctls() if ctl.action is Action.CLAIM]
    assert reasons == ["free", "free"]
    assert_each_once(world)


@story
def test_the_queues_of_one_who_died_are_taken_over_when_the_lease_is_over_and_it_commits_nothing(world: World) -> None:
    fill(world, 4)
    begin(world)
    reports: list[WindowReport] = []

    def the_other_waits() -> None:
        for seconds in (LEASE_S - 1, 1):
            world.clock.advance(seconds * 1000)
            reports.append(share(world, "c1", ONE, "1", actor=BEN))

    told = rf"own/billing/Orders/broker-a/2 was claim 2 and is claim 3; .* Moved by .*{DAY}-1 of ben"
    with pytest.raises(StaleAttempt, match=told):
        share(world, "c2", TWO, "2", fail, meanwhile=the_other_waits)
    assert [queue_ids(report) for report in reports] == [[0, 1], [2, 3]]
    assert [(one.queue, one.remaining_s) for one in reports[0].held] == [(orders(2), 1), (orders(3), 1)]
    assert world.ctls()[-1].action is Action.CONSUME  # nothing of its claims was left to release
    assert share(world, "c2", TWO, "2").status == "empty"
    assert world.lane(3) == []
    assert_each_once(world)


@story
def test_one_whose_queues_were_taken_in_part_commits_nothing_and_frees_the_rest(world: World) -> None:
    fill(world, 4)
    reports: list[WindowReport] = []

    def one_queue_is_taken() -> None:
        world.clock.advance(LEASE_S * 1000)
        reports.append(share(world, "c4", ("c1", "c2", "c3", "c4"), "4"))

    with pytest.raises(StaleAttempt):
        share(world, "c1", ONE, "1", meanwhile=one_queue_is_taken)
    assert queue_ids(reports[0]) == [3]
    release = world.ctls()[-1]
    assert (release.action, len(release.parameter("claims"))) == (Action.RELEASE, 3)
    report = share(world, "c1", ONE, "1")
    assert (queue_ids(report), report.complete) == ([0, 1, 2], True)
    assert_each_once(world)


@story
def test_another_attempt_takes_over_what_the_earlier_one_holds_and_leaves_what_others_hold(world: World) -> None:
    fill(world, 4)
    begin(world)
    reports: list[WindowReport] = []

    def second_attempt() -> None:
        reports.append(share(world, "c2", ("c2",), "2", actor=BEN))

    def first_attempt() -> None:
        with pytest.raises(StaleAttempt, match="of ben"):
            share(world, "c2", ("c2",), "2", meanwhile=second_attempt)

    share(world, "c1", TWO, "1", meanwhile=first_attempt)
    assert queue_ids(reports[0]) == [2, 3]
    assert [one.queue for one in reports[0].held] == [orders(0), orders(1)]
    reasons = [ctl.reason for ctl in world.ctls() if ctl.action is Action.CLAIM]
    assert reasons[1:] == ["free", "free", "took over claim 2 of an earlier attempt of this request"]
    assert_each_once(world)


# --- topics that change ----------------------------------------------------------------------------------------------


@story
def test_queues_that_appear_while_consumers_run_begin_at_their_beginning_for_whoever_gets_them(world: World) -> None:
    of = group(consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    fill(world, 2)
    share(world, "c1", TWO, "0", of=of)

    def grows() -> None:
        for n in (2, 3):
            world.fill(orders(n), several(3, first=100 * n))
        inner = share(world, "c2", TWO, "2", of=of)
        assert {c.range.queue: (c.range.begin, c.start_rule) for c in inner.consumed} == {
            orders(2): (0, "later_queue_from_min"), orders(3): (0, "later_queue_from_min"),
        }  # fmt: skip

    world.fill(orders(0), several(1, first=4))
    world.fill(orders(1), several(1, first=104))
    assert consumed(share(world, "c1", ONE, "1", of=of, meanwhile=grows)) == {orders(0): (4, 5), orders(1): (4, 5)}
    assert world.consume(of, f"{DAY}-3").status == "empty"
    assert_each_once(world)


@story
def test_a_queue_that_appears_between_plan_and_claim_belongs_to_the_next_request(world: World) -> None:
    fill(world, 1)
    late = world.another_host(lambda: world.fill(orders(1), several(2, first=100)), before_id=1)
    report = world.consume(BILLING, f"{DAY}-1", host=late)
    assert (consumed(report), report.complete) == ({orders(0): (0, 4)}, True)
    assert consumed(world.consume(BILLING, f"{DAY}-2")) == {orders(1): (0, 2)}
    assert_each_once(world)


@story
def test_queues_that_nobody_writes_to_any_more_stay_shared_until_they_are_empty(world: World) -> None:
    """A topic that shrank: RocketMQ's clients would not see the messages beyond its new count any more."""
    fill(world, 4)
    world.fill(orders(0), several(2, first=4))
    assert [queue_ids(share(world, client, TWO, client)) for client in TWO] == [[0, 1], [2, 3]]
    assert_each_once(world)


# --- in order, without duplicates ------------------------------------------------------------------------------------


@story
def test_a_held_queue_of_an_orderly_group_is_consumed_by_nobody_else(world: World) -> None:
    of = group(mode="orderly", consume_message_batch_max_size=1)
    fill(world, 2, messages=3)
    begin(world, of)
    asked: list[tuple[str, bytes]] = []
    reports: list[WindowReport] = []

    def saying(who: str) -> Listen:
        def listener(msgs: list[MessageExt], context: Any) -> str:
            asked.extend((who, m.body or b"") for m in msgs)
            return "SUCCESS"

        return listener

    def joins() -> None:
        reports.append(share(world, "c2", ("c2",), "2", saying("c2"), of))

    share(world, "c1", TWO, "1", saying("c1"), of, meanwhile=joins)
    assert (queue_ids(reports[0]), [one.queue for one in reports[0].held]) == ([1], [orders(0)])
    assert asked == [("c2", b"100"), ("c2", b"101"), ("c2", b"102"), ("c1", b"0"), ("c1", b"1"), ("c1", b"2")]
    assert_each_once(world)


@story
def test_of_a_group_that_absorbs_duplicates_one_window_runs_at_a_time(world: World) -> None:
    of = group(absorb_duplicates=AbsorbRule("UNIQ_KEY", 3_600_000))
    world.fill(orders(0), several(2))
    world.fill(orders(1), several(2))

    def the_other() -> None:
        with pytest.raises(HeldByAnother, match=rf"broker-a/billing is held by request {DAY}-1 of ana, client c1"):
            share(world, "c2", TWO, "2", of=of)

    assert counts(share(world, "c1", TWO, "1", of=of, meanwhile=the_other)) == {"acked": 2}
    assert counts(share(world, "c2", TWO, "2", of=of)) == {"duplicate": 2}
    assert_each_once(world)


# --- what it costs ---------------------------------------------------------------------------------------------------


@story
def test_a_window_of_many_queues_is_one_claim_and_one_commit(world: World) -> None:
    fill(world, 16, messages=1)
    before = len(world.ctls())
    world.consume(BILLING, f"{DAY}-1")
    claim, window = world.ctls()[before:]
    assert (claim.action, window.action) == (Action.CLAIM, Action.CONSUME)
    assert len(claim.parameter("claims")) == 16
    assert window.parameter("claim") == claim.commit_id
    assert_each_once(world)


def test_a_held_claim_of_a_whole_is_no_queue() -> None:
    assert Held("own/~import/broker-a", 1, 9, None).queue is None
    assert Held("own/g/T/b/7", 1, 9, None).queue == MessageQueue("T", "b", 7)
    assert LOCAL.startswith("lake-")
