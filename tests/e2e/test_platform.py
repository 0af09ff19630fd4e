"""A user's first day with the platform of docker-compose.yaml: ``make e2e``.

The tests are the steps of one story, in order, over REST and in headless Chromium. What a page shows is compared with what SQL
answers over the same store. Pictures of the pages are in ``var/e2e``.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import psutil
import pytest
from botocore.config import Config
from playwright.sync_api import expect

from demo.airflow_api import AirflowApi
from demo.archives import unpack
from rmq_store.admin.dag_params import dag_id_of
from rmq_store.broker_files.config_files import parse_consumer_offsets
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.times import format_time
from scripts.airflow_home import USER, direct_opener
from scripts.keeper import CHECKOUT
from tests.e2e.browser import PHONE, WIDE, Console, open_browser
from tests.e2e.platform import Platform, words_of
from tests.s3 import S3Server

pytestmark = [pytest.mark.platform, pytest.mark.timeout(3600)]

PICTURES = CHECKOUT / "var" / "e2e"
GROUP, CONSUME = "demo-payments", dag_id_of("demo-payments")
SHOP, CONSUME_SHOP = "shop-orders", dag_id_of("shop-orders")
AGAIN, CONSUME_AGAIN = "payments-again", dag_id_of("payments-again")

MORE_GROUPS = """
[[group]]
name = "shop-orders"
listener = "shop.listeners:ship"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
schedule = ""

[[group.subscription]]
topic = "ShopOrders"

[[group]]
name = "payments-again"
listener = "shop.listeners:ship"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "spark"
schedule = "*/10 * * * *"

[[group.subscription]]
topic = "PaymentFlow"

[[group]]
name = "shop-wrong"
listener = "shop.listeners:ship"
consume_from_where = "YESTERDAY"

[[group.subscription]]
topic = "ShopOrders"
"""
LISTENER = """
import time
from pathlib import Path

HOLD = Path(__file__).with_name("hold")


def ship(msgs, context):
    while HOLD.exists():
        time.sleep(0.05)
    return "CONSUME_SUCCESS"
"""
ORDERS = 40


def say(text: str) -> None:
    print(f"\n  {text}", end="", flush=True)


# --- the platform, the store and the browser ---


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the settings and the listeners, which the services mount. Retries wait a second instead of ten."""
    folder = tmp_path_factory.mktemp("deploy")
    settings = (CHECKOUT / "demo" / "consumers.toml").read_text()
    soon = 'engine = "spark"\nretry_policy = { type = "CUSTOMIZED", next = [1000] }'
    (folder / "consumers.toml").write_text(settings.replace('engine = "spark"', soon))
    return folder


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, airflow_database: str, s3_server: S3Server, deploy: Path
) -> Iterator[Platform]:
    assert airflow_database.startswith("postgresql"), "make e2e needs PostgreSQL"
    given = {
        "RMQ_DEPLOY": str(deploy),
        # The story triggers what a schedule would start.
        "RMQ_DELIVER_SCHEDULE": "",
        "RMQ_PERSIST_SCHEDULE": "",
        "RMQ_MAINTAIN_SCHEDULE": "",
    }
    more = {
        # The story kills a scheduler and does not want to wait for minutes until its tasks are tried again.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        # A group is added a few steps before its DAG is needed. Reading all files every 30 s is a tenth of the story's CPU.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
    }
    platform = Platform(tmp_path_factory.mktemp("platform"), airflow_database, s3_server, given, more)
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
        console = Console.of(browser, platform.url, PICTURES, lambda: platform.running["apiserver"].stacks())
        yield console
        assert console.errors == []


class Store:
    """The store of the platform, read beside it."""

    def __init__(self, s3_server: S3Server) -> None:
        self.env = dict(s3_server.env)
        self._store = LakeStore.open(Root.parse("s3://rocketmq/store", self.env))
        self.objects = boto3.client(
            "s3",
            endpoint_url=s3_server.endpoint,
            region_name=self.env["AWS_REGION"],
            aws_access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def rows(self, question: str) -> list[dict[str, Any]]:
        return list(query(self._store, question).to_pylist())

    def row(self, question: str) -> dict[str, Any]:
        (row,) = self.rows(question)
        return row

    def texts(self, question: str) -> dict[str, str]:
        """One row as a page shows it."""
        return {
            name: f"{value:,}" if isinstance(value, int) else str(value) for name, value in self.row(question).items()
        }


@pytest.fixture(scope="module")
def store(platform: Platform, s3_server: S3Server) -> Store:
    return Store(s3_server)


def switch_on(api: AirflowApi, *dag_ids: str) -> None:
    for dag_id in dag_ids:
        api.request("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})


def newest_run(api: AirflowApi, dag_id: str) -> str:
    runs = api.request("GET", f"/api/v2/dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
    return str(runs[0]["dag_run_id"])


def wait_for_dag(platform: Platform, dag_id: str) -> None:
    platform.wait_for(lambda: dag_id in platform.column("SELECT dag_id FROM dag"), f"Airflow has not read {dag_id}")


# --- the story ---


def test_every_service_starts_in_the_image_and_is_healthy(platform: Platform) -> None:
    assert platform.image.entrypoint[0] in platform.image.packages
    assert platform.image.user != "root"
    assert {name for name, service in platform.services.items() if not service.healthcheck} == {"init"}
    assert {name for name, service in platform.services.items() if not service.restarts} == {"init"}
    say(f"healthy: {', '.join(platform.running)}")
    wait_for_dag(platform, CONSUME)
    assert platform.column("SELECT stacktrace FROM import_error") == []


def test_a_user_logs_in_and_opens_the_console(platform: Platform, console: Console) -> None:
    console.login(USER, platform.password)
    console.page.get_by_role("link", name="RocketMQ", exact=True).first.click()
    console.settled()
    expect(console.page.get_by_text("No group has consumed yet.")).to_be_visible()


def test_a_group_is_added_to_the_running_platform(deploy: Path) -> None:
    """Airflow reads it while the next steps go on."""
    (deploy / "shop").mkdir()
    (deploy / "shop" / "__init__.py").touch()
    (deploy / "shop" / "listeners.py").write_text(LISTENER)
    with (deploy / "consumers.toml").open("a") as file:
        file.write(MORE_GROUPS)


def test_a_brokers_files_are_imported_from_s3(api: AirflowApi, store: Store, console: Console, tmp_path: Path) -> None:
    unpack(CHECKOUT / "demo" / "broker-store.tar.gz", tmp_path)
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        store.objects.upload_file(str(file), "rocketmq", f"brokers/demo/{file.relative_to(tmp_path)}")
    switch_on(api, "rmq_import_store")
    conf = {"source": "s3://rocketmq/brokers/demo", "broker_name": "broker-a", "engine": "local"}
    report = api.run("rmq_import_store", "import", conf)["import_new"]
    say(f"{report['messages']:,} messages")
    console.open("page=topics")
    topics = {row["Topic"]: row["Messages"] for row in console.table("Topics")}
    question = "SELECT topic, count(*) AS messages FROM messages GROUP BY topic"
    of_sql = {row["topic"]: f"{row['messages']:,}" for row in store.rows(question)}
    assert topics["PaymentFlow"] == of_sql["PaymentFlow"]
    assert topics["OrderEvents"] == of_sql["OrderEvents"]


def test_a_window_is_triggered_with_airflows_form(api: AirflowApi, store: Store, console: Console) -> None:
    switch_on(api, CONSUME)
    page = console.page
    page.goto(f"{console.url}/dags/{CONSUME}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.locator("#element_until").wait_for()
    console.picture("airflow-form")
    form.get_by_role("button", name="Trigger").click()
    form.wait_for(state="hidden")
    api.finish(CONSUME, newest_run(api, CONSUME))
    window = store.texts(f"SELECT messages, retried, filtered FROM windows WHERE group_name = '{GROUP}'")
    say(f"{window['messages']} messages, {window['retried']} retried")
    console.open(f"page=group&group={GROUP}")
    (shown,) = console.table("Windows")
    assert shown["Messages"] == window["messages"]
    assert f"{window['retried']} retried" in shown["Outcomes"]
    assert f"{window['filtered']} filtered" in shown["Outcomes"]


def test_the_numbers_of_the_groups_are_those_of_sql(store: Store, console: Console) -> None:
    console.open()
    groups = {row["Group"]: row for row in console.table("Groups")}
    of_sql = store.rows("SELECT group_name, CAST(sum(lag) AS BIGINT) AS lag FROM lag GROUP BY group_name ORDER BY ALL")
    assert {name: row["Lag"] for name, row in groups.items()} == {
        row["group_name"]: f"{row['lag']:,}" for row in of_sql if row["group_name"] in groups
    }
    assert groups[GROUP]["Held by"] == "lake"
    say(f"{len(groups)} groups")


def test_a_group_that_was_added_has_its_dag_and_a_wrong_one_is_named(platform: Platform, api: AirflowApi) -> None:
    wait_for_dag(platform, CONSUME_SHOP)
    platform.wait_for(lambda: bool(platform.column("SELECT stacktrace FROM import_error")), "the wrong group")
    (error,) = platform.column("SELECT stacktrace FROM import_error")
    assert "shop-wrong" in error
    assert "YESTERDAY" in error
    switch_on(api, CONSUME_SHOP)


def sent(platform: Platform) -> None:
    """Send orders to the new group's topic."""
    words = ["send", "--topic", "ShopOrders", "--create", "--root", "s3://rocketmq/store", "--file", "-"]
    lines = "".join(f'{{"body": "order {number}"}}\n' for number in range(ORDERS))
    platform.running["scheduler"].run("rmq", *words, given=lines)


def test_the_new_group_consumes_with_its_mounted_listener(platform: Platform, api: AirflowApi) -> None:
    sent(platform)
    answer = api.run(CONSUME_SHOP, "first")["report_offsets"]
    assert answer["outcomes"] == {"acked": ORDERS}


def held_window(platform: Platform, api: AirflowApi, deploy: Path, run_id: str) -> list[psutil.Process]:
    """Trigger a window whose listener waits. Returns the processes of its task, from the supervisor to the listener's."""
    (deploy / "shop" / "hold").touch()
    sent(platform)
    api.trigger(CONSUME_SHOP, run_id)
    scheduler = platform.running["scheduler"]

    def listeners() -> list[psutil.Process]:
        return [one for one in scheduler.members() if "rmq_store.lake.listener.server" in " ".join(words_of(one))]

    platform.wait_for(lambda: bool(listeners()), "the listener has not begun")
    return [*reversed(listeners()[0].parents()), listeners()[0]]


def check_shop(store: Store, windows: int) -> None:
    of_sql = store.row(f"SELECT CAST(sum(messages) AS BIGINT) AS n FROM windows WHERE group_name = '{SHOP}'")
    assert of_sql == {"n": ORDERS * windows}
    assert store.row(f"SELECT CAST(sum(lag) AS BIGINT) AS n FROM lag WHERE group_name = '{SHOP}'") == {"n": 0}


def test_a_task_is_killed(platform: Platform, api: AirflowApi, deploy: Path) -> None:
    """Airflow tries it again after 15 s, while the next step goes on."""
    *_, task, listener = held_window(platform, api, deploy, "killed-task")
    say(f"kill -9 of {' '.join(words_of(task))[:60]}")
    task.kill()
    platform.wait_for(lambda: not listener.is_running(), "the listener of the killed task still runs")
    (deploy / "shop" / "hold").unlink()


def test_retries_end_in_a_dead_letter(platform: Platform, api: AirflowApi, store: Store, console: Console) -> None:
    switch_on(api, "rmq_deliver_delayed")
    waiting = f"SELECT count(*) AS n FROM delayed, clock WHERE deliver_at > now_ms AND real_topic = '%RETRY%{GROUP}'"
    for number in (1, 2):
        platform.wait_for(lambda: bool(store.row(waiting)["n"] == 0), "a retry is not due yet")
        api.run("rmq_deliver_delayed", f"deliver-{number}")
        api.run(CONSUME, f"retry-{number}")
    console.open(f"page=dead&group={GROUP}")
    (letter,) = console.table("Dead letters")
    of_sql = store.row(
        f"SELECT attempt, error_type, error_text, unique_key FROM dead_letters WHERE group_name = '{GROUP}'"
    )
    assert letter["Error type"] == of_sql["error_type"] == "AccountClosed"
    assert letter["Error text"] == of_sql["error_text"]
    console.page.get_by_role("link", name=of_sql["unique_key"]).click()
    console.settled()
    expect(console.page.get_by_text(f"%RETRY%{GROUP} lake-broker-a:0:").first).to_be_visible()
    say(f"{of_sql['error_type']} after attempt {of_sql['attempt']}")


def test_the_task_that_was_killed_was_tried_again(api: AirflowApi, store: Store) -> None:
    api.finish(CONSUME_SHOP, "killed-task")
    check_shop(store, 2)


def test_a_scheduler_that_is_killed_is_started_again(platform: Platform, api: AirflowApi, deploy: Path) -> None:
    """It finds its run without a heartbeat 40 s later, while the next steps go on."""
    held_window(platform, api, deploy, "killed-scheduler")
    assert platform.services["scheduler"].restarts
    platform.running.pop("scheduler").kill()
    (deploy / "shop" / "hold").unlink()
    platform.start("scheduler")


def test_what_a_window_consumed_has_a_page(store: Store, console: Console) -> None:
    console.open(f"page=group&group={GROUP}")
    first = first_window(store)
    windows = console.page.get_by_role("table", name="Windows", exact=True)
    windows.get_by_role("row").filter(has_text=f"{first['messages']:,}").get_by_role("link", name="Details").click()
    console.page.get_by_text("In SQL").wait_for()
    console.settled()
    (window,) = console.table("Windows")
    assert window["Messages"] == f"{first['messages']:,}"
    (reader,) = console.table("Windows that read its retries")
    assert reader["Retries"] == f"{first['retried']:,}"
    expect(console.page.get_by_role("link", name="retry-1")).to_be_visible()


def first_window(store: Store) -> dict[str, Any]:
    """The group's first window."""
    return store.row(
        f"SELECT request_id, messages, retried FROM windows WHERE group_name = '{GROUP}' ORDER BY committed_at LIMIT 1"
    )


def test_a_dead_letter_is_sent_again(api: AirflowApi, store: Store, console: Console) -> None:
    switch_on(api, "rmq_redrive_dlq")
    console.open(f"page=dead&group={GROUP}")
    console.page.get_by_role("button", name="Send all again").click()
    form = console.page.get_by_role("dialog")
    expect(form.get_by_text(f"Dry run: 1 dead letter would be sent to %RETRY%{GROUP}.")).to_be_visible()
    console.picture("redrive")
    form.get_by_label("Reason").fill("the account is open again")
    form.get_by_role("button", name="Trigger").click()
    run_id = form.locator("a").inner_text()
    form.get_by_role("button", name="Close").click()
    api.finish("rmq_redrive_dlq", run_id)
    console.open(f"page=dead&group={GROUP}")
    (cause,) = console.table("Dead letters by cause")
    assert (cause["Messages"], cause["Redriven"]) == ("1", "1")
    expect(console.page.get_by_role("button", name="Send lake-broker-a")).to_have_count(0)
    letter = store.row(f"SELECT redriven_at IS NOT NULL AS redriven FROM dead_letters WHERE group_name = '{GROUP}'")
    assert letter == {"redriven": True}


def test_a_replay_from_a_timestamp(api: AirflowApi, store: Store, console: Console) -> None:
    switch_on(api, "rmq_replay")
    last_ms = store.row("SELECT max(store_timestamp) AS at FROM messages WHERE topic = 'PaymentFlow'")["at"]
    offsets = f"SELECT * FROM consumer_offsets WHERE group_name = '{GROUP}' ORDER BY ALL"
    before = store.rows(offsets)
    console.open(f"page=group&group={GROUP}")
    console.page.get_by_role("button", name=f"Replay {GROUP}").click()
    known = console.page.locator("#rmq-topic-known option")
    expect(known).to_have_count(2)
    assert {option.get_attribute("value") for option in known.all()} == {"PaymentFlow", "OrderEvents"}
    console.picture("replay-form")
    console.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    since = format_time(last_ms - 1000)
    run_id = console.trigger(f"Replay {GROUP}", Topic="PaymentFlow", From_this_time=since, Reason="a bad deploy")
    api.finish("rmq_replay", run_id)
    assert store.rows(offsets) == before
    console.open("page=replays")
    (replay,) = console.table("Replays")
    of_sql = store.texts(
        "SELECT count(*) AS windows, CAST(sum(messages) AS BIGINT) AS messages FROM windows WHERE replay_of IS NOT NULL"
    )
    assert (replay["Windows"], replay["Messages"]) == (of_sql["windows"], of_sql["messages"])
    assert replay["Reason"] == "a bad deploy"
    path = f"/api/v2/dags/rmq_replay/dagRuns/{quote(run_id)}/taskInstances/plan/xcomEntries/preview"
    dry_run = api.request("GET", f"{path}?deserialize=true&stringify=false")["value"]
    assert f"{dry_run['messages']:,}" == replay["Messages"], "it has consumed what its dry run has shown"
    assert sum(row["messages"] for row in dry_run["queues"]) == dry_run["messages"]
    say(dry_run["text"])


def test_a_reset_waits_for_an_approval_and_is_undone(
    platform: Platform, api: AirflowApi, store: Store, console: Console
) -> None:
    switch_on(api, "rmq_reset_offset", "rmq_undo")
    columns = "topic, broker_name, queue_id, next_offset"
    offsets = f"SELECT {columns} FROM consumer_offsets WHERE group_name = '{GROUP}' ORDER BY ALL"
    before = store.rows(offsets)
    after = [row | ({"next_offset": 0} if row["topic"] == "PaymentFlow" else {}) for row in before]
    assert after != before
    console.open(f"page=group&group={GROUP}")
    asked = ("Dry run:", "Wait for an approval")
    fields = {"Topic": "PaymentFlow", "To:": "min", "Reason": "a new price list"}
    run_id = console.trigger(f"Reset {GROUP}", *asked, **fields)
    wait_for_question(platform, api, "rmq_reset_offset", run_id)
    assert store.rows(offsets) == before
    answer(platform, api, console, "rmq_reset_offset", run_id, "Approve")
    api.finish("rmq_reset_offset", run_id)
    assert store.rows(offsets) == after
    note = api.request("GET", f"/api/v2/dags/rmq_reset_offset/dagRuns/{quote(run_id)}")["note"]
    assert f"approved by {USER}" in note
    console.open(f"page=group&group={GROUP}")
    run_id = console.trigger(f"Undo {GROUP}", *asked, Reason="the wrong group")
    wait_for_question(platform, api, "rmq_undo", run_id)
    answer(platform, api, console, "rmq_undo", run_id, "Reject")
    api.finish("rmq_undo", run_id)
    assert store.rows(offsets) == after
    console.open(f"page=group&group={GROUP}")
    run_id = console.trigger(f"Undo {GROUP}", "Dry run:", Reason="the wrong group")
    api.finish("rmq_undo", run_id)
    assert store.rows(offsets) == before
    say("approved, an undo of it rejected, then undone")


def wait_for_question(platform: Platform, api: AirflowApi, dag_id: str, run_id: str) -> None:
    """Until the task asks, and Airflow's scheduler has heard that the process which asked is gone: it takes a task whose answer
    comes before for one that was killed, and asks once more. A person takes longer to read the question."""
    task = approve_task(dag_id, run_id)
    key = f"dag_id='{dag_id}', task_id='approve', run_id='{run_id}'"

    def has_asked() -> bool:
        log = (platform.logs / "scheduler.log").read_text(errors="replace")
        ended = any("executor event with state success" in line and key in line for line in log.splitlines())
        return ended and bool(api.request("GET", task)["state"] == "awaiting_input")

    platform.wait_for(has_asked, f"{dag_id} has not asked")


def answer(platform: Platform, api: AirflowApi, console: Console, dag_id: str, run_id: str, text: str) -> None:
    console.answer(dag_id, run_id, text)
    task = approve_task(dag_id, run_id)
    ended = ("success", "failed", "skipped")
    platform.wait_for(lambda: api.request("GET", task)["state"] in ended, f"{dag_id} has not taken the answer")


def approve_task(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/approve"


def test_a_native_backfill_replays_an_interval_and_the_offsets_stay(
    platform: Platform, api: AirflowApi, store: Store
) -> None:
    wait_for_dag(platform, CONSUME_AGAIN)
    switch_on(api, CONSUME_AGAIN)  # its first run consumes all messages
    offsets = f"SELECT * FROM consumer_offsets WHERE group_name = '{AGAIN}' ORDER BY ALL"
    platform.wait_for(lambda: bool(store.rows(offsets)), f"{CONSUME_AGAIN} has not consumed")
    before = store.rows(offsets)
    newest = store.row("SELECT max(store_timestamp) AS ms FROM messages WHERE topic = 'PaymentFlow'")["ms"]
    begin = format_time(newest // 600_000 * 600_000)
    backfill = {"dag_id": CONSUME_AGAIN, "from_date": begin, "to_date": begin, "max_active_runs": 2}
    api.request("POST", "/api/v2/backfills", backfill | {"run_backwards": True, "reprocess_behavior": "completed"})
    replays = f"SELECT * FROM windows WHERE replay_of = '{AGAIN}'"
    platform.wait_for(lambda: bool(store.rows(replays)), "the backfill has not replayed")
    assert store.rows(offsets) == before
    say(f"replayed the interval of {begin}")


def test_the_run_of_the_scheduler_that_was_killed_was_tried_again(api: AirflowApi, store: Store) -> None:
    api.finish(CONSUME_SHOP, "killed-scheduler")
    check_shop(store, 3)


def test_offsets_are_exported_to_s3(api: AirflowApi, store: Store) -> None:
    switch_on(api, "rmq_persist_offsets")
    (export,) = api.run("rmq_persist_offsets", "export")["export"]
    assert export["file"] == "s3://rocketmq/exports/broker-a/broker-a/consumerOffset.json"
    key = export["file"].removeprefix("s3://rocketmq/")
    text = store.objects.get_object(Bucket="rocketmq", Key=key)["Body"].read().decode()
    exported = parse_consumer_offsets(text).offset_table[f"PaymentFlow@{GROUP}"]
    of_sql = store.rows(
        "SELECT queue_id, next_offset FROM consumer_offsets "
        f"WHERE group_name = '{GROUP}' AND topic = 'PaymentFlow' AND broker_name = 'broker-a'"
    )
    assert exported == {row["queue_id"]: row["next_offset"] for row in of_sql}


def test_prometheus_reads_the_lag_with_the_token(platform: Platform, store: Store) -> None:
    url = f"{platform.url}/rmq-metrics/metrics"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        direct_opener().open(url, timeout=300)
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {platform.given['RMQ_METRICS_TOKEN']}"})
    with direct_opener().open(request, timeout=300) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith("rocketmq_group_diff{") and f'"{SHOP}"' in one]
    lag = store.row(
        f"SELECT CAST(sum(lag) AS BIGINT) AS n FROM lag WHERE group_name = '{SHOP}' AND topic = 'ShopOrders'"
    )
    assert float(line.rpartition(" ")[2]) == lag["n"]


PAGES = {
    "groups": "",
    "group": f"page=group&group={GROUP}",
    "topics": "page=topics",
    "topic": "page=topic&topic=PaymentFlow",
    "delayed": "page=delayed",
    "dead-letters": f"page=dead&group={GROUP}",
    "replays": "page=replays",
    "audit": "page=audit",
}


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_fits_its_window(console: Console, store: Store, look: str) -> None:
    window = f"page=window&group={GROUP}&request={quote(str(first_window(store)['request_id']))}"
    width, height = PHONE if look == "phone" else WIDE
    console.page.set_viewport_size({"width": width, "height": height})
    console.open()
    console.theme("dark" if look == "dark" else "light")
    for name, search in {**PAGES, "window": window}.items():
        console.open(search)
        console.picture(f"{name}-{look}")
        assert console.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        text = console.page.locator("body").inner_text()
        assert not {"undefined", "NaN", "[object Object]"} & set(text.split()), name


def test_everything_ends_when_it_is_told_to_and_the_audit_is_empty(platform: Platform, store: Store) -> None:
    scheduler = platform.running["scheduler"]
    for name in ("scheduler", "spark", "triggerer", "dag-processor", "apiserver", "tasks-network"):
        code = platform.running.pop(name).stop()
        say(f"{name} has ended with {code}")
        assert code in (0, 143), "by the signal to end, not by that to be killed"
    assert not platform.running
    audit = json.loads(scheduler.run("rmq", "audit", "--full", "--json"))
    say(f"audit: {audit['audit']}, {audit['full']['rows']:,} rows read")
    assert audit["audit"] == []
