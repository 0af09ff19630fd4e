from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_store.errors import WrongUse
from rmq_store.validators import (
    NameProblem,
    check_body,
    check_group,
    check_properties,
    check_stored_topic,
    check_topic,
    group_problem,
    is_system_topic,
    may_be_sent_to,
    stored_group_problem,
    stored_topic_problem,
    topic_problem,
)
from tests.unit import vectors

NAMES = [row for row in vectors.read("names") if "name" in row]

PROBLEMS = {"blank": NameProblem.BLANK, "illegal characters": NameProblem.CHARACTERS, "longer": NameProblem.LENGTH}


def problem_in(text: str) -> NameProblem | None:
    """The rule that RocketMQ's text speaks of."""
    return next((problem for words, problem in PROBLEMS.items() if words in text), None)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (topic_problem, "clientTopic"),
        (group_problem, "clientGroup"),
        (stored_topic_problem, "brokerTopic"),
        (stored_group_problem, "brokerGroup"),
    ],
)
def test_names_break_the_rules_that_rocketmq_says_they_break(
    rule: Callable[[str | None], NameProblem | None], key: str
) -> None:
    assert len(NAMES) == 144
    for row in NAMES:
        assert (rule(row["name"]) is None) == (row[key] == "ok"), row["name"]
        assert rule(row["name"]) is problem_in(row[key]), row["name"]


def test_system_topics_are_known_and_some_may_be_sent_to() -> None:
    for row in NAMES:
        if row["name"] is not None:
            assert is_system_topic(row["name"]) is row["systemTopic"]
            assert may_be_sent_to(row["name"]) is not row["notAllowedSend"]


def test_bodies_are_held_to_the_clients_limits() -> None:
    rows = [row for row in vectors.read("names") if row.get("kind") == "checkMessage"]
    assert len(rows) == 6
    for row in rows:
        body = None if row["bodySize"] is None else bytes(row["bodySize"])
        if row["answer"] == "ok":
            check_body(body)
        else:
            with pytest.raises(WrongUse, match="body"):
                check_body(body)


def test_properties_may_fill_32767_bytes() -> None:
    check_properties({"k": "v" * 32_764})
    with pytest.raises(WrongUse, match="32768 bytes are above the limit of 32767"):
        check_properties({"k": "v" * 32_765})


def test_a_refusal_says_which_name_and_why() -> None:
    with pytest.raises(WrongUse, match="group 'a b' has characters other than"):
        check_group("a b")
    with pytest.raises(WrongUse, match=r"group gg.*… is too long: 121 characters, the limit is 120"):
        check_group("g" * 121)
    with pytest.raises(WrongUse, match="topic None is blank"):
        check_topic(None)
    with pytest.raises(WrongUse, match="the limit is 255"):
        check_stored_topic("%RETRY%" + "g" * 249)
    with pytest.raises(WrongUse, match="placeholder"):
        check_group("DEFAULT_CONSUMER")


def test_a_line_end_does_not_slip_through() -> None:
    assert topic_problem("T\n") is NameProblem.CHARACTERS
