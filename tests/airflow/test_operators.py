"""The operators in the DAG of another project, such as that of ``docs/airflow.md``."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import WrongUse
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
from scripts.keeper import CHECKOUT
from tests.airflow.conftest import WARNINGS_OF_AIRFLOW, dag_of

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

HEAD = """
from airflow.sdk import DAG, Param
from rmq_store.airflow.operators.deliver import RmqDeliverDelayedOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator
"""


def test_the_dag_of_the_page_imports_delivers_and_consumes(
    deployed: LakeStore, broker_store: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", (CHECKOUT / "docs" / "airflow.md").read_text(), re.DOTALL)
    source = broker_store("market-killed")
    monkeypatch.setenv("RMQ_IMPORT_ROOTS", str(source.parent))
    text = text.replace("s3://copies/broker-a", str(source)).replace('broker_name="broker-a"', 'broker_name="broker-k"')
    dag = dag_of(text.replace('consume_group("orders")', 'consume_group("payments")'), tmp_path)
    assert sorted(dag.task_ids) == [
        "consume_orders.consume", "consume_orders.plan", "consume_orders.report_offsets", "deliver", "import_files"
    ]  # fmt: skip
    assert dag.get_task("consume_orders.plan").upstream_task_ids == {"deliver"}
    dag_run = dag.test()
    instances = dag_run.get_task_instances()
    assert {str(task.state) for task in instances} == {"success"}
    assert sorted(task.rendered_map_index for task in instances if task.map_index >= 0) == ["broker-a", "broker-k"]
    (report,) = [task for task in instances if task.task_id == "consume_orders.report_offsets"]
    answer = report.xcom_pull(task_ids=report.task_id)
    assert (answer["status"], sorted(answer["offsets"])) == ("committed", ["broker-a", "broker-k"])
    assert query(deployed, "SELECT count(DISTINCT request_id) AS n FROM windows").to_pylist() == [{"n": 1}]


def test_every_operator_has_its_row_in_the_page(airflow_home: AirflowHome) -> None:
    import inspect
    from importlib import import_module

    from rmq_store.airflow.operators.base import RmqOperator

    page = (CHECKOUT / "docs" / "airflow.md").read_text()
    modules = [
        path.stem for path in (CHECKOUT / "rmq_store/airflow/operators").glob("[a-z]*.py") if path.stem != "base"
    ]
    classes = {
        value
        for module in modules
        for _, value in inspect.getmembers(import_module(f"rmq_store.airflow.operators.{module}"), inspect.isclass)
        if issubclass(value, RmqOperator) and value.act is not RmqOperator.act
    }
    assert len(classes) >= 13
    assert [one.__name__ for one in classes if f"`{one.__name__}`" not in page] == []
    for one in classes:
        names = [name for name in inspect.signature(one).parameters if name not in ("self", "kwargs")]
        docs = "".join(parent.__doc__ or "" for parent in one.__mro__ if issubclass(parent, RmqOperator))
        assert [name for name in names if f":param {name}:" not in docs] == []
        assert set(one.template_fields) <= {"group", "topic", "since", "until", "time", "source", "broker_name"}


def test_arguments_are_the_authors_and_a_text_of_a_user_is_not_rendered(deployed: LakeStore, tmp_path: Path) -> None:
    dag = dag_of(
        HEAD
        + """
with DAG("others", params={"reason": Param("", type="string"), "to": "max", "queues": []}):
    RmqResetOffsetOperator(
        task_id="move", group="payments", topic="{{ dag.dag_id and 'PaymentFlow' }}", to="offset", offset=7,
        queues=["broker-a:0"], dry_run=False, use_run_params=True,
    )
""",
        tmp_path,
    )
    dag_run = dag.test(run_conf={"reason": "{{ 6 * 7 }}", "to": "min"})
    assert str(dag_run.state) == "success"
    rows = query(deployed, "SELECT reason, to_offset FROM offset_history WHERE action = 'reset'").to_pylist()
    assert rows == [{"reason": "{{ 6 * 7 }}", "to_offset": 7}]


def test_without_run_parameters_an_operator_reads_none(deployed: LakeStore, tmp_path: Path) -> None:
    """The DAG of another project may have parameters of its own, and runs with others."""
    dag = dag_of(
        HEAD
        + """
with DAG("others", params={"reason": "theirs"}):
    arguments = {"group": "payments", "topic": "PaymentFlow", "to": "offset", "dry_run": False}
    first = RmqResetOffsetOperator(task_id="first", offset=7, reason="mine", **arguments)
    second = RmqResetOffsetOperator(task_id="second", offset=8, reason="mine", request_name="second", **arguments)
    third = RmqResetOffsetOperator(task_id="third", offset=9, **arguments)
    first >> second >> third
""",
        tmp_path,
    )
    dag_run = dag.test(run_conf={"anything": 1, "offset": 3})
    states = {task.task_id: str(task.state) for task in dag_run.get_task_instances()}
    assert states == {"first": "success", "second": "success", "third": "failed"}, "the third has no reason"
    offsets = (
        "SELECT DISTINCT next_offset FROM consumer_offsets WHERE group_name = 'payments' AND topic = 'PaymentFlow'"
    )
    assert query(deployed, offsets).to_pylist() == [{"next_offset": 8}]


def test_each_task_that_consumes_reports_its_offsets_by_itself(deployed: LakeStore, tmp_path: Path) -> None:
    dag = dag_of(
        """
from airflow.sdk import DAG, Asset
from rmq_store.airflow.operators.consume import RmqConsumePlannedOperator, RmqConsumeWindowOperator
from rmq_store.airflow.operators.replay import RmqReplayOperator

with DAG("others"):
    alone = RmqConsumeWindowOperator(task_id="alone", group="payments", shard="broker-a", max_messages=40)
    mapped = RmqConsumeWindowOperator.partial(task_id="mapped", group="capped|%x", max_messages=40)
    replayed = {"group": "payments", "topic": "PaymentFlow", "since": "2020-01-01T00:00:00Z", "max_messages": 40}
    again = RmqReplayOperator.partial(task_id="again", **replayed).expand(shard=["broker-a"])
    planned = RmqConsumePlannedOperator(task_id="planned", max_messages=40)
    rest = {"group": "payments", "shard": "broker-a"}
    theirs = RmqConsumeWindowOperator(task_id="theirs", request_name="b", outlets=[Asset("theirs")], max_messages=40, **rest)
    silent = RmqConsumeWindowOperator(task_id="silent", request_name="c", outlets=[], **rest)
    nothing = RmqConsumeWindowOperator(task_id="nothing", request_name="d", **rest)
    alone >> mapped.expand(shard=["broker-a"]) >> again >> planned >> theirs >> silent >> nothing
""",
        tmp_path,
    )
    dag_run = dag.test()
    assert {str(task.state) for task in dag_run.get_task_instances()} == {"success"}
    events = events_of(dag_run)
    assert {task: name for task, (name, _) in events.items()} == {
        "alone": "rmq_offsets__payments",
        "mapped": "rmq_offsets__capped|%x",
        "again": "rmq_offsets__payments",
        "planned": "rmq_offsets__planned",
        "theirs": "theirs",
    }
    assert {extra["messages"] for _, extra in events.values()} == {40}
    offsets = "SELECT shard, topic || ' ' || broker_name || ':' || queue_id AS queue, next_offset FROM consumer_offsets"
    (alone, again, theirs) = (events[task][1] for task in ("alone", "again", "theirs"))
    assert "replay_of" not in alone
    assert (again["replay_of"], again["group"].partition("-replay-")[0]) == ("payments", "payments")
    for extra, group in ((again, again["group"]), (events["planned"][1], "planned")):
        rows = query(deployed, f"{offsets} WHERE group_name = '{group}'").to_pylist()
        reached = {row["queue"]: row["next_offset"] for row in rows}
        assert extra["offsets"]["broker-a"].items() <= reached.items()
    assert sum(theirs["offsets"]["broker-a"].values()) == 2 * sum(alone["offsets"]["broker-a"].values()) == 80


ASSETS = """
from airflow.sdk import DAG
from rmq_store.airflow.consume_group import consume_group
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator
from rmq_store.airflow.operators.replay import RmqPlanReplayOperator, RmqReplayOperator
from rmq_store.airflow.operators.undo import RmqUndoOperator

before = RmqUndoOperator(task_id="before", group="new-a", reason="r", dry_run=True)
with DAG("assets") as dag:
    first = RmqPlanReplayOperator(task_id="first", group="new-a")
    RmqApprovalOperator(task_id="ask", preview="first")
    RmqConsumeWindowOperator(task_id="alone", group="new-a", shard="s")
    RmqConsumeWindowOperator.partial(task_id="mapped", group="new|%b").expand(shard=["s"])
    RmqReplayOperator.partial(task_id="again", group="new-c-replay-0123456789").expand(shard=["s"])
    RmqConsumeWindowOperator(task_id="at_run_time", group="{{ dag.dag_id }}", shard="s")
    RmqConsumeWindowOperator.partial(task_id="each", shard="s").expand(group=["new-e"])
    RmqConsumeWindowOperator(task_id="silent", group="new-f", shard="s", outlets=[])
    consume_group("new-d")
dag.add_task(before)
"""


def test_an_asset_is_there_before_its_first_event(airflow_home: AirflowHome, tmp_path: Path) -> None:
    """Airflow would make one that is missing with the first event, and fail all but one of the tasks that end together."""
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    dag_of(ASSETS, tmp_path)
    with create_session() as session:
        read = select(AssetModel).where(AssetModel.consuming_tasks.any(dag_id="assets"))
        assets = {asset.name: asset for asset in session.scalars(read)}
        assert {name: sorted(ref.task_id for ref in asset.consuming_tasks) for name, asset in assets.items()} == {
            "rmq_previews__assets": ["ask", "before", "first"],
            "rmq_offsets__new-a": ["alone"],
            "rmq_offsets__new|%b": ["mapped"],
            "rmq_offsets__new-c": ["again"],
            "rmq_offsets__new-d": ["report_offsets"],
        }
        assert all(asset.active and not asset.scheduled_dags for asset in assets.values())


def events_of(dag_run: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """The asset and the ``extra`` of each task's one event."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).filter(AssetEvent.source_run_id == dag_run.run_id).all()
        found = [(str(event.source_task_id), (event.asset.name, dict(event.extra))) for event in events]
        assert not any(event.asset.aliases for event in events), "Airflow would relate it with the first event"
    assert len(dict(found)) == len(found)
    return dict(found)


def test_a_switch_is_true_or_false_and_only_a_template_is_the_result_of_another_task(airflow_home: AirflowHome) -> None:
    """A text or a number would be read as one of them, a result of another task as itself: both where the DAG is read."""
    from airflow.sdk import DAG

    from rmq_store.airflow.operators.approve import RmqApprovalOperator
    from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator, RmqPlanShardsOperator
    from rmq_store.airflow.operators.import_store import RmqImportStoreOperator
    from rmq_store.airflow.operators.maintain import RmqMaintainOperator
    from rmq_store.airflow.operators.redrive import RmqRedriveOperator
    from rmq_store.airflow.operators.replay import RmqFinishReplayOperator, RmqReplayOperator
    from rmq_store.airflow.operators.reset import RmqResetOffsetOperator
    from rmq_store.airflow.operators.undo import RmqUndoOperator
    from rmq_store.airflow.sensors.lag import RmqLagSensor

    switches: dict[Any, list[str]] = {
        RmqResetOffsetOperator: ["dry_run", "use_run_params"],
        RmqUndoOperator: ["dry_run", "force", "use_run_params"],
        RmqRedriveOperator: ["dry_run", "all_letters", "all_or_nothing"],
        RmqImportStoreOperator: ["salvage", "check_only"],
    }
    with DAG("another"):
        other = RmqPlanShardsOperator(task_id="other", group="g").output
        for operator, names in switches.items():
            for name in names:
                for value in ("true", "false", 0, 1, other):
                    with pytest.raises(WrongUse, match=name):
                        operator(task_id="t", **{name: value})
                operator(task_id=f"{operator.__name__}_{name}", **{name: True})
        for operator, arguments in (
            (RmqResetOffsetOperator, {"offset": other}),
            (RmqResetOffsetOperator, {"preview": ["show"]}),
            (RmqConsumeWindowOperator, {"group": "g", "shard": "s", "max_messages": other}),
            (RmqConsumeWindowOperator, {"group": "g", "shard": None}),
            (RmqConsumeWindowOperator, {"group": "g", "shard": "s", "engine": 1}),
            (RmqReplayOperator, {"shard": "s", "preview": other}),
            (RmqFinishReplayOperator, {"poll_interval": "15"}),
            (RmqApprovalOperator, {"preview": other}),
            (RmqApprovalOperator, {"preview": "show", "use_run_params": "false"}),
            (RmqLagSensor, {"group": "g", "deferrable": "false"}),
            (RmqLagSensor, {"group": "g", "at_most": other}),
        ):
            with pytest.raises(WrongUse, match=list(arguments)[-1]):
                operator(task_id="t", **arguments)
        with pytest.raises(WrongUse, match="step, 'nix': expected one of retention, messages"):
            RmqMaintainOperator(task_id="t", step="nix")


MAPPED = """
from airflow.sdk import DAG, task_group
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator

RESET = {"group": "payments", "topic": "PaymentFlow", "to": "offset", "reason": "r"}
with DAG("mapped"):
    show = RmqResetOffsetOperator.partial(task_id="show", dry_run=True, **RESET).expand(offset=[3, 5])
    one = RmqResetOffsetOperator(task_id="one", dry_run=True, offset=3, **RESET)
    move = {"dry_run": False, "offset": 3} | RESET
    show >> RmqApprovalOperator(task_id="ask", preview="show", retries=0)
    one >> RmqApprovalOperator(task_id="ask_nobody", preview="oen", retries=0)
    one >> RmqResetOffsetOperator(task_id="unknown", preview="oen", request_name="u", **move)
    @task_group
    def each(offset):
        shown = RmqResetOffsetOperator(task_id="show", dry_run=True, offset=3, **RESET)
        shown >> RmqApprovalOperator(task_id="ask", preview="each.show", retries=0)
    each.expand(offset=[3])
    ask_each = RmqApprovalOperator.partial(task_id="ask_each", preview="one").expand(subject=["a", "b"])
    one >> ask_each >> RmqResetOffsetOperator(
        task_id="after", preview="one", request_name="a", trigger_rule="all_done", **move
    )
"""


def test_what_is_shown_and_approved_is_that_of_one_task_that_comes_before(
    deployed: LakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dag_run = dag_of(MAPPED, tmp_path).test()
    states = {task.task_id: str(task.state) for task in dag_run.get_task_instances()}
    failed = {"ask", "ask_nobody", "unknown", "after", "each.ask"}
    assert {name for name, state in states.items() if state == "failed"} >= failed, states
    said = capsys.readouterr().out
    assert "the task show is mapped: what is shown and approved must be that of one task" in said
    assert (
        said.count("preview is 'oen', did you mean 'one'?: no task with this id comes before this one in the DAG") >= 2
    )
    assert "the task ask_each is mapped: what is shown and approved must be that of one task" in said
    assert "the task each.ask is in a mapped task group: what is shown and approved must be that of one task" in said
    assert query(deployed, "SELECT count(*) AS n FROM operator_actions").to_pylist() == [{"n": 0}]


CONSUMES = """
from airflow.sdk import DAG
from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator

with DAG("consumes"):
    RmqConsumeWindowOperator(task_id="consume", group="payments", shard="broker-a")
"""


def test_a_task_that_airflow_ends_releases_its_claims(
    deployed: LakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a person marks it as failed: Airflow's supervisor sends SIGTERM."""
    from rmq_store.airflow.operators.base import RmqOperator
    from rmq_store.errors import STOPPED

    handler, log_line = signal.getsignal(signal.SIGTERM), RmqOperator.log_line

    def ended(operator: RmqOperator, text: str) -> None:
        log_line(operator, text)
        if text.endswith(" tasks"):
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(RmqOperator, "log_line", ended)
            (task,) = dag_of(CONSUMES, tmp_path).test().get_task_instances()
    finally:
        signal.signal(signal.SIGTERM, handler)
        STOPPED.clear()
    assert str(task.state) == "failed"
    assert "Terminated: Airflow ends the task" in capsys.readouterr().out
    (task,) = dag_of(CONSUMES, tmp_path).test().get_task_instances()
    assert (str(task.state), task.xcom_pull(task_ids="consume")["messages"]) == ("success", 900)
