"""Dispatch: RocketMQ's reput. Derives ``consumequeue``, ``offsets`` and ``commits`` from the commit log's ctl rows.

A compaction gives messages another place: its dispatch writes the files of ``consumequeue`` again that name the replaced
ones, in the commit that adds the new segments.

Each derived table has its own cursor (``cursor.py``), committed with its rows: the commit log version up to which the
table is complete. The commits after the cursor are found in one of three ways, tried in this order:

1. from the Delta log entries after the cursor;
2. where these have been cleaned away, by number: the commit log records how many commits it had at the cursor. As many
   of the newest ids as are missing are the right ones when all of them were decided at the cursor or later;
3. otherwise by comparing all commits with the rows of the table.

No clock is used, since the clocks of hosts may be wrong by days. Racing dispatchers are harmless: the cursor is a position,
and only one of them commits.

``commits`` has few files on purpose: with a file for every commit it would be as slow to read as the log itself. It is
updated every COMMITS_EVERY commits, and its readers take the rest from the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Action, Ctl, StagedFile, replaced_files
from rmq_store.errors import StaleAttempt, StoreUnusable
from rmq_store.lake.commit.cursor import (
    commits_at_cursor,
    ctl_files,
    cursor_of,
    cursor_positions,
    refuse_other_history,
    rows_in,
)
from rmq_store.lake.table import tables
from rmq_store.lake.table.checkpoint import checkpoint_if_due
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import ABOUT_CLAIMS, Shard
from rmq_store.lake.table.stage import derived
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host, day_of
from rmq_store.utils.redaction import cleaned, secret_values

COMMITS_EVERY = 256
"""About how many ctl rows of ``commits`` are in one file, and about that many are read from files of their own."""

_TRIES = 8
_PATIENCE_MS = 20_000
_QUIET_VERSIONS = 32
_QUIET_COMMITS = 256
"""Versions without rows for a table are not dispatched until there are so many, or that many commits in them, or until their
log entries are gone: an empty commit would only add a file."""


@dataclass(frozen=True, slots=True)
class Derived:
    """How one derived table is made."""

    name: str
    """Its folder in the shard's folder."""
    table: Callable[[Shard], LakeTable]
    rows: Callable[[Ctl], list[dict[str, Any]]]
    """The rows that a commit has in the table."""
    schema: pa.Schema
    stats: list[str]
    """The columns with statistics; together they name a row."""
    claims: bool = False
    """Whether commits about claims have rows in it."""
    every: int = 1
    """It is updated when the number of commits in the log has passed a multiple of this."""


def consumequeue_rows(ctl: Ctl) -> list[dict[str, Any]]:
    """The segments that a commit produced."""
    rows = []
    for segment in ctl.produced:
        row = tables.produced_to_row(segment)
        row["end_offset"] = row["base_offset"] + row.pop("count")
        rows.append(
            row | {"commit_id": ctl.commit_id, "action": str(ctl.action), "store_timestamp": ctl.store_timestamp}
        )
    return rows


def offsets_rows(ctl: Ctl) -> list[dict[str, Any]]:
    """The offsets that a commit moved."""
    common = {
        "read_version": ctl.read_version,
        "commit_id": ctl.commit_id,
        "store_timestamp": ctl.store_timestamp,
        "action": str(ctl.action),
        "window_id": ctl.window_id,
        "request_id": ctl.request_id,
        "actor": ctl.actor.name,
        "actor_source": ctl.actor.source,
        "reason": ctl.reason,
    }
    spans: list[tuple[str | None, MessageQueue, int | None, int, int]] = [
        (ctl.group, c.range.queue, c.range.begin, c.range.end, c.pass_) for c in ctl.consumed if ctl.moves_offsets
    ]
    spans += [(m.group, m.queue, m.from_offset, m.to_offset, m.pass_) for m in ctl.moved]
    return [
        common
        | {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
        | {"group_name": group, "from_offset": begin, "to_offset": end, "pass": pass_}
        for group, queue, begin, end, pass_ in spans
    ]


def commits_rows(ctl: Ctl) -> list[dict[str, Any]]:
    """The commit itself."""
    return [tables.ctl_to_row(ctl)]


QUEUES = Derived(
    "consumequeue",
    lambda shard: shard.consumequeue,
    consumequeue_rows,
    tables.CONSUMEQUEUE,
    tables.CONSUMEQUEUE_STATS,
)
MOVES = Derived("offsets", lambda shard: shard.offsets, offsets_rows, tables.OFFSETS, tables.OFFSETS_STATS)
COMMITS = Derived(
    "commits",
    lambda shard: shard.commits,
    commits_rows,
    tables.COMMITS,
    tables.COMMITS_STATS,
    claims=True,
    every=COMMITS_EVERY,
)

KINDS = (COMMITS, QUEUES, MOVES)


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
    return Tail(()) if cursor_of(table) >= shard.commitlog.version else _after_cursor(shard, table, claims)


def _after_cursor(shard: Shard, table: LakeTable, claims: bool) -> Tail:
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
    if recorded is None:
        return None
    missing, newest, rows = rows_in(files) - recorded, list[str](), 0
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


def behind(shard: Shard) -> int:
    """How many commits ``dispatch`` would take now, the sum over the tables."""
    shard.commitlog.refresh()
    kinds = [kind for kind in KINDS if _is_due(shard, kind.table(shard), kind)]
    return sum(len(undispatched(shard, kind.table(shard), claims=kind.claims).ctls) for kind in kinds)


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
    if shard.root.is_local:
        return sum(_dispatch(shard, kind, host) for kind in kinds)
    with ThreadPoolExecutor(len(kinds)) as pool:
        return sum(pool.map(lambda kind: _dispatch(shard, kind, host), kinds))


def _is_due(shard: Shard, table: LakeTable, kind: Derived) -> bool:
    """Whether the number of commits in the log has passed a multiple of ``kind.every`` since the table's cursor. Raises
    DerivedTableDamaged when the table was made from another history of the log."""
    refuse_other_history(shard, table)
    cursor, commits = cursor_of(table), shard.ctl_index.rows
    before = commits_at_cursor(table) if cursor >= 0 else 0
    if before is None:  # a store of version 0.1.0
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
        tail = _after_cursor(shard, table, kind.claims)
        outdated = _outdated(table, kind, tail.replaced)
        files = staged(shard, kind, tail, host, kept=outdated.values())
        is_short = shard.commitlog.version - cursor_of(table) < _QUIET_VERSIONS and len(tail.ctls) < _QUIET_COMMITS
        if tail.from_log and is_short and not files and not outdated:
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
    if not replaced or "file" not in kind.schema.names:
        return {}
    files = table.files().select(["path", "partition.store_day"]).to_pylist()
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
            derived(
                shard.root,
                table.path,
                host.new_commit_id(),
                rows,
                schema=kind.schema,
                stats=kind.stats,
                day=day,
            )
            for day, rows in sorted(by_day.items())
            if rows
        ]
    except (OSError, StoreUnusable) as error:
        raise StoreUnusable(
            f"cannot write to {shard.root.uri_of(table.path)}: {error}. The table is unchanged, and the commits are safe."
        ) from error
