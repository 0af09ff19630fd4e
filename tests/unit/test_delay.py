from __future__ import annotations

import pytest

from rmq_store.consumer.delay import CustomizedRetryPolicy, DelayLevels
from rmq_store.errors import WrongUse
from tests.conformance import delays
from tests.conformance.checks import passed
from tests.unit import vectors


def test_levels_are_rocketmqs() -> None:
    assert passed(delays.check(vectors.read("delays"))) == 586


def test_policies_give_the_delay_that_rocketmq_gives_except_where_it_overflows() -> None:
    assert passed(delays.check_policies(vectors.read("retry-policies"))) == 1200


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


def test_a_policy_without_delays_is_refused() -> None:
    with pytest.raises(WrongUse, match="at least one delay"):
        CustomizedRetryPolicy(())
