"""Who consumes which queue: RocketMQ's six allocation strategies (``AllocateMessageQueueStrategy``, rules 6.2).

A strategy is a pure function ``(group, current_cid, mq_all, cid_all) -> queues of current_cid``. Each consumer computes
it by itself from the same two sorted lists (``sort_queues``, ``sort_client_ids``), so all agree without communication.
If two consumers take the same queue all the same, that costs time only: claims and the commit keep the result correct.

A consumer that is not in ``cid_all`` gets no queues. If there are more consumers than queues, some get none.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby

from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue

AllocateMessageQueueStrategy = Callable[
    [str, str | None, Sequence[MessageQueue] | None, Sequence[str] | None], list[MessageQueue]
]

DEFAULT_VIRTUAL_NODES = 10


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """By topic, broker name (Java string order) and then the queue id as a number."""
    return sorted(queues)


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """In Java string order, which compares UTF-16 units: "10.0.0.10" before "10.0.0.9", "B" before "a"."""
    return sorted(client_ids, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


def average(
    group: str, current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
) -> list[MessageQueue]:
    """``AVG``, the default: neighbouring queues, the first consumers get one more."""
    place = _own_place(current_cid, mq_all, cid_all)
    if place is None:
        return []
    queues, consumers, index = place
    share, remainder = divmod(len(queues), len(consumers))
    begin = index * share + min(index, remainder)
    return list(queues[begin : begin + share + (index < remainder)])


def average_by_circle(
    group: str, current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
) -> list[MessageQueue]:
    """``AVG_BY_CIRCLE``: queues dealt out one after the other, like cards."""
    place = _own_place(current_cid, mq_all, cid_all)
    if place is None:
        return []
    queues, consumers, index = place
    return list(queues[index :: len(consumers)])


def consistent_hash(virtual_nodes: int = DEFAULT_VIRTUAL_NODES) -> AllocateMessageQueueStrategy:
    """``CONSISTENT_HASH``: few queues move when a consumer comes or goes; a consumer may get none at all.

    Raises WrongUse for a negative number of virtual nodes; with 0 no consumer gets a queue.
    """
    if virtual_nodes < 0:
        raise WrongUse(f"illegal virtualNodeCnt :{virtual_nodes}")

    def allocate(
        group: str, current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
    ) -> list[MessageQueue]:
        place = _own_place(current_cid, mq_all, cid_all)
        if place is None or virtual_nodes == 0:
            return []
        queues, consumers, _ = place
        ring = _ring(consumers, virtual_nodes)
        points = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            index = bisect_left(points, _ring_hash(str(queue)))
            return ring[points[index % len(points)]]

        return [queue for queue in queues if owner(queue) == current_cid]

    return allocate


def config(queues: Sequence[MessageQueue] | None) -> AllocateMessageQueueStrategy:
    """``CONFIG``: always the given list, which is not compared with the queues. Raises WrongUse without a list."""
    if queues is None:
        raise WrongUse("allocation by CONFIG needs the list of queues for this consumer")
    fixed = tuple(queues)
    return lambda group, current_cid, mq_all, cid_all: list(fixed)


def machine_room(consumer_idcs: Collection[str] | None) -> AllocateMessageQueueStrategy:
    """``MACHINE_ROOM``: queues of brokers that are named ``room@broker``, in one of these rooms; others stay unread."""

    def allocate(
        group: str, current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
    ) -> list[MessageQueue]:
        place = _own_place(current_cid, mq_all, cid_all)
        if place is None:
            return []
        queues, consumers, index = place
        in_rooms = [(queue, room) for queue in queues if (room := _room_of_broker(queue.broker_name)) is not None]
        if in_rooms and consumer_idcs is None:  # RocketMQ throws a NullPointerException here
            raise WrongUse("allocation by MACHINE_ROOM needs the names of the rooms to read from")
        kept = [queue for queue, room in in_rooms if room in (consumer_idcs or ())]
        share = len(kept) // len(consumers)
        return kept[share * index : share * (index + 1)] + kept[share * len(consumers) :][index : index + 1]

    return allocate


def machine_room_nearby(
    inner: AllocateMessageQueueStrategy,
    room_of_queue: Callable[[MessageQueue], str | None],
    room_of_consumer: Callable[[str], str | None],
) -> AllocateMessageQueueStrategy:
    """``MACHINE_ROOM_NEARBY``: a room's queues among the room's consumers, by ``inner``.

    All consumers share the queues of rooms without a consumer. Raises WrongUse when the room of a queue or consumer is
    unknown.
    """

    def allocate(
        group: str, current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
    ) -> list[MessageQueue]:
        place = _own_place(current_cid, mq_all, cid_all)
        if place is None:
            return []
        queues, consumers, index = place
        queues_in: dict[str, list[MessageQueue]] = {}
        consumers_in: dict[str, list[str]] = {}
        for queue in queues:
            queues_in.setdefault(_known_room(room_of_queue(queue), f"mq {queue}"), []).append(queue)
        for cid in consumers:
            consumers_in.setdefault(_known_room(room_of_consumer(cid), f"consumer id {cid}"), []).append(cid)

        own_room = room_of_consumer(consumers[index]) or ""
        allocated: list[MessageQueue] = []
        if own_room in queues_in:
            allocated += inner(group, current_cid, queues_in[own_room], consumers_in[own_room])
        for room in sort_client_ids(queues_in.keys() - consumers_in.keys()):
            allocated += inner(group, current_cid, queues_in[room], consumers)
        return allocated

    return allocate


STRATEGIES: dict[str, AllocateMessageQueueStrategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}
"""The strategies that need only the two lists, by ``getName()``."""

WITH_PARAMETERS = ("CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY")
"""The strategies that ``config``, ``machine_room`` and ``machine_room_nearby`` make; the name of the last ends with its
inner strategy, as in ``MACHINE_ROOM_NEARBY-AVG``."""


def strategy_named(name: str) -> AllocateMessageQueueStrategy:
    """The strategy with this ``getName()``. Raises WrongUse for an unknown one and for one that needs parameters."""
    strategy = STRATEGIES.get(name)
    if strategy is not None:
        return strategy
    known = ", ".join(STRATEGIES)
    if name.split("-")[0] in WITH_PARAMETERS:
        raise WrongUse(f"allocation by {name} needs rooms or queues, so its name is not enough; use one of {known}")
    raise WrongUse(f"unknown allocation strategy {name!r}; known are {known}")


def allocate_by_topic(
    strategy: AllocateMessageQueueStrategy,
    group: str,
    current_cid: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """The queues of a consumer in several topics, each allocated by itself, the retry topic too
    (``RebalanceImpl#rebalanceByTopic``, rules 6.1)."""
    cid_all = sort_client_ids(client_ids)
    by_topic = groupby(sort_queues(queues), key=lambda queue: queue.topic)
    return [queue for _, of_topic in by_topic for queue in strategy(group, current_cid, list(of_topic), cid_all)]


def _own_place(
    current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
) -> tuple[Sequence[MessageQueue], Sequence[str], int] | None:
    """Both lists and the index of ``current_cid`` in the second; None when it is not there. The error texts are
    RocketMQ's (``AbstractAllocateMessageQueueStrategy#check``, rules 6.1)."""
    if not current_cid:
        raise WrongUse("currentCID is empty")
    if not mq_all:
        raise WrongUse("mqAll is null or mqAll empty")
    if not cid_all:
        raise WrongUse("cidAll is null or cidAll empty")
    return (mq_all, cid_all, cid_all.index(current_cid)) if current_cid in cid_all else None


def _ring(consumers: Sequence[str], virtual_nodes: int) -> dict[int, str]:
    """The points of the ring and the consumer of each (``ConsistentHashRouter``). A client id that is listed twice,
    because two processes have it, gets new points each time."""
    ring: dict[int, str] = {}
    listed: set[str] = set()
    for cid in consumers:
        first = sum(owner == cid for owner in ring.values()) if cid in listed else 0
        listed.add(cid)
        ring.update((_ring_hash(f"{cid}-{n}"), cid) for n in range(first, first + virtual_nodes))
    return ring


def _ring_hash(text: str) -> int:
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _room_of_broker(broker_name: str) -> str | None:
    """The room in ``room@broker``; names with another number of parts have none (Java drops empty last parts)."""
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def _known_room(room: str | None, owner: str) -> str:
    if not room:
        raise WrongUse(f"Machine room is null for {owner}")
    return room
