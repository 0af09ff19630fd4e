"""A line of ``NAME.groups``: which consumer it is, what it reads, and what is stored for it."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.consumer.consume_result import MessageModel
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from tests.conformance.broker_store import BrokerStore, QueueKey
from tests.conformance.checks import Line, Outcome, same
from tests.conformance.scripts import ORDERLY_SCRIPTS

Offsets = Mapping[QueueKey, int | None]
"""What is stored of queues; None, or no such queue: nothing."""


def is_in_order(group: Line) -> bool:
    return group["script"] in ORDERLY_SCRIPTS


def is_broadcasting(group: Line) -> bool:
    found: bool = group["model"] == MessageModel.BROADCASTING
    return found


def client_of(group: Line) -> str:
    """The member's name in a trace: what is behind its address."""
    name: str = group["clientId"].rpartition("@")[2]
    return name


def topics_of(group: Line) -> list[str]:
    """One is told as a text, several as a list."""
    topic = group["topic"]
    return [topic] if isinstance(topic, str) else topic


def subscription_of(topic: str, group: Line) -> SubscriptionData:
    if "sql" in group:
        return build_subscription_data(topic, group["sql"], "SQL92")
    return build_subscription_data(topic, group["subscription"])


def wants_any(group: Line, store: BrokerStore) -> bool:
    """Whether there is a message that it selects."""
    queues = [queue for queue in store.by_queue if queue[0] in topics_of(group)]
    return any(_next_wanted(group, store, queue, 0) <= store.by_queue[queue][-1]["queue_offset"] for queue in queues)


def broadcasting_clients(store: BrokerStore) -> list[Line]:
    """Those that get anything."""
    return [line for line in store.lines("groups") if is_broadcasting(line) and wants_any(line, store)]


def same_stored(what: str, group: Line, store: BrokerStore, queue: QueueKey, ours: int | None) -> Outcome:
    """Whether the offset stored for a group stands where the broker's does; None: there is none."""
    row = store.lag.get((group["group"], *queue))
    return same_place(what, group, store, {queue: ours}, {queue: None if row is None else row["next_offset"]})


def same_place(what: str, group: Line, store: BrokerStore, ours: Offsets, theirs: Offsets) -> Outcome:
    """Whether offsets of our queues stand before the same messages.

    A client moves an offset over messages that its filter drops when it pulls at the right moment, and a queue is stored
    at its beginning or not at all before its first commit. So an offset stands before the next message that is wanted.
    """
    found, wanted = (
        {queue: _next_wanted(group, store, queue, offsets.get(queue)) for queue in ours} for offsets in (ours, theirs)
    )
    return same(what, found, wanted)


def _next_wanted(group: Line, store: BrokerStore, queue: QueueKey, stored: int | None) -> int:
    """The first message from there on that the group's subscription selects; the end if there is none."""
    data, rows = subscription_of(queue[0], group), store.by_queue.get(queue, [])
    left = [row for row in rows if stored is None or row["queue_offset"] >= stored]
    end = max([stored or 0, *(row["queue_offset"] + 1 for row in rows[-1:])])
    wanted = (int(row["queue_offset"]) for row in left if data.matches(row["tags_code"], row["properties"]))
    return next(wanted, int(end))
