"""A delivery starts the retry windows of the groups that ask for it, by Airflow's own asset events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from rmq_store import Message, open_store
from rmq_store.errors import BadData, HeldByAnother, RmqError
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
from scripts.keeper import CHECKOUT
from tests.airflow.conftest import CAPPED, CONSUME, CONSUMERS, WARNINGS_OF_AIRFLOW, wait_until_due

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def asking(deployed: LakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeStore:
    """The store, and settings in which all groups ask for retry windows."""
    settings = tmp_path / "consumers.toml"
    settings.write_text(CONSUMERS.replace('engine = "local"', 'engine = "local"\nconsume_retries = true'))
    monkeypatch.setenv("RMQ_SETTINGS", str(settings))
    return deployed


def queued() -> list[str]:
    """The DAGs that Airflow starts next because of an asset."""
    from airflow.models.asset import AssetDagRunQueue
    from airflow.utils.session import create_session

    with create_session() as session:
        return sorted(session.scalars(select(AssetDagRunQueue.target_dag_id)))


def switch_on(*dag_ids: str) -> None:
    from airflow.models.asset import AssetDagRunQueue
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.execute(delete(AssetDagRunQueue))
        for dag in session.scalars(select(DagModel)):
            dag.is_paused = dag.dag_id not in dag_ids


def started_by_the_scheduler(dag_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``dag.test()`` then executes the run that the scheduler makes of the DAG's asset events."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models import dagrun
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        dag_model = session.get(DagModel, dag_id)
        assert dag_model is not None
        job: Any = Job
        SchedulerJobRunner(job())._create_dag_runs_asset_triggered(dag_models=[dag_model], session=session)

    def made(*, dag: Any, session: Any, **_: Any) -> Any:
        of_dag = select(dagrun.DagRun).where(
            dagrun.DagRun.dag_id == dag_id, dagrun.DagRun.run_type == "asset_triggered"
        )
        dag_run = session.scalars(of_dag.order_by(dagrun.DagRun.id.desc())).first()
        dag_run.dag, dag_run.state = dag, "running"
        session.commit()
        return dag_run

    monkeypatch.setattr(dagrun, "get_or_create_dagrun", made)


Broken = Callable[..., None]


@pytest.fixture
def broken(asking: LakeStore, monkeypatch: pytest.MonkeyPatch) -> Broken:
    """``broken(error)``: the delivery in shard a, which comes before broker-a, raises it; without an error it works."""
    from rmq_store.lake.window import deliver as delivering

    open_store(asking.root.location).send([Message("Later", b"{}")], create_queues=1, shard="a")
    deliver = delivering.deliver

    def make(error: RmqError | None = None) -> None:
        def delivered(store: LakeStore, shard: Shard, *arguments: Any, **options: Any) -> Any:
            if shard.name == "a" and error is not None:
                raise error
            return deliver(store, shard, *arguments, **options)

        monkeypatch.setattr(delivering, "deliver", delivered)

    return make


def note_of(result: dict[str, Any]) -> Any:
    return result["run"].get_task_instance("deliver").xcom_pull(task_ids="deliver", key="rmq_note")


def test_a_shard_that_fails_does_not_stop_the_others_and_the_note_says_so(
    asking: LakeStore, broken: Broken, run: Run
) -> None:
    retried = run(CONSUME)["consume"][0]["outcomes"]["retried"]
    wait_until_due(asking, "payments")
    broken(HeldByAnother("another request has it"))
    failed = run("rmq_deliver_delayed")
    assert (failed["state"], failed["deliver"]) == ("failed", "failed")
    assert note_of(failed) == f"{retried} messages delivered; failed in shard a (HeldByAnother)"
    again = run("rmq_deliver_delayed", again=failed["run"])
    assert note_of(again) == (
        f"the request was committed before, nothing was done now: {retried} messages delivered; "
        "failed in shard a (HeldByAnother)"
    )
    broken()
    assert [one["status"] for one in run("rmq_deliver_delayed", again=failed["run"])["deliver"]] == [
        "empty",
        "already_committed",
    ]


def test_the_next_run_starts_the_window_of_what_a_failed_one_has_delivered_and_only_that_one(
    asking: LakeStore, broken: Broken, run: Run
) -> None:
    assert run("rmq_deliver_delayed")["state"] == "success"
    run(CONSUME)
    wait_until_due(asking, "payments")
    broken(HeldByAnother("another request has it"))
    switch_on(CONSUME, CAPPED)
    assert run("rmq_deliver_delayed")["state"] == "failed"
    assert queued() == [], "Airflow has no event of a task that fails"
    broken()
    by_event = run("rmq_deliver_delayed", logical_date=None)
    assert (by_event["state"], queued()) == ("success", []), "Airflow does not say which run was before it"

    assert note_of(run("rmq_deliver_delayed")) == (
        "0 messages delivered; starts a retry window of payments; nothing else waits"
    )
    assert queued() == [CONSUME]
    switch_on(CONSUME, CAPPED)
    assert note_of(run("rmq_deliver_delayed")) == "nothing to do: nothing is due"
    assert queued() == [], "the window has not read them: it is the run of it that failed"


def test_what_a_failed_run_has_delivered_starts_no_window_once_it_was_read(
    asking: LakeStore, broken: Broken, run: Run, tmp_path: Path
) -> None:
    settings = tmp_path / "consumers.toml"
    settings.write_text(settings.read_text().replace("max_reconsume_times = 2", "max_reconsume_times = 1"))
    run(CONSUME)
    wait_until_due(asking, "payments")
    broken(HeldByAnother("another request has it"))
    assert run("rmq_deliver_delayed")["state"] == "failed"
    assert run(CONSUME)["consume"][0]["outcomes"]["dead"] == 1, "no retry waits any more"
    broken()
    switch_on(CONSUME, CAPPED)
    assert note_of(run("rmq_deliver_delayed")) == "nothing to do: nothing is due"
    assert queued() == []


def test_what_a_command_has_delivered_starts_a_window_too(asking: LakeStore, run: Run) -> None:
    """Without a run before it: what is unread is enough."""
    run(CONSUME)
    wait_until_due(asking, "payments")
    assert sum(one.delivered for one in open_store(asking.root.location).deliver()) > 0
    switch_on(CONSUME, CAPPED)
    first_run("rmq_deliver_delayed")
    run("rmq_deliver_delayed")
    assert queued() == [CONSUME]


def test_what_a_command_delivers_when_a_run_has_read_its_shard_starts_a_window(
    asking: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is at the next shard then, and ends as a success after it."""
    from rmq_store.lake.window import deliver as delivering

    assert run("rmq_deliver_delayed")["state"] == "success"
    run(CONSUME)
    wait_until_due(asking, "payments")
    deliver, delivered = delivering.deliver, list[int]()

    def overtaken(*arguments: Any, **options: Any) -> Any:
        if delivered:
            return deliver(*arguments, **options)
        report = deliver(*arguments, **{**options, "now_ms": 1})  # before anything is due
        delivered.extend(one.delivered for one in open_store(asking.root.location).deliver())
        return report

    monkeypatch.setattr(delivering, "deliver", overtaken)
    switch_on(CONSUME, CAPPED)
    assert note_of(run("rmq_deliver_delayed")) == "nothing to do: nothing is due"
    assert (sum(delivered) > 0, queued()) == (True, [])
    run("rmq_deliver_delayed")
    assert queued() == [CONSUME]


def first_run(dag_id: str) -> None:
    """The next run of the DAG is its first one."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag_id))


@pytest.mark.parametrize(("error", "is_retried"), [(BadData("damaged"), False), (HeldByAnother("held"), True)])
def test_a_delivery_is_tried_again_where_waiting_can_help(
    asking: LakeStore, broken: Broken, monkeypatch: pytest.MonkeyPatch, error: RmqError, is_retried: bool
) -> None:
    """A try that can do nothing in one shard is made once more for another one."""
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from rmq_store.airflow.operators.deliver import RmqDeliverDelayedOperator
    from rmq_store.airflow.task import translated
    from rmq_store.window.deliver import Delivery

    broken(error)
    delivered = Delivery.run

    def damaged_too(delivery: Delivery, shards: Any, *arguments: Any) -> None:
        delivered(delivery, shards, *arguments)
        delivery.errors = {"first": BadData("damaged too"), **delivery.errors}

    monkeypatch.setattr(Delivery, "run", damaged_too)
    context: Any = {"dag_run": Made()}
    with pytest.raises(AirflowException) as raised, translated():
        RmqDeliverDelayedOperator(task_id="deliver").act(context)
    assert isinstance(raised.value, AirflowFailException) is not is_retried


def test_a_delivery_starts_a_window_that_reads_only_the_retries(
    asking: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    retried = run(CONSUME)["consume"][0]["outcomes"]["retried"]
    open_store(asking.root.location).send([Message("PaymentFlow", b"{}")], create_queues=1)
    switch_on(CONSUME, CAPPED)
    wait_until_due(asking, "payments")
    delivered = run("rmq_deliver_delayed")
    (task,) = delivered["run"].get_task_instances()
    note = task.xcom_pull(task_ids="deliver", key="rmq_note")
    assert note.startswith(f"{retried} messages delivered; starts a retry window of payments; ")
    assert queued() == [CONSUME], "no retry of the others was delivered"

    started_by_the_scheduler(CONSUME, monkeypatch)
    assert queued() == []
    result = run(CONSUME)
    assert (result["state"], str(result["run"].run_type)) == ("success", "asset_triggered")
    (answer,) = result["consume"]
    assert (answer["status"], answer["messages"]) == ("committed", retried)
    newest = query(asking, "SELECT actor_source, parameters FROM windows ORDER BY committed_at DESC LIMIT 1")
    (window,) = newest.to_pylist()
    assert (window["actor_source"], json.loads(window["parameters"])["retries_only"]) == ("schedule", True)
    lag = query(asking, "SELECT sum(lag) AS lag FROM lag WHERE group_name = 'payments' AND topic = 'PaymentFlow'")
    assert lag["lag"].to_pylist() == [1], "what is new waits for the schedule"


def test_a_window_that_something_else_started_too_reads_all(airflow_home: AirflowHome) -> None:
    from airflow.sdk import Asset

    from rmq_store.airflow.assets import offsets_asset, retries_asset
    from rmq_store.airflow.operators.consume import RmqPlanShardsOperator
    from rmq_store.airflow.task import run_of

    task = RmqPlanShardsOperator(task_id="plan", group="a|b")

    def reads_only_retries(*causes: Asset) -> bool:
        events = {cause: [object()] for cause in causes}
        context: Any = {"dag_run": Made(), "params": {}, "triggering_asset_events": events}
        request, scope = task.scoped(context)
        assert request.parameters.get("retries_only", False) is scope.retries_only
        return bool(scope.retries_only)

    assert run_of(Made()).on_its_own  # type: ignore[arg-type]
    assert reads_only_retries(retries_asset("a|b"))
    assert not reads_only_retries()
    assert not reads_only_retries(retries_asset("a|b"), offsets_asset("other"))
    assert not reads_only_retries(retries_asset("other"))


class Made:
    """The facts of a run that an asset started."""

    dag_id, run_id, run_type = "d", "r", "asset_triggered"
    triggering_user_name = partition_key = data_interval_start = data_interval_end = None

    def __init__(self) -> None:
        from datetime import UTC, datetime

        self.run_after = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_schedule_of_a_group_stays_beside_its_retries(asking: LakeStore) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    dags = DagBag(CHECKOUT / "dags" / "rmq_consume.py").dags

    def read(dag_id: str) -> Any:
        return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dags[dag_id]))

    both, alone = read(CONSUME), read(CAPPED)
    assert both.timetable.summary == "Asset or */10 * * * *"
    assert both.timetable.periodic, "Airflow's backfill takes it"
    assert "backfill" in {kind.value for kind in both.allowed_run_types}
    assert alone.timetable.summary == "Asset"
    assert "backfill" not in {kind.value for kind in alone.allowed_run_types}


def test_settings_that_are_broken_do_not_lose_the_window_of_what_was_delivered(
    asking: LakeStore, run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The delivery is committed. Its task fails: after a success, no run would report what it has delivered."""
    run(CONSUME)
    wait_until_due(asking, "payments")
    settings = tmp_path / "consumers.toml"
    whole = settings.read_text()
    settings.write_text("[[group]\n")
    switch_on(CONSUME, CAPPED)
    for delivered in (True, False):
        result = run("rmq_deliver_delayed")
        assert result["state"] == "failed"
        assert (
            "message delivered" in str(note_of(result)) or "messages delivered" in str(note_of(result))
        ) is delivered
    assert "no retry window is started: " in caplog.text
    settings.write_text(whole)
    run("rmq_deliver_delayed")
    assert queued() == [CONSUME]
    settings.write_text("[[group]\n")
    assert run("rmq_deliver_delayed")["state"] == "success", "there is nothing to report"
