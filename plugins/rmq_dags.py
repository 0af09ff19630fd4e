"""What the DAGs have in common: how each is declared, its schedules, its parameters. What one does, its file says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, CronTriggerTimetable, Param, dag

from rmq_store.utils.times import TIME_PATTERN

TAGS = frozenset({"rmq", "consume", "retry", "offsets", "replay", "import", "admin"})
"""The only tags there are."""

FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)
RUN_TYPES = ("scheduled", "manual", "operator_triggered", "asset_triggered", "asset_materialization")
"""All that Airflow has but backfill: its form offers none, and a request for one is refused."""
LONGEST_RUN = timedelta(hours=23)
"""A run older than a day cannot commit."""


def rmq_dag(
    doc: str | None,
    tag: str,
    *,
    schedule: CronTriggerTimetable | CronDataIntervalTimetable | None = None,
    params: Mapping[str, Param] | None = None,
    dag_id: str = "",
    one_at_a_time: bool = True,
) -> Callable[[Callable[[], None]], Callable[[], DAG]]:
    """``@dag`` as all of them use it. ``doc``: the file's docstring, which the UI shows. ``schedule``: none is only when
    triggered. ``dag_id``: by default the function's name. What was missed is never caught up: a window begins at the
    committed offset, so the next run does it."""
    return dag(
        dag_id,
        schedule=schedule,
        start_date=FIRST_DAY,
        catchup=False,
        max_active_runs=1 if one_at_a_time else None,
        allowed_run_types=RUN_TYPES,
        default_args={"owner": "rmq", "retries": 2, "retry_delay": timedelta(seconds=15)},
        params=dict(params or {}),
        doc_md=doc,
        tags=["rmq", tag],
    )


# --- schedules, from cron expressions in UTC; None stays None ----------------------------------------------------------


def ticks(cron: str | None) -> CronTriggerTimetable | None:
    """A run at each moment."""
    return None if cron is None else CronTriggerTimetable(cron, timezone="UTC")


def intervals(cron: str | None) -> CronDataIntervalTimetable | None:
    """A run for each interval between two moments, once it is over: its window ends where the interval does."""
    return None if cron is None else CronDataIntervalTimetable(cron, timezone="UTC")


# --- parameters, each a new one: a Param keeps the value that a run gave it -------------------------------------------


def needed(title: str, description: str | None = None) -> Param:
    """A text that must be given."""
    return Param("", type="string", minLength=1, title=title, description=description)


def optional(title: str, description: str | None = None, *, kind: str = "string", **rules: Any) -> Param:
    """A value of a JSON type, or None; ``rules`` are of JSON Schema, like ``minimum``."""
    return Param(None, type=["null", kind], title=title, description=description, **rules)


def moment(title: str, description: str) -> Param:
    """A time as ``rmq_store.utils.times.parse_time`` reads it, "" or None. A date-time picker would take none of its other
    forms."""
    return Param(
        None,
        type=["null", "string", "integer"],
        pattern=f"^$|{TIME_PATTERN}",
        title=title,
        description=f"{description} ISO 8601 with a zone, or epoch milliseconds.",
        examples=["2026-01-31T12:00:00Z"],
        **{"not": {"type": "integer", "anyOf": [_digits(10), _digits(14)]}},
    )


def _digits(count: int) -> dict[str, int]:
    """Whole numbers of so many digits: 10 are seconds, 14 are a date that lacks its zone."""
    return {"minimum": 10 ** (count - 1), "maximum": 10**count - 1}


def most_messages() -> Param:
    return optional("At most", "So many messages in all, per shard.", kind="integer", minimum=1)
