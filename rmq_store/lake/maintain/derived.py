"""Joins the small files of the derived tables: each dispatch leaves one, and a reader pays for every file that it opens.

A group of small files becomes one commit that removes them and adds the same rows, sorted, in few files. The cursor does not
move, so a dispatcher that only adds files is not disturbed. Another joiner or a rebuild that removes one of the files meanwhile
wins: the join plans again on the table as it is then. Readers of an older version still find its files
(``rmq_store/maintain/orphans.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rmq_store.errors import StaleAttempt, StoreUnusable
from rmq_store.lake.commit.derived_tables import Derived
from rmq_store.lake.maintain.checked_file import stage_checked
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile
from rmq_store.maintain.files_to_join import Limits, SmallFile, files_to_join
from rmq_store.utils.host import Host
from rmq_store.utils.progress import Progress

LIMITS = Limits(target_rows=10_000)
"""A reader that looks for the segments of one queue reads whole files, so a file has at most so many rows."""
_TRIES = 8


@dataclass(frozen=True, slots=True)
class JoinReport:
    """The live files of a table before and after the join; of a dry run before it, and how many it would replace."""

    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    joined: int
    """How many small files were replaced, or would be."""


def join(
    shard: Shard, kind: Derived, host: Host, *, dry_run: bool = False, progress: Progress | None = None
) -> JoinReport:
    """Join the small files of one derived table. Safe beside everything else, and any number of times.
    ``progress`` counts the small files.

    Raises DerivedTableDamaged when a file is gone or damaged, BadData as ``LakeTable.described``, StoreUnusable when the store
    rejects writes, when a file has not the rows that it should have, or when other processes replace files at each try;
    CommitOutcomeUnknown when the store does not answer. The rows of the table are the same then.
    """
    table = kind.table(shard)
    table.refresh()
    before = table.live_size()
    groups = _groups(table)
    count = sum(map(len, groups))
    if dry_run:
        return JoinReport(*before, *before, count)
    joined, tries = 0, _TRIES
    while groups:
        try:
            _join(table, kind, groups[0], host)
        except StaleAttempt as error:
            tries -= 1
            if not tries:
                raise StoreUnusable(
                    f"{table.path}: {error}, {_TRIES} times. Its rows are unchanged; try again"
                ) from error
            table.refresh()
            groups = _groups(table)
            continue
        joined += len(groups.pop(0))
        if progress:
            progress(joined, max(count, joined))
    return JoinReport(*before, *table.live_size(), joined)


def _groups(table: LakeTable) -> list[tuple[SmallFile, ...]]:
    columns = ["path", "partition.store_day", "size_bytes", "num_records"]
    files = [
        SmallFile(path, (str(day),), size, rows)
        for path, day, size, rows in zip(*(table.described().column(name).to_pylist() for name in columns), strict=True)
    ]
    return files_to_join(files, LIMITS)


def _join(table: LakeTable, kind: Derived, group: Sequence[SmallFile], host: Host) -> None:
    """Raises StaleAttempt when a file of the group is not live any more."""
    paths = [file.path for file in group]
    (day,) = {file.partition[0] for file in group}
    rows = table.read(paths).sort_by([(name, "ascending") for name in kind.layout.stats])
    count = sum(file.rows for file in group)
    if rows.num_rows != count:
        raise StoreUnusable(
            f"{table.path}: {len(paths)} small files have {rows.num_rows} rows, and by the table's log {count}. Nothing was "
            "changed; check the disk, and run 'rmq dispatch --check'"
        )
    files = []
    for part in _parts(rows):
        new = NewFile(kind="", name=host.new_commit_id(), rows=part, stats=kind.layout.stats, store_day=day)
        files.append(replace(stage_checked(table, new), data_change=False))
    table.put(files, {}, host=host, operation="JOIN", removed=paths)


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Of about the same size, each with at most the target's rows, and with half of that at least if there are several: large
    enough not to be joined again."""
    number = -(-rows.num_rows // (LIMITS.target_rows or rows.num_rows))
    for n in range(number):
        begin, end = (rows.num_rows * place // number for place in (n, n + 1))
        yield rows.slice(begin, end - begin)
