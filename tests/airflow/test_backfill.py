"""Runs of Airflow's backfill are replays of their data interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from tests.airflow.conftest import CONSUME, WARNINGS_OF_AIRFLOW

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
