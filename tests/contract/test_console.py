"""The console's routes over small stores, for a host that knows two users: one who reads, one who may also edit."""

from __future__ import annotations

import csv
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from rmq_store.api import open_store
from rmq_store.console.access import Access
from rmq_store.console.app import create_app
from rmq_store.console.audits import KEPT_MS, LEAST_MS, Audits
from rmq_store.console.listing import Page
from rmq_store.console.metrics import Metric, create_metrics_app, exposition, metrics_of
from rmq_store.console.pages import LISTINGS
from rmq_store.console.pages.groups import BUCKETS, run_of
from rmq_store.console.pages.messages import SHOWN_BYTES, decoded
from rmq_store.console.reader import StoreReader
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.replay import begin_attempt, shards_replayed
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.producer.producer import Message
from rmq_store.settings.settings import load_settings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest
from tests.lake_fixtures import ALICE, SETTINGS, SmallStore, message, small_group, small_store

pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")

NEEDED = {"group": "shop", "topic": "Orders", "request": "2026-11-20-one"}
"""A value for each filter that a list may need."""


def login(request: Request) -> None:
    user = request.headers.get("x-user")
    if user is None:
        raise HTTPException(401)
    request.state.user = user


ACCESS = Access(dependency=login, may_edit=lambda request, dag_id: request.state.user == f"editor of {dag_id}")
READER, EDITOR = {"x-user": "reader"}, {"x-user": "editor of rmq_consume__shop"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return small_store(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def client(small: SmallStore) -> TestClient:
    return client_of(small.store)


def client_of(store: LakeStore) -> TestClient:
    return TestClient(create_app(StoreReader(lambda: LakeStore.open(store.root)), ACCESS), headers=READER)


def get(client: TestClient, path: str, status: int = 200, **more: Any) -> Any:
    answer = client.get(path, **more)
    assert answer.status_code == status, answer.text
    return answer.json()


# --- who may read ----------------------------------------------------------------------------------------------------


def test_no_route_is_open(client: TestClient) -> None:
    routes = [route for route in client.app.routes if isinstance(route, APIRoute)]  # type: ignore[attr-defined]
    assert len(routes) == len(client.app.routes) > 5, "a mounted application would be open"  # type: ignore[attr-defined]
    for route in routes:
        assert route.methods == {"GET"}, "the console only reads"
        path = route.path.replace("{name}", "groups")
        assert client.get(path, headers={"x-user": ""}).status_code != 401
        del client.headers["x-user"]
        assert client.get(path).status_code == 401, path
        client.headers.update(READER)


def test_permissions_of_a_group_are_those_of_its_dag(client: TestClient) -> None:
    path = "/api/permissions?group=shop"
    assert get(client, path) == {"group": "shop", "dag_id": "rmq_consume__shop", "may_edit": False}
    assert get(client, path, headers=EDITOR)["may_edit"] is True
    replay = get(client, "/api/permissions?group=shop-replay-0123456789", headers=EDITOR)
    assert (replay["dag_id"], replay["may_edit"]) == ("rmq_consume__shop", True)


def test_the_forms_suggest_the_topics_of_a_group(client: TestClient) -> None:
    assert get(client, "/api/topics?group=shop")["topics"] == ["Orders"]
    assert get(client, "/api/topics?group=nobody")["topics"] == []


def test_the_forms_suggest_a_topic_whose_name_begins_with_a_percent_sign(tmp_path: Path) -> None:
    made, queue = small_store(tmp_path), MessageQueue("%Notes", "broker-a", 0)
    bench = made.bench("broker-a")
    bench.import_messages({queue: [message(queue, 0, bench.host.now_ms())]})
    bench.move("shop", queue, None, 0)
    made.dispatch()
    assert get(client_of(made.store), "/api/topics?group=shop")["topics"] == ["%Notes", "Orders"]


# --- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(LISTINGS))
def test_a_list_has_its_columns_sorts_by_each_and_knows_its_filters(
    name: str, client: TestClient, small: SmallStore
) -> None:
    listing = LISTINGS[name]
    needed = {key: NEEDED[key] for key in listing.needs}
    whole = get(client, f"/api/lists/{name}", params=needed)
    assert whole["total"] >= len(whole["rows"])
    assert all(list(row) == list(listing.columns) for row in whole["rows"])
    pages = [Page(limit=2, offset=1, sort=column, descending=True, filters=needed) for column in listing.columns]
    reader = StoreReader(lambda: small.store)
    for rows in reader.rows(*(listing.question(page) for page in pages)):
        assert len(rows) == min(2, max(whole["total"] - 1, 0))
    values = {filter_: NEEDED.get(filter_, "1") for filter_ in listing.filters}
    assert get(client, f"/api/lists/{name}", params=values)["total"] <= whole["total"]


def test_pages_together_are_the_list(client: TestClient) -> None:
    whole = get(client, "/api/lists/offsets?group=shop&sort=to_offset")["rows"]
    parts = [get(client, f"/api/lists/offsets?group=shop&sort=to_offset&limit=3&offset={n}")["rows"]
             for n in range(0, len(whole), 3)]  # fmt: skip
    assert list(chain.from_iterable(parts)) == whole
    assert len(whole) > 3
    behind = get(client, "/api/lists/offsets?group=shop&offset=100000")
    assert (behind["rows"], behind["total"]) == ([], len(whole))


INJECTED = ["shop' OR '1'='1", "shop'; DROP TABLE x; --", "$1", "%", "shop\\"]


@pytest.mark.parametrize("text", INJECTED)
def test_a_text_of_a_user_is_a_value_and_no_sql(text: str, client: TestClient) -> None:
    assert get(client, "/api/lists/groups", params={"group": text})["rows"] == []
    assert get(client, "/api/lists/groups", params={"sort": f"lag {text}"}, status=400)["error"] == "WrongUse"
    assert get(client, "/api/lists/groups", params={text: "1"}, status=400)["error"] == "WrongUse"
    assert get(client, f"/api/lists/{text}", status=400 if "/" not in text else 404)
    assert get(client, "/api/lag", params={"group": text}) == {"lag": {}}


@pytest.mark.parametrize("query_text", ["limit=0", "limit=501", "limit=x", "offset=-1", "sort=", "queue_id=1"])
def test_a_page_that_cannot_be_is_refused(query_text: str, client: TestClient) -> None:
    get(client, f"/api/lists/groups?{query_text}", status=200 if query_text == "sort=" else 400)


def test_a_list_that_would_read_everything_needs_its_filter(client: TestClient) -> None:
    assert "needs group" in get(client, "/api/lists/offsets", status=400)["message"]


def test_groups_have_the_numbers_of_the_view_over_all_shards(client: TestClient, small: SmallStore) -> None:
    rows = {row["group_name"]: row for row in get(client, "/api/lists/groups")["rows"]}
    expected = query(
        small.store, "SELECT sum(lag) AS lag, sum(dead_letters) AS dead FROM groups WHERE group_name = 'shop'"
    ).to_pylist()[0]
    assert (rows["shop"]["lag"], rows["shop"]["dead_letters"]) == (expected["lag"], expected["dead"])
    assert "CID_RMQ_SYS_SCHEDULE" not in rows


def test_csv_has_all_rows_and_no_formula(tmp_path: Path) -> None:
    small = small_store(tmp_path, ["broker-a"])
    small.bench("broker-a").move("shop", MessageQueue("Orders", "broker-a", 0), 24, 20, "=cmd|' /C calc'!A0")
    answer = client_of(small.store).get("/api/csv/offsets?group=shop&limit=1")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == get(client_of(small.store), "/api/lists/offsets?group=shop")["total"]
    assert any(row["reason"].startswith("'=cmd") for row in rows)


# --- lag over time ---------------------------------------------------------------------------------------------------


def test_the_lag_over_time_ends_with_the_lag_of_now(client: TestClient, small: SmallStore) -> None:
    lag = get(client, "/api/lag?group=shop&group=nothing")["lag"]
    assert set(lag) == {"shop"}
    times = [at for at, _ in lag["shop"]]
    assert times == sorted(times)
    assert len(times) <= BUCKETS
    now = query(
        small.store,
        "SELECT CAST(sum(lag) AS BIGINT) AS lag FROM lag WHERE group_name = 'shop' AND topic = 'Orders' AND has_offset",
    )
    assert lag["shop"][-1][1] == now.to_pylist()[0]["lag"]


def test_a_group_has_no_lag_over_time_once_it_is_deleted(tmp_path: Path) -> None:
    small = small_store(tmp_path, ["broker-a"])
    before = get(client_of(small.store), "/api/lag?group=shop")["lag"]["shop"]
    small.bench("broker-a").delete("shop", MessageQueue("Orders", "broker-a", 0), 24)
    small.bench("broker-a").delete("shop", MessageQueue("Orders", "broker-a", 1), 27)
    after = get(client_of(small.store), "/api/lag?group=shop")["lag"]["shop"]
    assert len(after) < len(before)


def test_a_request_of_a_dag_names_its_run() -> None:
    assert run_of("2026-11-23/rmq_consume__shop/scheduled__2026-11-23T00:00:00+00:00") == {
        "dag_id": "rmq_consume__shop",
        "run_id": "scheduled__2026-11-23T00:00:00+00:00",
    }
    assert run_of("2026-11-23-one") is None
    assert run_of("2026-11-23/consume/x") is None


def test_a_request_has_its_windows_its_dead_letters_and_the_windows_that_read_its_retries(
    client: TestClient, small: SmallStore
) -> None:
    def rows(name: str, request: str) -> Any:
        return get(client, f"/api/lists/{name}", params={"group": "shop", "request": request})["rows"]

    for request in ("2026-11-20-one", "2026-11-20-two"):
        (window,) = rows("windows", request)
        letters = rows("dead-letters", request)
        assert (window["request_id"], len(letters)) == (request, window["dead"])
        assert {letter["window_id"] for letter in letters} <= {window["window_id"]}
    (first,) = rows("windows", "2026-11-20-one")
    assert first["dead"] > 0
    (retry,) = rows("retry-windows", "2026-11-20-one")
    assert (retry["request_id"], retry["retries"]) == ("2026-11-20-two", first["retried"])
    assert rows("retry-windows", "2026-11-20-two") == [], "not delivered yet"


@pytest.mark.parametrize("policy", ["", 'retry_policy = { type = "CUSTOMIZED", next = [400000] }'])
def test_retries_are_found_again_whatever_they_waited_in(tmp_path: Path, policy: str) -> None:
    """In a queue of a delay level or of the timer; the second message came through a slot of 256 s of the timer itself."""
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    later = b'{"plan": "later"}'
    made = [Message("Orders", later, tags="new"), Message("Orders", later, tags="new", delay_ms=600_000)]
    for one in made:
        open_store(str(tmp_path)).send([one], create_queues=1)
    group = load_settings(SETTINGS.replace("[[group.sub", f"{policy}\n[[group.sub"), "tests").group("shop")
    small = SmallStore(store)
    (shard,) = store.shards()
    for number in range(4):
        request = ConsumeRequest(f"2026-11-20-{number}", ALICE)
        engine = LocalEngine(small.host)
        consume_window(store, shard, group, request, lambda plan: engine, small.host)  # noqa: B023  called at once
        small.deliver(shard.name, f"2026-11-20-{number}-deliver", later_ms=580_000 * (number + 1))
        small.deliver(shard.name, f"2026-11-20-{number}-again", later_ms=580_000 * (number + 1))
    client = client_of(store)
    found = [
        get(client, f"/api/lists/retry-windows?group=shop&request=2026-11-20-{number}")["rows"] for number in range(4)
    ]
    assert [[(row["request_id"], row["retries"]) for row in rows] for rows in found] == [
        [("2026-11-20-1", 1)], [("2026-11-20-2", 1)], [("2026-11-20-3", 2)], []
    ]  # fmt: skip


# --- messages --------------------------------------------------------------------------------------------------------

REPLAYER = {"x-user": "editor of rmq_replay"}
UNIQUE_KEY = "U0-9"


def test_a_body_is_masked_for_who_may_not_edit(client: TestClient) -> None:
    path = f"/api/message?id={UNIQUE_KEY}"
    assert get(client, path)["rows"], "the message and its copies"
    for row in get(client, path)["rows"]:
        assert row["masked"] is True
        assert not {"body", "body_text", "body_json", "body_hex", "body_base64", "properties"} & set(row)
        assert row["body_bytes"] is not None
    for row in get(client, path, headers=REPLAYER)["rows"]:
        of_group = row["topic"].startswith("%")
        assert row["masked"] is of_group, "a topic's by the DAG of replays, a retry's by that of its group"
    for row in get(client, path, headers=EDITOR)["rows"]:
        assert row["masked"] is not row["topic"].startswith(("%RETRY%shop", "%DLQ%shop"))


def test_a_topic_is_read_from_a_place_a_time_and_by_key(client: TestClient) -> None:
    rows = get(client, "/api/messages?topic=Orders&limit=5")["rows"]
    assert len(rows) == 5
    assert all("body" not in row for row in rows)
    (one,) = get(client, "/api/messages?topic=Orders&queue=broker-a:0&offset=7&limit=1")["rows"]
    assert (one["broker_name"], one["queue_id"], one["queue_offset"]) == ("broker-a", 0, 7)
    later = get(client, f"/api/messages?topic=Orders&since={rows[-1]['store_timestamp']}")["rows"]
    assert min(row["store_timestamp"] for row in later) == rows[-1]["store_timestamp"]
    by_key = get(client, f"/api/messages?topic=Orders&key={UNIQUE_KEY}")["rows"]
    assert {row["unique_key"] for row in by_key} == {UNIQUE_KEY}
    for wrong in ("topic=Nothing", "topic=Orders&queue=x", "topic=Orders&since=noon", "topic=Orders&limit=1000"):
        get(client, f"/api/messages?{wrong}", status=400)


def test_a_track_has_the_retries_of_each_group(client: TestClient) -> None:
    tracks = get(client, f"/api/track?id={UNIQUE_KEY}")
    assert "shop" in {one["group"] for one in tracks["tracks"]}
    assert get(client, "/api/track?id=nothing", status=400)["error"] == "WrongUse"


BODIES = [
    (None, None, None),
    (b"", "", None),
    (b"text", "text", None),
    ('{"a":"\u00e4"}'.encode(), '{"a":"\u00e4"}', '{\n  "a": "\u00e4"\n}'),
    (b"\xff\x00", None, None),
    (b"[" * 100_000, "[" * 100_000, None),
]


@pytest.mark.parametrize(("body", "text", "as_json"), BODIES)
def test_a_body_is_decoded_as_far_as_it_can_be(body: bytes | None, text: str | None, as_json: str | None) -> None:
    forms = decoded(body)
    assert (forms["body_text"], forms["body_json"]) == (text, as_json)
    assert forms["body_bytes"] == (None if body is None else len(body))


def test_a_long_body_is_cut_between_characters() -> None:
    forms = decoded("\u20ac".encode() * SHOWN_BYTES)
    assert forms["body_text"] == "\u20ac" * (SHOWN_BYTES // 3)
    assert forms["body_json"] is None
    assert forms["body_bytes"] == 3 * SHOWN_BYTES


def test_a_dry_run_of_a_redrive_writes_nothing_and_needs_the_permission(client: TestClient, small: SmallStore) -> None:
    get(client, "/api/redrive?group=shop&all=true", status=403)
    before = [shard.commitlog.version for shard in small.store.shards()]
    report = get(client, "/api/redrive?group=shop&all=true", headers=EDITOR)
    dead = get(client, "/api/lists/dead-letters?group=shop")
    assert report["letters"] == sum(row["redriven_at"] is None for row in dead["rows"]) > 0
    assert [shard.commitlog.version for shard in small.store.shards()] == before
    get(client, "/api/redrive?group=shop&al=true", status=400, headers=EDITOR)
    get(client, "/api/redrive?group=shop", status=400, headers=EDITOR)
    for limit in ("abc", "-1", "0"):
        get(client, f"/api/redrive?group=shop&all=true&limit={limit}", status=400, headers=EDITOR)


# --- audit, replays, metrics -----------------------------------------------------------------------------------------


def test_an_audit_is_kept_and_made_again_on_request(small: SmallStore) -> None:
    reader, now = StoreReader(lambda: small.store), [1_000_000_000]
    audits = Audits(reader, Host(now_ms=lambda: now[0]))
    first = audits.newest()
    assert (first["rows"], first["total"], first["checked_at"]) == ([], 0, now[0])
    now[0] += LEAST_MS - 1
    assert audits.newest(again=True) is audits.newest() is first
    now[0] += 1
    assert audits.newest() is first
    again = audits.newest(again=True)
    assert again["checked_at"] == now[0]
    now[0] += KEPT_MS
    assert audits.newest()["checked_at"] == now[0]


def test_a_comparison_of_a_replay_that_is_none_says_so(client: TestClient) -> None:
    assert "has replayed nothing here" in get(client, "/api/diff?group=shop-replay-0123456789", status=400)["message"]
    get(client, "/api/diff?group=shop&first=1", status=400)


def test_two_attempts_of_a_replay_are_compared(tmp_path: Path) -> None:
    small = small_store(tmp_path, ["broker-a"])
    name = open_store(tmp_path).replay(small_group(), "Orders", 0).group
    (shard,) = shards_replayed(small.store, name)
    request = ConsumeRequest("2026-11-20-again", ALICE, "another look")
    attempt = begin_attempt(shard, replace(small_group(), name=name), request, small.host)
    engine = LocalEngine(small.host)
    settings, request, scope = attempt
    consume_window(small.store, shard, settings, request, lambda plan: engine, small.host, scope=scope)

    client = client_of(small.store)
    rows = get(client, "/api/lists/replays")["rows"]
    assert [(row["group_name"], row["attempt"], row["attempts"]) for row in rows] == [(name, 2, 2), (name, 1, 2)]
    assert {row["replay_of"] for row in rows} == {"shop"}
    (of_shard,) = get(client, f"/api/diff?group={name}")["shards"]
    assert [one["attempt"] for one in of_shard["attempts"]] == [1, 2]
    assert of_shard["attempts"][1]["reason"] == "another look"
    assert sum(pair["messages"] for pair in of_shard["table"]) == sum(of_shard["attempts"][0]["outcomes"].values())
    assert get(client, f"/api/diff?group={name}&first=1&second=2")["shards"] == [of_shard]
    assert get(client, f"/api/diff?group={name}&first=1&second=7", status=400)


def test_metrics_have_the_names_and_sums_of_the_exporter(small: SmallStore) -> None:
    client = TestClient(create_metrics_app(StoreReader(lambda: small.store), lambda: "secret"))
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer s"}).status_code == 401
    text = client.get("/metrics", headers={"Authorization": "Bearer secret"}).text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    lag = query(small.store, "SELECT sum(lag) AS lag FROM lag WHERE group_name = 'shop' AND topic = 'Orders'")
    assert samples['rocketmq_group_diff{group="shop",topic="Orders"}'] == str(lag.to_pylist()[0]["lag"])
    assert {name.partition("{")[0] for name in samples} == {
        "rocketmq_group_diff", "rocketmq_group_retrydiff", "rocketmq_group_dlqdiff", "rocketmq_consumer_offset",
        "rocketmq_producer_offset", "rocketmq_topic_retry_offset", "rocketmq_topic_dlq_offset",
    }  # fmt: skip
    assert (
        TestClient(create_metrics_app(StoreReader(lambda: small.store), lambda: None)).get("/metrics").status_code
        == 404
    )


def test_what_a_replay_does_not_read_is_no_lag() -> None:
    """It ends where its request says, and its group cannot be deleted. Its retries wait for somebody."""
    names = ("shop", "shop-replay-0123456789", "shop-replay-0123456789@client-1")
    lag = [{"group": name, "topic": topic, "lag": 5} for name in names for topic in ("Orders", f"%RETRY%{name}")]
    diff, retries, *_ = metrics_of(lag, [], [])
    assert [labels["group"] for labels, _ in diff.samples] == ["shop"]
    assert [labels["group"] for labels, _ in retries.samples] == [*names]


def test_a_topic_whose_name_begins_with_a_percent_sign_is_one_of_users() -> None:
    """As at a broker (``TopicValidator``); only the prefixes of retries and of dead letters are those of groups."""
    names = ("%Notes", "%RETRY%shop", "%DLQ%shop")
    queues = [{"cluster": "c", "broker": "b", "topic": name, "max_offset": 5, "messages": 1} for name in names]
    topics = {
        metric.name: [labels.get("topic") for labels, _ in metric.samples] for metric in metrics_of([], [], queues)
    }
    assert topics["rocketmq_producer_offset"] == ["%Notes"]


def test_labels_are_escaped() -> None:
    metric = Metric("m", "h", [({"group": 'a"b\\c\nd'}, 1)])
    assert exposition([metric]).splitlines()[-1] == 'm{group="a\\"b\\\\c\\nd"} 1'


# --- one store, kept open --------------------------------------------------------------------------------------------


def test_an_answer_has_what_was_committed_since_the_last_one(tmp_path: Path) -> None:
    small = small_store(tmp_path, ["broker-a"])
    client = client_of(small.store)
    before = get(client, "/api/lists/offsets?group=shop")["total"]
    small.bench("broker-a").move("shop", MessageQueue("Orders", "broker-a", 0), 24, 20)
    assert get(client, "/api/lists/offsets?group=shop")["total"] == before + 1


@pytest.mark.parametrize(("error", "stays"), [(WrongUse("no"), True), (OSError("no"), False)])
def test_a_wrong_question_leaves_the_tables_open(small: SmallStore, error: Exception, stays: bool) -> None:
    reader = StoreReader(lambda: small.store, readers=1)
    with reader.store() as store:
        shards = store.shards()
    with pytest.raises(type(error)), reader.store():
        raise error
    with reader.store() as store:
        assert (store.shards()[0] is shards[0]) is stays


def test_many_requests_at_once_are_answered_by_few_readers(small: SmallStore) -> None:
    opened: list[None] = []

    def open_once_more() -> LakeStore:
        opened.append(None)
        return small.store

    reader = StoreReader(open_once_more, readers=2)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: reader.listing(LISTINGS["groups"], {}), range(12)))
    assert all(answer["total"] == answers[0]["total"] > 0 for answer in answers)
    assert len(opened) == 12


def test_a_store_that_is_not_there_is_an_answer_and_one_that_is_made_again_is_read(tmp_path: Path) -> None:
    root = Root.parse(str(tmp_path / "store"))
    client = TestClient(create_app(StoreReader(lambda: LakeStore.open(root)), ACCESS), headers=READER)
    assert get(client, "/api/lists/groups", status=503)["error"] == "StoreUnusable"
    small_store(root, ["broker-a"])
    assert get(client, "/api/lists/groups")["total"] == 2
    (tmp_path / "store").rename(tmp_path / "old")
    LakeStore.init(root)
    assert get(client, "/api/lists/groups")["total"] == 0
