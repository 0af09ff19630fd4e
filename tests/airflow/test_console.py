"""The console inside Airflow's own application: who may read what, by the roles of SimpleAuthManager."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import AirflowHome
from scripts.keeper import CHECKOUT
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW, in_a_new_process

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]


@pytest.fixture(scope="module")
def client(airflow_home: AirflowHome) -> Iterator[Any]:
    """A client of Airflow's core application with the plugin, without a server."""
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from fastapi.testclient import TestClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "vera:viewer,uma:user")
        yield TestClient(create_app("core"))
    purge_cached_app()


@pytest.fixture(scope="module")
def deployed(imported: Path, airflow_home: AirflowHome) -> Iterator[LakeStore]:
    """The imported store, for all tests here, which change nothing: Airflow's application reads its place once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RMQ_ROOT", str(imported))
        yield LakeStore.open(Root.parse(str(imported)))


def of(role: str | None) -> dict[str, str]:
    """The headers of a user with this role."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    if role is None:
        return {}
    user = SimpleAuthManagerUser(username=role, role=role.upper())
    return {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user, expiration_time_in_seconds=600)}"}


def console_routes() -> list[str]:
    """The paths of all routes, with a name where a path needs one."""
    from airflow import plugins_manager

    apps = {app["url_prefix"]: app["app"].app for app in plugins_manager.get_fastapi_plugins()[0]}
    return [f"/rmq{route.path}".replace("{name}", "groups") for route in apps["/rmq"].routes]


def test_no_route_answers_without_a_login_and_each_knows_the_viewer(deployed: LakeStore, client: Any) -> None:
    paths = console_routes()
    assert len(paths) > 5
    for path in paths:
        assert client.get(path).status_code == 401, path
        assert client.get(path, headers={"Authorization": "Bearer x"}).status_code in (401, 403), path
        assert client.get(path, headers=of("viewer")).status_code in (200, 400, 422), path
    for closed in ("/rmq/docs", "/rmq/openapi.json", "/rmq/redoc"):
        assert client.get(closed, headers=of("admin")).status_code == 404


def test_a_viewer_sees_the_numbers_and_may_not_edit(deployed: LakeStore, client: Any) -> None:
    groups = client.get("/rmq/api/lists/groups", headers=of("viewer")).json()
    assert groups["rows"], "the groups of the broker"
    for role, allowed in (("viewer", False), ("user", True), ("op", True), ("admin", True)):
        permissions = client.get("/rmq/api/permissions?group=payments", headers=of(role)).json()
        assert permissions == {"group": "payments", "dag_id": CONSUME, "may_edit": allowed}


def test_the_page_reads_with_the_cookie_of_the_ui(deployed: LakeStore, client: Any) -> None:
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN

    token = of("viewer")["Authorization"].removeprefix("Bearer ")
    cookie = {"Cookie": f"{COOKIE_NAME_JWT_TOKEN}={token}"}
    for path in ("/rmq/", "/rmq/console.js", "/rmq/shared.js", "/rmq/api/lists/groups"):
        assert client.get(path, headers=cookie).status_code == 200, path
    assert client.get("/rmq/console.js", headers=cookie).headers["content-type"].startswith("text/javascript")


def test_metrics_have_a_token_of_their_own(deployed: LakeStore, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/rmq-metrics/metrics"
    monkeypatch.delenv("RMQ_METRICS_TOKEN", raising=False)
    assert client.get(path, headers=of("admin")).status_code == 404
    monkeypatch.setenv("RMQ_METRICS_TOKEN", "of-prometheus")
    assert client.get(path).status_code == client.get(path, headers=of("admin")).status_code == 401
    answer = client.get(path, headers={"Authorization": "Bearer of-prometheus"})
    assert answer.status_code == 200
    assert "# TYPE rocketmq_group_diff gauge" in answer.text
    assert client.get("/rmq/api/lists/groups", headers={"Authorization": "Bearer of-prometheus"}).status_code == 403


def test_airflow_offers_the_nav_item_and_the_tab(client: Any) -> None:
    (plugin,) = [plugin for plugin in client.get("/api/v2/plugins", headers=of("admin")).json()["plugins"]
                 if plugin["name"] == "rmq_console"]  # fmt: skip
    (react_app,) = plugin["react_apps"]
    assert (react_app["name"], react_app["bundle_url"], react_app["destination"]) == (
        "RocketMQ",
        "rmq/console.js",
        "nav",
    )
    tabs = {view["name"]: view for view in plugin["external_views"]}
    assert tabs["Offsets"]["destination"] == "dag"
    addresses = [react_app["bundle_url"], *(view["href"] for view in tabs.values())]
    assert not any(address.startswith("/") for address in addresses), "Airflow's base URL may have a path"
    assert client.get("/api/v2/plugins/importErrors", headers=of("admin")).json()["import_errors"] == []


UNKNOWN_AIRFLOW = """
import json, sys
sys.modules["airflow.api_fastapi.core_api.security"] = None
sys.path.insert(0, "plugins")
import rmq_console
from fastapi.testclient import TestClient
client = TestClient(rmq_console.RmqConsole.fastapi_apps[0]["app"])
print(json.dumps([client.get(path).status_code for path in ("/", "/console.js", "/api/lists/groups")]))
"""


def test_where_airflow_does_not_say_who_the_user_is_nothing_is_open(airflow_home: AirflowHome) -> None:
    assert in_a_new_process(UNKNOWN_AIRFLOW, env=airflow_home.environment()) == [503, 503, 503]


def test_the_forms_of_the_page_know_the_parameters_of_their_dags(dags: dict[str, Any]) -> None:
    script = (CHECKOUT / "rmq_store" / "console" / "static" / "console.js").read_text()
    constants = dict(re.findall(r'^const (\w+) = \["(\w+)", ', script, re.MULTILINE))
    lines = script.partition("const FORMS = {\n")[2].partition("\n};")[0].splitlines()
    forms = {line.split(":")[0].strip(): line for line in lines}
    assert {"consume", "replay", "reset", "undo", "redrive"} <= set(forms)
    for name, line in forms.items():
        dag_id = re.search(r'dagId: "(\w+)"', line)
        params = dags[dag_id[1] if dag_id else CONSUME].params
        fields = re.findall(r'\["(\w+)", "', line)
        switches = [param for constant, param in constants.items() if re.search(rf"[\[ ]{constant}[,\]]", line)]
        assert {*fields, *switches} <= set(params), name
        assert bool(switches) is (name in ("replay", "reset", "undo"))
