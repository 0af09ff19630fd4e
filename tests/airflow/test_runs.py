"""DAG runs on a real broker's messages: what they do, and that doing it again does nothing.

``dag.test()`` makes a real run in Airflow's database and executes its tasks in this process.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from rmq_store.broker_files.config_files import parse_consumer_offsets, parse_delay_offsets
from rmq_store.cli import main
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import own_queue_id
from rmq_store.errors import HeldByAnother, ListenerError, StaleAttempt, WrongUse
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.group_course import GroupReport
from rmq_store.settings.spark_settings import SparkSettings
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time
from scripts.airflow_home import AirflowHome
from tests.airflow.conftest import (
    CAPPED,
    CONSUME,
    CONSUMERS,
    PLAN,
    WARNINGS_OF_AIRFLOW,
    in_a_new_process,
    run_note,
    wait_until_due,
)
from tests.contract.test_import_store import store_of

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]

PAYMENTS = 900
NO_PRICE = 27
"""Payments of the store whose price is "n/a": the listener fails them once."""


def rows(store: LakeStore, text: str) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = query(store, text).to_pylist()
    return table


def value(store: LakeStore, text: str) -> Any:
    (row,) = rows(store, text)
    return next(iter(row.values()))


@pytest.mark.parametrize("code", [0, None])
def test_a_task_whose_process_foreign_code_would_end_has_failed(airflow_home: AirflowHome, code: int | None) -> None:
    from airflow.sdk.exceptions import AirflowException

    from rmq_store.airflow.task import translated

    with pytest.raises(AirflowException, match="SystemExit"), translated():
        sys.exit(code)


def test_what_a_task_fails_with_names_no_secret(airflow_home: AirflowHome, caplog: pytest.LogCaptureFixture) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from rmq_store.airflow.task import translated

    def fails() -> None:
        try:
            raise OSError("http://me:the-secret@host")
        except OSError as error:
            raise WrongUse(f"no such place: {error}") from error

    with caplog.at_level("INFO"), pytest.raises(AirflowFailException) as raised, translated():
        fails()
    assert str(raised.value) == "WrongUse: no such place: http://***@host"
    logged = caplog.text + "".join(traceback.format_exception(raised.value))
    assert "in fails" in logged
    assert "the-secret" not in logged


@pytest.mark.parametrize("text", [None, "", '[[group]]\nname = "ord'], ids=["missing", "empty", "half written"])
def test_settings_that_are_being_written_are_read_again(
    text: str | None, airflow_home: AirflowHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from rmq_store.airflow.hooks.rmq import RmqHook
    from rmq_store.airflow.task import translated

    settings = tmp_path / "consumers.toml"
    if text is not None:
        settings.write_text(text)
    monkeypatch.setenv("RMQ_SETTINGS", str(settings))
    with pytest.raises(AirflowException, match=f"SettingsUnusable: .*{settings}") as raised, translated():
        RmqHook().deployment.settings()
    assert not isinstance(raised.value, AirflowFailException), "Airflow tries the task again"


# --- consume, deliver ------------------------------------------------------------------------------------------------


def test_a_window_is_consumed_once_and_a_rerun_says_already_committed(deployed: LakeStore, run: Run) -> None:
    first = run(CONSUME)
    assert first["state"] == "success"
    assert first["plan"] == ["broker-a"]
    (answer,) = first["consume"]
    assert (answer["status"], answer["messages"], answer["engine"]) == ("committed", PAYMENTS, "local")
    assert answer["outcomes"] == {"acked": PAYMENTS - NO_PRICE - 1, "retried": NO_PRICE + 1}
    dag_run = first["run"]
    assert answer["request_id"] == f"{dag_run.run_after.date()}/{CONSUME}/{dag_run.run_id}"
    due = format_time(answer["next_retry_ms"])
    says = "900 messages: 872 acked, 28 retried at level 3; offsets 0 -> 225 in 4 queues; next retry due at " + due
    assert run_note(dag_run) == f"RocketMQ consume 0: payments in broker-a: {says}"

    again = run(CONSUME, again=dag_run)
    assert again["run"].run_id == dag_run.run_id
    done_before = "the request was committed before, nothing was done now"
    assert run_note(again["run"]) == f"RocketMQ consume 0: payments in broker-a: {done_before}: {says}"
    (same,) = again["consume"]
    assert same["status"] == again["report_offsets"]["status"] == "already_committed"
    assert {name: same[name] for name in ("messages", "outcomes", "offsets")} == {
        name: answer[name] for name in ("messages", "outcomes", "offsets")
    }
    assert value(deployed, "SELECT count(*) FROM windows") == 1


def set_note(dag_run: Any, text: str) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        stored = session.get(DagRun, dag_run.id)
        assert stored is not None
        stored.note = text


def test_the_scheduler_writes_the_note_in_its_own_session_and_commits_it_with_the_state(
    deployed: LakeStore, run: Run
) -> None:
    from airflow.listeners.listener import get_listener_manager
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    dag_run = run("rmq_deliver_delayed")["run"]
    assert run_note(dag_run) == "RocketMQ deliver: nothing to do: nothing is due"
    set_note(dag_run, "of a person\n\nRocketMQ deliver: of an earlier try")
    with create_session() as session:
        attached = session.get(DagRun, dag_run.id)
        get_listener_manager().hook.on_dag_run_failed(dag_run=attached, msg="")
        session.rollback()
    assert run_note(dag_run) == "of a person\n\nRocketMQ deliver: of an earlier try"
    with create_session() as session:
        attached = session.get(DagRun, dag_run.id)
        get_listener_manager().hook.on_dag_run_failed(dag_run=attached, msg="")
    assert run_note(dag_run) == "of a person\n\nRocketMQ deliver: nothing to do: nothing is due"


def test_what_an_earlier_attempt_of_a_run_did_is_not_in_its_note(deployed: LakeStore, run: Run) -> None:
    """A backfill that takes a run over has no work in a shard that the scheduled run had consumed: Airflow then takes the task
    of the shard out of the run, and keeps its XComs."""
    from airflow.listeners.listener import get_listener_manager
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    dag_run = run(CONSUME)["run"]
    assert "consume 0: payments in broker-a: 900 messages" in str(run_note(dag_run))
    with create_session() as session:
        attached = session.get(DagRun, dag_run.id)
        assert attached is not None
        (of_shard,) = [task for task in attached.get_task_instances(session=session) if task.task_id == "consume"]
        of_shard.state = TaskInstanceState.REMOVED
        session.flush()
        get_listener_manager().hook.on_dag_run_success(dag_run=attached, msg="")
    assert not run_note(dag_run)


@pytest.mark.parametrize("of_a_person", ["", "of a person\n\n"])
def test_a_run_that_says_nothing_keeps_no_sentence_of_an_earlier_attempt(
    deployed: LakeStore, run: Run, of_a_person: str
) -> None:
    """Airflow deletes what a task said when it starts again. It may fail before it says anything."""
    from airflow.listeners.listener import get_listener_manager
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    dag_run = run("rmq_deliver_delayed")["run"]
    set_note(dag_run, f"{of_a_person}{run_note(dag_run)}")
    with create_session() as session:
        for row in session.scalars(XComModel.get_many(run_id=dag_run.run_id, dag_ids=dag_run.dag_id)):
            session.delete(row)
        session.flush()
        attached = session.get(DagRun, dag_run.id)
        get_listener_manager().hook.on_dag_run_failed(dag_run=attached, msg="")
    assert (run_note(dag_run) or "") == of_a_person.strip()


def test_the_event_of_a_run_has_nothing_of_a_shard_that_only_an_earlier_attempt_consumed(
    deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.sdk.execution_time.xcom import XCom
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy.orm import make_transient

    from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator

    act = RmqConsumeWindowOperator.act

    def beside_an_earlier_one(self: RmqConsumeWindowOperator, context: Any) -> Any:
        answer = act(self, context)
        of_task = {"dag_id": self.dag_id, "run_id": context["run_id"], "task_id": "consume"}
        with create_session() as session:
            (task,) = session.scalars(select(TaskInstance).filter_by(**of_task))
            session.expunge(task)
            make_transient(task)
            task.id, task.map_index, task.state = uuid4(), 1, TaskInstanceState.REMOVED
            session.add(task)
            session.flush()
            stored = XCom.serialize_value(answer, key="return_value")
            XComModel.set("return_value", stored, map_index=1, serialize=False, session=session, **of_task)
        return answer

    monkeypatch.setattr(RmqConsumeWindowOperator, "act", beside_an_earlier_one)
    assert run(CONSUME)["report_offsets"]["messages"] == PAYMENTS


def test_the_asset_event_of_a_run_carries_the_offsets(deployed: LakeStore, run: Run) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    dag_run = run(CONSUME)["run"]
    with create_session() as session:
        (event,) = session.query(AssetEvent).filter(AssetEvent.source_run_id == dag_run.run_id).all()
        extra = dict(event.extra)
    assert extra["status"] == "committed"
    assert extra["offsets"]["broker-a"]["PaymentFlow broker-a:0"] == 225


def test_a_run_whose_windows_consumed_nothing_has_no_event(
    deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another run has consumed all between plan and consume."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator

    act = RmqConsumeWindowOperator.act

    def after_another(self: RmqConsumeWindowOperator, context: Any) -> Any:
        other = RmqConsumeWindowOperator(
            task_id="other", group="payments", shard=self.shard, request_name="other", outlets=[]
        )
        act(other, context)
        return act(self, context)

    monkeypatch.setattr(RmqConsumeWindowOperator, "act", after_another)
    result = run(CONSUME)
    assert (result["state"], result["report_offsets"]["status"]) == ("success", "empty")
    with create_session() as session:
        assert session.query(AssetEvent).filter(AssetEvent.source_run_id == result["run"].run_id).count() == 0


def test_a_failed_message_goes_round_by_the_delay_levels_until_it_is_dead(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    retries = NO_PRICE + 1
    for outcomes in ({"acked": NO_PRICE, "retried": 1}, {"dead": 1}):
        wait_until_due(deployed, "payments")
        assert [answer["delivered"] for answer in run("rmq_deliver_delayed")["deliver"]] == [retries]
        (answer,) = run(CONSUME)["consume"]
        assert answer["outcomes"] == outcomes
        retries = 1
    (letter,) = rows(deployed, "SELECT * FROM dead_letters WHERE group_name = 'payments'")
    assert (letter["error_type"], letter["cause"]) == ("AccountClosed", "max_reconsume_times")
    assert value(deployed, "SELECT count(*) FROM audit") == 0


def test_what_goes_wrong_after_a_commit_is_a_warning_in_the_log_and_the_task_succeeds(
    deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rmq_store.lake.commit import dispatch

    def full(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(dispatch, "staged", full)
    consumed = run(CONSUME)
    (answer,) = consumed["consume"]
    (warning,) = answer["warnings"]
    assert (consumed["state"], answer["status"]) == ("success", "committed")
    assert warning.startswith("shard broker-a: committed, but ")
    assert consumed["report_offsets"]["warnings"] == [warning]
    wait_until_due(deployed, "payments")
    delivered = run("rmq_deliver_delayed")
    assert (delivered["state"], delivered["deliver"][0]["delivered"]) == ("success", NO_PRICE + 1)
    assert len(delivered["deliver"][0]["warnings"]) == 1
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning in logged


def test_a_second_delivery_finds_nothing(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    wait_until_due(deployed, "payments")
    first = run("rmq_deliver_delayed")
    assert first["deliver"][0]["delivered"] == NO_PRICE + 1
    assert run("rmq_deliver_delayed", again=first["run"])["deliver"][0]["delivered"] == NO_PRICE + 1
    assert run("rmq_deliver_delayed")["deliver"][0]["delivered"] == 0
    assert value(deployed, "SELECT count(*) FROM retries WHERE group_name = 'payments'") == NO_PRICE + 1


def test_a_cleared_delivery_says_that_it_was_committed_before_and_what_waits_now(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    wait_until_due(deployed, "payments")
    first = run("rmq_deliver_delayed")
    run(CONSUME)
    due_ms = value(deployed, "SELECT min(deliver_at) FROM delayed WHERE real_topic = '%RETRY%payments'")
    again = run("rmq_deliver_delayed", again=first["run"])
    (answer,) = again["deliver"]
    assert (answer["status"], answer["delivered"]) == ("already_committed", NO_PRICE + 1)
    note = again["run"].get_task_instance("deliver").xcom_pull(task_ids="deliver", key="rmq_note")
    assert note == (
        f"the request was committed before, nothing was done now: {NO_PRICE + 1} messages delivered; the next message is due "
        f"at {format_time(due_ms)}"
    )


def test_a_capped_group_consumes_its_request_in_parts_until_it_is_complete(deployed: LakeStore, run: Run) -> None:
    (answer,) = run(CAPPED)["consume"]
    assert (answer["windows"], answer["messages"], answer["complete"]) == (3, PAYMENTS, True)
    assert value(deployed, "SELECT count(DISTINCT request_id) FROM windows") == 1


def test_an_explicit_bound_wins_over_the_interval_and_is_recorded(deployed: LakeStore, run: Run) -> None:
    middle = value(deployed, "SELECT median(store_timestamp)::BIGINT FROM messages WHERE topic = 'PaymentFlow'")
    before = value(
        deployed, f"SELECT count(*) FROM messages WHERE topic = 'PaymentFlow' AND store_timestamp < {middle}"
    )
    (answer,) = run(CONSUME, {"until": middle})["consume"]
    assert answer["messages"] == before
    parameters = json.loads(value(deployed, "SELECT parameters FROM windows"))
    assert (parameters["until_ms"], parameters["until_rule"]) == (middle, "params")


@pytest.fixture
def scheduled(airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of the test count as scheduled; ``dag.test()`` makes manual ones."""
    from rmq_store.airflow import task

    by_hand = task.run_of
    monkeypatch.setattr(task, "run_of", lambda dag_run: replace(by_hand(dag_run), run_type="scheduled"))


def test_a_run_by_hand_with_a_logical_date_has_no_bound_and_its_log_says_so(
    deployed: LakeStore, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    long_ago = datetime(2024, 5, 1, tzinfo=UTC)
    with caplog.at_level("INFO"):
        (answer,) = run(CONSUME, logical_date=long_ago, run_after=long_ago)["consume"]
    assert (answer["status"], answer["messages"]) == ("committed", PAYMENTS)
    assert json.loads(value(deployed, "SELECT parameters FROM windows"))["until_rule"] == "none"
    assert "no upper bound: 'until' is empty" in caplog.text
    assert "a window of 900 offsets in 4 queues, engine local" in caplog.text
    assert "shard broker-a: committed, 900 messages (872 acked, 28 retried), engine local" in caplog.text
    lines = [line.split() for line in caplog.text.splitlines()]
    row = ["PaymentFlow", "broker-a", "3", "0", "225"]
    assert [line[1:6] for line in lines if line[:2] == ["broker-a", "PaymentFlow"]][-1:] == [row], caplog.text


def test_without_a_bound_the_end_of_a_scheduled_data_interval_counts(
    deployed: LakeStore, run: Run, scheduled: None
) -> None:
    dag_run = run(CONSUME)["run"]
    parameters = json.loads(value(deployed, "SELECT parameters FROM windows"))
    assert parameters["until_rule"] == "data_interval_end"
    assert parameters["until_ms"] == int(dag_run.data_interval_end.timestamp() * 1000)


def test_an_interval_before_the_first_message_records_where_the_group_starts_and_the_next_is_empty(
    deployed: LakeStore, run: Run, scheduled: None
) -> None:
    long_ago = datetime(2024, 5, 1, tzinfo=UTC)
    (first,) = run(CONSUME, logical_date=long_ago, run_after=long_ago)["consume"]
    assert (first["status"], first["messages"]) == ("committed", 0)
    second = run(CONSUME, logical_date=long_ago + timedelta(hours=1), run_after=long_ago + timedelta(hours=1))
    assert (second["state"], second["plan"], second["report_offsets"]) == ("success", [], "skipped")


def test_a_client_without_work_is_told_whether_it_has_no_queues_or_has_consumed_them(
    deployed: LakeStore, run: Run
) -> None:
    def nothing(client: str, clients: str) -> str:
        result = run(CONSUME, {"client": client, "clients": clients})
        assert (result["state"], result["plan"]) == ("success", [])
        assert run_note(result["run"]) == f"RocketMQ plan: nothing to do: {note_of(result, 'plan')}"
        return str(note_of(result, "plan"))

    assert nothing("c9", "c1,c2") == "client c9 gets no queue: it is not in the list of consumers c1, c2"
    five = "c1, c2, c3, c4, c5"
    assert nothing("c5", five) == f"client c5 gets no queue here: AVG gives them to others of {five}"
    assert run(CONSUME, {"client": "c1", "clients": "c1,c2"})["consume"][0]["messages"] == PAYMENTS // 2
    of_c1 = "client c1 has consumed everything in its queues up to the window's upper bound; the other queues are those of c2"
    assert nothing("c1", "c2,c1") == of_c1
    run(CONSUME)
    everything = "group payments has consumed everything up to the window's upper bound"
    assert note_of(run(CONSUME), "plan") == everything


def test_shards_without_work_have_one_reason_or_one_each(airflow_home: AirflowHome) -> None:
    from rmq_store.airflow.operators.consume import joined_reasons

    assert joined_reasons({"a": "no queue", "b": "no queue"}) == "no queue"
    assert joined_reasons({"a": "no queue", "b": "all read"}) == "shard a: no queue; shard b: all read"


def test_a_run_for_retries_that_finds_none_does_not_say_that_the_group_has_consumed_everything(
    deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.operators.consume import RmqConsumeOperator
    from rmq_store.window.consume_request import only_retries

    monkeypatch.setattr(RmqConsumeOperator, "scoped", lambda self, context: only_retries(self.request(context)))
    assert note_of(run(CONSUME), "plan") == "group payments has consumed all its retries that were delivered"


EMPTY = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
import psutil
dag = DagBag("dags").dags[sys.argv[1]]
dag_run = dag.test()
print(json.dumps({
    "state": str(dag_run.state),
    "tasks": {task.task_id: str(task.state) for task in dag_run.get_task_instances()},
    "pyspark": sorted(name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")),
    "children": [child.name() for child in psutil.Process().children(recursive=True)],
}))
"""


def test_an_empty_window_imports_no_pyspark_and_starts_no_java(
    deployed: LakeStore, run: Run, airflow_home: AirflowHome, tmp_path: Path
) -> None:
    run(CONSUME)
    settings = tmp_path / "spark.toml"
    settings.write_text(CONSUMERS.replace('engine = "local"', 'engine = "spark"'))
    result = in_a_new_process(EMPTY, CONSUME, env={"RMQ_SETTINGS": str(settings)})
    assert result["state"] == "success"
    assert result["tasks"] == {"plan": "success", "consume": "skipped", "report_offsets": "skipped"}
    assert result["pyspark"] == []
    assert "java" not in result["children"]


# --- the planned groups ----------------------------------------------------------------------------------------------

THREE = """
[[group]]
name = "works"
listener = "demo.listener:Payments"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
schedule = "planned"
[[group.subscription]]
topic = "PaymentFlow"

[[group]]
name = "fails"
listener = "no_such_module:Listener"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
schedule = "planned"
[[group.subscription]]
topic = "PaymentFlow"

[[group]]
name = "waits"
listener = "demo.listener:Payments"
engine = "local"
schedule = "planned"
[[group.subscription]]
topic = "NoSuchTopic"

[[group]]
name = "alone"
listener = "demo.listener:Payments"
[[group.subscription]]
topic = "PaymentFlow"
"""


@pytest.fixture
def planned(deployed: LakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of three planned groups."""
    settings = tmp_path / "planned.toml"
    settings.write_text(THREE)
    monkeypatch.setenv("RMQ_SETTINGS", str(settings))
    return settings


def groups_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of a planned run by group."""
    rows_of_groups = result["run"].get_task_instance("consume").xcom_pull(task_ids="consume", key="groups")
    return {row.pop("group"): row for row in rows_of_groups}


COMMITTED = {
    "messages": PAYMENTS,
    "outcomes": {"acked": PAYMENTS - NO_PRICE - 1, "retried": NO_PRICE + 1},
    "blocked_queues": 0,
}


def test_a_planned_run_commits_for_all_groups_and_then_names_those_that_failed(
    deployed: LakeStore, run: Run, planned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("ERROR"):
        first = run(PLAN)
    dag_run = first["run"]
    assert (first["state"], first["consume"]) == ("failed", "failed")
    groups = groups_of(first)
    assert groups["works"] == {"status": "committed"} | COMMITTED
    assert (groups["fails"]["status"], groups["fails"]["messages"]) == ("failed", 0)
    assert groups["fails"]["error"].startswith("ListenerError: listener no_such_module:Listener")
    assert set(groups) == {"works", "fails"}
    note = dag_run.get_task_instance("consume").xcom_pull(task_ids="consume", key="rmq_note")
    assert note == f"{PAYMENTS:,} messages of 2 of 3 planned groups; failed: fails (ListenerError)"
    windows = "SELECT group_name, request_id, parameters FROM windows"
    (window,) = rows(deployed, windows)
    assert (window["group_name"], window["request_id"]) == (
        "works",
        f"{dag_run.run_after.date()}/{PLAN}/{dag_run.run_id}",
    )
    parameters = json.loads(window["parameters"])
    assert (parameters["until_rule"], parameters["until_ms"]) == ("none", None)

    planned.write_text(THREE.replace("no_such_module:Listener", "demo.listener:Payments"))
    again = run(PLAN, again=dag_run)
    assert (again["state"], again["run"].run_id) == ("success", dag_run.run_id)
    assert groups_of(again) == {
        "works": {"status": "already_committed"} | COMMITTED,
        "fails": {"status": "committed"} | COMMITTED,
    }
    answer = again["consume"]
    assert (answer["status"], answer["planned_groups"], answer["groups_with_work"]) == ("committed", 3, 2)
    assert len(rows(deployed, windows)) == 2

    nothing = run(PLAN)
    assert (nothing["state"], nothing["consume"]["status"], groups_of(nothing)) == ("success", "empty", {})
    assert note_of(nothing, "consume").startswith("planned groups: 3; all messages up to")


def test_a_planned_run_skips_a_group_that_another_run_holds(deployed: LakeStore, run: Run, planned: Path) -> None:
    planned.write_text(THREE.replace("no_such_module:Listener", "demo.listener:Payments"))
    (shard,) = deployed.shards()
    queues = tuple(own_queue_id("fails", queue) for queue in shard.positions().queues_of("PaymentFlow"))
    wish = Wish("2026-01-01-theirs", Actor("ana", "os"), "fails", queues=queues)
    with claimed(shard, wish, Host()):
        result = run(PLAN)
    groups = groups_of(result)
    assert (result["state"], groups["works"]["status"]) == ("success", "committed")
    assert (groups["fails"]["status"], groups["fails"]["messages"]) == ("skipped, in use", 0)
    assert "held by request 2026-01-01-theirs of ana" in groups["fails"]["error"]


@pytest.mark.parametrize(
    ("errors", "is_retried"),
    [
        ([WrongUse("x")], False),
        ([WrongUse("x"), StaleAttempt("x")], True),
        ([ListenerError("x"), HeldByAnother("x")], False),
        ([ValueError("x")], True),
    ],
)
def test_a_planned_task_is_retried_where_waiting_can_help_a_group(
    errors: list[Exception], is_retried: bool, dags: dict[str, Any]
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from rmq_store.airflow.operators.consume import failed_groups, raise_failed

    reports = [GroupReport(group=f"g{number}", shards=(), error=error) for number, error in enumerate(errors)]
    with pytest.raises(
        AirflowException, match=rf"planned groups failed, .*: g0 \({type(errors[0]).__name__}\)"
    ) as raised:
        raise_failed(failed_groups([*reports, GroupReport(group="good", shards=())]), len(reports) + 1)
    assert isinstance(raised.value, AirflowFailException) is not is_retried


def note_of(result: dict[str, Any], task_id: str) -> Any:
    return result["run"].get_task_instance(task_id).xcom_pull(task_ids=task_id, key="nothing_to_do")


def test_a_schedule_waits_for_a_topic_that_is_not_there_yet_and_a_person_is_told(
    run: Run, airflow_home: AirflowHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dags: dict[str, Any]
) -> None:
    from rmq_store.airflow import task

    LakeStore.init(Root.parse(str(tmp_path / "store")))
    monkeypatch.setenv("RMQ_ROOT", str(tmp_path / "store"))
    assert run(CONSUME)["plan"] == "failed"
    by_hand = task.run_of
    monkeypatch.setattr(task, "run_of", lambda dag_run: replace(by_hand(dag_run), run_type="scheduled"))
    result = run(CONSUME)
    assert (result["state"], result["plan"], result["report_offsets"]) == ("success", [], "skipped")
    assert "is empty: import a broker's files" in note_of(result, "plan")
    result = run("rmq_deliver_delayed")
    assert (result["state"], result["deliver"], note_of(result, "deliver")) == ("success", [], "nothing is due")


def test_a_redrive_of_a_group_without_dead_letters_is_green_and_says_so(deployed: LakeStore, run: Run) -> None:
    params = {"group": "capped|%x", "all": True, "reason": "the listener is fixed", "dry_run": False}
    result = run("rmq_redrive_dlq", params)
    assert (result["state"], result["preview"], result["send"]) == ("success", [], [])
    assert note_of(result, "preview") == "group capped|%x has no dead letters"


# --- reset, replay, persist, import ----------------------------------------------------------------------------------

TO_MIN = {"group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "the listener had a defect"}


def test_a_reset_shows_first_and_moves_only_when_told_to(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    shown = run("rmq_reset_offset", TO_MIN)
    assert (shown["state"], shown["move"]) == ("success", "skipped")
    assert shown["preview"][0]["moves"] == [[f"broker-a:{queue_id}", 225, 0] for queue_id in range(4)]
    offsets = "SELECT DISTINCT next_offset FROM consumer_offsets WHERE group_name='payments' AND topic='PaymentFlow'"
    assert value(deployed, offsets) == 225

    moved = run("rmq_reset_offset", TO_MIN | {"dry_run": False, "queues": ["broker-a:0", "broker-a:1"]})
    of_shard = {"status": "committed", "shard": "broker-a", "moves": shown["preview"][0]["moves"][:2]}
    assert moved["move"] == [of_shard | {"notes": [], "warnings": []}]
    history = rows(deployed, "SELECT actor, actor_source, reason FROM offset_history WHERE action = 'reset'")
    assert history == [{"actor": "dag_test", "actor_source": "airflow", "reason": TO_MIN["reason"]}] * 2

    again = run(
        "rmq_reset_offset", TO_MIN | {"dry_run": False, "queues": ["broker-a:0", "broker-a:1"]}, again=moved["run"]
    )
    assert again["move"][0]["status"] == "already_committed"
    assert value(deployed, "SELECT count(*) FROM offset_history WHERE action = 'reset'") == 2


def test_a_reset_passes_over_a_delayed_message_that_no_run_can_deliver(
    deployed: LakeStore,
    run: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    level = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2}
    goes_to = ({"REAL_TOPIC": "Later", "REAL_QID": "p"}, {"REAL_TOPIC": "Later", "REAL_QID": "0"})
    values = [level | {"properties": {"DELAY": "3", "UNIQ_KEY": f"k{n}"} | to} for n, to in enumerate(goes_to)]
    folder = str(store_of(tmp_path / "broker", *values))
    for command in (["import-store", folder, "--shard", "b"], ["cutover", "--reason", "moved", "--shard", "b"]):
        assert main([*command, "--root", deployed.root.location, "--broker", "broker-b"]) == 0
    failed = run("rmq_deliver_delayed")
    heard = capsys.readouterr()
    assert (failed["state"], failed["deliver"]) == ("failed", "failed")
    assert "offset 0 of SCHEDULE_TOPIC_XXXX broker-b:2 cannot be delivered" in heard.out + heard.err + caplog.text
    past = {"group": "CID_RMQ_SYS_SCHEDULE", "topic": "SCHEDULE_TOPIC_XXXX", "queues": ["broker-b:2"], "to": "offset"}
    moved = run("rmq_reset_offset", past | {"offset": 1, "reason": "its queue is not known", "dry_run": False})
    assert moved["move"][0]["moves"] == [["broker-b:2", None, 1]]
    delivered = run("rmq_deliver_delayed", again=failed["run"])
    assert {one["shard"]: one["delivered"] for one in delivered["deliver"]} == {"b": 1, "broker-a": 0}


UNKNOWN = "unknown parameter 'queue'"


@pytest.mark.parametrize(
    ("dag_id", "conf", "says"),
    [
        (CONSUME, {"queue": "x"}, UNKNOWN),
        (PLAN, {"queue": "x"}, UNKNOWN),
        ("rmq_deliver_delayed", {"queue": "x"}, UNKNOWN),
        ("rmq_persist_offsets", {"queue": "x"}, UNKNOWN),
        ("rmq_import_store", {"source": "/etc", "broker_name": "b", "queue": "x"}, UNKNOWN),
        ("rmq_redrive_dlq", {"group": "payments", "all": True, "reason": "r", "queue": "x"}, UNKNOWN),
        ("rmq_replay", {"group": "payments", "topic": "PaymentFlow", "from": 0, "queue": "x"}, UNKNOWN),
        ("rmq_reset_offset", TO_MIN | {"queue": "x"}, f"{UNKNOWN}, did you mean 'queues'?"),
        ("rmq_reset_offset", TO_MIN | {"topic": "NoSuchTopic"}, "there is no topic NoSuchTopic"),
        ("rmq_reset_offset", TO_MIN | {"queues": ["broker-a:99"]}, "has no queue broker-a:99"),
        ("rmq_reset_offset", TO_MIN | {"group": "paymnts"}, "there is no group 'paymnts', did you mean 'payments'?"),
        ("rmq_reset_offset", TO_MIN | {"to": "time"}, "a reset to time needs the time"),
        ("rmq_undo", {"group": "payments", "reason": "r", "queue": "x"}, UNKNOWN),
        ("rmq_undo", {"group": "paymnts", "reason": "r"}, "there is no group 'paymnts', did you mean 'payments'?"),
        ("rmq_redrive_dlq", {"group": "paymnts", "all": True, "reason": "r"}, "there is no group 'paymnts'"),
        ("rmq_replay", {"group": "nobody", "topic": "PaymentFlow", "from": 0}, "has no group 'nobody'"),
        ("rmq_replay", {"group": "payments", "topic": "OrderEvents", "from": 0}, "does not read OrderEvents"),
        ("rmq_replay", {"group": "payments"}, "payments is not a replay group"),
        (CONSUME, {"until": "2026-02-29T00:00:00Z"}, "until: invalid time"),
        ("rmq_import_store", {"source": "/etc", "broker_name": "b"}, "RMQ_IMPORT_ROOTS is not set"),
        ("rmq_import_store", {"source": "/etc", "broker_name": ".."}, "invalid broker name '..'"),
        ("rmq_import_store", {"source": "/etc", "broker_name": "b", "shard": "a/b"}, "invalid shard name 'a/b'"),
    ],
)
def test_a_run_with_wrong_parameters_fails_at_once_in_its_first_task_and_changes_nothing(
    dag_id: str,
    conf: dict[str, Any],
    says: str,
    deployed: LakeStore,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    version = deployed.shards()[0].commitlog.version
    result = run(dag_id, conf)
    assert result["state"] == "failed"
    states = [result[task] for task in result if task not in ("state", "run")]
    assert states.count("failed") == 1
    assert set(states) <= {"failed", "upstream_failed"}
    heard = capsys.readouterr()
    assert says in heard.out + heard.err + caplog.text
    shard = deployed.shards()[0]
    shard.commitlog.refresh()
    assert shard.commitlog.version == version


def test_a_replay_moves_nobodys_offsets_and_its_retries_are_its_own(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    live = "SELECT * FROM consumer_offsets WHERE group_name = 'payments' ORDER BY ALL"
    before = rows(deployed, live)
    since = value(deployed, "SELECT max(store_timestamp) - 1000 FROM messages WHERE topic = 'PaymentFlow'")
    expected = value(
        deployed, f"SELECT count(*) FROM messages WHERE topic = 'PaymentFlow' AND store_timestamp >= {since}"
    )
    params = {"group": "payments", "topic": "PaymentFlow", "from": since, "reason": "look again"}

    first = run("rmq_replay", params)
    (answer,) = first["replay"]
    assert (answer["status"], answer["messages"]) == ("committed", expected)
    assert rows(deployed, live) == before
    (again,) = run("rmq_replay", params, again=first["run"])["replay"]
    assert (again["status"], again["messages"]) == ("already_committed", expected)

    failed = answer["outcomes"]["retried"]
    wait_until_due(deployed, answer["group"])
    run("rmq_deliver_delayed")
    (followed,) = run("rmq_replay", {"group": answer["group"]})["replay"]
    assert (followed["group"], followed["messages"]) == (answer["group"], failed)
    assert value(deployed, f"SELECT count(*) FROM windows WHERE group_name = '{answer['group']}'") == 2

    again = run("rmq_replay", {"group": answer["group"], "reprocess": "the listener is fixed"})
    assert [(one["status"], one["messages"]) for one in again["replay"]] == [("committed", expected)]
    (cleared,) = run("rmq_replay", {"group": answer["group"], "reprocess": "x"}, again=again["run"])["replay"]
    assert (cleared["status"], cleared["messages"]) == ("already_committed", expected)
    attempts = f"SELECT DISTINCT attempt FROM windows WHERE group_name = '{answer['group']}' ORDER BY attempt"
    assert [row["attempt"] for row in rows(deployed, attempts)] == [1, 2]


def test_dead_letters_are_shown_first_and_sent_once_when_told_to(deployed: LakeStore, run: Run) -> None:
    of_each = "SELECT group_name, count(*) AS letters FROM dead_letters GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1"
    (most,) = rows(deployed, of_each)
    params = {"group": most["group_name"], "all": True, "reason": "the listener is fixed"}
    shown = run("rmq_redrive_dlq", params)
    assert (shown["state"], shown["send"]) == ("success", "skipped")
    expected = {"shard": "broker-a", "letters": most["letters"], "topic": f"%RETRY%{most['group_name']}"}
    of_all = {"status": "dry_run", "readers": [most["group_name"]], "failed": 0, "warnings": []}
    assert shown["preview"] == [of_all | expected]
    sent = run("rmq_redrive_dlq", params | {"dry_run": False})
    assert [answer["status"] for answer in sent["send"]] == ["committed"]
    again = run("rmq_redrive_dlq", params | {"dry_run": False}, again=sent["run"])
    assert [(answer["status"], answer["letters"]) for answer in again["send"]] == [
        ("already_committed", most["letters"])
    ]
    assert value(deployed, "SELECT count(redriven_at) FROM dead_letters") == most["letters"]
    assert value(deployed, "SELECT count(*) FROM audit") == 0


def test_offsets_are_exported_in_the_brokers_own_form_and_the_file_before_is_kept(
    deployed: LakeStore, run: Run, tmp_path: Path
) -> None:
    middle = value(deployed, "SELECT median(store_timestamp)::BIGINT FROM messages WHERE topic = 'PaymentFlow'")
    run(CONSUME, {"until": middle})
    result = run("rmq_persist_offsets")
    (first,) = result["export"]
    dispatch, export = (run_note(result["run"]) or "").split("\n\n")
    assert dispatch.startswith("RocketMQ dispatch: ")
    assert "commit" in dispatch
    assert export == "RocketMQ export: offsets of 1 broker exported: the files of broker-a changed"
    file = tmp_path / "exports" / "broker-a" / "broker-a" / "consumerOffset.json"
    assert first["file"] == str(file)
    assert first["waiting_retries"]["payments"] > 0
    delays = parse_delay_offsets(file.with_name("delayOffset.json").read_text())
    assert (delays[3], delays[17], first["waiting_levels"]) == (432, 0, 162)
    text = file.read_text()
    exported = parse_consumer_offsets(text)
    keys = {(topic, group) for topic, group, _, _ in exported.commits()}
    assert {("PaymentFlow", "payments"), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS")} < keys
    (unchanged,) = run("rmq_persist_offsets")["export"]
    assert (unchanged["changed"], file.read_text()) == (False, text)
    run(CONSUME)
    text = text.replace('"offsetTable":{', '"offsetTable":{"Elsewhere@others":{0:9},')
    text = re.sub(r'("PaymentFlow@payments":\{\s*0:)\d+', r"\g<1>99999", text)
    file.write_text(text)
    result = run("rmq_persist_offsets")
    (changed,) = result["export"]
    assert (changed["changed"], changed["lowered"]) == (True, 1)
    lowered = "lowered: 1 offset of broker-a, which consumes again from there; 1 note in the log"
    assert (run_note(result["run"]) or "").endswith(f"the files of broker-a changed; {lowered}")
    assert file.with_name("consumerOffset.json.bak").read_text() == text != file.read_text()
    assert ("Elsewhere", "others", 0, 9) in parse_consumer_offsets(file.read_text()).commits()


def test_maintenance_answers_for_every_table_and_changes_no_row(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    before = value(deployed, "SELECT count(*) FROM windows")
    answers = run("rmq_maintain")
    for step in ("retention", "messages", "derived", "checkpoint", "vacuum"):
        assert [answer["table"] for answer in answers[step]] == ["commitlog", "commits", "consumequeue", "offsets"]
    assert answers["checkpoint"][0]["checkpoint"] is True
    assert [answer["files_deleted"] for answer in answers["vacuum"]] == [0] * 4
    assert value(deployed, "SELECT count(*) FROM windows") == before
    assert value(deployed, "SELECT count(*) FROM audit") == 0


def test_maintenance_that_is_done_again_says_what_its_run_has_done_before(deployed: LakeStore, run: Run) -> None:
    (shard,) = deployed.shards()
    orphan = Path(deployed.root.location, shard.commitlog.path, "kind=msg", "orphan.parquet")
    orphan.touch()
    os.utime(orphan, (1, 1))
    first = run("rmq_maintain")
    again = run("rmq_maintain", again=first["run"])
    assert [(answer["files_deleted"], answer["before"]) for answer in (first["vacuum"][0], again["vacuum"][0])] == [
        (1, {}),
        (0, {"files_to_delete": 1}),
    ]
    vacuum = "RocketMQ vacuum: the request was committed before, nothing was done now: up to 1 data file deleted"
    assert (run_note(again["run"]) or "").split("\n\n")[-1] == vacuum


@pytest.mark.parametrize(("step", "more"), [("derived", True), ("vacuum", True), ("retention", False)])
def test_another_try_of_maintenance_does_not_say_that_there_was_nothing_to_do_before(
    deployed: LakeStore, dags: dict[str, Any], step: str, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow import task
    from rmq_store.airflow.operators.maintain import RmqMaintainOperator

    notes: list[str] = []
    monkeypatch.setattr(task, "note", lambda context, sentence, hook: notes.append(sentence))
    dag_run = SimpleNamespace(
        dag_id="rmq_maintain", run_id="one", run_type="manual", run_after=datetime.now(UTC), triggering_user_name="a",
        data_interval_start=None, data_interval_end=None, logical_date=None, partition_key=None, conf={},
    )  # fmt: skip
    for number in (1, 2):
        context: Any = {"dag_run": dag_run, "ti": SimpleNamespace(try_number=number)}
        RmqMaintainOperator(task_id=step, step=step).execute(context)
    left = "there was nothing left to do; an earlier try may have done more than was recorded"
    assert notes == ["there was nothing to do", left if more else "there was nothing to do"]


def test_an_export_that_may_not_be_written_is_not_tried_again_and_says_what_to_set(
    deployed: LakeStore, dags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from rmq_store.airflow.operators.export import RmqExportOffsetsOperator

    def may_not(file: Path, text: str, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr("rmq_store.broker_files.offsets_to_broker.write_config", may_not)
    with pytest.raises(AirflowFailException, match=r"consumerOffset\.json .*Permission denied\. Set RMQ_EXPORT_FOLDER"):
        RmqExportOffsetsOperator(task_id="export").execute({})


def test_an_import_reads_only_below_the_allowed_roots_and_the_second_changes_nothing(
    deployed: LakeStore,
    run: Run,
    broker_store: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = broker_store("market-killed")
    monkeypatch.setenv("RMQ_IMPORT_ROOTS", f"s3://copies/a, {files.parent}")
    params = {"source": str(files), "broker_name": "broker-k", "engine": "local"}
    first = run("rmq_import_store", params)
    assert first["import_new"]["status"] == "committed"
    assert first["import_new"]["messages"] > 0
    assert run("rmq_import_store", params, again=first["run"])["import_new"]["status"] == "already_committed"
    assert run("rmq_import_store", params)["import_new"]["status"] == "unchanged"
    assert "broker-k" in deployed.shard_names()

    link = tmp_path / "link"
    link.symlink_to("/etc")
    monkeypatch.setenv("RMQ_IMPORT_ROOTS", str(tmp_path))
    for outside in (str(files), str(link), f"{tmp_path}/../..", f"{tmp_path}-too"):
        refused = run("rmq_import_store", params | {"source": outside})
        assert (refused["check"], refused["import_new"]) == ("failed", "upstream_failed")


# --- where things are ------------------------------------------------------------------------------------------------


def test_spark_runs_where_the_settings_and_the_environment_say(
    dags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.deployment import Deployment

    opened: list[tuple[SparkSettings, Sequence[str], Sequence[Path]]] = []

    def opened_engine(
        name: str, spark: SparkSettings, *, python_path: Sequence[Path], listeners: Sequence[str]
    ) -> AbstractContextManager[object]:
        opened.append((spark, listeners, python_path))
        return nullcontext()

    monkeypatch.setattr("spark_jobs.engine.opened_engine", opened_engine)
    group = '[[group]]\nname = "orders"\nlistener = "shop:Orders"\n[[group.subscription]]\ntopic = "T"\n'
    settings = tmp_path / "consumers.toml"
    settings.write_text('[spark]\nmaster = "yarn"\n[spark.conf]\nspark.executor.cores = 4\n' + group)
    folders = {"RMQ_LISTENER_PATH": str(tmp_path)}
    monkeypatch.setattr(sys, "path", list(sys.path))
    for changed in (folders, {"RMQ_SPARK_MASTER": "local[3]"}, {"SPARK_REMOTE": "sc://here"}, {"RMQ_SETTINGS": "none"}):
        env = {"RMQ_SETTINGS": str(settings), **changed}
        with Deployment.from_env(env).engines("spark", ["shop:Orders"]) as engines:
            engines.spark()
    assert [(spark.master, spark.remote) for spark, _, _ in opened] == [
        ("yarn", None), ("local[3]", None), (None, "sc://here"), (None, None),
    ]  # fmt: skip
    assert opened[0][0].conf == {"spark.executor.cores": "4"}
    assert opened[0][1:] == (["shop:Orders"], [tmp_path])


@pytest.mark.parametrize(
    ("source", "is_allowed"),
    [
        ("s3://copies/a", True),
        ("s3://copies/a/store/", True),
        ("s3://copies/ab", False),
        ("s3://copies/a/../b", False),
        ("s3://other/a", False),
        ("/copies", False),
    ],
)
def test_an_import_root_is_a_whole_prefix(dags: dict[str, Any], source: str, is_allowed: bool) -> None:
    from rmq_store.airflow.deployment import Deployment
    from rmq_store.errors import WrongUse

    deployment = Deployment.from_env({"RMQ_IMPORT_ROOTS": "s3://copies/a/, /data/brokers"})
    if is_allowed:
        assert deployment.allowed_source(source) == source.rstrip("/")
    else:
        with pytest.raises(WrongUse, match=r"outside RMQ_IMPORT_ROOTS|must not contain"):
            deployment.allowed_source(source)


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [("HeldByAnother", True), ("StaleAttempt", True), ("StoreUnusable", True), ("WrongUse", False), ("BadData", False),
     ("CommitOutcomeUnknown", False), ("ListenerNotStarted", True), ("ListenerError", False)],
)  # fmt: skip
def test_only_errors_that_waiting_can_fix_are_retried(dags: dict[str, Any], error: str, is_retried: bool) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from rmq_store import errors
    from rmq_store.airflow.task import translated

    with pytest.raises(AirflowException, match=f"^{error}: the facts$") as raised, translated():
        raise getattr(errors, error)("the facts")
    assert isinstance(raised.value, AirflowFailException) is not is_retried
