"""``behaviour/*-requests``: the names, subscriptions and messages that broker and client take (rules 7.7, 7.8, 14)."""

from __future__ import annotations

import re
from collections.abc import Callable

from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.timer import MAX_DELAY_MS, place
from rmq_store.errors import RmqError
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.java_text import parse_number, wrapped
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX, MessageConst
from rmq_store.message.perm_name import PERM_READ, is_writeable
from rmq_store.message.properties import parse_properties, properties_text
from rmq_store.message.validators import is_system_topic, may_be_sent_to, stored_topic_problem, topic_problem
from rmq_store.producer.json_messages import message_of
from rmq_store.producer.producer import BROKER_PROPERTIES, Message, check_messages, problems_of, stored_properties
from tests.conformance.asked_broker import AskedBroker
from tests.conformance.checks import Line, Outcome, Outcomes, same
from tests.conformance.filters import filter_of
from tests.conformance.names import problem_in
from tests.oracle.request_checks import ResponseCode

CODE_IN_WORDS = re.compile(r"CODE: (\d+) ")
ANY_TIME_MS = 1_717_416_000_000
CANNOT_FILTER = (
    "does not support consumer to filter message by SQL92",
    "does not upgrade to support for filter message by SQL92",
)
ANY_UNIQUE_KEY = "0" * 32
LONGEST_NAME = 32
WAIT = MessageConst.WAIT_STORE_MSG_OK


def _is_sent(line: Line, topic: str) -> bool:
    return bool(line["answer"] == {"status": "SEND_OK", "topic": topic})


def send_to_topic(line: Line, broker: AskedBroker) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = answer.get("error", "ok")
    if "No route info" in error:  # the broker keeps it for itself
        yield same(f"{name!r} is a system topic", is_system_topic(name), True)
        return
    refused_by_name = error != "ok" and "forbidden" not in error
    problem = topic_problem(name)
    yield same(f"name {name!r}", problem, problem_in(error) if refused_by_name else None)
    yield same(f"{name!r} may be sent to", may_be_sent_to(name), "forbidden" not in error)
    of_no_group = name in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX) and "code" in answer
    if of_no_group:  # no retry topic takes anything from outside here (docs/conformance.md)
        yield same(f"group of {name!r}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, answer["code"])
        return
    yield same(f"sent to {name!r}", problem is None and may_be_sent_to(name), _is_sent(line, name))


def create_topic(line: Line, broker: AskedBroker) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = "ok" if answer == "ok" else answer["error"]
    is_conflict = "conflict with system topic" in error
    yield same(f"name {name!r}", stored_topic_problem(name), None if is_conflict else problem_in(error))
    yield same(f"{name!r} is a system topic", is_system_topic(name) or name in broker.own_names, is_conflict)
    if error != "ok":
        yield _has_code(f"create topic {name!r}", ResponseCode.INVALID_PARAMETER, error)


def _repeated(text: str) -> str:
    """``x x 127`` is the letter x, 127 times."""
    letter, _, times = text.partition(" x ")
    return letter * int(times) if times.isdecimal() else text


def start_with_tags(line: Line, broker: AskedBroker) -> Outcomes:
    yield same(
        f"subscribe to {line['input']!r}", _ok(lambda: build_subscription_data("T", line["input"])), _started(line)
    )


def start_with_sql92(line: Line, broker: AskedBroker) -> Outcomes:
    """Where a broker ignores the end of a text, it starts and we refuse."""
    if cannot_filter(line):
        yield _has_code(f"start with {line['input']!r}", ResponseCode.SYSTEM_ERROR, line["answer"]["error"])
        return
    wanted = filter_of("T", line["input"], "SQL92")
    understood = _ok(lambda: build_subscription_data("T", line["input"], "SQL92"))
    yield same(f"{line['input']!r} is parsed", wanted is not None, _started(line))
    if wanted is None and "CODE" in str(line["answer"]):  # the broker's words, not the client's
        said = f"start with {line['input']!r}"
        yield _has_code(said, ResponseCode.SUBSCRIPTION_PARSE_FAILED, line["answer"]["error"])
    yield same(
        f"subscribe to {line['input']!r}", understood, _started(line) and wanted is not None and wanted.data is not None
    )


def cannot_filter(line: Line) -> bool:
    """Whether the broker takes no SQL92 at all (without ``enablePropertyFilter``), or the client does not know yet whether
    it does; a window here always does."""
    return any(words in str(line["answer"]) for words in CANNOT_FILTER)


def _has_code(said: str, code: ResponseCode, error: str) -> Outcome:
    told = CODE_IN_WORDS.search(error)
    return same(f"{said}: code", code, int(told[1]) if told else None)


def _ok(call: Callable[[], object]) -> bool:
    try:
        call()
    except RmqError:
        return False
    return True


def _started(line: Line) -> bool:
    return bool(line["answer"] == "started")


def properties_of_size(line: Line, broker: AskedBroker) -> Outcomes:
    """Its name is not said: what hangs on that is not compared. What the broker adds is as long as in the copies."""
    size, copy = line["input"], broker.any_copy["properties"]
    ours = {**stored_properties(Message("T", b"x"), ANY_UNIQUE_KEY), **BROKER_PROPERTIES}
    more = sum(len(copy[name]) - len(value) for name, value in ours.items() if name in copy and name != WAIT)
    value = "v" * max(size + more, min(size, 1))
    named = [Message("T", b"x", properties={"k" * length: value}) for length in (1, LONGEST_NAME)]
    is_sent = {not problems_of(message, ANY_TIME_MS) for message in named}
    if len(is_sent) == 1:
        said = f"a property of {size} characters"
        yield _sent_or(line, broker, said, is_sent.pop(), ResponseCode.MESSAGE_ILLEGAL)


def send_with_key_and_tag(line: Line, broker: AskedBroker) -> Outcomes:
    said = {"topic": broker.topic, "body": "x", "keys": "key", "tags": "TagA"}
    is_sent = _ok(lambda: check_messages([message_of(said)], ANY_TIME_MS))
    yield _sent_or(line, broker, "a message with key and tag", is_sent, None)


def send_with_delay(line: Line, broker: AskedBroker) -> Outcomes:
    """A text that is no number cannot be said here, so it is asked what the property would do."""
    level = line["input"]
    said = f"a message with DELAY {level!r}"
    yield _sent_or(line, broker, said, _is_placed(broker, MessageConst.DELAY_TIME_LEVEL, level), None)
    if isinstance(level, int):
        told = {"topic": "T", "body": "x", "delay_level": level}
        yield _sent_or(line, broker, said, _ok(lambda: check_messages([message_of(told)], ANY_TIME_MS)), None)


def send_with_timer(line: Line, broker: AskedBroker) -> Outcomes:
    """A moment that 64 bits cannot hold is another one in RocketMQ; here it is as far away as it says."""
    is_sent = _is_placed(broker, MessageConst.TIMER_DELAY_SEC, line["input"])
    said = f"a message with TIMER_DELAY_SEC {line['input']!r}"
    seconds = parse_number(str(line["input"]), 64)
    moment = ANY_TIME_MS + 1000 * (seconds or 0)
    if wrapped(moment, 64) != moment:
        yield same(said, is_sent, moment <= ANY_TIME_MS)
        return
    yield _sent_or(line, broker, said, is_sent, ResponseCode.MESSAGE_ILLEGAL)
    if not is_sent:
        yield same(f"{said}: longest delay", f"max delay {MAX_DELAY_MS}ms" in line["answer"].get("text", ""), True)


def _is_placed(broker: AskedBroker, name: str, value: object) -> bool:
    """Whether a message with such a property is taken, as a broker reads it from the message's text."""
    asked = parse_properties(properties_text({name: str(value)}))
    return _ok(lambda: place(broker.topic, 0, asked, ANY_TIME_MS, DelayLevels()))


def _sent_or(line: Line, broker: AskedBroker, said: str, is_sent: bool, code: ResponseCode | None) -> Outcome:
    """Whether it is sent to the broker's topic, or refused with that code; None: with any error, as the client's own."""
    if is_sent or code is None or "error" in line["answer"]:
        return same(said, is_sent, _is_sent(line, broker.topic))
    return same(said, code, line["answer"].get("code"))


def send_to_read_only(line: Line, broker: AskedBroker) -> Outcomes:
    yield same("sending is allowed", is_writeable(PERM_READ), "error" not in line["answer"])
