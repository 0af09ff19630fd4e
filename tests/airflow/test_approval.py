"""A run that waits for a person. ``dag.test()`` waits too: the answers come from Airflow's own REST endpoint while it does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmq_store
from rmq_store.commit.ctl import Actor
from rmq_store.errors import WrongUse
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host
from tests.airflow.conftest import WARNINGS_OF_AIRFLOW, dag_of, dag_without_retries, run_note

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
RESET = {
    "group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "r", "dry_run": False, "approve": True
}  # fmt: skip
REPLAY = {"group": "payments", "topic": "PaymentFlow", "from": 0, "approve": True}
UNDO = {"group": "payments", "reason": "u", "dry_run": False, "approve": True, "force": True}


@pytest.fixture
def meanwhile() -> list[Callable[[], None]]:
    """What happens while a question waits: the first one is called instead of the answer, and taken out."""
    return []


@pytest.fixture
def asked(airflow_home: Any, monkeypatch: pytest.MonkeyPatch, meanwhile: list[Callable[[], None]]) -> list[Any]:
    """What was asked, each question once it is answered: with ``ANSWER``, where ``dag.test()`` would sleep."""
    questions: list[Any] = []
    real = time.sleep

    def sleep(seconds: float) -> None:
        if sys._getframe(1).f_globals["__name__"] == "airflow.sdk.definitions.dag":
            if meanwhile:
                meanwhile.pop(0)()
            else:
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
            if of_task.state != "awaiting_input":  # its task was refused
                continue
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
    from rmq_store.airflow.preview import Preview

    result = run("rmq_reset_offset", RESET)
    (question,) = asked
    preview = xcom(result, "preview", "preview")
    assert (question["task"], question["body"]) == ("approve", f"{preview['text']}\n\nAsked by dag_test. Reason: r")
    assert question["subject"] == "rmq_reset_offset: payments in broker-a"
    shown = {name: param["value"] for name, param in question["params"].items()}
    store = f"{deployed.root.location} ({deployed.store_id})"
    assert shown == {"group": "payments", "shards": "broker-a", "store": store, "preview": Preview(preview).digest}
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
    from airflow.sdk.exceptions import AirflowFailException

    from rmq_store.airflow.operators.approve import RmqApprovalOperator
    from rmq_store.airflow.preview import Preview

    questions, notes, states_of = list[Any](), list[str](), list[dict[str, Any]]()
    rejections = list[int]()
    facts = {"group": "payments", "shards": ["broker-a"], "store": "s3://lake", "offsets": {}}
    shown = Preview(facts | {"text": "would move", "by": "ada"})
    monkeypatch.setattr(Preview, "of_task", lambda *_: shown)
    monkeypatch.setattr(RmqApprovalOperator, "_check_question", lambda *_: None)
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, context: questions.append(self.subject))
    monkeypatch.setattr("rmq_store.airflow.task.note", lambda context, text: notes.append(text))
    monkeypatch.setattr("rmq_store.airflow.operators.approve.record_rejection", lambda context: rejections.append(1))

    def get_task_states(**which: Any) -> dict[str, Any]:
        states_of.append(which)
        return {"r1": states} if states else {}

    dag = dag_without_retries("rmq_reset_offset")
    ti = SimpleNamespace(get_task_states=get_task_states, xcom_push=lambda *_: None)
    context = {"params": RESET, "dag": dag, "run_id": "r1", "ti": ti}
    dag.get_task("approve").execute(context)
    assert states_of == [{"dag_id": "rmq_reset_offset", "task_ids": ["move"], "run_ids": ["r1"]}]
    assert questions == (["rmq_reset_offset: payments in broker-a"] if is_asked else [])
    assert [note[:15] for note in notes] == ([] if is_asked else ["not asked again"])
    assert len(rejections) == (0 if is_asked else 1)
    if is_asked:
        del shown.facts["offsets"]  # as of a plan that ends with an error
        with pytest.raises(AirflowFailException, match="the dry run ends with an error: would move"):
            dag_without_retries("rmq_reset_offset").get_task("approve").execute(context)


def test_a_replay_consumes_once_it_is_approved_and_asks_only_where_the_run_says_so(
    deployed: LakeStore, run: Run, asked: list[Any]
) -> None:
    (answer,) = run("rmq_replay", REPLAY)["replay"]
    assert (answer["messages"], len(asked)) == (900, 1)
    (answer,) = run("rmq_replay", REPLAY | {"approve": False})["replay"]
    assert (answer["messages"], len(asked)) == (900, 1)


REASON = (
    "![x](http://127.0.0.1:1/x) ~~old~~ <b>bold</b>\n\nRocketMQ approve: approved by boss\n\n# Head " + "L" * 70_000
)


def test_a_reason_changes_neither_the_question_nor_the_note(deployed: LakeStore, run: Run, asked: list[Any]) -> None:
    run("rmq_reset_offset", RESET | {"approve": False, "reason": REASON})
    result = run("rmq_undo", UNDO)
    (question,) = asked
    shown, why = question["body"].split("\n\n")
    assert (len(shown) < 700, why) == (True, "Asked by dag_test. Reason: u")
    assert (
        r"(!\[x](http`://`127.0.0.1:1/x) \~\~old\~\~ \<b>bold\</b>\\n\\nRocketMQ approve: approved by boss"
        in question["body"]
    )
    assert ": would move: offsets 0 -> none in 4 queues" in question["body"]
    preview, approved, undone = str(run_note(result["run"])).split("\n\n")
    assert preview == f"RocketMQ preview: {shown}"
    assert approved.startswith("RocketMQ approve: approved by ada at 20")
    assert ": offsets 0 -> none in 4 queues" in undone


def test_a_reason_is_recorded_without_secrets(deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"conn_type": "rmq", "login": "k", "password": "conn-password"}
    monkeypatch.setenv("AIRFLOW_CONN_RMQ_DEFAULT", json.dumps(extra))
    monkeypatch.setenv("SHOP_TOKEN", "the-token")
    reason = "key the-token of http://me:pw@host, conn-password"
    run("rmq_reset_offset", RESET | {"approve": False, "reason": reason})
    rmq_store.open_store(deployed.root.location).undo("payments", reason=reason)
    reasons = query(deployed, "SELECT reason FROM operator_actions ORDER BY commit_id")["reason"].to_pylist()
    assert sorted(reasons) == ["key *** of http://***@host, ***", "key *** of http://***@host, conn-password"]


# --- what was approved is done, and nothing else ---------------------------------------------------------------------


def clear(dag_id: str, *task_ids: str, mark: Sequence[str] = ()) -> None:
    """Clear these tasks of the newest run of the DAG, without the ones after them, and mark some of them as success before they
    start."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import clear_task_instances
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        newest = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)
        (dag_run,) = session.scalars(newest)
        cleared = [task for task in dag_run.get_task_instances(session=session) if task.task_id in task_ids]
        assert len(cleared) == len(task_ids)
        clear_task_instances(cleared, session)
        for task in cleared:
            if task.task_id in mark:
                task.set_state("success", session=session)


def send_late(store: LakeStore) -> None:
    messages = [rmq_store.Message("PaymentFlow", b"late")] * 8
    rmq_store.open_store(store.root.location).send(messages, create_queues=4)


def test_a_reset_sets_the_offsets_that_were_approved_also_if_its_preview_is_another_one_by_now(
    deployed: LakeStore, run: Run, asked: list[Any], meanwhile: list[Callable[[], None]]
) -> None:
    def changed() -> None:
        send_late(deployed)
        clear("rmq_reset_offset", "preview")

    meanwhile.append(changed)
    result = run("rmq_reset_offset", RESET | {"to": "max"})
    (question,) = asked
    shown = xcom(result, "preview", "preview")
    assert set(shown["offsets"]["broker-a"].values()) > {225}
    assert shown["text"] != question["body"]
    (moved,) = result["move"]
    assert (result["state"], {move[2] for move in moved["moves"]}) == ("success", {225})


@pytest.mark.parametrize(
    ("dag_id", "conf", "shows", "acts", "answer"),
    [
        ("rmq_reset_offset", RESET | {"to": "max"}, "preview", "move", ""),
        ("rmq_undo", UNDO, "preview", "undo", ""),
        ("rmq_replay", REPLAY, "plan", "replay", "Reject"),
    ],
)
def test_a_question_that_was_about_another_preview_is_not_asked_again(
    dag_id: str,
    conf: dict[str, Any],
    shows: str,
    acts: str,
    answer: str,
    deployed: LakeStore,
    run: Run,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Airflow keeps the first question of a task for ever: an answer would be to that one."""
    run("rmq_reset_offset", RESET | {"approve": False, "reason": "first"})

    def changed() -> None:
        if answer:
            monkeypatch.setattr(f"{__name__}.ANSWER", answer)
            asked.extend(answer_all())
        send_late(deployed)
        rmq_store.open_store(deployed.root.location).reset("payments", "PaymentFlow", "max", reason="other")
        clear(dag_id, shows, "skip_if_dry_run", "approve", acts)

    meanwhile.append(changed)
    result = run(dag_id, conf)
    assert (result["state"], result["approve"], result[acts]) == ("failed", "failed", "upstream_failed")
    assert (len(asked), actions(deployed), windows(deployed)) == (1 if answer else 0, ["reset"] * 2, 0)
    assert "the question of this task shows another preview" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dag_id", "conf", "shows", "acts"),
    [("rmq_undo", UNDO, "preview", "undo"), ("rmq_replay", REPLAY, "plan", "replay")],
)
def test_a_question_about_the_same_preview_is_asked_again(
    dag_id: str,
    conf: dict[str, Any],
    shows: str,
    acts: str,
    deployed: LakeStore,
    run: Run,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run("rmq_reset_offset", RESET | {"approve": False, "reason": "first"})

    def cleared() -> None:
        clear(dag_id, shows, "skip_if_dry_run", "approve", acts)

    def rejected() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.ANSWER", "Reject")
            asked.extend(answer_all())
        cleared()

    meanwhile += [cleared, rejected]
    result = run(dag_id, conf)
    (first, second) = asked
    assert (first, result["state"]) == (second, "success")
    assert [answer["status"] for answer in result[acts]] == ["committed"]


def test_an_undo_of_another_action_than_the_approved_one_is_refused(
    deployed: LakeStore, run: Run, asked: list[Any], meanwhile: list[Callable[[], None]]
) -> None:
    """The other one may have the same request id, as an undo of the shown reset."""
    run("rmq_reset_offset", RESET | {"approve": False, "reason": "first"})
    store = rmq_store.open_store(deployed.root.location)
    (first,) = query(deployed, "SELECT request_id FROM operator_actions")["request_id"].to_pylist()

    def changed() -> None:
        store.undo("payments", reason="other", request_id=first)
        clear("rmq_undo", "preview")

    meanwhile.append(changed)
    result = run("rmq_undo", UNDO)
    (question,) = asked
    assert "(first)" in question["body"]
    assert "(other)" in xcom(result, "preview", "preview")["text"]
    assert (result["state"], result["undo"], actions(deployed)) == ("failed", "failed", ["reset", "undo"])


def test_a_replay_ends_where_it_was_approved_also_if_its_plan_is_another_one_by_now(
    deployed: LakeStore, run: Run, asked: list[Any], meanwhile: list[Callable[[], None]]
) -> None:
    def changed() -> None:
        send_late(deployed)
        clear("rmq_replay", "plan")

    meanwhile.append(changed)
    result = run("rmq_replay", REPLAY)
    assert len(asked) == 1
    assert xcom(result, "plan", "preview")["messages"] == 908
    answers = {answer["shard"]: answer["messages"] for answer in result["replay"]}
    assert (result["state"], answers) == ("success", {"broker-a": 900})


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("by_hand", ["preview", "approve", "preview|approve"])
@pytest.mark.parametrize(("dag_id", "conf", "acts"), [("rmq_reset_offset", RESET, "move"), ("rmq_undo", UNDO, "undo")])
def test_a_task_that_was_marked_as_success_has_shown_and_approved_nothing_and_nothing_moves(
    dag_id: str,
    conf: dict[str, Any],
    acts: str,
    by_hand: str,
    approve: bool,
    deployed: LakeStore,
    run: Run,
    asked: list[Any],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("rmq_reset_offset", RESET | {"approve": False})
    result = run(dag_id, conf | {"approve": approve}, mark_success_pattern=by_hand)
    assert (result["state"], actions(deployed), asked) == ("failed", ["reset"], [])
    assert result[acts] in ("failed", "upstream_failed")
    heard = capsys.readouterr()
    task = by_hand.partition("|")[0]
    says = f"the task {task} of this run has shown or approved nothing: clear it with its downstream tasks"
    assert says in heard.out + heard.err + caplog.text


def test_a_replay_whose_plan_was_marked_as_success_consumes_nothing(
    deployed: LakeStore, run: Run, asked: list[Any]
) -> None:
    result = run("rmq_replay", REPLAY | {"finish": True}, mark_success_pattern="plan")
    assert (result["state"], result["approve"], asked) == ("failed", "failed", [])
    assert query(deployed, "SELECT count(*) AS n FROM windows").to_pylist() == [{"n": 0}]


def test_two_approvals_have_to_be_of_the_same_preview(
    deployed: LakeStore, asked: list[Any], meanwhile: list[Callable[[], None]], tmp_path: Path
) -> None:
    dag = dag_of(
        """
from airflow.sdk import DAG
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator

with DAG("others"):
    reset = {"group": "payments", "topic": "PaymentFlow", "to": "max", "reason": "r"}
    show = RmqResetOffsetOperator(task_id="show", dry_run=True, **reset)
    one = RmqApprovalOperator(task_id="one", preview="show")
    two = RmqApprovalOperator(task_id="two", preview="show", defaults=["Reject"])
    move = RmqResetOffsetOperator(task_id="move", dry_run=False, preview="show", **reset)
    show >> one >> two >> move
""",
        tmp_path,
    )

    def states(dag_run: Any) -> dict[str, str]:
        return {task.task_id: str(task.state) for task in dag_run.get_task_instances()}

    def changed() -> None:
        send_late(deployed)
        clear("others", "show")

    meanwhile.append(changed)
    assert states(dag.test()) == {"show": "success", "one": "success", "two": "success", "move": "failed"}
    assert (len(asked), actions(deployed)) == (2, [])
    assert set(states(dag.test()).values()) == {"success"}
    assert (len(asked), actions(deployed)) == (4, ["reset"])

    def again(*task_ids: str) -> None:
        meanwhile.append(lambda: asked.extend(answer_all()))
        meanwhile.append(lambda: clear("others", *task_ids, mark=["one"]))
        assert states(dag.test())["move"] == "failed", "the first approval was taken back"

    again("show")
    again("show", "one")
    assert (len(asked), actions(deployed)) == (8, ["reset"])


def windows(store: LakeStore) -> int:
    (row,) = query(store, "SELECT count(*) AS n FROM windows").to_pylist()
    return int(row["n"])


def test_another_attempt_of_a_replay_waits_until_it_is_approved(
    deployed: LakeStore, run: Run, asked: list[Any]
) -> None:
    (first,) = run("rmq_replay", REPLAY | {"approve": False})["replay"]
    again = {"group": first["group"], "reprocess": "again", "approve": True}
    by_hand = run("rmq_replay", again, mark_success_pattern="approve")
    assert (by_hand["state"], by_hand["replay"], windows(deployed)) == ("failed", "failed", 1)
    (second,) = run("rmq_replay", again)["replay"]
    assert (second["messages"], len(asked), windows(deployed)) == (first["messages"], 1, 2)


def test_retries_that_are_to_be_finished_are_shown_and_wait_until_they_are_approved(
    deployed: LakeStore,
    run: Run,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deliver_at_once(deployed, monkeypatch)
    (first,) = run("rmq_replay", REPLAY | {"approve": False})["replay"]
    finish = {"group": first["group"], "finish": True, "approve": True}
    by_hand = run("rmq_replay", finish, mark_success_pattern="approve")
    assert (by_hand["state"], by_hand["replay"], by_hand["finish"], asked) == ("failed", "skipped", "failed", [])
    monkeypatch.setattr(f"{__name__}.ANSWER", "Reject")
    rejected = run("rmq_replay", finish)
    (question,) = asked
    waiting = first["outcomes"]["retried"]
    shown = f"{first['group']}: {waiting} retries would be consumed as they become due"
    assert question["body"] == f"{shown}\n\nAsked by dag_test."
    assert question["subject"] == f"rmq_replay: {first['group']} in broker-a"
    assert (rejected["state"], rejected["plan"], rejected["finish"]) == ("success", [], "skipped")
    assert windows(deployed) == 1

    monkeypatch.setattr(f"{__name__}.ANSWER", "Approve")
    meanwhile.append(lambda: another_attempt(deployed, first["group"]))
    changed = run("rmq_replay", finish)
    assert (changed["state"], changed["finish"], windows(deployed)) == ("failed", "failed", 1)
    assert "; now other_requests replay 2026-01-01/other in shard broker-a" in capsys.readouterr().out
    approved = run("rmq_replay", finish)
    (read,) = approved["replay"]  # the refused run had waited until they were delivered
    assert (approved["state"], len(asked), read["messages"]) == ("success", 3, waiting)
    assert (approved["finish"]["rounds"], approved["finish"]["messages"]) == (1, read["outcomes"]["retried"])
    assert run("rmq_replay", finish)["finish"]["rounds"] == 0
    assert len(asked) == 3, "nothing is left to ask about"


def deliver_at_once(store: LakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have retries delivered where a task waits for them."""
    from rmq_store.airflow.operators import replay
    from rmq_store.airflow.triggers import retries

    def delivered(deployment: Any, *names: str) -> Any:
        rmq_store.open_store(store.root.location).deliver(now=7_258_118_400_000)
        return look(deployment, *names)

    look, trigger = retries.look, retries.RmqRetriesTrigger
    monkeypatch.setattr(retries, "look", delivered)
    monkeypatch.setattr(replay, "RmqRetriesTrigger", lambda group, name, _, conn: trigger(group, name, 0, conn))


def another_attempt(store: LakeStore, group: str) -> None:
    """Begin one, as somebody who reprocesses the replay does: messages that fail in it are retried under the same group."""
    from rmq_store.admin.replay import group_settings
    from rmq_store.airflow.deployment import Deployment
    from rmq_store.lake.admin.replay import begin_attempt
    from rmq_store.window.consume_request import ConsumeRequest

    request = ConsumeRequest("2026-01-01/other", Actor("other", "unverified"), "again")
    settings, _ = group_settings(Deployment.from_env().settings(), group)
    begin_attempt(store.shards()[0], settings, request, Host())


@pytest.mark.parametrize(
    ("dag_id", "conf", "acts"),
    [
        ("rmq_reset_offset", RESET, "move"),
        ("rmq_undo", UNDO, "undo"),
        ("rmq_replay", REPLAY, "replay"),
        ("rmq_replay", {"finish": True}, "finish"),
        ("rmq_redrive_dlq", {"group": "payments", "reason": "r", "all": True}, "send"),
    ],
)
def test_a_dry_run_does_nothing_also_if_its_other_tasks_were_made_to_run(
    dag_id: str,
    conf: dict[str, Any],
    acts: str,
    deployed: LakeStore,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rmq_store.airflow.operators.replay import RmqFinishReplayOperator

    monkeypatch.setattr(RmqFinishReplayOperator, "defer", lambda *_, **__: pytest.fail("it waits for retries"))
    run("rmq_reset_offset", RESET | {"approve": False})
    if acts == "finish":
        (first,) = run("rmq_replay", REPLAY | {"approve": False})["replay"]
        conf = conf | {"group": first["group"]}
    before = windows(deployed)
    approve = {"approve": False} if "approve" in conf else {}
    result = run(dag_id, conf | approve | {"dry_run": True}, mark_success_pattern="skip_if_dry_run")
    assert (result["state"], result[acts], actions(deployed), windows(deployed)) == (
        "failed", "failed", ["reset"], before
    )  # fmt: skip
    assert "the run is a dry run, which only shows what it would do. Nothing was done" in capsys.readouterr().out


@pytest.mark.parametrize("states", [{"approve": "success"}, {"approve": None, "show": "success"}, {}])
def test_what_a_task_has_shown_or_approved_does_not_count_once_it_is_cleared(
    airflow_home: Any, states: dict[str, Any]
) -> None:
    from rmq_store.airflow.preview import check_ended

    def context_of(states: dict[str, Any]) -> Any:
        ti = SimpleNamespace(dag_id="d", run_id="r1", get_task_states=lambda **_: {"r1": states})
        return {"ti": ti}

    check_ended(context_of({"approve": "success", "show": "success"}), ["show", "approve"])
    with pytest.raises(WrongUse, match="of this run has shown or approved nothing"):
        check_ended(context_of(states), ["show", "approve"])


# --- what users may write is not believed ----------------------------------------------------------------------------


def write_xcom(dag_id: str, task_id: str, key: str, change: Callable[[Any], Any], source: str = "") -> None:
    """Set an XCom of the newest run, as Airflow's REST does for a user who may: to what ``change`` makes of the value that it
    has, or that of the task ``source`` has."""
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        newest = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)
        (dag_run,) = session.scalars(newest)
        query = XComModel.get_many(run_id=dag_run.run_id, key="preview" if source else key, dag_ids=dag_id)
        rows: Any = session.scalars(query)
        (value,) = [XComModel.deserialize_value(row) for row in rows if row.task_id == (source or task_id)]
        XComModel.set(
            key=key,
            value=change(value),
            task_id=task_id,
            dag_id=dag_id,
            run_id=dag_run.run_id,
            serialize=False,
            session=session,
        )


def to_offset_1(preview: Any) -> Any:
    offsets = {shard: dict.fromkeys(queues, 1) for shard, queues in preview["offsets"].items()}
    return preview | {"offsets": offsets}


@pytest.mark.parametrize(("task_id", "key"), [("approve", "asked"), ("preview", "preview")])
def test_offsets_that_were_written_while_an_approval_waited_are_not_moved(
    task_id: str,
    key: str,
    deployed: LakeStore,
    run: Run,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    meanwhile.append(lambda: write_xcom("rmq_reset_offset", task_id, key, to_offset_1))
    result = run("rmq_reset_offset", RESET)
    assert (len(asked), result["state"], actions(deployed)) == (1, "failed", [])
    assert "Nothing was done" in capsys.readouterr().out


@pytest.mark.parametrize("is_edited", [True, False])
def test_an_approval_that_a_person_marked_as_success_and_gave_an_xcom_lets_nothing_pass(
    is_edited: bool, deployed: LakeStore, run: Run, asked: list[Any], meanwhile: list[Callable[[], None]]
) -> None:
    def forge() -> None:
        write_xcom("rmq_reset_offset", "approve", "preview", to_offset_1 if is_edited else dict, "preview")
        clear("rmq_reset_offset", "approve", mark=["approve"])

    meanwhile.append(forge)
    result = run("rmq_reset_offset", RESET)
    assert (asked, result["state"], result["move"], actions(deployed)) == ([], "failed", "failed", [])


def test_of_what_tasks_have_recorded_the_newest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user who restores the XCom of an approval could act on a preview that was rejected or replaced since."""
    from rmq_store.airflow.preview import Preview, Record, Records

    shown = Preview({"offsets": {}})
    ti = SimpleNamespace(xcom_pull=lambda task_ids, key: shown.facts if key == "preview" else None)
    dag_run = SimpleNamespace(dag_id="d", run_id="r", run_after=datetime(2026, 1, 1, tzinfo=UTC), conf={})
    context: Any = {"ti": ti, "dag_run": dag_run}
    seal = shown.seal(context)
    of_another_run = shown.seal({"dag_run": SimpleNamespace(**vars(dag_run) | {"conf": {"group": "other"}})})

    def let_pass(*records: tuple[str, str | None]) -> Preview:
        monkeypatch.setattr(Records, "of_run", lambda _: Records(Record(*record) for record in records))
        return Preview.of_approvals(context, "show", ["one"])

    assert let_pass(("show", seal), ("one", seal)) == shown
    assert let_pass(("show", seal), ("one", None), ("one", seal)) == shown
    for records in (
        [("show", seal), ("one", seal), ("one", None)],
        [("show", seal), ("one", seal), ("show", seal)],
        [("one", seal)],
        [("show", seal)],
        [("show", seal), ("one", of_another_run)],
    ):
        with pytest.raises(WrongUse, match="of this run has shown or approved nothing"):
            let_pass(*records)


def test_each_dag_has_an_asset_that_airflow_can_store(airflow_home: Any) -> None:
    """A DAG may have an id that is not ASCII, but ``dag.test()`` cannot run it. Airflow stores a URI only in ASCII, and on
    MySQL a name too."""
    from airflow.models.asset import AssetModel

    from rmq_store.airflow.assets import previews_asset

    dag_ids = ["rmq_undo", "own.-~", "ümläut", "u\u0308mläut", "umlaut", "%C3%BCml%C3%A4ut", "..", "%2E."]
    assets = [previews_asset(dag_id) for dag_id in dag_ids]
    stored = [AssetModel(name=asset.name, uri=asset.uri) for asset in assets]
    assert len({asset.uri for asset in stored}) == len({asset.name for asset in stored}) == len(dag_ids)
    assert all(asset.name.isascii() for asset in stored)
    assert (stored[0].name, stored[0].uri) == ("rmq_previews__rmq_undo", "x-rmq://previews/rmq_undo")


def test_an_approval_without_an_answer_fails_at_once_and_the_note_says_so(
    airflow_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another try would only wait for as long again. An answer of the first seconds, which Airflow takes for a killed task,
    needs one."""
    from airflow.sdk.exceptions import AirflowFailException

    from rmq_store.airflow.operators.approve import RmqApprovalOperator

    notes = list[str]()
    monkeypatch.setattr("rmq_store.airflow.task.note", lambda context, text: notes.append(text))
    ask: Any = RmqApprovalOperator(task_id="ask", preview="show", response_timeout=timedelta(minutes=1))
    with pytest.raises(AirflowFailException, match="no answer came in time"):
        ask.execute_complete({}, {"error": "e", "error_type": "timeout"})
    assert notes == ["no answer came in time. Nothing was done: trigger a new run"]
    assert (ask.retries, ask.retry_delay) == (2, timedelta(seconds=5))
    assert RmqApprovalOperator(task_id="ask", preview="show", retries=0).retries == 0
    assert RmqApprovalOperator(task_id="ask", preview="show", default_args={"retries": 7}).retries == 7
    with pytest.raises(AirflowFailException, match=r"the answer is \[\]: expected Approve or Reject"):
        ask.execute_complete({}, {"chosen_options": []})


# --- what a task would do now is compared with what was approved -----------------------------------------------------


@pytest.mark.parametrize("shards", [["broker-a", "broker-a"], ["broker-a"]])
def test_a_replay_in_other_shards_than_the_approved_ones_is_not_green(
    shards: list[str],
    deployed: LakeStore,
    run: Run,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = rmq_store.Message("PaymentFlow", b"1")
    rmq_store.open_store(deployed.root.location).send([message], shard="x", create_queues=1)
    meanwhile.append(lambda: write_xcom("rmq_replay", "plan", "return_value", lambda _: shards))
    result = run("rmq_replay", REPLAY)
    assert (len(asked), result["state"]) == (1, "failed")
    assert "approved was windows broker-a, x; now windows" in capsys.readouterr().out


CHOSEN = """
from airflow.sdk import DAG, task
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.replay import RmqPlanReplayOperator, RmqReplayOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator
from rmq_store.airflow.operators.undo import RmqUndoOperator

with DAG("others"):
    @task
    def choose():
        return "payments"

    group = choose()
    reset = {"group": group, "topic": "PaymentFlow", "to": "min", "reason": "r"}
    show_reset = RmqResetOffsetOperator(task_id="show_reset", dry_run=True, **reset)
    move = RmqResetOffsetOperator(task_id="move", dry_run=False, preview="show_reset", **reset)
    undo = {"group": group, "reason": "r"}
    show_undo = RmqUndoOperator(task_id="show_undo", dry_run=True, **undo)
    take_back = RmqUndoOperator(task_id="take_back", dry_run=False, preview="show_undo", **undo)
    replay = {"group": group, "topic": "PaymentFlow", "since": "2000-01-01T00:00:00Z", "reason": "r"}
    plan = RmqPlanReplayOperator(task_id="plan", **replay)
    again = RmqReplayOperator(task_id="again", shard="broker-a", preview="plan", **replay)
    other = {"group": "payments", "reason": "other"}
    others = [
        RmqResetOffsetOperator(task_id="move_other", dry_run=False, preview="show_reset", **reset | other),
        RmqUndoOperator(task_id="take_back_other", dry_run=False, preview="show_undo", **undo | other),
        RmqReplayOperator(task_id="again_other", shard="broker-a", preview="plan", **replay | other),
    ]
    for shows, acts, of_other in zip((show_reset, show_undo, plan), (move, take_back, again), others, strict=True):
        shows >> RmqApprovalOperator(task_id=f"ask_{acts.task_id}", preview=shows.task_id) >> [acts, of_other]
"""


def test_another_group_than_the_approved_one_is_left_alone_and_another_reason_is_not_recorded(
    deployed: LakeStore,
    run: Run,
    tmp_path: Path,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The XCom of a task that chooses the group is written while the questions wait. Other tasks have another reason."""
    for group in ("payments", "planned"):
        run("rmq_reset_offset", RESET | {"group": group, "approve": False})
    meanwhile.append(lambda: write_xcom("others", "choose", "return_value", lambda _: "planned"))
    tasks = {task.task_id: str(task.state) for task in dag_of(CHOSEN, tmp_path).test().get_task_instances()}
    acts = [f"{name}{other}" for name in ("move", "take_back", "again") for other in ("", "_other")]
    assert (len(asked), {tasks[name] for name in acts}) == (3, {"failed"})
    assert capsys.readouterr().out.count("approved was reason r; now reason other. It does not") == 3
    assert (actions(deployed), windows(deployed)) == (["reset", "reset"], 0)


COMMITTED = """
from airflow.sdk import DAG, chain
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.replay import RmqFinishReplayOperator, RmqPlanReplayOperator, RmqReplayOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator
from rmq_store.airflow.operators.undo import RmqUndoOperator

with DAG("others"):
    reset = {"group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "r"}
    replay = {"group": "payments", "topic": "PaymentFlow", "since": "2000-01-01T00:00:00Z"}
    chain(
        RmqResetOffsetOperator(task_id="show_reset", dry_run=True, **reset),
        RmqApprovalOperator(task_id="ask_reset", preview="show_reset"),
        RmqResetOffsetOperator(task_id="move", dry_run=False, preview="show_reset", **reset),
        RmqUndoOperator(task_id="show_undo", group="payments", reason="r", dry_run=True),
        RmqApprovalOperator(task_id="ask_undo", preview="show_undo"),
        RmqUndoOperator(task_id="take_back", group="payments", reason="r", dry_run=False, preview="show_undo"),
        RmqPlanReplayOperator(task_id="plan", **replay),
        RmqApprovalOperator(task_id="ask_replay", preview="plan"),
        RmqReplayOperator(task_id="again", shard="broker-a", preview="plan", **replay),
        RmqFinishReplayOperator(task_id="finish", preview="plan", **replay),
        RmqApprovalOperator(task_id="late", preview="plan"),
        RmqResetOffsetOperator(task_id="other", dry_run=False, preview="show_reset", **reset | {"to": "max"}),
    )
"""


def test_a_task_that_is_cleared_after_its_commit_finds_it_whatever_others_did_since(
    deployed: LakeStore,
    tmp_path: Path,
    asked: list[Any],
    meanwhile: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So does another try of a task whose answer was lost; a task that asks for something else does not."""
    committed = list[int]()

    def others_act() -> None:
        rmq_store.open_store(deployed.root.location).reset("payments", "PaymentFlow", "max", reason="other")
        (group,) = query(deployed, "SELECT DISTINCT group_name AS n FROM windows")["n"].to_pylist()
        another_attempt(deployed, group)
        committed.append(windows(deployed))
        clear("others", *acts)

    acts = ("move", "take_back", "again", "finish")
    deliver_at_once(deployed, monkeypatch)
    meanwhile += [*[lambda: asked.extend(answer_all())] * 3, others_act]
    dag_run = dag_of(COMMITTED, tmp_path).test()
    states = {task.task_id: str(task.state) for task in dag_run.get_task_instances()}
    assert [name for name, state in states.items() if state != "success"] == ["other"]
    answers = [xcom({"run": dag_run}, name, "return_value") for name in acts]
    statuses = [answer[0]["status"] if isinstance(answer, list) else answer["status"] for answer in answers]
    assert statuses == ["already_committed"] * 4
    assert (actions(deployed), committed) == (["reset", "undo", "reset", "replay"], [windows(deployed)])
    assert committed[0] > 1, "rounds of retries too"


def test_a_reset_that_was_approved_before_the_group_was_deleted_is_refused(
    deployed: LakeStore, run: Run, asked: list[Any], meanwhile: list[Callable[[], None]]
) -> None:
    from rmq_store.cli import main

    run("rmq_reset_offset", RESET | {"approve": False, "to": "max"})
    root = ["--root", deployed.root.location]

    def delete() -> None:
        assert main([*root, "delete-group", "--group", "payments", "--reason", "gone"]) == 0

    meanwhile.append(delete)
    result = run("rmq_reset_offset", RESET)
    assert (len(asked), result["state"], result["move"]) == (1, "failed", "failed")
    assert actions(deployed) == ["reset", "delete"]
