"""The derived tables say what the log says: every row of every commit, each once.

Hash sums of all rows are compared first, in DuckDB, which holds no row. Only a shard whose sums differ, or whose tables cannot
be read, is compared row by row, as ``rmq dispatch --check`` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from rmq_store.errors import DerivedTableDamaged, RmqError
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.commit.cursor import miscounted, refuse_other_history
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS
from rmq_store.lake.commit.rebuild import TableReport, check
from rmq_store.lake.sql.relations import FILE_RELATIONS
from rmq_store.lake.sql.sql import Ask
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore

_MOST_ROWS = 100
"""So many different rows of a table are findings of their own."""

_WITHOUT_REPLACED = "ANTI JOIN ctl_replaced USING (shard, file)"
_PAIRS = (
    ("SELECT * FROM ctl_rows", "SELECT * FROM ctl_logged", "ctl_logged"),
    (
        f"SELECT * FROM consumequeue_dispatched {_WITHOUT_REPLACED} UNION ALL SELECT * FROM consumequeue_tail",
        f"SELECT * FROM segments {_WITHOUT_REPLACED}",
        "consumequeue_dispatched",
    ),
    (
        "SELECT * FROM offsets_dispatched UNION ALL SELECT * FROM offsets_tail",
        "SELECT * FROM offset_moves",
        "offsets_dispatched",
    ),
)
"""What a derived table has with its tail, what the log says, and a relation with the columns of both."""


def _digests(table: str, log: str, like: str) -> str:
    """The statement for the shards of which the rows differ, or that have a record twice."""
    columns = ", ".join(_named(FILE_RELATIONS[like].schema))
    records = "count(DISTINCT commit_id)" if like == "ctl_logged" else "count(*)"
    of_table, of_log = (
        f"(SELECT shard, count(*) AS rows, {records} AS records, sum(hash({columns})) AS digest"
        f" FROM ({rows}) r GROUP BY shard)"
        for rows in (table, log)
    )
    return (
        f"SELECT coalesce(t.shard, l.shard) AS shard FROM {of_table} t FULL OUTER JOIN {of_log} l ON l.shard = t.shard"
        " WHERE t.rows IS DISTINCT FROM l.rows OR t.digest IS DISTINCT FROM l.digest OR l.records < l.rows"
    )


def _named(schema: pa.Schema) -> Sequence[str]:
    return [f'"{name}"' for name in schema.names]


_DIGESTS = tuple(_digests(*pair) for pair in _PAIRS)
_TWICE = (
    "SELECT shard, commit_id, max(group_name) AS group_name, count(*) AS rows FROM ctl_logged"
    " GROUP BY shard, commit_id HAVING count(*) > 1"
)

_DAYS = """
SELECT DISTINCT f.shard, f.table_name, f.file FROM (
    SELECT shard, table_name, file, store_day, unnest([min_commit_id, max_commit_id]) AS commit_id FROM derived_files
) f JOIN ctl c ON c.shard = f.shard AND c.commit_id = f.commit_id
WHERE CAST(epoch_ms(c.store_timestamp) AS DATE) <> f.store_day
"""
"""A file has rows of commits of one day, which a join keeps. Small files have no statistics of ``store_timestamp``."""

TEXTS = (*_DIGESTS, _DAYS, _TWICE)
"""The statements of ``derived_tables``."""


def derived_tables(store: LakeStore, ask: Ask) -> Iterator[Finding]:
    """Where a derived table and the commit log differ, commits of which the log has more than one record, and a log that was
    made older than its tables, or has another history than they."""
    for shard in store.shards():
        yield from _rolled_back(shard)
    try:
        *answers, days = ask((*_DIGESTS, _DAYS))
        differing = {shard for answer in answers for shard in answer.column("shard").to_pylist()}
    except (RmqError, OSError):
        differing = set(store.shard_names())
    else:
        for row in days.to_pylist():
            file = f"{row['table_name']}/{row['file']}"
            yield Finding(shard=row["shard"], problem=Problem.STATISTICS_DIFFER, file=file, detail="of store_day")
        yield from _twice(ask) if differing else ()
    differing |= {shard.name for shard in store.shards() if _is_miscounted(shard)}
    for shard in store.shards():
        if shard.name in differing:
            for report in check(shard):
                yield from _of_table(shard.name, report)


def _rolled_back(shard: Shard) -> Iterator[Finding]:
    for kind in KINDS:
        try:
            refuse_other_history(shard, kind.table(shard))
        except DerivedTableDamaged as error:
            if error.rolled_back:
                yield Finding(shard=shard.name, problem=Problem.LOG_ROLLED_BACK, file=kind.name, detail=str(error))
            if error.other_history:
                yield Finding(shard=shard.name, problem=Problem.ANOTHER_HISTORY, file=kind.name, detail=str(error))


def _is_miscounted(shard: Shard) -> bool:
    """Whether the cursor of a table has another number of commits than the log. A table that is damaged is found otherwise."""
    with suppress(DerivedTableDamaged):
        return any(miscounted(shard, kind.table(shard)) for kind in KINDS)
    return False


def _twice(ask: Ask) -> Iterator[Finding]:
    (commits,) = ask((_TWICE,))
    for row in commits.to_pylist():
        detail = f"the commit log has {row['rows']} records of commit {row['commit_id']}"
        yield Finding(shard=row["shard"], problem=Problem.COMMIT_TWICE, group_name=row["group_name"], detail=detail)


def _of_table(shard: str, report: TableReport) -> Iterator[Finding]:
    if report.damage:
        yield Finding(shard=shard, problem=Problem.DERIVED_TABLE_DIFFERS, file=report.table, detail=report.damage)
    changed = _changed_records(report)
    reported = set(changed)
    for commit_id in changed[:_MOST_ROWS]:
        yield Finding(
            shard=shard,
            problem=Problem.COMMIT_RECORD_DIFFERS,
            file=report.table,
            detail=f"the log and the table have different records of commit {commit_id}",
        )
    reported |= set(report.lost_commits)
    for commit_id in report.lost_commits[:_MOST_ROWS]:
        yield Finding(
            shard=shard,
            problem=Problem.COMMIT_NOT_IN_LOG,
            file=report.table,
            detail=f"the table has a record of commit {commit_id}, the log has none",
        )
    differences = [one for one in report.differences if one.row["commit_id"] not in reported]
    for difference in differences[:_MOST_ROWS]:
        row = difference.row
        yield Finding(
            shard=shard,
            problem=Problem.DERIVED_TABLE_DIFFERS,
            group_name=row.get("group_name"),
            topic=row.get("topic"),
            broker_name=row.get("broker_name"),
            queue_id=row.get("queue_id"),
            begin_offset=row.get("base_offset"),
            end_offset=row.get("end_offset"),
            file=report.table,
            detail=f"a row of commit {row['commit_id']} is {difference.in_table} times in the table, and should be "
            f"{difference.in_log} times",
        )
    if (more := max(len(changed), len(report.lost_commits), len(differences)) - _MOST_ROWS) > 0:
        detail = f"{more:,} more rows differ; 'rmq dispatch --check' lists them"
        yield Finding(shard=shard, problem=Problem.DERIVED_TABLE_DIFFERS, file=report.table, detail=detail)


def _changed_records(report: TableReport) -> list[str]:
    """The commits of which the log and the table ``commits`` both have a record, but not the same."""
    if report.table != COMMITS.name:
        return []
    of_log = {one.row["commit_id"] for one in report.differences if one.in_log and not one.in_table}
    of_table = {one.row["commit_id"] for one in report.differences if one.in_table and not one.in_log}
    return sorted(of_log & of_table)
