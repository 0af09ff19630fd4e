"""What every engine promises when a group is deleted and created again. See ``test_engines.py``."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.delete_group import Waiting, is_gone, waiting_of
from rmq_store.admin.reset import ResetTo
from rmq_store.commit.positions import QueueRange, blk_id, del_id, grp_id, pas_id, sub_id
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import CustomizedRetryPolicy, GroupRetryPolicy, GroupRetryPolicyType
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.consumer.start import ConsumeFromWhere, StartRule
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.engines import story
from tests.contract.world import (
    ANA,
    BEN,
    BILLING,
    DAY,
    HOUR,
    LOCAL,
    NOON,
    SHARD,
    Key,
    Listen,
    Lost,
    Move,
    World,
    bodies,
    consumed,
    counts,
    fail,
    fail_bodies,
    group,
    orders,
    said,
    several,
    succeed,
)

RETRIES = MessageQueue("%RETRY%billing", LOCAL, 0)
FIRST, LAST, TIMESTAMP = (
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
)
PATIENT = group(
    retry_policy=GroupRetryPolicy(GroupRetryPolicyType.CUSTOMIZED, customized=CustomizedRetryPolicy((7500,)))
)


def noting(into: list[bytes | None], listener: Listen = succeed) -> Listen:
    """A listener that notes what it is asked about."""

    def listens(msgs: list[MessageExt], context: Any) -> Any:
        into.extend(m.body for m in msgs)
        return listener(msgs, context)

    return listens


def dead(msgs: list[MessageExt], context: Any) -> Any:
    context.delay_level_when_next_consume = -1
    return "RECONSUME_LATER"


# --- what is void ----------------------------------------------------------------------------------------------------


@story
def test_a_delete_makes_offsets_void_and_tells_who_and_why(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    report = world.delete()
    assert (report.status, [(m.queue, m.from_offset, m.to_offset) for m in report.moves]) == (
        "committed",
        [(orders(0), 10, -1)],
    )
    assert world.offset(orders(0)) is None
    assert world.history("billing")[-1] == Move(
        orders(0), 10, -1, 1, "delete", f"{DAY}-delete", "ana", "nobody needs it"
    )
    positions = world.positions()
    assert [positions.get(id_) for id_ in (grp_id("billing"), del_id("billing"))] == [1, 1]
    assert is_gone(positions, "billing")


@story
@pytest.mark.parametrize(
    ("where", "start", "rule"),
    [(FIRST, 0, StartRule.FIRST_OFFSET), (LAST, 10, StartRule.LAST_OFFSET), (TIMESTAMP, 4, StartRule.TIMESTAMP)],
)
def test_a_group_that_is_created_again_starts_as_a_new_one(
    world: World, where: ConsumeFromWhere, start: int, rule: StartRule
) -> None:
    world.fill(orders(0), several(10))
    for number in range(2):
        world.consume(BILLING, f"{DAY}-{number}", max_messages=3)
    world.delete()
    moment = {"consume_timestamp": "20240603110004Z"} if where is TIMESTAMP else {}
    again = group(consume_from_where=where, **moment)
    report = world.consume(again, f"{DAY}-again")
    assert consumed(report) == {orders(0): (start, 10)}
    assert [(c.pass_, c.start_rule) for c in report.consumed] == [(1, rule)]
    assert world.positions().get(pas_id("billing", orders(0))) == 1
    assert not is_gone(world.positions(), "billing")
    world.fill(orders(1), several(2, first=10))
    assert consumed(world.consume(again, f"{DAY}-later")) == {orders(1): (0, 2)}  # a later queue of this group


@story
def test_what_a_living_broker_says_of_a_group_is_void_once_it_was_deleted_here(world: World) -> None:
    world.fill(orders(0), several(10))
    world.observe("billing", orders(0), 7)
    assert (world.delete().moves, world.positions().get(del_id("billing"))) == ((), 1)
    world.observe("billing", orders(0), 8)
    clone = CloneRequest("ledger", "billing", f"{DAY}-clone", ANA, "a second reader")
    with pytest.raises(WrongUse, match="billing has no offsets"):
        world.move(clone)
    assert consumed(world.consume(BILLING, f"{DAY}-1")) == {orders(0): (0, 10)}


@story
def test_acked_keys_of_before_do_not_count(world: World) -> None:
    once = group(absorb_duplicates=AbsorbRule("UNIQ_KEY", 24 * HOUR))
    world.fill(orders(0), several(3))
    world.consume(once, f"{DAY}-1", fail_bodies(b"2"))
    world.delete()
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    report = world.consume(once, f"{DAY}-2", fail_bodies(b"1"))
    assert counts(report) == {"acked": 2, "retried": 1, "dropped": 1}
    assert [(key.offset, key.epoch) for key in sorted(world.keys("billing"))] == [(0, 0), (0, 1), (1, 0), (2, 1)]
    assert Key("U2", orders(0), 2, 1) in world.keys("billing")


@story
def test_a_queue_that_waited_in_order_begins_anew(world: World) -> None:
    orderly = group(mode="orderly")
    world.fill(orders(0), several(4))
    world.consume(orderly, f"{DAY}-1", lambda msgs, context: "SUSPEND_CURRENT_QUEUE_A_MOMENT")
    assert world.positions().get(blk_id("billing", orders(0))) is not None
    world.delete()
    assert world.positions().get(blk_id("billing", orders(0))) is None
    asked: list[int] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        asked.extend(m.reconsume_times for m in msgs)
        return "SUCCESS"

    assert counts(world.consume(orderly, f"{DAY}-2", listener)) == {"acked": 4}
    assert asked == [0, 0, 0, 0]


@story
def test_other_groups_and_replays_of_the_group_are_not_touched(world: World) -> None:
    world.fill(orders(0), several(4))
    ledger = group("ledger")
    for number, one in enumerate((BILLING, ledger)):
        world.consume(one, f"{DAY}-{number}", fail_bodies(b"1"))
    replayed = world.replay(BILLING, "Orders", NOON - HOUR, ConsumeRequest(f"{DAY}-replay", ANA), fail_bodies(b"2"))
    before = {name: world.history(name) for name in ("ledger", replayed.group)}
    world.delete()
    assert {name: world.history(name) for name in before} == before
    with pytest.raises(WrongUse, match="is a replay of billing"):
        world.delete(f"{DAY}-r", group=replayed.group)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(ledger, f"{DAY}-3")) == {"acked": 1}


# --- what waits ------------------------------------------------------------------------------------------------------


@story
def test_what_waits_at_any_of_the_three_places_is_dropped_without_asking(world: World) -> None:
    world.fill(orders(0), several(7))
    world.consume(BILLING, f"{DAY}-1", fail, max_messages=2)
    world.consume(PATIENT, f"{DAY}-2", fail, max_messages=2)  # by the timer, 7.5 s
    world.clock.advance(7_500)
    world.consume(BILLING, f"{DAY}-3", dead, max_messages=1)
    world.deliver(f"{DAY}-d1")
    assert bodies(world.retries()) == [b"2", b"3"]
    world.consume(PATIENT, f"{DAY}-4", fail_bodies(b"5", b"6"), until_ms=NOON)
    dry = world.delete(dry_run=True)
    report = world.delete()
    assert waiting_of(dry) == waiting_of(report) == Waiting(retries=2, delayed=4, dead_letters=1)
    assert [(m.queue, m.from_offset, m.to_offset) for m in report.moves] == [(RETRIES, 0, 2), (orders(0), 7, -1)]
    world.clock.advance(HOUR)
    world.deliver(f"{DAY}-d2")
    assert bodies(world.retries()) == [b"2", b"3", b"0", b"1", b"5", b"6"]
    seen: list[bytes | None] = []
    again = world.consume(BILLING, f"{DAY}-again", noting(seen))
    assert consumed(again) == {orders(0): (0, 7), RETRIES: (2, 6)}
    assert (counts(again), seen) == ({"acked": 7, "dropped": 4}, [b"%d" % n for n in range(7)])
    assert world.outcomes("billing") == [Lost(QueueRange(RETRIES, 2, 6), 1, "dropped")]
    assert bodies(world.dead_letters()) == [b"4"]
    assert world.consume(BILLING, f"{DAY}-more").status == "empty"


@story
def test_retries_of_before_and_after_that_are_delivered_together_are_told_apart(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"0", b"2"))
    world.delete()
    world.consume(BILLING, f"{DAY}-2", fail_bodies(b"1", b"2", b"3"))
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert bodies(world.retries()) == [b"0", b"2", b"1", b"2", b"3"]
    seen: list[bytes | None] = []
    report = world.consume(BILLING, f"{DAY}-3", noting(seen, fail_bodies(b"2")))
    assert (counts(report), seen) == ({"dropped": 2, "acked": 2, "retried": 1}, [b"1", b"2", b"3"])
    world.clock.advance(30_000)
    world.deliver(f"{DAY}-d2")
    assert counts(world.consume(BILLING, f"{DAY}-4")) == {"acked": 1}


@story
def test_what_waited_is_dropped_in_order_too_and_only_where_the_queue_has_come_to(world: World) -> None:
    def patient_with_two(msgs: list[MessageExt], context: Any) -> str:
        context.delay_level_when_next_consume = 5 if msgs[0].body == b"2" else 3
        return "RECONSUME_LATER"

    one_by_one: dict[str, Any] = {"consume_message_batch_max_size": 1}
    world.fill(orders(0), several(3))
    world.consume(group(**one_by_one), f"{DAY}-1", patient_with_two)
    world.delete()
    world.consume(group(consume_from_where=LAST), f"{DAY}-2")
    world.fill(orders(0), several(1, first=3))
    world.consume(BILLING, f"{DAY}-3", fail)
    for seconds in (10, 50):
        world.clock.advance(seconds * 1000)
        world.deliver(f"{DAY}-d{seconds}")
    assert bodies(world.retries()) == [b"0", b"1", b"3", b"2"]
    orderly = group(mode="orderly", **one_by_one)
    report = world.consume(orderly, f"{DAY}-4", lambda msgs, context: "SUSPEND_CURRENT_QUEUE_A_MOMENT")
    assert (consumed(report), counts(report)) == ({RETRIES: (0, 2)}, {"dropped": 2})
    report = world.consume(orderly, f"{DAY}-5", lambda msgs, context: "SUCCESS")
    assert (consumed(report), counts(report)) == ({RETRIES: (2, 4)}, {"acked": 1, "dropped": 1})
    assert world.outcomes("billing") == [Lost(QueueRange(RETRIES, *pair), 1, "dropped") for pair in ((0, 2), (3, 4))]


@story
def test_a_reset_after_it_does_not_drop_retries(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-0")
    world.delete()
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    world.reset_to(ResetTo.MAX)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(BILLING, f"{DAY}-2")) == {"acked": 1}


@story
def test_what_a_broker_left_to_retry_is_older_than_any_delete(world: World) -> None:
    """A broker's messages do not say an epoch."""
    brokers = MessageQueue("%RETRY%billing", SHARD, 0)
    world.fill(orders(0), several(2))
    world.fill(brokers, several(3, first=10))
    world.cut_over()
    assert [(m.queue, m.from_offset, m.to_offset) for m in world.delete().moves] == [(brokers, None, 3)]
    world.fill(brokers, several(2, first=13))
    assert counts(world.consume(BILLING, f"{DAY}-1")) == {"acked": 2, "dropped": 2}


# --- dead letters ----------------------------------------------------------------------------------------------------


@story
def test_a_letter_that_is_redriven_after_the_delete_is_asked_about(world: World) -> None:
    world.fill(orders(0), several(3))
    world.consume(BILLING, f"{DAY}-1", dead)
    world.redrive(f"{DAY}-before", limit=1)
    world.delete()
    world.redrive(f"{DAY}-after")
    seen: list[bytes | None] = []
    last = group(consume_from_where=LAST)
    report = world.consume(last, f"{DAY}-2", noting(seen, fail_bodies(b"2")))
    assert (consumed(report)[RETRIES], counts(report), seen) == ((1, 3), {"acked": 1, "retried": 1}, [b"1", b"2"])
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(last, f"{DAY}-3")) == {"acked": 1}


@story
def test_a_letter_that_was_redriven_and_failed_before_the_delete_is_dropped(world: World) -> None:
    world.fill(orders(0), several(1))
    world.consume(BILLING, f"{DAY}-1", dead)
    world.redrive()
    world.consume(BILLING, f"{DAY}-2", fail)
    world.delete()
    world.clock.advance(HOUR)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(BILLING, f"{DAY}-3")) == {"acked": 1, "dropped": 1}


@story
def test_a_redrive_that_was_overtaken_by_a_delete_is_dropped_also_in_a_group_that_had_no_window(world: World) -> None:
    world.fill(MessageQueue("%DLQ%billing", SHARD, 0), several(1))
    world.observe("billing", orders(0), 0)
    overtaken = world.another_host(world.delete, before_id=2)
    with pytest.raises(StaleAttempt, match="Moved by delete"):
        world.redrive(host=overtaken)
    assert world.redrive().status == "committed"


# --- once, and by whom -----------------------------------------------------------------------------------------------


@story
def test_a_dry_run_changes_nothing_and_the_same_delete_again_deletes_nothing_again(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    before = world.ctls()
    dry = world.delete(dry_run=True)
    assert (dry.status, [m.to_offset for m in dry.moves], waiting_of(dry)) == ("dry_run", [-1], Waiting(delayed=1))
    assert world.ctls() == before
    first = world.delete()
    world.consume(BILLING, f"{DAY}-2")
    again = world.delete()
    assert (again.status, again.moves, again.commit_id) == ("already_committed", first.moves, first.commit_id)
    assert (waiting_of(again), world.offset(orders(0))) == (waiting_of(first), 4)


@story
def test_a_group_can_be_deleted_again_once_it_was_created_again(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    world.delete(f"{DAY}-x1")
    with pytest.raises(WrongUse, match="was deleted in shard broker-a at 2024-06-03T12:00:00"):
        world.delete(f"{DAY}-x2")
    world.consume(BILLING, f"{DAY}-2", fail_bodies(b"2"))
    assert [m.from_offset for m in world.delete(f"{DAY}-x3").moves] == [4]
    assert world.positions().get(del_id("billing")) == 2
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(BILLING, f"{DAY}-3")) == {"acked": 4, "dropped": 2}


@story
def test_a_delete_fences_a_running_window_and_the_window_says_who_deleted_the_group(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-0", max_messages=2)

    def listener(msgs: list[MessageExt], context: Any) -> str:
        world.delete(actor=BEN)
        return "RECONSUME_LATER"

    with pytest.raises(
        StaleAttempt,
        match=rf"grp/billing was 0 and is 1; off/billing.* was 2 and is None.*Moved by delete {DAY}-delete of ben",
    ):
        world.consume(BILLING, f"{DAY}-1", listener)
    assert (world.offset(orders(0)), world.lane(3)) == (None, [])
    assert consumed(world.consume(BILLING, f"{DAY}-1")) == {orders(0): (0, 4)}


@story
def test_a_delete_is_overtaken_by_a_window_that_reads_a_queue_for_the_first_time(world: World) -> None:
    """The window moves no position that was there when the delete was planned."""
    world.fill(orders(0), several(4))
    world.consume(BILLING, f"{DAY}-0")
    world.fill(orders(1), several(2, first=4))
    overtaken = world.another_host(lambda: world.consume(BILLING, f"{DAY}-1"))
    with pytest.raises(StaleAttempt, match=r"off/billing/Orders/broker-a/1 was None and is 2.*Moved by consume"):
        world.delete(host=overtaken)
    assert [m.from_offset for m in world.delete().moves] == [4, 2]
    assert list(world.positions().offsets_of("billing")) == []


@story
def test_a_delete_is_overtaken_by_a_window_whose_queue_waits(world: World) -> None:
    """The window moves no offset; the group would keep the record that its queue is blocked."""
    world.fill(orders(), several(2))
    in_order = group(mode="orderly", consume_message_batch_max_size=1)
    world.consume(in_order, f"{DAY}-0", lambda msgs, context: "SUCCESS", max_messages=1)
    suspend = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    overtaken = world.another_host(lambda: world.consume(in_order, f"{DAY}-1", lambda msgs, context: suspend))
    with pytest.raises(StaleAttempt, match=r"blk/billing/Orders/broker-a/0 was None and is"):
        world.delete(host=overtaken)
    assert [m.from_offset for m in world.delete().moves] == [1]
    assert world.positions().get(blk_id("billing", orders())) is None


@story
def test_nothing_a_system_group_a_broadcasting_group_or_no_reason_is_refused(world: World) -> None:
    world.fill(orders(0), several(4))
    with pytest.raises(WrongUse, match="group billing has nothing to delete in shard broker-a"):
        world.delete()
    with pytest.raises(WrongUse, match="cannot delete the system group"):
        world.delete(group="CID_RMQ_SYS_SCHEDULE")
    with pytest.raises(WrongUse, match="a delete needs a reason"):
        world.delete(reason="")
    clients: list[GroupSettings] = [
        group(f"billing@{client}", message_model=MessageModel.BROADCASTING) for client in ("b", "a")
    ]
    for one in clients:
        world.consume(one, f"{DAY}-1")
    with pytest.raises(WrongUse, match=r"is broadcasting.*Delete the clients: billing@a, billing@b"):
        world.delete()
    world.delete(group="billing@a")
    with pytest.raises(WrongUse, match="Delete the clients: billing@b"):
        world.delete(f"{DAY}-2")
    assert consumed(world.consume(clients[1], f"{DAY}-2")) == {orders(0): (0, 4)}
    assert world.positions().get(grp_id("billing")) is None


@story
def test_a_message_without_a_key_or_with_a_tag_that_nobody_wants_is_dropped_like_any_other(world: World) -> None:
    """A group reads its retries whole: no filter stands before the drop."""
    tagged = group(topics={"Orders": "paid"}, absorb_duplicates=AbsorbRule("KEYS", HOUR))
    world.fill(orders(0), [said(0, tag="paid"), said(1, tag="paid", KEYS="k"), said(2, tag="open")])
    world.consume(tagged, f"{DAY}-1", fail)
    world.delete()
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    report = world.consume(group(topics={"Orders": "open"}), f"{DAY}-2")
    assert counts(report) == {"acked": 1, "filtered": 2, "dropped": 2}


@story
def test_the_subscription_of_a_deleted_group_is_forgotten(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(group(topics={"Orders": "TagA"}, subscription_version=7), f"{DAY}-1")
    assert world.positions().get(sub_id("billing")) is not None
    world.delete()
    assert world.positions().get(sub_id("billing")) is None
    world.fill(orders(0), several(1, first=2))
    again = group(topics={"Orders": "*"}, subscription_version=1, consume_from_where=FIRST)
    assert counts(world.consume(again, f"{DAY}-2")) == {"acked": 3}
