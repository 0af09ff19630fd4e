"""Operators whose tasks report events of assets. Where such an asset is known when the DAG is parsed, it is among their inlets:
Airflow makes it with the DAG then, so that it is there before its first event. An inlet starts no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator

from rmq_store.airflow.assets import OFFSETS_COMMITTED, offsets_asset, previews_asset
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.message.validators import stored_group_problem

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


class RecordsPreviews(BaseOperator):
    """An operator that shows what a run is going to do, or lets it pass: it reports to the DAG's ``previews_asset``."""

    @property
    def dag(self) -> DAG:
        """The DAG. It may be set once the operator is made, by ``DAG.add_task`` or ``>>``."""
        return super().dag

    @dag.setter
    def dag(self, dag: DAG | None) -> None:
        BaseOperator.dag.__set__(self, dag)  # type: ignore[attr-defined]  # a property
        if dag is not None and (asset := previews_asset(dag.dag_id)) not in self.inlets:
            self.add_inlets([asset])


class ReportsOffsets(BaseOperator):
    """An operator that consumes for one group, the attribute ``group``."""

    group: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_inlets(known_offsets(self.group, self.outlets))

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """As Airflow's. A mapped operator makes its tasks in the run, so the inlets of the DAG are those given here."""
        partial: OperatorPartial = super().partial(**kwargs)
        given, outlets = partial.kwargs.get("inlets") or [], partial.kwargs["outlets"] or []
        partial.kwargs["inlets"] = [*given, *known_offsets(kwargs.get("group"), outlets)]
        return partial


def known_offsets(group: object, outlets: Sequence[Any]) -> list[Asset]:
    """The asset to which a task with these outlets reports the offsets of the group; none for a group that only a run knows,
    such as a template, whose name no group can have."""
    if OFFSETS_COMMITTED not in outlets or not isinstance(group, str) or stored_group_problem(group):
        return []
    return [offsets_asset(replayed_group(group) or group)]
