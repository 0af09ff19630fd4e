"""What a broker's log tells of its delay levels, message by message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.broker_files.delivered_levels import (
    CLOCKS_MS,
    Copy,
    CopyKey,
    Delayed,
    LeftOut,
    LevelProgress,
    Verdict,
    level_progress,
    verdict,
)

KEY = CopyKey("U1", "%RETRY%shop", 0, 1, 0xC0FFEE, 1000)


def delayed(place: int, key: CopyKey = KEY, offset: int = 0, queue_id: int = 2) -> Delayed:
    return Delayed(queue_id, offset, key, place, 1000 + place)


def copy(place: int, key: CopyKey = KEY) -> Copy:
    return Copy(key, place, 1000 + place)


ROW = delayed(100)


@pytest.mark.parametrize(
    ("others", "copies", "expected"),
    [
        ([], [], Verdict.WAITING),
        ([], [copy(200)], Verdict.DELIVERED),
        ([], [copy(200), copy(300)], Verdict.DELIVERED),  # the broker was killed and delivered it twice
        ([], [copy(50)], Verdict.WAITING),
        ([], [Copy(KEY, 200, 1099)], Verdict.WAITING),
        ([delayed(150)], [copy(200)], Verdict.UNCERTAIN),
        ([delayed(150)], [copy(120)], Verdict.DELIVERED),
        ([delayed(150)], [copy(120), copy(200)], Verdict.DELIVERED),
        ([delayed(50)], [copy(60)], Verdict.WAITING),
        ([delayed(50)], [copy(60), copy(200)], Verdict.UNCERTAIN),
        ([delayed(50, queue_id=3)], [copy(200)], Verdict.UNCERTAIN),
    ],
)
def test_a_copy_is_that_of_the_only_message_with_its_key_before_it(
    others: list[Delayed], copies: list[Copy], expected: Verdict
) -> None:
    assert verdict(ROW, [*others, ROW], copies, 0) is expected


def test_a_message_whose_copy_may_have_been_removed_is_uncertain() -> None:
    assert verdict(ROW, [ROW], [], 100) is Verdict.WAITING
    assert verdict(ROW, [ROW], [], 101) is Verdict.UNCERTAIN
    assert verdict(ROW, [ROW], [copy(200)], 150) is Verdict.DELIVERED
    ranges, other = {2: (0, 2)}, KEY._replace(unique_key="U2", real_queue_id=1)
    rows = [ROW, delayed(110, other, offset=1)]
    assert level_progress(ranges, rows, [], {("%RETRY%shop", 1): 500}) == (LevelProgress(3, 0, 0, 2, 1),)


def test_a_copy_may_be_that_of_a_message_under_another_name_of_the_log() -> None:
    """Also where its queue and offset are those of a message that is asked for."""
    ranges, copies = {2: (0, 1)}, [copy(200)]
    assert level_progress(ranges, [ROW], copies, {}, others=[delayed(50)]) == (LevelProgress(3, 0, 0, 1, 1),)
    assert level_progress(ranges, [ROW], copies, {}, others=[delayed(250)]) == (LevelProgress(3, 0, 1, 0),)


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        (LeftOut(0, 1000), Verdict.UNCERTAIN),
        (LeftOut(199, 1000), Verdict.UNCERTAIN),  # behind the message: the broker may deliver that one before it
        (LeftOut(200, 1000), Verdict.DELIVERED),
        (LeftOut(0, 1000 - CLOCKS_MS), Verdict.UNCERTAIN),
        (LeftOut(0, 1000 - CLOCKS_MS - 1), Verdict.DELIVERED),  # the message was born after that
    ],
)
def test_a_copy_may_be_that_of_a_message_that_is_not_here(left_out: LeftOut, expected: Verdict) -> None:
    assert verdict(ROW, [ROW], [copy(200)], 0, left_out=[left_out]) is expected
    assert verdict(ROW, [ROW], [], 0, left_out=[left_out]) is Verdict.WAITING
    born_later = ROW.key._replace(born_timestamp=1000 + 9 * CLOCKS_MS)  # by a clock that is ahead
    row = replace(ROW, key=born_later)
    near = replace(left_out, until_ms=row.store_timestamp)
    assert verdict(row, [row], [copy(200, born_later)], 0, left_out=[near]) is (
        Verdict.UNCERTAIN if near.begin < 200 else Verdict.DELIVERED
    )


@pytest.mark.parametrize(
    ("deliver_at", "is_whole", "expected"),
    [
        (1200, False, Verdict.DELIVERED),
        (1201, False, Verdict.UNCERTAIN),  # of a message that the broker removed before the first import
        (1201, True, Verdict.DELIVERED),  # there was none: the broker's clock was set back
        (None, False, Verdict.DELIVERED),
    ],
)
def test_a_copy_from_before_the_due_time_may_be_that_of_a_message_that_the_broker_removed(
    deliver_at: int | None, is_whole: bool, expected: Verdict
) -> None:
    row = replace(ROW, deliver_at=deliver_at)
    assert verdict(row, [row], [copy(200)], 0, is_whole=is_whole) is expected


@pytest.mark.parametrize(
    "other",
    [
        KEY._replace(unique_key="U2"),
        KEY._replace(real_topic="Orders"),
        KEY._replace(real_queue_id=1),
        KEY._replace(reconsume_times=2),
        KEY._replace(body_crc=1),  # a producer that sends one Message object again, with another body, keeps its key
        KEY._replace(born_timestamp=1001),
    ],
)
def test_a_copy_has_the_key_the_place_and_the_retries_of_its_message(other: CopyKey) -> None:
    ranges = {2: (0, 1)}
    assert level_progress(ranges, [ROW], [copy(200, other)], {}) == (LevelProgress(3, 0, 0, 1),)
    assert level_progress(ranges, [ROW], [copy(200)], {}) == (LevelProgress(3, 0, 1, 0),)


@pytest.mark.parametrize("unknown", ["unique_key", "real_topic", "real_queue_id"])
def test_a_copy_of_a_message_without_a_key_is_uncertain(unknown: str) -> None:
    values: dict[str, Any] = {unknown: None}
    key = KEY._replace(**values)
    assert level_progress({2: (0, 1)}, [delayed(100, key)], [copy(200, key)], {}) == (LevelProgress(3, 0, 0, 1, 1),)
    assert level_progress({2: (0, 1)}, [delayed(100, key)], [], {}) == (LevelProgress(3, 0, 0, 1, 0),)


def test_a_level_was_delivered_up_to_the_first_gap_and_what_lies_behind_it_is_uncertain() -> None:
    keys = [KEY._replace(unique_key=f"U{n}") for n in range(6)]
    rows = [delayed(100 + n, key, offset=10 + n) for n, key in enumerate(keys)]
    copies = [copy(200 + n, keys[n]) for n in (4, 0, 1)]
    assert level_progress({2: (10, 16)}, rows, copies, {}) == (LevelProgress(3, 10, 2, 4, 1),)
    assert level_progress({2: (11, 16)}, rows, copies, {})[0].next_offset == 12
    assert level_progress({2: (10, 16), 5: (3, 3)}, rows[1:], copies, {}) == (
        LevelProgress(3, 10, 1, 4, 1, lost=1),  # a salvage has left out the first message
        LevelProgress(6, 3, 0, 0),
    )
