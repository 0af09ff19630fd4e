"""How a group's settings choose an allocation strategy (rules 6.2), and what it needs besides the two lists.

    allocate_strategy = "AVG"
    allocate_strategy = { name = "CONSISTENT_HASH", virtual_nodes = 20 }
    allocate_strategy = { name = "CONFIG", queues = { host-1 = ["broker-a:0", "broker-a:1"], host-2 = ["broker-a:2"] } }
    allocate_strategy = { name = "MACHINE_ROOM", rooms = ["hz"] }
    allocate_strategy = { name = "MACHINE_ROOM_NEARBY-AVG", broker_rooms = { b = "hz" }, consumer_rooms = { c = "hz" } }

The last three depend on the place of a consumer, so they apply to consumers that share a group's queues
(``rmq consume --client``). The tasks of one window have no place and use AVG. So do the consumers for the group's retry
topic, whose queues are the lake's own and in no room: RocketMQ would leave them unread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_store.consumer.allocate import (
    DEFAULT_VIRTUAL_NODES,
    STRATEGIES,
    AllocateMessageQueueStrategy,
    average,
    config,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    strategy_named,
)
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX
from rmq_store.utils.suggestions import did_you_mean

_NEARBY = "MACHINE_ROOM_NEARBY-"
_QUEUE = re.compile(r"(.+):(0|[1-9]\d{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class AllocateRule:
    """The strategy of a group with its parameters."""

    name: str = "AVG"
    """RocketMQ's ``getName()``."""
    virtual_nodes: int = DEFAULT_VIRTUAL_NODES
    """Of CONSISTENT_HASH."""
    queues: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Of CONFIG: per client id its (broker name, queue id), in every topic."""
    rooms: tuple[str, ...] = ()
    """Of MACHINE_ROOM, whose brokers are named ``room@broker``."""
    broker_rooms: Mapping[str, str] = field(default_factory=dict)
    """Of MACHINE_ROOM_NEARBY: room by broker name."""
    consumer_rooms: Mapping[str, str] = field(default_factory=dict)
    """Of MACHINE_ROOM_NEARBY: room by client id."""

    def __str__(self) -> str:
        return self.name

    @property
    def may_leave_queues(self) -> bool:
        """Whether it may allocate some queues to no consumer."""
        return self.name in ("CONFIG", "MACHINE_ROOM")

    def among_tasks(self) -> AllocateMessageQueueStrategy:
        """The strategy for a window's queues and its tasks."""
        if self.name == "CONSISTENT_HASH":
            return consistent_hash(self.virtual_nodes)
        return STRATEGIES.get(self.name, average)

    def among_clients(self) -> AllocateMessageQueueStrategy:
        """The strategy for a topic's queues and the consumers that share the group's queues."""
        if self.name in STRATEGIES:
            return self.among_tasks()

        def allocate(
            group: str, current_cid: str | None, mq_all: Sequence[MessageQueue] | None, cid_all: Sequence[str] | None
        ) -> list[MessageQueue]:
            queues = mq_all or ()
            of_retries = any(queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX) for queue in queues)
            strategy = average if of_retries else self._by_place(current_cid, queues)
            allocated = strategy(group, current_cid, mq_all, cid_all)
            return [queue for queue in allocated if queue in queues]  # CONFIG returns its list as it is

        return allocate

    def _by_place(self, cid: str | None, queues: Sequence[MessageQueue]) -> AllocateMessageQueueStrategy:
        if self.name == "MACHINE_ROOM":
            return machine_room(self.rooms)
        if self.name == "CONFIG":
            topic, own = queues[0].topic if queues else "", self.queues.get(cid or "", ())
            return config([MessageQueue(topic, broker_name, queue_id) for broker_name, queue_id in own])
        return machine_room_nearby(
            strategy_named(self.name.removeprefix(_NEARBY)),
            lambda queue: self.broker_rooms.get(queue.broker_name),
            self.consumer_rooms.get,
        )


AVG = AllocateRule()
"""RocketMQ's default."""


# --- from a settings file --------------------------------------------------------------------------------------------


def _virtual_nodes(value: Any) -> str:
    is_right = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10_000
    return "" if is_right else f"must be a whole number from 1 to 10000, it is {value!r}"


def _rooms(value: Any) -> str:
    is_right = isinstance(value, list) and value and all(isinstance(room, str) and room for room in value)
    return "" if is_right else f'must be a list of rooms, like ["hz"], it is {value!r}'


def _names_to_rooms(value: Any) -> str:
    is_right = isinstance(value, dict) and value and all(isinstance(room, str) and room for room in value.values())
    return "" if is_right else f'must be a table from names to rooms, like {{ broker-a = "hz" }}, it is {value!r}'


def _queues(value: Any) -> str:
    lists: list[Any] = list(value.values()) if isinstance(value, dict) and value else [None]
    if not all(isinstance(texts, list) for texts in lists):
        return f'must be a table from client ids to queues, like {{ host-1 = ["broker-a:0"] }}, it is {value!r}'
    queues = [text for texts in lists for text in texts]
    invalid = [text for text in queues if not (isinstance(text, str) and _QUEUE.fullmatch(text))]
    if invalid:
        return f"{invalid[0]!r} is not a queue: write BROKER:QUEUE, like broker-a:0"
    twice = sorted({text for text in queues if queues.count(text) > 1})
    return f"{twice[0]} is listed twice: give each queue to one client" if twice else ""


_TABLES: Mapping[str, Mapping[str, tuple[bool, Callable[[Any], str]]]] = {
    "AVG": {},
    "AVG_BY_CIRCLE": {},
    "CONSISTENT_HASH": {"virtual_nodes": (False, _virtual_nodes)},
    "CONFIG": {"queues": (True, _queues)},
    "MACHINE_ROOM": {"rooms": (True, _rooms)},
    **{
        _NEARBY + inner: {"broker_rooms": (True, _names_to_rooms), "consumer_rooms": (True, _names_to_rooms)}
        for inner in STRATEGIES
    },
}
"""The keys of each strategy: whether a key is required, and the check of its value."""


def allocate_rule_problems(value: Any) -> list[str]:
    """What is wrong with an ``allocate_strategy`` of a settings file."""
    if isinstance(value, AllocateRule):
        return []
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        return [
            f'must be a name like "AVG" or a table like {{ name = "MACHINE_ROOM", rooms = ["hz"] }}, it is {value!r}'
        ]
    name = table.get("name")
    if not isinstance(name, str) or name not in _TABLES:
        return [f"unknown allocation strategy {name!r}; known are {', '.join(_TABLES)}"]
    keys = _TABLES[name]
    problems = [f"{name} has no {key!r}{did_you_mean(key, list(keys))}" for key in table if key not in (*keys, "name")]
    problems += [f"{name} needs {key}" for key, (needed, _) in keys.items() if needed and key not in table]
    checked = ((key, check(table[key])) for key, (_, check) in keys.items() if key in table)
    return problems + [f"{key} {problem}" for key, problem in checked if problem]


def allocate_rule_of(value: Any) -> AllocateRule:
    """The rule of a value of a settings file. Raises WrongUse for one with problems."""
    if problems := allocate_rule_problems(value):
        raise WrongUse("; ".join(problems))
    if isinstance(value, AllocateRule):
        return value
    table: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
    if "rooms" in table:
        table["rooms"] = tuple(table["rooms"])
    if "queues" in table:
        table["queues"] = {cid: tuple(map(_place, texts)) for cid, texts in table["queues"].items()}
    return AllocateRule(**table)


def _place(text: str) -> tuple[str, int]:
    broker_name, _, queue_id = text.rpartition(":")
    return broker_name, int(queue_id)
