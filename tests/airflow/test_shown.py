"""What the first task of a run has shown is what the others do, whatever has happened in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from tests.airflow.conftest import WARNINGS_OF_AIRFLOW, dag_of

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

DAG = """
from airflow.sdk import DAG, task
from rmq_store.airflow.operators.replay import RmqPlanReplayOperator, RmqReplayOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator

@task
def send():
    import os
    import rmq_store
    store = rmq_store.open_store(os.environ["RMQ_ROOT"])
    store.send([rmq_store.Message("PaymentFlow", b"late")] * 8, create_queues=4)

with DAG("others"):
    group = {"group": "payments", "topic": "PaymentFlow"}
    reset = group | {"to": "max", "reason": "r"}
    plan = RmqPlanReplayOperator(task_id="plan", since="2000-01-01T00:00:00Z", **group)
    show = RmqResetOffsetOperator(task_id="show", dry_run=True, **reset)
    replay = RmqReplayOperator.partial(task_id="replay", since="2000-01-01T00:00:00Z", preview="plan", **group)
    move = RmqResetOffsetOperator(task_id="move", dry_run=False, preview="show", **reset)
    [plan, show] >> send() >> replay.expand(shard=plan.output) >> move
"""


def test_messages_and_queues_that_came_in_between_are_left_out(deployed: LakeStore, tmp_path: Path) -> None:
    run = dag_of(DAG, tmp_path).test()
    tasks = {task.task_id: task for task in run.get_task_instances()}
    assert {str(task.state) for task in tasks.values()} == {"success"}

    def answer(task_id: str, key: str = "return_value", index: int | None = None) -> Any:
        return tasks[task_id].xcom_pull(task_ids=task_id, key=key, map_indexes=index)

    stored = query(deployed, "SELECT count(*) AS n FROM messages WHERE topic = 'PaymentFlow'").to_pylist()
    assert stored == [{"n": 908}]
    assert answer("replay", index=0)["messages"] == answer("plan", "preview")["messages"] == 900
    (shown,), (moved,) = answer("show"), answer("move")
    assert moved["moves"] == shown["moves"] == [[f"broker-a:{queue_id}", None, 225] for queue_id in range(4)]
    (reset,) = query(deployed, "SELECT parameters FROM operator_actions WHERE action = 'reset'").to_pylist()
    assert '"to":"max"' in reset["parameters"]
