"""``behaviour/NAME.*``: what producers were told, what scripted consumers saw and answered. What became of it is in
``chains``.

``trace`` needs ``NAME.groups``, which says how each group was set up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.consume_result_orderly import (
    OrderlyMessage,
    finish,
    messages_over_limit,
    orderly_status_of,
    process_consume_result,
)
from rmq_store.consumer.listener import (
    Answer,
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    judge,
)
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, dlq_topic, retry_topic
from tests.conformance.broker_store import BROKER, BrokerStore, MessageKey
from tests.conformance.checks import Line, NotChecked, Outcome, Outcomes, per_line, same
from tests.conformance.groups import client_of, is_in_order, same_stored, wants_any
from tests.conformance.scripts import LEVEL_ON_FAILURE, NO_PLAN, SCRIPTS, script_named

OF_THE_CLIENT = ("CONSUME_START_TIME", "MAX_OFFSET", "MIN_OFFSET")
"""Properties that a client sets when it has pulled a message."""
OF_A_SENT_COPY = ("DELAY", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "RETRY_TOPIC")
NO_ID = "null"
"""The offset id that a transactional producer is told."""


# --- sends -----------------------------------------------------------------------------------------------------------


def check_sent(lines: Sequence[Sequence[Any]], store: BrokerStore) -> Outcomes:
    """[topic, queue, queue offset, UNIQ_KEYs, offset ids]: both are lists for a batch, which lies together.

    The broker names the queue that the producer asked for; delayed and undecided messages lie elsewhere.
    """
    text = "SELECT topic, queue_id, queue_offset, unique_key, offset_msg_id, properties FROM msg"
    stored = {row.pop("offset_msg_id"): row for row in store.imported.rows(text)}
    first_kept = store.log.files[0].start_offset
    yield from per_line(_sent)(lines, stored, first_kept)


def _sent(line: Sequence[Any], stored: dict[str, Line], first_kept: int) -> Outcomes:
    topic, queue_id, queue_offset, keys, ids = line
    if ids == NO_ID:
        topics = {row["topic"]: row for row in stored.values() if row["unique_key"] == keys}
        bound_for = {asked_topic(name, row["properties"]) for name, row in topics.items()}
        yield same(f"{keys} is stored, for {topic}", topic in bound_for, True)
        return
    for place, (key, id_) in enumerate(zip(keys.split(","), ids.split(","), strict=True)):
        row = stored.get(id_)
        if row is None and int(id_[-16:], 16) < first_kept:
            continue  # removed by retention
        yield same(f"key of {id_}", row and row["unique_key"], key)
        yield same(f"topic of {id_}", row and asked_topic(row["topic"], row["properties"]), topic)
        if row and row["topic"] == topic:
            found = row["queue_id"], row["queue_offset"]
            yield same(f"place of {id_}", found, (queue_id, queue_offset + place))


def asked_topic(topic: str, properties: Mapping[str, str]) -> str:
    """What its producer named: one that waits, or is not decided, lies in another topic and keeps the name. In any other
    a REAL_TOPIC is left of a message that was sent again."""
    return properties["REAL_TOPIC"] if topic in (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC) else topic


# --- calls of a handler ----------------------------------------------------------------------------------------------


class _Seen:
    """What a listener sees of the store's messages."""

    def __init__(self, store: BrokerStore) -> None:
        self._messages: dict[MessageKey, MessageExt] = dict(_views(store))
        self.copies = set(_copies(store))

    def at(self, queue: Line, offset: int) -> MessageExt | None:
        return self._messages.get((queue["topic"], queue["queueId"], offset))


def _views(store: BrokerStore) -> Iterator[tuple[MessageKey, MessageExt]]:
    for (topic, queue_id), batch in store.batches.items():
        offsets = batch.column("queue_offset").to_numpy()
        queue = MessageQueue(topic, BROKER, queue_id)
        views = MessageViews(queue, np.asarray(offsets), batch)
        for offset, message in zip(offsets.tolist(), views.messages(0, len(offsets)), strict=True):
            yield (topic, queue_id, offset), message


def _copies(store: BrokerStore) -> Iterator[tuple[str, str, int]]:
    """Of each copy of a message that failed: where it is bound for, its key, its retries."""
    for row in store.messages.values():
        yield row["properties"].get("REAL_TOPIC", row["topic"]), row["unique_key"], row["reconsume_times"]
        yield row["topic"], row["unique_key"], row["reconsume_times"]


def check_trace(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    groups = {row["group"]: row for row in store.lines("groups")}
    idle = groups.keys() - {line["group"] for line in lines}
    yield same("groups without a call", sorted(name for name in idle if wants_any(groups[name], store)), [])
    yield same("brokers of the store", len({line["queue"]["brokerName"] for line in lines}), 1)
    clients = {(row["group"], client_of(row)) for row in store.lines("groups")}
    strangers = {(line["group"], line["client"]) for line in lines} - clients
    yield same("clients that are in no group", strangers, set())
    yield from per_line(_call)(lines, _Seen(store), groups)
    yield from (_script_said(line, groups[line["group"]]) for line in sorted(lines, key=lambda line: line["at"]))
    for name, group in groups.items():
        if not is_concurrent(group):
            yield from _orderly_calls([line for line in lines if line["group"] == name], group, store)


def _call(line: Line, seen: _Seen, groups: dict[str, Line]) -> Outcomes:
    group, queue = groups[line["group"]], line["queue"]
    for number, message in enumerate(line["messages"]):
        found = seen.at(queue, message["queueOffset"])
        if found is None:
            yield f"{group['group']}: there is no message {message['queueOffset']} in {queue}"
            continue
        ours, theirs = _as_seen(found), _without_the_clients(message)
        if not is_concurrent(group):
            ours |= _kept_by_the_client(message, ours, group)
        differs = {key for key in theirs if ours[key] != theirs[key]}
        said = f"message {number} of a call of {group['group']}"
        yield same(said, *({key: values[key] for key in sorted(differs)} for values in (ours, theirs)))
    yield from _answered(line, seen, group)


def _as_seen(message: MessageExt) -> dict[str, Any]:
    """A message in the words of the trace."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "reconsumeTimes": message.reconsume_times,
        "plan": message.get_property("plan") or NO_PLAN,
        "tags": message.tags,
        "storeSize": message.store_size,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "properties": {key: value for key, value in message.properties.items() if key not in OF_THE_CLIENT},
    }


def _kept_by_the_client(message: Line, ours: dict[str, Any], group: Line) -> dict[str, Any]:
    """An orderly client counts the retries itself. One that was sent away before its batch was tried again still has the
    properties that this gave it; they are in no record."""
    times = message["reconsumeTimes"]
    suspended = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    may_be_sent = messages_over_limit(suspended, [OrderlyMessage(0, times)], group["maxReconsumeTimes"])
    given = {
        key: value for key, value in message.get("properties", {}).items() if may_be_sent and key in OF_A_SENT_COPY
    }
    return {"reconsumeTimes": times, "properties": ours["properties"] | given}


def _without_the_clients(message: Line) -> Line:
    if "properties" not in message:
        return message
    properties = {key: value for key, value in message["properties"].items() if key not in OF_THE_CLIENT}
    return message | {"properties": properties}


def _script_said(line: Line, group: Line) -> Outcome:
    """Whether our script of that name answers as the one of the broker's consumer did."""
    queue, script = line["queue"], group["script"]
    if script not in SCRIPTS and not LEVEL_ON_FAILURE.match(script):
        return NotChecked(f"a script that is not known: {script}")
    where = MessageQueue(queue["topic"], queue["brokerName"], queue["queueId"])
    msgs = [
        MessageExt(
            where.topic,
            where.broker_name,
            where.queue_id,
            message["queueOffset"],
            reconsume_times=message["reconsumeTimes"],
            properties={"plan": message["plan"]},
        )
        for message in line["messages"]
    ]
    kind = ConsumeConcurrentlyContext if is_concurrent(group) else ConsumeOrderlyContext
    context = kind(where, group["group"])
    try:
        said = script_named(script)(msgs, context)
    except RuntimeError:
        said = "throw"
    ours = {"returned": "null" if said is None else said}
    theirs = {"returned": line["returned"]}
    if isinstance(context, ConsumeConcurrentlyContext):
        usual = ConsumeConcurrentlyContext(where, group["group"])
        ack_index, level = line["ackIndex"], line["delayLevel"]
        ours |= {"ackIndex": context.ack_index, "delayLevel": context.delay_level_when_next_consume}
        theirs |= {"ackIndex": usual.ack_index if ack_index is None else ack_index, "delayLevel": level or 0}
    else:  # nothing of the kind can be said in order
        ours |= {"autoCommit": context.auto_commit, "ackIndex": None, "delayLevel": None}
        theirs |= {"autoCommit": line.get("more", {}).get("autoCommit", True)}
        theirs |= {"ackIndex": line["ackIndex"], "delayLevel": line["delayLevel"]}
    return same(f"script of {group['group']}", ours, theirs)


def _answered(line: Line, seen: _Seen, group: Line) -> Outcomes:
    """What failed by our judgement has a copy in the broker's store, and nothing else has."""
    name, sent_back = group["group"], set(_sent_back(line, group))
    for place, message in enumerate(line["messages"]):
        key, times = message["msgId"], message["reconsumeTimes"] + 1
        copied = any((topic, key, times) in seen.copies for topic in (retry_topic(name), dlq_topic(name)))
        if place in sent_back or is_concurrent(group):
            yield same(f"{name} sends {key} back", place in sent_back, copied)


def _sent_back(line: Line, group: Line) -> list[int]:
    """Positions in the batch."""
    if not is_concurrent(group):
        batch = [OrderlyMessage(place, message["reconsumeTimes"]) for place, message in enumerate(line["messages"])]
        status = orderly_status(line["returned"])
        return [place for place, _ in messages_over_limit(status, batch, group["maxReconsumeTimes"])]
    if group["model"] == MessageModel.BROADCASTING:
        return []
    return [place for place, answer in enumerate(answers(line, len(line["messages"]))) if not answer.acked]


def _orderly_calls(lines: Sequence[Line], group: Line, store: BrokerStore) -> Outcomes:
    """Every call follows from the answers before it; so do the offsets stored and the dead letters at the end."""
    name, sent_away = group["group"], Counter[str]()
    calls: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["at"]):
        calls[line["queue"]["topic"], line["queue"]["queueId"]].append(line)
    for (topic, queue_id), of_queue in calls.items():
        counted = [call["more"]["call"] for call in of_queue if "call" in call.get("more", {})]
        yield same(f"calls of {name} in {topic} {queue_id}", counted, list(range(1, len(counted) + 1)))
        replay = _OrderlyQueue(of_queue, group)
        for call in of_queue:
            yield from replay.call(call)
        sent_away += replay.sent_away
        yield same_stored(f"{name} in {topic} {queue_id}: stored", group, store, (topic, queue_id), replay.stored)
    dead = Counter(row["unique_key"] for key, row in store.messages.items() if key[0] == dlq_topic(name))
    yield same(f"dead letters of {name}", dict(sent_away), dict(dead))


class _OrderlyQueue:
    """One queue of an orderly group, by our rules. Every sending away works. Another member begins anew: tries are counted
    in a client's memory, and what it did last counts only if it still had the queue."""

    def __init__(self, calls: Sequence[Line], group: Line) -> None:
        self.stored: int | None = None
        self.sent_away = Counter[str]()
        self._group = group
        self._offsets = sorted({message["queueOffset"] for call in calls for message in call["messages"]})
        self._client = ""

    def call(self, call: Line) -> Outcomes:
        """Whether the call is the next one; then what its answer leads to."""
        seen = [(message["queueOffset"], message["reconsumeTimes"]) for message in call["messages"]]
        said = f"call of {self._group['group']}"
        if call["client"] != self._client:
            self._begin(call)
            left_out = [offset for offset in self._offsets if (self.stored or 0) <= offset < seen[0][0]]
            yield same(f"{said}: left out by {self._client}", left_out, [])
        taken = self._queue.take_messages(len(seen))
        yield same(said, [(offset, self._times[offset]) for offset in taken], seen)
        batch = [OrderlyMessage(offset, self._times[offset]) for offset in taken]
        status = orderly_status(call["returned"])
        sent = [offset for offset, _ in messages_over_limit(status, batch, self._group["maxReconsumeTimes"])]
        self.sent_away.update(message["msgId"] for message in call["messages"] if message["queueOffset"] in sent)
        auto_commit = call.get("more", {}).get("autoCommit", True)
        result = process_consume_result(status, batch, sent, auto_commit=auto_commit)
        self._times.update(result.tried_again)
        committed = finish(self._queue, [(offset, 1) for offset in taken], result)
        self.stored = self.stored if committed is None else committed

    def _begin(self, call: Line) -> None:
        self._client, self._times, self._queue = call["client"], Counter[int](), ProcessQueue()
        first = call["messages"][0]["queueOffset"]
        self._queue.put_message([(offset, 1) for offset in self._offsets if offset >= first])


def orderly_status(returned: str) -> ConsumeOrderlyStatus:
    return orderly_status_of(None if returned in ("null", "throw") else returned)


def answers(line: Line, batch_size: int) -> tuple[Answer, ...]:
    """What our ``judge`` makes of what the scripted listener did."""
    returned, queue = line["returned"], line["queue"]
    context = ConsumeConcurrentlyContext(MessageQueue(queue["topic"], queue["brokerName"], queue["queueId"]))
    context.delay_level_when_next_consume = line["delayLevel"]
    if line["ackIndex"] is not None:
        context.ack_index = line["ackIndex"]
    error = RuntimeError("scripted") if returned == "throw" else None
    return judge(None if returned in ("null", "throw") else returned, batch_size, context, error)


def is_concurrent(group: Line) -> bool:
    return not is_in_order(group)
