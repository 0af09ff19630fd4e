"""What every engine promises to messages that failed: the chain of retries, and delivery. See ``test_engines.py``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Ctl, Proposal, canonical_json
from rmq_store.commit.decide import MAX_SKEW_MS
from rmq_store.commit.positions import Claim, Outcome, own_id
from rmq_store.consumer.delay import CustomizedRetryPolicy, GroupRetryPolicy, GroupRetryPolicyType
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import ClockSkew, HeldByAnother, StaleAttempt, WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.window.consume_request import ConsumeRequest, Scope, only_retries
from rmq_store.window.deliver import DeliverReport, deliver_all
from rmq_store.window.due import WaitingRetries
from tests.contract.engines import story
from tests.contract.world import (
    ANA,
    BEN,
    BILLING,
    DAY,
    HOUR,
    LOCAL,
    NOON,
    World,
    bodies,
    counts,
    fail,
    fail_bodies,
    group,
    listening,
    orders,
    said,
    several,
)
from tests.oracle.memory.rows import MessageRow

# --- the chain of retries --------------------------------------------------------------------------------------------


@story
def test_a_retry_is_not_delivered_before_it_is_due(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    world.clock.advance(9_999)
    early = world.deliver(f"{DAY}-d1")
    assert (early.status, early.delivered, early.next_due_ms) == ("empty", 0, NOON + 10_000)
    assert world.consume(BILLING, f"{DAY}-2").status == "empty"
    world.clock.advance(1)
    due = world.deliver(f"{DAY}-d2")
    assert (due.status, due.delivered, due.more, due.next_due_ms) == ("committed", 1, False, None)


@story
def test_a_delivered_retry_is_consumed_with_its_first_topic_and_its_retries_counted(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    (copy,) = world.retries()
    assert copy.row.properties == {
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "Orders",
        "ORIGIN_MESSAGE_ID": f"{1:032X}",
        "WAIT": "false",
    }
    seen: list[MessageExt] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        (m,) = msgs
        assert (m.topic, m.broker_name, m.queue_id, m.queue_offset) == ("Orders", LOCAL, 0, 0)
        assert context.message_queue == MessageQueue("%RETRY%billing", LOCAL, 0)
        assert (m.body, m.reconsume_times, m.unique_key, m.store_timestamp) == (b"1", 1, "U1", NOON + 10_000)
        assert context.idempotency_key(m) == f"billing:{1:032X}"
        seen.append(m)
        return "CONSUME_SUCCESS"

    assert counts(world.consume(BILLING, f"{DAY}-2", listener)) == {"acked": 1}
    assert len(seen) == 1


@story
def test_a_message_that_always_fails_is_dead_after_sixteen_retries_with_rocketmqs_delays(world: World) -> None:
    """The second chain of rules 16.4."""
    world.fill(orders(0), several(1))
    handed_over: list[int] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        handed_over.append(world.clock() - NOON)
        return "RECONSUME_LATER"

    for attempt in range(16):
        world.consume(BILLING, f"{DAY}-c{attempt}", listener)
        (waiting,) = world.lane(3 + attempt)
        world.clock.now_ms = world.due_at(waiting.queue)[0] or 0
        assert world.deliver(f"{DAY}-d{attempt}").delivered == 1
    world.consume(BILLING, f"{DAY}-c16", listener)
    seconds = [0, 10, 40, 100, 220, 400, 640, 940, 1300, 1720, 2200, 2740, 3340, 4540, 6340, 9940, 17140]
    assert handed_over == [1000 * s for s in seconds]
    (letter,) = world.dead_letters()
    assert (letter.queue.queue_id, letter.row.reconsume_times, letter.row.body) == (0, 17, b"0")
    assert letter.row.properties["RETRY_TOPIC"] == "Orders"
    assert letter.row.provenance is not None
    assert letter.row.provenance.cause == "max_reconsume_times"
    assert world.consume(BILLING, f"{DAY}-end").status == "empty"


@story
def test_a_group_may_give_up_earlier(world: World) -> None:
    world.fill(orders(0), several(1))
    stubborn = group(max_reconsume_times=1)
    assert counts(world.consume(stubborn, f"{DAY}-1", fail)) == {"retried": 1}
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(stubborn, f"{DAY}-2", fail)) == {"dead": 1}
    assert [m.row.reconsume_times for m in world.dead_letters()] == [2]


@story
@pytest.mark.parametrize(("mode", "counted"), [("concurrently", None), ("orderly", "-2147483648")])
def test_a_retry_count_wraps_like_a_brokers_and_blocks_no_group(world: World, mode: str, counted: str | None) -> None:
    world.fill(orders(0), [replace(said(0), reconsume_times=2**31 - 1)])
    assert counts(world.consume(group(mode=mode), f"{DAY}-1", lambda msgs, context: None)) == {"dead": 1}
    (letter,) = world.dead_letters()
    assert (letter.row.reconsume_times, letter.row.properties.get("RECONSUME_TIME")) == (-(2**31), counted)


@story
def test_the_last_retry_of_all_comes_at_once(world: World) -> None:
    world.fill(orders(0), [replace(said(0), reconsume_times=2**31 - 2)])
    tireless = group(max_reconsume_times=2**31 - 1)
    assert counts(world.consume(tireless, f"{DAY}-1", fail)) == {"retried": 1}
    assert world.deliver(f"{DAY}-d").delivered == 1
    assert [copy.row.reconsume_times for copy in world.retries()] == [2**31 - 1]
    assert counts(world.consume(tireless, f"{DAY}-2", fail)) == {"dead": 1}


@story
def test_a_message_born_in_the_lake_has_an_id_that_its_retries_name(world: World) -> None:
    queue = world.fill_lake_born(0, [MessageRow(b"fresh", {"UNIQ_KEY": "F"})])
    (born,) = world.stored(queue)
    assert (born.store_timestamp, len(born.offset_msg_id)) == (NOON, 56)
    seen: list[str] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        seen.append(context.idempotency_key(msgs[0]))
        assert msgs[0].store_timestamp == (NOON if len(seen) == 1 else NOON + 10_000)
        return "RECONSUME_LATER"

    world.consume(BILLING, f"{DAY}-1", listener)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    world.consume(BILLING, f"{DAY}-2", listener)
    assert seen == [f"billing:{born.offset_msg_id}"] * 2
    assert bodies(world.lane(4)) == [b"fresh"]


@story
def test_a_window_with_nothing_to_read_says_how_many_retries_wait_and_when_the_first_is_due(world: World) -> None:
    world.fill(orders(0), several(4))
    assert world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1", b"2")).waiting is None
    world.consume(group("ledger"), f"{DAY}-other", fail)
    assert world.consume(BILLING, f"{DAY}-1").waiting is None, "what was done before is told, not what waits"
    assert world.consume(BILLING, f"{DAY}-2").waiting == WaitingRetries(2, NOON + 10_000)
    world.clock.advance(60_000)
    assert world.consume(BILLING, f"{DAY}-3").waiting == WaitingRetries(2, NOON + 10_000), "due is not delivered"
    world.deliver(f"{DAY}-d1")
    world.consume(BILLING, f"{DAY}-4", fail_bodies(b"1"))
    world.clock.advance(1)
    assert world.consume(BILLING, f"{DAY}-5").waiting == WaitingRetries(1, NOON + 90_000)
    world.clock.advance(30_000)
    world.deliver(f"{DAY}-d2")
    world.consume(BILLING, f"{DAY}-6")
    done = world.consume(BILLING, f"{DAY}-7")
    assert (done.status, done.waiting) == ("empty", None)


@story
def test_the_first_of_all_delays_counts_also_of_a_policy_and_of_a_replay(world: World) -> None:
    policy = GroupRetryPolicy(GroupRetryPolicyType.CUSTOMIZED, customized=CustomizedRetryPolicy((7_500,)))
    world.fill(orders(0), several(3))
    patient = group(retry_policy=policy)
    world.consume(patient, f"{DAY}-1", fail_bodies(b"1"))
    world.consume(patient, f"{DAY}-2")
    world.fill(orders(0), several(2, first=3))

    def choosy(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = 2
        return "RECONSUME_LATER"

    world.consume(patient, f"{DAY}-3", choosy)
    assert world.consume(patient, f"{DAY}-4").waiting == WaitingRetries(3, NOON + 5_000)
    world.clock.advance(5_000)
    world.deliver(f"{DAY}-d")
    world.consume(patient, f"{DAY}-5")
    assert world.consume(patient, f"{DAY}-6").waiting == WaitingRetries(1, NOON + 7_500)

    world.replay(BILLING, "Orders", NOON - HOUR, ConsumeRequest(f"{DAY}-replay", ANA), fail_bodies(b"0", b"4"))
    again = group(replay_group("billing", f"{DAY}-replay"))
    waits = world.consume(again, f"{DAY}-7", scope=Scope(retries_only=True))
    assert (waits.status, waits.waiting) == ("empty", WaitingRetries(2, NOON + 15_000))


@story
def test_a_window_of_retries_only_reads_no_new_message(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"0", b"1"), max_messages=2)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d1")
    request, scope = only_retries(ConsumeRequest(f"{DAY}-2", ANA))
    with listening(fail_bodies(b"1")):
        first = world.consume_window(BILLING, request, world.host, scope)
    assert (first.status, counts(first)) == ("committed", {Outcome.ACKED: 1, Outcome.RETRIED: 1})
    assert world.consume(BILLING, f"{DAY}-3", max_messages=1).messages() == 1, "the topic's offset had not moved"
    world.clock.advance(30_000)
    world.deliver(f"{DAY}-d2")
    assert world.consume(BILLING, f"{DAY}-4", scope=scope).messages() == 1
    assert world.consume(BILLING, f"{DAY}-5", scope=scope).status == "empty"


@story
def test_a_request_for_retries_only_is_another_request(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d1")
    request, scope = only_retries(ConsumeRequest(f"{DAY}-2", ANA))
    assert world.consume_window(BILLING, request, world.host, scope).messages() == 2
    assert world.consume_window(BILLING, request, world.host, scope).status == "already_committed"
    with pytest.raises(WrongUse, match="retries_only"):
        world.consume(BILLING, f"{DAY}-2")


# --- delivery --------------------------------------------------------------------------------------------------------


@story
def test_what_is_due_first_is_delivered_first_over_all_levels(world: World) -> None:
    world.fill(orders(0), several(2))

    def at_level(level: int) -> Any:
        def listener(msgs: list[MessageExt], context: Any) -> str:
            context.delay_level_when_next_consume = level
            return "RECONSUME_LATER"

        return listener

    world.consume(BILLING, f"{DAY}-1", at_level(4), max_messages=1)  # due at + 30 s
    world.clock.advance(25_000)
    world.consume(BILLING, f"{DAY}-2", at_level(2))  # due at + 25 s + 5 s
    world.fill(orders(0), several(3, first=2))
    world.consume(BILLING, f"{DAY}-3", at_level(1))  # due at + 26 s
    world.clock.advance(5_000)
    world.deliver(f"{DAY}-d")
    assert bodies(world.retries()) == [b"2", b"3", b"4", b"1", b"0"]


@story
def test_a_capped_delivery_takes_the_oldest_and_says_that_there_is_more(world: World) -> None:
    world.fill(orders(0), several(6))
    world.consume(BILLING, f"{DAY}-1", fail, max_messages=4)
    world.clock.advance(1_000)
    world.consume(BILLING, f"{DAY}-2", fail)
    world.clock.advance(60_000)
    delivered = [world.deliver(f"{DAY}-d{n}", cap=3) for n in range(3)]
    assert [(report.delivered, report.more) for report in delivered] == [(3, True), (3, False), (0, False)]
    assert bodies(world.retries()) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def all_delivered(world: World, request_id: str, cap: int, stop_after: int | None = None) -> list[tuple[str, int]]:
    """(status, delivered) of every part of a request, which stops after so many."""
    told: list[tuple[str, int]] = []

    def part(part_id: str) -> DeliverReport:
        if len(told) == stop_after:
            raise ClockSkew("stopped here")
        return world.deliver(part_id, cap=cap)

    with suppress(ClockSkew):
        for report in deliver_all(request_id, part):
            told.append((report.status, report.delivered))
    return told


@story
def test_a_request_to_deliver_goes_on_part_after_part_where_it_stopped(world: World) -> None:
    world.fill(orders(0), several(5))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(60_000)
    assert all_delivered(world, f"{DAY}-d", 2, stop_after=1) == [("committed", 2)]
    assert all_delivered(world, f"{DAY}-d", 2) == [("already_committed", 2), ("committed", 2), ("committed", 1)]
    world.fill(orders(0), several(3, first=5))
    world.consume(BILLING, f"{DAY}-2", fail)
    world.clock.advance(60_000)
    assert all_delivered(world, f"{DAY}-d", 2) == [("already_committed", done) for done in (2, 2, 1)]
    assert [ctl.request_id for ctl in world.ctls() if ctl.action is Action.DELIVER] == [
        f"{DAY}-d{part}" for part in ("", "~2", "~3")
    ]
    assert bodies(world.retries()) == [b"%d" % number for number in range(5)]


@story
def test_delivering_twice_with_one_request_moves_nothing_twice(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    first = world.deliver(f"{DAY}-d")
    world.consume(BILLING, f"{DAY}-2", fail)
    world.clock.advance(HOUR)
    again = world.deliver(f"{DAY}-d")
    assert (again.status, again.delivered, again.commit_id) == ("already_committed", first.delivered, first.commit_id)
    assert len(world.retries()) == 3


@story
def test_a_repeated_delivery_says_when_what_waits_now_is_due(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(BILLING, f"{DAY}-1", fail, max_messages=1)
    world.clock.advance(5_000)
    world.consume(BILLING, f"{DAY}-2", fail, max_messages=1)
    world.clock.advance(5_000)
    first = world.deliver(f"{DAY}-d")
    assert (first.delivered, first.next_due_ms) == (1, NOON + 15_000)
    assert world.deliver(f"{DAY}-d").next_due_ms == NOON + 15_000
    world.clock.advance(HOUR)
    assert world.deliver(f"{DAY}-d").next_due_ms == NOON + 15_000, "it is due, and nothing has delivered it"
    world.deliver(f"{DAY}-d2")
    again = world.deliver(f"{DAY}-d")
    assert (again.status, again.delivered, again.next_due_ms, again.warnings) == ("already_committed", 1, None, ())


@story
def test_a_delivery_is_one_commit_over_all_groups_of_the_shard(world: World) -> None:
    world.fill(orders(0), several(2))
    for name in ("billing", "shipping"):
        world.consume(group(name), f"{DAY}-1", fail)
    world.clock.advance(10_000)
    assert world.deliver(f"{DAY}-d").delivered == 4
    (delivery,) = [ctl for ctl in world.ctls() if ctl.action is Action.DELIVER]
    assert [c.range.queue.broker_name for c in delivery.consumed] == [f"{LOCAL}~billing", f"{LOCAL}~shipping"]
    assert (len(world.retries("billing")), len(world.retries("shipping"))) == (2, 2)


@story
def test_a_delivery_says_in_which_level_queues_it_is_the_first(world: World) -> None:
    world.fill(orders(0), several(2))
    for request in ("1", "2"):
        world.consume(BILLING, f"{DAY}-{request}", fail, max_messages=1)
        world.clock.advance(5_000)
    for request in ("d1", "d2"):
        world.deliver(f"{DAY}-{request}")
        world.clock.advance(5_000)
    deliveries = [ctl for ctl in world.ctls() if ctl.action is Action.DELIVER]
    said = [[(c.range.begin, c.range.end, c.start_rule) for c in ctl.consumed] for ctl in deliveries]
    assert said == [[(0, 1, "first_offset")], [(1, 2, "stored")]]


@story
def test_a_due_time_beyond_the_levels_delay_counts_as_due(world: World) -> None:
    """Rules 11.3: it can only come from a clock that was wrong when the message was stored."""
    world.fill(orders(0), several(1))
    world.clock.advance(MAX_SKEW_MS + 10_000)
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(-MAX_SKEW_MS)
    assert world.deliver(f"{DAY}-d1").delivered == 0, "as far ahead as a clock may be"
    world.clock.advance(-1)
    assert world.deliver(f"{DAY}-d2").delivered == 1


@story
def test_what_is_stored_while_a_delivery_begins_waits_for_its_time(world: World) -> None:
    """Its due time lies beyond the level's delay by the clock of the delivery's beginning, not by the one of its plan."""
    world.fill(orders(0), several(1))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(10_000)

    def meanwhile() -> None:
        world.clock.advance(2 * MAX_SKEW_MS)
        world.fill(orders(0), [said(1)])
        world.consume(BILLING, f"{DAY}-2", fail)

    assert world.deliver(f"{DAY}-d1", host=world.another_host(meanwhile)).delivered == 1
    assert bodies(world.retries()) == [b"0"]
    world.clock.advance(10_000)
    assert world.deliver(f"{DAY}-d2").delivered == 1


@story
@pytest.mark.parametrize(("other", "status"), [("d1", "already_committed"), ("d2", "empty")])
def test_what_is_delivered_between_plan_and_claim_is_not_delivered_again(world: World, other: str, status: str) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    overtaken = world.another_host(lambda: world.deliver(f"{DAY}-{other}"))
    assert world.deliver(f"{DAY}-d1", host=overtaken).status == status
    assert [ctl.request_id for ctl in world.ctls() if ctl.action is Action.DELIVER] == [f"{DAY}-{other}"]
    assert len(world.retries()) == 2


@story
def test_a_later_attempt_of_the_same_delivery_takes_over_and_fences_the_earlier_one(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    slow = world.another_host(lambda: world.deliver(f"{DAY}-d"), before_id=2)
    with pytest.raises(StaleAttempt, match="own/~deliver was claim 1 and is claim 2"):
        world.deliver(f"{DAY}-d", host=slow)
    assert len(world.retries()) == 2
    assert world.deliver(f"{DAY}-d").status == "already_committed"


@story
def test_of_two_deliveries_at_once_the_second_is_told_who_delivers(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    said = canonical_json({"claims": {own_id("~deliver"): 1}})
    commit_id = world.host.new_commit_id()
    told = Ctl(commit_id, Action.CLAIM, BEN, request_id=f"{DAY}-d1", group=SCHEDULE_GROUP, parameters=said)
    claim = Claim(1, (world.clock() + 60_000) // 1000)
    world.commit(Proposal(told, {}, {own_id("~deliver"): claim.packed()}))
    with pytest.raises(HeldByAnother, match=rf"broker-a/~deliver is held by request {DAY}-d1 of ben"):
        world.deliver(f"{DAY}-d2")
    assert world.retries() == []
    world.clock.advance(60_000)
    assert world.deliver(f"{DAY}-d2").delivered == 2
