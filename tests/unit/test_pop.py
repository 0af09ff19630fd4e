"""What a broker's files say of groups that pop: their retry topics, and what they have popped and not acked."""

from __future__ import annotations

import json

import pytest

from rmq_store.broker_files.config_files import parse_pop_groups
from rmq_store.broker_files.pop_check_points import not_acked
from rmq_store.broker_files.pop_retry_topics import is_given_out, pop_retry_topics

TOPICS = {"T", "a_T", "%RETRY%g", "%RETRY%g_T", "%RETRY%g+T", "%RETRY%g_a_T", "%RETRY%h_T"}


def record(tag: str, **fields: object) -> tuple[str, bytes]:
    """One of group g in queue 0 of T, from offset 5 on."""
    return tag, json.dumps({"c": "g", "t": "T", "q": 0, "so": 5, "pt": 17, "bn": "a"} | fields).encode()


def test_the_mode_of_a_group_in_a_topic_says_that_it_pops() -> None:
    modes = {"T": {"g": {"mode": "POP"}, "h": {"mode": "PULL"}}, "U": {"h": {"mode": "POP"}}}
    assert parse_pop_groups(json.dumps({"messageRequestModeMap": modes})) == {("T", "g"), ("U", "h")}
    assert parse_pop_groups("") == set()


def test_the_second_form_of_a_retry_topic_says_its_group() -> None:
    assert pop_retry_topics(TOPICS, (), (), ()) == {"%RETRY%g+T": "g"}


def test_the_first_form_is_one_where_its_name_is_that_of_a_known_group_and_topic() -> None:
    owners = {"%RETRY%g+T": "g", "%RETRY%g_T": "g", "%RETRY%g_a_T": "g"}
    assert pop_retry_topics(TOPICS, {"g"}, (), ()) == owners


def test_the_retry_topic_of_a_group_that_is_known_by_this_name_is_its_own() -> None:
    assert pop_retry_topics({"T", "%RETRY%g_T"}, {"g", "g_T"}, (), ()) == {}
    assert pop_retry_topics({"T", "%RETRY%g_T"}, {"g", "g_T"}, [("T", "g")], ()) == {"%RETRY%g_T": "g"}
    assert pop_retry_topics({"T", "%RETRY%g_T"}, {"g", "g_T"}, (), [("%RETRY%g_T", "g")]) == {"%RETRY%g_T": "g"}
    assert pop_retry_topics({"T", "%RETRY%g_T"}, {"g", "g_T"}, (), [("%RETRY%g_T", "g_T")]) == {}


@pytest.mark.parametrize(
    ("records", "waiting"),
    [
        ([], {}),
        ([record("ck", n=3, bm=0)], {"g": 3}),
        ([record("ck", n=3, bm=0b101)], {"g": 1}),
        ([record("ck", n=3), record("ack", ao=5), record("ack", ao=5)], {"g": 2}),
        ([record("bAck", aol=[5, 6]), record("ck", n=3)], {"g": 1}),
        ([record("ck", n=1), record("ack", ao=5)], {}),
        ([record("ck", n=1), record("ack", ao=5, c="h")], {"g": 1}),
        ([record("ck", n=1), record("ck", n=2, pt=18), record("ck", n=4, c="h")], {"g": 3, "h": 4}),
        ([("ck", b"no JSON"), ("ack", b"no JSON"), record("ck", n="many")], {"?": 2}),
    ],
)
def test_what_was_popped_and_not_acked_waits(records: list[tuple[str, bytes]], waiting: dict[str, int]) -> None:
    assert not_acked(records) == waiting


@pytest.mark.parametrize(
    ("topic", "topics", "is_given"),
    [
        ("T", {"T"}, True),
        ("T", {"U"}, False),
        ("T", (), True),
        ("%RETRY%g_T", {"T", "%RETRY%g_T"}, True),
        ("%RETRY%g+T", {"T", "%RETRY%g+T"}, True),
        ("%RETRY%g_T", {"T"}, False),
        ("%RETRY%g_T", {"%RETRY%g_T"}, False),
        ("%RETRY%g+T", {"%RETRY%g+T"}, False),
        ("%RETRY%h_T", {"%RETRY%h_T"}, True),
    ],
)
def test_a_topic_that_was_deleted_and_its_retries_are_given_to_nobody(
    topic: str, topics: set[str], is_given: bool
) -> None:
    assert is_given_out(topic, "g", topics) is is_given


def test_what_was_popped_from_a_topic_that_was_deleted_does_not_wait() -> None:
    records = [record("ck", n=3), record("ck", n=2, t="U"), record("ck", n=1, t="%RETRY%g_T"), ("ck", b"no JSON")]
    assert not_acked(records, {"T"}) == {"?": 1, "g": 3}
    assert not_acked(records) == {"?": 1, "g": 6}
