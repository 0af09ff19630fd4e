"""What the first task of a run has shown is what the others do, whatever has happened in between."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmq_store
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


EXCHANGED = """
import os
from airflow.sdk import DAG, task
from rmq_store.airflow.operators.replay import RmqFinishReplayOperator, RmqPlanReplayOperator, RmqReplayOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator
from rmq_store.airflow.operators.undo import RmqUndoOperator

@task
def exchange():
    os.environ["RMQ_ROOT"] += "-b"

with DAG("others"):
    replay = {"group": "payments", "topic": "PaymentFlow", "since": "2000-01-01T00:00:00Z"}
    reset = {"group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "r"}
    undo = {"group": "payments", "reason": "r"}
    shows = [
        RmqPlanReplayOperator(task_id="plan", **replay),
        RmqResetOffsetOperator(task_id="show_reset", dry_run=True, **reset),
        RmqUndoOperator(task_id="show_undo", dry_run=True, **undo),
    ]
    finish = RmqFinishReplayOperator(task_id="finish", preview="plan", **replay)
    finish >> RmqReplayOperator(  # the other way round its retries would be waited for
        task_id="again", shard="broker-a", preview="plan", trigger_rule="all_done", **replay
    )
    shows >> exchange() >> [
        finish,
        RmqResetOffsetOperator(task_id="move", dry_run=False, preview="show_reset", **reset),
        RmqUndoOperator(task_id="take_back", dry_run=False, preview="show_undo", **undo),
    ]
"""


def test_what_was_shown_of_a_store_is_not_done_in_another_one(
    deployed: LakeStore,
    run: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also without an approval, where the root of the connection is another one by now."""
    root = deployed.root.location
    run("rmq_reset_offset", {"group": "payments", "topic": "PaymentFlow", "to": "max", "reason": "r", "dry_run": False})
    subprocess.run(["cp", "-r", root, f"{root}-b"], check=True)
    monkeypatch.setenv("RMQ_ROOT", root)  # the task changes it
    tasks = {task.task_id: str(task.state) for task in dag_of(EXCHANGED, tmp_path).test().get_task_instances()}
    acts = ("again", "finish", "move", "take_back")
    assert [tasks[name] for name in acts] == ["failed"] * 4
    other = f"shown was store {root} ({deployed.store_id}); now store {root}-b ({deployed.store_id}). "
    assert capsys.readouterr().out.count(f"{other}Nothing was done: clear") == 4
    for place in (root, f"{root}-b"):
        store = rmq_store.open_store(place)
        assert store.query("SELECT action FROM operator_actions")["action"].to_pylist() == ["reset"]
        assert store.query("SELECT * FROM windows").num_rows == 0


@pytest.mark.parametrize(
    ("now", "differs"),
    [
        ({"store": "/s (1)", "group": "a", "reason": "other", "from_ms": 2_000}, ""),
        ({"store": "/s (2)", "group": "a"}, "store /s (1); now store /s (2)"),
        ({"store": "/s (1)", "group": "b"}, "group a; now group b"),
    ],
)
def test_what_was_shown_is_of_the_same_store_and_group(
    airflow_home: AirflowHome, now: dict[str, Any], differs: str
) -> None:
    from rmq_store.airflow.preview import Preview

    shown = Preview({"store": "/s (1)", "group": "a", "reason": "r", "from_ms": 1_000})
    Preview({}).check_place(now)
    with pytest.raises(WrongUse, match=re.escape(f"shown was {differs}. ")) if differs else nullcontext():
        shown.check_place(now)


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
