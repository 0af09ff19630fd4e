"""For DAG files: the decorator that declares a DAG of this project, schedules, and parameters of the trigger form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    AssetWatcher,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
    dag,
    get_current_context,
    task,
)

from rmq_store.admin.dag_params import dag_id_of, switch_of
from rmq_store.airflow.assets import retries_asset
from rmq_store.airflow.deployment import Deployment
from rmq_store.airflow.triggers.due import RmqDueTrigger
from rmq_store.errors import WrongUse
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.times import TIME_PATTERN

TAGS = frozenset({"rmq", "consume", "retry", "offsets", "replay", "import", "admin", "warning"})
"""The tags that a DAG of this project may have."""

FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)
RUN_TYPES = ("scheduled", "manual", "operator_triggered", "asset_triggered", "asset_materialization")
"""All of Airflow's run types but backfill: the form does not offer it, and the API refuses it. A DAG allows it by
``backfill``."""
LONGEST_RUN = timedelta(hours=23)
"""A task that began more than a day ago cannot commit."""


def rmq_dag(
    doc: str | None,
    tag: str,
    *,
    schedule: CronTriggerTimetable | CronDataIntervalTimetable | AssetOrTimeSchedule | list[Asset] | None = None,
    params: Mapping[str, Param] | None = None,
    dag_id: str = "",
    one_at_a_time: bool = True,
    backfill: bool = False,
    warning: str = "",
) -> Callable[[Callable[[], None]], Callable[[], DAG]]:
    """``@dag`` with this project's defaults.

    ``doc``: the file's docstring, which the UI shows. ``warning``: what a user should know before a run; it is put before
    ``doc``, and the DAG gets the tag ``warning``. ``schedule``: None means that the DAG runs only when triggered.
    ``dag_id``: by default the function's name. There is no catch-up: a window begins at the committed offset, so the
    next run also consumes what a missed one would have. ``one_at_a_time``: runs of a backfill do not count, it has a limit of
    its own; but while there are any, events of assets start no run.
    """
    return dag(
        dag_id,
        schedule=schedule,
        start_date=FIRST_DAY,
        catchup=False,
        max_active_runs=1 if one_at_a_time else None,  # type: ignore[arg-type]  # None is Airflow's default
        allowed_run_types=(*RUN_TYPES, "backfill") if backfill else RUN_TYPES,  # type: ignore[arg-type]  # Airflow converts the names
        default_args={"owner": "rmq", "retries": 2, "retry_delay": timedelta(seconds=15)},
        params=dict(params or {}),
        doc_md=f"**Warning: {warning}.**\n\n{doc}" if warning else doc,
        tags=["rmq", tag, *(["warning"] if warning else [])],
    )


# --- schedules, from cron expressions in UTC; None stays None ---------------------------------------------------------


def ticks(cron: str | None) -> CronTriggerTimetable | None:
    """A run at each time of the cron expression."""
    return None if cron is None else CronTriggerTimetable(cron, timezone="UTC")


def when_due(cron: str | None, poll_s: float) -> CronTriggerTimetable | AssetOrTimeSchedule | None:
    """A run when a message becomes due, by a watcher that looks at least every ``poll_s`` seconds, and one at each time of the
    cron expression. 0 s: only those of the expression. Without an expression there are neither."""
    timetable = ticks(cron)
    if timetable is None or not poll_s:
        return timetable
    watcher = AssetWatcher("rmq_due", trigger=RmqDueTrigger(poll_interval=poll_s))
    return AssetOrTimeSchedule(timetable=timetable, assets=Asset("rmq_due", uri="x-rmq://due", watchers=[watcher]))


def windows_of(group: GroupSettings) -> CronDataIntervalTimetable | AssetOrTimeSchedule | list[Asset] | None:
    """When the windows of a group begin: a run for each interval of its own schedule and, with ``consume_retries``, one
    whenever retries of it were delivered. Runs that wait for an active one become one."""
    timetable = intervals(group.own_schedule)
    if not group.consume_retries:
        return timetable
    assets = [retries_asset(group.name)]
    return assets if timetable is None else AssetOrTimeSchedule(timetable=timetable, assets=assets)


def refused_groups(groups: Sequence[GroupSettings]) -> dict[str, str]:
    """The groups of which Airflow takes no DAG, and why: an error in one would end the DAGs of all."""
    errors = {}
    for group in groups:
        try:
            DAG(dag_id_of(group.name), schedule=windows_of(group), start_date=FIRST_DAY)
        except Exception as error:
            errors[group.name] = f"{type(error).__name__}: {error}"
    return errors


def intervals(cron: str | None) -> CronDataIntervalTimetable | None:
    """A run for each interval between two of its times, once it is over: the window ends where the interval ends."""
    return None if cron is None else CronDataIntervalTimetable(cron, timezone="UTC")


# --- parameters: each call makes a new one, since a Param keeps the value that a run gave it --------------------------


LONG: Mapping[str, Any] = {"minimum": -(1 << 63) + 1, "maximum": (1 << 63) - 1}
"""The rule of JSON Schema for numbers of at most 64 bits: Airflow takes a run with a longer one, but no task gets it."""


class Suggestions(NamedTuple):
    """What the forms suggest; other names are accepted too."""

    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    @classmethod
    def of_settings(cls) -> Suggestions:
        """The groups of the settings and the topics that they read. Nothing where the settings cannot be read, which
        ``dags/rmq_consume.py`` reports. The store is not read while DAGs are parsed."""
        try:
            groups = Deployment.from_env().settings().groups
        except WrongUse:
            return cls()
        topics = {subscription.topic for group in groups for subscription in group.subscriptions}
        return cls(tuple(group.name for group in groups), tuple(sorted(topics)))


def needed(title: str, description: str | None = None, *, suggested: Sequence[str] = ()) -> Param:
    """A required text."""
    return Param("", type="string", minLength=1, title=title, description=description, **_examples(suggested))


def optional(
    title: str,
    description: str | None = None,
    *,
    kind: str | Sequence[str] = "string",
    suggested: Sequence[str] = (),
    **rules: Any,
) -> Param:
    """A value of the JSON type ``kind``, of several the first one in the form, or None; ``rules`` are keywords of JSON Schema,
    such as ``minimum``. A whole number is a ``LONG``."""
    kinds = [kind] if isinstance(kind, str) else kind
    if kind == "integer":
        rules = {**LONG, **rules}
    return Param(None, type=["null", *kinds], title=title, description=description, **_examples(suggested), **rules)


def _examples(suggested: Sequence[str]) -> dict[str, Any]:
    """The form takes an empty list for suggestions too."""
    return {"examples": list(suggested)} if suggested else {}


def moment(title: str, description: str) -> Param:
    """A time as ``rmq_store.utils.times.parse_time`` reads it, "" or None.

    Not a date-time picker, which would accept only one of these forms.
    """
    wrong_digits: dict[str, Any] = {"not": {"type": "integer", "anyOf": [_digits(10), _digits(14)]}}
    return Param(
        None,
        type=["null", "string", "integer"],
        pattern=f"^$|{TIME_PATTERN}",
        title=title,
        description=f"{description} ISO 8601 with a zone, or epoch milliseconds.",
        examples=["2026-01-31T12:00:00Z"],
        **wrong_digits,
        **LONG,
    )


def _digits(count: int) -> dict[str, int]:
    """Whole numbers with this many digits: 10 digits are seconds, 14 are a date without a zone."""
    return {"minimum": 10 ** (count - 1), "maximum": 10**count - 1}


def max_messages() -> Param:
    """The parameter ``max_messages`` of consume and replay."""
    return optional("Max messages", "At most this many messages from each shard.", kind="integer", minimum=1)


def switch(title: str, description: str, *, default: bool = False) -> Param:
    """True or false."""
    return Param(default, type="boolean", title=title, description=description)


def approve() -> Param:
    """The parameter ``approve`` of ``RmqApprovalOperator``."""
    return switch("Approve", "Wait for an approval of the dry run.")


# --- tasks ------------------------------------------------------------------------------------------------------------


@task.short_circuit
def skip_if_dry_run() -> bool:
    """Whether the run's parameter ``dry_run`` is false: the tasks after this one are skipped otherwise."""
    return not switch_of(get_current_context()["params"], "dry_run", default=True)
