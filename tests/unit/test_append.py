"""One entry on its way into the log: a row per rule of ``docs/decisions/0011-own-log.md``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_store.commit.append import VIEW_TRUST_MS, Append, NameState, PutAnswer, Request, Verdict, is_young

SEEN = 10_000_000
YOUNG, OLD = SEEN + VIEW_TRUST_MS - 1, SEEN + VIEW_TRUST_MS
PUT = Append(5, SEEN)
READ = replace(PUT, request=Request.READ)
UNANSWERED, TAKEN = replace(READ, unanswered=True), replace(READ, taken=True)


@pytest.mark.parametrize(("now_ms", "expected"), [(SEEN, True), (YOUNG, True), (OLD, False), (SEEN - OLD, False)])
def test_a_view_is_trusted_for_an_hour_by_a_clock_that_was_not_set_back(now_ms: int, expected: bool) -> None:
    assert is_young(SEEN, now_ms) is expected


@pytest.mark.parametrize(
    ("answer", "now_ms", "expected"),
    [
        (PutAnswer.CREATED, YOUNG, Verdict.COMMITTED),
        (PutAnswer.CREATED, OLD, replace(PUT, request=Request.REOPEN, unanswered=True)),
        (PutAnswer.TAKEN, YOUNG, TAKEN),
        (PutAnswer.SILENT, YOUNG, UNANSWERED),
        (PutAnswer.REFUSED, YOUNG, PUT),
    ],
)
def test_what_follows_from_the_answer_to_a_put(answer: PutAnswer, now_ms: int, expected: Append | Verdict) -> None:
    assert PUT.put_answered(answer, now_ms) == expected


@pytest.mark.parametrize(
    ("step", "state", "expected"),
    [
        (UNANSWERED, NameState.MINE, Verdict.COMMITTED),
        (TAKEN, NameState.MINE, Verdict.COMMITTED),
        (UNANSWERED, NameState.CONFLICTING, Verdict.OVERTAKEN),
        (UNANSWERED, NameState.UNRELATED, Append(6, SEEN)),
        (UNANSWERED, NameState.ABSENT, replace(UNANSWERED, request=Request.PUT)),
        (TAKEN, NameState.ABSENT, replace(TAKEN, request=Request.REOPEN)),
    ],
)
def test_what_follows_from_what_the_name_holds(step: Append, state: NameState, expected: Append | Verdict) -> None:
    assert step.read_answered(state, YOUNG) == expected


@pytest.mark.parametrize("state", NameState)
def test_in_an_old_view_no_name_says_anything(state: NameState) -> None:
    assert UNANSWERED.read_answered(state, OLD) == replace(UNANSWERED, request=Request.REOPEN)


def test_a_name_that_a_clean_up_has_freed_is_no_success_whatever_the_clocks_say() -> None:
    again = replace(UNANSWERED, request=Request.REOPEN)
    assert PUT.put_answered(PutAnswer.CREATED, YOUNG, freed=True) == again
    assert UNANSWERED.read_answered(NameState.MINE, YOUNG, freed=True) == again


@pytest.mark.parametrize(
    ("version", "committed", "expected"),
    [
        (4, True, Verdict.COMMITTED),
        (9, True, Verdict.COMMITTED),
        (5, False, Verdict.OVERTAKEN),
        (9, False, Verdict.OVERTAKEN),
        (4, False, Append(5, OLD, unanswered=True)),
        (3, False, Verdict.REWOUND),
    ],
)
def test_what_follows_from_the_log_that_was_opened_again(
    version: int, committed: bool, expected: Append | Verdict
) -> None:
    step = replace(UNANSWERED, request=Request.REOPEN, taken=True)
    assert step.reopened(version, OLD, committed=committed) == expected


def test_a_failure_is_reported_only_when_no_put_can_be_in_the_log() -> None:
    assert PUT.settled
    assert not UNANSWERED.settled
    assert not TAKEN.settled
    moved_on = UNANSWERED.read_answered(NameState.UNRELATED, YOUNG)
    assert isinstance(moved_on, Append)
    assert moved_on.settled, "every PUT under the earlier name is dead"
