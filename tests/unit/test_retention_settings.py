"""The tables ``[[retention]]`` of the settings."""

from __future__ import annotations

import tomllib

import pytest

from rmq_store.errors import WrongUse
from rmq_store.settings.retention_settings import RetentionRule, retention_tables
from rmq_store.settings.settings import load_settings

DAY_MS = 86_400_000
GROUP = """
[[group]]
name = "orders"
listener = "shop.listeners:Orders"
[[group.subscription]]
topic = "OrderEvents"
"""
TABLES = """
[[retention]]
topic = "OrderEvents"
max_age = "30d"
max_bytes = 500_000
max_unconsumed_age = "90d"
archive = true
[[retention]]
topic = "%DLQ%*"
max_age = "1d"
"""


def test_the_tables_are_rules_of_the_settings() -> None:
    assert load_settings(GROUP, "file").retention == ()
    assert load_settings(GROUP + TABLES, "file").retention == (
        RetentionRule(
            topic="OrderEvents",
            max_age_ms=30 * DAY_MS,
            max_bytes=500_000,
            max_unconsumed_age_ms=90 * DAY_MS,
            archive=True,
        ),
        RetentionRule(topic="%DLQ%*", max_age_ms=DAY_MS),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("retention = 3", "retention must be a table [[retention]]"),
        ("[retention]\nmax_age = '1d'", "retention must be a table [[retention]]"),
        ("[[retention]]\nmax_age = '1d'", "number 1: topic is missing"),
        ("[[retention]]\ntopic = 'a b'\nmax_age = '1d'", "a b: topic 'a b' has characters other than"),
        ("[[retention]]\ntopic = 'O'", "O: it needs max_age, max_bytes or both"),
        ("[[retention]]\ntopic = 'O'\nmax_unconsumed_age = '1d'", "O: it needs max_age, max_bytes or both"),
        ("[[retention]]\ntopic = 'O'\nmax_age = 30", 'max_age must be a duration like "30d", it is 30'),
        ("[[retention]]\ntopic = 'O'\nmax_age = '0d'", "max_age must be a duration like \"30d\", it is '0d'"),
        ("[[retention]]\ntopic = 'O'\nmax_age = 'month'", "max_age: invalid duration 'month'"),
        ("[[retention]]\ntopic = 'O'\nmax_bytes = '1GB'", "max_bytes must be a whole number of bytes above 0, it is '1GB'"),
        ("[[retention]]\ntopic = 'O'\nmax_bytes = 0", "max_bytes must be a whole number of bytes above 0, it is 0"),
        ("[[retention]]\ntopic = 'O'\nmax_age = '1d'\narchive = 1", "O: archive must be true or false, it is 1"),
        ("[[retention]]\ntopic = 'O'\nmax_ages = '1d'", "O: unknown key 'max_ages', did you mean 'max_age'?"),
        (
            "[[retention]]\ntopic = 'O'\nmax_age = '2d'\nmax_unconsumed_age = '1d'",
            "O: max_unconsumed_age must not be less than max_age",
        ),
        (
            "[[retention]]\ntopic = 'SCHEDULE_TOPIC_XXXX'\nmax_age = '1d'\nmax_unconsumed_age = '2d'",
            "max_unconsumed_age does not apply: a message that waits for its delivery is never removed",
        ),
        ("[[retention]]\ntopic = 'O'\nmax_age = '2d'\n" * 2, "[[retention]] O: 2 tables are for this topic"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_the_whole_file(text: str, problem: str) -> None:
    _, problems = retention_tables(tomllib.loads(text)["retention"])
    assert [one for one in problems if problem in one], problems
    with pytest.raises(WrongUse) as error:
        load_settings(text + GROUP, "consumers.toml")
    assert problem in str(error.value)
