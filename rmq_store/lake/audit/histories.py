"""The commit log has one history (``lake/commit/histories.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.commit.histories import entries_of_another
from rmq_store.lake.table.store import LakeStore


def histories(store: LakeStore) -> Iterator[Finding]:
    """The entries of the commit logs that were decided in another history."""
    for shard in store.shards():
        for file, detail in entries_of_another(shard):
            yield Finding(shard=shard.name, problem=Problem.ANOTHER_HISTORY, file=file, detail=detail)
