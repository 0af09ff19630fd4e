"""Checks the derived tables against the commit log, and rebuilds those that differ.

A table is replaced in one commit: a reader sees all of the old table, or all of the new one. Its cursor is the version at
which the log was read, so later commits are dispatched as usual. A dispatcher that commits first only makes that one write
start again, not the reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from rmq_store.commit.ctl import Ctl, replaced_files
from rmq_store.errors import BadData, DerivedTableDamaged, StaleAttempt, StoreUnusable
from rmq_store.lake.commit.cursor import CURSOR, ctl_files, cursor_positions, miscounted
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS, Derived
from rmq_store.lake.commit.dispatch import dispatch, staged
from rmq_store.lake.commit.tail import Tail, current_rows, undispatched
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.derived_table import DerivedTable
from rmq_store.lake.table.digest_name import named_digests
from rmq_store.lake.table.shard import ABOUT_CLAIMS, Shard
from rmq_store.utils.host import Host
from rmq_store.utils.progress import Progress

Row = dict[str, Any]

_READ_AT_ONCE = 1000
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that a derived table has more or fewer times than the log says."""

    table: str
    in_table: int
    """How many times the table has the row."""
    in_log: int
    """How many times it should have it."""
    row: Mapping[str, Any]
    """The columns that name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """One derived table, compared with the commit log."""

    table: str
    rows: int
    """How many it should have."""
    differences: tuple[Difference, ...] = ()
    damage: str = ""
    """Why it cannot be read, or what is wrong with its cursor; "" for neither."""
    other_history: bool = False
    """Whether the log has other commits than those that it was made from: a rebuild gives up what the log lacks."""
    not_in_log: int = 0
    """Rows that name commits that the log does not have."""
    lost_commits: tuple[str, ...] = ()
    """Of the table ``commits``: those commits, where the log still has the history that the table was made from."""
    rebuilt: bool = False

    @property
    def differs(self) -> bool:
        return bool(self.differences or self.damage)


def check(shard: Shard, progress: Progress | None = None) -> list[TableReport]:
    """Each derived table compared with the commit log. Rows that are not dispatched yet do not count as missing.
    ``progress`` counts ctl files."""
    ctls = _ctls(shard, progress)
    return [_compared(shard, kind, ctls) for kind in KINDS]


def rebuild(shard: Shard, host: Host, progress: Progress | None = None) -> list[TableReport]:
    """Rebuild every derived table that differs from the commit log, and bring all up to the newest commit. Safe to run
    beside everything else, any number of times.

    Raises BadData when the record of a commit was changed since, or is in the table ``commits`` only: the tables may have it
    as it was. Raises StoreUnusable when other processes committed to a table at each try, or the store rejects writes.
    """
    ctls = _ctls(shard, progress)
    _refuse_changed(shard)
    compared = [_compared(shard, kind, ctls) for kind in KINDS]
    for report in compared:
        _refuse_lost(shard, report)
    reports = [_rebuilt(shard, kind, ctls, report, host) for kind, report in zip(KINDS, compared, strict=True)]
    dispatch(shard, host)
    return reports


def _ctls(shard: Shard, progress: Progress | None) -> list[Ctl]:
    """All commits. The derived tables are refreshed before the log, so that they are never ahead of it."""
    for kind in KINDS:
        with suppress(DerivedTableDamaged):
            kind.table(shard).refresh()
    shard.commitlog.refresh()
    paths = ctl_files(shard.commitlog).column("path").to_pylist()
    for start in range(0, len(paths), _READ_AT_ONCE):
        shard.ctls_in(paths[start : start + _READ_AT_ONCE])
        if progress:
            progress(min(start + _READ_AT_ONCE, len(paths)), len(paths))
    return shard.ctls_in(paths)


def _refuse_changed(shard: Shard) -> None:
    digests = named_digests(ctl_files(shard.commitlog).column("path").to_pylist())
    shard.commitlog.read_each(list(digests), ["commit_id"], digests)


def _refuse_lost(shard: Shard, report: TableReport) -> None:
    if lost := report.lost_commits:
        raise BadData(
            f"shard {shard.name}: the table {report.table} has {len(lost):,} commits that the commit log lacks, the first one "
            f"{lost[0]}: files with records were taken out of the log. Nothing was rebuilt, because the tables have the last "
            f"record of them. Restore the shard from a backup. To give them up instead, move {shard.name}/{report.table} out "
            "of the store, and rebuild"
        )


def _of(kind: Derived, ctls: Sequence[Ctl]) -> Tail:
    """All commits that have rows in the table."""
    return Tail([ctl for ctl in ctls if kind.claims or ctl.action not in ABOUT_CLAIMS], replaced_files(ctls))


def _compared(shard: Shard, kind: Derived, ctls: Sequence[Ctl]) -> TableReport:
    named: dict[str, Row] = {}
    in_log = _counted(_as_stored(kind, _of(kind, ctls).rows(kind)), named)
    try:
        table = kind.table(shard)
        stored: list[Row] = table.read(table.files().column("path").to_pylist()).to_pylist()
    except DerivedTableDamaged as error:
        return TableReport(table=kind.name, rows=in_log.total(), damage=str(error))
    damage, tail, other_history = "", Tail(()), False
    try:
        tail = undispatched(shard, table, claims=kind.claims)
    except DerivedTableDamaged as error:
        damage, other_history = str(error), error.other_history
    in_table = _counted([*current_rows(stored, tail.replaced), *_as_stored(kind, tail.rows(kind))], named)
    differences = tuple(
        Difference(kind.name, in_table[text], in_log[text], {column: row[column] for column in kind.layout.stats})
        for text, row in named.items()
        if in_table[text] != in_log[text]
    )
    known = {ctl.commit_id for ctl in ctls}
    not_in_log = [row["commit_id"] for row in stored if row["commit_id"] not in known]
    return TableReport(
        table=kind.name,
        rows=in_log.total(),
        differences=differences,
        damage=damage or miscounted(shard, table),
        other_history=other_history,
        not_in_log=len(not_in_log),
        lost_commits=tuple(sorted(set(not_in_log))) if kind is COMMITS and not damage else (),
    )


def _as_stored(kind: Derived, rows: list[Row]) -> list[Row]:
    """The rows as they would be read from a file."""
    schema = pa.schema([field for field in kind.layout.schema if field.name != "store_day"])
    read: list[Row] = pa.Table.from_pylist(rows, schema=schema).to_pylist()
    return read


def _counted(rows: Iterable[Row], named: dict[str, Row]) -> Counter[str]:
    """How often each row occurs, by its text. Adds text and row to ``named``."""
    texts = []
    for row in rows:
        texts.append(repr(row))
        named.setdefault(texts[-1], row)
    return Counter(texts)


def _rebuilt(shard: Shard, kind: Derived, ctls: Sequence[Ctl], report: TableReport, host: Host) -> TableReport:
    if not report.differs:
        return report
    table, positions = _writable(shard, kind, host), cursor_positions(shard)
    answer: Exception | None = None
    for _ in range(_TRIES):
        table.refresh()
        # After the refresh, at each try: a vacuum that came in between would have deleted files that were staged before it.
        files = staged(shard, kind, _of(kind, ctls), host)
        try:
            replaced = table.files().column("path").to_pylist()
            table.put(files, positions, host=host, operation="REBUILD", removed=replaced)
        except StaleAttempt as error:  # another process dispatched
            answer = error
        table.refresh()
        if all(table.is_live(file.path) for file in files) and (files or not table.files().num_rows):
            return replace(report, rebuilt=True)
        host.sleep(host.uniform(0, 0.05))
    raise StoreUnusable(
        f"{table.path} could not be rebuilt in {_TRIES} tries (last answer: {answer}). Other processes write to it, or the "
        "store rejects writes. Try again."
    )


def _writable(shard: Shard, kind: Derived, host: Host) -> LakeTable:
    """The table; empty, with a new beginning of its log, where that is gone or damaged."""
    try:
        table = kind.table(shard)
        table.refresh()
        table.files()
    except DerivedTableDamaged:
        path = f"{shard.name}/{kind.name}"
        DerivedTable.restart(shard.root, path, kind.layout, CURSOR, host)
        vars(shard).pop(kind.name, None)
        return kind.table(shard)
    return table
