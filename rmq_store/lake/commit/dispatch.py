"""Dispatch: RocketMQ's reput. Derives ``consumequeue``, ``offsets`` and ``commits`` from the commit log's ctl rows.

A compaction gives messages another place: its dispatch writes the files of ``consumequeue`` again that name the replaced
ones, in the commit that adds the new segments.

Each derived table has its own cursor (``cursor.py``), committed with its rows: the commit log version up to which the
table is complete. ``tail.py`` finds the commits after it. Racing dispatchers are harmless: the cursor is a position, and only
one of them commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import StaleAttempt, StoreUnusable, clause
from rmq_store.lake.commit.cursor import (
    commits_at_cursor,
    cursor_of,
    cursor_positions,
    refuse_other_history,
)
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS, MOVES, QUEUES, Derived
from rmq_store.lake.commit.tail import Tail, current_rows, tail_of, undispatched
from rmq_store.lake.table.checkpoint import checkpoint_if_due
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import derived
from rmq_store.utils.host import Host, day_of
from rmq_store.utils.redaction import cleaned, secret_values

_TRIES = 8
_PATIENCE_MS = 20_000
_QUIET_VERSIONS = 32
_QUIET_COMMITS = 256
"""Versions without rows for a table are not dispatched until there are so many, or that many commits in them, or until their
log entries are gone: an empty commit would only add a file."""


def behind(shard: Shard) -> int:
    """How many commits ``dispatch`` would take now, the sum over the tables."""
    shard.commitlog.refresh()
    return sum(_behind(shard, kind) for kind in KINDS)


def _behind(shard: Shard, kind: Derived) -> int:
    table = kind.table(shard)
    if not _is_due(shard, table, kind):
        return 0
    tail = undispatched(shard, table, claims=kind.claims)
    changes = tail.rows(kind) or _outdated(table, kind, tail.replaced)
    return len(tail.ctls) if changes or not _may_wait(shard, table, tail) else 0


def _may_wait(shard: Shard, table: LakeTable, tail: Tail) -> bool:
    """Whether commits without rows are few enough to be taken together with later ones."""
    is_short = shard.commitlog.version - cursor_of(table) < _QUIET_VERSIONS and len(tail.ctls) < _QUIET_COMMITS
    return tail.from_log and is_short


def dispatch(shard: Shard, host: Host, *, fresh: bool = True, every_commit: bool = False) -> int:
    """Bring the derived tables up to the newest commit, and ``commits`` when it is due. Safe to run anywhere, any number of
    times, at once.

    ``fresh`` False: the handles have just been refreshed. ``every_commit``: bring ``commits`` up too, due or not. Returns
    how many commits were dispatched, the sum over the tables. Raises DerivedTableDamaged when a table was made from another
    history of the log, StoreUnusable when the store rejects writes.
    """
    if fresh:
        shard.refresh("commitlog", *(kind.name for kind in KINDS))
    else:
        shard.consumequeue.refresh_unless_fresh()
    # Opening a table costs time: after a window the one that is already open says whether this one may be due.
    commits = replace(COMMITS, every=1) if every_commit else COMMITS
    kinds = [commits] if fresh or _is_due(shard, shard.consumequeue, COMMITS) else []
    kinds += [QUEUES, MOVES]
    return sum(in_parallel(shard.root, lambda kind: _dispatch(shard, kind, host), kinds))


def _is_due(shard: Shard, table: LakeTable, kind: Derived) -> bool:
    """Whether the number of commits in the log has passed a multiple of ``kind.every`` since the table's cursor. Raises
    DerivedTableDamaged when the table was made from another history of the log."""
    refuse_other_history(shard, table)
    cursor, commits = cursor_of(table), shard.ctl_index.rows
    before = commits_at_cursor(table) if cursor >= 0 else 0
    if before is None or commits is None:  # a store of version 0.1.0, or a log that another tool has changed
        before, commits = cursor + 1, shard.commitlog.version + 1
    return before < commits - commits % kind.every


def follow_up(shard: Shard, host: Host) -> tuple[str, ...]:
    """Step 7 of a commit: ``dispatch``, and a checkpoint where one is due. Returns warnings for the report: no error here
    undoes the commit, and the next command does what this one did not."""
    return (
        *_warning(
            shard,
            lambda: dispatch(shard, host, fresh=False),
            "the derived tables were not updated",
            "Run 'rmq dispatch': it updates them, or says what to do first.",
        ),
        *_warning(
            shard,
            lambda: [checkpoint_if_due(table) for table in (shard.commitlog, shard.consumequeue, shard.offsets)],
            "no checkpoint of the log was written",
            "The next commit tries again.",
        ),
    )


def _warning(shard: Shard, step: Callable[[], object], consequence: str, advice: str) -> tuple[str, ...]:
    try:
        step()
    except Exception as error:
        warning = f"shard {shard.name}: committed, but {consequence} ({type(error).__name__}: {error}). {advice}"
        return (cleaned(warning, secret_values(shard.root.storage_options)),)
    return ()


def _dispatch(shard: Shard, kind: Derived, host: Host) -> int:
    table = kind.table(shard)
    answer: Exception | None = None
    for _ in range(_TRIES):
        table.refresh_unless_fresh()
        if not _is_due(shard, table, kind):
            return 0
        tail = tail_of(shard, table, kind.claims)
        outdated = _outdated(table, kind, tail.replaced)
        files = staged(shard, kind, tail, host, kept=outdated.values())
        if not files and not outdated and _may_wait(shard, table, tail):
            return 0
        try:
            table.put(
                files,
                cursor_positions(shard),
                host=host,
                operation="DISPATCH",
                patience_ms=_PATIENCE_MS,
                removed=outdated.keys(),
            )
        except StaleAttempt as error:  # another process dispatched: the cursor says how far
            answer = error
            table.refresh()
            continue
        return len(tail.ctls)
    raise StoreUnusable(
        f"{table.path} could not be written in {_TRIES} tries (last answer: {answer}). The commits are safe: run 'rmq "
        "dispatch' when the store accepts writes again."
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows of a file of a derived table that are still right."""

    day: str
    rows: list[dict[str, Any]]


def _outdated(table: LakeTable, kind: Derived, replaced: frozenset[str]) -> dict[str, _Kept]:
    """The files of the table with rows that a compaction made wrong, by path, and their other rows."""
    if not replaced or "file" not in kind.layout.schema.names:
        return {}
    files = table.described().select(["path", "partition.store_day"]).to_pylist()
    named = table.read_each([file["path"] for file in files], ["file"])
    gone = pa.array(sorted(replaced), pa.string())
    outdated = {}
    for file, names in zip(files, named, strict=True):
        if pc.any(pc.is_in(names.column("file"), gone)).as_py():
            rows = table.read([file["path"]]).to_pylist()
            outdated[file["path"]] = _Kept(str(file["partition.store_day"]), current_rows(rows, replaced))
    return outdated


def staged(shard: Shard, kind: Derived, tail: Tail, host: Host, kept: Iterable[_Kept] = ()) -> list[StagedFile]:
    """The rows of some commits as files of the table, one for each day that has any. ``kept``: further rows. Raises
    StoreUnusable when they cannot be written."""
    table = kind.table(shard)
    by_day: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for rest in kept:
        by_day[rest.day].extend(rest.rows)
    for ctl in tail.ctls:
        by_day[day_of(ctl.store_timestamp)].extend(current_rows(kind.rows(ctl), tail.replaced))
    try:
        return [
            derived(shard.root, table.path, host.new_commit_id(), rows, kind.layout, day)
            for day, rows in sorted(by_day.items())
            if rows
        ]
    except (OSError, StoreUnusable) as error:
        raise StoreUnusable(
            f"cannot write to {shard.root.uri_of(table.path)}: {clause(error)}. The table is unchanged, and the commits "
            "are safe."
        ) from error
