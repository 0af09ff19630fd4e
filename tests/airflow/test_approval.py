"""A run that waits for a person. ``dag.test()`` waits too: the answers come from Airflow's own REST endpoint while it does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from tests.airflow.conftest import WARNINGS_OF_AIRFLOW, dag_without_retries

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
RESET = {
    "group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "r", "dry_run": False, "approve": True
}  # fmt: skip
REPLAY = {"group": "payments", "topic": "PaymentFlow", "from": 0, "approve": True}


@pytest.fixture
def asked(airflow_home: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked, each question once it is answered: with ``ANSWER``, where ``dag.test()`` would sleep."""
    questions: list[Any] = []
    real = time.sleep

    def sleep(seconds: float) -> None:
        if sys._getframe(1).f_globals["__name__"] == "airflow.sdk.definitions.dag":
            questions.extend(answer_all())
        else:
            real(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return questions


ANSWER = "Approve"


def answer_all() -> list[Any]:
    """Answer each open question, as the page of required actions does it."""
    from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
    from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
    from airflow.models.hitl import HITLDetail
    from airflow.utils.session import create_session
    from sqlalchemy import select

    answered = []
    user: Any = SimpleNamespace(get_id=lambda: "7", get_name=lambda: "ada")
    with create_session() as session:
        for question in session.scalars(select(HITLDetail).where(HITLDetail.responded_at.is_(None))):
            of_task = question.task_instance
            answered.append(
                {"task": of_task.task_id, "subject": question.subject, "body": question.body, "params": question.params}
            )
            payload = UpdateHITLDetailPayload(chosen_options=[ANSWER], params_input={})
            update_hitl_detail(
                of_task.dag_id, of_task.run_id, of_task.task_id, payload, user, session, of_task.map_index
            )
    return answered


def actions(store: LakeStore) -> list[Any]:
    names: list[Any] = query(store, "SELECT action FROM operator_actions")["action"].to_pylist()
    return names


def xcom(result: dict[str, Any], task_id: str, key: str) -> Any:
    return result["run"].get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)


def test_a_reset_waits_until_it_is_approved_and_a_cleared_one_asks_nobody(
    deployed: LakeStore, run: Run, asked: list[Any]
) -> None:
    result = run("rmq_reset_offset", RESET)
    (question,) = asked
    preview = xcom(result, "preview", "preview")
    assert (question["task"], question["body"]) == ("approve", preview["text"])
    assert question["subject"] == "rmq_reset_offset: payments in broker-a"
    assert {name: param["value"] for name, param in question["params"].items()} == {
        "group": "payments", "shards": "broker-a"
    }  # fmt: skip
    assert (result["state"], result["move"][0]["status"], actions(deployed)) == ("success", "committed", ["reset"])
    assert xcom(result, "approve", "rmq_note").startswith("approved by ada at 20")

    again = run("rmq_reset_offset", RESET, again=result["run"])
    assert (again["move"][0]["status"], len(asked)) == ("already_committed", 1)
    assert run("rmq_reset_offset", RESET | {"dry_run": True})["approve"] == "skipped"
    undone = run("rmq_undo", {"group": "payments", "reason": "r", "dry_run": False, "approve": True})
    assert (undone["undo"][0]["status"], asked[1]["subject"]) == ("committed", "rmq_undo: payments in broker-a")
    assert len(asked) == 2


def test_a_rejected_replay_consumes_nothing_and_is_green(
    deployed: LakeStore, run: Run, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ANSWER", "Reject")
    result = run("rmq_replay", REPLAY)
    assert (result["state"], result["plan"], result["replay"]) == ("success", ["broker-a"], "skipped")
    assert xcom(result, "approve", "rmq_note").startswith("rejected by ada at 20")
    assert query(deployed, "SELECT count(*) AS n FROM windows").to_pylist() == [{"n": 0}]
    late = run("rmq_replay", REPLAY | {"from": "2026-11-24T00:00:00Z"})
    assert (late["state"], late["plan"], late["replay"], len(asked)) == ("success", [], "skipped", 1)


@pytest.mark.parametrize(("states", "is_asked"), [({}, True), ({"move_0": None}, True), ({"move_0": "skipped"}, False)])
def test_who_has_rejected_is_not_asked_again_by_another_try(
    airflow_home: Any, monkeypatch: pytest.MonkeyPatch, states: dict[str, Any], is_asked: bool
) -> None:
    """Airflow tries the task again when the answer comes before its scheduler knows that the task waits, which no test can
    bring about."""
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    from rmq_store.airflow.preview import Preview

    questions, notes, states_of = list[Any](), list[str](), list[dict[str, Any]]()
    shown = Preview({"group": "payments", "queues": [{"shard": "broker-a"}], "text": "would move"})
    monkeypatch.setattr(Preview, "of_task", lambda *_: shown)
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, context: questions.append(self.subject))
    monkeypatch.setattr("rmq_store.airflow.task.note", lambda context, text: notes.append(text))

    def get_task_states(**which: Any) -> dict[str, Any]:
        states_of.append(which)
        return {"r1": states} if states else {}

    dag = dag_without_retries("rmq_reset_offset")
    context = {"params": RESET, "dag": dag, "run_id": "r1", "ti": SimpleNamespace(get_task_states=get_task_states)}
    dag.get_task("approve").execute(context)
    assert states_of == [{"dag_id": "rmq_reset_offset", "task_ids": ["move"], "run_ids": ["r1"]}]
    assert questions == (["rmq_reset_offset: payments in broker-a"] if is_asked else [])
    assert [note[:15] for note in notes] == ([] if is_asked else ["not asked again"])


def test_a_replay_consumes_once_it_is_approved_and_asks_only_where_the_run_says_so(
    deployed: LakeStore, run: Run, asked: list[Any]
) -> None:
    (answer,) = run("rmq_replay", REPLAY)["replay"]
    assert (answer["messages"], len(asked)) == (900, 1)
    (answer,) = run("rmq_replay", REPLAY | {"approve": False})["replay"]
    assert (answer["messages"], len(asked)) == (900, 1)
