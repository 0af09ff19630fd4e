"""A watcher starts the delivery when something becomes due."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import first_due_ms
from rmq_store.utils.host import Host
from scripts.airflow_home import AirflowHome
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("first_due", "due", "wait_s"),
    [
        ({}, {}, 5),
        ({"a": None}, {}, 5),
        ({"a": 10_000}, {"a": 10_000}, 5),
        ({"a": 0, "b": 12_000}, {"a": 0}, 2),
        ({"a": 10_001}, {}, 0.001),
        ({"a": 60_000}, {}, 5),
    ],
)
def test_the_trigger_sleeps_until_the_next_due_time_and_at_most_its_interval(
    first_due: dict[str, int | None], due: dict[str, int], wait_s: float, airflow_home: AirflowHome
) -> None:
    from rmq_store.airflow.triggers.due import looked

    assert looked(first_due, 10_000, 5) == (due, wait_s)


def test_what_is_due_fires_once_also_after_an_error_of_the_store(
    airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.triggers import due

    answers: list[dict[str, int | None] | Exception] = [
        {"a": None}, {"a": 1}, {"a": 1}, StoreUnusable("http://me:the-secret@host"), {"a": 1}, {"a": 1, "b": 2},
        {"a": None, "b": 2}, {"a": 3, "b": 2},
    ]  # fmt: skip

    def first_due_ms(_: object) -> dict[str, int | None]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def events(count: int) -> list[Any]:
        running = due.RmqDueTrigger(poll_interval=0).run()
        return [(await anext(running)).payload["due"] for _ in range(count)]

    monkeypatch.setattr(due._Watched, "first_due_ms", first_due_ms)
    assert asyncio.run(events(3)) == [{"a": 1}, {"a": 1, "b": 2}, {"a": 3, "b": 2}]


def test_the_first_due_time_of_a_store_is_that_of_its_retries_and_none_after_their_delivery(
    deployed: LakeStore, run: Run
) -> None:
    from rmq_store.airflow.triggers.due import RmqDueTrigger

    (shard,) = deployed.shards()
    assert first_due_ms(deployed, shard, Host()) is None
    (answer,) = run(CONSUME)["consume"]
    assert first_due_ms(deployed, shard, Host()) == answer["next_retry_ms"]

    async def first() -> Any:
        return (await anext(RmqDueTrigger(poll_interval=5).run())).payload

    assert asyncio.run(first()) == {"due": {"broker-a": answer["next_retry_ms"]}}
    assert Host().now_ms() >= answer["next_retry_ms"]
    run("rmq_deliver_delayed")
    assert first_due_ms(deployed, shard, Host()) is None


def test_a_store_that_was_restored_in_place_is_opened_again(deployed: LakeStore, run: Run) -> None:
    """Its log grows behind the version that was read: what waits is that of the new history."""
    from rmq_store.airflow.hooks.rmq import RmqHook
    from rmq_store.airflow.triggers.due import _Watched

    folder = Path(deployed.root.location)
    older = shutil.copytree(folder, folder.with_name("older"))
    (lost,) = run(CONSUME)["consume"]
    watched = _Watched(RmqHook().deployment)
    assert watched.first_due_ms() == {"broker-a": lost["next_retry_ms"]}
    folder.rename(folder.with_name("lost"))
    older.rename(folder)
    (again,) = run(CONSUME)["consume"]
    assert watched.first_due_ms() == {"broker-a": again["next_retry_ms"]}
    assert again["next_retry_ms"] > lost["next_retry_ms"]
