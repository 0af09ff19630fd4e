"""The assets whose events our tasks report, to start DAGs with. They name no place of data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from rmq_store.commit.request import Status, overall
from rmq_store.utils.redaction import cleaned_value

RETRIES_DELIVERED = AssetAlias("rmq_retries_delivered")
"""Of the tasks that deliver: its events are those of the ``retries_asset`` of each group with ``consume_retries``."""

OFFSETS_COMMITTED = AssetAlias("rmq_offsets_committed")
"""Of the tasks that consume: its events are those of the ``offsets_asset`` of each group that has consumed."""

PREVIEWS = AssetAlias("rmq_previews")
"""Of the tasks that show what a run is going to do, and of approvals: its events are those of the DAG's ``previews_asset``."""

REPORTED = [OFFSETS_COMMITTED]
"""The default of ``outlets`` of these tasks: a list, since a mapped task takes the default as it is."""


def offsets_asset(group: str) -> Asset:
    """The asset of a group's offsets. Its events have the offsets in ``extra``, as ``sum_of`` returns them."""
    return Asset(f"rmq_offsets__{group}", uri=f"x-rmq://offsets/{group}")


def retries_asset(group: str) -> Asset:
    """The asset of a group's retries, of a group with ``consume_retries``: an event for each run that delivered some."""
    return Asset(f"rmq_retries__{group}", uri=f"x-rmq://retries/{group}")


def previews_asset(dag_id: str) -> Asset:
    """The asset of what the tasks of a DAG have shown and let pass.

    Airflow writes such an event, with its run and its task, when the task itself succeeds: not for a task that a person marks
    as success, and not for a user. The id is percent-encoded: Airflow allows more than ASCII in it, but not in a URI.
    The name of a group has only ASCII.
    """
    encoded = quote(dag_id, safe="")
    return Asset(f"rmq_previews__{encoded}", uri=f"x-rmq://previews/{encoded}")


def report_offsets(
    events: Any, outlets: Sequence[Any], group: str, answers: Sequence[dict[str, Any]], secrets: Sequence[str] = ()
) -> None:
    """Have the offsets that the group has reached in the events of a task's outlets, without these secrets: of
    ``OFFSETS_COMMITTED`` in one of the group's ``offsets_asset``. Nothing is reported where there was nothing to consume.

    :param events: The ``outlet_events`` of the task's context.
    """
    consumed = [answer for answer in answers if answer["status"] != Status.EMPTY]
    if not consumed:
        return
    extra = cleaned_value(sum_of(consumed), secrets)
    for outlet in outlets:
        if outlet == OFFSETS_COMMITTED:
            events[outlet].add(offsets_asset(group), extra)
        elif isinstance(outlet, Asset):
            events[outlet].extra = extra


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
        "warnings": [warning for answer in answers for warning in answer["warnings"]],
    }
