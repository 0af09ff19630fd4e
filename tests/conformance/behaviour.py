"""``behaviour/NAME.*``: what producers were told, what scripted consumers saw and answered, and what became of it.

``trace`` and ``chains`` need ``NAME.groups``, which says how each group was set up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rmq_store.broker_files.broker_json import parse, render
from rmq_store.broker_files.local_offsets import parse_local_offsets
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
from rmq_store.consumer.pull import Slice
from rmq_store.consumer.retry import DELIVERED_EDITS, SendBack, property_edits, route, sent_away_edits
from rmq_store.lake.message_view import MessageViews
from rmq_store.message import MessageExt, MessageQueue, dlq_topic, retry_topic
from tests.conformance.broker_store import BROKER, BrokerStore, MessageKey
from tests.conformance.checks import Line, NotChecked, Outcome, Outcomes, per_line, same
from tests.conformance.messages import of_row
from tests.conformance.scripts import LEVEL_ON_FAILURE, NO_PLAN, ORDERLY_SCRIPTS, SCRIPTS, script_named

OF_THE_CLIENT = ("CONSUME_START_TIME", "MAX_OFFSET", "MIN_OFFSET")
"""Properties that a client sets when it has pulled a message."""
OF_A_SENT_COPY = ("DELAY", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "RETRY_TOPIC")
NO_ID = "null"
"""The offset id that a transactional producer is told."""
COPIED = ("bodySha256", "bornHost", "bornTimestamp", "flag", "sysFlag")
SENT_AGAIN = ("bodySha256", "flag")
"""The same of a message that an orderly client sends away: it is a new one."""
REAL = ("REAL_QID", "REAL_TOPIC")
LEAK = ("DELAY", *REAL)
"""What the broker leaves in a delivered copy, and REAL_* of it in the dead letter that follows; ours are without."""


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
    """What its producer named: one that waits, or is not decided, lies in another topic and keeps the name."""
    return properties.get("REAL_TOPIC", topic)


def check_local_offsets(text: str, store: BrokerStore) -> Outcomes:
    """A broadcasting client's own file: read, rendered again, and of queues that are there."""
    offsets = parse_local_offsets(text)
    yield same("rendered", render(parse(text)), text)
    for queue, offset in offsets.items():
        here = MessageQueue(queue.topic, BROKER, queue.queue_id)
        within = 0 <= offset <= store.positions.max_offset(here)
        yield same(f"{offset} is an offset of {here}", within, True)


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
        slice_ = Slice(queue, int(offsets[0]), int(offsets[-1]) + 1, file="", first_row=0)
        views = MessageViews(slice_, np.asarray(offsets), batch)
        for offset, message in zip(offsets.tolist(), views.messages(0, len(offsets)), strict=True):
            yield (topic, queue_id, offset), message


def _copies(store: BrokerStore) -> Iterator[tuple[str, str, int]]:
    """Of each copy of a message that failed: where it is bound for, its key, its retries."""
    for row in store.messages.values():
        yield row["properties"].get("REAL_TOPIC", row["topic"]), row["unique_key"], row["reconsume_times"]
        yield row["topic"], row["unique_key"], row["reconsume_times"]


def check_trace(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    groups = {row["group"]: row for row in store.lines("groups")}
    yield same("groups without a call", sorted(groups.keys() - {line["group"] for line in lines}), [])
    yield same("brokers of the store", len({line["queue"]["brokerName"] for line in lines}), 1)
    clients = {(row["group"], row["clientId"].rpartition("@")[2]) for row in store.lines("groups")}
    yield same("clients in trace and groups", {(line["group"], line["client"]) for line in lines}, clients)
    yield from per_line(_call)(lines, _Seen(store), groups)
    yield from (_script_said(line, groups[line["group"]]) for line in sorted(lines, key=lambda line: line["at"]))
    for name, group in groups.items():
        if not _is_concurrent(group):
            yield from _orderly_calls([line for line in lines if line["group"] == name], group, store)


def _call(line: Line, seen: _Seen, groups: dict[str, Line]) -> Outcomes:
    group, queue = groups[line["group"]], line["queue"]
    for number, message in enumerate(line["messages"]):
        found = seen.at(queue, message["queueOffset"])
        if found is None:
            yield f"{group['group']}: there is no message {message['queueOffset']} in {queue}"
            continue
        ours, theirs = _as_seen(found), _without_the_clients(message)
        if not _is_concurrent(group):
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
    may_be_sent = 0 <= group["maxReconsumeTimes"] <= times
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
    kind = ConsumeConcurrentlyContext if _is_concurrent(group) else ConsumeOrderlyContext
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
        if place in sent_back or _is_concurrent(group):
            yield same(f"{name} sends {key} back", place in sent_back, copied)


def _sent_back(line: Line, group: Line) -> list[int]:
    """Positions in the batch."""
    if not _is_concurrent(group):
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
        yield from map(replay.call, of_queue)
        sent_away += replay.sent_away
        row = store.lag.get((name, topic, queue_id))
        yield same(f"{name} in {topic} {queue_id}: stored", replay.stored, row and row["next_offset"])
    dead = Counter(row["unique_key"] for key, row in store.messages.items() if key[0] == dlq_topic(name))
    yield same(f"dead letters of {name}", dict(sent_away), dict(dead))


class _OrderlyQueue:
    """One queue of an orderly group, by our rules. Every sending away works."""

    def __init__(self, calls: Sequence[Line], group: Line) -> None:
        self.stored: int | None = None
        self.sent_away = Counter[str]()
        self._group = group
        self._times = Counter[int]()
        self._queue = ProcessQueue()
        offsets = {message["queueOffset"] for call in calls for message in call["messages"]}
        self._queue.put_message([(offset, 1) for offset in sorted(offsets)])

    def call(self, call: Line) -> str | None:
        """Whether the call is the next one; then what its answer leads to."""
        seen = [(message["queueOffset"], message["reconsumeTimes"]) for message in call["messages"]]
        taken = self._queue.take_messages(len(seen))
        differs = same(f"call of {self._group['group']}", [(offset, self._times[offset]) for offset in taken], seen)
        batch = [OrderlyMessage(offset, self._times[offset]) for offset in taken]
        status = orderly_status(call["returned"])
        sent = [offset for offset, _ in messages_over_limit(status, batch, self._group["maxReconsumeTimes"])]
        self.sent_away.update(message["msgId"] for message in call["messages"] if message["queueOffset"] in sent)
        auto_commit = call.get("more", {}).get("autoCommit", True)
        result = process_consume_result(status, batch, sent, auto_commit=auto_commit)
        self._times.update(result.tried_again)
        committed = finish(self._queue, [(offset, 1) for offset in taken], result)
        self.stored = self.stored if committed is None else committed
        return differs


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


def _is_concurrent(group: Line) -> bool:
    return group["script"] not in ORDERLY_SCRIPTS


# --- chains of copies ------------------------------------------------------------------------------------------------


def check_chains(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """Follows each chain with our own rules, from the first failure on, and compares each stored copy with ours."""
    groups = {row["group"]: row for row in store.lines("groups")}
    calls = {
        (call["group"], message["msgId"], call["at"], call["client"], place): call
        for call in store.lines("trace")
        for place, message in enumerate(call["messages"])
    }
    yield from per_line(_chain)(lines, store, groups, calls)


def _chain(chain: Line, store: BrokerStore, groups: dict[str, Line], calls: dict[tuple[Any, ...], Line]) -> Outcomes:
    group = groups[chain["group"]]
    for delivery in chain["deliveries"]:
        place = chain["uniqKey"], delivery["at"], delivery["client"], delivery["positionInBatch"]
        call = calls.get((chain["group"], *place))
        yield same(f"{chain['group']}: delivery of {chain['uniqKey']}", call and _delivery(call, place[-1]), delivery)
    for copy in chain["copies"]:
        yield from _stored(chain, copy, store)
    if _is_concurrent(group):
        yield from _chain_of_send_backs(chain, group, store)
    else:
        yield from _chain_of_an_orderly_group(chain, group, store)


def _delivery(call: Line, place: int) -> Line:
    """A message of a call, in the words of a chain."""
    message = call["messages"][place]
    of_call = {name: call[name] for name in ("at", "client", "queue", "returned", "ackIndex", "delayLevel")}
    of_message = {name: message[name] for name in ("queueOffset", "offsetMsgId", "reconsumeTimes", "plan")}
    return of_call | of_message | {"positionInBatch": place, "batchSize": len(call["messages"])}


def _stored(chain: Line, copy: Line, store: BrokerStore) -> Outcomes:
    """The lake has the copy."""
    row = store.messages.get((copy["topic"], copy["queueId"], copy["queueOffset"]))
    found = row and of_row(row)
    said = f"copy at {copy['commitLogOffset']} of {chain['group']}"
    yield same(said, found and {key: found[key] for key in copy}, copy)
    yield same(f"{said}: key", row and row["unique_key"], chain["uniqKey"])


def _chain_of_send_backs(chain: Line, group: Line, store: BrokerStore) -> Outcomes:
    said = f"{chain['group']} {chain['uniqKey']}"
    copies = iter(chain["copies"])
    first = chain["deliveries"][0]
    original = store.messages[first["queue"]["topic"], first["queue"]["queueId"], first["queueOffset"]]
    properties, topic, own_id = original["properties"], original["topic"], original["offset_msg_id"]
    times, final = 0, "acked"
    for delivery in chain["deliveries"]:
        found = delivery["offsetMsgId"], delivery["reconsumeTimes"]
        yield same(f"{said}: id and retries of a delivered message", (own_id, times), found)
        answer = answers(delivery, delivery["batchSize"])[delivery["positionInBatch"]]
        if answer.acked:
            final = "acked"
            continue
        copy = next(copies)
        decided = _decided(group, answer, times, copy, store)
        properties = property_edits(decided, topic, own_id).apply(properties)
        yield same(f"{said}: place", _place(copy), (decided.topic, decided.queue_id, decided.reconsume_times))
        yield same(
            f"{said}: copied", {key: of_row(original)[key] for key in COPIED}, {key: copy[key] for key in COPIED}
        )
        if decided.dead:
            leaked = set(REAL) if times else set()
            yield _same_properties(f"{said}: dead letter", copy, properties, leaked)
            final = "dead"
            break
        yield _same_properties(f"{said}: waiting", copy, properties, set())
        due = store.levels.compute_deliver_timestamp(decided.delay_level, copy["storeTimestamp"])
        yield same(f"{said}: due", due, copy["tagsCode"])
        delivered = next(copies, None)
        if delivered is None:
            final = "waiting"
            break
        properties = DELIVERED_EDITS.apply(properties)
        place = decided.real_topic, decided.real_queue_id, decided.reconsume_times
        yield same(f"{said}: place of the delivered copy", _place(delivered), place)
        yield _same_properties(f"{said}: delivered copy", delivered, properties, set(LEAK))
        topic, own_id, times = delivered["topic"], delivered["msgId"], delivered["reconsumeTimes"]
        final = "retry topic"  # until it is consumed again
    yield same(f"{said}: copies left", list(copies), [])
    yield same(f"{said}: end", final, chain["final"])


def _decided(group: Line, answer: Answer, times: int, copy: Line, store: BrokerStore) -> SendBack:
    """Where our rule sends it. A broker chooses the retry queue by chance, so its choice is taken."""
    return route(
        group["group"],
        delay_level=answer.delay_level,
        reconsume_times=times,
        max_reconsume_times=group["maxReconsumeTimes"],
        retry_queue=int(copy["properties"].get("REAL_QID", 0)),
        levels=store.levels,
    )


def _place(copy: Line) -> tuple[str, int, int]:
    return copy["topic"], copy["queueId"], copy["reconsumeTimes"]


def _same_properties(what: str, copy: Line, ours: dict[str, str], leaked: set[str]) -> str | None:
    """Every property of ours is the broker's, which has those more that it leaks."""
    theirs = copy["properties"]
    return same(what, (ours, leaked), ({name: theirs.get(name) for name in ours}, theirs.keys() - ours.keys()))


def _chain_of_an_orderly_group(chain: Line, group: Line, store: BrokerStore) -> Outcomes:
    """A try over the limit is sent as a new message, which a broker that knows the group's lock takes for dead (S10.5)."""
    over = partial(messages_over_limit, max_reconsume_times=group["maxReconsumeTimes"])
    sent = [
        (dlq_topic(chain["group"]), delivery["reconsumeTimes"] + 1)
        for delivery in chain["deliveries"]
        if over(orderly_status(delivery["returned"]), [OrderlyMessage(0, delivery["reconsumeTimes"])])
    ]
    found = [(copy["topic"], copy["reconsumeTimes"]) for copy in chain["copies"]]
    said = f"{chain['group']} {chain['uniqKey']}"
    yield same(f"{said}: copies", sent, found)
    first = chain["deliveries"][0]
    original = store.messages[first["queue"]["topic"], first["queue"]["queueId"], first["queueOffset"]]
    key = original["unique_key"] or original["offset_msg_id"]
    for copy in chain["copies"]:
        decided = route(
            group["group"],
            delay_level=0,
            reconsume_times=copy["reconsumeTimes"] - 1,
            max_reconsume_times=group["maxReconsumeTimes"],
            retry_queue=0,
            levels=store.levels,
        )
        edits = sent_away_edits(decided, original["topic"], key, group["maxReconsumeTimes"])
        yield same(f"{said}: place", _place(copy), (decided.topic, decided.queue_id, decided.reconsume_times))
        yield same(f"{said}: copied", {k: of_row(original)[k] for k in SENT_AGAIN}, {k: copy[k] for k in SENT_AGAIN})
        yield _same_properties(f"{said}: sent", copy, edits.apply(original["properties"]), {"MAX_OFFSET", "MIN_OFFSET"})
