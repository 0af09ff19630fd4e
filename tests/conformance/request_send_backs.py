"""``behaviour/*-requests``: what is sent back, where its copy lies and what it carries (rules 10.2, 10.3)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rmq_store.consumer.delay import FIRST_RETRY_LEVEL, DelayLevels
from rmq_store.consumer.listener import ConsumeConcurrentlyContext
from rmq_store.consumer.retry import SendBack, property_edits, retry_queue_id, route
from rmq_store.lake.read.message_search import message_by_id
from rmq_store.message.message import MessageExt
from rmq_store.message.message_const import SCHEDULE_TOPIC, MessageConst, dlq_topic, retry_topic
from rmq_store.message.message_id import offset_message_id
from rmq_store.producer.producer import BROKER_PROPERTIES
from rmq_store.settings.settings import GroupSettings
from tests.conformance.asked_broker import AskedBroker, Copy
from tests.conformance.broker_store import BROKER
from tests.conformance.checks import Line, Outcomes, same
from tests.conformance.rerun import Hop, Life, Rerun, settings_of
from tests.oracle.request_checks import ResponseCode

BEYOND_IN_WORDS = re.compile(r"look message by offset failed, (\d+)$")
MANY = re.compile(r"(\d+) send-backs with retryQueueNums=(\d+), max offset per retry queue")


def send_backs(broker: AskedBroker) -> Outcomes:
    """The copy of each: where it is, what it carries. A negative maxReconsumeTimes is taken literally there, so that it is
    as 0; our -1 is what a consumer's own setting means (rules 10.2)."""
    for name in BROKER_PROPERTIES if broker.copies else ():
        of_broker = {copy["properties"].get(name) for copy in broker.all_copies}
        yield same(f"{name} is the broker's, the same everywhere", len(of_broker), 1)
    places: dict[tuple[str, int], list[Line]] = defaultdict(list)
    left = {offset: list(copies) for offset, copies in broker.sent_back.items()}
    for request in broker.asked:
        offset = request["queueOffset"]
        said = f"copy of message {offset}"
        decided = route(
            request["group"],
            delay_level=request["delayLevel"],
            reconsume_times=0,
            max_reconsume_times=max(0, request["maxReconsumeTimes"]),
            retry_queue=0,
            levels=DelayLevels(),
        )
        copy = _copy_of(request["group"], decided, left[offset])
        left[offset].remove(copy)
        topic = copy["topic"] + request["group"] if decided.dead else copy["topic"]
        found = decided.topic, decided.queue_id, decided.reconsume_times
        yield same(f"{said}: place, retries", found, (topic, copy["queueId"], copy["reconsumeTimes"]))
        row = broker.store.messages[broker.topic, 0, offset]
        edits = property_edits(decided, row["topic"], row["offset_msg_id"])
        yield same(f"{said}: properties", edits.apply(row["properties"]), copy["properties"])
        yield same(f"{said}: born", row["born_host"], copy["bornHost"])
        places[topic, copy["queueId"]].append(copy)
    for (topic, queue_id), copies in places.items():
        copies.sort(key=lambda copy: int(copy["queueOffset"]))
        offsets = [copy["queueOffset"] for copy in copies]
        yield same(f"offsets of {topic} {queue_id}", sorted(set(offsets)), offsets)
        times = [copy["storeTimestamp"] for copy in copies]
        yield same(f"order of {topic} {queue_id}", sorted(times), times)


def _copy_of(group: str, decided: SendBack, copies: Sequence[Copy]) -> Copy:
    """Of the copies of one message the one of this group that lies where it should, else any."""

    def fits(copy: Copy) -> bool:
        is_there = copy["queueId"] == decided.queue_id and decided.topic.startswith(copy["topic"])
        return is_there and copy["properties"].get(MessageConst.REAL_TOPIC) in (None, retry_topic(group))

    return next(filter(fits, copies), copies[0])


def of_an_unknown_group(line: Line, broker: AskedBroker) -> Outcomes:
    """The broker makes the group, here its first window does: the message comes again."""
    again = Life((Hop(SCHEDULE_TOPIC, FIRST_RETRY_LEVEL, 1),), "waiting")
    yield same("what became of a failure", _first_fails(broker, "nobody"), [again])
    yield same("answer", line["answer"], ResponseCode.SUCCESS.name)


def without_retry_queues(line: Line, broker: AskedBroker) -> Outcomes:
    """The broker answers success and drops it; here it is a dead letter (docs/conformance.md)."""
    dead = Life((Hop(dlq_topic("zero"), 0, 1),), "dead")
    yield same("what became of a failure", _first_fails(broker, "zero", retry_queue_nums=0), [dead])
    yield same("answer", line["answer"], ResponseCode.SUCCESS.name)


def retry_topic_after_that(line: Line, broker: AskedBroker) -> Outcomes:
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


def many_send_backs(line: Line) -> Outcomes:
    """Each goes to one of the retry queues. The broker chooses by chance, we by a hash: their sum is the same."""
    matched = MANY.fullmatch(line["what"])
    assert matched is not None
    count, queues = map(int, matched.groups())
    chosen = [retry_queue_id("T", BROKER, 0, offset, queues) for offset in range(count)]
    found = [chosen.count(queue_id) for queue_id in range(queues)]
    yield same("send-backs, retry queues", (sum(found), len(found)), (sum(line["answer"]), len(line["answer"])))
    yield same("no queue has less than nothing", min(line["answer"]) >= 0, True)


def inside_a_record(line: Line, broker: AskedBroker) -> Outcomes:
    """Only the id of the place where a record begins finds a message; the broker reads what is not one."""
    rows = list(broker.store.messages.values())
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        inside = row["commit_log_offset"] + row["store_size"] // 2
        found = message_by_id(broker.store.imported.store, offset_message_id(row["store_host"], inside))
        yield same(f"messages at {inside}", (found, ResponseCode.SYSTEM_ERROR), ([], line["answer"]["code"]))


def beyond_the_log(line: Line, broker: AskedBroker) -> Outcomes:
    asked = BEYOND_IN_WORDS.search(line["answer"]["text"])
    host = next(iter(broker.store.messages.values()))["store_host"]
    beyond = int(asked[1]) if asked else -1
    yield same(f"{beyond} is behind the log", beyond >= broker.store.log_end, True)
    found = message_by_id(broker.store.imported.store, offset_message_id(host, beyond))
    yield same(f"messages at {beyond}", (found, ResponseCode.SYSTEM_ERROR), ([], line["answer"]["code"]))
