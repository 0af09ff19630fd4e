"""How settings choose a strategy: every one of RocketMQ's six, with what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.consumer.allocate import STRATEGIES
from rmq_store.consumer.allocate_rule import AllocateRule, allocate_rule_of, allocate_rule_problems
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue

CLIENTS = ["host-1", "host-2"]


def queues(*brokers: str, topic: str = "Orders", of_each: int = 2) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in brokers for number in range(of_each)]


def taken(value: Any, all_queues: list[MessageQueue], clients: list[str] = CLIENTS) -> list[list[str]]:
    """Per client its queues, as ``broker:queue``."""
    strategy = allocate_rule_of(value).among_clients()
    of_each = [strategy("g", client, all_queues, clients) for client in clients]
    return [[f"{queue.broker_name}:{queue.queue_id}" for queue in of_one] for of_one in of_each]


def test_config_gives_each_client_its_list_of_every_topic() -> None:
    value = {"name": "CONFIG", "queues": {"host-1": ["a:1", "b:0"], "host-2": ["a:0", "z:9"]}}
    for topic in ("Orders", "Payments"):
        assert taken(value, queues("a", "b", topic=topic)) == [["a:1", "b:0"], ["a:0"]]


def test_a_client_without_a_list_gets_nothing() -> None:
    assert taken({"name": "CONFIG", "queues": {"host-1": ["a:0"]}}, queues("a")) == [["a:0"], []]


def test_machine_room_reads_the_rooms_that_are_named_and_leaves_the_others() -> None:
    value = {"name": "MACHINE_ROOM", "rooms": ["hz"]}
    assert taken(value, queues("hz@a", "sh@b", of_each=3)) == [["hz@a:0", "hz@a:2"], ["hz@a:1"]]


def test_machine_room_nearby_shares_a_room_among_its_own_and_the_rest_among_all() -> None:
    value = {
        "name": "MACHINE_ROOM_NEARBY-AVG",
        "broker_rooms": {"a": "hz", "b": "sh", "c": "bj"},
        "consumer_rooms": {"host-1": "hz", "host-2": "sh"},
    }
    assert taken(value, queues("a", "b", "c")) == [["a:0", "a:1", "c:0"], ["b:0", "b:1", "c:1"]]


def test_machine_room_nearby_refuses_what_stands_nowhere() -> None:
    value = {"name": "MACHINE_ROOM_NEARBY-AVG", "broker_rooms": {"a": "hz"}, "consumer_rooms": {"host-1": "hz"}}
    with pytest.raises(WrongUse, match="Machine room is null for mq"):
        taken(value, queues("b"), ["host-1"])
    with pytest.raises(WrongUse, match="Machine room is null for consumer id host-2"):
        taken(value, queues("a"))


PLACED: list[dict[str, Any]] = [
    {"name": "CONFIG", "queues": {"host-1": ["broker-a:0"]}},
    {"name": "MACHINE_ROOM", "rooms": ["hz"]},
    {"name": "MACHINE_ROOM_NEARBY-AVG", "broker_rooms": {"a": "hz"}, "consumer_rooms": {"host-1": "hz"}},
]


@pytest.mark.parametrize("value", PLACED, ids=lambda value: value["name"])
def test_retries_and_the_tasks_of_a_window_are_shared_whatever_the_place(value: dict[str, Any]) -> None:
    retries = queues("lake-broker-a", topic="%RETRY%g", of_each=4)
    assert [len(of_one) for of_one in taken(value, retries)] == [2, 2]
    tasks = ["consumer-00000", "consumer-00001"]
    strategy = allocate_rule_of(value).among_tasks()
    assert sorted(queue for task in tasks for queue in strategy("g", task, queues("x", "y"), tasks)) == queues("x", "y")


def test_a_name_alone_is_enough_for_the_strategies_that_need_no_more() -> None:
    for name in STRATEGIES:
        assert allocate_rule_of(name) == AllocateRule(name)


def test_virtual_nodes_move_queues_and_lose_none() -> None:
    few, many = ({"name": "CONSISTENT_HASH", "virtual_nodes": nodes} for nodes in (1, 500))
    all_queues = queues("a", "b", of_each=40)
    for value in (few, many):
        assert sum(len(of_one) for of_one in taken(value, all_queues)) == 80
    assert taken(few, all_queues) != taken(many, all_queues)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (7, 'must be a name like "AVG" or a table'),
        ("avg", "unknown allocation strategy 'avg'; known are AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, CONFIG"),
        ({}, "unknown allocation strategy None"),
        ("MACHINE_ROOM_NEARBY", "unknown allocation strategy 'MACHINE_ROOM_NEARBY'"),
        ("CONFIG", "CONFIG needs queues"),
        ({"name": "MACHINE_ROOM"}, "MACHINE_ROOM needs rooms"),
        ({"name": "AVG", "rooms": ["hz"]}, "AVG has no 'rooms'"),
        ({"name": "MACHINE_ROOM", "room": ["hz"]}, "MACHINE_ROOM has no 'room', did you mean 'rooms'?"),
        ({"name": "MACHINE_ROOM", "rooms": []}, "rooms must be a list of rooms"),
        ({"name": "CONSISTENT_HASH", "virtual_nodes": 0}, "virtual_nodes must be a whole number from 1"),
        ({"name": "CONFIG", "queues": {}}, "queues must be a table from client ids to queues"),
        ({"name": "CONFIG", "queues": {"c": ["a"]}}, "'a' is not a queue"),
        ({"name": "CONFIG", "queues": {"c": ["a:0"], "d": ["a:0"]}}, "a:0 is listed twice"),
        ({"name": "MACHINE_ROOM_NEARBY-AVG", "broker_rooms": {"a": ""}, "consumer_rooms": {}}, "broker_rooms must be"),
    ],
)
def test_what_is_wrong_is_said(value: Any, problem: str) -> None:
    assert any(problem in found for found in allocate_rule_problems(value)), allocate_rule_problems(value)
    with pytest.raises(WrongUse):
        allocate_rule_of(value)
