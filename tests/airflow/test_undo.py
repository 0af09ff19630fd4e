"""The DAG of an undo: what it shows is what it undoes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.lake.commit import commit as protocol
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW, dag_of

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
TO_MIN = {
    "group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "the listener had a defect", "dry_run": False
}  # fmt: skip
UNDO = {"group": "payments", "reason": "that was another group"}
OFFSETS = "SELECT DISTINCT next_offset FROM consumer_offsets WHERE group_name='payments' AND topic='PaymentFlow'"
ACTIONS = "SELECT action, actor, reason, undoes FROM operator_actions ORDER BY committed_at"


def xcom(result: dict[str, Any], task_id: str, key: str) -> Any:
    return result["run"].get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)


def offsets(store: LakeStore) -> list[Any]:
    values: list[Any] = query(store, OFFSETS)["next_offset"].to_pylist()
    return values


def test_an_undo_shows_whose_action_it_takes_back_and_takes_it_back_once(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    reset = run("rmq_reset_offset", TO_MIN)["run"]
    shown = run("rmq_undo", UNDO)
    moves = [[f"broker-a:{queue_id}", 0, 225] for queue_id in range(4)]
    assert (shown["state"], shown["preview"][0]["moves"], shown["undo"]) == ("success", moves, "skipped")
    preview = xcom(shown, "preview", "preview")
    assert preview["undoes"].endswith(f"/rmq_reset_offset/{reset.run_id}")
    assert preview["text"].startswith(f"payments, undo of reset {preview['undoes']} of dag_test at 20")
    assert "(the listener had a defect): would move: offsets 0 -> 225 in 4 queues; 900 messages" in preview["text"]
    assert {one["direction"] for one in preview["queues"]} == {"skipped"}
    assert offsets(deployed) == [0]

    undone = run("rmq_undo", UNDO | {"dry_run": False})
    assert (undone["undo"][0]["status"], offsets(deployed)) == ("committed", [225])
    again = run("rmq_undo", UNDO | {"dry_run": False}, again=undone["run"])
    assert {again[task][0]["status"] for task in ("preview", "undo")} == {"already_committed"}
    assert query(deployed, ACTIONS).to_pylist() == [
        {"action": "reset", "actor": "dag_test", "reason": TO_MIN["reason"], "undoes": None},
        {"action": "undo", "actor": "dag_test", "reason": UNDO["reason"], "undoes": preview["undoes"]},
    ]

    run(CONSUME)
    run("rmq_undo", UNDO | {"dry_run": False})
    assert offsets(deployed) == [0], "the reset, done again"


def test_an_undo_is_refused_after_windows_unless_forced(deployed: LakeStore, run: Run) -> None:
    run("rmq_reset_offset", TO_MIN | {"queues": ["broker-a:0"]})
    run("rmq_reset_offset", TO_MIN | {"queues": ["broker-a:0"], "to": "offset", "offset": 5})
    run(CONSUME)
    refused = run("rmq_undo", UNDO)
    assert (refused["state"], refused["preview"], refused["undo"]) == ("failed", "failed", "upstream_failed")
    forced = run("rmq_undo", UNDO | {"force": True, "shard": "broker-a", "dry_run": False})
    assert forced["undo"][0]["moves"] == [["broker-a:0", 225, 0]]


def test_nothing_to_undo_is_green_and_says_so(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    result = run("rmq_undo", UNDO | {"dry_run": False})
    assert (result["state"], result["preview"], result["undo"]) == ("success", [], [])
    assert xcom(result, "undo", "rmq_note").startswith("nothing to do: group payments has no action of an operator")


def test_what_was_shown_is_undone_or_nothing(
    deployed: LakeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = dag_of(
        """
from airflow.sdk import DAG
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator
from rmq_store.airflow.operators.undo import RmqUndoOperator

with DAG("others"):
    where = {"group": "payments", "topic": "PaymentFlow", "to": "offset", "dry_run": False, "reason": "r"}
    reset = RmqResetOffsetOperator(task_id="reset", offset=7, **where)
    preview = RmqUndoOperator(task_id="preview", group="payments", reason="r", dry_run=True)
    late = RmqResetOffsetOperator(task_id="late", offset=8, request_name="late", **where)
    undo = RmqUndoOperator(task_id="undo", group="payments", reason="r", dry_run=False, preview="preview")
    reset >> preview >> late >> undo
""",
        tmp_path,
    )
    dag_run = dag.test()
    states = {task.task_id: str(task.state) for task in dag_run.get_task_instances()}
    assert states == {"reset": "success", "preview": "success", "late": "success", "undo": "failed"}
    heard = capsys.readouterr()
    assert "is not the last action of an operator on group payments: reset " in heard.out + heard.err + caplog.text
    assert offsets(deployed) == [8]


def test_a_reset_or_an_undo_that_ends_in_the_second_shard_says_what_it_moved_in_the_first(
    deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rmq_store.open_store(deployed.root.location)
    store.send([rmq_store.Message("PaymentFlow", b"1")], shard="x", create_queues=1)
    run(CONSUME)
    started: list[str] = []

    def moved_in_x(step: str) -> None:
        if step == "6.settled" and not started:
            started.append(step)
            in_x = [rmq_store.MessageQueue("PaymentFlow", "lake-x", 0)]
            store.reset("payments", "PaymentFlow", "max", reason="meanwhile", queues=in_x)

    def refused(dag_id: str, conf: dict[str, Any], task: str) -> str:
        started.clear()
        with monkeypatch.context() as patch:
            patch.setattr(protocol, "on_step", moved_in_x)
            result = run(dag_id, conf)
        assert (result["state"], result[task], started) == ("failed", "failed", ["6.settled"])
        note: str = xcom(result, task, "rmq_note")
        return note

    note = refused("rmq_reset_offset", TO_MIN, "move")
    assert note.startswith("payments, topic PaymentFlow, ended by an error after shard broker-a: ")
    assert "offsets 225 -> 0 in 4 queues" in note
    run(CONSUME)
    run("rmq_reset_offset", TO_MIN)
    note = refused("rmq_undo", UNDO | {"dry_run": False}, "undo")
    assert ", ended by an error after shard broker-a: " in note
    assert "offsets 0 -> 225 in 4 queues" in note
