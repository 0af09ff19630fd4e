from __future__ import annotations

import numpy as np
import pytest

from rmq_store.commit.positions import (
    ABSENT,
    Claim,
    Outcome,
    PositionKind,
    Positions,
    QueueRange,
    SubVersion,
    Tally,
    claimed_queue,
    cutover_id,
    group_of,
    grp_id,
    import_id,
    kind_of,
    max_id,
    min_id,
    off_id,
    offset_hash,
    own_id,
    own_queue_id,
    pas_id,
    queue_of,
    split_id,
    sub_id,
    tally,
    total,
)
from rmq_store.lake.table import evidence
from rmq_store.message.message import MessageQueue

Q = MessageQueue("Orders", "broker-a", 3)
ODD = MessageQueue("%RETRY%a/b c", "lake-x~日本", 12)


# --- application ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app_id", "text"),
    [
        (grp_id("g"), "grp/g"),
        (off_id("g", Q), "off/g/Orders/broker-a/3"),
        (pas_id("g", Q), "pas/g/Orders/broker-a/3"),
        (max_id(Q), "max/Orders/broker-a/3"),
        (min_id(Q), "min/Orders/broker-a/3"),
        (own_id("g"), "own/g"),
        (sub_id("g"), "sub/g"),
        (sub_id("g@10.0.0.1@DEFAULT"), "sub/g"),
        (own_id("~import", "broker-a"), "own/~import/broker-a"),
        (own_queue_id("g", Q), "own/g/Orders/broker-a/3"),
        (import_id("broker-a"), "import/broker-a"),
        (cutover_id("broker-a"), "cutover/broker-a"),
        (grp_id("a/b"), "grp/a%2Fb"),
        (off_id("%g", ODD), "off/%25g/%25RETRY%25a%2Fb%20c/lake-x~%E6%97%A5%E6%9C%AC/12"),
    ],
)
def test_an_application_id_is_its_kind_and_its_encoded_parts(app_id: str, text: str) -> None:
    assert app_id == text


@pytest.mark.parametrize("queue", [Q, ODD])
def test_a_queue_is_found_in_the_ids_that_end_with_it(queue: MessageQueue) -> None:
    assert [queue_of(id_) for id_ in (off_id("g/h", queue), pas_id("g", queue), max_id(queue), min_id(queue))] == [
        queue
    ] * 4
    assert split_id(off_id("g/h", queue))[:2] == ("off", "g/h")
    assert (kind_of(off_id("g/h", queue)), group_of(off_id("g/h", queue))) == (PositionKind.OFFSET, "g/h")
    assert claimed_queue(own_queue_id("g/h", queue)) == queue
    assert claimed_queue(own_id("~import", "broker-a")) is None


# --- claims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [Claim(0, 0), Claim(1, 0), Claim(7, 1_717_416_120), Claim(1 << 28, (1 << 34) - 1)])
def test_a_claim_is_read_back_as_it_was_packed(claim: Claim) -> None:
    assert Claim.of(claim.packed()) == claim
    assert claim.packed() < 1 << 63


def test_a_claim_that_was_never_made_or_is_deleted_is_claim_zero() -> None:
    assert Claim.of(None) == Claim.of(ABSENT) == Claim(0, 0)


def test_a_higher_claim_is_a_higher_number_whatever_its_lease() -> None:
    assert Claim(2, 0).packed() > Claim(1, 9_999_999_999).packed()


# --- subscriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [SubVersion(1, 0), SubVersion(7, 5), SubVersion((1 << 31) - 1, (1 << 32) - 1)])
def test_a_subscription_is_read_back_as_it_was_packed(version: SubVersion) -> None:
    assert SubVersion.of(version.packed()) == version
    assert version.packed() < 1 << 63


def test_a_subscription_that_was_never_recorded_or_is_voided_is_none() -> None:
    assert (SubVersion.of(None), SubVersion.of(ABSENT)) == (None, None)


# --- positions -------------------------------------------------------------------------------------------------------


def test_a_deleted_position_is_as_if_it_had_never_been_there() -> None:
    positions = Positions(1, {off_id("g", Q): ABSENT, off_id("g", ODD): 0})
    assert (positions.get(off_id("g", Q)), positions.get(off_id("g", ODD)), positions.get("none")) == (None, 0, None)
    assert list(positions.prefixed("off/")) == [(off_id("g", ODD), 0)]


def test_the_queues_of_a_topic_are_sorted_as_rocketmq_does_and_no_other_topic_is_among_them() -> None:
    queues = [MessageQueue(topic, "b", n) for topic in ("Orders", "Orders2", "Ord") for n in (10, 2)]
    positions = Positions(1, {max_id(queue): 1 for queue in queues})
    assert positions.queues_of("Orders") == [MessageQueue("Orders", "b", 2), MessageQueue("Orders", "b", 10)]
    assert positions.queues_of("None") == []
    assert positions.all_queues() == sorted(queues)


def test_a_queue_without_bounds_is_empty() -> None:
    assert (Positions(1, {}).min_offset(Q), Positions(1, {}).max_offset(Q)) == (0, 0)


@pytest.mark.parametrize(("begin", "end"), [(-1, 0), (3, 2)])
def test_what_is_no_range_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range of offsets"):
        QueueRange(Q, begin, end)
    assert len(QueueRange(Q, 2, 2)) == 0


# --- evidence --------------------------------------------------------------------------------------------------------


def test_the_hash_is_the_finaliser_of_splitmix64() -> None:
    """Its first three numbers from seed 0, as its author published them."""
    step = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [offset_hash(n * step & (1 << 64) - 1) for n in range(3)] == published


@pytest.mark.parametrize("offsets", [[], [0], [5, 6, 7], [1 << 40, 3, 1 << 62], list(range(40_000))])
def test_arrays_have_the_same_tally_as_numbers(offsets: list[int]) -> None:
    assert evidence.tally_of(np.array(offsets, dtype=np.int64)) == tally(offsets)


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (7, 8), (16_380, 16_400), (3, 40_000)])
def test_a_whole_range_has_the_tally_of_its_offsets(begin: int, end: int) -> None:
    assert evidence.tally_of_range(QueueRange(Q, begin, end)) == tally(range(begin, end))


def test_tallies_are_added_and_taken_away_modulo_two_to_the_64() -> None:
    one, other = tally([1, 2, 3]), tally([9])
    assert one + other == tally([9, 3, 2, 1])
    assert one + other - other == one
    assert Tally(1, (1 << 64) - 1) + Tally(1, 2) == Tally(2, 1)
    assert total({Outcome.ACKED: one, Outcome.DEAD: other}) == one + other
    assert total({}) == Tally()


def test_the_same_count_of_other_offsets_is_another_tally() -> None:
    assert tally([1, 2, 4]) != tally([1, 2, 3])
    assert tally([1, 4]) != tally([2, 3])  # a plain sum of offsets would not tell them apart
