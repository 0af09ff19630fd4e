"""The tail of the commit log: the commits that a derived table lacks, those after its cursor (``cursor.py``).

They are found in one of three ways, tried in this order:

1. from the Delta log entries after the cursor;
2. where these have been cleaned away, by number: the commit log records how many commits it had at the cursor. As many
   of the newest ids as are missing are the right ones when all of them were decided at the cursor or later;
3. otherwise by comparing all commits with the rows of the table.

No clock is used, since the clocks of hosts may be wrong by days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Action, Ctl, replaced_files
from rmq_store.lake.commit.cursor import commits_at_cursor, ctl_files, cursor_of, refuse_other_history
from rmq_store.lake.commit.derived_tables import Derived
from rmq_store.lake.table.ctl_index import rows_in
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import ABOUT_CLAIMS, Shard


@dataclass(frozen=True, slots=True)
class Tail:
    """What a derived table lacks of the commit log."""

    ctls: Sequence[Ctl]
    """The commits that are not in it, in commit order."""
    replaced: frozenset[str] = frozenset()
    """Files that compactions have replaced: rows of the table, and of these commits, that name one are out of date."""
    from_log: bool = True
    """Whether the log entries after the cursor named the commits."""

    def rows(self, kind: Derived) -> list[dict[str, Any]]:
        return current_rows((row for ctl in self.ctls for row in kind.rows(ctl)), self.replaced)


def current_rows(rows: Iterable[dict[str, Any]], replaced: frozenset[str]) -> list[dict[str, Any]]:
    """The rows that name none of these files."""
    return [row for row in rows if row.get("file") not in replaced] if replaced else list(rows)


def undispatched(shard: Shard, table: LakeTable, *, claims: bool = False) -> Tail:
    """What ``table``'s handle lacks of the commit log's. Commits about claims only with ``claims``. Raises
    DerivedTableDamaged when the table was made from another history of the log."""
    refuse_other_history(shard, table)
    return Tail(()) if cursor_of(table) >= shard.commitlog.version else tail_of(shard, table, claims)


def tail_of(shard: Shard, table: LakeTable, claims: bool) -> Tail:
    """``undispatched`` of a table that is behind and was made from this log."""
    logged = _logged(shard, table, claims)
    if logged is not None:
        return Tail(logged, replaced_files(logged))
    counted = _counted(shard, table)
    if counted is None:
        # Also commits of which the table has no row any more, because a compaction that it has replaced their files.
        compactions = shard.ctls_since(0, action=str(Action.COMPACT))
        return Tail(_by_commit_id(shard, table, claims), replaced_files(compactions), from_log=False)
    ctls = [ctl for ctl in counted if claims or ctl.action not in ABOUT_CLAIMS]
    return Tail(ctls, replaced_files(ctls), from_log=False)


def _logged(shard: Shard, table: LakeTable, claims: bool) -> list[Ctl] | None:
    """The commits that the log entries after the cursor name; None where an entry, or a file that one names, is gone."""
    try:
        added = _ctl_files_after(shard.commitlog, cursor_of(table), claims)
    except LogCleaned:
        return None
    if not all(map(shard.commitlog.is_live, added)):
        return None
    return shard.ctls_in(added)


def _ctl_files_after(commitlog: LakeTable, version: int, claims: bool) -> list[str]:
    """Claims neither produce nor move anything; the statistics of their files say so."""
    return [
        file.path
        for file in commitlog.added_since(version)
        if file.data_change and file.partition["kind"] == "ctl" and (claims or file.only("action") not in ABOUT_CLAIMS)
    ]


def _counted(shard: Shard, table: LakeTable) -> list[Ctl] | None:
    """The commits after the cursor, where their number proves that they are all.

    A commit that was decided at the cursor or later landed after it. So when as many such commits are among the newest ids
    as the log has gained since the cursor, there is no other. None when they are not: a clock was wrong, or a commit was
    decided before the cursor and landed after it.
    """
    recorded, files = commits_at_cursor(table), ctl_files(shard.commitlog)
    in_log = rows_in(files)
    if recorded is None or in_log is None:
        return None
    missing, newest, rows = in_log - recorded, list[str](), 0
    for file in files.sort_by([("max.commit_id", "descending")]).select(["path", "num_records"]).to_pylist():
        if rows >= missing:
            break
        newest.append(file["path"])
        rows += file["num_records"]
    ctls = [ctl for ctl in shard.ctls_in(newest) if ctl.read_version >= cursor_of(table)]
    return ctls if len(ctls) == missing else None


def _by_commit_id(shard: Shard, table: LakeTable, claims: bool) -> list[Ctl]:
    """Every commit that has no rows in the table, whether or not it should have some. The statistics of a file with one
    commit name it, so files whose commits are known are not opened."""
    known, files = _commits_in(table), ctl_files(shard.commitlog)
    if files.num_rows:
        about = pa.array([] if claims else [str(action) for action in ABOUT_CLAIMS], pa.string())
        of_claim = ONE_ACTION & pc.field("min.action").isin(about)
        files = files.filter(~(of_claim | _ONE_COMMIT & pc.field("min.commit_id").isin(known)))
    known_ids = set(known.to_pylist())
    return [ctl for ctl in shard.ctls_in(files.column("path").to_pylist()) if ctl.commit_id not in known_ids]


def _commits_in(table: LakeTable) -> pa.Array:
    """The ids of the commits with rows in the table."""
    files = table.files()
    if not files.num_rows:
        return pa.array([], pa.string())
    of_one, of_more = files.filter(_ONE_COMMIT), files.filter(~_ONE_COMMIT)
    read = table.read(of_more.column("path").to_pylist(), ["commit_id"])
    ids = [*of_one.column("min.commit_id").cast(pa.string()).chunks, *read.column("commit_id").chunks]
    return pa.concat_arrays(ids) if ids else pa.array([], pa.string())


_ONE_COMMIT = pc.field("min.commit_id") == pc.field("max.commit_id")
ONE_ACTION = pc.field("min.action") == pc.field("max.action")
"""Selects the ctl files whose commits all have the same action."""
