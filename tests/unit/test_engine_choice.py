"""Where work runs: by the choice and by how much there is, and Spark is opened for work only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.lake.window.engine import (
    AUTO_LOCAL_BYTES,
    AUTO_LOCAL_MESSAGES,
    Engine,
    Engines,
    LocalEngine,
    engine_of_import,
    engine_of_window,
)
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import load_settings
from rmq_store.settings.settings_values import ENGINES
from rmq_store.utils.host import Host
from rmq_store.window.plan import Plan
from rmq_store.window.ranges import PlannedRange

GROUP = load_settings('[[group]]\nname = "g"\nlistener = "a:b"\n[[group.subscription]]\ntopic = "T"\n', "tests").group(
    "g"
)


@pytest.mark.parametrize(
    ("choice", "messages", "engine"),
    [
        ("auto", AUTO_LOCAL_MESSAGES - 1, "local"),
        ("auto", AUTO_LOCAL_MESSAGES, "spark"),
        ("spark", 1, "spark"),
        ("local", 10 * AUTO_LOCAL_MESSAGES, "local"),
    ],
)
def test_a_window_runs_where_it_was_told_to_and_auto_keeps_little_here(choice: str, messages: int, engine: str) -> None:
    assert engine_of_window(choice, messages) == engine


@pytest.mark.parametrize("choice", ENGINES)
def test_a_window_of_no_messages_starts_no_jvm_whatever_was_chosen(choice: str) -> None:
    assert engine_of_window(choice, 0) == "local"


@pytest.mark.parametrize(
    ("choice", "to_read_bytes", "engine"),
    [
        ("auto", AUTO_LOCAL_BYTES - 1, "local"),
        ("auto", AUTO_LOCAL_BYTES, "spark"),
        ("auto", None, "spark"),
        ("spark", 0, "spark"),
        ("local", None, "local"),
        ("local", 10 * AUTO_LOCAL_BYTES, "local"),
    ],
)
def test_an_import_runs_where_it_was_told_to_and_auto_keeps_little_here(
    choice: str, to_read_bytes: int | None, engine: str
) -> None:
    assert engine_of_import(choice, to_read_bytes) == engine


# --- opened when needed ----------------------------------------------------------------------------------------------


class Spark:
    """Notes when it is opened and closed."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def open(self) -> AbstractContextManager[Engine]:
        @contextmanager
        def opened() -> Iterator[Engine]:
            self.told.append("opened")
            yield LocalEngine(Host(), "spark", 2)
            self.told.append("closed")

        return opened()


def plan_of(messages: int) -> Plan:
    range_ = QueueRange(MessageQueue("T", "b", 0), 5, 5 + messages)
    ranges = (PlannedRange(range_, None, 0, "stored"),)
    return Plan(group=GROUP, positions=Positions(0, {}), epoch=0, ranges=ranges, bounds={}, part=1)


def twice(job: int, task: int, attempt: str) -> int:
    return 2 * job * task


def test_spark_is_opened_once_for_all_windows_and_closed_at_the_end() -> None:
    spark = Spark()
    with Engines("spark", Host(), spark.open) as engines:
        assert engines.for_window(plan_of(0)).name == "local"
        assert spark.told == []
        assert engines.for_window(plan_of(1)) is engines.for_window(plan_of(2))
        assert spark.told == ["opened"]
    assert spark.told == ["opened", "closed"]


def test_an_import_opens_spark_for_its_first_tasks() -> None:
    spark = Spark()
    with Engines("spark", Host(), spark.open) as engines:
        engine = engines.for_import()
        assert (engine.name, engine(twice, 1, [])) == ("spark", [])
        assert spark.told == []
        assert engine(twice, 1, [1, 2]) == [2, 4]
        assert engine(twice, 2, [3]) == [12]
    assert spark.told == ["opened", "closed"]


@pytest.mark.parametrize("choice", ["local", "auto"])
def test_little_work_leaves_spark_alone(choice: str) -> None:
    spark = Spark()
    with Engines(choice, Host(), spark.open) as engines:
        assert engines.for_window(plan_of(10)).name == "local"
        assert engines.for_import(10)(twice, 1, [1]) == [2]
    assert spark.told == []


def test_without_a_choice_each_window_runs_where_its_group_has_it() -> None:
    spark = Spark()
    with Engines(None, Host(), spark.open) as engines:
        assert engines.for_window(replace(plan_of(1), group=replace(GROUP, engine="local"))).name == "local"
        assert spark.told == []
        assert engines.for_window(replace(plan_of(1), group=replace(GROUP, engine="spark"))).name == "spark"
        assert engines.for_import(10)(twice, 1, [1]) == [2]
    assert spark.told == ["opened", "closed"]
