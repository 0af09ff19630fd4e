"""The cursor of a derived table: the commit log version up to which it is complete, and the commit at that version.

A version is only a number: a log that was restored from a backup and then written to has other commits under the same
versions. So the cursor also records the commit, and a log without that commit is refused. It also records how many commits
the log had, which tells the later ones without the log's entries. Stores from before these two were recorded are accepted.
"""

from __future__ import annotations

import pyarrow as pa

from rmq_store.commit.positions import ABSENT
from rmq_store.errors import DerivedTableDamaged
from rmq_store.lake.table.ctl_index import IS_CTL
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard

VERSION = "dispatch/version"
COMMIT = "dispatch/commit"
"""The first half of the id of the commit at the cursor (its ms and 12 random bits) as a number. ABSENT: that
version has no commit id, or its log entry was cleaned away."""
COMMITS = "dispatch/commits"
"""How many ctl rows the commit log had at the cursor. ABSENT: its files do not say it, as another tool has changed the log."""
CURSOR = (VERSION, COMMIT, COMMITS)

HALF = 16
"""Hex digits of a commit id that a position can hold."""


def cursor_of(table: LakeTable) -> int:
    """The version of the commit log up to which everything is in the table's handle, -1: nothing."""
    cursor = table.positions.get(VERSION)
    return -1 if cursor is None else cursor


def commits_at_cursor(table: LakeTable) -> int | None:
    """How many ctl rows the commit log had at the cursor of the table's handle, None: not recorded."""
    return table.positions.get(COMMITS)


def cursor_positions(shard: Shard) -> dict[str, int]:
    """What a derived table with all commits of the commit log's handle records."""
    log = shard.commitlog
    rows = shard.ctl_index.rows
    return {VERSION: log.version, COMMIT: _commit_at(log), COMMITS: ABSENT if rows is None else rows}


def ctl_files(commitlog: LakeTable) -> pa.Table:
    """The live ctl files of the handle, with the columns of ``LakeTable.files``."""
    return commitlog.files(IS_CTL)


def _commit_at(log: LakeTable) -> int:
    commit_ids = log.log.commit_ids()
    return int(commit_ids[0][:HALF], 16) if commit_ids else ABSENT


def miscounted(shard: Shard, table: LakeTable) -> str:
    """How the number of commits in the cursor of the table's handle differs from that of the commit log, in words. "" where it
    does not, where one of them is not known, and where the log's entries after the cursor, from which it follows, are gone."""
    recorded, cursor, log = commits_at_cursor(table), cursor_of(table), shard.commitlog
    rows = shard.ctl_index.rows
    if recorded is None or rows is None or not 0 <= cursor <= log.version:
        return ""
    try:
        later = [file for file in log.added_since(cursor) if file.data_change and file.partition["kind"] == "ctl"]
    except LogCleaned:
        return ""
    number = rows - sum(file.rows for file in later)
    if number == recorded:
        return ""
    return (
        f"the cursor of {table.path} counts {recorded} commits up to version {cursor} of {log.path}, which has {number}"
    )


def refuse_other_history(shard: Shard, table: LakeTable) -> None:
    """Raise DerivedTableDamaged when the commit log has not come as far as the table's cursor, or does not hold the commit
    there: one of the two tables was restored from a backup. A commit that does not read the table checks this first, so
    that it does not commit what no reader would find."""
    log, cursor = shard.commitlog, cursor_of(table)
    if cursor > log.version:
        newest = _newest_version(shard, cursor)
        if cursor > newest:
            raise DerivedTableDamaged(
                f"the table {table.path} was made from {log.path} up to version {cursor}, but its newest version is {newest}: "
                "one of them was restored from a backup.",
                rolled_back=True,
            )
        return
    commit = table.positions.get(COMMIT)
    if commit is not None and not holds(shard, f"{commit:0{HALF}x}"):
        raise DerivedTableDamaged(
            f"the table {table.path} was made from {log.path} up to version {cursor} with the commit {commit:0{HALF}x}..., "
            f"which {log.path} does not hold at its version {log.version}: one of them was restored from a backup.",
            other_history=True,
        )


def refuse_rolled_back(shard: Shard) -> None:
    """Raise DerivedTableDamaged when the commit log has not come as far as the tables that were made from it. A claim in such a
    log would take the name of an entry that is missing, which could not be restored then."""
    for table in (shard.consumequeue, shard.offsets):
        refuse_other_history(shard, table)


def _newest_version(shard: Shard, cursor: int) -> int:
    """Of the commit log; others may have committed since its handle was opened. ``cursor`` when it is as far as that."""
    if shard.commitlog.log.has_entry(cursor):
        return cursor
    return Shard(shard.root, shard.name).commitlog.version


def holds(shard: Shard, first_half: str) -> bool:
    """Whether the commit log's handle has a commit whose id begins with these ``HALF`` digits."""
    index = shard.ctl_index
    if index.begins_with(first_half):
        return True
    # Another tool may have joined files.
    paths = index.with_commit(first_half, first_half + "g")
    return any(ctl.commit_id.startswith(first_half) for ctl in shard.ctls_in(paths))
