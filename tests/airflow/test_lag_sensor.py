"""The sensor waits for a group to catch up, in its task or in the triggerer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW, dag_of, in_a_new_process

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
PAYMENTS = 900


def sensor(**arguments: Any) -> Any:
    from rmq_store.airflow.sensors.lag import RmqLagSensor

    return RmqLagSensor(task_id="wait", group="payments", **arguments)


def event_of(trigger: Any) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        payload: dict[str, Any] = (await anext(trigger.run())).payload
        return payload

    return asyncio.run(first())


def test_a_group_has_caught_up_when_its_lag_is_small_enough(deployed: LakeStore, run: Run) -> None:
    assert not sensor(at_most=10**6).poke({}).is_done, "a group that has no offset yet has no lag"
    before_all = 1_700_000_000_000
    run(CONSUME, {"until": before_all})
    look = sensor(at_most=PAYMENTS - 1).poke({})
    assert (look.is_done, look.xcom_value) == (False, PAYMENTS)
    look = sensor(at_most=PAYMENTS).poke({})
    assert (look.is_done, look.xcom_value) == (True, PAYMENTS)


def test_a_deferred_sensor_has_a_trigger_that_can_be_made_again(deployed: LakeStore, run: Run) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from rmq_store.airflow.triggers.lag import RmqLagTrigger

    run(CONSUME)
    waiting = sensor(deferrable=True, poke_interval=7, timeout=60, at_most=0)
    assert waiting.execute({}) == 0, "nothing to wait for"
    run("rmq_reset_offset", {"group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "r", "dry_run": False})
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "rmq_store.airflow.triggers.lag.RmqLagTrigger"
    json.dumps(arguments)
    assert RmqLagTrigger(**arguments).serialize() == (path, arguments)
    assert arguments == {"group": "payments", "at_most": 0, "poll_interval": 7, "rmq_conn_id": "rmq_default"}
    assert event_of(RmqLagTrigger("payments", at_most=PAYMENTS)) == {"lag": PAYMENTS}
    assert waiting.execute_complete({}, {"lag": 0}) == 0


def test_a_trigger_looks_until_the_lag_is_small_enough(deployed: LakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.airflow.triggers import lag

    answers = [None, 5, 3]
    monkeypatch.setattr(lag, "lag_of", lambda store, group: answers.pop(0))
    assert event_of(lag.RmqLagTrigger("payments", at_most=3, poll_interval=0)) == {"lag": 3}
    assert answers == []


def test_an_error_of_the_trigger_is_an_error_of_the_task(deployed: LakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from rmq_store.airflow.triggers import lag

    def fails(*_: object) -> int:
        raise StoreUnusable("http://me:the-secret@host does not answer")

    monkeypatch.setattr(lag, "lag_of", fails)
    event = event_of(lag.RmqLagTrigger("payments"))
    assert event == {"error": "StoreUnusable: http://***@host does not answer", "retry": True}
    with pytest.raises(AirflowException, match="does not answer") as raised:
        sensor().execute_complete({}, event)
    assert not isinstance(raised.value, AirflowFailException)


@pytest.mark.parametrize("at_most", ["0", None, True, 1.5, -1])
def test_a_lag_that_is_none_is_refused_where_the_dag_is_read(airflow_home: AirflowHome, at_most: Any) -> None:
    with pytest.raises(WrongUse, match="at_most"):
        sensor(at_most=at_most)


@pytest.mark.parametrize("group", ["", "a b/../c", "g" * 300, 5])
def test_a_name_that_no_group_can_have_fails_at_once(deployed: LakeStore, group: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    wait = sensor()
    wait.group = group
    with pytest.raises(AirflowFailException, match="WrongUse"):
        wait.poke({})


WAITS = """
from airflow.sdk import DAG
from rmq_store.airflow.sensors.lag import RmqLagSensor

with DAG("waits"):
    RmqLagSensor(task_id="wait", group="payments", at_most=10_000, deferrable=True, poke_interval=1)
"""


def test_a_deferred_task_ends_with_the_lag_that_the_trigger_read(
    deployed: LakeStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import PokeReturnValue

    run(CONSUME)
    dag = dag_of(WAITS, tmp_path)
    monkeypatch.setattr(type(dag.get_task("wait")), "poke", lambda sensor, context: PokeReturnValue(is_done=False))
    dag_run = dag.test()
    (task,) = dag_run.get_task_instances()
    assert (str(task.state), task.xcom_pull(task_ids="wait")) == ("success", 0)


LIGHT = """
import json, sys
import rmq_store.airflow.sensors.lag
heavy = {"pyspark", "pyarrow", "duckdb", "deltalake", "boto3", "numpy"}
print(json.dumps(sorted(heavy & set(sys.modules))))
"""


def test_a_sensor_in_a_dag_file_imports_nothing_heavy(airflow_home: AirflowHome) -> None:
    assert in_a_new_process(LIGHT, env=airflow_home.environment()) == []
