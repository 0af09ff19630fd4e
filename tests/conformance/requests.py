"""``behaviour/*-requests``: single requests to a broker of which there is no store; ``asked_broker`` makes one that answers."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rmq_store.broker_files.config_files import SubscriptionGroupConfig, TopicConfig
from rmq_store.broker_files.consumer_offset_manager import NOT_FOUND, key_of
from rmq_store.broker_files.request_checks import ResponseCode, check_commit, check_pull
from rmq_store.consume_queue import BoundaryType, offset_by_time
from rmq_store.consumer.delay import FIRST_RETRY_LEVEL, DelayLevels
from rmq_store.consumer.listener import ConsumeConcurrentlyContext
from rmq_store.consumer.retry import property_edits, retry_queue_id, route
from rmq_store.consumer.timer import MAX_DELAY_MS, place
from rmq_store.errors import RmqError, WrongUse
from rmq_store.json_messages import message_of
from rmq_store.lake.groups import need_group
from rmq_store.lake.message_search import message_by_id, messages_by_key, messages_by_unique_key
from rmq_store.lake.plan import ShardLookup
from rmq_store.message import SCHEDULE_TOPIC, MessageConst, MessageExt, dlq_topic
from rmq_store.message_id import offset_message_id
from rmq_store.perm_name import PERM_READ, PERM_WRITE, is_writeable
from rmq_store.producer import BROKER_PROPERTIES, Message, check_messages, problems_of
from rmq_store.reset import ResetRequest, ResetTo, reset_moves
from rmq_store.settings import GroupSettings
from rmq_store.store import Actor
from rmq_store.subscription import build_subscription_data
from rmq_store.validators import is_system_topic, may_be_sent_to, stored_topic_problem, topic_problem
from tests.conformance.asked_broker import ENABLED, SEND_BACK, STORED, AskedBroker
from tests.conformance.broker_store import BROKER
from tests.conformance.checks import Line, NotChecked, Outcome, Outcomes, per_line, refused, same
from tests.conformance.filters import filter_of
from tests.conformance.names import problem_in
from tests.conformance.pulls import pull_edge
from tests.conformance.rerun import Hop, Life, Rerun, settings_of

ANY_TIME_MS = 1_717_416_000_000
MOST_IN_ONE_ANSWER = 32

OFFSET_IN_WORDS = re.compile(r", from \d+$")
QUEUE_IN_WORDS = re.compile(r"queueId\[(\d+)\].*readQueueNums:\[(\d+)\]")
BEYOND_IN_WORDS = re.compile(r"look message by offset failed, (\d+)$")
MANY = re.compile(r"(\d+) send-backs with retryQueueNums=(\d+), max offset per retry queue")


def check(lines: Sequence[Line]) -> Outcomes:
    with tempfile.TemporaryDirectory(prefix="requests-") as work:
        broker = AskedBroker(lines, Path(work))
        yield from send_backs(broker)
        yield from per_line(_request)(lines, broker)


def _request(line: Line, broker: AskedBroker) -> Outcomes:
    what = OFFSET_IN_WORDS.sub("", line["what"])
    if what == SEND_BACK:
        yield same("answer to a send-back", line["answer"], ResponseCode.SUCCESS.name)
    elif what.startswith(STORED):
        return  # all together, above
    elif MANY.fullmatch(what):
        yield from _many_send_backs(line)
    elif what in RULES:
        yield from RULES[what](line, broker)
    else:
        yield NotChecked(f"no rule: {what}")


# --- what is sent back -----------------------------------------------------------------------------------------------


def send_backs(broker: AskedBroker) -> Outcomes:
    """The copy of each: where it is, what it carries. A negative maxReconsumeTimes is taken literally there, so that it is
    as 0; our -1 is what a consumer's own setting means (Appendix E, 10.2)."""
    for name in BROKER_PROPERTIES:
        of_broker = {copy["properties"].get(name) for copy in broker.copies.values()}
        yield same(f"{name} is the broker's, the same everywhere", len(of_broker), 1)
    places: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for request in broker.asked:
        offset = request["queueOffset"]
        said, copy = f"copy of message {offset}", broker.copies[offset]
        decided = route(
            request["group"],
            delay_level=request["delayLevel"],
            reconsume_times=0,
            max_reconsume_times=max(0, request["maxReconsumeTimes"]),
            retry_queue=0,
            levels=DelayLevels(),
        )
        topic = copy["topic"] + request["group"] if decided.dead else copy["topic"]
        found = decided.topic, decided.queue_id, decided.reconsume_times
        yield same(f"{said}: place, retries", found, (topic, copy["queueId"], copy["reconsumeTimes"]))
        (row,) = messages_by_unique_key(broker.store.imported.store, copy["properties"]["UNIQ_KEY"])
        edits = property_edits(decided, row["topic"], row["offset_msg_id"])
        yield same(f"{said}: properties", edits.apply(row["properties"]), copy["properties"])
        yield same(f"{said}: born", row["born_host"], copy["bornHost"])
        places[topic, copy["queueId"]].append(copy)
    for (topic, queue_id), copies in places.items():
        stored = sorted(copies, key=lambda copy: int(copy["storeTimestamp"]))
        offsets = sorted(copy["queueOffset"] for copy in copies)
        yield same(f"offsets of {topic} {queue_id}", offsets, list(range(len(copies))))
        yield same(f"order of {topic} {queue_id}", [copy["queueOffset"] for copy in stored], offsets)


def _of_an_unknown_group(line: Line, broker: AskedBroker) -> Outcomes:
    """The broker makes the group, here its first window does: the message comes again."""
    again = Life((Hop(SCHEDULE_TOPIC, FIRST_RETRY_LEVEL, 1),), "waiting")
    yield same("what became of a failure", _first_fails(broker, "nobody"), [again])
    yield same("answer", line["answer"], ResponseCode.SUCCESS.name)


def _without_retry_queues(line: Line, broker: AskedBroker) -> Outcomes:
    """The broker answers success and drops it; here it is a dead letter (docs/conformance.md)."""
    dead = Life((Hop(dlq_topic("zero"), 0, 1),), "dead")
    yield same("what became of a failure", _first_fails(broker, "zero", retry_queue_nums=0), [dead])
    yield same("answer", line["answer"], ResponseCode.SUCCESS.name)


def _retry_topic_after_that(line: Line, broker: AskedBroker) -> Outcomes:
    (life,) = _first_fails(broker, line["input"], retry_queue_nums=0)
    bound_for_it = [hop for hop in life.hops if hop.topic != dlq_topic(line["input"])]
    yield same(f"end of the retry topic of {line['input']}", len(bound_for_it), line["answer"])


def _first_fails(broker: AskedBroker, group: str, **settings: Any) -> list[Life]:
    """What became of the topic's first message, in the memory engine."""

    def first(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> str:
        return "RECONSUME_LATER" if msgs[0].queue_offset == 0 else "CONSUME_SUCCESS"

    rerun = Rerun.in_memory(_group(broker, group, **settings), broker.store)
    return list(rerun.run(first, 0).values())


def _group(broker: AskedBroker, name: str, **settings: Any) -> GroupSettings:
    said = {"group": name, "topic": broker.topic, "subscription": "*", "maxReconsumeTimes": -1, "model": "CLUSTERING"}
    return settings_of(said | {"script": "", "clientId": "c"}, **settings)


def _many_send_backs(line: Line) -> Outcomes:
    """Each goes to one of the retry queues. The broker chooses by chance, we by a hash: their sum is the same."""
    matched = MANY.fullmatch(line["what"])
    assert matched is not None
    count, queues = map(int, matched.groups())
    chosen = [retry_queue_id("T", BROKER, 0, offset, queues) for offset in range(count)]
    found = [chosen.count(queue_id) for queue_id in range(queues)]
    yield same("send-backs, retry queues", (sum(found), len(found)), (sum(line["answer"]), len(line["answer"])))
    yield same("no queue has less than nothing", min(line["answer"]) >= 0, True)


def _inside_a_record(line: Line, broker: AskedBroker) -> Outcomes:
    """No id but those of the places where records begin finds a message; the broker reads what is not one."""
    for row in broker.store.messages.values():
        inside = row["commit_log_offset"] + row["store_size"] // 2
        found = message_by_id(broker.store.imported.store, offset_message_id(row["store_host"], inside))
        yield same(f"messages at {inside}", (found, ResponseCode.SYSTEM_ERROR), ([], line["answer"]["code"]))


def _beyond_the_log(line: Line, broker: AskedBroker) -> Outcomes:
    asked = BEYOND_IN_WORDS.search(line["answer"]["text"])
    host = next(iter(broker.store.messages.values()))["store_host"]
    beyond = int(asked[1]) if asked else -1
    yield same(f"{beyond} is behind the log", beyond >= broker.store.log_end, True)
    found = message_by_id(broker.store.imported.store, offset_message_id(host, beyond))
    yield same(f"messages at {beyond}", (found, ResponseCode.SYSTEM_ERROR), ([], line["answer"]["code"]))


# --- offsets of groups, in the order of the requests -----------------------------------------------------------------


def _query(line: Line, broker: AskedBroker, *, set_zero_if_not_found: bool = True) -> Outcomes:
    """Without a commit 0 where the first message can still be read, if the request allows it (S5.4)."""
    group, topic, queue_id = line["input"]
    young = (topic, queue_id, 0) in broker.store.messages
    found = broker.manager.query_on_the_wire(
        group, topic, queue_id, young=young, set_zero_if_not_found=set_zero_if_not_found
    )
    yield _found_offset(line, found)


def _query_without_zero(line: Line, broker: AskedBroker) -> Outcomes:
    yield from _query(line, broker, set_zero_if_not_found=False)


def _found_offset(line: Line, found: int) -> Outcome:
    answer = line["answer"]
    if isinstance(answer, dict):
        wanted: tuple[int, int | None] = NOT_FOUND, answer["code"]
        return same(f"query of {line['input']}", (found, ResponseCode.QUERY_NOT_FOUND), wanted)
    return same(f"query of {line['input']}", found, answer)


def _commit(line: Line, broker: AskedBroker) -> Outcomes:
    """While a reset waits for its pull, the broker answers a commit and ignores it (S3.5)."""
    group, topic, queue_id, offset = line["input"]
    manager, answer = broker.manager, line["answer"]
    code = check_commit(broker.config_of(group), broker.topic_of(topic))
    if code != ResponseCode.SUCCESS:
        yield same(f"commit of {line['input']}", code, answer.get("code"))
        yield from _nobody_moves_it(broker, group, topic)
        return
    if not manager.has_offset_reset(group, topic, queue_id):
        manager.commit_offset(group, topic, queue_id, offset)
    found = code.name, manager.query_on_the_wire(group, topic, queue_id, young=True)
    yield same(f"commit of {line['input']}, query", found, (answer.get("commit"), answer.get("query")))


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
    # How many messages one answer has is the broker's affair (S7.2).
    most = broker.store.positions.max_offset(broker.store.queue({"topic": topic, "queueId": queue_id}))
    yield same(f"pull of {line['input']}", ("FOUND", asked < then <= most), (status, True))


def _query_of_group(line: Line, broker: AskedBroker) -> Outcomes:
    """A group that is deleted without its offsets leaves them; which queue was asked for is not said: the first."""
    found = broker.manager.query_offset(line["input"], broker.topic, 0)
    yield same(f"offset of {line['input']}", found, line["answer"])


def _topic_deleted(line: Line, broker: AskedBroker) -> Outcomes:
    manager, topic = broker.manager, line["input"]
    groups = manager.which_group_by_topic(topic)
    manager.clean_offset_by_topic(topic)
    left = [key_of(topic, group) for group in groups if key_of(topic, group) in manager.offset_table]
    yield same(f"offsets of {topic}", (left, ResponseCode.QUERY_NOT_FOUND), ([], line["answer"]["code"]))
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
    moves = lambda: _reset(broker, "g", topic, ResetTo.MAX, queue_id=queue_id)  # noqa: E731
    yield refused(f"queue {queue_id} of {topic}", WrongUse, moves, "does not exist")


def _pull_of_disabled(line: Line, broker: AskedBroker) -> Outcomes:
    group = SubscriptionGroupConfig(line["input"], consume_enable=False)
    yield _refused_pull(line, check_pull(group, broker.topic_of(broker.topic), 0))


def _refused_pull(line: Line, code: ResponseCode) -> Outcome:
    return same(f"pull of {line['input']}", code, line["answer"].get("code"))


def _pull_of_enabled(line: Line, broker: AskedBroker) -> Outcomes:
    """From where its first message is, which is not said."""
    answer = line["answer"]
    code = check_pull(SubscriptionGroupConfig(line["input"]), broker.topic_of(broker.topic), 0)
    yield same(f"pull of {line['input']}", code, ResponseCode.SUCCESS)
    bounds = {"minOffset": answer["min"], "maxOffset": answer["max"]}
    asked = {"topic": broker.topic, "queueId": 0, "offset": answer["found"][0]}
    answered = {"answerMin": answer["min"], "answerMax": answer["max"]}
    yield from pull_edge(asked | bounds | answered | answer, broker.store)


def _pull_with_sql92(line: Line, broker: AskedBroker) -> Outcomes:
    """What cannot be parsed filters nothing when it is carried in the request (Appendix E, C1)."""
    wanted = filter_of(broker.topic, line["input"], "SQL92")
    rows = broker.store.by_queue[broker.topic, 0]
    found = [row["queue_offset"] for row in rows if wanted is None or wanted.delivers(row)]
    status, told = line["answer"]["status"], line["answer"]["found"]
    said = f"pull with {line['input']!r}"
    yield same(said, found[:MOST_IN_ONE_ANSWER], told)
    yield same(f"{said}: status", "FOUND" if found else "NO_MATCHED_MSG", status)
    if wanted is not None and wanted.data is not None:
        lake = wanted.delivered_in_lake(broker.store.batches[broker.topic, 0])
        yield same(f"{said}, by a window", lake[:MOST_IN_ONE_ANSWER], told)


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
    found = _offsets(messages_by_key(broker.store.imported.store, broker.topic, line["input"]))
    yield same(f"messages by {line['input']}", found, [] if _is_none(line) else line["answer"])


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


# --- names, subscriptions, properties --------------------------------------------------------------------------------


def _is_sent(line: Line, topic: str) -> bool:
    return bool(line["answer"] == {"status": "SEND_OK", "topic": topic})


def _send_to_topic(line: Line, broker: AskedBroker) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = answer.get("error", "ok")
    refused_by_name = error != "ok" and "forbidden" not in error
    problem = topic_problem(name)
    yield same(f"name {name!r}", problem, problem_in(error) if refused_by_name else None)
    yield same(f"{name!r} may be sent to", may_be_sent_to(name), "forbidden" not in error)
    yield same(f"sent to {name!r}", problem is None and may_be_sent_to(name), _is_sent(line, name))


def _create_topic(line: Line, broker: AskedBroker) -> Outcomes:
    name, answer = _repeated(line["input"]), line["answer"]
    error = "ok" if answer == "ok" else answer["error"]
    is_conflict = "conflict with system topic" in error
    yield same(f"name {name!r}", stored_topic_problem(name), None if is_conflict else problem_in(error))
    yield same(f"{name!r} is a system topic", is_system_topic(name), is_conflict)


def _repeated(text: str) -> str:
    """``x x 127`` is the letter x, 127 times."""
    letter, _, times = text.partition(" x ")
    return letter * int(times) if times.isdecimal() else text


def _start_with_tags(line: Line, broker: AskedBroker) -> Outcomes:
    yield same(
        f"subscribe to {line['input']!r}", _ok(lambda: build_subscription_data("T", line["input"])), _started(line)
    )


def _start_with_sql92(line: Line, broker: AskedBroker) -> Outcomes:
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


def _properties_of_size(line: Line, broker: AskedBroker) -> Outcomes:
    message = Message("T", b"x", properties={"k": "v" * line["input"]})
    is_sent = not problems_of(message, ANY_TIME_MS)
    yield _sent_or(line, broker, f"a property of {line['input']} characters", is_sent, ResponseCode.MESSAGE_ILLEGAL)


def _send_with_key_and_tag(line: Line, broker: AskedBroker) -> Outcomes:
    said = {"topic": broker.topic, "body": "x", "keys": "key", "tags": "TagA"}
    is_sent = _ok(lambda: check_messages([message_of(said)], ANY_TIME_MS))
    yield _sent_or(line, broker, "a message with key and tag", is_sent, None)


def _send_with_delay(line: Line, broker: AskedBroker) -> Outcomes:
    """What is no number cannot be said here at all."""
    said = {"topic": "T", "body": "x", "delay_level": line["input"]}
    is_sent = _ok(lambda: check_messages([message_of(said)], ANY_TIME_MS))
    yield _sent_or(line, broker, f"a message with DELAY {line['input']!r}", is_sent, None)


def _send_with_timer(line: Line, broker: AskedBroker) -> Outcomes:
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


def _send_to_read_only(line: Line, broker: AskedBroker) -> Outcomes:
    yield same("sending is allowed", is_writeable(PERM_READ), "error" not in line["answer"])


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
    "push consumer start with SQL92": _start_with_sql92,
    "push consumer start with tag expression": _start_with_tags,
    "send back, unknown group": _of_an_unknown_group,
    "send back, retryQueueNums=0": _without_retry_queues,
    "max offset of %RETRY% after that": _retry_topic_after_that,
    "send back, physical offset inside a record": _inside_a_record,
    "send back, physical offset beyond the log": _beyond_the_log,
    "send, key and tag": _send_with_key_and_tag,
    "send, one property of this many characters": _properties_of_size,
    "send, topic without write permission": _send_to_read_only,
    "send to topic": _send_to_topic,
    "create topic": _create_topic,
    "send with TIMER_DELAY_SEC": _send_with_timer,
    "send with DELAY": _send_with_delay,
    "message by offset id": _by_offset_id,
    "message by UNIQ_KEY": _by_unique_key,
    "message by unknown id": _by_unknown_id,
    "messages by key": _by_key,
    "messages by unknown key": _by_key,
    "search offset by time: search, lower, upper": _search_by_time,
}
