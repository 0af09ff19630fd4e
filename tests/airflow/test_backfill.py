"""Runs of Airflow's backfill are replays of their data interval."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import epoch_ms
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW, run_note
from tests.contract.engines import LakeWorld
from tests.contract.world import HOUR, NOON, orders, several

pytestmark = [pytest.mark.filterwarnings(ignored) for ignored in WARNINGS_OF_AIRFLOW]

Run = Callable[..., dict[str, Any]]
LIVE = "SELECT * FROM consumer_offsets WHERE group_name = 'payments' ORDER BY ALL"


def rows(store: LakeStore, text: str) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = query(store, text).to_pylist()
    return table


@pytest.fixture
def as_backfill(airflow_home: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``dag.test()`` makes manual runs; here they have the type that a backfill gives them."""
    from airflow.models import dagrun
    from airflow.utils.types import DagRunType

    made = dagrun.get_or_create_dagrun

    def of_backfill(**arguments: Any) -> Any:
        dag_run = made(**arguments)
        dag_run.run_type = DagRunType.BACKFILL_JOB
        arguments["session"].commit()
        return dag_run

    with monkeypatch.context() as patch:
        patch.setattr(dagrun, "get_or_create_dagrun", of_backfill)
        yield


def newest_interval(store: LakeStore) -> tuple[datetime, int]:
    """The end of the ten minutes with the newest payment, and how many payments they have."""
    (row,) = rows(
        store,
        "SELECT (max(store_timestamp) // 600000 + 1) * 600000 AS end_ms FROM messages WHERE topic = 'PaymentFlow'",
    )
    end_ms = row["end_ms"]
    (counted,) = rows(
        store,
        "SELECT count(*) AS n FROM messages WHERE topic = 'PaymentFlow' "
        f"AND store_timestamp >= {end_ms - 600_000} AND store_timestamp < {end_ms}",
    )
    return datetime.fromtimestamp(end_ms / 1000, UTC), counted["n"]


def event_of(dag_run: Any) -> dict[str, Any]:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).filter(AssetEvent.source_run_id == dag_run.run_id).all()
        return dict(events[-1].extra)


def test_a_backfill_replays_its_interval_and_the_live_offsets_stay(
    deployed: LakeStore, run: Run, as_backfill: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, expected = newest_interval(deployed)
    first = run(CONSUME, logical_date=end, run_after=end)
    assert (first["state"], first["plan"]) == ("success", ["broker-a"])
    (answer,) = first["consume"]
    assert (answer["status"], answer["messages"], answer["replay_of"]) == ("committed", expected, "payments")
    assert answer["group"].startswith("payments-replay-")
    assert rows(deployed, LIVE) == [], "the live group has no offset yet, and got none"
    extra = event_of(first["run"])
    assert (extra["replay_of"], extra["group"], extra["messages"]) == ("payments", answer["group"], expected)

    (cleared,) = run(CONSUME, again=first["run"])["consume"]
    assert (cleared["status"], cleared["group"]) == ("already_committed", answer["group"])
    conf = {"reprocess": "the listener is fixed"}
    (again,) = run(CONSUME, conf, again=first["run"])["consume"]
    assert (again["status"], again["messages"], again["group"]) == ("committed", expected, answer["group"])
    (same,) = run(CONSUME, conf, again=first["run"])["consume"]
    assert same["status"] == "already_committed"
    attempts = rows(deployed, "SELECT DISTINCT replay_of, attempt, reason FROM windows ORDER BY attempt")
    assert attempts == [
        {"replay_of": "payments", "attempt": 1, "reason": ""},
        {"replay_of": "payments", "attempt": 2, "reason": "the listener is fixed"},
    ]


def test_an_interval_without_messages_is_green_and_says_so(deployed: LakeStore, run: Run, as_backfill: None) -> None:
    end, _ = newest_interval(deployed)
    result = run(CONSUME, logical_date=end - timedelta(days=1), run_after=end - timedelta(days=1))
    assert (result["state"], result["plan"], result["report_offsets"]) == ("success", [], "skipped")
    note = result["run"].get_task_instance("plan").xcom_pull(task_ids="plan", key="nothing_to_do")
    assert note.startswith("no message was stored from ")
    assert rows(deployed, "SELECT * FROM windows") == []


def test_a_backfill_with_a_bound_is_refused(deployed: LakeStore, run: Run, as_backfill: None) -> None:
    end, _ = newest_interval(deployed)
    result = run(CONSUME, {"max_messages": 5}, logical_date=end, run_after=end)
    assert (result["state"], result["plan"]) == ("failed", "failed")


def test_messages_that_were_imported_after_the_replay_are_named_and_are_in_the_next_attempt(
    tmp_path: Path, run: Run, as_backfill: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, queue, messages = LakeWorld(tmp_path), orders(0, "PaymentFlow"), several(9, step_ms=60_000)
    monkeypatch.setenv("RMQ_ROOT", str(tmp_path))
    world.clock.now_ms = epoch_ms()  # that of the tasks
    end = datetime.fromtimestamp((NOON - HOUR) / 1000, UTC) + timedelta(minutes=10)
    world.fill(queue, messages[:4])
    first = run(CONSUME, logical_date=end, run_after=end)
    assert [(one["status"], one["messages"], one["warnings"]) for one in first["consume"]] == [("committed", 4, [])]

    world.fill(queue, messages[4:])
    cleared = run(CONSUME, again=first["run"])
    (answer,) = cleared["consume"]
    assert (cleared["state"], answer["status"], answer["messages"]) == ("success", "already_committed", 4)
    (warning,) = answer["warnings"]
    assert warning.startswith("the interval has 5 messages more than were replayed")
    assert warning in (run_note(cleared["run"]) or "")

    late = run(CONSUME, {"reprocess": "late messages"}, again=first["run"])
    assert [(one["status"], one["messages"], one["warnings"]) for one in late["consume"]] == [("committed", 9, [])]
    same = run(CONSUME, {"reprocess": "late messages"}, again=first["run"])
    assert [(one["status"], one["warnings"]) for one in same["consume"]] == [("already_committed", [])]


def test_what_retention_has_removed_of_an_interval_is_a_warning_of_its_replay_and_of_no_other(
    tmp_path: Path, run: Run, as_backfill: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the run's note too. What was removed after a replay says nothing of it, and other messages are not counted."""
    monkeypatch.setenv("RMQ_ROOT", str(tmp_path))
    world, queue, messages = LakeWorld(tmp_path), orders(0, "PaymentFlow"), several(9, step_ms=60_000)
    world.clock.now_ms = epoch_ms()  # that of the tasks
    begin = datetime.fromtimestamp((NOON - HOUR) / 1000, UTC)
    for number in range(0, 9, 3):
        world.fill(queue, messages[number : number + 3])
    end = begin + timedelta(minutes=10)

    world.trim(queue, 4)
    first = run(CONSUME, logical_date=end, run_after=end)
    (answer,) = first["consume"]
    assert (first["state"], answer["status"], answer["messages"]) == ("success", "committed", 5)
    (warning,) = answer["warnings"]
    assert warning.endswith("; 4 messages of 1 queue are no longer kept")
    note = run_note(first["run"]) or ""
    assert (warning.partition("[")[0] in note, "; 4 messages of 1 queue are no longer kept" in note) == (True, True)
    world.trim(queue, 8)
    cleared = run(CONSUME, again=first["run"])
    assert ([one["warnings"] for one in cleared["consume"]], cleared["plan"]) == ([[]], first["plan"])
    assert "kept" not in (run_note(cleared["run"]) or "")
    before = run(CONSUME, logical_date=begin, run_after=begin)
    nothing = before["run"].get_task_instance("plan").xcom_pull(task_ids="plan", key="nothing_to_do")
    assert nothing.startswith("no message was stored from ")
    assert "kept" not in nothing


IN_ORDER = """
[[group]]
name = "payments"
listener = "in_order_listener:pay"
mode = "orderly"
consume_message_batch_max_size = 1
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
schedule = "*/10 * * * *"
[[group.subscription]]
topic = "PaymentFlow"
"""
FAILS = """
from pathlib import Path

def pay(messages, context):
    if messages[0].queue_offset == 1 and Path("FILE").exists():
        raise OSError("the database is down")
    return "SUCCESS"
"""


def test_what_a_blocked_queue_leaves_of_an_interval_is_a_warning_until_another_attempt_has_read_it(
    tmp_path: Path, run: Run, as_backfill: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the answer, the note and the event of the run, when it is cleared, and where the retries are finished."""
    down, settings, root = (tmp_path / name for name in ("down", "consumers.toml", "store"))
    down.touch()
    settings.write_text(IN_ORDER)
    (tmp_path / "in_order_listener.py").write_text(FAILS.replace("FILE", str(down)))
    for name, value in (("ROOT", root), ("SETTINGS", settings), ("LISTENER_PATH", tmp_path)):
        monkeypatch.setenv(f"RMQ_{name}", str(value))
    monkeypatch.setattr(sys, "path", [*sys.path])
    world, queue = LakeWorld(root), orders(0, "PaymentFlow")
    world.clock.now_ms = epoch_ms()  # that of the tasks
    end = datetime.fromtimestamp((NOON - HOUR) / 1000, UTC) + timedelta(minutes=10)
    world.fill(queue, several(4, step_ms=60_000))

    first = run(CONSUME, logical_date=end, run_after=end)
    (answer,) = first["consume"]
    assert (first["state"], answer["status"], answer["messages"], answer["complete"]) == (
        "success",
        "committed",
        1,
        True,
    )
    cleared = run(CONSUME, again=first["run"])
    finished = run("rmq_replay", {"group": answer["group"], "finish": True})
    told = "1 queue waits at a failed message (see the view blocked), 3 messages not consumed"
    for dag_run, one in ((first, answer), (cleared, cleared["consume"][0]), (finished, finished["finish"])):
        assert (dag_run["state"], one["blocked_queues"], one["not_consumed"]) == ("success", 1, 3)
        (warning,) = one["warnings"]
        assert "the replay has not consumed 3 messages: once the listener handles it, begin another" in warning
        assert told in (run_note(dag_run["run"]) or "")
    extra = event_of(first["run"])
    assert (extra["blocked_queues"], extra["not_consumed"], extra["warnings"]) == (1, 3, answer["warnings"])

    down.unlink()
    again = run(CONSUME, {"reprocess": "the database is up"}, again=first["run"])
    finished = run("rmq_replay", {"group": answer["group"], "finish": True})
    assert [(one["messages"], one["warnings"]) for one in again["consume"]] == [(4, [])]
    assert (finished["finish"]["blocked_queues"], finished["finish"]["warnings"]) == (0, [])
    assert run(CONSUME, again=first["run"])["consume"][0]["warnings"] == []
