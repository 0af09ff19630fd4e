"""``behaviour/NAME.chains``: what was stored of each message that failed, followed with our own rules from hop to hop.

Needs ``NAME.groups`` and ``NAME.trace``, whose calls are the deliveries. What the same messages go through here is in
``rerun``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rmq_store.consumer.consume_result_orderly import OrderlyMessage, messages_over_limit
from rmq_store.consumer.listener import Answer
from rmq_store.consumer.retry import DELIVERED_EDITS, SendBack, property_edits, route, sent_away_edits
from rmq_store.message import dlq_topic
from rmq_store.producer import BROKER_PROPERTIES
from tests.conformance.behaviour import answers, is_concurrent, orderly_status
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, per_line, same
from tests.conformance.messages import of_row

COPIED = ("bodySha256", "bornHost", "bornTimestamp", "flag", "sysFlag")
SENT_AGAIN = ("bodySha256", "flag")
"""The same of a message that an orderly client sends away: it is a new one."""
REAL = {"REAL_QID", "REAL_TOPIC"}
LEAK = {"DELAY", *REAL}
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
            leaked = REAL if times else REAL & original["properties"].keys()
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
        yield _same_properties(f"{said}: delivered copy", delivered, properties, LEAK)
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
        properties = original["properties"]
        yield _same_properties(f"{said}: sent", copy, edits.apply(properties), _added(properties))


def _added(properties: Mapping[str, str]) -> set[str]:
    """What a message that an orderly client sends away has more: of its pull, of a copy that was delivered, and what the
    broker adds to whatever is sent, if the message has not got it yet, as one of a producer's batch has not."""
    return {"MAX_OFFSET", "MIN_OFFSET", *(REAL & properties.keys()), *(BROKER_PROPERTIES.keys() - properties.keys())}
