"""The derived tables held against the commit log, and written again from it where they differ.

A table is replaced in one commit of its own: whoever reads it sees all of it before, or all of it after. Its cursor is the
version at which the log was read, so what is committed meanwhile follows by the normal road, and a dispatcher that was
quicker makes only that one write start over, not the reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from rmq_store.commit.ctl import Ctl
from rmq_store.errors import DerivedTableDamaged, StoreUnusable
from rmq_store.lake.commit.cursor import ctl_files, cursor_positions
from rmq_store.lake.commit.dispatch import KINDS, Derived, dispatch, staged, undispatched
from rmq_store.lake.table.shard import ABOUT_CLAIMS, Shard
from rmq_store.utils.host import Host

Progress = Callable[[int, int], None]
"""Told how many ctl files have been read, and of how many."""

Row = dict[str, Any]

_READ_AT_ONCE = 1000
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of which a derived table has more or fewer than the log says. ``row``: the columns that name it."""

    table: str
    in_table: int
    in_log: int
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableReport:
    """One derived table. ``rows``: how many the log says. ``damage``: why it cannot be read, or its cursor is refused.
    ``not_in_log``: how many of its rows name commits that the log does not have. ``rebuilt``: it was written again."""

    table: str
    rows: int
    differences: tuple[Difference, ...] = ()
    damage: str = ""
    not_in_log: int = 0
    rebuilt: bool = False

    @property
    def differs(self) -> bool:
        return bool(self.differences or self.damage)


def check(shard: Shard, progress: Progress | None = None) -> list[TableReport]:
    """Each derived table held against the commit log. Rows that are not dispatched yet are not missing."""
    ctls = _ctls(shard, progress)
    return [_compared(shard, kind, ctls) for kind in KINDS]


def rebuild(shard: Shard, host: Host, progress: Progress | None = None) -> list[TableReport]:
    """Write every derived table again that differs from the commit log, and bring all up to the newest commit. Safe
    beside everything else, any number of times.

    Raises StoreUnusable when others wrote to a table whenever this did, or the store takes no files.
    """
    now_ms = host.now_ms()
    ctls = _ctls(shard, progress)
    reports = [_rebuilt(shard, kind, ctls, now_ms, host) for kind in KINDS]
    dispatch(shard, host)
    return reports


def _ctls(shard: Shard, progress: Progress | None) -> list[Ctl]:
    """All commits. The derived tables are refreshed before the log, so that they are never ahead of it."""
    for kind in KINDS:
        with suppress(DerivedTableDamaged):
            kind.table(shard).refresh()
    shard.commitlog.refresh()
    paths = ctl_files(shard.commitlog).column("path").to_pylist()
    for done in range(0, len(paths), _READ_AT_ONCE):
        shard.ctls_in(paths[done : done + _READ_AT_ONCE])
        if progress:
            progress(min(done + _READ_AT_ONCE, len(paths)), len(paths))
    return shard.ctls_in(paths)


def _of(kind: Derived, ctls: Iterable[Ctl]) -> list[Ctl]:
    return [ctl for ctl in ctls if kind.claims or ctl.action not in ABOUT_CLAIMS]


def _compared(shard: Shard, kind: Derived, ctls: Sequence[Ctl]) -> TableReport:
    named: dict[str, Row] = {}
    in_log = _counted(_rows(kind, _of(kind, ctls)), named)
    try:
        table = kind.table(shard)
        stored: list[Row] = table.read(table.files().column("path").to_pylist()).to_pylist()
    except DerivedTableDamaged as error:
        return TableReport(kind.name, in_log.total(), damage=str(error))
    damage, tail = "", list[Row]()
    try:
        tail = _rows(kind, undispatched(shard, table, claims=kind.claims))
    except DerivedTableDamaged as error:
        damage = str(error)
    in_table = _counted([*stored, *tail], named)
    differences = tuple(
        Difference(kind.name, in_table[text], in_log[text], {column: row[column] for column in kind.stats})
        for text, row in named.items()
        if in_table[text] != in_log[text]
    )
    known = {ctl.commit_id for ctl in ctls}
    not_in_log = sum(row["commit_id"] not in known for row in stored)
    return TableReport(kind.name, in_log.total(), differences, damage, not_in_log)


def _rows(kind: Derived, ctls: Iterable[Ctl]) -> list[Row]:
    """As they are read from a file."""
    schema = pa.schema([field for field in kind.schema if field.name != "store_day"])
    rows: list[Row] = pa.Table.from_pylist([row for ctl in ctls for row in kind.rows(ctl)], schema=schema).to_pylist()
    return rows


def _counted(rows: Iterable[Row], named: dict[str, Row]) -> Counter[str]:
    """How often each row is there, by its text, which ``named`` holds with the row."""
    texts = []
    for row in rows:
        texts.append(repr(row))
        named.setdefault(texts[-1], row)
    return Counter(texts)


def _rebuilt(shard: Shard, kind: Derived, ctls: Sequence[Ctl], now_ms: int, host: Host) -> TableReport:
    report = _compared(shard, kind, ctls)
    if not report.differs:
        return report
    Shard.create(shard.root, shard.name)  # where its folder is gone
    table, positions = kind.table(shard), cursor_positions(shard)
    files = staged(shard, kind, _of(kind, ctls), host)
    answer: Exception | None = None
    for _ in range(_TRIES):
        table.refresh()
        try:
            table.put(files, positions, metadata={"action": "rebuild"}, now_ms=now_ms, overwrite=True)
        except (DeltaError, OSError) as error:  # somebody dispatched, or the answer was lost: the table tells
            answer = error
        table.refresh()
        if all(table.is_live(file.path) for file in files) and (files or not table.files().num_rows):
            return replace(report, rebuilt=True)
        host.sleep(host.uniform(0, 0.05))
    raise StoreUnusable(
        f"{table.path} could not be written again in {_TRIES} tries (last answer: {answer}). Others wrote to it, or the store "
        "takes no files. Try once more."
    )
