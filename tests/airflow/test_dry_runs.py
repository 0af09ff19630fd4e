"""What the first task of a replay or a reset shows before anything moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq_store.commit.ctl import Actor
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.settings.retention_settings import RetentionRule
from rmq_store.utils.host import Host
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
ALL = {"group": "payments", "topic": "PaymentFlow", "from": 0}
SIZES = (
    "SELECT count(*) AS messages, CAST(sum(stored_body_size) AS BIGINT) AS bytes, min(store_timestamp) AS first_ms, "
    "max(store_timestamp) AS last_ms FROM messages WHERE topic = 'PaymentFlow'"
)


def row(store: LakeStore, text: str) -> dict[str, Any]:
    (only,) = query(store, text).to_pylist()
    return dict(only)


def xcom(result: dict[str, Any], task_id: str, key: str) -> Any:
    return result["run"].get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)


def windows(store: LakeStore) -> int:
    return int(row(store, "SELECT count(*) AS n FROM windows")["n"])


def test_a_replay_shows_first_what_it_then_reads(deployed: LakeStore, run: Run) -> None:
    stored = row(deployed, SIZES)
    dry = run("rmq_replay", ALL | {"dry_run": True, "approve": True})
    assert (dry["state"], dry["plan"], dry["approve"], dry["replay"]) == ("success", ["broker-a"], "skipped", "skipped")
    assert (xcom(dry, "plan", "preview")["messages"], windows(deployed)) == (stored["messages"], 0)
    first = run("rmq_replay", ALL)
    preview, (answer,) = xcom(first, "plan", "preview"), first["replay"]
    assert (preview["messages"], preview["bytes"]) == (stored["messages"], stored["bytes"])
    assert (answer["messages"], answer["group"]) == (preview["messages"], preview["group"])
    rows = {f"{one['topic']} {one['broker_name']}:{one['queue_id']}": one for one in preview["queues"]}
    assert {name: [one["begin_offset"], one["end_offset"]] for name, one in rows.items()} == answer["ranges"]
    assert sum(one["messages"] for one in rows.values()) == stored["messages"]
    assert sum(one["bytes"] for one in rows.values()) == stored["bytes"]
    assert preview["estimate"] is None
    assert preview["text"].endswith("; no estimate: the group has no windows yet")
    assert xcom(first, "plan", "rmq_note") == preview["text"]

    again = run("rmq_replay", ALL, again=first["run"])
    assert again["replay"][0]["status"] == "already_committed"
    assert "was committed before" in xcom(again, "plan", "preview")["text"]


def test_the_estimate_of_a_replay_comes_from_the_windows_of_its_group(deployed: LakeStore, run: Run) -> None:
    run(CONSUME)
    preview = xcom(run("rmq_replay", ALL), "plan", "preview")
    sample = preview["estimate"]["sample"]
    assert (sample["group"], sample["windows"], sample["messages"]) == ("payments", 1, preview["messages"])
    assert preview["time"].endswith("the last window of payments")


def test_a_replay_of_an_empty_range_is_green_and_one_from_the_future_is_refused(deployed: LakeStore, run: Run) -> None:
    late = row(deployed, SIZES)["last_ms"] + 1
    empty = run("rmq_replay", ALL | {"from": late})
    assert (empty["state"], empty["plan"], empty["replay"]) == ("success", [], "skipped")
    assert xcom(empty, "plan", "nothing_to_do").endswith("there is nothing to replay")
    future = run("rmq_replay", ALL | {"from": "2200-01-01T00:00:00Z"})
    assert (future["state"], future["plan"], future["replay"]) == ("failed", "failed", "upstream_failed")
    assert windows(deployed) == 0


def test_a_replay_says_how_many_messages_are_no_longer_kept(deployed: LakeStore, run: Run) -> None:
    (shard,) = deployed.shards()
    stored = row(deployed, SIZES)["bytes"]
    rule = RetentionRule(topic="PaymentFlow", max_bytes=stored // 2)
    run(CONSUME)
    retain(shard, RetentionRequest(request_id="2026-01-01/r", actor=Actor("t", "t"), rules=[rule]), Host())
    shard.commitlog.refresh()
    positions = shard.positions()
    firsts = [positions.min_offset(queue) for queue in positions.queues_of("PaymentFlow")]
    removed, trimmed = sum(firsts), sum(first > 0 for first in firsts)
    assert removed > 0
    preview = xcom(run("rmq_replay", ALL), "plan", "preview")
    (note,) = preview["notes"]
    assert note.endswith(f"; {removed:,} messages of {trimmed} queues are no longer kept")
    assert note in preview["text"]


def test_a_reset_shows_what_is_read_again_or_skipped(deployed: LakeStore, run: Run) -> None:
    stored = row(deployed, SIZES)
    run(CONSUME)
    reset = {"group": "payments", "topic": "PaymentFlow", "reason": "r"}
    back = run("rmq_reset_offset", reset | {"to": "min"})
    (answer,) = back["preview"]
    assert (answer["again"], answer["skipped"]) == ([stored["messages"], stored["bytes"]], [0, 0])
    preview = xcom(back, "preview", "preview")
    assert {one["direction"] for one in preview["queues"]} == {"again"}
    assert sum(one["bytes"] for one in preview["queues"]) == stored["bytes"]
    assert preview["text"].endswith("the last window of payments")

    run("rmq_reset_offset", reset | {"to": "min", "dry_run": False})
    (ahead,) = run("rmq_reset_offset", reset | {"to": "max"})["preview"]
    assert (ahead["again"], ahead["skipped"]) == ([0, 0], [stored["messages"], stored["bytes"]])
    late = run("rmq_reset_offset", reset | {"to": "time", "time": "2200-01-01T00:00:00Z"})
    assert any("is in the future" in note for note in xcom(late, "preview", "preview")["notes"])
