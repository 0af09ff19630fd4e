"""``behaviour/NAME.chains``: what was stored of each message that failed, followed with our own rules from hop to hop.

Needs ``NAME.groups`` and ``NAME.trace``, whose calls are the deliveries. What the same messages go through here is in
``rerun``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rmq_store.consumer.consume_result_orderly import OrderlyMessage, messages_over_limit
from rmq_store.consumer.listener import Answer
from rmq_store.consumer.retry import (
    DEFAULT_MAX_RECONSUME_TIMES,
    DELIVERED_EDITS,
    SendBack,
    property_edits,
    route,
    sent_away_edits,
)
from rmq_store.message.message_const import SCHEDULE_TOPIC, dlq_topic
from rmq_store.producer.producer import BROKER_PROPERTIES
from tests.conformance.behaviour import OF_THE_CLIENT, answers, is_concurrent, orderly_status
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, per_line, same
from tests.conformance.messages import of_row

COPIED = ("bodySha256", "bornHost", "bornTimestamp", "flag", "sysFlag")
SENT_AGAIN = ("bodySha256", "flag")
"""The same of a message that an orderly client sends away: it is a new one."""
REAL = frozenset({"REAL_QID", "REAL_TOPIC"})
NOTHING = frozenset[str]()
LEAK = frozenset({"DELAY", *REAL})
"""What the broker leaves in a delivered copy, and REAL_* of it, or of a delayed original, in the dead letter that follows;
ours are without."""


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
    if is_concurrent(group):
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


@dataclass(frozen=True, slots=True)
class _Readable:
    """A message of a chain as a consumer can get it: the first one, or the copy of it in the retry topic."""

    topic: str
    own_id: str
    times: int
    properties: dict[str, str]
    copied: dict[str, Any]
    leaked: frozenset[str]

    def delivered(self, copy: Line) -> _Readable:
        """The same after the broker has copied it to its retry topic."""
        properties = DELIVERED_EDITS.apply(self.properties)
        return _Readable(copy["topic"], copy["msgId"], copy["reconsumeTimes"], properties, self.copied, REAL)


def _chain_of_send_backs(chain: Line, group: Line, store: BrokerStore) -> Outcomes:
    """From each readable message along its deliveries. There are several only where a queue went to another member, which
    read again what the one before had not committed; what that one answered then may have counted for nothing."""
    said, key = f"{chain['group']} {chain['uniqKey']}", chain["uniqKey"]
    deliveries: dict[str, list[Line]] = defaultdict(list)
    for delivery in chain["deliveries"]:
        deliveries[delivery["offsetMsgId"]].append(delivery)
    left, ends, readable = list(chain["copies"]), set[str](), deque([_first(chain, store)])
    while readable:
        message = readable.popleft()
        of_message = deliveries.pop(message.own_id, [])
        if not of_message:
            ends.add("retry topic")
        for delivery in of_message:
            yield same(f"{said}: retries of a delivered message", message.times, delivery["reconsumeTimes"])
            answer = answers(delivery, delivery["batchSize"])[delivery["positionInBatch"]]
            if answer.acked:
                ends.add("acked")
                continue
            copy = _taken(left, (SCHEDULE_TOPIC, dlq_topic(group["group"])), message.times + 1)
            if copy is None:
                yield same(f"{said}: deliveries without a copy", len(of_message) > 1, True)
                continue
            decided, sent = _sent(message, answer, copy, group, key, store)
            yield from _sent_back(said, decided, sent, copy, store)
            delivered = None if decided.dead else _taken(left, (decided.real_topic,), decided.reconsume_times)
            ends.add("dead" if decided.dead else "waiting" if delivered is None else "delivered")
            if delivered is not None:
                readable.append(sent.delivered(delivered))
                yield from _delivered(said, decided, readable[-1], delivered)
    yield same(f"{said}: deliveries of something else", list(deliveries), [])
    yield same(f"{said}: copies left", left, [])
    yield same(f"{said}: one of the ends {sorted(ends)}", chain["final"] in ends, True)


def sent_as_new(chain: Line, store: BrokerStore) -> Iterator[int]:
    """After how many failures the client could not send it back, and sent it as a new message."""
    born = _first(chain, store).copied["bornTimestamp"]
    for copy in chain["copies"]:
        if copy["bornTimestamp"] != born:
            yield copy["reconsumeTimes"] - 1
            born = copy["bornTimestamp"]


def _first(chain: Line, store: BrokerStore) -> _Readable:
    first = chain["deliveries"][0]
    row = store.messages[first["queue"]["topic"], first["queue"]["queueId"], first["queueOffset"]]
    copied = {name: of_row(row)[name] for name in COPIED}
    leaked = frozenset(REAL & row["properties"].keys())
    return _Readable(row["topic"], row["offset_msg_id"], 0, row["properties"], copied, leaked)


def _taken(left: list[Line], topics: Sequence[str], times: int) -> Line | None:
    """The next copy of this kind, taken out of those left."""
    found = next((copy for copy in left if copy["topic"] in topics and copy["reconsumeTimes"] == times), None)
    if found is not None:
        left.remove(found)
    return found


def _sent(
    message: _Readable, answer: Answer, copy: Line, group: Line, key: str, store: BrokerStore
) -> tuple[SendBack, _Readable]:
    """What our rules make of a delivery that failed. A client that cannot send a message back sends it as a new one, which
    asks for no level, and takes along what the client had added to it (rules 10.5)."""
    if copy["bornTimestamp"] == message.copied["bornTimestamp"]:
        decided = _decided(group, answer, message.times, copy, store)
        properties = property_edits(decided, message.topic, message.own_id).apply(message.properties)
        return decided, replace(message, properties=properties, leaked=message.leaked if decided.dead else NOTHING)
    decided = _decided(group, Answer(False), message.times, copy, store)
    most = group["maxReconsumeTimes"]
    edits = sent_away_edits(decided, message.topic, key, DEFAULT_MAX_RECONSUME_TIMES if most == -1 else most)
    properties = edits.apply(message.properties)
    if not decided.dead:
        as_sent = {name: properties[name] for name in ("WAIT",) if name in properties}
        properties = property_edits(decided, message.topic, message.own_id).apply(properties) | as_sent
    theirs = copy["properties"]
    by_broker, by_client = (
        {name: theirs.get(name, "") for name in names} for names in (BROKER_PROPERTIES, OF_THE_CLIENT)
    )
    copied = message.copied | {name: copy[name] for name in COPIED if name not in SENT_AGAIN}
    leaked = message.leaked if decided.dead else NOTHING
    return decided, replace(message, properties=by_broker | properties | by_client, copied=copied, leaked=leaked)


def _sent_back(said: str, decided: SendBack, sent: _Readable, copy: Line, store: BrokerStore) -> Outcomes:
    yield same(f"{said}: place", _place(copy), (decided.topic, decided.queue_id, decided.reconsume_times))
    yield same(f"{said}: copied", sent.copied, {name: copy[name] for name in COPIED})
    what = "dead letter" if decided.dead else "waiting"
    yield _same_properties(f"{said}: {what}", copy, sent.properties, sent.leaked)
    if not decided.dead:
        due = store.levels.compute_deliver_timestamp(decided.delay_level, copy["storeTimestamp"])
        yield same(f"{said}: due", due, copy["tagsCode"])


def _delivered(said: str, decided: SendBack, message: _Readable, copy: Line) -> Outcomes:
    place = decided.real_topic, decided.real_queue_id, decided.reconsume_times
    yield same(f"{said}: place of the delivered copy", _place(copy), place)
    yield _same_properties(f"{said}: delivered copy", copy, message.properties, LEAK)


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


def _same_properties(what: str, copy: Line, ours: dict[str, str], leaked: Set[str]) -> str | None:
    """Every property of ours is the broker's, which has those more that it leaks."""
    theirs = copy["properties"]
    return same(what, (ours, leaked), ({name: theirs.get(name) for name in ours}, theirs.keys() - ours.keys()))


def _chain_of_an_orderly_group(chain: Line, group: Line, store: BrokerStore) -> Outcomes:
    """A try over the limit is sent as a new message: a dead letter at a broker that has the group's lock (rules 10.5)."""
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
        properties = original["properties"]
        yield _same_properties(f"{said}: sent", copy, edits.apply(properties), _added(properties))


def _added(properties: Mapping[str, str]) -> set[str]:
    """What a message that an orderly client sends away has more: of its pull, of a copy that was delivered, and what the
    broker adds to whatever is sent, if the message has not got it yet, as one of a producer's batch has not."""
    return {"MAX_OFFSET", "MIN_OFFSET", *(REAL & properties.keys()), *(BROKER_PROPERTIES.keys() - properties.keys())}
