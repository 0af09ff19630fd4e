"""A user's first day with the platform of docker-compose.yaml: ``make e2e``.

The tests are the steps of one story, in order, over REST and in headless Chromium. What a page shows is compared with what
``rmq sql`` answers from the same store. Pictures of the pages are in ``var/e2e``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from demo.airflow_api import AirflowApi
from scripts.airflow_home import USER
from scripts.keeper import CHECKOUT
from tests.e2e.browser import Console, open_browser
from tests.e2e.platform import Platform
from tests.s3 import S3Server

pytestmark = [pytest.mark.platform, pytest.mark.timeout(3600)]

PICTURES = CHECKOUT / "var" / "e2e"
GROUP = "demo-payments"


def say(text: str) -> None:
    print(f"  {text}", flush=True)


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the settings and the listeners, which the services mount."""
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copy(CHECKOUT / "demo" / "consumers.toml", folder)
    return folder


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, airflow_database: str, s3_server: S3Server, deploy: Path
) -> Iterator[Platform]:
    assert airflow_database.startswith("postgresql"), "make e2e needs PostgreSQL"
    platform = Platform(tmp_path_factory.mktemp("platform"), airflow_database, s3_server, deploy)
    try:
        platform.start_all()
        yield platform
    finally:
        platform.end()


@pytest.fixture(scope="module")
def api(platform: Platform) -> AirflowApi:
    return AirflowApi(platform, platform, lambda what: None)


@pytest.fixture(scope="module")
def console(platform: Platform) -> Iterator[Console]:
    shutil.rmtree(PICTURES, ignore_errors=True)
    with open_browser() as browser:
        yield Console.of(browser, platform.url, PICTURES)


def test_every_service_starts_in_the_image_and_is_healthy(platform: Platform) -> None:
    assert platform.image.entrypoint[0] in platform.image.packages
    assert platform.image.user != "root"
    assert {name for name, service in platform.services.items() if not service.healthcheck} == {"init"}
    assert {name for name, service in platform.services.items() if not service.restarts} == {"init"}
    say(f"healthy: {', '.join(platform.running)}")
    platform.wait_for(
        lambda: "rmq_persist_offsets" in platform.column("SELECT dag_id FROM dag"), "Airflow reads the DAGs"
    )
    assert platform.column("SELECT stacktrace FROM import_error") == []


def test_a_user_logs_in_and_opens_the_console(platform: Platform, console: Console) -> None:
    console.login(USER, platform.password)
    console.page.get_by_role("link", name="RocketMQ", exact=True).first.click()
    console.settled()
    expect(console.page.get_by_text("No group has consumed yet.")).to_be_visible()
