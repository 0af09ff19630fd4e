"""The whole audit of a store: the view ``audit``, and what its log, its statistics and the ends of its files prove.

The parts do not depend on each other. One that cannot read what it needs is a finding too, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from rmq_store.errors import RmqError
from rmq_store.lake.audit.derived import derived_tables
from rmq_store.lake.audit.files import Progress, files
from rmq_store.lake.audit.finding import Finding, Problem, of_row
from rmq_store.lake.audit.positions import positions
from rmq_store.lake.audit.segments import segments
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore

Part = Callable[[LakeStore], Iterator[Finding]]

_PARTS: Mapping[str, Part] = {
    "positions": positions,
    "segments": segments,
    "derived tables": derived_tables,
    "view audit": lambda store: of_view(store),
}


def audit(store: LakeStore, progress: Progress | None = None) -> list[Finding]:
    """Every contradiction, each part of a snapshot taken then; none in a sound store. No message body is read."""
    parts: dict[str, Part] = {"files": partial(files, progress=progress), **_PARTS}
    opened = _of(store, tuple(store.shards()))
    return [finding for name, part in parts.items() for finding in _tried(opened, name, part)]


def _tried(store: _OpenedStore, name: str, part: Part) -> list[Finding]:
    """The findings of a part. Where it fails it is tried shard by shard, so that one damaged shard hides nothing of others."""
    try:
        return list(part(store))
    except (RmqError, OSError, ValueError) as error:
        if len(store.opened) > 1:
            return [finding for shard in store.opened for finding in _tried(_of(store, (shard,)), name, part)]
        return [
            Finding(shard=shard, problem=Problem.NOT_AUDITED, detail=f"{name}: {error}")
            for shard in store.shard_names()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedStore(LakeStore):
    """A store of which the parts share the opened shards: each log is opened once."""

    opened: tuple[Shard, ...]

    def shard_names(self) -> list[str]:
        return [shard.name for shard in self.opened]

    def shards(self, name: str | None = None) -> list[Shard]:
        return [shard for shard in self.opened if name in (None, shard.name)]


def _of(store: LakeStore, shards: tuple[Shard, ...]) -> _OpenedStore:
    return _OpenedStore(store.root, store.store_id, store.levels, opened=shards)


def of_view(store: LakeStore, group: str | None = None) -> Iterator[Finding]:
    """The rows of the view ``audit``. ``group``: those of one group, None: all."""
    where = "" if group is None else f" WHERE group_name = {quoted(group)}"
    return map(of_row, query(store, f"SELECT * FROM audit{where}").to_pylist())
