"""Links to the console, what a callback sends, and lineage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import pytest

from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW, wait_until_due

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("base_url", "path"), [("http://127.0.0.1:8080", ""), ("https://host/af/", "/af"), ("", "")])
def test_a_link_leads_to_the_group_in_the_console(
    base_url: str, path: str, airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.links.console import (
        RmqDeadLettersLink,
        RmqGroupLink,
        RmqNewDeadLettersLink,
        RmqWindowLink,
    )
    from rmq_store.airflow.operators.redrive import RmqRedriveOperator

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    task = RmqRedriveOperator(task_id="send", group="a|b&c=d")
    key: Any = None
    assert RmqGroupLink().get_link(task, ti_key=key) == f"{path}/plugin/rmq?page=group&group=a%7Cb%26c%3Dd"
    task.group_of_run = "g"
    assert RmqDeadLettersLink().get_link(task, ti_key=key) == f"{path}/plugin/rmq?page=dead&group=g"
    nothing = RmqRedriveOperator(task_id="nothing")
    assert RmqGroupLink().get_link(nothing, ti_key=key) == ""
    assert RmqWindowLink().get_link(nothing, ti_key=key) == RmqNewDeadLettersLink().get_link(nothing, ti_key=key) == ""


def test_every_link_of_an_operator_is_registered(airflow_home: AirflowHome, dags: dict[str, Any]) -> None:
    from airflow.providers_manager import ProvidersManager

    registered = ProvidersManager().extra_links_class_names  # type: ignore[no-untyped-call]
    links = [link for dag in dags.values() for task in dag.tasks for link in task.operator_extra_links]
    names = {f"{type(link).__module__}.{type(link).__name__}" for link in links}
    assert len(names) == 4
    assert names <= set(registered)


def test_a_run_has_the_link_of_the_group_that_its_parameters_name(deployed: LakeStore, run: Run) -> None:
    params = {"group": "payments", "topic": "PaymentFlow", "to": "min", "reason": "r"}
    result = run("rmq_reset_offset", params)
    (task,) = [task for task in result["run"].get_task_instances() if task.task_id == "preview"]
    link = task.xcom_pull(task_ids="preview", key="_link_RmqGroupLink")
    assert link.endswith("/plugin/rmq?page=group&group=payments")


def test_a_window_has_links_to_what_it_consumed_and_to_the_dead_letters_that_it_made(
    deployed: LakeStore, run: Run
) -> None:
    def links() -> dict[str, Any]:
        result = run(CONSUME)
        (task,) = [task for task in result["run"].get_task_instances() if task.task_id == "consume"]
        names = ("RmqWindowLink", "RmqNewDeadLettersLink")
        (answer,) = result["consume"]
        return {**answer, **{name: task.xcom_pull(key=f"_link_{name}", map_indexes=0) for name in names}}

    first = links()
    page, query = first["RmqWindowLink"].split("?")
    assert page.endswith("/plugin/rmq")
    assert parse_qs(query) == {"page": ["window"], "group": ["payments"], "request": [first["request_id"]]}
    assert first["RmqNewDeadLettersLink"] == "", "Airflow's UI shows no button"
    while "dead" not in first["outcomes"]:
        wait_until_due(deployed, "payments")
        run("rmq_deliver_delayed")
        first = links()
    assert first["RmqNewDeadLettersLink"].endswith("/plugin/rmq?page=dead&group=payments")


def test_a_callback_sends_the_state_of_the_group(
    deployed: LakeStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import BaseNotifier

    from rmq_store.airflow.notifications import rmq

    texts: list[str] = []
    rmq.RmqNotifier(group="payments", send=texts.append)({})
    run(CONSUME)
    rmq.RmqNotifier(group="payments", send=texts.append)({})
    assert texts == ["group payments: no offset yet", "group payments: lag 0"]

    place = {"topic": "T", "broker_name": "b", "queue_id": 0, "begin_offset": 3, "end_offset": 5}
    rows = {
        "blocked": [place | {"attempts": 2, "error_type": "KeyError", "error_text": "{{ 6 * 7 }} the-secret"}],
        "audit": [place | {"problem": "gap"}] * 7,
    }
    monkeypatch.setenv("A_TOKEN", "the-secret")
    monkeypatch.setattr(rmq, "rows_of", lambda store, text, group: rows["blocked" if "blocked" in text else "audit"])

    class Other(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

        def notify(self, context: Any) -> None:
            texts.append(self.text)

    rmq.RmqNotifier(group="payments", send=Other)({})
    *_, text = texts
    assert text.splitlines()[:4] == [
        "group payments: lag 0",
        "blocked queues: 1",
        "- T b:0 at offset 3, 2 attempts: KeyError: {{ 6 * 7 }} ***",
        "audit findings: 7",
    ]
    assert text.count("- gap: T b:0 [3, 5)") == 5

    monkeypatch.setenv("RMQ_ROOT", "/nowhere")
    rmq.RmqNotifier(group="payments", send=texts.append)({})
    assert texts[-1].startswith("group payments: the store cannot be read: StoreUnusable: ")


@dataclass
class Dataset:
    namespace: str
    name: str


@dataclass
class OperatorLineage:
    inputs: list[Dataset]
    outputs: list[Dataset]


def test_lineage_names_topics_and_tables_where_openlineage_is_installed(
    airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.lineage import Lineage, place_of
    from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator

    task = RmqConsumeWindowOperator(task_id="consume", group="g", shard="a")
    task.lineage = Lineage.of_windows("s3://lake/store", "a", ["T"])
    assert task.get_openlineage_facets_on_complete(None) is None, "the provider is not installed"
    extractors, facet = ModuleType("extractors"), ModuleType("facet")
    extractors.OperatorLineage = OperatorLineage  # type: ignore[attr-defined]
    facet.Dataset = Dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", extractors)
    monkeypatch.setitem(sys.modules, "airflow.providers.common.compat.openlineage.facet", facet)
    assert task.get_openlineage_facets_on_complete(None) == OperatorLineage(
        [Dataset("rmq:s3://lake/store", "a/T")], [Dataset("s3://lake", "store/a/offsets")]
    )
    task.lineage = None
    assert task.get_openlineage_facets_on_complete(None) == OperatorLineage([], []), "the provider warns about None"
    place = place_of("/data/store")
    assert (place.namespace, place.name) == ("file", "/data/store")
