"""The assets whose events our tasks report, to start DAGs with. They name no place of data.

No event is that of an ``AssetAlias``: with the first one Airflow makes the asset and its relation to the alias, and where two
tasks end together it fails one of them without a retry, also after it has committed. An event of an asset that no DAG names
goes nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from rmq_store.commit.request import Status, overall
from rmq_store.utils.redaction import cleaned_value

if TYPE_CHECKING:
    from airflow.sdk import Context

OFFSETS_COMMITTED = AssetAlias("rmq_offsets_committed")
"""Of the tasks that consume. It has no events: it stands for the ``offsets_asset`` of each group that has consumed."""

REPORTED = [OFFSETS_COMMITTED]
"""The default of ``outlets`` of these tasks: a list, since a mapped task takes the default as it is."""


def offsets_asset(group: str) -> Asset:
    """The asset of a group's offsets. Its events have the offsets in ``extra``, as ``sum_of`` returns them."""
    return Asset(f"rmq_offsets__{group}", uri=f"x-rmq://offsets/{group}")


def retries_asset(group: str) -> Asset:
    """The asset of a group's retries, of a group with ``consume_retries``: an event for each run that delivered some, and for
    one that found some which no run has reported."""
    return Asset(f"rmq_retries__{group}", uri=f"x-rmq://retries/{group}")


def previews_asset(dag_id: str) -> Asset:
    """The asset of what the tasks of a DAG have shown and let pass.

    Airflow writes such an event, with its run and its task, when the task itself succeeds: not for a task that a person marks
    as success, and not for a user. The id is percent-encoded: Airflow allows more than ASCII in it, but not in a URI.
    The name of a group has only ASCII.
    """
    encoded = quote(dag_id, safe="")
    return Asset(f"rmq_previews__{encoded}", uri=f"x-rmq://previews/{encoded}")


def report(context: Context, asset: Asset, extra: dict[str, Any] | None = None) -> None:
    """Have an event of the asset with this ``extra`` when the current task succeeds, which else has none."""
    task = context["ti"].task
    if asset not in task.outlets:
        task.outlets = [*task.outlets, asset]  # those of this try: the DAG keeps its own list
    context["outlet_events"][asset].extra = extra or {}


def report_offsets(
    context: Context, outlets: Sequence[Any], group: str, answers: Sequence[dict[str, Any]], secrets: Sequence[str] = ()
) -> None:
    """Have the offsets that the group has reached in the events of these outlets of the current task, without these secrets:
    for ``OFFSETS_COMMITTED`` in one of the group's ``offsets_asset``. Nothing is reported where there was nothing to consume.
    """
    consumed = [answer for answer in answers if answer["status"] != Status.EMPTY]
    if not consumed:
        return
    extra = cleaned_value(sum_of(consumed), secrets)
    for outlet in outlets:
        if outlet == OFFSETS_COMMITTED:
            report(context, offsets_asset(group), extra)
        elif isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = extra


def sum_of(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum of the shards' answers, with the offsets of each shard; for a replay with its group, and the group that it
    replays."""
    outcomes: dict[str, int] = {}
    for answer in answers:
        for outcome, count in answer["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    first = answers[0] if answers else {}
    replay = {name: first[name] for name in ("group", "replay_of") if "replay_of" in first}
    return replay | {
        "status": overall(answer["status"] for answer in answers),
        "messages": sum(outcomes.values()),
        "outcomes": outcomes,
        "offsets": {answer["shard"]: answer["offsets"] for answer in answers},
        **{name: sum(answer.get(name, 0) for answer in answers) for name in ("blocked_queues", "not_consumed")},
        "warnings": [warning for answer in answers for warning in answer["warnings"]],
    }
