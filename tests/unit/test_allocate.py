from __future__ import annotations

import pytest

from rmq_store.consumer.allocate import STRATEGIES, sort_client_ids, strategy_named
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from tests.conformance import allocation
from tests.conformance.checks import passed
from tests.unit import vectors


def test_queues_and_client_ids_are_sorted_as_java_does() -> None:
    assert passed(allocation.check_order(vectors.read("allocation-order"))) == 360


def test_every_strategy_gives_every_client_the_queues_that_rocketmq_gives_it() -> None:
    assert passed(allocation.check(vectors.read("allocation"))) == 19_515


def test_strategies_are_known_by_the_name_that_rocketmq_gives_them() -> None:
    names = {row["name"] for row in vectors.read("allocation") if "name" in row}
    assert set(STRATEGIES) <= names
    for name in names - set(STRATEGIES):
        with pytest.raises(WrongUse, match="its name is not enough"):
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
