"""The connection of the type ``rmq``, its form and its hook."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq_store.errors import WrongUse
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
from tests.airflow.conftest import WARNINGS_OF_AIRFLOW

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]


def connection(**fields: Any) -> str:
    return json.dumps({"conn_type": "rmq", **fields})


def test_without_a_connection_the_environment_names_the_store(deployed: LakeStore) -> None:
    from airflow.sdk.exceptions import AirflowNotFoundException

    from rmq_store.airflow.hooks.rmq import RmqHook

    assert RmqHook().get_conn().root == deployed.root.location
    with pytest.raises(AirflowNotFoundException):
        _ = RmqHook("another").deployment


def test_a_connection_is_used_before_the_environment(deployed: LakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.airflow.hooks.rmq import RmqHook

    root = deployed.root.location
    monkeypatch.setenv("RMQ_ROOT", "elsewhere")
    monkeypatch.setenv("RMQ_SETTINGS", "/etc/groups.toml")
    extra = {
        "root": root,
        "import_roots": "/a, s3://b/c",
        "engine": "local",
        "spark_master": "yarn",
        "region_name": "eu-1",
    }
    monkeypatch.setenv("AIRFLOW_CONN_RMQ_DEFAULT", connection(login="the-key", password="the-password", extra=extra))
    hook = RmqHook()
    deployment = hook.deployment
    assert (deployment.root, deployment.settings_file) == (root, "/etc/groups.toml")
    assert (deployment.import_roots, deployment.engine) == (("/a", "s3://b/c"), "local")
    assert deployment.environment.spark_master == "yarn"
    place = deployment.place("s3://b/c")
    assert place.storage_options["AWS_SECRET_ACCESS_KEY"] == "the-password"
    assert "the-password" in hook.secrets
    assert "the-password" not in repr(deployment)
    assert hook.test_connection() == (True, f"store {deployed.store_id} with 1 shards")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"rooot": "/x"}, "unknown fields in extra: 'rooot', did you mean 'root'?"),
        ({"root": 1}, "field root must be text"),
        ({"engine": "flink"}, "engine is 'flink': expected one of"),
        ({"settings": "a\0b.toml"}, r"field settings has the character U\+0000"),
        ({"import_roots": "/a,/b\0"}, r"field import_roots has the character U\+0000"),
        ({"spark_submit": "sh -c ls"}, "must begin with spark-submit"),
    ],
)
def test_a_wrong_connection_is_refused(
    extra: dict[str, Any], says: str, deployed: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.hooks.rmq import RmqHook

    monkeypatch.setenv("AIRFLOW_CONN_RMQ_DEFAULT", connection(extra=extra))
    with pytest.raises(WrongUse, match=says):
        _ = RmqHook().deployment
    assert RmqHook().test_connection()[0] is False


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"conn_type": "postgres", "login": "u", "password": "pg-password"},
            "is of the type 'postgres'.* 'rmq' is needed",
        ),
        ({"host": "lake"}, "has a value in host, which says nothing here"),
        ({"schema": "s3", "port": 9000}, "has a value in schema, port"),
    ],
)
def test_a_connection_of_another_type_or_with_fields_of_another_type_is_refused(
    fields: dict[str, Any], says: str, deployed: LakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.airflow.hooks.rmq import RmqHook

    monkeypatch.setenv("AIRFLOW_CONN_RMQ_DEFAULT", connection(**fields))
    with pytest.raises(WrongUse, match=says) as refused:
        _ = RmqHook().deployment
    assert "pg-password" not in str(refused.value)


def test_the_provider_is_registered_with_a_form_for_its_connection(airflow_home: AirflowHome) -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    from rmq_store.airflow.deployment import VARIABLES

    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    manager.initialize_providers_hooks()
    assert manager.providers["rocketmq-lakehouse"].data["name"] == "RocketMQ lakehouse"
    hook = ProvidersManagerTaskRuntime().hooks["rmq"]  # type: ignore[no-untyped-call]
    assert hook is not None
    assert (hook.connection_id_attribute_name, hook.connection_testable) == ("rmq_conn_id", True)
    prefix = "extra__rmq__"
    fields = {name.removeprefix(prefix) for name in manager.connection_form_widgets if name.startswith(prefix)}
    assert fields == {*VARIABLES, "engine"}, "the form has the fields that the hook reads"


def test_the_modules_that_the_provider_names_are_there(airflow_home: AirflowHome) -> None:
    from importlib import import_module

    from rmq_store.airflow.provider_info import get_provider_info

    info = get_provider_info()
    modules = [
        module
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info.get(kind, ())
        for module in entry["python-modules"]
    ]
    for module in modules:
        import_module(module)
    assert "rmq_store.airflow.operators.consume" in modules
