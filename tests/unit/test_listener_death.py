"""Which messages fail when a listener's process dies: only those that kill it, however the calls are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.consumer.consume_result import EXPIRED_DELAY_LEVEL
from rmq_store.consumer.listener_death import (
    MOST_IN_A_ROW,
    MOST_WITH_STARTER,
    Death,
    DeathKind,
    DeathsInARow,
    Ran,
    cause_of,
    refuse_deaths_only,
    run_calls,
)
from rmq_store.consumer.retry import Cause
from rmq_store.errors import ListenerError, ListenerNotStarted

KILLED = Death(DeathKind.KILLED, "its process was ended by signal 9 (SIGKILL)")


class Calls:
    """A listener whose process dies at some rows; ``at_once``: so many rows are answered in one run at most."""

    def __init__(self, poison: set[int], at_once: int = 1_000, *, place_is_known: bool = True) -> None:
        self.poison, self.at_once, self.place_is_known = poison, at_once, place_is_known
        self.calls: list[tuple[int, int]] = []
        self.answered: list[int] = []
        self.failed: list[int] = []

    def run(self, begin: int, end: int, size: int) -> Ran:
        before = len(self.answered)
        for first in range(begin, end, size):
            if first - begin >= self.at_once:
                return Ran(first)
            last = min(first + size, end)
            self.calls.append((first, last))
            if self.poison & set(range(first, last)):
                if self.place_is_known:
                    return Ran(first, KILLED)
                del self.answered[before:]
                return Ran(None, KILLED)
            self.answered += range(first, last)
        return Ran(end)

    def fail(self, row: int, death: Death) -> None:
        assert death is KILLED
        self.failed.append(row)


def test_the_batch_is_halved_until_the_message_is_known() -> None:
    calls = Calls({6})
    run_calls(8, 4, calls.run, calls.fail)
    assert calls.calls == [(0, 4), (4, 8), (4, 6), (6, 8), (6, 7), (7, 8)]
    assert (calls.failed, calls.answered) == ([6], [0, 1, 2, 3, 4, 5, 7])


@given(st.integers(0, 60), st.integers(1, 70), st.sets(st.integers(0, 59), max_size=6), st.integers(1, 20))
def test_every_message_is_answered_once_in_order_or_has_failed(
    rows: int, batch: int, poison: set[int], at_once: int
) -> None:
    calls = Calls({row for row in poison if row < rows}, at_once)
    run_calls(rows, batch, calls.run, calls.fail)
    assert sorted(calls.failed) == sorted(calls.poison)
    assert calls.answered == [row for row in range(rows) if row not in calls.poison]
    assert all(end - begin <= batch for begin, end in calls.calls)


def test_a_death_is_a_failed_attempt_with_its_reason() -> None:
    answer = KILLED.answer()
    assert (answer.acked, answer.delay_level) == (False, 0)
    assert (answer.error_type, answer.error_text) == ("ListenerKilled", KILLED.text)
    late = Death(DeathKind.TIMEOUT, "it took longer than 5 s").answer()
    assert (late.error_type, late.delay_level) == ("ListenerTimeout", EXPIRED_DELAY_LEVEL)


def test_a_listener_that_dies_at_message_after_message_ends_the_run() -> None:
    row = DeathsInARow("shop:Orders")
    for number in range(MOST_IN_A_ROW - 1):
        row.died(f"offset {number}", KILLED)
        row.died(f"offset {number}", KILLED)  # an orderly queue tries it again
    row.returned()
    for number in range(MOST_IN_A_ROW - 1):
        row.died(f"offset {number}", KILLED)
    with pytest.raises(
        ListenerError, match=r"listener shop:Orders ended its process at 10 messages in a row.* offset 99"
    ):
        row.died("offset 99", KILLED)


def test_a_call_that_ends_with_the_starter_is_made_again_a_few_times() -> None:
    row = DeathsInARow("shop:Orders")
    for _ in range(2):
        for _ in range(MOST_WITH_STARTER - 1):
            row.ended_with_starter()
        row.returned()
    for _ in range(MOST_WITH_STARTER - 1):
        row.ended_with_starter()
    with pytest.raises(ListenerNotStarted, match="3 times in a row in a call of listener shop:Orders"):
        row.ended_with_starter()
    assert row.of_task is None


def test_deaths_only_in_all_tasks_of_a_window_end_the_run() -> None:
    silent, deadly = DeathsInARow("shop:Orders"), DeathsInARow("shop:Orders")
    assert silent.of_task == 0
    deadly.died("offset 1", KILLED)
    deadly.died("offset 1", KILLED)
    assert deadly.of_task == 1
    refuse_deaths_only("shop:Orders", [1] * (MOST_IN_A_ROW - 1) + [0])
    with pytest.raises(ListenerError, match="shop:Orders ended its process at each of 10 messages, in 11 tasks"):
        refuse_deaths_only("shop:Orders", [1] * MOST_IN_A_ROW + [0])
    deadly.returned()
    deadly.died("offset 2", KILLED)
    assert deadly.of_task is None
    refuse_deaths_only("shop:Orders", [*[1] * MOST_IN_A_ROW, None])


def test_a_dead_letter_says_what_its_last_attempt_did() -> None:
    assert cause_of(Cause.MAX_RECONSUME_TIMES, "ListenerKilled") is Cause.KILLED
    assert cause_of(Cause.NO_RETRY_QUEUE, "ListenerTimeout") is Cause.TIMEOUT
    assert cause_of(Cause.MAX_RECONSUME_TIMES, "ValueError") is Cause.MAX_RECONSUME_TIMES
    assert cause_of(Cause.MAX_RECONSUME_TIMES, None) is Cause.MAX_RECONSUME_TIMES
    assert cause_of(Cause.RETRY, "ListenerKilled") is Cause.RETRY
