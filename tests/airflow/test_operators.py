"""The operators in the DAG of another project, such as that of ``docs/airflow.md``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def events_of(dag_run: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """The asset and the ``extra`` of each task's one event."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).filter(AssetEvent.source_run_id == dag_run.run_id).all()
        found = [(str(event.source_task_id), (event.asset.name, dict(event.extra))) for event in events]
    assert len(dict(found)) == len(found)
    return dict(found)
