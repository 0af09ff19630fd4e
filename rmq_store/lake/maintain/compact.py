"""Compaction of the commit log: the small files that each commit leaves become a few large ones, with the same rows.

Each joined file is a commit of its own, so a run that is killed has lost one file's work, and the next run goes on. The
commit removes the files that it replaces and names them, so that segments of ``consumequeue`` follow (``dispatch.py``). It
expects no position: windows, sends and imports go on beside it, and a second compaction of the same file is overtaken. The
replaced files stay in storage for those who read them now; ``vacuum.py`` deletes them later.

A message row gets what followed from its place, so it can move: its offset, id, times and due time. Its commit, part and row
of then stay as they are, since its commit's ctl row names them. Messages that retention has removed are left out
(``expired_rows.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import REPLACED, Action, Actor, Ctl, Produced, Proposal, StagedFile, canonical_json
from rmq_store.errors import BadData, DerivedTableDamaged, StaleAttempt
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.dispatch import dispatch, follow_up
from rmq_store.lake.maintain.checked_file import stage_checked
from rmq_store.lake.maintain.expired_rows import Expired, expired_rows, without_expired
from rmq_store.lake.maintain.placed_rows import PLACE, SegmentsByFile, placed_rows
from rmq_store.lake.table import tables
from rmq_store.lake.table.digest_name import named_digests
from rmq_store.lake.table.imports import files_of_newest
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile
from rmq_store.maintain.files_to_join import DEFAULT_LIMITS, Limits, SmallFile, files_to_join
from rmq_store.maintain.joined_segments import joined_segments
from rmq_store.utils.host import Host, uuid7_floor
from rmq_store.utils.progress import Progress

SETTLED_MS = 3_600_000
"""Files of younger commits are left alone: they are few, and running windows look for them."""

CTL_ROWS = 256
"""So many ctl rows are in a joined file. A commit is looked up in a whole file."""

_SCHEMAS: Mapping[str, pa.Schema] = {
    "msg": tables.MSG,
    "outcome": tables.OUTCOME,
    "key": tables.KEY,
    "ctl": tables.CTL,
    "archive": tables.MSG,
}
_ORDER: Mapping[str, list[str]] = {
    "outcome": ["group_name", "commit_id", "part", "rel"],
    "key": ["group_name", "commit_id", "part", "rel"],
    "ctl": ["request_id", "commit_id"],
    "archive": [*PLACE],
}
"""How the rows of a joined file are sorted. Those of ``msg`` are sorted by their place."""

_ID_CHARACTERS = 32
"""The name of a file begins with its commit's id."""


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """Who compacts, and why."""

    request_id: str
    actor: Actor
    reason: str = ""
    limits: Limits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What became of a shard's commit log."""

    shard: str
    commits: int = 0
    replaced_files: int = 0
    new_files: int = 0
    removed_rows: int = 0
    """Messages before the min offsets of their queues, which were left out."""
    archived_rows: int = 0
    """Those of them that are in the archive now."""
    overtaken: int = 0
    """Groups of files that another compaction replaced first."""
    warnings: tuple[str, ...] = ()


def compact(
    shard: Shard, request: CompactRequest, host: Host, *, dry_run: bool = False, progress: Progress | None = None
) -> CompactReport:
    """Join the small files of the shard's commit log. ``progress`` counts files that were replaced.

    Raises BadData and MissingFile when a file cannot be read, BadData when it was changed or no commit wrote it,
    DerivedTableDamaged when ``consumequeue`` does not name the place of a message, StoreUnusable when a file cannot be written
    or is read back with other rows, and the errors of ``commit``. What was committed before stays.
    """
    shard.commitlog.refresh()
    if not dry_run:
        dispatch(shard, host, every_commit=True)  # afterwards no derived table looks for the files that are replaced
    groups = _groups(shard, request.limits, host.now_ms())
    total = sum(len(group.files) for group in groups)
    report = CompactReport(shard=shard.name)
    if dry_run:
        new = sum(not group.expired for group in groups)
        return replace(report, replaced_files=total, new_files=new)
    segments = cache(partial(SegmentsByFile, shard.consumequeue))
    for number, group in enumerate(groups, 1):
        report = _joined(shard, request, group, (number, len(groups)), segments, host, report)
        if progress:
            progress(report.replaced_files, total)
    return report


# --- which files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of one kind and day that one commit replaces."""

    files: tuple[SmallFile, ...]
    expired: bool = False
    """Whether none of their rows stays."""


def _groups(shard: Shard, limits: Limits, now_ms: int) -> list[_Group]:
    """The files to be replaced. First those of which no row stays: they are not read."""
    expired = expired_rows(shard)
    by_kind: dict[str, list[SmallFile]] = defaultdict(list)
    gone: list[SmallFile] = []
    outdated: list[SmallFile] = []
    for file, rows in _settled_files(shard, now_ms):
        removed = expired.get(file.path, Expired())
        if removed.rows and removed.rows + rows.unplaced == file.rows and not (rows.copies or removed.archived):
            gone.append(file)
        elif removed.rows and 2 * removed.rows >= file.rows:
            outdated.append(file)
        else:
            by_kind[file.partition[0]].append(file)
    of_kind = {"ctl": replace(limits, target_rows=CTL_ROWS)}
    joins = [
        group for kind, files in sorted(by_kind.items()) for group in files_to_join(files, of_kind.get(kind, limits))
    ]
    # Of these no file is too large or too alone to be written again.
    any_size = replace(limits, least_files=1, target_rows=None)
    return [
        *(_Group(group, expired=True) for group in files_to_join(gone, replace(any_size, target_bytes=_ANY_BYTES))),
        *(_Group(group) for group in files_to_join(outdated, replace(any_size, leaves_large=False))),
        *map(_Group, joins),
    ]


_ANY_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the statistics of a file say of its rows."""

    unplaced: int
    """Rows of messages that are in no queue."""
    copies: bool
    """Whether it may have copies of failed messages."""


def _settled_files(shard: Shard, now_ms: int) -> Iterator[tuple[SmallFile, _Rows]]:
    """The live files by kind and day; key files also by group, since a window reads those of its group."""
    columns = ["path", "size_bytes", "num_records", "partition.kind", "partition.store_day"]
    columns += ["min.group_name", "max.group_name", "null_count.group_name", "null_count.rel"]
    settled = pc.field("max.commit_id") < uuid7_floor(now_ms - SETTLED_MS)
    kept = files_of_newest(shard)
    for row in shard.commitlog.described().filter(settled).select(columns).to_pylist():
        kind, groups = row["partition.kind"], (row["min.group_name"], row["max.group_name"])
        if kind in _SCHEMAS and row["path"] not in kept:
            group = [groups[0] if groups[0] == groups[1] else ""] if kind == "key" else []
            partition = (kind, str(row["partition.store_day"]), *group)
            file = SmallFile(row["path"], partition, row["size_bytes"], row["num_records"])
            yield file, _Rows(row["null_count.rel"] or 0, row["null_count.group_name"] != row["num_records"])


# --- one group of files ----------------------------------------------------------------------------------------------


def _joined(
    shard: Shard,
    request: CompactRequest,
    group: _Group,
    part: tuple[int, int],
    segments_by_file: Callable[[], SegmentsByFile],
    host: Host,
    report: CompactReport,
) -> CompactReport:
    """The report after the group was replaced, in one commit."""
    started_ms, commit_id = host.now_ms(), host.new_commit_id()
    paths = [file.path for file in group.files]
    kind = group.files[0].partition[0]
    try:
        shard.commitlog.check_live(paths)
        try:
            files, segments = ([], []) if group.expired else _staged(shard, group, commit_id, segments_by_file)
        except DerivedTableDamaged:
            # The segments may be newer than the files, or older: another compaction has replaced some of these.
            shard.commitlog.refresh()
            shard.commitlog.check_live(paths)
            raise
        number, of = part
        rows = sum(file.rows for file in group.files)
        removed_rows = rows - sum(file.rows for file in files if file.kind == kind)
        archived_rows = sum(file.rows for file in files if (kind, file.kind) == ("msg", "archive"))
        files = [replace(file, data_change=removed_rows > 0) for file in files]
        facts = {"kind": kind, "rows": rows, "removed_rows": removed_rows, "archived_rows": archived_rows}
        ctl = Ctl(
            commit_id,
            Action.COMPACT,
            request.actor,
            reason=request.reason,
            request_id=request.request_id,
            request_part=number,
            request_complete=number == of,
            parameters=canonical_json(facts | {REPLACED: paths}),
            produced=tuple(segments),
        )
        proposal = Proposal(ctl, expect={}, advance={}, files=tuple(files), removed=tuple(paths))
        commit(shard, proposal, host, started_ms=started_ms)
    except StaleAttempt:
        shard.commitlog.refresh()
        return replace(report, overtaken=report.overtaken + 1)
    return replace(
        report,
        commits=report.commits + 1,
        replaced_files=report.replaced_files + len(group.files),
        removed_rows=report.removed_rows + removed_rows,
        archived_rows=report.archived_rows + archived_rows,
        new_files=report.new_files + len(files),
        warnings=(*report.warnings, *follow_up(shard, host)),
    )


def _digests(shard: Shard, paths: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of files, as the derived table ``commits`` has them, or its beginning in the name of a file of ctl rows. So a
    file that was changed is not replaced by one that agrees with its commit. Files of an earlier version have none.

    Raises BadData for a file that no commit wrote, whose rows would then be those of a commit."""
    ids = sorted({_commit_of(path) for path in paths})
    files = shard.commits.files((pc.field("max.commit_id") >= ids[0]) & (pc.field("min.commit_id") <= ids[-1]))
    rows = shard.commits.read(files.column("path").to_pylist(), ["commit_id", "files"], pc.field("commit_id").isin(ids))
    recorded = {
        row["commit_id"]: {file["path"]: file["sha256"] for file in row["files"] or ()} for row in rows.to_pylist()
    }
    for path in paths:
        of_commit = recorded.get(_commit_of(path))
        # The record of a commit names all its files but its own, or, of an earlier version, none.
        if of_commit is None or (of_commit and path not in of_commit and not path.startswith("kind=ctl/")):
            raise BadData(
                f"{path} is in the log of {shard.commitlog.path}, and no commit wrote it: its rows are there twice, or another "
                "tool made them. Restore the shard from a backup; 'rmq audit' lists all such files"
            )
    digests = {path: recorded[_commit_of(path)].get(path) for path in paths}
    return named_digests(paths) | {path: digest for path, digest in digests.items() if digest}


def _commit_of(path: str) -> str:
    return path.rpartition("/")[2][:_ID_CHARACTERS]


def _staged(
    shard: Shard, group: _Group, commit_id: str, segments_by_file: Callable[[], SegmentsByFile]
) -> tuple[list[StagedFile], list[Produced]]:
    """The rows of the files, staged again in one file or some, and the segments of messages."""
    kind, day, *_ = group.files[0].partition
    paths, expected = [file.path for file in group.files], sum(file.rows for file in group.files)
    schema = _SCHEMAS[kind]
    read = shard.commitlog.read_each(paths, schema.names, _digests(shard, paths))
    tables_ = [rows.select(schema.names) for rows in read]
    if (stored := sum(rows.num_rows for rows in tables_)) != expected:
        raise BadData(
            f"{len(paths)} files of {shard.commitlog.path} hold {stored} rows, by the log they have {expected}. Nothing was "
            f"replaced; compare them with a backup: {', '.join(paths[:3])}, ..."
        )
    if kind == "msg":
        rows, placed = placed_rows(dict(zip(paths, tables_, strict=True)), segments_by_file())
        parted = without_expired(rows, placed, shard.positions())
        segments = joined_segments(parted.segments, "")
        runs = [segment.first_row for segment in segments]
        new = [
            NewFile(kind="msg", name=f"{commit_id}-00000", rows=parted.rows, store_day=day, runs=runs),
            NewFile(kind="outcome", name=f"{commit_id}-00001", rows=parted.outcomes, store_day=day),
            NewFile(kind="archive", name=f"{commit_id}-00002", rows=parted.archived, store_day=day),
        ]
        files = [stage_checked(shard.commitlog, file) for file in new if file.rows.num_rows]
        return files, [replace(segment, file=files[0].path) for segment in segments]
    rows = pa.concat_tables(tables_).sort_by([(name, "ascending") for name in _ORDER[kind]])
    if kind == "key":
        rows = rows.cast(pa.schema([column.with_nullable(False) for column in rows.schema]))
    most = CTL_ROWS if kind == "ctl" else max(rows.num_rows, 1)
    parts = [rows.slice(begin, most) for begin in range(0, rows.num_rows, most)]
    return [
        stage_checked(shard.commitlog, NewFile(kind=kind, name=f"{commit_id}-{part:05d}", rows=of_part, store_day=day))
        for part, of_part in enumerate(parts, 1)
    ], []
