"""What the first task of a run has shown is what the others do, whatever has happened in between."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store.errors import WrongUse
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
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
    now = "{{ macros.datetime.now(macros.dateutil.tz.UTC).isoformat() }}"
    replay = RmqReplayOperator.partial(task_id="replay", since=now, preview="plan", **group)
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


@pytest.mark.parametrize(
    ("now", "differs"),
    [
        ({"group": "a", "from_ms": 1_000, "windows": ["x", "y"]}, ""),
        ({"group": "b"}, "group a; now group b"),
        ({"from_ms": 2_000}, "from 1970-01-01T00:00:01.000Z; now from 1970-01-01T00:00:02.000Z"),
        ({"windows": ["x", "x"]}, "windows x, y; now windows x, x"),
        ({"windows": []}, "windows x, y; now no windows"),
        ({"store": "s"}, "no store; now store s"),
    ],
)
def test_what_was_approved_is_done_or_refused(airflow_home: AirflowHome, now: dict[str, Any], differs: str) -> None:
    from rmq_store.airflow.preview import Preview

    facts = {"group": "a", "from_ms": 1_000, "windows": ["x", "y"]}
    Preview(facts).check(now)
    Preview({}, "nothing was there", is_approved=True).check(now)
    with (
        pytest.raises(WrongUse, match=re.escape(f"approved was {differs}. It does not do this"))
        if differs
        else nullcontext()
    ):
        Preview(facts, is_approved=True).check(now)


@pytest.mark.parametrize(
    ("index", "shard", "count", "found"),
    [
        (1, "y", 2, ["x", "y"]),
        (1, "x", 2, ["x", "x"]),
        (0, "x", 1, ["x"]),
        (2, "y", 3, ["x", "y", "y"]),
        (0, "x", 3, ["x", "y", "?"]),
        (-1, "y", 0, ["x", "y"]),
        (-1, "z", 0, ["z"]),
    ],
)
def test_mapped_tasks_have_together_the_shards_that_were_shown(
    airflow_home: AirflowHome, index: int, shard: str, count: int, found: list[str]
) -> None:
    from rmq_store.airflow.preview import shards_mapped

    assert shards_mapped(["x", "y"], index, shard, count) == found


@pytest.mark.parametrize(
    ("states", "is_whole"),
    [
        ({"replay_0": "success", "replay_1": "success", "replay_2": "removed"}, True),
        ({"replay_0": "success"}, False),
        ({"replay": "skipped"}, False),
    ],
)
def test_a_run_is_not_green_where_approved_shards_were_not_replayed(
    dags: dict[str, Any], states: dict[str, str], is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the XCom with the shards is written before Airflow maps the task ``replay``."""
    from airflow.sdk.exceptions import AirflowSkipException

    from rmq_store.airflow.operators.base import RmqOperator
    from rmq_store.airflow.preview import Preview

    shown = Preview({"windows": ["x", "y"]}, is_approved=True)
    monkeypatch.setattr(RmqOperator, "shown", lambda *_: shown)
    ti = SimpleNamespace(dag_id="rmq_replay", run_id="r1", get_task_states=lambda **_: {"r1": states})
    with pytest.raises(AirflowSkipException if is_whole else WrongUse):
        dags["rmq_replay"].get_task("finish").act({"ti": ti, "params": {"finish": False}})
