"""Step 4 of the commit protocol; what each of its guards is for is told by ``test_commit_guards.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Moved, Produced, Proposal, canonical_json
from rmq_store.commit.decide import (
    MAX_RUN_AGE_MS,
    MAX_SKEW_MS,
    Clocks,
    Decided,
    check_age,
    check_day,
    check_evidence,
    decide,
    decide_in_turn,
    overtaken,
)
from rmq_store.commit.positions import (
    ABSENT,
    Claim,
    Outcome,
    Positions,
    QueueRange,
    Tally,
    grp_id,
    max_id,
    min_id,
    off_id,
    own_id,
    sub_id,
    tally,
)
from rmq_store.errors import ClockSkew, EvidenceMismatch, StaleAttempt
from rmq_store.message.message import MessageQueue
from tests.oracle.memory.commit import tally_of_range

NOW = 1_717_416_000_000
ANA, BEN = Actor("ana", "cli"), Actor("ben", "cli")
Q, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)
DLQ = MessageQueue("%DLQ%g", "lake-s", 0)
LANE = MessageQueue("SCHEDULE_TOPIC_XXXX", "lake-s~g", 2)
GRP, OFF, OWN = grp_id("g"), off_id("g", Q), own_id("g")


def a_ctl(commit_id: str = "c1", action: Action = Action.CONSUME, **said: Any) -> Ctl:
    return Ctl(commit_id, action, ANA, **({"group": "g"} | said))


def clocks(own: int = NOW, store: int = NOW) -> Clocks:
    return Clocks(own, store)


# --- compare ---------------------------------------------------------------------------------------------------------


def test_nothing_moved_is_decided_on_exactly_this_version() -> None:
    positions = Positions(7, {GRP: 1, OFF: 5})
    decided = decide(Proposal(a_ctl(), {GRP: 1, OFF: 5}, {GRP: 1, OFF: 9}), positions, clocks())
    assert (decided.ctl.read_version, decided.ctl.store_timestamp) == (7, NOW)
    assert decided.positions == {GRP: 1, OFF: 9}
    assert decided.updated_ms == {GRP: NOW, OFF: NOW}


@pytest.mark.parametrize(
    ("app_id", "wanted", "found"),
    [
        (OFF, 5, 6),
        (OFF, 5, None),
        (OFF, None, 0),
        (GRP, 0, 1),
        (GRP, None, 1),
        (OWN, Claim(3, 100).packed(), Claim(4, 100).packed()),
        (OWN, Claim(3, 100).packed(), None),
        (min_id(Q), 3, 4),
    ],
)
def test_anything_that_moved_drops_the_run_and_is_named(app_id: str, wanted: int | None, found: int | None) -> None:
    positions = Positions(1, {} if found is None else {app_id: found})
    with pytest.raises(StaleAttempt, match=rf"consume c1 was overtaken: {app_id} was .* and is"):
        decide(Proposal(a_ctl(), {app_id: wanted}, {}), positions, clocks())


def test_of_much_that_moved_a_few_are_named() -> None:
    ids = [f"off/g/T/b/{number:03}" for number in range(100)]
    with pytest.raises(
        StaleAttempt, match=r"b/000 was None and is 1; .*b/007 was None and is 1; and 92 more positions$"
    ):
        decide(Proposal(a_ctl(), dict.fromkeys(ids), {}), Positions(1, dict.fromkeys(ids, 1)), clocks())


def test_another_consumers_first_window_is_no_action_of_an_operator() -> None:
    decided = decide(Proposal(a_ctl(), {GRP: None, OFF: 1}, {GRP: 0, OFF: 2}), Positions(1, {GRP: 0, OFF: 1}), clocks())
    assert decided.positions == {GRP: 0, OFF: 2}


def test_a_deleted_position_counts_as_one_that_was_never_there() -> None:
    assert decide(Proposal(a_ctl(), {OFF: None}, {OFF: 3}), Positions(1, {OFF: ABSENT}), clocks()).positions == {OFF: 3}


def test_an_offset_that_another_run_has_moved_to_the_same_place_has_moved() -> None:
    """Otherwise the messages between would be consumed twice."""
    with pytest.raises(StaleAttempt, match="broker-a/0 was 5 and is 9"):
        decide(Proposal(a_ctl(), {OFF: 5}, {OFF: 9}), Positions(1, {OFF: 9}), clocks())


def test_a_first_offset_of_zero_equals_one_that_was_never_set() -> None:
    assert decide(Proposal(a_ctl(), {min_id(Q): None}, {OFF: 3}), Positions(1, {min_id(Q): 0}), clocks()).positions


def test_two_windows_may_record_one_subscription_but_not_two() -> None:
    records = Proposal(a_ctl(), {sub_id("g"): None}, {sub_id("g"): 7})
    assert decide(records, Positions(1, {sub_id("g"): 7}), clocks()).positions == {sub_id("g"): 7}
    with pytest.raises(StaleAttempt, match="sub/g was None and is"):
        decide(records, Positions(1, {sub_id("g"): 8}), clocks())


def test_a_position_that_is_new_under_a_closed_prefix_overtakes() -> None:
    deletes = Proposal(a_ctl(action=Action.DELETE), {OFF: 5}, {OFF: ABSENT}, closed=("off/g/",))
    assert decide(deletes, Positions(1, {OFF: 5, off_id("h", Q1): 1}), clocks()).positions == {OFF: ABSENT}
    with pytest.raises(StaleAttempt, match="off/g/Orders/broker-a/1 was None and is 1"):
        decide(deletes, Positions(1, {OFF: 5, off_id("g", Q1): 1}), clocks())


def test_a_group_that_begins_is_never_before_what_was_removed() -> None:
    """The position is set again as it is, so that retention and the group's first window conflict."""
    begins = Proposal(a_ctl(), {OFF: None}, {OFF: 4}, begins={min_id(Q): 4})
    assert decide(begins, Positions(1, {}), clocks()).positions == {OFF: 4, min_id(Q): 0}
    assert decide(begins, Positions(1, {min_id(Q): 4}), clocks()).positions == {OFF: 4, min_id(Q): 4}
    with pytest.raises(StaleAttempt, match="min/Orders/broker-a/0 is 5, and the group would be at 4"):
        decide(begins, Positions(1, {min_id(Q): 5}), clocks())


@pytest.mark.parametrize(
    ("offsets", "is_overtaken"),
    [
        ({OFF: 5, off_id("h", Q): 9}, False),
        ({OFF: 4}, True),
        ({OFF: 4, off_id("h", Q): 4}, True),
        ({off_id("h", Q): 4}, False),
        ({off_id("g", Q1): 0}, False),
        ({OFF: ABSENT}, False),
    ],
)
def test_no_group_is_left_behind_but_those_that_are_named(offsets: dict[str, int], is_overtaken: bool) -> None:
    removes = Proposal(
        a_ctl(action=Action.RETENTION), {min_id(Q): None}, {min_id(Q): 5}, behind=frozenset({off_id("h", Q)})
    )
    positions = Positions(1, {min_id(Q): 0, **offsets})
    if is_overtaken:
        with pytest.raises(StaleAttempt, match=r"overtaken: off/g/Orders/broker-a/0 was None and is 4$"):
            decide(removes, positions, clocks())
    else:
        assert decide(removes, positions, clocks()).positions == {min_id(Q): 5}


def test_a_renewed_lease_is_still_the_same_claim() -> None:
    expect = {OWN: Claim(3, 100).packed()}
    renewed = Positions(1, {OWN: Claim(3, 220).packed()})
    assert decide(Proposal(a_ctl(), expect, {GRP: 0}), renewed, clocks()).positions == {GRP: 0}


def test_the_run_that_is_dropped_says_who_moved_what_and_why() -> None:
    proposal = Proposal(a_ctl(), {GRP: 0, OFF: 5, OWN: Claim(1, 9).packed()}, {})
    positions = Positions(4, {GRP: 1, OFF: 2, OWN: Claim(2, 9).packed()})
    moved = (Moved("g", Q, 5, 2, 1),)
    since = [
        a_ctl("r1", Action.RESET, request_id="old", reason="first try", moved=moved),
        replace(a_ctl("r2", Action.RESET, request_id="r-2", reason="wrong\nprice", moved=moved), actor=BEN),
        a_ctl("k", Action.CLAIM, request_id="w-2", parameters=canonical_json({"claims": {OWN: 2}})),
        a_ctl("x", Action.RESET, group="other", request_id="not me", moved=(Moved("other", Q, 5, 2, 1),)),
    ]
    error = overtaken(StaleAttempt("overtaken: facts"), proposal, positions, since)
    assert str(error) == ("overtaken: facts. Moved by claim w-2 of ana (cli); reset r-2 of ben (cli): wrong\\nprice")
    assert error.exit_code == 3


def test_when_nobody_is_found_the_facts_stand_alone() -> None:
    facts = StaleAttempt("facts")
    assert overtaken(facts, Proposal(a_ctl(), {OFF: 5}, {}), Positions(1, {OFF: 6}), []) is facts


# --- bases and store time --------------------------------------------------------------------------------------------


def segment(queue: MessageQueue = DLQ, count_: int = 3, part: int = 0, first_row: int = 0, **more: Any) -> Produced:
    return Produced(queue, part, count_, first_row, "file", **more)


def test_bases_come_from_the_newest_positions_in_queue_and_part_order() -> None:
    produced = (segment(part=1, count_=2), segment(LANE, 4, delay_ms=10_000), segment(part=0))
    decided = decide(Proposal(a_ctl(produced=produced), {}, {}), Positions(1, {max_id(DLQ): 10}), clocks())
    assert [(s.queue, s.part, s.base, s.deliver_at) for s in decided.ctl.produced] == [
        (DLQ, 0, 10, None),
        (DLQ, 1, 13, None),
        (LANE, 0, 0, NOW + 10_000),
    ]
    assert decided.positions == {max_id(DLQ): 15, max_id(LANE): 4}


def test_imported_segments_keep_their_place_and_their_times() -> None:
    imported = segment(Q, base=100, min_store_timestamp=1, max_store_timestamp=2)
    proposal = Proposal(a_ctl(produced=(imported,)), {}, {max_id(Q): 103}, updated_ms={max_id(Q): 2})
    decided = decide(proposal, Positions(1, {}), clocks())
    assert decided.ctl.produced == (imported,)
    assert (decided.positions, decided.updated_ms) == ({max_id(Q): 103}, {max_id(Q): 2})


def test_store_times_of_a_queue_never_fall() -> None:
    newest = NOW + MAX_SKEW_MS
    positions = Positions(1, {max_id(DLQ): 1}, {max_id(DLQ): newest})
    decided = decide(Proposal(a_ctl(produced=(segment(),)), {}, {GRP: 0}), positions, clocks())
    assert decided.ctl.store_timestamp == newest
    assert decided.updated_ms == {GRP: newest, max_id(DLQ): newest}


def test_a_queue_with_messages_from_the_future_stops_the_commit() -> None:
    positions = Positions(1, {max_id(DLQ): 1}, {max_id(DLQ): NOW + MAX_SKEW_MS + 1})
    with pytest.raises(ClockSkew, match=r"%DLQ%g.*60000 ms ahead"):
        decide(Proposal(a_ctl(produced=(segment(),)), {}, {}), positions, clocks())


def test_messages_of_queues_that_are_not_written_do_not_matter() -> None:
    positions = Positions(1, {max_id(Q): 1}, {max_id(Q): NOW + 10 * MAX_SKEW_MS})
    assert decide(Proposal(a_ctl(produced=(segment(),)), {}, {}), positions, clocks()).ctl.store_timestamp == NOW


@pytest.mark.parametrize("skew_ms", [MAX_SKEW_MS + 1, -MAX_SKEW_MS - 1])
def test_a_clock_that_is_off_the_stores_stops_the_commit(skew_ms: int) -> None:
    with pytest.raises(ClockSkew, match="Set the clock and run the same request again"):
        decide(Proposal(a_ctl(), {}, {}), Positions(1, {}), clocks(NOW + skew_ms, NOW))


@pytest.mark.parametrize("skew_ms", [MAX_SKEW_MS, -MAX_SKEW_MS])
def test_a_clock_that_is_a_little_off_is_fine(skew_ms: int) -> None:
    assert decide(Proposal(a_ctl(), {}, {}), Positions(1, {}), clocks(NOW + skew_ms, NOW)).ctl.store_timestamp


def test_imported_messages_from_the_future_do_not_matter() -> None:
    """Their times are the broker's."""
    positions = Positions(1, {max_id(Q): 1}, {max_id(Q): NOW + 10 * MAX_SKEW_MS})
    proposal = Proposal(a_ctl(produced=(segment(Q, base=1),)), {}, {max_id(Q): 4})
    assert decide(proposal, positions, clocks()).ctl.store_timestamp == NOW


# --- the run's age and the request's date ----------------------------------------------------------------------------


def test_a_run_may_commit_for_a_day() -> None:
    check_age(a_ctl(), NOW - MAX_RUN_AGE_MS, NOW)
    with pytest.raises(StaleAttempt, match="began 24 h ago"):
        check_age(a_ctl(), NOW - MAX_RUN_AGE_MS - 1, NOW)


@pytest.mark.parametrize("request_id", ["2024-06-03-w", "2024-06-05-w", "2024-01-01-w", "without a date", ""])
def test_a_request_is_dated_two_days_ahead_at_most(request_id: str) -> None:
    check_day(a_ctl(request_id=request_id, store_timestamp=NOW))  # NOW is on 2024-06-03


def test_a_request_that_is_dated_further_ahead_would_not_be_found_again() -> None:
    with pytest.raises(ClockSkew, match=r"2024-06-06-w.* more than 2 days after today, 2024-06-03"):
        check_day(a_ctl(request_id="2024-06-06-w", store_timestamp=NOW))


# --- commits that share an entry -------------------------------------------------------------------------------------


def test_of_commits_that_share_an_entry_each_is_decided_on_what_those_before_it_leave() -> None:
    one, other = (Proposal(a_ctl(f"c{n}", group=f"g{n}", produced=(segment(),)), {}, {}) for n in (1, 2))
    again = Proposal(a_ctl("c3"), {OFF: 5}, {OFF: 9})
    late = Proposal(a_ctl("c5", request_id="2024-06-06-w"), {}, {max_id(DLQ): 99})
    outcomes = decide_in_turn(
        [one, other, again, replace(again, ctl=a_ctl("c4")), late], Positions(7, {OFF: 5, max_id(DLQ): 10}), clocks()
    )
    first, second, third, fourth, fifth = outcomes
    assert isinstance(first, Decided)
    assert isinstance(second, Decided)
    assert isinstance(third, Decided)
    assert [decided.ctl.produced[0].base for decided in (first, second)] == [10, 13]
    assert {decided.ctl.read_version for decided in (first, second, third)} == {7}
    assert isinstance(fourth, StaleAttempt)
    assert isinstance(fifth, ClockSkew)


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tallies",
    [
        {Outcome.ACKED: tally(range(5, 8))},
        {Outcome.ACKED: tally(range(5, 10))},
        {Outcome.ACKED: tally(range(5, 9)), Outcome.RETRIED: tally([7])},
        {Outcome.ACKED: tally([5, 6, 7, 9])},
        {Outcome.ACKED: tally([5, 6, 7, 7])},
        {},
    ],
)
def test_outcomes_that_do_not_cover_the_range_exactly_are_refused(tallies: dict[Outcome, Tally]) -> None:
    ctl = a_ctl(consumed=(Consumed(QueueRange(Q, 5, 9), 0, tallies),))
    with pytest.raises(EvidenceMismatch, match=r"\[5, 9\) of .* does not add up: \d offsets answered of 4"):
        check_evidence(ctl, tally_of_range)


def test_outcomes_that_cover_the_range_are_accepted() -> None:
    tallies = {Outcome.ACKED: tally([5, 8]), Outcome.RETRIED: tally([6]), Outcome.DEAD: tally([7])}
    consumed = Consumed(QueueRange(Q, 5, 9), 0, tallies)
    check_evidence(a_ctl(consumed=(consumed,)), tally_of_range)
