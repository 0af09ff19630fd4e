"""The assets whose events our tasks report, to start DAGs with. They name no place of data."""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

RETRIES_DELIVERED = AssetAlias("rmq_retries_delivered")
"""Of the tasks that deliver: its events are those of the ``retries_asset`` of each group with ``consume_retries``."""


def offsets_asset(group: str) -> Asset:
    """The asset of a group's offsets. Its events have the offsets in ``extra``."""
    return Asset(f"rmq_offsets__{group}", uri=f"x-rmq://offsets/{group}")


def retries_asset(group: str) -> Asset:
    """The asset of a group's retries, of a group with ``consume_retries``: an event for each run that delivered some."""
    return Asset(f"rmq_retries__{group}", uri=f"x-rmq://retries/{group}")
