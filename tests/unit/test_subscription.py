from __future__ import annotations

import pickle

import pytest

from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import ExpressionType, SubscriptionData, build_subscription_data
from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import tags_code
from tests.conformance import tags
from tests.conformance.checks import passed
from tests.unit import vectors


def test_tag_codes_and_expressions_are_rocketmqs() -> None:
    assert passed(tags.check(vectors.read("tags"))) == 729


def tagged(tag: str) -> dict[str, str]:
    return {MessageConst.TAGS: tag}


def test_tags_with_one_hash_are_told_apart_by_their_text() -> None:
    data = build_subscription_data("T", "Aa || TagA")
    assert tags_code("Aa") == tags_code("BB")
    assert data.matches_code(tags_code("BB"))
    assert not data.matches(tags_code("BB"), tagged("BB"))
    assert data.matches(tags_code("Aa"), tagged("Aa"))
    assert data.matches(tags_code("TagA"), tagged("TagA"))


def test_only_the_low_32_bits_of_a_stored_code_count() -> None:
    data = build_subscription_data("T", "kQDJ | II-hR")
    code = next(iter(data.codes))
    assert data.matches_code(code & 0xFFFFFFFF)
    assert data.matches_code(code + (1 << 32))


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_a_star_takes_messages_with_and_without_tags(expression: str | None) -> None:
    data = build_subscription_data("T", expression, version=7)
    assert data.takes_all
    assert data.matches(0, {})
    assert data.matches(tags_code("TagA"), tagged("TagA"))
    assert data.sub_version == 7


@pytest.mark.parametrize("expression", [" ", "|| ||", "\t"])
def test_blanks_match_nothing(expression: str) -> None:
    data = build_subscription_data("T", expression)
    assert data.takes_none
    assert not data.matches(0, {})
    assert not data.matches(tags_code("TagA"), tagged("TagA"))


def test_a_message_without_a_tag_is_not_for_a_subscription_by_tags() -> None:
    assert not build_subscription_data("T", "TagA").matches(0, {})


# --- SQL92 -----------------------------------------------------------------------------------------------------------


def test_sql92_is_the_brokers_half_and_the_client_lets_all_pass() -> None:
    data = build_subscription_data("T", "price > 100", "SQL92", version=7)
    assert (data.expression, data.tags, data.codes, data.sub_version) == ("price > 100", frozenset(), frozenset(), 7)
    assert not data.takes_all
    assert not data.takes_none
    assert data.matches_code(tags_code("TagA"))
    assert data.matches_tag(None)
    assert data.matches_properties({"price": "101"})
    assert [data.matches(0, properties) for properties in ({"price": "101"}, {"price": "100"}, {})] == [
        True,
        False,
        False,
    ]


def test_a_message_on_which_the_evaluation_fails_is_filtered() -> None:
    assert not build_subscription_data("T", "price > 100", "SQL92").matches(0, {"price": "n/a"})
    assert not build_subscription_data("T", "NOT (price > 100)", "SQL92").matches(0, {"price": "n/a"})


def test_a_sql92_expression_that_is_always_true_is_no_star() -> None:
    data = build_subscription_data("T", "TRUE", "SQL92")
    assert not data.takes_all
    assert data.matches(0, {})


def test_subscriptions_are_equal_by_what_they_say_and_travel_to_other_processes() -> None:
    data = build_subscription_data("T", "price > 100", "SQL92")
    assert data == build_subscription_data("T", "price > 100", "SQL92")
    assert data != build_subscription_data("T", "price > 100")
    copy = pickle.loads(pickle.dumps(data))
    assert copy == data
    assert copy.matches(0, {"price": "101"})


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (None, "needs an expression"),
        ("", "needs an expression"),
        ("*", "is wrong at character 1: unexpected character '*'"),
        ("a = 3 foo bar", "is complete before character 7, and RocketMQ silently ignores 'foo bar'"),
        ("a = 3 -- three", "RocketMQ silently ignores '-- three'"),
    ],
)
def test_a_sql92_subscription_without_a_whole_expression_is_refused(expression: str | None, reason: str) -> None:
    with pytest.raises(WrongUse, match="topic T: ") as caught:
        build_subscription_data("T", expression, "SQL92")
    assert reason in str(caught.value)


def test_a_tree_belongs_to_sql92_and_to_nothing_else() -> None:
    with pytest.raises(ValueError, match="has a tree"):
        SubscriptionData("T", "price > 100", ExpressionType.SQL92)
