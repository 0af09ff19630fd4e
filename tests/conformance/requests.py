"""``behaviour/*-requests``: single requests to a broker, of which there is no store; those that one of our rules answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from rmq_store.broker_files.consumer_offset_manager import NOT_FOUND, ConsumerOffsetManager, key_of
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.retry import route
from rmq_store.errors import RmqError
from rmq_store.json_messages import message_of
from rmq_store.perm_name import PERM_READ, PERM_WRITE, is_readable, is_writeable
from rmq_store.producer import Message, check_messages, problems_of
from rmq_store.subscription import build_subscription_data
from rmq_store.validators import is_system_topic, may_be_sent_to, stored_topic_problem, topic_problem
from tests.conformance.checks import Line, NotChecked, Outcomes, per_line, same
from tests.conformance.filters import filter_of
from tests.conformance.names import problem_in

ON_THE_WIRE = -1
"""maxReconsumeTimes -1 of a request is taken literally; a consumer never sends it (Appendix E, 10.2)."""

ANY_TIME_MS = 1_717_416_000_000

OFFSET_IN_WORDS = re.compile(r", from \d+$")
NO_PERMISSION, QUERY_NOT_FOUND = 16, 22
"""Response codes."""

SEND_BACK, STORED = "send back", "stored in "


def check(lines: Sequence[Line]) -> Outcomes:
    yield from send_backs(lines)
    yield from per_line(_request)(lines, ConsumerOffsetManager())


def send_backs(lines: Sequence[Line]) -> Outcomes:
    """Which levels and retries the copies of all send-backs have."""
    asked = [line["input"] for line in lines if line["what"] == SEND_BACK]
    literal = {f"key{request['queueOffset']}" for request in asked if request["maxReconsumeTimes"] == ON_THE_WIRE}
    decided = [
        route(
            request["group"],
            delay_level=request["delayLevel"],
            reconsume_times=0,
            max_reconsume_times=request["maxReconsumeTimes"],
            retry_queue=0,
            levels=DelayLevels(),
        )
        for request in asked
        if request["maxReconsumeTimes"] != ON_THE_WIRE
    ]
    stored = Counter(
        (line["answer"]["properties"]["DELAY"], line["answer"]["reconsumeTimes"])
        for line in lines
        if line["what"].startswith(STORED) and line["answer"]["properties"]["KEYS"] not in literal
    )
    ours = Counter((str(send_back.delay_level), send_back.reconsume_times) for send_back in decided)
    for copy in sorted(stored.keys() | ours.keys()):
        yield same(f"copies with level and retries {copy}", ours[copy], stored[copy])


def _request(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    what = OFFSET_IN_WORDS.sub("", line["what"])
    if what == SEND_BACK or what.startswith(STORED):
        return  # all together, above
    if what in RULES:
        yield from RULES[what](line)
    elif what in OF_THE_OFFSETS:
        yield from OF_THE_OFFSETS[what](line, manager)
    else:
        yield NotChecked("requests to a running broker that no rule answers")


# --- requests that the broker's table of offsets answers, in their order ---------------------------------------------


def _query_of_a_young_queue(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    """Its first message can still be read."""
    yield same(f"query of {line['input']}", manager.query_on_the_wire(*line["input"], young=True), line["answer"])


def _query(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    found, answer = manager.query_offset(*line["input"]), line["answer"]
    if isinstance(answer, dict):
        yield same(f"query of {line['input']}", (found, QUERY_NOT_FOUND), (NOT_FOUND, answer["code"]))
    else:
        yield same(f"query of {line['input']}", found, answer)


def _commit(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    """While a reset waits for its pull, the broker answers a commit and ignores it (S3.5)."""
    group, topic, queue_id, offset = line["input"]
    if not manager.has_offset_reset(group, topic, queue_id):
        manager.commit_offset(group, topic, queue_id, offset)
    found = manager.query_on_the_wire(group, topic, queue_id, young=True)
    yield same(f"query after a commit of {line['input']}", found, line["answer"]["query"])


def _reset_by_time(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    """The answer is where the queues were reset to; the table has to say so afterwards."""
    group = line["input"]["group"]
    (topic,) = manager.which_topic_by_consumer(group)
    for queue_id, offset in line["answer"]:
        manager.assign_reset_offset(group, topic, queue_id, offset)
        yield same(f"{group} is reset in {queue_id}", manager.has_offset_reset(group, topic, queue_id), True)


def _pull_after_a_reset(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    group, topic, queue_id, asked = line["input"]
    pending = manager.query_then_erase_reset_offset(group, topic, queue_id)
    found = ("FOUND", asked + 1) if pending is None else ("OFFSET_ILLEGAL", pending)
    yield same(f"pull of {line['input']}", found, (line["answer"]["status"], line["answer"]["next"]))


def _query_of_group(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    """A group that is deleted without its offsets leaves them; which queue was asked for is not said."""
    tables = [
        manager.offset_table[key_of(topic, line["input"])] for topic in manager.which_topic_by_consumer(line["input"])
    ]
    offsets = {offset for table in tables for offset in table.values()}
    yield same(f"an offset of {line['input']}", line["answer"] in offsets, True)


def _topic_deleted(line: Line, manager: ConsumerOffsetManager) -> Outcomes:
    groups = manager.which_group_by_topic(line["input"])
    manager.clean_offset_by_topic(line["input"])
    yield same(f"offsets of {line['input']}", manager.which_group_by_topic(line["input"]), set())
    yield same("it had some, and none is found", (bool(groups), line["answer"]["code"]), (True, QUERY_NOT_FOUND))


# --- names, subscriptions, properties --------------------------------------------------------------------------------


def _send_to_topic(line: Line) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = answer.get("error", "ok")
    refused_by_name = error != "ok" and "forbidden" not in error
    yield same(f"name {name!r}", topic_problem(name), problem_in(error) if refused_by_name else None)
    yield same(f"{name!r} may be sent to", may_be_sent_to(name), "forbidden" not in error)


def _create_topic(line: Line) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = "ok" if answer == "ok" else answer["error"]
    is_conflict = "conflict with system topic" in error
    yield same(f"name {name!r}", stored_topic_problem(name), None if is_conflict else problem_in(error))
    yield same(f"{name!r} is a system topic", is_system_topic(name), is_conflict)


def _repeated(text: str) -> str:
    """``x x 127`` is the letter x, 127 times."""
    letter, _, times = text.partition(" x ")
    return letter * int(times) if times.isdecimal() else text


def _start_with_tags(line: Line) -> Outcomes:
    yield same(
        f"subscribe to {line['input']!r}", _ok(lambda: build_subscription_data("T", line["input"])), _started(line)
    )


def _start_with_sql92(line: Line) -> Outcomes:
    """Where a broker ignores the end of a text, it starts and we refuse."""
    wanted = filter_of("T", line["input"], "SQL92")
    understood = _ok(lambda: build_subscription_data("T", line["input"], "SQL92"))
    yield same(f"{line['input']!r} is parsed", wanted is not None, _started(line))
    yield same(
        f"subscribe to {line['input']!r}", understood, _started(line) and wanted is not None and wanted.data is not None
    )


def _ok(call: Callable[[], object]) -> bool:
    try:
        call()
    except RmqError:
        return False
    return True


def _started(line: Line) -> bool:
    return bool(line["answer"] == "started")


def _properties_of_size(line: Line) -> Outcomes:
    message = Message("T", b"x", properties={"k": "v" * line["input"]})
    yield same(
        f"a property of {line['input']} characters", not problems_of(message, ANY_TIME_MS), "status" in line["answer"]
    )


def _send_with_delay(line: Line) -> Outcomes:
    """What is no number cannot be said here at all."""
    said = {"topic": "T", "body": "x", "delay_level": line["input"]}
    is_sent = _ok(lambda: check_messages([message_of(said)], ANY_TIME_MS))
    yield same(f"a message with DELAY {line['input']!r}", is_sent, "status" in line["answer"])


def _send_to_read_only(line: Line) -> Outcomes:
    yield same("sending is allowed", is_writeable(PERM_READ), "error" not in line["answer"])


def _pull_from_write_only(line: Line) -> Outcomes:
    yield same("pulling is allowed", is_readable(PERM_WRITE), line["answer"]["code"] != NO_PERMISSION)


RULES: dict[str, Callable[[Line], Outcomes]] = {
    "send with DELAY": _send_with_delay,
    "send, topic without write permission": _send_to_read_only,
    "pull, topic without read permission": _pull_from_write_only,
    "send to topic": _send_to_topic,
    "create topic": _create_topic,
    "push consumer start with tag expression": _start_with_tags,
    "push consumer start with SQL92": _start_with_sql92,
    "send, one property of this many characters": _properties_of_size,
}

OF_THE_OFFSETS: dict[str, Callable[[Line, ConsumerOffsetManager], Outcomes]] = {
    "query offset, never committed, setZeroIfNotFound=false": _query,
    "query offset, never committed, setZeroIfNotFound unset, first record still readable": _query_of_a_young_queue,
    "query offset, never committed, setZeroIfNotFound=true": _query_of_a_young_queue,
    "query offset, empty queue": _query,
    "query offset, unknown topic": _query,
    "query offset, queue id out of range": _query,
    "commit then query": _commit,
    "commit to a queue id that does not exist": _commit,
    "reset by time": _reset_by_time,
    "query while the reset is pending": _query,
    "commit while the reset is pending": _commit,
    "pull 1 after the reset": _pull_after_a_reset,
    "pull 2 after the reset": _pull_after_a_reset,
    "commit after the pull": _commit,
    "delete group without cleanOffset, then query its offset": _query_of_group,
    "delete topic, then query an offset of it": _topic_deleted,
}
