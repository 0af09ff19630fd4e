"""``vectors/allocation`` and ``allocation-order``: who reads which queue (rules 6)."""

from __future__ import annotations

import re
from typing import Any

from rmq_store.consumer.allocate import (
    STRATEGIES,
    AllocateMessageQueueStrategy,
    config,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    sort_client_ids,
    sort_queues,
    strategy_named,
)
from rmq_store.consumer.allocate_rule import allocate_rule_problems
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from tests.conformance.checks import Line, Outcomes, per_line, refused, same


@per_line
def check_order(row: Line) -> Outcomes:
    queues = [MessageQueue(*queue) for queue in row["queues"]]
    wanted = [MessageQueue(*queue) for queue in row["sorted"]]
    yield same("queues", sort_queues(queues), wanted)
    yield same("queues as values", sorted(queues), wanted)
    yield same("client ids", sort_client_ids(row["cids"]), row["sortedCids"])


@per_line
def check(row: Line) -> Outcomes:
    name = row["strategy"]
    if "constructorError" in row:
        _, _, text = row["constructorError"].partition(": ")
        yield refused(name, WrongUse, lambda: _strategy_of(row), text)
        return
    if name == "CONFIG" and row["config"] is None:
        yield same("what RocketMQ hands out without a list", {answer for _, answer in row["answers"]}, {None})
        yield refused(name, WrongUse, lambda: _strategy_of(row), "CONFIG needs the list")
        return
    strategy = _strategy_of(row)
    yield from _named(row)
    for cid, answer in row["answers"]:
        yield same(f"{name} for {cid!r}", *_compared(row, answer, _answer_of(row, strategy, cid)))


def _named(row: Line) -> Outcomes:
    """A strategy is known by RocketMQ's name for it, or is one that needs more than a name: settings know those."""
    name, inner = row["name"], row.get("inner")
    if name != (f"{row['strategy']}-{inner}" if inner else row["strategy"]):
        yield f"{row['strategy']} with {inner} is named {name}"
    elif problems := [text for text in allocate_rule_problems({"name": name}) if text.startswith("unknown")]:
        yield problems[0]
    elif name in STRATEGIES:
        yield None
    else:
        yield refused(name, WrongUse, lambda: strategy_named(name), "its name is not enough")


def _strategy_of(row: Line) -> AllocateMessageQueueStrategy:
    match row["strategy"]:
        case "CONSISTENT_HASH":
            return consistent_hash(row["virtualNodes"])
        case "CONFIG":
            return config(row["config"] and [MessageQueue(*queue) for queue in row["config"]])
        case "MACHINE_ROOM":
            return machine_room(row["consumeridcs"])
        case "MACHINE_ROOM_NEARBY":
            return machine_room_nearby(
                strategy_named(row["inner"]),
                lambda queue: _room(row, queue.broker_name),
                lambda cid: _room(row, cid),
            )
        case name:
            return strategy_named(name)


def _room(row: Line, text: str) -> str | None:
    """The rule that the line's ``room`` says in words."""
    room, _, rest = text.partition("-")
    without = re.search(r"; (\S+) has none", row["room"])
    return None if without and rest == without[1] else room


def _answer_of(row: Line, strategy: AllocateMessageQueueStrategy, cid: str | None) -> Any:
    queues = None if row["queues"] is None else [MessageQueue(*queue) for queue in row["queues"]]
    try:
        mine = strategy("group-1", cid, queues, row["cids"])
    except WrongUse as error:
        return {"error": str(error)}
    return [[q.topic, q.broker_name, q.queue_id] for q in mine]


def _compared(row: Line, answer: Any, found: Any) -> tuple[Any, Any]:
    """Found and wanted, in the same words."""
    if not isinstance(answer, dict):
        return found, answer if row["strategy"] == "CONFIG" else [row["queues"][position] for position in answer]
    kind, _, text = answer["error"].partition(": ")
    if kind == "NullPointerException" and isinstance(found, dict):
        return True, True  # a forgotten parameter: we say in our words which one is missing
    return found, {"error": text}
