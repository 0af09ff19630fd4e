"""Whoever computes an allocation, from lists in whatever order: every queue has one owner (rules 6.1, 6.2)."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.consumer.allocate import (
    STRATEGIES,
    AllocateMessageQueueStrategy,
    average,
    average_by_circle,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    sort_client_ids,
    sort_queues,
)
from rmq_store.consumer.allocate_rule import AllocateRule
from rmq_store.message.message import MessageQueue
from rmq_store.window.consume import shares
from tests.contract.world import group

ROOMS = ("hz", "sh", "hz2")


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def room_of_consumer(cid: str) -> str:
    return cid.split("@")[0]


def nearby(inner: AllocateMessageQueueStrategy) -> AllocateMessageQueueStrategy:
    return machine_room_nearby(inner, room_of_queue, room_of_consumer)


WHO_SHARE = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
    "CONSISTENT_HASH of one node": consistent_hash(1),
    "MACHINE_ROOM": machine_room(ROOMS),
    "MACHINE_ROOM_NEARBY-AVG": nearby(average),
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": nearby(average_by_circle),
    "MACHINE_ROOM_NEARBY-CONSISTENT_HASH": nearby(consistent_hash()),
}
"""CONFIG is not among them: its list is compared with nothing."""

TEXTS = st.text(st.sampled_from("aB9é中\U0001f600-."), min_size=1, max_size=4)
QUEUES = st.lists(
    st.builds(
        MessageQueue,
        st.just("Orders"),
        st.builds("{}@{}".format, st.sampled_from(ROOMS), st.sampled_from(["a", "b", "B"])),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=20,
    unique=True,
)
CLIENTS = st.lists(st.builds("{}@{}".format, st.sampled_from(ROOMS), TEXTS), min_size=1, max_size=8, unique=True)
SAME = settings(max_examples=60, deadline=None, derandomize=True, database=None)

Owners = dict[MessageQueue, str]


def owners(strategy: AllocateMessageQueueStrategy, queues: list[MessageQueue], clients: list[str]) -> Owners:
    """Who takes which queue; each consumer asks by itself, with lists that it has sorted itself."""
    taken: list[tuple[MessageQueue, str]] = []
    for cid in clients:
        mine = strategy("billing", cid, sort_queues(queues), sort_client_ids(clients))
        taken += [(queue, cid) for queue in mine]
    assert Counter(queue for queue, _ in taken) == Counter(queues), "all of them, each once"
    return dict(taken)


@SAME
@given(st.sampled_from(sorted(WHO_SHARE)), QUEUES, CLIENTS, st.randoms(use_true_random=False))
def test_every_queue_has_one_owner_whatever_order_the_lists_come_in(
    name: str, queues: list[MessageQueue], clients: list[str], chance: Random
) -> None:
    found = owners(WHO_SHARE[name], queues, clients)
    mixed_queues, mixed_clients = list(queues), list(clients)
    chance.shuffle(mixed_queues)
    chance.shuffle(mixed_clients)
    assert owners(WHO_SHARE[name], mixed_queues, mixed_clients) == found


@SAME
@given(QUEUES, CLIENTS)
def test_when_a_consumer_leaves_only_its_own_queues_move_on_the_ring(
    queues: list[MessageQueue], clients: list[str]
) -> None:
    before = owners(consistent_hash(), queues, clients)
    for gone in clients[1:]:
        after = owners(consistent_hash(), queues, [cid for cid in clients if cid != gone])
        assert {q: cid for q, cid in after.items() if before[q] != gone} == {
            q: cid for q, cid in before.items() if cid != gone
        }


@SAME
@given(st.sampled_from(sorted(STRATEGIES)), QUEUES, st.integers(1, 9))
def test_the_consumers_of_a_window_share_its_queues(name: str, queues: list[MessageQueue], consumers: int) -> None:
    settings_ = group(consumers=consumers, allocate_strategy=AllocateRule(name))
    shared = shares(settings_, queues, 1)
    assert len(shared) == consumers
    assert Counter(queue for _, several in shared for queue in several) == Counter(queues)
    assert shares(settings_, reversed(queues), 1) == shared
