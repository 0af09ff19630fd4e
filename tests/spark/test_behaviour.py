"""RocketMQ's scripted consumers with their real batches, consumed by Spark, end in the states of the memory engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.processes import ClassicDriver

DATA = Path(__file__).parents[1] / "data" / "rocketmq"

BEHAVIOUR = """
from pathlib import Path
from spark_jobs.engine import SparkEngine
from tests.spark.behaviour_street import run

data, folder, work = map(Path, arguments)
answer = run(data, folder, "market-clean", work, SparkEngine.of(session))
"""


@pytest.fixture(scope="module")
def groups(
    classic_driver: ClassicDriver, broker_store: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("behaviour")
    result: dict[str, Any] = classic_driver.run(BEHAVIOUR, str(DATA), str(broker_store("market-clean")), str(work))
    return result


def test_every_message_lives_in_spark_as_in_memory(groups: dict[str, Any]) -> None:
    assert {name: group["differ"] for name, group in groups.items() if group["differ"]} == {}
    assert [name for name, group in groups.items() if not group["same offsets"]] == []


def test_the_groups_are_those_with_batches_in_order_and_of_two_members(groups: dict[str, Any]) -> None:
    assert {group["script"] for group in groups.values()} == {"ackIndex", "wholeBatch", "ordered", "manual", "always"}
    assert {name: group["members"] for name, group in groups.items() if group["members"] > 1} == {"gm_pair": 2}
    assert all(group["reached"] for group in groups.values())
    assert all(bool(group["ends"]) is (group["script"] not in ("manual", "always")) for group in groups.values())
