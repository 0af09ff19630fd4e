"""The whole audit of a store: the view ``audit``, and what its log, its statistics and the ends of its files prove.

The parts do not depend on each other. One that cannot read what it needs is a finding too, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from rmq_store.errors import RmqError
from rmq_store.lake.audit.derived import derived_tables, records
from rmq_store.lake.audit.files import Progress, files
from rmq_store.lake.audit.finding import Finding, Problem, of_row
from rmq_store.lake.audit.positions import positions
from rmq_store.lake.audit.segments import segments
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore

Part = Callable[[LakeStore], Iterator[Finding]]

_PARTS: Mapping[str, Part] = {
    "positions": positions,
    "segments": segments,
    "derived tables": derived_tables,
    "records of commits": records,
    "view audit": lambda store: of_view(store),
}


def audit(store: LakeStore, progress: Progress | None = None) -> list[Finding]:
    """Every contradiction, each part of a snapshot taken then; none in a sound store. No message body is read."""
    parts: dict[str, Part] = {"files": partial(files, progress=progress), **_PARTS}
    return [finding for name, part in parts.items() for finding in _tried(store, name, part)]


def _tried(store: LakeStore, name: str, part: Part) -> list[Finding]:
    """The findings of a part. Where it fails it is tried shard by shard, so that one damaged shard hides nothing of others."""
    try:
        return list(part(store))
    except (RmqError, OSError, ValueError) as error:
        shards = store.shard_names()
        if len(shards) > 1:
            stores = [_OneShard(store.root, store.store_id, store.levels, shard=shard) for shard in shards]
            return [finding for of_shard in stores for finding in _tried(of_shard, name, part)]
        return [Finding(shard="".join(shards), problem=Problem.NOT_AUDITED, detail=f"{name}: {error}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneShard(LakeStore):
    """A store as if it had one of its shards only."""

    shard: str

    def shard_names(self) -> list[str]:
        return [self.shard]


def of_view(store: LakeStore, group: str | None = None) -> Iterator[Finding]:
    """The rows of the view ``audit``. ``group``: those of one group, None: all."""
    where = "" if group is None else f" WHERE group_name = {quoted(group)}"
    return map(of_row, query(store, f"SELECT * FROM audit{where}").to_pylist())
