"""The whole audit of a store: the view ``audit``, and what its log, its statistics and the ends of its files prove.

The parts do not depend on each other. One that cannot read what it needs is a finding too, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rmq_store.errors import RmqError
from rmq_store.lake.audit.finding import Finding, Problem, of_row
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore

Progress = Callable[[int, int], None]
"""Called with the number of files whose ends have been read, and of all."""

Part = Callable[[Shard], Iterator[Finding]]
"""A part of the audit that looks at one shard after the other."""

_PARTS: Sequence[tuple[str, Part]] = ()


def audit(store: LakeStore, progress: Progress | None = None) -> list[Finding]:
    """Every contradiction, of a snapshot taken now; none in a sound store. No message body is read.

    Raises StoreUnusable only when the list of shards cannot be read.
    """
    findings: list[Finding] = []
    for shard in store.shards():
        for name, part in _PARTS:
            findings += _tried(shard.name, name, partial(part, shard))
    return findings + _tried("", "records of the commits", partial(of_view, store))


def of_view(store: LakeStore, group: str | None = None) -> Iterator[Finding]:
    """The rows of the view ``audit``. ``group``: those of one group, None: all."""
    where = "" if group is None else f" WHERE group_name = {quoted(group)}"
    return map(of_row, query(store, f"SELECT * FROM audit{where}").to_pylist())


def _tried(shard: str, name: str, part: Callable[[], Iterator[Finding]]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(part())
    except (RmqError, OSError) as error:
        findings.append(Finding(shard=shard, problem=Problem.NOT_AUDITED, detail=f"{name}: {error}"))
    return findings
