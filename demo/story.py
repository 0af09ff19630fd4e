"""The steps of the demo: each one is one or more DAG runs, and queries that show the result."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from demo.airflow_api import AirflowApi, RunFailed
from demo.narrator import Narrator
from rmq_store.admin.dag_params import dag_id_of
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import table_of
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.times import format_time
from scripts.keeper import CHECKOUT

GROUP = "demo-payments"
BROKER = "broker-a"
CONSUME = dag_id_of(GROUP)
DAGS = (CONSUME, "rmq_deliver_delayed", "rmq_persist_offsets", "rmq_replay", "rmq_import_store", "rmq_reset_offset")
STEPS = 7
_MOST_ROUNDS = 5


def tell(store: LakeStore, api: AirflowApi, narrator: Narrator) -> None:
    with narrator.step(f"Import the broker's files (rmq_import_store, broker {BROKER})"):
        import_files(store, api, narrator)
    with narrator.step(f"A first window of group {GROUP} ({CONSUME})"):
        narrator.say("the group reads PaymentFlow, and three tags of OrderEvents: other messages of it are filtered")
        narrator.say("its listener (demo/listener.py) fails payments that have no price yet, and one payment always")
        first = consume(api, narrator, "window-1")
        expect(first["outcomes"].get("retried", 0) > 0, "the listener of the demo fails some messages", first)
    with narrator.step("Deliver the retries when they are due, and consume again, until a message is dead"):
        retry_until_dead(store, api, narrator)
    with narrator.step(
        "Clear the first window's run, as in Airflow's UI: its tasks run again, nothing is consumed twice"
    ):
        again = api.clear(CONSUME, "window-1")["report_offsets"]
        expect(again["status"] == "already_committed" and again["messages"] == first["messages"], "same answer", again)
        narrator.say(f"{again['status']}: the same {again['messages']:,} messages as before")
    with narrator.step("Persist offsets, and export them for the broker (rmq_persist_offsets)"):
        for export in api.run("rmq_persist_offsets", "persist")["export"]:
            file = os.path.relpath(export["file"], CHECKOUT)
            narrator.say(f"offsets of {counted(export['groups'], 'group')}, in RocketMQ's own form: {file}")
    with narrator.step("Replay the last second of PaymentFlow under a replay group (rmq_replay)"):
        replay(store, api, narrator)
    with narrator.step("Query the tables in SQL"):
        show_tables(store, narrator)


def import_files(store: LakeStore, api: AirflowApi, narrator: Narrator) -> None:
    source = Path(store.root.location).parent / "broker"
    report = api.run("rmq_import_store", "import", {"source": str(source), "broker_name": BROKER})["import_new"]
    narrator.say(
        f"{report['status']}: {report['messages']:,} messages of {report['queues']} queues, "
        f"from {report['end']:,} bytes of log"
    )
    narrator.table(
        "the largest topics",
        query(
            store,
            "SELECT topic, count(*) AS messages, count(DISTINCT queue_id) AS queues, min(store_timestamp) AS first_at, "
            "max(store_timestamp) AS last_at FROM messages GROUP BY topic ORDER BY messages DESC LIMIT 6",
        ),
    )


def consume(api: AirflowApi, narrator: Narrator, run_id: str) -> Mapping[str, Any]:
    """One run of the group's DAG; returns its report."""
    answers = api.run(CONSUME, run_id)
    (shard_answer,) = answers["consume"]
    report: Mapping[str, Any] = answers["report_offsets"]
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in report["outcomes"].items())
    narrator.say(
        f"{report['status']} by engine {shard_answer['engine']}: {counted(report['messages'], 'message')}: {outcomes}"
    )
    expect(shard_answer["engine"] == "spark", "the windows of the demo run in Spark", shard_answer)
    return report


def retry_until_dead(store: LakeStore, api: AirflowApi, narrator: Narrator) -> None:
    for number in range(1, _MOST_ROUNDS + 1):
        due_ms = next_due_ms(store)
        if due_ms is None:
            return
        wait_ms = due_ms - now_ms()
        if wait_ms > 0:
            narrator.say(f"the delay level is due at {format_time(due_ms)}: waiting {wait_ms / 1000:.1f} s")
        while now_ms() < due_ms:
            narrator.waiting("waiting for the delay level")
            time.sleep(0.1)
        delivered = sum(
            answer["delivered"] for answer in api.run("rmq_deliver_delayed", f"deliver-{number}")["deliver"]
        )
        narrator.say(f"delivered: {counted(delivered, 'message')} to %RETRY%{GROUP}")
        report = consume(api, narrator, f"window-{number + 1}")
        if report["outcomes"].get("dead"):
            narrator.say(f"a message has failed for the last time: it is in %DLQ%{GROUP}")
    expect(next_due_ms(store) is None, f"no retry is waiting after {_MOST_ROUNDS} rounds", {})


def next_due_ms(store: LakeStore) -> int | None:
    """When all of the group's waiting retries are due, UTC ms; None when none is waiting."""
    due: int | None = first_value(store, f"SELECT max(deliver_at) FROM delayed WHERE real_topic = '%RETRY%{GROUP}'")
    return due


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def replay(store: LakeStore, api: AirflowApi, narrator: Narrator) -> None:
    last_ms = first_value(store, "SELECT max(store_timestamp) FROM messages WHERE topic = 'PaymentFlow'")
    since = format_time(last_ms - 1000)
    before = live_offsets(store)
    params = {"group": GROUP, "topic": "PaymentFlow", "from": since, "reason": "the demo replays the last second"}
    (answer,) = api.run("rmq_replay", "replay", params)["replay"]
    narrator.say(
        f"from {since}: {answer['messages']:,} messages under group {answer['group']} by engine {answer['engine']}"
    )
    expect(live_offsets(store) == before, "the live group's offsets do not move", {})
    narrator.say(f"the offsets of {GROUP} have not moved; retries wait under the replay group")


def live_offsets(store: LakeStore) -> pa.Table:
    return query(
        store,
        "SELECT shard, topic, broker_name, queue_id, next_offset FROM consumer_offsets "
        f"WHERE group_name = '{GROUP}' ORDER BY ALL",
    )


def show_tables(store: LakeStore, narrator: Narrator) -> None:
    of_groups = f"group_name LIKE '{GROUP}%'"
    tables = {
        "windows": "SELECT group_name, committed_at, queues, messages, acked, filtered, retried, dead, actor, actor_source "
        f"FROM windows WHERE {of_groups} ORDER BY committed_at",
        "consumer_offsets, without OrderEvents": "SELECT group_name, topic, broker_name, queue_id, next_offset, "
        f"updated_at FROM consumer_offsets WHERE {of_groups} AND topic <> 'OrderEvents' ORDER BY ALL",
        "lag": "SELECT group_name, topic, count(*) AS queues, CAST(sum(lag) AS BIGINT) AS lag FROM lag "
        f"WHERE {of_groups} GROUP BY ALL ORDER BY ALL",
        "retries": "SELECT group_name, state, attempt, error_type, count(*) AS messages, max(deliver_at) AS last_due_at "
        f"FROM retries WHERE {of_groups} GROUP BY ALL ORDER BY ALL",
        "dead_letters": "SELECT group_name, original_topic, attempt, error_type, error_text "
        f"FROM dead_letters WHERE {of_groups}",
    }
    for name, text in tables.items():
        narrator.table(name, query(store, text), empty="empty")
    findings = table_of(audit(store))
    narrator.table(
        "audit", findings, empty="empty, as it must be: files, queues, offsets and windows agree (rmq audit)"
    )
    expect(not findings.num_rows, "the audit is empty", {})
    expect(
        first_value(store, f"SELECT count(*) FROM dead_letters WHERE group_name = '{GROUP}'") == 1,
        "there is one dead letter",
        {},
    )


def first_value(store: LakeStore, text: str) -> Any:
    return query(store, text).column(0)[0].as_py()


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def expect(condition: bool, what: str, answer: Mapping[str, Any]) -> None:
    """Raises RunFailed unless the condition holds: the demo only shows what is true."""
    if not condition:
        raise RunFailed(f"expected: {what}; got: {dict(answer)}")
