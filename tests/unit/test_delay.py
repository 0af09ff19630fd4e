from __future__ import annotations

from typing import Any

import pytest

from rmq_store.consumer.delay import (
    CustomizedRetryPolicy,
    DelayLevels,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    GroupRetryPolicyType,
    delay_level_to_queue_id,
    queue_id_to_delay_level,
)
from rmq_store.errors import WrongUse
from tests.unit import vectors

LONG_MAX = 2**63 - 1


def test_level_texts_are_parsed_as_rocketmq_does() -> None:
    rows = [row for row in vectors.read("delays") if row["kind"] == "levels"]
    assert len(rows) == 56
    for row in rows:
        if not row["parsed"]:
            with pytest.raises(WrongUse, match="is not a number with one of the units"):
                DelayLevels(row["text"])
            continue
        levels = DelayLevels(row["text"])
        assert levels.max_level == row["maxDelayLevel"], row
        assert [[level, levels.delay_ms(level)] for level, _ in row["delayMs"]] == row["delayMs"], row


def test_a_level_waits_in_the_queue_before_it() -> None:
    rows = [row for row in vectors.read("delays") if row["kind"] == "queueOfLevel"]
    assert len(rows) == 25
    for row in rows:
        assert delay_level_to_queue_id(row["level"]) == row["queueId"]
        assert queue_id_to_delay_level(row["queueId"]) == row["back"]


def test_retries_of_the_default_table_take_four_hours_and_three_quarters() -> None:
    levels = DelayLevels()
    assert sum(levels.delay_ms(levels.clamp(3 + n)) for n in range(16)) == 17_140_000
    assert levels.clamp(99) == 18


def test_a_message_is_due_from_its_time_on_and_never_before() -> None:
    levels = DelayLevels()
    deliver_at = levels.compute_deliver_timestamp(3, 1_000_000)
    assert deliver_at == 1_010_000
    assert [levels.is_due(deliver_at, 3, now) for now in (1_000_000, 1_009_999, 1_010_000)] == [False, False, True]


def test_a_time_further_ahead_than_the_level_allows_counts_as_due() -> None:
    assert DelayLevels().is_due(1_010_001, 3, now_ms=1_000_000)


def policy_of(row: dict[str, Any]) -> CustomizedRetryPolicy | ExponentialRetryPolicy | GroupRetryPolicy:
    if row["kind"] == "customized":
        return CustomizedRetryPolicy(tuple(row["next"]))
    if row["kind"] == "exponential":
        return ExponentialRetryPolicy(row["initial"], row["max"], row["multiplier"])
    return GroupRetryPolicy(
        GroupRetryPolicyType(row["type"]),
        ExponentialRetryPolicy(*row["exponential"]) if row["exponential"] else None,
        CustomizedRetryPolicy(tuple(row["customized"])) if row["customized"] else None,
    )


def overflows(row: dict[str, Any], reconsume_times: int) -> bool:
    """Whether RocketMQ's 64-bit product wraps around (its answer is then negative, ours the maximum)."""
    if row["kind"] == "exponential":
        initial, _, multiplier = row["initial"], row["max"], row["multiplier"]
    elif row["kind"] == "group" and row["type"] == "EXPONENTIAL" and row["exponential"]:
        initial, _, multiplier = row["exponential"]
    else:
        return False
    return bool(initial * multiplier ** min(max(reconsume_times, 0), 32) > LONG_MAX)


def test_policies_give_the_delay_that_rocketmq_gives_except_where_it_overflows() -> None:
    rows = vectors.read("retry-policies")
    assert len(rows) == 60
    same = overflown = 0
    for row in rows:
        policy = policy_of(row)
        for times, delay_ms in row["delays"]:
            if overflows(row, times):
                most = row.get("max") or row["exponential"][1]
                assert policy.next_delay_ms(times) == most
                overflown += 1
            else:
                assert policy.next_delay_ms(times) == delay_ms, (row, times)
                same += 1
    assert (same, overflown) == (1113, 87)


def test_a_policy_without_delays_is_refused() -> None:
    with pytest.raises(WrongUse, match="at least one delay"):
        CustomizedRetryPolicy(())
