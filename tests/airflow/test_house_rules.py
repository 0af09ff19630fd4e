"""What every DAG keeps to, whoever writes it."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.dag_params import dag_id_of
from rmq_store.settings.settings import GroupSettings
from scripts.airflow_home import AirflowHome
from scripts.keeper import CHECKOUT
from tests.airflow.conftest import CAPPED, CONSUME, CONSUMERS, PLAN, PLANNED, WARNINGS_OF_AIRFLOW, in_a_new_process

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

DAG_IDS = {
    CONSUME,
    CAPPED,
    PLANNED,
    PLAN,
    "rmq_deliver_delayed",
    "rmq_import_store",
    "rmq_maintain",
    "rmq_persist_offsets",
    "rmq_redrive_dlq",
    "rmq_replay",
    "rmq_reset_offset",
    "rmq_undo",
}


def test_there_is_a_dag_for_every_job_and_one_for_every_group(dags: dict[str, Any]) -> None:
    assert set(dags) == DAG_IDS


@pytest.mark.parametrize("dag_id", sorted(DAG_IDS))
def test_a_dag_says_what_it_is_for_and_keeps_the_house_rules(dag_id: str, dags: dict[str, Any]) -> None:
    from rmq_store.airflow.dags import FIRST_DAY, TAGS

    dag = dags[dag_id]
    assert "rmq" in dag.tags
    assert dag.tags <= TAGS
    assert dag.doc_md.count("\n") >= 5
    assert "**When not to use it.**" in dag.doc_md
    assert dag.catchup is False
    assert dag.start_date == FIRST_DAY
    assert all(task.retries >= 1 for task in dag.tasks)
    assert {task.owner for task in dag.tasks} == {"rmq"}


def test_airflow_refuses_a_backfill_before_there_is_a_run_but_of_a_group_with_a_schedule(dags: dict[str, Any]) -> None:
    """By REST and by the command line; the form asks whether the DAG allows it."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.exceptions import DagRunTypeNotAllowed
    from airflow.models.backfill import ReprocessBehavior, _create_backfill
    from airflow.utils.types import DagRunType

    for dag in dags.values():
        refused = {str(kind) for kind in DagRunType} - {kind.value for kind in dag.allowed_run_types}
        assert refused == (set() if dag.dag_id == CONSUME else {"backfill"})
    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    manager.sync_bundles_to_db()
    sync_bag_to_db(DagBag(CHECKOUT / "dags"), next(iter(manager.get_all_dag_bundles())).name, None)
    with pytest.raises(DagRunTypeNotAllowed, match=f"'{PLANNED}' does not allow backfill runs"):
        _create_backfill(
            dag_id=PLANNED,
            from_date=datetime(2026, 1, 1, tzinfo=UTC),
            to_date=datetime(2026, 1, 2, tzinfo=UTC),
            max_active_runs=1,
            reverse=False,
            dag_run_conf=None,
            triggering_user_name="ada",
            reprocess_behavior=ReprocessBehavior.COMPLETED,
        )


POOLS = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.models.pool import Pool
dags = DagBag("dags").dags.values()
tasks = [(dag, task) for dag in dags for task in dag.tasks]
print(json.dumps({
    "warnings": [[dag.dag_id, dag.doc_md.splitlines()[0]] for dag in dags if "warning" in dag.tags],
    "missing": [task.pool for _, task in tasks if Pool.get_pool(task.pool) is None],
    "new": [[dag.max_active_runs, task.max_active_tis_per_dagrun] for dag, task in tasks if "later" in dag.dag_id],
}))
"""


def test_a_group_that_is_added_later_needs_nothing_but_the_file(airflow_home: AirflowHome, tmp_path: Path) -> None:
    """The scheduler never runs a task whose pool is missing, and says so in its log only."""
    settings = tmp_path / "consumers.toml"
    added = CONSUMERS.replace('name = "', 'name = "later-').replace("demo.listener:", "shop.listener:", 1)
    settings.write_text(CONSUMERS + added)
    output = in_a_new_process(POOLS, env=airflow_home.environment() | {"RMQ_SETTINGS": str(settings)})
    warning = (
        "**Warning: the module of listener shop.listener:Payments is not on this machine: install it, or add its folder to "
        "RMQ_LISTENER_PATH. 'rmq doctor' imports all listeners and says what is wrong.**"
    )
    assert output == {
        "missing": [],
        "new": [[1, None], [1, 1], [1, None]] * 3,  # one window of a group at a time
        "warnings": [["rmq_consume__later-payments", warning]],
    }


def test_a_dag_is_serialised_the_same_each_time_it_is_read(dags: dict[str, Any]) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    def texts(by_id: dict[str, Any]) -> dict[str, str]:
        return {name: json.dumps(DagSerialization.to_dict(dag), sort_keys=True) for name, dag in by_id.items()}

    assert texts(DagBag(CHECKOUT / "dags").dags) == texts(dags)


READ_ALL = """
import json, sys
before = set(sys.modules)
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
heavy = {"pyspark", "py4j", "delta", "deltalake", "pyarrow", "duckdb", "boto3", "numpy", "spark_jobs", "rmq_store.lake"}
print(json.dumps({"errors": bag.import_errors, "dags": len(bag.dags), "heavy": sorted(heavy & set(sys.modules))}))
"""


def test_reading_the_dags_imports_nothing_heavy(airflow_home: AirflowHome) -> None:
    output = in_a_new_process(READ_ALL, env=airflow_home.environment())
    assert output == {"errors": {}, "dags": len(DAG_IDS), "heavy": []}


@pytest.mark.parametrize(
    ("dag_id", "made"), [(CAPPED, [CAPPED]), ("rmq_replay", []), (None, [CAPPED, CONSUME, PLANNED])]
)
def test_the_process_of_a_task_makes_no_dag_but_its_own(
    dag_id: str | None, made: list[str], airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    if dag_id is not None:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)  # as Airflow's task_runner does
    assert sorted(DagBag(CHECKOUT / "dags" / "rmq_consume.py").dags) == made


ERRORS = """
import json
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
print(json.dumps({"errors": bag.import_errors, "dags": sorted(bag.dags)}))
"""


def test_a_wrong_group_is_an_import_error_with_every_problem_and_the_other_groups_stay(
    airflow_home: AirflowHome, tmp_path: Path
) -> None:
    settings = tmp_path / "consumers.toml"
    long = CONSUMERS[: CONSUMERS.index("[[group]]", 5)].replace('"payments"', f'"{"%" * 85}x"')
    wrong = '[[group]]\nname = "a"\nretry_queue_nums = -1\n'
    settings.write_text(CONSUMERS + long + wrong)
    output = in_a_new_process(ERRORS, env=airflow_home.environment() | {"RMQ_SETTINGS": str(settings)})
    ((file, error),) = output["errors"].items()
    assert file == "dags/rmq_wrong_groups.py", "an import error ends all DAGs of its file"
    assert "group a: listener is missing" in error
    assert "group a: retry_queue_nums: must be a whole number" in error
    assert output["dags"] == sorted({*DAG_IDS, dag_id_of("%" * 85 + "x")})


def test_a_group_whose_dag_airflow_refuses_is_an_import_error_and_the_other_groups_stay(
    airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    from rmq_store.airflow import dags

    real = dags.windows_of

    def windows_of(group: GroupSettings) -> Any:
        if group.name == "planned":
            raise ValueError("no such schedule")
        return real(group)

    monkeypatch.setattr(dags, "windows_of", windows_of)
    bag = DagBag(CHECKOUT / "dags" / "rmq_consume.py")
    assert (bag.import_errors, sorted(bag.dags)) == ({}, sorted({CONSUME, CAPPED}))
    (error,) = DagBag(CHECKOUT / "dags" / "rmq_wrong_groups.py").import_errors.values()
    assert "group planned: Airflow refuses its DAG: ValueError: no such schedule" in error


def test_settings_that_cannot_be_read_are_one_import_error(airflow_home: AirflowHome, tmp_path: Path) -> None:
    settings = tmp_path / "consumers.toml"
    settings.write_text("[[group]\n")
    output = in_a_new_process(ERRORS, env=airflow_home.environment() | {"RMQ_SETTINGS": str(settings)})
    (error,) = output["errors"].values()
    assert "is not TOML" in error
    assert output["dags"] == sorted(DAG_IDS - {CONSUME, CAPPED, PLANNED, PLAN})


def test_schedules_come_from_the_environment_and_empty_is_none(airflow_home: AirflowHome) -> None:
    code = """
import json
from airflow.dag_processing.dagbag import DagBag
print(json.dumps({name: dag.timetable.__class__.__name__ for name, dag in DagBag("dags").dags.items()}))
"""
    output = in_a_new_process(code, env=airflow_home.environment() | {"RMQ_DELIVER_SCHEDULE": ""})
    assert output["rmq_deliver_delayed"] == "NullTimetable"
    assert output["rmq_persist_offsets"] == "CronTriggerTimetable"
    assert output[CONSUME] == "CronDataIntervalTimetable", "a window ends where its interval does"
    assert output[CAPPED] == "NullTimetable"
    assert output[PLANNED] == "NullTimetable", "one run consumes for all planned groups"
    assert output[PLAN] == "CronDataIntervalTimetable"


def test_planned_groups_have_one_dag_with_one_run_at_a_time(
    dags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    def read(table: str, schedule: str = "planned") -> Any:
        settings = tmp_path / "consumers.toml"
        settings.write_text(table + CONSUMERS.replace('"planned"\n[[', f'"{schedule}"\n[['))
        monkeypatch.setenv("RMQ_SETTINGS", str(settings))
        return DagBag(CHECKOUT / "dags" / "rmq_plan_windows.py").dags.get(PLAN)

    assert (dags[PLAN].max_active_runs, dags[PLAN].task_ids) == (1, ["consume"])
    assert read('[planned]\nschedule = "@hourly"\n').timetable.expression == "0 * * * *"
    assert read("").timetable.expression == "*/5 * * * *"
    assert read('[planned]\nschedule = ""\n').timetable.__class__.__name__ == "NullTimetable"
    assert read("", schedule="@daily") is None, "without planned groups there is nothing to run"


def test_plugins_load_without_an_error_and_what_the_dags_import_is_no_plugin(airflow_home: AirflowHome) -> None:
    code = """
import json
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
import sys
loaded = [name for name in sys.modules if name.startswith("rmq_")]
print(json.dumps({"errors": errors, "loaded": loaded, "names": [plugin.name for plugin in plugins]}))
"""
    output = in_a_new_process(code, env=airflow_home.environment())
    assert output["errors"] == {}
    provider = {"rmq_store", "rmq_store.airflow", "rmq_store.airflow.provider_info"}
    notes = {"rmq_store.airflow.run_notes", "rmq_store.settings", "rmq_store.settings.environment"}
    assert set(output["loaded"]) == {*provider, *notes, "rmq_console"}, (
        "in every task, so it imports nothing else of this project"
    )
    assert output["names"].count("rmq_console") == output["names"].count("rmq_run_notes") == 1


@pytest.mark.parametrize(("variable", "count"), [("", 1), ("0", 0)])
def test_the_variable_leaves_out_the_listener_that_airflow_does_not_allow_beside_end_from_trigger(
    variable: str, count: int, airflow_home: AirflowHome
) -> None:
    code = """
import json
from airflow.listeners.listener import get_listener_manager
from rmq_store.airflow.run_notes import RmqRunNotes
print(json.dumps([len(RmqRunNotes.listeners), get_listener_manager().has_listeners]))
"""
    output = in_a_new_process(code, env=airflow_home.environment() | {"RMQ_RUN_NOTES": variable})
    assert output == [count, bool(count)]


IMPORT_PLUGIN = """
import json, sys
from airflow.plugins_manager import AirflowPlugin
before = set(sys.modules)
sys.path.insert(0, "plugins")
import rmq_console
print(json.dumps(sorted(name for name in set(sys.modules) - before if name not in sys.stdlib_module_names)))
"""


def test_the_console_imports_nothing_before_its_first_request(airflow_home: AirflowHome) -> None:
    assert in_a_new_process(IMPORT_PLUGIN, env=airflow_home.environment()) == ["rmq_console"]


@pytest.mark.parametrize("until", [None, "", " 2026-01-31T12:00:00Z ", "20260131120000+0800", 0, -1, "1769860800000"])
def test_airflow_takes_a_time_in_every_form_and_its_own_examples(until: object, dags: dict[str, Any]) -> None:
    params = copy.deepcopy(dags[CONSUME].params)
    (example,) = params.get_param("until").schema["examples"]
    for given in (until, example):
        params.update({"until": given})
        assert params.validate()["until"] == given


def test_the_forms_suggest_the_groups_and_topics_of_the_settings_and_take_others(
    dags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    groups, topics = ["payments", "capped|%x", "planned"], ["PaymentFlow"]
    for dag_id, name, examples in (
        ("rmq_replay", "group", groups),
        ("rmq_replay", "topic", topics),
        ("rmq_reset_offset", "group", groups),
        ("rmq_reset_offset", "topic", topics),
        ("rmq_undo", "group", groups),
        ("rmq_redrive_dlq", "group", groups),
        ("rmq_redrive_dlq", "original_topic", topics),
        ("rmq_redrive_dlq", "to_topic", topics),
    ):
        param = copy.deepcopy(dags[dag_id].params).get_param(name)
        assert param.schema["examples"] == examples, "Airflow shows them as suggestions of a text field"
        assert "enum" not in param.schema
        assert param.resolve("another") == "another"
    monkeypatch.setenv("RMQ_SETTINGS", str(tmp_path / "none.toml"))
    (dag,) = DagBag(CHECKOUT / "dags" / "rmq_replay.py").dags.values()
    assert "examples" not in dag.params.get_param("group").schema


BAD_PARAMS: list[tuple[str, dict[str, Any]]] = [
    (CONSUME, {"max_messages": 0}),
    (CONSUME, {"until": 1.5}),
    (PLAN, {"until": "yesterday"}),
    (PLAN, {"max_messages": 0}),
    (CONSUME, {"until": "yesterday"}),
    (CONSUME, {"until": "2026-01-31T12:00:00"}),
    (CONSUME, {"until": "2026-02-30T12:00:00Z"}),
    (CONSUME, {"until": "20260431120000Z"}),
    (CONSUME, {"until": 1_709_222_399}),
    (CONSUME, {"until": 20_240_229_155_959}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "time": "2026-01-31"}),
    ("rmq_replay", {"group": "g", "topic": "t", "from": "noon"}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "until": "1709222399"}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": ""}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "to": "yesterday"}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "queues": ["broker-a"]}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "queues": []}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "queues": ["broker-a:0", ""]}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "dry_run": "no"}),
    ("rmq_replay", {"group": "g", "approve": "no"}),
    ("rmq_replay", {"group": "g", "dry_run": None}),
    ("rmq_replay", {"group": "g", "finish": 1}),
    ("rmq_undo", {"group": "g", "reason": ""}),
    ("rmq_undo", {"group": "g", "reason": "r", "force": "yes"}),
    ("rmq_replay", {"group": ""}),
    ("rmq_redrive_dlq", {"group": "g", "reason": ""}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "letters": ["broker-a:0"]}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "letters": []}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "keys": []}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "keys": ["k", ""]}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "keys": "abc"}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "limit": 0}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "rate": 0}),
    ("rmq_replay", {"group": "g", "max_messages": 2**63}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "to": "offset", "offset": 10**30}),
    (CONSUME, {"until": 1e300}),
    (CONSUME, {"until": 2**63}),
    (PLAN, {"until": -(2**63) - 1}),
    ("rmq_replay", {"group": "g", "from": -1e300}),
    ("rmq_reset_offset", {"group": "g", "topic": "t", "reason": "r", "time": 99999999999999999999}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "edits": {"set_json": {"/a": 2**63}}}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "edits": {"set_json": {"/a": [{"b": {"c": -(10**30)}}]}}}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "edits": {"set": {}}}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "edits": {"set_property": {"a": 1}}}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "edits": {"cast_json": {"/a": "date"}}}),
    ("rmq_redrive_dlq", {"group": "g", "reason": "r", "edits": "/price=12.50"}),
    ("rmq_import_store", {"broker_name": "broker-a", "source": ""}),
    ("rmq_import_store", {"source": "x", "broker_name": "broker-a", "engine": "flink"}),
]


@pytest.mark.parametrize(("dag_id", "conf"), BAD_PARAMS)
def test_airflow_refuses_bad_parameters_before_there_is_a_run(
    dag_id: str, conf: dict[str, Any], dags: dict[str, Any]
) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    params = copy.deepcopy(dags[dag_id].params)
    with pytest.raises(ParamValidationError, match=f"Invalid input for param {list(conf)[-1]}"):
        params.update(conf)
