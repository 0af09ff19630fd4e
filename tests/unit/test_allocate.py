from __future__ import annotations

from typing import Any

import pytest

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
from rmq_store.errors import WrongUse
from rmq_store.message import MessageQueue
from tests.unit import vectors


def test_queues_and_client_ids_are_sorted_as_java_does() -> None:
    rows = vectors.read("allocation-order")
    assert len(rows) == 120
    for row in rows:
        assert sort_queues(MessageQueue(*q) for q in row["queues"]) == [MessageQueue(*q) for q in row["sorted"]]
        assert sort_client_ids(row["cids"]) == row["sortedCids"]


def room_before_dash(row: dict[str, Any], text: str) -> str | None:
    room, _, rest = text.partition("-")
    return None if "broker0 has none" in row["room"] and rest == "broker0" else room


def strategy_of(row: dict[str, Any]) -> AllocateMessageQueueStrategy:
    match row["strategy"]:
        case "CONSISTENT_HASH":
            return consistent_hash(row["virtualNodes"])
        case "CONFIG":
            return config([MessageQueue(*queue) for queue in row["config"]])
        case "MACHINE_ROOM":
            return machine_room(row["consumeridcs"])
        case "MACHINE_ROOM_NEARBY":
            return machine_room_nearby(
                strategy_named(row["inner"]),
                lambda queue: room_before_dash(row, queue.broker_name),
                lambda cid: room_before_dash(row, cid),
            )
        case name:
            return strategy_named(name)


def answer_of(row: dict[str, Any], strategy: AllocateMessageQueueStrategy, cid: str | None) -> Any:
    queues = None if row["queues"] is None else [MessageQueue(*queue) for queue in row["queues"]]
    try:
        mine = strategy("group-1", cid, queues, row["cids"])
    except WrongUse as error:
        return {"error": str(error)}
    return [[q.topic, q.broker_name, q.queue_id] for q in mine]


def wanted_of(row: dict[str, Any], answer: Any) -> Any:
    if isinstance(answer, dict):
        kind, _, text = answer["error"].partition(": ")
        # A forgotten parameter is a NullPointerException in RocketMQ; we say what is missing.
        return {"error": text if kind != "NullPointerException" else MISSING_ROOMS}
    return answer if row["strategy"] == "CONFIG" else [row["queues"][position] for position in answer]


MISSING_ROOMS = "allocation by MACHINE_ROOM needs the names of the rooms to read from"


def test_every_strategy_gives_every_client_the_queues_that_rocketmq_gives_it() -> None:
    rows = vectors.read("allocation")
    assert len(rows) == 2600
    compared = 0
    for row in rows:
        if "constructorError" in row:
            with pytest.raises(WrongUse, match=r"illegal virtualNodeCnt :-1"):
                strategy_of(row)
            continue
        if row["strategy"] == "CONFIG" and row["config"] is None:
            assert all(answer is None for _, answer in row["answers"])  # RocketMQ hands out null
            with pytest.raises(WrongUse, match="CONFIG needs the list"):
                config(row["config"])
            continue
        strategy = strategy_of(row)
        for cid, answer in row["answers"]:
            assert answer_of(row, strategy, cid) == wanted_of(row, answer), (row, cid)
            compared += 1
    assert compared == 16_889


def test_strategies_are_known_by_the_name_that_rocketmq_gives_them() -> None:
    names = {row["name"] for row in vectors.read("allocation") if "name" in row}
    assert set(STRATEGIES) <= names
    for name in names - set(STRATEGIES):
        with pytest.raises(WrongUse, match="cannot be given by name"):
            strategy_named(name)
    with pytest.raises(WrongUse, match="unknown allocation strategy 'avg'; known are AVG"):
        strategy_named("avg")


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_no_queue_is_left_over_and_none_is_taken_twice(name: str) -> None:
    queues = [MessageQueue("T", broker, n) for broker in ("a", "b") for n in range(7)]
    for consumers in range(1, 20):
        cids = sort_client_ids(f"c{n}" for n in range(consumers))
        taken = [queue for cid in cids for queue in strategy_named(name)("g", cid, queues, cids)]
        assert sorted(taken) == queues
