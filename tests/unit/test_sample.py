"""``tests/sample.py``: what runs of the cases of a test."""

from __future__ import annotations

from tests.sample import sampled

TESTS = [(f"test_{count}", f"test_{count}[{case}]") for count in (1, 3, 4, 10, 100) for case in range(count)]


def count_of(test: str, seed: str) -> int:
    return sum(case.startswith(f"{test}[") for case in sampled(TESTS, seed))


def test_a_quarter_of_the_cases_runs_of_each_test_at_least_one() -> None:
    counts = [count_of(test, "a1") for test in ("test_1", "test_3", "test_4", "test_10", "test_100")]
    assert counts == [1, 1, 1, 3, 25]


def test_the_same_seed_has_the_same_sample_in_whatever_order_the_tests_come() -> None:
    assert sampled(TESTS, "a1") == sampled(reversed(TESTS), "a1") != sampled(TESTS, "a2")


def test_each_case_has_its_turn() -> None:
    turns = [sampled(TESTS, f"{commit:040x}") for commit in range(40)]
    assert set().union(*turns) == {case for _, case in TESTS}
