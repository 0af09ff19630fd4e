"""An Airflow for the tests: set up as by ``make up``, used in this process, removed afterwards.

Airflow reads its environment when it is first imported, so no test module imports it at its top.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import Actor
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.utils.host import Host
from scripts.airflow_home import AirflowHome, free_port
from scripts.keeper import CHECKOUT

WARNINGS_OF_AIRFLOW = ("ignore:GitWildMatchPattern", "ignore:Using `httpx` with `starlette.testclient`")
"""What Airflow 3.3.2 says of its own libraries."""

CONSUMERS = """
[[group]]
name = "payments"
listener = "demo.listener:Payments"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
max_reconsume_times = 2
engine = "local"
schedule = "*/10 * * * *"
[[group.subscription]]
topic = "PaymentFlow"

[[group]]
name = "capped|%x"
listener = "demo.listener:Payments"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
max_messages = 400
engine = "local"
schedule = ""
[[group.subscription]]
topic = "PaymentFlow"

[[group]]
name = "planned"
listener = "demo.listener:Payments"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
schedule = "planned"
[[group.subscription]]
topic = "PaymentFlow"
"""
CONSUME, CAPPED = "rmq_consume__payments", "rmq_consume__capped.7c.25x"
PLANNED, PLAN = "rmq_consume__planned", "rmq_plan_windows"
LEVELS = "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 10m 2h"


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHome]:
    folder = tmp_path_factory.mktemp("airflow")
    settings = folder / "consumers.toml"
    settings.write_text(CONSUMERS)
    home = AirflowHome(folder, free_port(), settings)
    home.initialise()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.environment().items():
            if name.startswith("AIRFLOW") or name == "RMQ_SETTINGS":
                patch.setenv(name, value)
        # Airflow keeps what it stored of a DAG for 30 s, and the next test may have other settings.
        patch.setenv("AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL", "0")
        import rmq_store.airflow.task  # noqa: F401  Airflow replaces the handlers of logs, so before a test has its own

        check_each_schema_once(patch)
        yield home


def check_each_schema_once(patch: pytest.MonkeyPatch) -> None:
    """A run looks hundreds of times whether the schemas of its parameters are schemas: a fifth of its time."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    check, known = Draft202012Validator.check_schema, set[str]()

    def check_once(schema: Any, *args: Any, **kwargs: Any) -> None:
        text = json.dumps(schema, default=repr)
        if text not in known:
            check(schema, *args, **kwargs)
            known.add(text)

    patch.setattr(Draft202012Validator, "check_schema", check_once)


@pytest.fixture(scope="session")
def dags(airflow_home: AirflowHome) -> dict[str, Any]:
    """All DAGs by id."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(CHECKOUT / "dags")
    assert bag.import_errors == {}
    dags_by_id: dict[str, Any] = bag.dags
    return dags_by_id


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory, broker_store: Callable[[str], Path]) -> Path:
    """A store that holds a real broker's messages. It is shared: copy it before you change it."""
    folder = tmp_path_factory.mktemp("imported")
    host = Host()
    store, _ = LakeStore.init(Root.parse(str(folder)), levels=LEVELS)
    source = Root.parse(str(broker_store("market-clean")))
    actor = Actor("tests", "tests")
    request = ImportRequest(broker_name="broker-a", shard_name="broker-a", request_id="2026-01-01/import", actor=actor)
    import_store(store, source, request, host, LocalEngine(host))
    return folder


@pytest.fixture
def deployed(tmp_path: Path, imported: Path, airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch) -> LakeStore:
    """A copy of the imported store, and the DAGs pointed at it."""
    root = tmp_path / "store"
    subprocess.run(["cp", "-r", str(imported), str(root)], check=True)
    monkeypatch.setenv("RMQ_ROOT", str(root))
    monkeypatch.setenv("RMQ_EXPORT_FOLDER", str(tmp_path / "exports"))
    return LakeStore.open(Root.parse(str(root)))


Answers = dict[str, Any]


@pytest.fixture
def run(airflow_home: AirflowHome) -> Callable[..., Answers]:
    """``run(dag_id, conf)`` is a DAG run: its ``state``, its ``run``, and per task what it answered (a list when mapped;
    "skipped" or "failed" when it did not). ``again``: an earlier run, which is run once more under its own id."""

    def run_dag(dag_id: str, conf: dict[str, Any] | None = None, again: Any = None, **when: Any) -> Answers:
        if again is not None:
            when = {"run_after": again.run_after, "logical_date": again.logical_date}
        with only_file_of(dag_id):
            dag_run = dag_without_retries(dag_id).test(run_conf=conf or {}, **when)
        answers: Answers = {"state": str(dag_run.state), "run": dag_run}
        for task in dag_run.get_task_instances():
            if str(task.state) != "success":
                answers[task.task_id] = str(task.state)
            elif task.map_index < 0:
                answers[task.task_id] = task.xcom_pull(task_ids=task.task_id)
            else:
                value = task.xcom_pull(task_ids=task.task_id, map_indexes=task.map_index)
                answers.setdefault(task.task_id, []).append(value)
        return answers

    return run_dag


def file_of(dag_id: str) -> Path:
    """``rmq_consume.py`` makes a DAG for every group: ``rmq_consume__GROUP``."""
    return CHECKOUT / "dags" / f"{dag_id.partition('__')[0]}.py"


@contextmanager
def only_file_of(dag_id: str) -> Iterator[None]:
    """``dag.test()`` first reads and stores all DAGs of the folder again, which takes longer than the run. In this block it
    does that with those of one file."""
    from airflow.dag_processing import dagbag

    read = dagbag.BundleDagBag
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dagbag, "BundleDagBag", lambda dag_folder, **options: read(file_of(dag_id), **options))
        yield


def dag_without_retries(dag_id: str) -> Any:
    """A DAG without retries, so that a test does not wait for them. It is read again each time: in one process its
    parameters would keep the values of an earlier run."""
    from airflow.dag_processing.dagbag import DagBag

    dag: Any = DagBag(file_of(dag_id)).dags[dag_id]
    for task in dag.tasks:
        if task.is_mapped:
            task.partial_kwargs["retries"] = 0
        else:
            task.retries = 0
    return dag


def dag_of(text: str, folder: Path) -> Any:
    """The DAG of a file with this text, which is not in ``dags/``."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    (folder / "others.py").write_text(text)
    bag = DagBag(folder / "others.py")
    assert bag.import_errors == {}
    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    manager.sync_bundles_to_db()
    sync_bag_to_db(bag, next(iter(manager.get_all_dag_bundles())).name, None)
    (dag,) = bag.dags.values()
    return dag


def run_note(dag_run: Any) -> str | None:
    """The note of a run, as Airflow's UI shows it."""
    from airflow.models.dagrun import DagRunNote
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return session.scalar(select(DagRunNote.content).where(DagRunNote.dag_run_id == dag_run.id))


def in_a_new_process(code: str, *arguments: str, env: dict[str, str]) -> Any:
    """The JSON that ``code`` prints last."""
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | env,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout.splitlines()[-1])


def wait_until_due(store: LakeStore, group: str) -> None:
    """The store's levels are a second long; a clock that is ours is nowhere changed."""
    due = query(store, f"SELECT max(deliver_at) AS due_ms FROM delayed WHERE real_topic = '%RETRY%{group}'")
    (due_ms,) = due["due_ms"].to_pylist()
    while Host().now_ms() < due_ms:
        time.sleep(0.05)
