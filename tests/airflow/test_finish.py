"""The last task of a replay consumes its retries until none is left, and waits in the triggerer for what is not due."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.window.dry_run import Retries
from scripts.airflow_home import AirflowHome
from tests.airflow.conftest import WARNINGS_OF_AIRFLOW, dag_of, in_a_new_process

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
DUE = 7_258_118_400_000  # in 2200

DAG = """
from airflow.sdk import DAG
from rmq_store.airflow.operators.replay import RmqFinishReplayOperator, RmqPlanReplayOperator, RmqReplayOperator

with DAG("others"):
    replay = {"group": "payments", "topic": "PaymentFlow", "since": "2000-01-01T00:00:00Z", "until": "END"}
    plan = RmqPlanReplayOperator(task_id="plan", **replay)
    windows = RmqReplayOperator.partial(task_id="replay", **replay).expand(shard=plan.output)
    windows >> RmqFinishReplayOperator(task_id="finish", poll_interval=0, preview="plan", **replay)
"""
ROUNDS = """
SELECT request_id, sum(messages)::BIGINT AS messages, sum(retried)::BIGINT AS retried, sum(dead)::BIGINT AS dead
FROM windows GROUP BY request_id ORDER BY request_id
"""


@pytest.fixture
def delivers(airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch) -> list[Retries]:
    """What the trigger saw. Before each look all that waits is delivered, as if it were due."""
    from rmq_store.airflow.triggers import retries

    seen: list[Retries] = []
    real = retries.look

    def look(deployment: Any, *names: str) -> Retries:
        store = deployment.open_store()
        seen.append(real(deployment, *names))
        rmq_store.open_store(store.root.location).deliver(now=DUE)
        seen.append(real(deployment, *names))
        return seen[-1]

    monkeypatch.setattr(retries, "look", look)
    return seen


def test_a_replay_is_finished_round_after_round_until_all_is_acked_or_dead(
    deployed: LakeStore, run: Run, tmp_path: Path, delivers: list[Retries]
) -> None:
    last = query(deployed, "SELECT max(store_timestamp) AS ms FROM messages WHERE topic = 'PaymentFlow'")["ms"][
        0
    ].as_py()
    dag = dag_of(DAG.replace("END", str(last + 1)), tmp_path)  # the end of the replay does not hold for its retries
    first = dag.test()
    tasks = {task.task_id: task for task in first.get_task_instances()}
    assert {name: str(task.state) for name, task in tasks.items()} == dict.fromkeys(tasks, "success")
    windows, one, two = query(deployed, ROUNDS).to_pylist()
    assert (one["request_id"], two["request_id"]) == tuple(f"{windows['request_id']}/retries-{n}" for n in (1, 2))
    assert (one["messages"], two["messages"]) == (windows["retried"], one["retried"])
    assert (one["dead"], two["retried"]) == (0, 0)
    assert two["dead"] > 0, "after max_reconsume_times"
    assert [(of.read > 0, of.waiting + of.due > 0) for of in delivers] == [(False, True), (True, False)] * 2

    finish = tasks["finish"]
    answer = finish.xcom_pull(task_ids="finish")
    assert (answer["status"], answer["rounds"]) == ("committed", 2)
    assert answer["messages"] == sum(answer["outcomes"].values()) == one["messages"] + two["messages"]
    note = finish.xcom_pull(task_ids="finish", key="rmq_note")
    assert note.startswith(f"{answer['group']}: 2 rounds of retries, {answer['messages']:,} messages: ")
    assert note.endswith(f"{two['dead']:,} dead; none is left")

    again = dag.test(run_after=first.run_after, logical_date=first.logical_date)
    (finish,) = [task for task in again.get_task_instances() if task.task_id == "finish"]
    assert finish.xcom_pull(task_ids="finish") == answer | {"status": "already_committed"}
    assert (len(query(deployed, ROUNDS)), len(delivers)) == (3, 4)

    later = run("rmq_replay", {"group": answer["group"], "finish": True})
    assert (later["state"], later["replay"], later["finish"]["rounds"]) == ("success", "skipped", 0)
    assert run("rmq_replay", {"group": answer["group"]})["finish"] == "skipped"


LISTENER = """
[[group]]
name = "elsewhere"
listener = "finish_listener:fail"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
[[group.subscription]]
topic = "PaymentFlow"
"""
FINISH_ONLY = """
from airflow.sdk import DAG
from rmq_store.airflow.operators.replay import RmqFinishReplayOperator

with DAG("others"):
    RmqFinishReplayOperator(task_id="finish", poll_interval=0, group="GROUP")
"""


def test_the_retries_of_a_listener_in_a_folder_of_its_own_are_finished(
    deployed: LakeStore, tmp_path: Path, delivers: list[Retries], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, settings = tmp_path / "listeners", tmp_path / "consumers.toml"
    folder.mkdir()
    (folder / "finish_listener.py").write_text(
        "def fail(messages, context):\n"
        "    fails = messages[0].queue_offset < 2 and messages[0].reconsume_times == 0\n"
        "    return 'RECONSUME_LATER' if fails else 'CONSUME_SUCCESS'\n"
    )
    settings.write_text(LISTENER)
    monkeypatch.setenv("RMQ_SETTINGS", str(settings))
    monkeypatch.setenv("RMQ_LISTENER_PATH", str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def nowhere(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            sys.path[:] = [entry for entry in sys.path if entry != str(folder)]
            return call(*arguments)

        return called

    words = ("replay", "--group", "elsewhere", "--topic", "PaymentFlow", "--from", "2000-01-01T00:00:00Z")
    code = "import sys; from rmq_store.cli import main; sys.exit(main())"
    replay = in_a_new_process(code, *words, "--json", env={"RMQ_ROOT": deployed.root.location})
    from rmq_store.airflow.triggers import retries

    monkeypatch.setattr(retries, "look", nowhere(retries.look))  # the triggerer is another process
    dag = dag_of(FINISH_ONLY.replace("GROUP", replay["group"]), tmp_path)
    (finish,) = nowhere(dag.test)().get_task_instances()
    answer = finish.xcom_pull(task_ids="finish")
    assert (answer["messages"], answer["outcomes"]) == (8, {"acked": 8}), "two of each of four queues"


@pytest.mark.parametrize(
    ("retries", "wait_s"),
    [
        (Retries(waiting=1, next_due_ms=70_000), 60),
        (Retries(waiting=1, next_due_ms=10_001), 15),
        (Retries(waiting=1, next_due_ms=9_000_000), 600),
        (Retries(due=1, waiting=1, next_due_ms=9_000_000), 15),
    ],
)
def test_the_trigger_sleeps_until_the_next_retry_is_due(
    retries: Retries, wait_s: float, airflow_home: AirflowHome
) -> None:
    from rmq_store.airflow.triggers.retries import next_look_s

    assert next_look_s(retries, 10_000, 15) == wait_s


@pytest.mark.parametrize(
    ("last", "payload"),
    [(Retries(read=1), {}), (Retries(), {}), (WrongUse("no group"), {"error": "WrongUse: no group"})],
)
def test_the_trigger_looks_again_until_a_retry_can_be_read_or_none_is_left(
    last: Retries | Exception, payload: dict[str, str], airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.triggers import retries

    looks: list[Retries | Exception] = [Retries(due=1), StoreUnusable("does not answer"), Retries(due=2), last]

    def look(*_: object) -> Retries:
        answer = looks.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(retries, "look", look)
    trigger = retries.RmqRetriesTrigger("g-replay-0123456789", "2026-01-01/r/retries-1", poll_interval=0)
    path, arguments = trigger.serialize()
    assert path == "rmq_store.airflow.triggers.retries.RmqRetriesTrigger"
    assert retries.RmqRetriesTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)

    async def event() -> Any:
        return (await anext(trigger.run())).payload

    assert (asyncio.run(event()), looks) == (payload, [])
