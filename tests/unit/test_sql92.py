from __future__ import annotations

from typing import Any

import pytest

from rmq_store.filter.sql92 import evaluate, matches, property_names
from rmq_store.filter.sql92_parser import MOST_NESTED, InvalidSelector, parse
from rmq_store.filter.sql92_values import EvaluationError, Long, compare, double_text, read_double
from tests.conformance import sql92
from tests.unit import vectors


def test_expressions_parse_print_and_evaluate_as_in_rocketmq() -> None:
    answers = list(sql92.check(vectors.read("sql92")))
    assert len(answers) == 1100
    assert [answer for answer in answers if answer is not None] == []


def test_the_check_of_the_vectors_tells_what_differs() -> None:
    contexts: dict[str, Any] = {"kind": "contexts", "contexts": [{}]}
    right: dict[str, Any] = {"expression": "a = 3", "parse": "ok", "canonical": "(a == 3)", "values": [None]}
    wrong = [right | {"values": [True]}, right | {"canonical": "a == 3"}, right | {"parse": "error"}]
    wrong.append({"expression": "a =", "parse": "ok", "canonical": "a", "values": [None]})
    first, *others = sql92.check([contexts, right, *wrong])
    assert first is None
    assert [answer and answer.partition(":")[0] for answer in others] == ["'a = 3'"] * 3 + ["'a ='"]


# --- what is refused, where and why ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "character", "reason"),
    [
        (
            "",
            1,
            "expected a property, a number, a text in single quotes, TRUE, FALSE, NULL, NOT, +, - or (, found the end",
        ),
        ("a = 3 AND", 10, "or (, found the end"),
        ("a > OR b", 5, "or (, found OR"),
        ("a = = 3", 5, "or (, found ="),
        ("(a = 3", 7, "expected ) or an operator, found the end"),
        ("a IN (3)", 7, "expected a text in single quotes, found 3"),
        ("a IN ('x' 'y')", 11, "expected , or ), found 'y'"),
        ("a IN 'x'", 6, "expected ( and texts in single quotes, found 'x'"),
        ("3 IN ('3')", 3, "IN needs a property on its left, not 3"),
        ("a CONTAINS b", 12, "expected a text in single quotes, found b"),
        ("a NOT 'x'", 7, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH behind NOT, found 'x'"),
        ("a IS TRUE", 6, "expected NULL or NOT NULL, found TRUE"),
        ("a IS NOT 3", 10, "expected NULL, found 3"),
        ("a BETWEEN 1 OR 2", 13, "expected AND and the upper end, found OR"),
        ("a BETWEEN 10 AND 2", 3, "no value is between 10 and 2; write the smaller number first"),
        ("a BETWEEN 'x' AND 'y'", 3, "BETWEEN compares numbers and properties, 'x' is neither"),
        ("a = NULL", 3, "no value is equal to NULL; write IS NULL or IS NOT NULL"),
        ("TRUE = 3", 6, "TRUE cannot be compared with 3"),
        ("a > 'x'", 3, "> compares numbers and properties, 'x' is neither"),
        ("a > 1 > 2", 7, "> compares numbers and properties, (a > 1) is neither"),
        ("a = 3 AND 'x'", 11, "'x' is not a condition that is true or false"),
        ("-a", 1, "(- a) is not a condition that is true or false"),
        ("a = 9223372036854775808", 5, "9223372036854775808 does not fit into 64 bits"),
        ("a = 0.0", 5, "0.0 is out of range: a decimal number must be above 0 and finite"),
        ("a = 1e400", 5, "1e400 is out of range"),
        ("a = 'its", 5, "the text that begins here has no closing quote"),
        ("a /* b", 3, "the comment that begins here has no end"),
        ("a != 3", 3, "unexpected character '!'"),
        ("shop.price > 3", 5, "unexpected character '.'"),
        ("日本 = 1", 1, "unexpected character '日'"),
    ],
)
def test_a_refused_expression_says_where_and_what_would_be_right(expression: str, character: int, reason: str) -> None:
    with pytest.raises(InvalidSelector, match=f"is wrong at character {character}: ") as caught:
        parse(expression)
    assert caught.value.position == character - 1
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "rest"),
    [
        ("a = 3", ""),
        ("a = 3 ", ""),
        ("a = 3 /* three */", ""),
        ("a = 3 -- three\n", ""),
        ("a = 3 foo bar", "foo bar"),
        ("a = 3 -- three", "-- three"),
        ("a = 3 )", ")"),
        ("a like 'x' ;", "like 'x' ;"),
        ("a + 1 = 4", "+ 1 = 4"),
    ],
)
def test_what_rocketmq_ignores_behind_an_expression_is_told(expression: str, rest: str) -> None:
    assert parse(expression).rest == rest


@pytest.mark.parametrize(
    "expression",
    [
        "(" * MOST_NESTED + "a = 1" + ")" * MOST_NESTED,
        "NOT " * MOST_NESTED + "a",
        "a" + " = b" * MOST_NESTED,
        "(a" + " = b" * (MOST_NESTED // 2) + ")" + " = b" * (MOST_NESTED // 2),
    ],
)
def test_nesting_has_a_limit_that_is_said(expression: str) -> None:
    with pytest.raises(InvalidSelector, match="nested more than 50 levels deep"):
        parse(expression)


def test_of_an_expression_that_is_too_deep_the_runner_asks_that_it_is_deep() -> None:
    deep = {"expression": "(" * 50 + "a" + ")" * 50, "parse": "ok", "canonical": "a", "values": []}
    assert list(sql92.check([{"contexts": []}, deep])) == [None]
    assert list(sql92.check([{"contexts": []}, deep | {"expression": "a AND"}])) != [None]


def test_a_thousand_ors_are_one_level() -> None:
    tree = parse(" OR ".join(f"a = '{n}'" for n in range(1000))).tree
    assert evaluate(tree, {"a": "999"}) is True
    assert evaluate(tree, {"a": "1000"}) is False
    assert evaluate(tree, {}) is None
    assert str(tree).startswith("(" * 1000 + "a == '0') || (a == '1'))")


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "java_type"), [("a > 3", "RuntimeException"), ("TRUE = a", "ClassCastException")]
)
def test_a_failed_evaluation_names_the_exception_and_is_no_match(expression: str, java_type: str) -> None:
    tree = parse(expression).tree
    with pytest.raises(EvaluationError) as caught:
        evaluate(tree, {"a": "n/a"})
    assert caught.value.java_type == java_type
    assert not matches(tree, {"a": "n/a"})


def test_only_what_is_true_matches() -> None:
    tree = parse("a = 3").tree
    assert [matches(tree, {"a": "3"}), matches(tree, {"a": "4"}), matches(tree, {})] == [True, False, False]


def test_what_is_decided_does_not_ask_what_would_fail() -> None:
    properties = {"a": "3", "b": "n/a"}
    assert evaluate(parse("a = 3 OR b > 1").tree, properties) is True
    assert evaluate(parse("a = 4 AND b > 1").tree, properties) is False
    assert evaluate(parse("z > b").tree, properties) is None


def test_an_absent_property_and_none_are_one() -> None:
    tree = parse("a IS NULL").tree
    assert evaluate(tree, {}) is evaluate(tree, {"a": None}) is True


def test_the_properties_of_an_expression_are_named_once() -> None:
    tree = parse("b > 1 AND (NOT a OR b IN ('x') OR -c = 1) AND d CONTAINS 'e'").tree
    assert property_names(tree) == ("a", "b", "c", "d")
    assert property_names(parse("TRUE").tree) == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3.0), (" 3d\t", 3.0), ("+.5F", 0.5), ("1.e2", 100.0), ("-Infinity", float("-inf")), ("1e400", float("inf")),
     ("0x1.8p1", 3.0), ("-0x.8P-1f", -0.25), ("0x1p99999", float("inf")), ("-0x1p99999", float("-inf"))],
)  # fmt: skip
def test_java_reads_these_texts_as_double(text: str, value: float) -> None:
    assert read_double(text) == value


@pytest.mark.parametrize("text", ["", "inf", "nan", "1_000", "0x10", "3L", "1e", "\u00a03", "٣", "--3", "3 4"])
def test_java_reads_no_double_in_these_texts(text: str) -> None:
    with pytest.raises(EvaluationError, match="is not a valid Double"):
        read_double(text)


@pytest.mark.parametrize(
    ("text", "kind", "order"),
    [("3", 3, 0), ("+3", 3, 0), ("-0", 0, 0), ("٣", 3, 0), ("2147483648", Long(3), 1), ("-4", Long(3), -1)],
)
def test_text_is_read_as_the_number_on_the_other_side(text: str, kind: int, order: int) -> None:
    assert compare(text, kind) == order
    assert compare(kind, text) == -order


@pytest.mark.parametrize(
    ("text", "kind"),
    [("2147483648", 3), ("9223372036854775808", Long(3)), (" 3", 3), ("3.0", 3), ("3L", Long(3)), ("1_0", 3), ("𝟛", 3),
     ("", 3), ("+", 3), ("9" * 5000, 3)],
)  # fmt: skip
def test_text_that_is_no_such_number_is_an_error(text: str, kind: int) -> None:
    with pytest.raises(EvaluationError, match="RuntimeException"):
        compare(text, kind)


def test_doubles_have_javas_order() -> None:
    assert compare(-0.0, 0.0) == -1
    assert compare(float("nan"), float("nan")) == 0
    assert compare(float("nan"), float("inf")) == 1
    assert compare(Long(9007199254740993), 9007199254740992.0) == 0  # a Long becomes a Double here


def test_a_boolean_is_less_than_a_number_on_either_side() -> None:
    assert compare(True, 1) == compare(1, True) == compare(False, 0.5) == -1


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3.0"), (0.001, "0.001"), (0.00012, "1.2E-4"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"),
     (5e-324, "4.9E-324"), (1.7976931348623157e308, "1.7976931348623157E308")],
)  # fmt: skip
def test_decimal_numbers_are_printed_as_java_prints_them(value: float, text: str) -> None:
    assert double_text(value) == text
