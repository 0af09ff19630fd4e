from __future__ import annotations

import pytest

from rmq_store.errors import WrongUse
from rmq_store.message import tags_code
from rmq_store.subscription import ExpressionType, build_subscription_data
from tests.unit import vectors


def test_tag_expressions_are_parsed_as_filter_api_does() -> None:
    rows = [row for row in vectors.read("tags") if row["kind"] == "subscription"]
    assert len(rows) == 275
    for row in rows:
        if "error" in row:
            with pytest.raises(WrongUse, match="names no tag"):
                build_subscription_data("T", row["expression"])
            continue
        data = build_subscription_data("T", row["expression"])
        found = (data.expression, sorted(data.tags), sorted(data.codes), data.expression_type)
        assert found == (row["subString"], sorted(row["tags"]), sorted(row["codes"]), row["type"]), row


def test_a_given_type_is_respected_and_all_but_tags_is_refused() -> None:
    rows = [row for row in vectors.read("tags") if row["kind"] == "typed"]
    assert len(rows) == 140
    for row in rows:
        if row["type"] == "SQL92":
            with pytest.raises(WrongUse, match="SQL92 is not yet supported"):
                build_subscription_data("T", row["expression"], row["type"])
        elif row["type"] == "OTHER":  # FilterAPI takes any name and then matches nothing by it
            with pytest.raises(WrongUse, match="unknown expression type 'OTHER'"):
                build_subscription_data("T", row["expression"], row["type"])
        else:
            data = build_subscription_data("T", row["expression"], row["type"])
            assert (data.expression, sorted(data.tags)) == (row["subString"], sorted(row["tags"])), row
            assert data.expression_type is ExpressionType.TAG


def test_tags_with_one_hash_are_told_apart_by_their_text() -> None:
    data = build_subscription_data("T", "Aa || TagA")
    assert tags_code("Aa") == tags_code("BB")
    assert data.matches_code(tags_code("BB"))
    assert not data.matches(tags_code("BB"), "BB")
    assert data.matches(tags_code("Aa"), "Aa")
    assert data.matches(tags_code("TagA"), "TagA")


def test_only_the_low_32_bits_of_a_stored_code_count() -> None:
    data = build_subscription_data("T", "kQDJ | II-hR")
    code = next(iter(data.codes))
    assert data.matches_code(code & 0xFFFFFFFF)
    assert data.matches_code(code + (1 << 32))


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_a_star_takes_messages_with_and_without_tags(expression: str | None) -> None:
    data = build_subscription_data("T", expression, version=7)
    assert data.takes_all
    assert data.matches(0, None)
    assert data.matches(tags_code("TagA"), "TagA")
    assert data.sub_version == 7


@pytest.mark.parametrize("expression", [" ", "|| ||", "\t"])
def test_blanks_match_nothing(expression: str) -> None:
    data = build_subscription_data("T", expression)
    assert data.takes_none
    assert not data.matches(0, None)
    assert not data.matches(tags_code("TagA"), "TagA")


def test_a_message_without_a_tag_is_not_for_a_subscription_by_tags() -> None:
    assert not build_subscription_data("T", "TagA").matches(0, None)


def test_a_real_pull_consumer_gets_what_the_expression_says() -> None:
    """Against the walks of a running broker: the offsets that a client was given, by tags."""
    messages: dict[tuple[str, int], list[tuple[int, int, str | None]]] = {}
    for m in vectors.expected("market-clean.messages"):
        messages.setdefault((m["topic"], m["queueId"]), []).append((m["queueOffset"], m["tagsCode"], m["tags"]))
    walks = [row for row in vectors.expected("market-clean.pull") if row["kind"] == "walk" and row["type"] == "TAG"]
    assert len(walks) == 364
    for walk in walks:
        data = build_subscription_data(walk["topic"], walk["expression"])
        queue = sorted(messages.get((walk["topic"], walk["queueId"]), []))
        assert [offset for offset, code, tag in queue if data.matches(code, tag)] == walk["delivered"], walk
