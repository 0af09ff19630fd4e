"""What every engine promises of a window. Each test is a story that is told to the memory engine and to the lake on local
disk; they must keep the same promises, and what is left behind must be the same in both (``engines.story``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Action
from rmq_store.errors import BadData, OffsetOutOfRange, WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.properties import tags_code
from tests.contract.engines import story
from tests.contract.world import (
    BILLING,
    DAY,
    HOUR,
    NOON,
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
)

# --- a window --------------------------------------------------------------------------------------------------------


@story
def test_a_window_begins_at_the_committed_offset_and_ends_at_the_queues_end(world: World) -> None:
    world.fill(orders(0), several(10))
    world.fill(orders(1), several(3, first=100))
    first = world.consume(BILLING, f"{DAY}-1")
    assert (first.status, consumed(first)) == ("committed", {orders(0): (0, 10), orders(1): (0, 3)})
    world.fill(orders(0), several(5, first=10))
    second = world.consume(BILLING, f"{DAY}-2")
    assert consumed(second) == {orders(0): (10, 15)}
    assert (world.offset(orders(0)), world.offset(orders(1))) == (15, 3)


@story
def test_every_message_is_handed_over_once_in_queue_order_in_batches_of_the_groups_size(world: World) -> None:
    world.fill(orders(0), several(5))
    world.fill(orders(0), several(3, first=5))
    seen: list[list[int]] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        assert context.message_queue == msgs[0].message_queue == orders(0)
        seen.append([m.queue_offset for m in msgs])
        return "CONSUME_SUCCESS"

    world.consume(group(consume_message_batch_max_size=3), f"{DAY}-1", listener)
    assert list(chain(*seen)) == list(range(8))
    assert max(map(len, seen)) == 3


@story
def test_a_listener_gets_the_message_as_it_was_stored(world: World) -> None:
    stored = said(7, tag="TagA", KEYS="k1 k2", colour="red")
    world.fill(orders(2), [replace(stored, flag=3, sys_flag=0x101)], base=40)
    seen: list[MessageExt] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        (m,) = msgs
        facts = (m.topic, m.broker_name, m.queue_id, m.queue_offset, m.body, m.tags, m.keys, m.unique_key)
        assert facts == ("Orders", "broker-a", 2, 40, b"7", "TagA", "k1 k2", "U7")
        assert (m.store_timestamp, m.born_timestamp, m.born_host) == (NOON - HOUR, NOON - HOUR - 5, "10.0.0.1|4000")
        assert (m.reconsume_times, m.offset_msg_id, m.msg_id) == (0, f"{7:032X}", "U7")
        assert m.get_property("colour") == m.get_user_property("colour") == m.properties["colour"] == "red"
        assert m.get_property("none") is None
        assert (m.flag, m.sys_flag) == (3, 0x100)  # no longer compressed
        assert context.idempotency_key(m) == f"billing:{7:032X}"
        seen.append(m)
        return "CONSUME_SUCCESS"

    world.consume(BILLING, f"{DAY}-1", listener)
    assert len(seen) == 1


@story
def test_every_offset_of_a_window_has_exactly_one_outcome(world: World) -> None:
    world.fill(orders(0), [said(n, tag="TagA" if n % 3 else "TagB") for n in range(12)], base=5)
    world.trim(orders(0), 7)
    reader = group(topics={"Orders": "TagA"}, consume_message_batch_max_size=1)

    def listener(msgs: list[MessageExt], context: Any) -> list[str]:
        context.delay_level_when_next_consume = -1 if msgs[0].body == b"4" else 0
        return ["RECONSUME_LATER" if m.body in (b"4", b"8") else "CONSUME_SUCCESS" for m in msgs]

    report = world.consume(reader, f"{DAY}-1", listener)
    (done,) = report.consumed
    assert (done.range.begin, done.range.end) == (7, 17)
    assert counts(report) == {"acked": 5, "filtered": 3, "retried": 1, "dead": 1}
    assert report.messages() == len(done.range)


@story
def test_the_same_request_reports_already_committed_with_the_same_counts(world: World) -> None:
    world.fill(orders(0), several(10))
    first = world.consume(BILLING, f"{DAY}-1", fail_bodies(b"4"))
    world.fill(orders(0), several(5, first=10))
    before = world.projection()
    again = world.consume(BILLING, f"{DAY}-1", fail)
    assert (again.status, again.complete, again.commit_id) == ("already_committed", True, first.commit_id)
    assert again.counts() == first.counts()
    assert world.projection() == before


@story
def test_a_run_that_is_killed_leaves_nothing_and_the_same_request_does_all_of_it(world: World) -> None:
    world.fill(orders(0), several(10))

    def listener(msgs: list[MessageExt], context: Any) -> list[str]:
        if msgs[0].body == b"6":
            raise KeyboardInterrupt
        return ["RECONSUME_LATER"] * len(msgs)

    with pytest.raises(KeyboardInterrupt):
        world.consume(group(consume_message_batch_max_size=3), f"{DAY}-1", listener)
    assert (world.offset(orders(0)), world.lane(3)) == (None, [])
    again = world.consume(group(consume_message_batch_max_size=3), f"{DAY}-1", fail_bodies(b"2"))
    assert counts(again) == {"acked": 9, "retried": 1}


@story
def test_an_empty_window_leaves_no_row(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1")
    before = world.ctls()
    report = world.consume(BILLING, f"{DAY}-2")
    assert (report.status, report.complete, report.messages()) == ("empty", True, 0)
    assert world.ctls() == before


@story
def test_an_empty_window_asks_no_listener(world: World) -> None:
    world.fill(orders(0), several(2))
    world.consume(BILLING, f"{DAY}-1")
    assert world.consume(replace(BILLING, listener="no.such.module:listener"), f"{DAY}-2").status == "empty"


@story
def test_a_group_of_unknown_topics_is_refused(world: World) -> None:
    world.fill(orders(0), several(2))
    with pytest.raises(WrongUse, match="none of the topics of group billing: Payments"):
        world.consume(group(topics=("Payments",)), f"{DAY}-1")


@story
def test_one_request_id_of_two_groups_is_two_requests(world: World) -> None:
    world.fill(orders(0), several(4))
    for name in ("billing", "shipping"):
        report = world.consume(group(name), f"{DAY}-1")
        assert (report.status, report.messages()) == ("committed", 4)


@story
def test_groups_do_not_see_each_others_offsets_retries_or_claims(world: World) -> None:
    world.fill(orders(0), several(4))
    nested: list[Any] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        nested.append(world.consume(group("shipping"), f"{DAY}-s", fail))
        return "CONSUME_SUCCESS"

    outer = world.consume(BILLING, f"{DAY}-1", listener)
    assert (counts(outer), counts(nested[0])) == ({"acked": 4}, {"retried": 4})
    assert world.lane(3) == []
    assert len(world.lane(3, "shipping")) == 4


@story
def test_consumers_share_the_queues_without_changing_what_happens(world: World) -> None:
    for queue_id in range(5):
        world.fill(orders(queue_id), several(4, first=10 * queue_id))
        world.fill(orders(queue_id, "Refunds"), several(2, first=100 + 10 * queue_id))
    asked: list[MessageQueue] = []

    def listener(msgs: list[MessageExt], context: Any) -> list[str]:
        asked.append(context.message_queue)
        return ["RECONSUME_LATER" if m.queue_offset == 1 else "CONSUME_SUCCESS" for m in msgs]

    report = world.consume(group(topics=("Orders", "Refunds"), consumers=3), f"{DAY}-1", listener)
    assert counts(report) == {"acked": 20, "retried": 10}
    assert len(asked) == len(set(asked)) == 10
    assert {m.row.provenance.queue for m in world.lane(3) if m.row.provenance} == set(asked)


# --- tags ------------------------------------------------------------------------------------------------------------


@story
def test_what_a_tag_expression_does_not_want_is_filtered_and_counted(world: World) -> None:
    world.fill(orders(0), [said(0, tag="TagA"), said(1, tag="TagB"), said(2), said(3, tag="TagC"), said(4, tag="TagA")])
    seen: list[bytes | None] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        seen.extend(m.body for m in msgs)
        return "CONSUME_SUCCESS"

    report = world.consume(group(topics={"Orders": "TagA || TagC"}), f"{DAY}-1", listener)
    assert counts(report) == {"acked": 3, "filtered": 2}
    assert seen == [b"0", b"3", b"4"]
    assert world.offset(orders(0)) == 5


@story
def test_tags_with_one_hash_are_told_apart_by_their_text(world: World) -> None:
    world.fill(orders(0), [said(0, tag="Aa"), said(1, tag="BB")])
    assert tags_code("Aa") == tags_code("BB")
    report = world.consume(group(topics={"Orders": "Aa"}), f"{DAY}-1", fail)
    assert counts(report) == {"retried": 1, "filtered": 1}
    assert bodies(world.lane(3)) == [b"0"]


@story
def test_a_window_in_which_everything_is_filtered_moves_the_offset(world: World) -> None:
    world.fill(orders(0), [said(n, tag="TagB") for n in range(3)])
    report = world.consume(group(topics={"Orders": "TagA"}), f"{DAY}-1", fail)
    assert counts(report) == {"filtered": 3}
    assert world.offset(orders(0)) == 3


# --- parts, bounds and caps ------------------------------------------------------------------------------------------


@story
def test_the_parts_of_a_capped_request_reuse_the_bounds_of_the_first(world: World) -> None:
    world.fill(orders(0), several(10))
    small = group(max_messages=4)
    reports = [world.consume(small, f"{DAY}-1")]
    world.fill(orders(0), several(10, first=10))
    world.fill(orders(1), several(2, first=50))
    reports += [world.consume(small, f"{DAY}-1"), world.consume(small, f"{DAY}-1"), world.consume(small, f"{DAY}-1")]
    assert [(r.status, r.complete) for r in reports] == [
        ("committed", False),
        ("committed", False),
        ("committed", True),
        ("already_committed", True),
    ]
    assert [consumed(r) for r in reports[:3]] == [{orders(0): (0, 4)}, {orders(0): (4, 8)}, {orders(0): (8, 10)}]
    assert counts(reports[3]) == {"acked": 10}
    parts = [(ctl.request_part, ctl.request_complete) for ctl in world.ctls() if ctl.action is Action.CONSUME]
    assert parts == [(1, False), (2, False), (3, True)]


@story
def test_a_request_ends_before_the_moment_it_names(world: World) -> None:
    world.fill(orders(0), several(10, step_ms=60_000))
    world.fill(orders(1), several(10, first=50, step_ms=1000))
    report = world.consume(BILLING, f"{DAY}-1", until_ms=NOON - HOUR + 3 * 60_000)
    assert consumed(report) == {orders(0): (0, 3), orders(1): (0, 10)}
    assert consumed(world.consume(BILLING, f"{DAY}-2")) == {orders(0): (3, 10)}


@story
def test_a_moment_before_the_offset_does_not_move_it_back(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1")
    assert world.consume(BILLING, f"{DAY}-2", until_ms=NOON - HOUR).status == "empty"
    assert world.offset(orders(0)) == 10


@story
def test_max_messages_is_shared_fairly_among_the_queues(world: World) -> None:
    for queue_id, count in enumerate((1, 10, 10)):
        world.fill(orders(queue_id), several(count, first=100 * queue_id))
    report = world.consume(BILLING, f"{DAY}-1", max_messages=7)
    assert consumed(report) == {orders(0): (0, 1), orders(1): (0, 3), orders(2): (0, 3)}
    assert report.complete
    again = world.consume(BILLING, f"{DAY}-1", max_messages=7)
    assert (again.status, again.messages()) == ("already_committed", 7)


@story
def test_what_is_lost_uses_up_nothing_of_a_request_of_max_messages(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=1)
    world.trim(orders(0), 6)
    patient = group(max_messages=2, on_offset_out_of_range="skip")
    first = world.consume(patient, f"{DAY}-2", max_messages=3)
    assert (counts(first), first.complete) == ({"lost": 5, "acked": 2}, False)
    second = world.consume(patient, f"{DAY}-2", max_messages=3)
    assert (counts(second), second.complete) == ({"acked": 1}, True)


@story
def test_a_request_of_max_messages_in_parts_never_takes_more(world: World) -> None:
    world.fill(orders(0), several(20))
    small = group(max_messages=4)
    reports = [world.consume(small, f"{DAY}-1", max_messages=10) for _ in range(4)]
    assert [consumed(r)[orders(0)] for r in reports[:3]] == [(0, 4), (4, 8), (8, 10)]
    assert [r.complete for r in reports] == [False, False, True, True]
    assert reports[3].messages() == 10


@story
def test_a_request_that_a_reset_carried_over_its_end_is_complete(world: World) -> None:
    world.fill(orders(0), several(10))
    assert not world.consume(group(max_messages=4), f"{DAY}-1").complete
    world.reset_to(ResetTo.MAX)
    rest = world.consume(group(max_messages=4), f"{DAY}-1")
    assert (rest.status, rest.complete, rest.messages()) == ("already_committed", True, 4)


# --- offsets that cannot be read -------------------------------------------------------------------------------------


@story
def test_an_offset_below_the_first_readable_one_stops_and_names_what_is_lost(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=3)
    world.trim(orders(0), 6)
    before = world.ctls()
    with pytest.raises(OffsetOutOfRange, match=r"queueId=0.* is 3, but retention removed \[3, 6\)"):
        world.consume(BILLING, f"{DAY}-2")
    assert world.ctls() == before


@story
def test_a_group_that_skips_records_what_it_lost_and_goes_on(world: World) -> None:
    world.fill(orders(0), several(10))
    world.consume(BILLING, f"{DAY}-1", max_messages=3)
    world.trim(orders(0), 6)
    report = world.consume(group(on_offset_out_of_range="skip"), f"{DAY}-2", fail_bodies(b"7"))
    assert consumed(report) == {orders(0): (3, 10)}
    assert counts(report) == {"acked": 3, "retried": 1, "lost": 3}
    (lost,) = world.outcomes("billing")
    assert (lost.range.begin, lost.range.end, lost.outcome) == (3, 6, "lost")


@story
def test_a_hole_between_the_messages_stops_or_is_recorded_as_lost(world: World) -> None:
    world.fill(orders(0), several(3))
    world.fill(orders(0), several(3, first=5), base=5)
    with pytest.raises(OffsetOutOfRange, match=r"cannot read \[3, 5\)"):
        world.consume(BILLING, f"{DAY}-1")
    assert world.offset(orders(0)) is None
    report = world.consume(group(on_offset_out_of_range="skip"), f"{DAY}-2")
    assert counts(report) == {"acked": 6, "lost": 2}
    assert [(o.range.begin, o.range.end) for o in world.outcomes("billing")] == [(3, 5)]


@story
def test_an_offset_beyond_the_queues_end_stops_and_says_how_to_move_it(world: World) -> None:
    world.fill(orders(0), several(3))
    world.observe("billing", orders(0), 9)
    with pytest.raises(BadData, match=r" is 9, beyond the queue's end 3.*rmq reset --group billing"):
        world.consume(BILLING, f"{DAY}-1")
