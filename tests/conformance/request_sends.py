"""``behaviour/*-requests``: which names, subscriptions and messages a broker and its client take (S7.7, S7.8, S14)."""

from __future__ import annotations

import re
from collections.abc import Callable

from rmq_store.broker_files.request_checks import ResponseCode
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.timer import MAX_DELAY_MS, place
from rmq_store.errors import RmqError
from rmq_store.json_messages import message_of
from rmq_store.message import MessageConst
from rmq_store.perm_name import PERM_READ, is_writeable
from rmq_store.producer import Message, check_messages, problems_of
from rmq_store.subscription import build_subscription_data
from rmq_store.validators import is_system_topic, may_be_sent_to, stored_topic_problem, topic_problem
from tests.conformance.asked_broker import AskedBroker
from tests.conformance.checks import Line, Outcome, Outcomes, same
from tests.conformance.filters import filter_of
from tests.conformance.names import problem_in

CODE_IN_WORDS = re.compile(r"CODE: (\d+) ")
ANY_TIME_MS = 1_717_416_000_000


def _is_sent(line: Line, topic: str) -> bool:
    return bool(line["answer"] == {"status": "SEND_OK", "topic": topic})


def send_to_topic(line: Line, broker: AskedBroker) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = answer.get("error", "ok")
    refused_by_name = error != "ok" and "forbidden" not in error
    problem = topic_problem(name)
    yield same(f"name {name!r}", problem, problem_in(error) if refused_by_name else None)
    yield same(f"{name!r} may be sent to", may_be_sent_to(name), "forbidden" not in error)
    yield same(f"sent to {name!r}", problem is None and may_be_sent_to(name), _is_sent(line, name))


def create_topic(line: Line, broker: AskedBroker) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = "ok" if answer == "ok" else answer["error"]
    is_conflict = "conflict with system topic" in error
    yield same(f"name {name!r}", stored_topic_problem(name), None if is_conflict else problem_in(error))
    yield same(f"{name!r} is a system topic", is_system_topic(name), is_conflict)
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
    wanted = filter_of("T", line["input"], "SQL92")
    understood = _ok(lambda: build_subscription_data("T", line["input"], "SQL92"))
    yield same(f"{line['input']!r} is parsed", wanted is not None, _started(line))
    if wanted is None and not _started(line):
        said = f"start with {line['input']!r}"
        yield _has_code(said, ResponseCode.SUBSCRIPTION_PARSE_FAILED, line["answer"]["error"])
    yield same(
        f"subscribe to {line['input']!r}", understood, _started(line) and wanted is not None and wanted.data is not None
    )


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
    message = Message("T", b"x", properties={"k": "v" * line["input"]})
    is_sent = not problems_of(message, ANY_TIME_MS)
    yield _sent_or(line, broker, f"a property of {line['input']} characters", is_sent, ResponseCode.MESSAGE_ILLEGAL)


def send_with_key_and_tag(line: Line, broker: AskedBroker) -> Outcomes:
    said = {"topic": broker.topic, "body": "x", "keys": "key", "tags": "TagA"}
    is_sent = _ok(lambda: check_messages([message_of(said)], ANY_TIME_MS))
    yield _sent_or(line, broker, "a message with key and tag", is_sent, None)


def send_with_delay(line: Line, broker: AskedBroker) -> Outcomes:
    """What is no number cannot be said here at all."""
    said = {"topic": "T", "body": "x", "delay_level": line["input"]}
    is_sent = _ok(lambda: check_messages([message_of(said)], ANY_TIME_MS))
    yield _sent_or(line, broker, f"a message with DELAY {line['input']!r}", is_sent, None)


def send_with_timer(line: Line, broker: AskedBroker) -> Outcomes:
    asked = {MessageConst.TIMER_DELAY_SEC: str(line["input"])}
    is_sent = _ok(lambda: place(broker.topic, 0, asked, ANY_TIME_MS, DelayLevels()))
    said = f"a message with TIMER_DELAY_SEC {line['input']!r}"
    yield _sent_or(line, broker, said, is_sent, ResponseCode.MESSAGE_ILLEGAL)
    if not is_sent:
        yield same(f"{said}: longest delay", f"max delay {MAX_DELAY_MS}ms" in line["answer"].get("text", ""), True)


def _sent_or(line: Line, broker: AskedBroker, said: str, is_sent: bool, code: ResponseCode | None) -> Outcome:
    """Whether it is sent to the broker's topic, or refused with that code; None: with any error of the client."""
    if is_sent or code is None:
        return same(said, is_sent, _is_sent(line, broker.topic))
    return same(said, code, line["answer"].get("code"))


def send_to_read_only(line: Line, broker: AskedBroker) -> Outcomes:
    yield same("sending is allowed", is_writeable(PERM_READ), "error" not in line["answer"])
