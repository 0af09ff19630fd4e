"""What every engine promises to dead letters that are sent again: each once. See ``test_engines.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.admin import redrive
from rmq_store.admin.dead_letters import DeadLetterFilter, Place
from rmq_store.admin.redrive_edits import Change, MessageEdits
from rmq_store.commit.ctl import Action, Ctl, Proposal, canonical_json
from rmq_store.commit.positions import Claim, grp_id, own_id, red_id
from rmq_store.errors import ClockSkew, HeldByAnother, StaleAttempt, WrongUse
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.properties import tags_code
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
    World,
    bodies,
    consumed,
    counts,
    fail,
    group,
    orders,
    said,
    several,
)
from tests.oracle.memory.rows import MessageRow

RETRIES = MessageQueue("%RETRY%billing", LOCAL, 0)
LETTERS = MessageQueue("%DLQ%billing", LOCAL, 0)


def die(msgs: list[MessageExt], context: Any) -> str:
    context.delay_level_when_next_consume = -1
    return "RECONSUME_LATER"


def with_letters(world: World, count: int = 4) -> World:
    """``count`` messages of Orders, all of them dead."""
    world.fill(orders(0), several(count))
    assert counts(world.consume(BILLING, f"{DAY}-1", die)) == {"dead": count}
    return world


# --- what becomes of a letter ----------------------------------------------------------------------------------------


@story
def test_letters_are_sent_to_the_groups_retry_topic_at_once_and_consumed_by_this_group(world: World) -> None:
    with_letters(world)
    report = world.redrive()
    assert (report.status, report.letters, report.complete) == ("committed", 4, True)
    assert (report.topic, report.readers) == ("%RETRY%billing", ("billing",))
    assert bodies(world.retries()) == [b"0", b"1", b"2", b"3"]
    seen: list[tuple[str, int, str]] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        seen.extend((m.topic, m.reconsume_times, context.idempotency_key(m)) for m in msgs)
        return "CONSUME_SUCCESS"

    assert consumed(world.consume(BILLING, f"{DAY}-2", listener)) == {RETRIES: (0, 4)}
    assert seen == [("Orders", 0, f"billing:{n:032X}") for n in range(4)]


@story
def test_the_retries_of_a_letter_begin_anew_with_the_first_delay(world: World) -> None:
    world.fill(orders(0), several(1))
    stubborn = group(max_reconsume_times=1)
    world.consume(stubborn, f"{DAY}-1", fail)
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d1")
    world.consume(stubborn, f"{DAY}-2", fail)
    assert [letter.row.reconsume_times for letter in world.dead_letters()] == [2]
    world.redrive()
    (retry, again) = world.retries()
    assert (retry.row.reconsume_times, again.row.reconsume_times) == (1, 0)
    assert counts(world.consume(stubborn, f"{DAY}-3", fail)) == {"retried": 1}
    assert len(world.lane(3)) == 2, "10 s, as after a first failure"


@story
def test_a_copy_says_which_letter_it_is_and_carries_nothing_of_its_last_life(world: World) -> None:
    letter = MessageRow(
        b"late",
        {
            "UNIQ_KEY": "U9", "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": f"{9:032X}", "DELAY": "0", "REAL_TOPIC": "x",
            "REAL_QID": "0", "MAX_RECONSUME_TIMES": "3", "RECONSUME_TIME": "3", "TIMER_DELAY_SEC": "9", "price": "7",
        },
        17, NOON - HOUR, f"{9:032X}", NOON - HOUR, "10.0.0.1|4000",
    )  # fmt: skip
    theirs = MessageQueue("%DLQ%billing", SHARD, 0)
    world.fill(theirs, [letter])
    world.redrive()
    (copy,) = world.retries()
    kept = {"UNIQ_KEY": "U9", "RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": f"{9:032X}", "price": "7"}
    assert (copy.row.properties, copy.row.reconsume_times, copy.store_timestamp) == (kept, 0, NOON)
    assert (copy.row.born_timestamp, copy.row.born_host) == (NOON - HOUR, "10.0.0.1|4000")
    origin = copy.row.provenance
    assert origin is not None
    assert (origin.group, origin.queue, origin.offset, origin.cause, origin.attempt) == (
        "billing",
        theirs,
        0,
        "redrive",
        0,
    )


@story
def test_a_letter_that_does_not_know_its_first_copy_is_named_by_its_own_id(world: World) -> None:
    world.fill(MessageQueue("%DLQ%billing", SHARD, 0), [said(5)])
    world.redrive()
    assert [m.row.properties["ORIGIN_MESSAGE_ID"] for m in world.retries()] == [f"{5:032X}"]


@story
def test_who_and_why_stand_in_the_log_and_no_offset_moves(world: World) -> None:
    with_letters(world)
    before = world.history("billing")
    world.redrive(actor=BEN)
    (ctl,) = [ctl for ctl in world.ctls() if ctl.action is Action.REDRIVE]
    assert (ctl.actor, ctl.reason, ctl.group, ctl.request_complete) == (BEN, "price is known", "billing", True)
    assert [(c.range.queue, c.range.begin, c.range.end, c.start_rule) for c in ctl.consumed] == [
        (LETTERS, 0, 4, "redrive")
    ]
    assert world.history("billing") == before
    assert (world.offset(LETTERS), world.positions().get(red_id("billing"))) == (None, 1)


@story
def test_a_redrive_of_a_group_that_never_had_a_window_here_does_not_make_it_look_as_if(world: World) -> None:
    """CONSUME_FROM_LAST_OFFSET applies to the first window, and a redrive is none."""
    world.fill(orders(0), several(5))
    world.fill(MessageQueue("%DLQ%billing", SHARD, 0), [said(5)])
    world.redrive()
    assert world.positions().get(grp_id("billing")) is None
    late = group(consume_from_where="CONSUME_FROM_LAST_OFFSET")
    assert consumed(world.consume(late, f"{DAY}-1")) == {orders(0): (5, 5), RETRIES: (0, 1)}


# --- each once -------------------------------------------------------------------------------------------------------


@story
def test_the_same_request_again_sends_nothing(world: World) -> None:
    with_letters(world)
    first = world.redrive()
    world.fill(orders(0), several(2, first=4))
    world.consume(BILLING, f"{DAY}-2", die)
    again = world.redrive()
    assert (again.status, again.letters, again.commit_id) == ("already_committed", 4, first.commit_id)
    assert len(world.retries()) == 4


@story
def test_a_letter_is_sent_once_also_by_requests_that_overlap(world: World) -> None:
    with_letters(world, 6)
    one = world.redrive(f"{DAY}-r1", DeadLetterFilter(places=(Place(LOCAL, 0, 1), Place(LOCAL, 0, 4))))
    two = world.redrive(f"{DAY}-r2", DeadLetterFilter(keys=frozenset({"U1", "U2"})))
    rest = world.redrive(f"{DAY}-r3")
    none = world.redrive(f"{DAY}-r4")
    assert [report.letters for report in (one, two, rest, none)] == [2, 1, 3, 0]
    assert [report.status for report in (rest, none)] == ["committed", "empty"]
    assert bodies(world.retries()) == [b"1", b"4", b"2", b"0", b"3", b"5"]
    assert len([ctl for ctl in world.ctls() if ctl.action is Action.REDRIVE]) == 3


@story
def test_a_letter_that_died_again_is_another_letter(world: World) -> None:
    with_letters(world, 1)
    world.redrive(f"{DAY}-r1")
    world.consume(BILLING, f"{DAY}-2", die)
    assert bodies(world.dead_letters()) == [b"0", b"0"]
    assert world.redrive(f"{DAY}-r2").letters == 1
    assert world.redrive(f"{DAY}-r3").letters == 0


@story
@pytest.mark.parametrize(("other", "status"), [("redrive", "already_committed"), ("other", "empty")])
def test_what_is_sent_between_plan_and_claim_is_not_sent_again(world: World, other: str, status: str) -> None:
    with_letters(world)
    overtaken = world.another_host(lambda: world.redrive(f"{DAY}-{other}"))
    assert world.redrive(host=overtaken).status == status
    assert len(world.retries()) == 4


@story
def test_a_later_attempt_of_the_same_request_takes_over_and_fences_the_earlier_one(world: World) -> None:
    with_letters(world)
    slow = world.another_host(lambda: world.redrive(), before_id=2)
    with pytest.raises(StaleAttempt, match="own/~redrive/billing was claim 1 and is claim 2"):
        world.redrive(host=slow)
    assert len(world.retries()) == 4
    assert world.redrive().status == "already_committed"


@story
def test_of_two_redrives_of_a_group_at_once_the_second_is_told_who_is_at_it(world: World) -> None:
    with_letters(world)
    told = canonical_json({"claims": {own_id("~redrive", "billing"): 1}})
    commit_id = world.host.new_commit_id()
    ctl = Ctl(commit_id, Action.CLAIM, BEN, request_id=f"{DAY}-r1", group="billing", parameters=told)
    claim = Claim(1, (world.clock() + 60_000) // 1000)
    world.commit(Proposal(ctl, {}, {own_id("~redrive", "billing"): claim.packed()}))
    with pytest.raises(HeldByAnother, match=rf"broker-a/~redrive/billing is held by request {DAY}-r1 of ben"):
        world.redrive(f"{DAY}-r2")
    assert world.retries() == []
    world.clock.advance(60_000)
    assert world.redrive(f"{DAY}-r2").letters == 4


@story
def test_a_window_of_the_group_and_a_redrive_do_not_overtake_each_other(world: World) -> None:
    with_letters(world)
    world.fill(orders(0), several(2, first=4))

    def listener(msgs: list[MessageExt], context: Any) -> str:
        assert world.redrive(host=world.another_host()).letters == 4
        return "CONSUME_SUCCESS"

    assert consumed(world.consume(BILLING, f"{DAY}-2", listener)) == {orders(0): (4, 6)}
    assert consumed(world.consume(BILLING, f"{DAY}-3")) == {RETRIES: (0, 4)}


# --- parts -----------------------------------------------------------------------------------------------------------


@story
def test_a_big_request_is_done_in_parts_and_who_dies_meanwhile_is_not_meant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "CAP", 3)
    with_letters(world, 7)
    assert [(r.letters, r.complete) for r in (world.redrive(), world.redrive())] == [(3, False), (6, False)]
    world.fill(orders(0), several(2, first=7))
    world.consume(BILLING, f"{DAY}-2", die)
    last = world.redrive()
    assert (last.status, last.letters, last.complete) == ("committed", 7, True)
    assert (world.redrive().status, len(world.retries())) == ("already_committed", 7)
    assert [ctl.request_part for ctl in world.ctls() if ctl.action is Action.REDRIVE] == [1, 2, 3]


@story
@pytest.mark.parametrize("cap", [2, 3, 100])
def test_a_limit_holds_for_the_request_as_a_whole(world: World, monkeypatch: pytest.MonkeyPatch, cap: int) -> None:
    monkeypatch.setattr(redrive, "CAP", cap)
    with_letters(world, 6)
    while not world.redrive(limit=3).complete:
        continue
    assert bodies(world.retries()) == [b"0", b"1", b"2"]
    assert world.redrive(f"{DAY}-next", limit=3).letters == min(cap, 3)


# --- which letters ---------------------------------------------------------------------------------------------------


@story
def test_letters_are_chosen_by_the_time_of_their_death(world: World) -> None:
    world.fill(orders(0), several(3))
    for n in range(3):
        world.consume(BILLING, f"{DAY}-{n}", die, max_messages=1)
        world.clock.advance(60_000)
    world.redrive(f"{DAY}-r1", DeadLetterFilter(from_ms=NOON + 1, until_ms=NOON + 120_000))
    assert bodies(world.retries()) == [b"1"]
    world.redrive(f"{DAY}-r2", DeadLetterFilter(until_ms=NOON + 120_000))
    assert bodies(world.retries()) == [b"1", b"0"]


@story
def test_letters_are_chosen_by_the_topic_that_they_were_first_read_from(world: World) -> None:
    world.fill(orders(0), several(2))
    world.fill(orders(0, "Refunds"), several(2, first=5))
    world.consume(group(topics=("Orders", "Refunds")), f"{DAY}-1", die)
    world.redrive(letters=DeadLetterFilter(original_topic="Refunds"))
    assert bodies(world.retries()) == [b"5", b"6"]


@story
def test_letters_are_chosen_by_one_of_their_keys_or_by_their_unique_key(world: World) -> None:
    keyed = [said(n, KEYS=keys) for n, keys in enumerate(("a", "b c", "U3", "d", "a b"))]
    world.fill(orders(0), keyed)
    world.consume(BILLING, f"{DAY}-1", die)
    world.redrive(f"{DAY}-r1", DeadLetterFilter(keys=frozenset({"c", "U3"})))
    assert bodies(world.retries()) == [b"1", b"2", b"3"]
    world.redrive(
        f"{DAY}-r2", DeadLetterFilter(keys=frozenset({"a", "c"}), from_ms=NOON, original_topic="Orders"), limit=1
    )
    assert bodies(world.retries())[3:] == [b"0"]


def refuse_with_its_body(msgs: list[MessageExt], context: Any) -> str:
    context.delay_level_when_next_consume = -1
    if msgs[0].body == b"3":
        return "RECONSUME_LATER"
    raise ValueError(f"no price in {(msgs[0].body or b'').decode()}")


@story
@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("price > 100", [b"1"]),
        ("price > 100 OR price IS NULL", [b"1", b"2"]),
        ("price = 'n/a'", [b"3"]),
        ("_error_type IS NULL", [b"3"]),
        ("_error_text CONTAINS 'in 1' AND _error_type = 'ValueError'", [b"1"]),
        ("_cause = 'negative_delay_level' AND _attempt = 1", [b"0", b"1", b"2", b"3"]),
        ("_queue_offset BETWEEN 1 AND 2 AND _queue_id = 0", [b"1", b"2"]),
        ("_topic = '%DLQ%billing' AND _broker_name = 'lake-broker-a' AND _origin_queue_offset = 2", [b"2"]),
        ("_original_topic IN ('Orders') AND _unique_key = 'U2'", [b"2"]),
        (f"_store_timestamp >= {NOON} AND _born_timestamp < {NOON} AND _tags = 'dear' AND _keys IS NULL", [b"1"]),
        (
            "_origin_topic = 'Orders' AND _origin_queue_id = 0 AND _origin_broker_name = 'broker-a' AND TAGS = 'dear'",
            [b"1"],
        ),
        (f"_store_timestamp > {NOON}", []),
        ("_store_timestamp > 0 AND 5 < _born_timestamp AND _store_timestamp <> 1", [b"0", b"1", b"2", b"3"]),
        ("_store_timestamp BETWEEN 0 AND 5 OR NOT (_born_timestamp > 5)", []),
    ],
)
def test_letters_are_chosen_by_an_expression_over_properties_and_columns(
    world: World, where: str, chosen: list[bytes]
) -> None:
    world.fill(orders(0), [said(0, price="7"), said(1, price="101", tag="dear"), said(2), said(3, price="n/a")])
    one_by_one = group(consume_message_batch_max_size=1)
    world.consume(one_by_one, f"{DAY}-1", refuse_with_its_body)
    shown = world.redrive(f"{DAY}-dry", DeadLetterFilter(where=where), dry_run=True)
    assert shown.letters == len(chosen)
    world.redrive(letters=DeadLetterFilter(where=where))
    assert bodies(world.retries()) == chosen


@story
def test_an_expression_narrows_the_other_conditions_and_is_recorded(world: World) -> None:
    world.fill(orders(0), [said(n, price=str(n)) for n in range(6)])
    world.consume(BILLING, f"{DAY}-1", die)
    conditions = DeadLetterFilter(where="price > 2", keys=frozenset({"U1", "U3", "U4"}))
    assert world.redrive(letters=conditions, limit=1).letters == 1
    assert bodies(world.retries()) == [b"3"]
    (ctl,) = [ctl for ctl in world.ctls() if ctl.action is Action.REDRIVE]
    assert ctl.parameter("where") == "price > 2"
    with pytest.raises(WrongUse, match=r"different parameters \(where price > 2; now where price > 3\)"):
        world.redrive(letters=DeadLetterFilter(where="price > 3", keys=conditions.keys), limit=1)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("price >", r"'price >' is wrong at character 8: expected a property"),
        ("price > 1 price", r"complete before character 11"),
        ("price = 1 AND _caus = 'x'", r"wrong at character 15: there is no column _caus, did you mean '_cause'\?"),
        ("'_caus' = '_caus' OR _region = 1", r"wrong at character 22: there is no column _region.*cannot be compared"),
        ("price", None),
        ("_SYS_MSG_PRIORITY_ = 1 OR __SHARDINGKEY = 'a'", None),
        ("  ", "the SQL92 expression .* is empty"),
        ("a = '\ud800'", "contains an unpaired surrogate"),
    ],
)
def test_an_expression_that_is_wrong_is_refused_with_the_place(where: str, problem: str | None) -> None:
    if problem is None:
        assert DeadLetterFilter(where=where).parameters() == {"where": where}
        return
    with pytest.raises(WrongUse, match=problem):
        DeadLetterFilter(where=where)


@story
def test_a_place_where_no_letter_lies_is_refused(world: World) -> None:
    with_letters(world)
    for place in (Place(LOCAL, 0, 4), Place(LOCAL, 1, 0), Place(SHARD, 0, 0)):
        with pytest.raises(WrongUse, match="has no dead letter at"):
            world.redrive(letters=DeadLetterFilter(places=(place,)))
    assert world.retries() == []


@pytest.mark.parametrize(
    "wrong",
    [{}, {"all": True, "keys": frozenset({"a"})}, {"from_ms": 5, "until_ms": 5}, {"all": True, "from_ms": 0}],
)
def test_a_choice_of_letters_is_made_and_makes_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongUse, match=r"choose which dead letters|empty time range"):
        DeadLetterFilter(**wrong)


@story
def test_a_dry_run_shows_the_letters_and_writes_nothing(world: World) -> None:
    with_letters(world)
    world.redrive(f"{DAY}-r1", DeadLetterFilter(keys=frozenset({"U2"})))
    before = world.ctls()
    report = world.redrive(f"{DAY}-r2", dry_run=True)
    assert (report.status, report.letters, report.commit_id) == ("dry_run", 3, None)
    assert [(letter.offset, letter.unique_key, letter.original_topic) for letter in report.listed] == [
        (0, "U0", "Orders"),
        (1, "U1", "Orders"),
        (3, "U3", "Orders"),
    ]
    assert {(letter.queue, letter.store_timestamp, letter.reconsume_times) for letter in report.listed} == {
        (LETTERS, NOON, 1)
    }
    assert world.ctls() == before


@story
def test_there_may_be_no_letters_at_all(world: World) -> None:
    world.fill(orders(0), several(2))
    before = world.ctls()
    assert (world.redrive().status, world.redrive(dry_run=True).letters) == ("empty", 0)
    assert world.ctls() == before


# --- where to --------------------------------------------------------------------------------------------------------


@story
def test_a_named_topic_gets_the_letters_as_new_messages_and_the_report_says_who_reads_it(world: World) -> None:
    with_letters(world)
    world.fill(orders(0, "Refunds"), several(1, first=9))
    refunds = group("refunds", topics=("Refunds",))
    world.consume(refunds, f"{DAY}-2")
    report = world.redrive(to_topic="Refunds")
    assert (report.topic, report.readers) == ("Refunds", ("refunds",))
    born = MessageQueue("Refunds", LOCAL, 0)
    assert "RETRY_TOPIC" not in world.stored(born)[0].row.properties
    assert consumed(world.consume(refunds, f"{DAY}-3", fail)) == {born: (0, 4)}
    assert {m.row.properties["RETRY_TOPIC"] for m in world.lane(3, "refunds")} == {"Refunds"}
    assert world.redrive(f"{DAY}-again").letters == 0, "once, wherever to"


@story
def test_letters_are_spread_over_the_queues_of_the_topic_by_their_place(world: World) -> None:
    with_letters(world, 40)
    first = world.redrive(retry_queue_nums=3, limit=20)
    again = world.redrive(f"{DAY}-rest", retry_queue_nums=3)
    assert (first.letters, again.letters) == (20, 20)
    by_queue = [bodies(world.retries(queue_id=n)) for n in range(3)]
    assert all(len(found) > 5 for found in by_queue)
    assert sorted(int(body or b"") for found in by_queue for body in found) == list(range(40))


@story
def test_a_topic_that_is_not_there_or_not_for_messages_is_refused(world: World) -> None:
    with_letters(world)
    with pytest.raises(WrongUse, match="has no topic Payments"):
        world.redrive(to_topic="Payments")
    for topic in ("%RETRY%shipping", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(WrongUse, match="cannot redrive to system topic"):
            world.redrive(to_topic=topic)
    with pytest.raises(WrongUse, match="has no retry queue"):
        world.redrive(retry_queue_nums=0)
    with pytest.raises(WrongUse, match="needs a reason"):
        world.redrive(reason=" ", actor=ANA)


# --- edits -----------------------------------------------------------------------------------------------------------


def with_orders(world: World, *texts: str) -> World:
    """Dead letters with these bodies and the properties that go with them."""
    rows = [replace(said(n, region="eu", tag="new"), body=text.encode()) for n, text in enumerate(texts)]
    world.fill(orders(0), rows)
    assert counts(world.consume(BILLING, f"{DAY}-1", die)) == {"dead": len(texts)}
    return world


CHEAPER = MessageEdits(set_property={"region": "us", "TAGS": "old"}, cast_json={"/price": "number"})


@story
def test_a_copy_has_the_edits_and_the_dead_letter_stays_as_it_is(world: World) -> None:
    with_orders(world, '{"price": "12"}')
    before = world.dead_letters()
    report = world.redrive(edits=CHEAPER)
    assert (report.letters, report.failed, report.failures) == (1, 0, ())
    (copy,) = world.retries()
    assert copy.row.body == b'{"price": 12}'
    assert {name: copy.row.properties[name] for name in ("region", "TAGS", "UNIQ_KEY", "RETRY_TOPIC")} == {
        "region": "us",
        "TAGS": "old",
        "UNIQ_KEY": "U0",
        "RETRY_TOPIC": "Orders",
    }
    assert (copy.row.tags, copy.row.tags_code) == ("old", tags_code("old"))
    assert world.dead_letters() == before
    (ctl,) = [ctl for ctl in world.ctls() if ctl.action is Action.REDRIVE]
    assert ctl.parameter("edits") == CHEAPER.text
    seen: list[tuple[bytes | None, str | None]] = []

    def listener(msgs: list[MessageExt], context: Any) -> str:
        seen.extend((m.body, m.tags) for m in msgs)
        return "CONSUME_SUCCESS"

    world.consume(BILLING, f"{DAY}-2", listener)
    assert seen == [(b'{"price": 12}', "old")]


@story
def test_a_dead_letter_to_which_an_edit_does_not_apply_is_not_sent_and_the_others_are(world: World) -> None:
    with_orders(world, '{"price": "1"}', "no JSON", '{"price": "n/a"}', '{"price": 4}')
    report = world.redrive(edits=CHEAPER)
    assert (report.status, report.letters, report.failed, report.complete) == ("committed", 2, 2, True)
    assert [(f.queue, f.offset, f.unique_key, f.reason) for f in report.failures] == [
        (LETTERS, 1, "U1", "the body is not JSON"),
        (LETTERS, 2, "U2", 'the value at /price is no number: "n/a"'),
    ]
    assert bodies(world.retries()) == [b'{"price": 1}', b'{"price": 4}']
    assert [(lost.range.begin, lost.range.end, lost.outcome) for lost in world.outcomes("billing")] == [
        (1, 2, "redrive_failed"),
        (2, 3, "redrive_failed"),
    ]
    again = world.redrive(edits=CHEAPER)
    assert (again.status, again.letters, again.failed) == ("already_committed", 2, 2)
    with pytest.raises(WrongUse, match="different parameters"):
        world.redrive()
    rest = world.redrive(f"{DAY}-rest", edits=MessageEdits(set_property={"region": "us"}))
    assert (rest.letters, rest.failed) == (2, 0)


@story
def test_a_redrive_in_which_no_edit_applies_is_recorded_too(world: World) -> None:
    with_orders(world, "no JSON")
    report = world.redrive(edits=CHEAPER)
    assert (report.status, report.letters, report.failed, world.retries()) == ("committed", 0, 1, [])
    assert world.redrive(edits=CHEAPER).status == "already_committed"


@story
def test_all_or_nothing_sends_nothing_when_an_edit_does_not_apply_to_one(world: World) -> None:
    with_orders(world, '{"price": "1"}', "no JSON")
    before = world.ctls()
    with pytest.raises(
        WrongUse, match=r"do not apply to 1 of the dead letters .*lake-broker-a:0:1: the body is not JSON"
    ):
        world.redrive(edits=CHEAPER, all_or_nothing=True)
    assert world.ctls() == before
    one = DeadLetterFilter(keys=frozenset({"U0"}))
    assert world.redrive(letters=one, edits=CHEAPER, all_or_nothing=True).letters == 1


@story
def test_a_dry_run_shows_what_the_edits_change(world: World) -> None:
    with_orders(world, '{"price": "1"}', "no JSON", '{"price": "3"}')
    before = world.ctls()
    report = world.redrive(edits=CHEAPER, dry_run=True)
    assert (report.status, report.letters, report.failed) == ("dry_run", 2, 1)
    assert [letter.offset for letter in report.listed] == [0, 2]
    assert [(failure.offset, failure.reason) for failure in report.failures] == [(1, "the body is not JSON")]
    assert [(preview.queue, preview.offset) for preview in report.previews] == [(LETTERS, 0), (LETTERS, 2)]
    assert report.previews[1].changes == (
        Change("TAGS", "new", "old"),
        Change("region", "eu", "us"),
        Change("", '{"price": "3"}', '{"price": 3}'),
    )
    assert world.ctls() == before


@story
@pytest.mark.parametrize("cap", [1, 2, 3, 100])
def test_parts_of_a_redrive_with_edits_read_each_dead_letter_once(
    world: World, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    monkeypatch.setattr(redrive, "CAP", cap)
    with_orders(world, *("x" if n in (1, 2, 3, 6) else f'{{"price": {n}}}' for n in range(7)))
    reports = [world.redrive(edits=CHEAPER)]
    while not reports[-1].complete:
        world.clock.advance(1)
        reports.append(world.redrive(edits=CHEAPER))
    assert (reports[-1].letters, reports[-1].failed, len(reports)) == (3, 4, -(-7 // cap))
    assert [failure.offset for report in reports for failure in report.failures] == [1, 2, 3, 6]
    assert bodies(world.retries()) == [b'{"price": %d}' % n for n in (0, 4, 5)]
    assert [lost.range.begin for lost in world.outcomes("billing")] == [1, 2, 3, 6]


@story
@pytest.mark.parametrize("cap", [1, 2, 100])
def test_a_limit_counts_the_dead_letters_that_are_sent(world: World, monkeypatch: pytest.MonkeyPatch, cap: int) -> None:
    monkeypatch.setattr(redrive, "CAP", cap)
    with_orders(world, "x", "1", "x", "2", "x", "3")
    edits = MessageEdits(set_json={"": 0})
    shown = world.redrive(edits=edits, limit=2, dry_run=True)
    assert (shown.letters, shown.failed) == (2, 2)
    while not (report := world.redrive(edits=edits, limit=2)).complete:
        world.clock.advance(1)
    assert (report.letters, report.failed, len(world.retries())) == (2, 2, 2)


# --- the rate --------------------------------------------------------------------------------------------------------


@story
def test_a_rate_is_kept_over_a_minute_also_by_a_run_that_takes_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "PART_S", 2)
    with_letters(world, 10)
    began = world.clock()
    reports = [world.redrive(rate=2), world.redrive(rate=2)]
    assert [(report.letters, report.complete) for report in reports] == [(4, False), (8, False)]
    assert 2_000 <= world.clock() - began < 2_010
    last = world.redrive(rate=1, host=world.another_host())
    assert (last.letters, last.complete) == (10, True)
    assert 6_000 <= world.clock() - began < 6_010
    assert world.redrive(rate=5).status == "already_committed"
    with pytest.raises(WrongUse, match="invalid rate 0"):
        world.redrive(rate=0)


@story
def test_a_rate_waits_for_no_clock_that_is_ahead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "PART_S", 2)
    with_letters(world, 10)
    world.clock.advance(3 * HOUR)
    assert world.redrive(rate=2).letters == 4
    world.clock.advance(-3 * HOUR)
    before = world.clock(), world.ctls()
    with pytest.raises(ClockSkew, match="ahead of this host's clock"):
        world.redrive(rate=2)
    assert (world.clock(), world.ctls()) == before, "it has not waited"
    world.clock.advance(3 * HOUR - 60_000)
    began = world.clock()
    assert world.redrive(rate=2).letters == 8
    assert 2_000 <= world.clock() - began < 2_010, "a lead that commits allow is not waited for"
