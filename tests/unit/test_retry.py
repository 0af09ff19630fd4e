from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.listener import Answer, ConsumeConcurrentlyContext, judge
from rmq_store.consumer.retry import (
    DELIVERED_EDITS,
    Cause,
    SendBack,
    message_id,
    origin_message_id,
    property_edits,
    retry_queue_id,
    route,
)
from rmq_store.message import MessageExt, MessageQueue
from tests.unit import vectors

ORACLE_LEVELS = DelayLevels("1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s 10m 2h")

CONCURRENT = {"gm_single", "gm_ack", "gm_batch_later", "gm_never"}
"""The scripted groups whose copies were all made by CONSUMER_SEND_MSG_BACK."""

LEAK = ("DELAY", "REAL_QID", "REAL_TOPIC")
"""What the broker leaves in a delivered copy, and REAL_* of it in the dead letter that follows; ours are without."""


def back(**asked: Any) -> SendBack:
    usual = {
        "delay_level": 0,
        "reconsume_times": 0,
        "max_reconsume_times": -1,
        "retry_queue": 0,
        "levels": DelayLevels(),
    }
    return route("g", **(usual | asked))


# --- against the copies of a running broker --------------------------------------------------------------------------


def test_every_copy_of_a_failed_message_is_the_one_that_the_broker_stored() -> None:
    """Follows each chain with our own rules, from the first failure on, and compares each stored copy with ours."""
    most = {row["group"]: row["maxReconsumeTimes"] for row in vectors.behaviour("market-clean.groups")}
    sent = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in vectors.expected("market-clean.messages")}
    seen: Counter[str] = Counter()
    for chain in vectors.behaviour("market-clean.chains"):
        if chain["group"] not in CONCURRENT:
            continue
        copies = iter(chain["copies"])
        first = chain["deliveries"][0]
        original = sent[first["queue"]["topic"], first["queue"]["queueId"], first["queueOffset"]]
        properties, topic, own_id, times = original["properties"], original["topic"], original["msgId"], 0
        for delivery in chain["deliveries"]:
            answer = answer_to(delivery)
            if answer.acked:
                continue
            decided = route(
                chain["group"],
                delay_level=answer.delay_level,
                reconsume_times=times,
                max_reconsume_times=most[chain["group"]],
                retry_queue=0,
                levels=ORACLE_LEVELS,
            )
            properties = property_edits(decided, topic, own_id).apply(properties)
            copy = next(copies)
            assert place(copy) == (decided.topic, decided.queue_id, decided.reconsume_times)
            if decided.dead:
                leaked = set(LEAK[1:]) if times else set()
                assert difference(copy["properties"], properties) == leaked
                seen["dead, retried before" if times else "dead at once"] += 1
                break
            assert copy["properties"] == properties
            due = ORACLE_LEVELS.compute_deliver_timestamp(decided.delay_level, copy["storeTimestamp"])
            assert copy["tagsCode"] == due
            seen["schedule"] += 1

            delivered = next(copies)
            properties = DELIVERED_EDITS.apply(properties)
            assert place(delivered) == (decided.real_topic, decided.real_queue_id, decided.reconsume_times)
            assert difference(delivered["properties"], properties) == set(LEAK)
            seen["delivered"] += 1
            topic, own_id, times = delivered["topic"], delivered["msgId"], delivered["reconsumeTimes"]
        assert next(copies, None) is None
    assert seen == {"schedule": 720, "delivered": 720, "dead at once": 173, "dead, retried before": 66}


def answer_to(delivery: dict[str, Any]) -> Answer:
    """What our ``judge`` makes of what the scripted listener did with the batch of this delivery."""
    returned, ack_index = delivery["returned"], delivery["ackIndex"]
    queue = delivery["queue"]
    context = ConsumeConcurrentlyContext(MessageQueue(queue["topic"], queue["brokerName"], queue["queueId"]))
    context.delay_level_when_next_consume = delivery["delayLevel"]
    if ack_index is not None:
        context.ack_index = ack_index
    error = RuntimeError("scripted") if returned == "throw" else None
    status = None if returned in ("null", "throw") else returned
    return judge(status, delivery["batchSize"], context, error)[delivery["positionInBatch"]]


def place(copy: dict[str, Any]) -> tuple[str, int, int]:
    return copy["topic"], copy["queueId"], copy["reconsumeTimes"]


def difference(theirs: dict[str, str], ours: dict[str, str]) -> set[str]:
    """Names that only the broker's copy has; every other name must be equal."""
    assert {name: theirs.get(name) for name in ours} == ours
    return theirs.keys() - ours.keys()


def test_odd_levels_are_stored_as_the_broker_stores_them() -> None:
    """The single send-backs of ``market-requests``: levels 0 to 99, negative ones, limits 0 and 1."""
    requests = vectors.behaviour("market-requests")
    sent_back = [row["input"] for row in requests if row["what"] == "send back"]
    sent_back = [asked for asked in sent_back if asked["maxReconsumeTimes"] != -1]  # on the wire: no retry at all
    stored = Counter(
        (row["answer"]["properties"]["DELAY"], row["answer"]["reconsumeTimes"])
        for row in requests
        if row["what"].startswith("stored in") and row["answer"]["properties"]["KEYS"] != "key9"
    )
    ours = Counter(
        (str(decided.delay_level), decided.reconsume_times)
        for asked in sent_back
        for decided in [back(delay_level=asked["delayLevel"], max_reconsume_times=asked["maxReconsumeTimes"])]
    )
    assert len(sent_back) == 10
    assert ours == stored


# --- the rules --------------------------------------------------------------------------------------------------------


def test_sixteen_retries_climb_from_level_three_and_the_next_failure_is_dead() -> None:
    routes = [back(reconsume_times=times) for times in range(17)]
    assert [decided.delay_level for decided in routes[:-1]] == list(range(3, 19))
    assert routes[-1] == SendBack("%DLQ%g", 0, "%DLQ%g", 0, 0, 17, Cause.MAX_RECONSUME_TIMES)


def test_a_raised_limit_stays_at_the_highest_level() -> None:
    assert back(reconsume_times=40, max_reconsume_times=100).delay_level == 18


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ({"delay_level": -1}, Cause.DELAY_LEVEL),
        ({"max_reconsume_times": 0, "delay_level": 5}, Cause.MAX_RECONSUME_TIMES),
        ({"retry_queue": None}, Cause.NO_RETRY_QUEUE),
        ({"delay_level": 5}, Cause.RETRY),
    ],
)
def test_the_cause_is_named(asked: dict[str, Any], cause: Cause) -> None:
    assert back(**asked).cause is cause
    assert back(**asked).dead is (cause is not Cause.RETRY)


def test_a_group_without_retry_queues_loses_nothing() -> None:
    assert retry_queue_id("T", "b", 0, 7, 0) is None
    assert back(retry_queue=retry_queue_id("T", "b", 0, 7, 0)).topic == "%DLQ%g"


def test_the_retry_queue_is_the_same_on_every_machine() -> None:
    places = [("OrderEvents", "broker-a", 0, 0), ("OrderEvents", "broker-a", 0, 1), ("日本", "b", 3, 1 << 40)]
    assert [retry_queue_id(*place, retry_queue_nums=16) for place in places] == [13, 1, 13]
    assert retry_queue_id("T", "b", 0, 5, 1) == 0


def test_retry_queues_are_used_evenly() -> None:
    used = Counter(retry_queue_id("T", "b", 0, offset, 4) for offset in range(4000))
    assert set(used) == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in used.values())


def test_a_delay_level_overrules_a_timer() -> None:
    timed = {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "k": "v"}
    kept = property_edits(back(), "T", "id").apply(timed)
    assert not kept.keys() & (timed.keys() - {"k"})
    assert kept["k"] == "v"


def test_edits_are_the_same_for_all_messages_but_for_their_id() -> None:
    one, other = (property_edits(back(), "T", own_id) for own_id in ("id-1", "id-2"))
    assert (one.put, one.remove) == (other.put, other.remove)
    assert dict(one.put_if_absent) == {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "id-1"}


def test_the_first_copys_id_stays_along_the_chain() -> None:
    message = MessageExt("T", "lake-a", 2, 9)
    assert origin_message_id(message) == message_id("", "T", "lake-a", 2, 9) == "T/lake-a/2/9"
    retry = MessageExt("%RETRY%g", "lake-a", 0, 1, properties={"ORIGIN_MESSAGE_ID": "T/lake-a/2/9"}, offset_msg_id="AB")
    assert origin_message_id(retry) == "T/lake-a/2/9"
    assert origin_message_id(MessageExt("T", "broker-a", 0, 1, offset_msg_id="AB")) == "AB"
