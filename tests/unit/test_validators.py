from __future__ import annotations

import pytest

from rmq_store.errors import WrongUse
from rmq_store.message.validators import NameProblem, check_group, check_properties, check_topic, topic_problem
from tests.conformance import names
from tests.conformance.checks import passed
from tests.unit import vectors


def test_names_and_bodies_break_the_rules_that_rocketmq_says_they_break() -> None:
    assert passed(names.check(vectors.read("names"))) >= 1440


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
    with pytest.raises(WrongUse, match="placeholder"):
        check_group("DEFAULT_CONSUMER")


def test_a_line_end_does_not_slip_through() -> None:
    assert topic_problem("T\n") is NameProblem.CHARACTERS
