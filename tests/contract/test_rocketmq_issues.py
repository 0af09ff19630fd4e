"""What people reported of RocketMQ, as stories: the thread's number, and what happens here. ``docs/rocketmq-issues.md`` has
all of them, also those that other files hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Ctl, Observed, Proposal
from rmq_store.commit.positions import Outcome, import_id
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.lake.broker.cutover import cutover
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.producer.producer import Message
from tests.contract.engines import LakeWorld, story
from tests.contract.world import (
    BEN,
    BILLING,
    DAY,
    HOUR,
    NOON,
    SHARD,
    World,
    bodies,
    consumed,
    counts,
    fail,
    fail_bodies,
    group,
    import_parameters,
    orders,
    said,
    several,
)

SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
T = NOON - HOUR

# --- where a new group starts ----------------------------------------------------------------------------------------


@story
@pytest.mark.parametrize(
    ("where", "first"),
    [
        pytest.param("CONSUME_FROM_LAST_OFFSET", 10, id="334-1135-2166-4909-LAST"),
        pytest.param("CONSUME_FROM_TIMESTAMP", 6, id="617-2955-9083-TIMESTAMP"),
        pytest.param("CONSUME_FROM_FIRST_OFFSET", 0, id="client-go-937-958-FIRST"),
    ],
)
def test_a_new_group_starts_where_it_says_also_in_a_young_topic_and_stays_there(
    world: World, where: str, first: int
) -> None:
    """Its first window records the start, so what comes before the second one is not skipped (rules 5.1)."""
    world.fill(orders(0), several(10, step_ms=60_000))
    new = group(
        consume_from_where=ConsumeFromWhere(where), consume_timestamp="2024-06-03T11:06:00Z" if first == 6 else None
    )
    assert consumed(world.consume(new, f"{DAY}-1")) == {orders(0): (first, 10)}
    world.fill(orders(0), several(3, first=10))
    assert consumed(world.consume(new, f"{DAY}-2")) == {orders(0): (10, 13)}


# --- reset -----------------------------------------------------------------------------------------------------------

TRIMMED, GONE = orders(1), orders(2)
BOUNDARIES = [
    # stored at T + 0, 10, 10, 20; TRIMMED the same without its first two; of GONE all four are gone
    pytest.param(-1, {orders(0): 0, TRIMMED: 2, GONE: 4}, id="7074-before-the-first"),
    pytest.param(0, {orders(0): 0, TRIMMED: 2, GONE: 4}, id="7074-at-the-first"),
    pytest.param(5, {orders(0): 1, TRIMMED: 2, GONE: 4}, id="7074-between-not-the-nearest"),
    pytest.param(10, {orders(0): 1, TRIMMED: 2, GONE: 4}, id="7074-the-first-of-equal-times"),
    pytest.param(19, {orders(0): 3, TRIMMED: 3, GONE: 4}, id="7074-just-before-the-last"),
    pytest.param(20, {orders(0): 3, TRIMMED: 3, GONE: 4}, id="7074-at-the-last"),
    pytest.param(21, {orders(0): 4, TRIMMED: 4, GONE: 4}, id="7074-after-the-last-is-the-end"),
]


@story
@pytest.mark.parametrize(("at", "wanted"), BOUNDARIES)
def test_a_reset_to_a_moment_goes_to_the_first_message_at_or_after_it_in_every_queue(
    world: World, at: int, wanted: dict[MessageQueue, int]
) -> None:
    for queue in (orders(0), TRIMMED, GONE):
        world.fill(queue, [said(10 * queue.queue_id + n, at=T + ms) for n, ms in enumerate((0, 10, 10, 20))])
    world.trim(TRIMMED, 2)
    world.trim(GONE, 4)
    world.consume(group(on_offset_out_of_range="skip"), f"{DAY}-1")
    report = world.reset_to(ResetTo.TIME, T + at)
    assert {m.queue: m.to_offset for m in report.moves} == wanted
    again = world.consume(BILLING, f"{DAY}-2")
    assert consumed(again) == {
        queue: (begin, world.positions().max_offset(queue))
        for queue, begin in wanted.items()
        if begin < world.positions().max_offset(queue)
    }


@story
@pytest.mark.parametrize("to", [ResetTo.TIME, ResetTo.MIN, ResetTo.MAX, ResetTo.OFFSET])
def test_an_empty_queue_is_reset_to_its_only_offset(world: World, to: ResetTo) -> None:
    world.send([Message("Orders", b"0")], f"{DAY}-send", create_queues=2)
    queues = world.positions().queues_of("Orders")
    (empty,) = (queue for queue in queues if not world.positions().max_offset(queue))
    value = {ResetTo.TIME: T, ResetTo.OFFSET: 0}.get(to)
    report = world.reset_to(to, value, queues=(empty,))
    assert [(m.queue, m.from_offset, m.to_offset) for m in report.moves] == [(empty, None, 0)]
    world.send([Message("Orders", b"%d" % n, queue_id=empty.queue_id) for n in (1, 2)], f"{DAY}-send-2")
    assert consumed(world.consume(BILLING, f"{DAY}-1"))[empty] == (0, 2)


@story
@pytest.mark.parametrize("begun", [True, False], ids=["951-nobody-is-online", "513-the-group-has-no-offset"])
def test_a_reset_needs_no_consumer_and_no_offset_and_reaches_every_queue(world: World, begun: bool) -> None:
    for queue_id in range(3):
        world.fill(orders(queue_id), several(4, first=10 * queue_id))
    if begun:
        world.consume(BILLING, f"{DAY}-1", max_messages=5)
    before = world.clock()
    report = world.reset_to(ResetTo.OFFSET, 3)
    assert (report.status, {m.queue: m.to_offset for m in report.moves}) == (
        "committed",
        {orders(queue_id): 3 for queue_id in range(3)},
    )
    assert world.clock() == before, "nobody is frozen for ten seconds"
    assert consumed(world.consume(BILLING, f"{DAY}-2")) == {orders(queue_id): (3, 4) for queue_id in range(3)}


@story
@pytest.mark.parametrize("seen_at", [2, 1], ids=["2661-3062-after-its-claim", "3105-5752-before-its-claim"])
def test_a_running_consumer_does_not_write_its_old_offset_over_a_reset(world: World, seen_at: int) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=6)
    running = world.another_host(lambda: world.reset_to(ResetTo.OFFSET, 2, actor=BEN), before_id=seen_at)
    if seen_at == 1:  # it has run nothing yet and goes by the new offset
        assert consumed(world.consume(BILLING, f"{DAY}-2", host=running)) == {orders(0): (2, 10)}
        return
    with pytest.raises(StaleAttempt, match=r"Moved by reset .* of ben"):
        world.consume(BILLING, f"{DAY}-2", host=running)
    assert world.offset(orders(0)) == 2
    assert consumed(world.consume(BILLING, f"{DAY}-2")) == {orders(0): (2, 10)}


@story
@pytest.mark.parametrize(
    ("offset", "refused"),
    [
        pytest.param(0, True, id="2267-below-the-first-readable"),
        pytest.param(2, False, id="2267-the-first-readable"),
        pytest.param(7, False, id="2267-in-between"),
        pytest.param(10, False, id="2267-the-end"),
        pytest.param(11, True, id="2267-beyond-the-end"),
        pytest.param(-1, True, id="2267-negative"),
    ],
)
def test_a_reset_to_an_offset_goes_exactly_there_or_is_refused(world: World, offset: int, refused: bool) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    world.trim(orders(0), 2)
    before = world.ctls()
    if refused:
        with pytest.raises(WrongUse, match=rf"target offset {offset} not in consume queue range \[2-10\]"):
            world.reset_to(ResetTo.OFFSET, offset)
        assert world.ctls() == before
    else:
        world.reset_to(ResetTo.OFFSET, offset)
        assert world.offset(orders(0)) == offset


@story
@pytest.mark.parametrize("offset", [0, 3], ids=["4470-to-zero", "4470-to-three"])
def test_a_reset_of_one_queue_leaves_the_others_and_may_go_to_zero(world: World, offset: int) -> None:
    """RocketMQ's tool for one queue does nothing when the answer is 0 (rules 13.1)."""
    for queue_id in range(2):
        world.fill(orders(queue_id), several(5, first=10 * queue_id))
    world.consume(BILLING, f"{DAY}-1")
    world.reset_to(ResetTo.OFFSET, offset, queues=(orders(1),))
    assert (world.offset(orders(0)), world.offset(orders(1))) == (5, offset)
    again = world.consume(BILLING, f"{DAY}-2")
    assert [(c.range.queue, c.range.begin, c.pass_) for c in again.consumed] == [(orders(1), offset, 1)]


@story
def test_2604_a_reset_of_one_topic_leaves_the_other_and_the_retries_that_both_share(world: World) -> None:
    both = group(topics=("Orders", "Bills"))
    world.fill(orders(0), several(2))
    world.fill(orders(0, "Bills"), several(2, first=10))
    assert counts(world.consume(both, f"{DAY}-1", fail)) == {"retried": 4}
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d1")
    world.reset_to(ResetTo.MAX)
    assert (world.offset(orders(0)), world.offset(orders(0, "Bills"))) == (2, 2)
    assert counts(world.consume(both, f"{DAY}-2")) == {"acked": 4}, "the delivered retries of both"


@story
@pytest.mark.parametrize("to", [ResetTo.MIN, ResetTo.MAX], ids=["290-back", "290-ahead"])
def test_a_reset_drops_no_retry_that_waits_for_its_delay(world: World, to: ResetTo) -> None:
    world.fill(orders(0), several(3))
    world.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"))
    world.reset_to(to)
    world.clock.advance(10_000)
    assert world.deliver(f"{DAY}-d1").delivered == 1
    report = world.consume(BILLING, f"{DAY}-2")
    assert counts(report) == {"acked": 4 if to is ResetTo.MIN else 1}


@story
def test_4890_what_a_reset_ahead_leaves_out_stands_in_the_history_with_who_and_why(world: World) -> None:
    """No outcome is made up for it: the move names both ends, and the next range begins where it ended."""
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=2)
    report = world.reset_to(ResetTo.MAX, actor=BEN, reason="old prices")
    assert (report.messages, [(m.from_offset, m.to_offset) for m in report.moves]) == (-8, [(2, 10)])
    world.fill(orders(0), several(1, first=10))
    world.consume(BILLING, f"{DAY}-2")
    told = [(m.from_offset, m.to_offset, m.action, m.actor, m.reason) for m in world.history("billing")]
    assert told == [(0, 2, "consume", "ana", ""), (2, 10, "reset", "ben", "old prices"), (10, 11, "consume", "ana", "")]
    assert world.outcomes("billing") == []


@story
def test_5445_a_reset_frees_a_queue_that_is_blocked_in_order_and_its_tries_begin_anew(world: World) -> None:
    strict = group(mode="orderly", consume_message_batch_max_size=1, max_reconsume_times=4, suspend_tries_per_window=2)
    world.fill(orders(0), several(4))
    tries: list[tuple[int, int]] = []

    def suspend_at_one(msgs: list[MessageExt], context: Any) -> str:
        tries.extend((m.queue_offset, m.reconsume_times) for m in msgs)
        return SUSPEND if msgs[0].queue_offset == 1 else "SUCCESS"

    world.consume(strict, f"{DAY}-1", suspend_at_one)
    assert (world.offset(orders(0)), tries) == (1, [(0, 0), (1, 0), (1, 1)])
    world.reset_to(ResetTo.OFFSET, 1)
    tries.clear()
    world.consume(strict, f"{DAY}-2", suspend_at_one)
    assert (world.offset(orders(0)), tries) == (1, [(1, 0), (1, 1)])
    world.reset_to(ResetTo.OFFSET, 2, request_id=f"{DAY}-ahead")
    assert consumed(world.consume(strict, f"{DAY}-3", suspend_at_one)) == {orders(0): (2, 4)}


# --- duplicates and offsets that go backwards ------------------------------------------------------------------------


@story
def test_1600_a_window_may_take_longer_than_fifteen_minutes_and_asks_about_each_message_once(world: World) -> None:
    world.fill(orders(0), several(3))
    one_by_one = group(consume_message_batch_max_size=1)
    asked: list[int] = []

    def slow(msgs: list[MessageExt], context: Any) -> str:
        asked.extend(m.queue_offset for m in msgs)
        world.clock.advance(6 * 60_000)
        return "CONSUME_SUCCESS"

    assert counts(world.consume(one_by_one, f"{DAY}-1", slow)) == {"acked": 3}
    assert (asked, world.consume(BILLING, f"{DAY}-2").status) == ([0, 1, 2], "empty")


@story
@pytest.mark.parametrize("who", ["1732-another-request", "3066-10176-the-same-request"])
def test_a_consumer_that_was_overtaken_does_not_set_the_offset_back(world: World, who: str) -> None:
    """A ghost: it has planned the messages [0, 4), and wakes up when the group stands at 10."""
    world.fill(orders(0), several(4))
    request_id = f"{DAY}-1" if who.endswith("the-same-request") else f"{DAY}-2"

    def meanwhile() -> None:
        world.clock.advance(HOUR)
        world.consume(BILLING, request_id)
        world.fill(orders(0), several(6, first=4))
        world.consume(BILLING, f"{DAY}-3")

    with pytest.raises(StaleAttempt):
        world.consume(BILLING, f"{DAY}-1", host=world.another_host(meanwhile, before_id=2))
    assert world.offset(orders(0)) == 10
    assert sum(c.tally(Outcome.ACKED).count for ctl in world.ctls() for c in ctl.consumed) == 10


@story
@pytest.mark.parametrize("queue_id", [0, 1], ids=["1190-the-first-queue", "5441-the-other-queue"])
def test_one_slow_or_failing_queue_does_not_hold_up_the_others(world: World, queue_id: int) -> None:
    strict = group(mode="orderly", consume_message_batch_max_size=1)
    for n in range(2):
        world.fill(orders(n), several(4, first=10 * n))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        return SUSPEND if msgs[0].queue_id == queue_id else "SUCCESS"

    report = world.consume(strict, f"{DAY}-1", listener)
    assert (world.offset(orders(queue_id)), world.offset(orders(1 - queue_id))) == (0, 4)
    assert [(b.range.queue, b.range.begin, b.attempts) for b in report.blocked] == [(orders(queue_id), 0, 3)]


# --- who reads what --------------------------------------------------------------------------------------------------


@story
@pytest.mark.parametrize("thread", ["1873-2089", "5473-7717-rocketmq-spring-556"])
def test_two_expressions_in_one_group_lose_nothing_unseen(world: World, thread: str) -> None:
    """What one deployment filtered is counted, and its commit says by which subscription."""
    world.fill(orders(0), [said(n, tag=("TagA", "TagB")[n % 2]) for n in range(6)])
    by_a = group(topics={"Orders": "TagA"})
    assert counts(world.consume(by_a, f"{DAY}-1")) == {"acked": 3, "filtered": 3}
    (window,) = (ctl for ctl in world.ctls() if ctl.action is Action.CONSUME)
    assert (window.subscription, window.subscription_version) == ('{"Orders":{"TAG":"TagA"}}', 1)
    both = group(topics={"Orders": "TagA || TagB"}, subscription_version=2)
    world.reset_to(ResetTo.MIN, reason="TagB was not asked for")
    assert counts(world.consume(both, f"{DAY}-2")) == {"acked": 6}


@story
@pytest.mark.parametrize("consumers", [1, 3], ids=["1470-one-consumer", "2732-3653-5315-8419-three-consumers"])
def test_a_place_that_was_sought_is_kept_when_consumers_come_and_go(world: World, consumers: int) -> None:
    for queue_id in range(4):
        world.fill(orders(queue_id), several(5, first=10 * queue_id))
    world.consume(group(consumers=2), f"{DAY}-1")
    world.reset_to(ResetTo.OFFSET, 1, queues=(orders(2),))
    report = world.consume(group(consumers=consumers), f"{DAY}-2")
    assert consumed(report) == {orders(2): (1, 5)}


# --- delays ----------------------------------------------------------------------------------------------------------


@story
@pytest.mark.parametrize("clock_back_ms", [0, 30_000], ids=["1472", "1472-another-clock"])
def test_a_delivery_never_stops_nor_passes_over_a_message(world: World, clock_back_ms: int) -> None:
    """Its offset moves in the commit that makes the copies visible, so it cannot come to lie beyond the queue."""
    for n in range(4):
        world.fill(orders(0), several(2, first=2 * n))
        world.consume(BILLING, f"{DAY}-{n}", fail)
    world.clock.advance(10_000)
    assert world.deliver(f"{DAY}-d1", cap=3).delivered == 3
    world.clock.advance(-clock_back_ms)
    early = world.deliver(f"{DAY}-d2").delivered
    assert early == (0 if clock_back_ms else 5)
    world.clock.advance(clock_back_ms)
    assert world.deliver(f"{DAY}-d3").delivered == 5 - early
    lane = world.lane(3)
    assert world.positions().offsets_of(SCHEDULE_GROUP) == {lane[0].queue: 8}
    assert sorted(body or b"" for body in bodies(world.retries())) == bodies(lane)


def test_1472_a_brokers_delay_offset_beyond_its_queue_is_its_end(tmp_path: Path) -> None:
    world = LakeWorld(tmp_path)
    level = MessageQueue("SCHEDULE_TOPIC_XXXX", SHARD, 2)
    world.fill(level, [said(n, REAL_TOPIC="%RETRY%billing", REAL_QID="0") for n in range(2)])
    beyond = (Observed(SCHEDULE_GROUP, level, 3),)
    facts = import_parameters(SHARD, end=1)
    seen = Ctl(world.host.new_commit_id(), Action.IMPORT, BEN, parameters=facts, observed=beyond)
    world.commit(Proposal(seen, {}, {import_id(SHARD): 1}))
    request, why = f"{DAY}-cutover", "the broker is gone"
    cutover(world.store, world.shard, SHARD, world.host, request_id=request, actor=BEN, reason=why)
    assert world.deliver(f"{DAY}-d1").delivered == 0
    assert world.positions().offsets_of(SCHEDULE_GROUP) == {level: 2}
    world.fill(level, [said(2, REAL_TOPIC="%RETRY%billing", REAL_QID="0")])
    assert world.deliver(f"{DAY}-d2").delivered == 1
    assert bodies(world.retries()) == [b"2"]


Told = Callable[[list[MessageExt], Any], Any]


def acked_first(status: str) -> Told:
    """A listener that acks the first message of a batch (``ackIndex`` 0)."""

    def listener(msgs: list[MessageExt], context: Any) -> str:
        context.ack_index = 0
        return status

    return listener


@story
@pytest.mark.parametrize(
    ("say", "wanted"),
    [
        pytest.param(acked_first("CONSUME_SUCCESS"), [0], id="1382-ack-index"),
        pytest.param(acked_first("RECONSUME_LATER"), [], id="7332-ack-index-and-later"),
        pytest.param(lambda m, c: ["CONSUME_SUCCESS", None, "CONSUME_SUCCESS"], [0, 2], id="1815-3171-one-status-each"),
    ],
)
def test_part_of_a_batch_succeeds(world: World, say: Told, wanted: list[int]) -> None:
    world.fill(orders(0), several(3))
    world.consume(BILLING, f"{DAY}-1", say)
    retried = {int(m.row.body or b"") for m in world.lane(3)}
    assert retried == {0, 1, 2} - set(wanted)


@story
@pytest.mark.parametrize(
    ("most", "retries"),
    [
        pytest.param(3, 3, id="1236-not-one-more"),
        pytest.param(1, 1, id="1334-not-one-earlier"),
        pytest.param(0, 0, id="2436-6461-nothing-vanishes"),
    ],
)
def test_a_message_is_dead_after_exactly_so_many_retries(world: World, most: int, retries: int) -> None:
    world.fill(orders(0), several(1))
    stubborn = group(max_reconsume_times=most)
    for n in range(retries + 1):
        assert world.dead_letters() == []
        world.consume(stubborn, f"{DAY}-{n}", fail)
        world.clock.advance(2 * HOUR)
        world.deliver(f"{DAY}-d{n}")
    (letter,) = world.dead_letters()
    assert (letter.row.body, len(world.retries())) == (b"0", retries)
    assert world.consume(stubborn, f"{DAY}-last").status == "empty"
