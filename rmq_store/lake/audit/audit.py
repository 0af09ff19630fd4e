"""The whole audit of a store: the view ``audit``, and what its log, its statistics and the ends of its files prove.

The parts do not depend on each other. One that cannot read what it needs is a finding too, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

from rmq_store.errors import RmqError
from rmq_store.lake.audit.blocked import TEXTS as of_blocked
from rmq_store.lake.audit.blocked import blocked
from rmq_store.lake.audit.derived import TEXTS as of_derived_tables
from rmq_store.lake.audit.derived import derived_tables
from rmq_store.lake.audit.files import files
from rmq_store.lake.audit.finding import Finding, Problem, of_row
from rmq_store.lake.audit.histories import histories
from rmq_store.lake.audit.moves import TEXTS as of_moves
from rmq_store.lake.audit.moves import moves
from rmq_store.lake.audit.outcomes import TEXTS as of_outcomes
from rmq_store.lake.audit.outcomes import outcomes
from rmq_store.lake.audit.positions import TEXTS as of_positions
from rmq_store.lake.audit.positions import positions
from rmq_store.lake.audit.segment_times import TEXTS as of_segment_times
from rmq_store.lake.audit.segment_times import segment_times
from rmq_store.lake.audit.segments import TEXTS as of_segments
from rmq_store.lake.audit.segments import segments
from rmq_store.lake.audit.shards import shards
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import Ask, queries, snapshot_of
from rmq_store.lake.table.shard import Shard, UnknownRecord
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.progress import Progress

T = TypeVar("T")
Part = Callable[[LakeStore, Ask], Iterator[Finding]]

UNREADABLE = (RmqError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""A record that was changed raises what it happens to mean."""
_VIEW = "SELECT * FROM audit"
_PARTS: Mapping[str, Part] = {
    "positions": lambda store, ask: positions(ask),
    "blocked messages": lambda store, ask: blocked(ask),
    "moves of offsets": lambda store, ask: moves(ask),
    "outcomes": lambda store, ask: outcomes(ask),
    "segments": lambda store, ask: segments(ask),
    "times of segments": segment_times,
    "derived tables": derived_tables,
    "view audit": lambda store, ask: _rows_of(_VIEW, ask),
}
_REREAD = ("ctl_rows", "ctl")
_TEXTS = (
    *of_positions,
    *of_blocked,
    *of_moves,
    *of_outcomes,
    *of_segments,
    *of_segment_times,
    *of_derived_tables,
    _VIEW,
)


def audit(store: LakeStore, progress: Progress | None = None) -> list[Finding]:
    """Every contradiction; none in a sound store. No message body is read. ``progress`` counts the files of each shard."""
    opened = with_named_shards(store)
    findings = _tried(opened, None, "shards", lambda store, _: shards(store))
    findings += _tried(opened, None, "histories", lambda store, _: histories(store))
    findings += _tried(opened, None, "files", lambda store, _: files(store, progress=progress))
    with ExitStack() as stack:
        try:
            ask = passing_over(
                opened, findings, lambda: stack.enter_context(snapshot_of(opened, _TEXTS, reread=_REREAD))
            )
            ask = cache(ask)  # a part begins again after each record that it passes over
        except UNREADABLE:  # each part then reads only what it needs
            ask = None
        return [*findings, *(finding for name, part in _PARTS.items() for finding in _tried(opened, ask, name, part))]


def _tried(store: _OpenedStore, ask: Ask | None, name: str, part: Part) -> list[Finding]:
    """The findings of a part. Where it fails it is tried shard by shard, so that one damaged shard hides nothing of others.
    ``ask``: over a snapshot of all shards; None: each question opens its own."""
    findings: list[Finding] = []
    try:
        of_part = passing_over(store, findings, lambda: list(part(store, ask or partial(queries, store))))
        return [*findings, *of_part]
    except UNREADABLE as error:
        if len(store.opened) > 1:
            of_shards = (_tried(_of(store, (shard,)), None, name, part) for shard in store.opened)
            return [*findings, *(finding for several in of_shards for finding in several)]
        detail = f"{name}: {error}"
        of_shard = (Finding(shard=shard, problem=Problem.NOT_AUDITED, detail=detail) for shard in store.shard_names())
        return [*findings, *of_shard]


def passing_over(store: _OpenedStore, findings: list[Finding], read: Callable[[], T]) -> T:
    """What ``read`` returns without the records of commits that are not understood, which become ``findings``. Raises as it."""
    passed: set[tuple[str, str]] = set()
    while True:
        try:
            return read()
        except UnknownRecord as error:
            if (error.shard, error.path) in passed:
                raise
            passed.add((error.shard, error.path))
            (shard,) = store.shards(error.shard)
            shard.pass_over_unknown(error.path)
            file = f"commitlog/{error.path}"
            findings.append(Finding(shard=shard.name, problem=Problem.NOT_AUDITED, file=file, detail=str(error)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedStore(LakeStore):
    """A store of which the parts share the opened shards: each log is opened once."""

    opened: tuple[Shard, ...]

    def shard_names(self) -> list[str]:
        return [shard.name for shard in self.opened]

    def shards(self, name: str | None = None) -> list[Shard]:
        return [shard for shard in self.opened if name in (None, shard.name)]


def with_named_shards(store: LakeStore) -> _OpenedStore:
    """The store, for what looks for damage: a shard without an entry is a finding, and the others are audited."""
    return _of(store, tuple(store.named_shards()))


def _of(store: LakeStore, shards: tuple[Shard, ...]) -> _OpenedStore:
    return _OpenedStore(store.root, store.store_id, store.levels, opened=shards)


def of_view(store: LakeStore, group: str) -> Iterator[Finding]:
    """The rows of the view ``audit`` about one group."""
    return _rows_of(f"{_VIEW} WHERE group_name = {quoted(group)}", partial(queries, store))


def _rows_of(text: str, ask: Ask) -> Iterator[Finding]:
    (rows,) = ask((text,))
    return map(of_row, rows.to_pylist())
