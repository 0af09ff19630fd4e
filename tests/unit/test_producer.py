"""What can be sent, which queue it goes to, and how it is stored (rules 14, 1.5, 11.2)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import pop_normal_topic, pop_retry_group, pop_retry_topic_v2
from rmq_store.message.message_id import decode_unique_key
from rmq_store.message.validators import BODY_MAX_BYTES
from rmq_store.producer.json_messages import message_of, read_lines
from rmq_store.producer.producer import (
    BROKER_PROPERTIES,
    Message,
    check_messages,
    place,
    problems_of,
    select_queue,
    unique_keys,
)
from rmq_store.producer.send import digest
from tests.oracle.message_batch import BatchMessage, decode_batch, encode_batch

QUEUE = MessageQueue("Orders", "lake-local", 3)
NOON = 1_717_416_000_000
DAY_MS = 86_400_000


def message(**said: Any) -> Message:
    return Message(**({"topic": "Orders", "body": b"x"} | said))


# --- what is checked -------------------------------------------------------------------------------------------------

ACCEPTED = {
    "everything": {"tags": "a|b", "keys": ("k 1", "k2"), "properties": {"region": "север"}, "delay_level": 3},
    "the longest topic": {"topic": "T" * 127},
    "the largest body": {"body": bytes(BODY_MAX_BYTES)},
    "a level above the highest": {"delay_level": 1000},
    "a level below zero": {"delay_level": -2},
    "the longest delay": {"delay_ms": 3 * DAY_MS},
    "a moment that is over": {"deliver_at": NOON - 1},
    "a moment with a zone": {"deliver_at": datetime(2024, 6, 4, tzinfo=UTC)},
    "a level below zero with a delay": {"delay_level": -1, "deliver_at": NOON + 1},
    "a name that is free for users": {"properties": {"__SHARDINGKEY": "s"}},
}

REFUSED = {
    "topic ' ' is blank": {"topic": " "},
    "has characters other than": {"topic": "a.b"},
    "is too long: 128": {"topic": "T" * 128},
    "is forbidden": {"topic": "SCHEDULE_TOPIC_XXXX"},
    "is a system topic": {"topic": "rmq_sys_wheel_timer"},
    "is for the failed messages of its group": {"topic": "%RETRY%billing"},
    "%DLQ%billing is for": {"topic": "%DLQ%billing"},
    "at least one byte": {"body": b""},
    "4194305 bytes": {"body": bytes(BODY_MAX_BYTES + 1)},
    "the tag is blank": {"tags": " "},
    "no subscription can select it": {"tags": "a || b"},
    "a key is blank": {"keys": ("k", "")},
    "the keys are one text, 'o-1'": {"keys": "o-1"},
    "body must be bytes, it is of the type str": {"body": "x"},
    "Property<TAGS> is used by system": {"properties": {"TAGS": "x"}},
    "can not be null or blank": {"properties": {"region": " "}},
    "the property region 'a\\x02b' contains": {"properties": {"region": "a\x02b"}},
    "the name of the property 'a\\x01' contains": {"properties": {"a\x01": "b"}},
    "an unpaired surrogate": {"properties": {"region": "\ud800"}},
    "a message has one delay, this one has delay_level and delay_ms": {"delay_level": 3, "delay_ms": 5000},
    "delay_ms and deliver_at": {"delay_ms": 5000, "deliver_at": NOON + 5000},
    "Property<TIMER_DELAY_MS> is used by system": {"properties": {"TIMER_DELAY_MS": "5000"}},
    "a delay of 259201 s is too long, the maximum is 3 days": {"delay_ms": 3 * DAY_MS + 1000},
    "a delay of 345600 s is too long, the maximum is 3 days": {"deliver_at": NOON + 4 * DAY_MS},
    "does not fit into 64-bit milliseconds": {"deliver_at": 10**5000},
    "the time 1717416000 looks like seconds": {"deliver_at": NOON // 1000},
    "has no zone": {"deliver_at": datetime.fromisoformat("2024-06-04")},
    "a queue or a sharding key": {"queue_id": 0, "sharding_key": "s"},
    "queue -1 does not exist": {"queue_id": -1},
    "the sharding key is empty": {"sharding_key": ""},
}


@pytest.mark.parametrize("said", ACCEPTED.values(), ids=ACCEPTED)
def test_what_client_and_broker_take_is_taken(said: dict[str, Any]) -> None:
    assert problems_of(message(**said), NOON) == []


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=REFUSED)
def test_what_they_refuse_is_refused_for_that_reason(text: str, said: dict[str, Any]) -> None:
    (problem,) = problems_of(message(**said), NOON)
    assert text in problem


def test_properties_are_measured_with_what_client_and_broker_add() -> None:
    """32,500 characters pass a broker, 32,700 do not (rules 1.5)."""
    room = 32_767 - len("k") - 2
    pairs = ("WAIT", "true"), ("UNIQ_KEY", "U" * 32), *BROKER_PROPERTIES.items()
    added = sum(len(name) + len(value) + 2 for name, value in pairs)
    assert problems_of(message(properties={"k": "v" * (room - added)}), NOON) == []
    assert "32768 bytes" in problems_of(message(properties={"k": "v" * (room - added + 1)}), NOON)[0]
    assert problems_of(message(properties={"k": "v" * (room - added)}, delay_level=1), NOON) != []


def test_all_problems_of_all_messages_are_told() -> None:
    with pytest.raises(WrongUse, match=r"message 1: .*; message 3: the tag is blank.*; message 3: a key is blank"):
        check_messages([message(body=b""), message(), message(tags=" ", keys=("",))], NOON)
    with pytest.raises(WrongUse, match="no message"):
        check_messages([], NOON)


# --- where it goes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "turn", "queue"),
    [
        ({}, 0, 0),
        ({}, 7, 3),
        ({"queue_id": 2}, 7, 2),
        ({"sharding_key": "a"}, 0, 97 % 4),
        ({"sharding_key": "polygenelubricants"}, 0, 2**31 % 4),  # its hash is the least int
        ({"sharding_key": "shop-7"}, 0, 903152864 % 4),  # its hash is negative
    ],
)
def test_a_queue_is_named_or_hashed_or_the_next(said: dict[str, Any], turn: int, queue: int) -> None:
    assert select_queue(message(**said), 4, turn) == queue


def test_a_message_that_waits_says_where_it_belongs() -> None:
    placed = place(message(delay_level=3, tags="t"), QUEUE, "U", NOON, levels=DelayLevels(), lane="lake-local~")
    assert placed.queue == MessageQueue("SCHEDULE_TOPIC_XXXX", "lake-local~", 2)
    assert placed.delay_ms == 10_000
    assert placed.properties == {
        "TAGS": "t",
        "DELAY": "3",
        "WAIT": "true",
        "UNIQ_KEY": "U",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
    }


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({"delay_ms": 7000}, {"TIMER_DELAY_MS": "7000"}),
        ({"deliver_at": datetime(2024, 6, 3, 12, 0, 7, tzinfo=UTC)}, {"TIMER_DELIVER_MS": str(NOON + 7000)}),
        ({"deliver_at": NOON + 7000}, {"TIMER_DELIVER_MS": str(NOON + 7000)}),
        ({"properties": {"TIMER_DELAY_SEC": "7"}}, {"TIMER_DELAY_SEC": "7"}),
    ],
)
def test_a_message_with_a_moment_of_its_own_waits_in_the_timer(said: dict[str, Any], stored: dict[str, str]) -> None:
    placed = place(message(**said), QUEUE, "U", NOON, levels=DelayLevels(), lane="lake-local~")
    assert placed.queue == MessageQueue("rmq_sys_wheel_timer", "lake-local~", (NOON + 7000) // 1000 % 512)
    assert (placed.waits, placed.delay_ms, placed.deliver_at) == (True, None, NOON + 7000)
    assert placed.properties == {
        **stored,
        "WAIT": "true",
        "UNIQ_KEY": "U",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "TIMER_OUT_MS": str(NOON + 6000),
    }


@pytest.mark.parametrize("said", [{"deliver_at": NOON}, {"delay_ms": 0}, {"delay_ms": -5}])
def test_a_moment_that_is_over_is_no_delay(said: dict[str, Any]) -> None:
    placed = place(message(**said), QUEUE, "U", NOON, levels=DelayLevels(), lane="lane")
    assert (placed.queue, placed.waits) == (QUEUE, False)


def test_a_message_that_does_not_wait_lies_in_its_queue() -> None:
    placed = place(message(delay_level=0), QUEUE, "U", NOON, levels=DelayLevels(), lane="lane")
    assert (placed.queue, placed.delay_ms, placed.properties) == (QUEUE, None, {"WAIT": "true", "UNIQ_KEY": "U"})


def test_the_digest_of_messages_without_a_timer_stays_as_it_was_so_that_requests_are_known_again() -> None:
    said = message(tags="new", keys=("k",), properties={"region": "eu"}, delay_level=3, sharding_key="s")
    assert digest([said]) == "96c876ed6215f35abed4aae271d90ede3bf2e4e05c4fb9800a4563cfbca5ee86"
    assert len({digest([message(**how)]) for how in ({}, {"delay_ms": 5}, {"deliver_at": 5}, {"delay_ms": 6})}) == 4
    same: list[dict[str, Any]] = [{"deliver_at": NOON}, {"deliver_at": datetime(2024, 6, 3, 12, tzinfo=UTC)}]
    assert len({digest([message(**how)]) for how in same}) == 1


# --- ids -------------------------------------------------------------------------------------------------------------


def test_unique_keys_are_different_and_count_on_when_the_counter_is_used_up() -> None:
    now_ms = 1_717_416_000_000  # 2024-06-03 12:00 UTC
    keys = list(islice(unique_keys(bytes(range(10)), now_ms), 0x10001))
    assert len(set(keys)) == len(keys)
    first, last = decode_unique_key(keys[0]), decode_unique_key(keys[-1])
    assert (first.ip, first.ms_in_month, first.counter) == ("0.1.2.3", 216_000_000, 0)
    assert (last.ms_in_month, last.counter) == (216_000_001, 0)


def test_a_unique_key_at_the_end_of_a_month_wraps_as_in_java() -> None:
    key = next(unique_keys(bytes(10), 1_717_199_999_999))  # 2024-05-31 23:59:59.999 UTC
    assert decode_unique_key(key).ms_in_month == 31 * 86_400_000 - 1 - 2**32


# --- lines of a file -------------------------------------------------------------------------------------------------


def test_a_line_says_what_a_message_has() -> None:
    line = (
        b'{"topic": "Orders", "body": "\\u00e9", "tags": "t", "keys": ["a", "b"], "properties": {"p": "1"}, '
        b'"delay_level": 2, "queue": 1}'
    )
    found = read_lines(
        b"\n" + line + b'\n\n{"body_base64": "AP8=", "keys": "a b", "sharding_key": "s"}\n', NOON, "Others"
    )
    assert found.problems == []
    assert found.messages == [
        Message("Orders", "é".encode(), "t", ("a", "b"), {"p": "1"}, 2, queue_id=1),
        Message("Others", b"\x00\xff", keys=("a", "b"), sharding_key="s"),
    ]


def test_the_keys_of_a_line_are_told_apart_by_spaces_and_by_nothing_else() -> None:
    found = read_lines(b'{"body": "x", "keys": " a  b\\tc\\u00a0d "}', NOON, "Orders")
    assert found == ([Message("Orders", b"x", keys=("a", "b\tc\u00a0d"))], [])


def test_a_line_says_how_long_a_message_waits_or_until_when() -> None:
    found = read_lines(b'{"body": "x", "delay_ms": 1500}\n{"body": "y", "deliver_at": 1717416009000}', NOON, "Orders")
    assert found == (
        [Message("Orders", b"x", delay_ms=1500), Message("Orders", b"y", deliver_at=NOON + 9000)],
        [],
    )


def test_a_line_whose_time_is_in_seconds_is_a_problem_and_not_sent_at_once() -> None:
    ((number, problem),) = read_lines(b'{"body": "y", "deliver_at": 1795800000}', NOON, "Orders").problems
    assert (number, "the time 1795800000 looks like seconds" in problem) == (1, True)


def test_problems_are_told_with_their_lines() -> None:
    found = read_lines(
        b'{"body": "x"}\n{"topic": "T", "body": "x", "tags": ""}\n\nnonsense\n\xff\n' + b"[" * 9999 + b"\n[1]", NOON
    )
    numbers, problems = zip(*found.problems, strict=True)
    assert numbers == (1, 2, 4, 5, 6, 7)
    assert [problem.partition(":")[0] for problem in problems] == [
        "the topic is missing",
        "the tag is blank",
        "not a line of JSON",
        "not a line of JSON",
        "not a line of JSON",
        "not a JSON object",
    ]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"boddy": "x"}, "unknown field 'boddy'"),
        ({}, "a message needs one body"),
        ({"body": "x", "body_base64": "eA=="}, "a message needs one body"),
        ({"body": {"a": 1}}, "body must be text"),
        ({"body_base64": "%"}, "not base64"),
        ({"body": "x", "properties": {"price": 7}}, "the property price must be text, it is 7"),
        ({"body": "x", "properties": []}, "properties must be an object"),
        ({"body": "x", "keys": [1]}, "keys must be text"),
        ({"body": "x", "keys": 1}, "keys must be a list"),
        ({"body": "x", "delay_level": "three"}, "delay_level must be a whole number"),
        ({"body": "x", "delay_ms": "90s"}, "delay_ms must be a whole number"),
        ({"body": "x", "queue": True}, "queue must be a whole number"),
        ({"body": "\ud800"}, "an unpaired surrogate"),
    ],
)
def test_a_field_of_another_kind_is_refused(said: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongUse, match=text):
        message_of(said, "Orders")


# --- forms of the wire -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 19, 22, 24])
def test_a_batch_that_ends_within_a_message_is_refused(cut: int) -> None:
    data = encode_batch([BatchMessage(7, b"abc", "k\x01v\x02"), BatchMessage(0, b"", "")])
    assert decode_batch(data) == [BatchMessage(7, b"abc", "k\x01v\x02"), BatchMessage(0, b"", "")]
    with pytest.raises(BadData, match="byte 0"):
        decode_batch(data[:cut])


@pytest.mark.parametrize("position", [3, 19, 24])
def test_a_batch_whose_sizes_contradict_is_refused(position: int) -> None:
    data = bytearray(encode_batch([BatchMessage(7, b"abc", "k\x01v\x02")]))
    data[position] ^= 0x81
    with pytest.raises(BadData):
        decode_batch(data)


def test_a_batch_with_properties_too_long_cannot_be_made() -> None:
    with pytest.raises(WrongUse, match="32768 bytes"):
        encode_batch([BatchMessage(0, b"x", "p" * 32_768)])


def test_the_second_form_of_a_pop_retry_topic_is_read_back() -> None:
    name = pop_retry_topic_v2("Orders", "billing_eu")
    assert (pop_retry_group(name), pop_normal_topic(name)) == ("billing_eu", "Orders")
    odd = "%RETRY%a+b+c"
    assert (pop_retry_group(odd), pop_normal_topic(odd)) == ("a+b+c", odd)
