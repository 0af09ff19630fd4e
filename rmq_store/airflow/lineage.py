"""What a task has read and written, for OpenLineage where its provider is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """A dataset of OpenLineage."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The inputs and outputs of a task that has run."""

    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]

    @classmethod
    def of_windows(cls, location: str, shard: str, topics: Sequence[str]) -> Lineage:
        """Topics in, offsets out. ``location``: of the store."""
        topics_read = tuple(Place(f"rmq:{location}", f"{shard}/{topic}") for topic in topics)
        return cls(topics_read, (place_of(f"{location}/{shard}/offsets"),))


def place_of(location: str) -> Place:
    """A folder or table by OpenLineage's naming: ``s3://bucket`` and the prefix, or ``file`` and the path."""
    scheme, is_address, rest = location.partition("://")
    if not is_address:
        return Place("file", location)
    bucket, _, prefix = rest.partition("/")
    return Place(f"{scheme}://{bucket}", prefix or "/")


def openlineage_of(lineage: Lineage | None) -> Any:
    """The provider's ``OperatorLineage``, an empty one for a task that recorded none: the provider logs a warning for None.
    None without the provider."""
    try:
        operator_lineage = import_module("airflow.providers.openlineage.extractors").OperatorLineage
        dataset = import_module("airflow.providers.common.compat.openlineage.facet").Dataset
    except ImportError:
        return None
    inputs, outputs = (
        [dataset(namespace=place.namespace, name=place.name) for place in places]
        for places in ((lineage.inputs, lineage.outputs) if lineage else ((), ()))
    )
    return operator_lineage(inputs=inputs, outputs=outputs)
