"""``behaviour/*-requests``: single requests to a broker of which there is no store; ``asked_broker`` makes one that answers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rmq_store.admin.reset import ResetRequest, ResetTo, reset_moves
from rmq_store.broker_files.config_files import SubscriptionGroupConfig, TopicConfig
from rmq_store.broker_files.consumer_offset_manager import NOT_FOUND, key_of
from rmq_store.commit.ctl import Actor
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import ExpressionType, build_subscription_data
from rmq_store.lake.admin.groups import need_group
from rmq_store.lake.read.message_search import message_by_id, messages_by_key, messages_by_unique_key
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.log.consume_queue import BoundaryType, offset_by_time
from rmq_store.log.get_message_status import GetMessageStatus, get_message_status
from rmq_store.message.message_const import MessageConst
from rmq_store.message.perm_name import PERM_WRITE
from tests.conformance import request_send_backs, request_sends
from tests.conformance.asked_broker import ENABLED, SEND_BACK, STORED, AskedBroker
from tests.conformance.checks import Line, NotChecked, Outcome, Outcomes, per_line, refused, same
from tests.conformance.filters import filter_of
from tests.conformance.pulls import pull_edge
from tests.oracle.get_message import pull_status
from tests.oracle.request_checks import ResponseCode, check_commit, check_pull

MOST_IN_ONE_ANSWER = 32

OFFSET_IN_WORDS = re.compile(r", from \d+$")
QUEUE_IN_WORDS = re.compile(r"queueId\[(-?\d+)\].*readQueueNums:\[(\d+)\]")


def check(lines: Sequence[Line]) -> Outcomes:
    with tempfile.TemporaryDirectory(prefix="requests-") as work:
        broker = AskedBroker(lines, Path(work))
        yield from request_send_backs.send_backs(broker)
        yield from per_line(_request)(lines, broker)


def _request(line: Line, broker: AskedBroker) -> Outcomes:
    what = OFFSET_IN_WORDS.sub("", line["what"])
    if what == SEND_BACK:
        yield same("answer to a send-back", line["answer"], ResponseCode.SUCCESS.name)
    elif what.startswith(STORED):
        return  # all together, above
    elif request_send_backs.MANY.fullmatch(what):
        yield from request_send_backs.many_send_backs(line)
    elif what in RULES:
        yield from RULES[what](line, broker)
    else:
        yield NotChecked(f"no rule: {what}")


# --- offsets of groups, in the order of the requests -----------------------------------------------------------------


def _query(line: Line, broker: AskedBroker, *, set_zero_if_not_found: bool = True) -> Outcomes:
    """Without a commit 0 where the first message can still be read, if the request allows it (rules 5.4)."""
    yield _found_offset(line, line["answer"], _on_the_wire(line, broker, set_zero_if_not_found))


def _query_without_zero(line: Line, broker: AskedBroker) -> Outcomes:
    yield from _query(line, broker, set_zero_if_not_found=False)


def _on_the_wire(line: Line, broker: AskedBroker, set_zero_if_not_found: bool = True) -> int:
    group, topic, queue_id, *_ = line["input"]
    young = (topic, queue_id, 0) in broker.store.messages
    return broker.manager.query_on_the_wire(
        group, topic, queue_id, young=young, set_zero_if_not_found=set_zero_if_not_found
    )


def _found_offset(line: Line, answer: Any, found: int) -> Outcome:
    if isinstance(answer, dict):
        wanted: tuple[int, int | None] = NOT_FOUND, answer["code"]
        return same(f"query of {line['input']}", (found, ResponseCode.QUERY_NOT_FOUND), wanted)
    return same(f"query of {line['input']}", found, answer)


def _commit(line: Line, broker: AskedBroker) -> Outcomes:
    """While a reset waits for its pull, the broker answers a commit and ignores it (rules 3.5)."""
    group, topic, queue_id, offset = line["input"]
    manager, answer = broker.manager, line["answer"]
    code = check_commit(broker.config_of(group), broker.topic_of(topic))
    if code != ResponseCode.SUCCESS:
        yield same(f"commit of {line['input']}", code, answer.get("code"))
        yield from _nobody_moves_it(broker, group, topic)
        return
    if not manager.has_offset_reset(group, topic, queue_id):
        manager.commit_offset(group, topic, queue_id, offset)
    yield same(f"commit of {line['input']}", code.name, answer.get("commit"))
    yield _found_offset(line, answer.get("query"), _on_the_wire(line, broker))


def _nobody_moves_it(broker: AskedBroker, group: str, topic: str) -> Outcomes:
    """Nor is there a way here to give a group or a topic an offset that nobody knows."""
    if broker.config_of(group) is None:
        lake = broker.store.imported.store
        yield refused(f"group {group}", WrongUse, lambda: need_group(lake, group), "there is no group")
    if broker.topic_of(topic) is None:
        yield refused(f"topic {topic}", WrongUse, lambda: _reset(broker, group, topic, ResetTo.MAX), "has no topic")


def _reset(
    broker: AskedBroker, group: str, topic: str, to: ResetTo, value: int | None = None, queue_id: int | None = None
) -> Any:
    """Queue id -> offset of what our reset would do."""
    queues = () if queue_id is None else (broker.store.queue({"topic": topic, "queueId": queue_id}),)
    request = ResetRequest(group, topic, to, "2026-01-01-reset", Actor("a", "b"), "asked", value, queues)
    view = ShardLookup(broker.store.imported.shard)
    moves = reset_moves(view, broker.store.positions, request)
    return {move.queue.queue_id: move.to_offset for move in moves}


def _reset_by_time(line: Line, broker: AskedBroker) -> Outcomes:
    """To the time of the message that the request names by its offset."""
    group, offset = line["input"]["group"], line["input"]["timestampOfOffset"]
    time_ms = broker.store.messages[broker.topic, 0, offset]["store_timestamp"]
    found = _reset(broker, group, broker.topic, ResetTo.TIME, time_ms)
    yield same(f"reset of {group}", sorted(found.items()), [tuple(answer) for answer in line["answer"]])
    for queue_id, target in found.items():
        broker.manager.assign_reset_offset(group, broker.topic, queue_id, target)


def _pull_after_a_reset(line: Line, broker: AskedBroker) -> Outcomes:
    group, topic, queue_id, asked = line["input"]
    pending = broker.manager.query_then_erase_reset_offset(group, topic, queue_id)
    status, then = line["answer"]["status"], line["answer"]["next"]
    if pending is not None:
        yield same(f"pull of {line['input']}", ("OFFSET_ILLEGAL", pending), (status, then))
        return
    most = broker.store.positions.max_offset(broker.store.queue({"topic": topic, "queueId": queue_id}))
    found, corrected = get_message_status(asked, 0, most)
    if found is GetMessageStatus.FOUND and asked < then <= most:
        corrected = then  # how many messages one answer has is the broker's affair (rules 7.2)
    yield same(f"pull of {line['input']}", (pull_status(found, asked), corrected), (status, then))


def _query_of_group(line: Line, broker: AskedBroker) -> Outcomes:
    """A group that is deleted without its offsets leaves them; which queue was asked for is not said: the first."""
    found = broker.manager.query_offset(line["input"], broker.topic, 0)
    yield same(f"offset of {line['input']}", found, line["answer"])


def _topic_deleted(line: Line, broker: AskedBroker) -> Outcomes:
    """A message that waited and comes after that makes the topic again, as a young one."""
    manager, topic, answer = broker.manager, line["input"], line["answer"]
    groups = manager.which_group_by_topic(topic)
    manager.clean_offset_by_topic(topic)
    left = [key_of(topic, group) for group in groups if key_of(topic, group) in manager.offset_table]
    code = ResponseCode.QUERY_NOT_FOUND if answer == 0 else answer["code"]
    yield same(f"offsets of {topic}", (left, ResponseCode.QUERY_NOT_FOUND), ([], code))
    yield same("it had some", bool(groups), True)


# --- pulls -----------------------------------------------------------------------------------------------------------


def _pull_from_write_only(line: Line, broker: AskedBroker) -> Outcomes:
    topic = TopicConfig(line["input"], broker.queues, broker.queues, perm=PERM_WRITE)
    yield _refused_pull(line, check_pull(SubscriptionGroupConfig("g"), topic, 0))


def _pull_unknown_topic(line: Line, broker: AskedBroker) -> Outcomes:
    topic = line["input"]
    yield _refused_pull(line, check_pull(SubscriptionGroupConfig("g"), broker.topic_of(topic), 0))
    yield from _nobody_moves_it(broker, "g", topic)


def _pull_unknown_queue(line: Line, broker: AskedBroker) -> Outcomes:
    topic, asked = line["input"], QUEUE_IN_WORDS.search(line["answer"]["text"])
    queue_id, queues = map(int, asked.groups()) if asked else (-1, -1)
    yield same(f"queues of {topic}", broker.queues, queues)
    yield _refused_pull(line, check_pull(SubscriptionGroupConfig("g"), broker.topic_of(topic), queue_id))
    moves = partial(_reset, broker, "g", topic, ResetTo.MAX, queue_id=queue_id)
    yield refused(f"queue {queue_id} of {topic}", WrongUse, moves, "does not exist")


def _pull_of_disabled(line: Line, broker: AskedBroker) -> Outcomes:
    group = SubscriptionGroupConfig(line["input"], consume_enable=False)
    yield _refused_pull(line, check_pull(group, broker.topic_of(broker.topic), 0))


def _refused_pull(line: Line, code: ResponseCode) -> Outcome:
    return same(f"pull of {line['input']}", code, line["answer"].get("code"))


def _pull_of_enabled(line: Line, broker: AskedBroker) -> Outcomes:
    """From where its first message is, or from the end, which is not said."""
    answer = line["answer"]
    code = check_pull(SubscriptionGroupConfig(line["input"]), broker.topic_of(broker.topic), 0)
    yield same(f"pull of {line['input']}", code, ResponseCode.SUCCESS)
    bounds = {"minOffset": answer["min"], "maxOffset": answer["max"]}
    asked = {"topic": broker.topic, "queueId": 0, "offset": [*answer["found"], answer["next"]][0]}
    answered = {"answerMin": answer["min"], "answerMax": answer["max"]}
    yield from pull_edge(asked | bounds | answered | answer, broker.store)


def _pull_with_sql92(line: Line, broker: AskedBroker) -> Outcomes:
    """What cannot be parsed filters nothing when it is carried in the request (rules 7.3); what the client itself
    refuses, we refuse. A message of which no line tells a property that is asked for is left out."""
    expression, answer, said = line["input"], line["answer"], f"pull with {line['input']!r}"
    if request_sends.cannot_filter(line):
        if "code" in answer:
            yield same(f"{said}: code", ResponseCode.SYSTEM_ERROR, answer["code"])
        return
    if "error" in answer:
        yield refused(said, WrongUse, lambda: build_subscription_data(broker.topic, expression, ExpressionType.SQL92))
        return
    wanted = filter_of(broker.topic, expression, ExpressionType.SQL92)
    told, not_told = answer["found"], broker.not_told_of(expression)
    is_cut = len(told) == MOST_IN_ONE_ANSWER

    def compared(offsets: Iterable[int]) -> list[int]:
        return [offset for offset in offsets if offset not in not_told and not (is_cut and offset > told[-1])]

    rows = broker.store.by_queue[broker.topic, 0]
    found = compared(row["queue_offset"] for row in rows if wanted is None or wanted.delivers(row))
    yield same(said, found, compared(told))
    yield same(f"{said}: status", "FOUND" if told else "NO_MATCHED_MSG", answer["status"])
    if wanted is not None and wanted.data is not None:
        lake = wanted.delivered_in_lake(broker.store.batches[broker.topic, 0])
        yield same(f"{said}, by a window", compared(lake), compared(told))


# --- messages by id, key and time ------------------------------------------------------------------------------------


def _by_offset_id(line: Line, broker: AskedBroker) -> Outcomes:
    """Which id was asked for is not said: that of the message in the answer."""
    row = broker.store.messages.get((broker.topic, 0, line["answer"]))
    found = row and message_by_id(broker.store.imported.store, row["offset_msg_id"])
    yield same("message by its offset id", _offsets(found), [line["answer"]])


def _by_unique_key(line: Line, broker: AskedBroker) -> Outcomes:
    row = broker.store.messages.get((broker.topic, 0, line["answer"]))
    found = row and messages_by_unique_key(broker.store.imported.store, row["unique_key"])
    yield same("message by its unique key", _offsets(found), [line["answer"]])


def _by_unknown_id(line: Line, broker: AskedBroker) -> Outcomes:
    lake, unknown = broker.store.imported.store, "F" * 32
    found = [*message_by_id(lake, unknown), *messages_by_unique_key(lake, unknown)]
    yield same("messages by an unknown id", (found, True), ([], _is_none(line)))


def _by_key(line: Line, broker: AskedBroker) -> Outcomes:
    """The newest of them, where there are more than one answer holds."""
    told, not_told = [] if _is_none(line) else line["answer"], broker.not_told_of(MessageConst.KEYS)
    is_cut = len(told) >= MOST_IN_ONE_ANSWER

    def compared(offsets: Iterable[int]) -> list[int]:
        return [offset for offset in offsets if offset not in not_told and not (is_cut and offset < min(told))]

    found = _offsets(messages_by_key(broker.store.imported.store, broker.topic, line["input"]))
    yield same(f"messages by {line['input']}", compared(found), compared(told))


def _is_none(line: Line) -> bool:
    answer = line["answer"]
    return isinstance(answer, dict) and f"CODE: {ResponseCode.NO_MESSAGE} " in answer["error"]


def _offsets(found: Any) -> list[int]:
    return [message["queue_offset"] for message in found or ()]


def _search_by_time(line: Line, broker: AskedBroker) -> Outcomes:
    """The moments are not said, but for 0, nor what else the queue has by then; so there must be a queue and a moment that
    give this answer. The search that names no boundary is the LOWER one."""
    search, lower, upper = line["answer"]
    yield same("search without a boundary", search, lower)

    def store_timestamp_at(offset: int) -> int:
        """Before, at and after the moment 3."""
        return 1 if offset < lower else 3 if offset <= upper else 5

    times_at, moment = store_timestamp_at, 3
    if line["input"] == "0":
        times_at, moment = (lambda offset: broker.store.made[broker.topic, 0][offset].store_timestamp), 0
    readable = range(max(lower, upper, broker.count - 1) + 1)
    found = tuple(offset_by_time(readable, times_at, moment, boundary) for boundary in BoundaryType)
    yield same(f"offsets at {line['input']}", found, (lower, upper))


RULES: dict[str, Callable[[Line, AskedBroker], Outcomes]] = {
    "query offset, never committed, setZeroIfNotFound=false": _query_without_zero,
    "query offset, never committed, setZeroIfNotFound unset, first record still readable": _query,
    "query offset, never committed, setZeroIfNotFound=true": _query,
    "query offset, empty queue": _query,
    "query offset, unknown topic": _query,
    "query offset, queue id out of range": _query,
    "commit, unknown group": _commit,
    "commit, unknown topic": _commit,
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
    "pull, topic without read permission": _pull_from_write_only,
    "pull, unknown topic": _pull_unknown_topic,
    "pull, queue id beyond the topic": _pull_unknown_queue,
    "pull, group with consumeEnable=false": _pull_of_disabled,
    ENABLED: _pull_of_enabled,
    "SQL92 pull with the subscription in the request": _pull_with_sql92,
    "push consumer start with SQL92": request_sends.start_with_sql92,
    "push consumer start with tag expression": request_sends.start_with_tags,
    "send back, unknown group": request_send_backs.of_an_unknown_group,
    "send back, retryQueueNums=0": request_send_backs.without_retry_queues,
    "max offset of %RETRY% after that": request_send_backs.retry_topic_after_that,
    "send back, physical offset inside a record": request_send_backs.inside_a_record,
    "send back, physical offset beyond the log": request_send_backs.beyond_the_log,
    "send, key and tag": request_sends.send_with_key_and_tag,
    "send, one property of this many characters": request_sends.properties_of_size,
    "send, topic without write permission": request_sends.send_to_read_only,
    "send to topic": request_sends.send_to_topic,
    "create topic": request_sends.create_topic,
    "send with TIMER_DELAY_SEC": request_sends.send_with_timer,
    "send with DELAY": request_sends.send_with_delay,
    "message by offset id": _by_offset_id,
    "message by UNIQ_KEY": _by_unique_key,
    "message by unknown id": _by_unknown_id,
    "messages by key": _by_key,
    "messages by unknown key": _by_key,
    "search offset by time: search, lower, upper": _search_by_time,
}
