"""Deletes the files of a table that no version of it names: what runs staged and never committed, what a commit replaced.

In this order, so that no file is deleted that a commit names:

1. list the folder. A listing that fails ends the vacuum;
2. put an entry of its own into the log. A run that slept since it checked its files finds the name taken, or this entry
   behind it, and decides again (``delta_log.Content.conflicts``);
3. read what the log names, up to that entry;
4. delete what was listed in step 1 and is old enough (``rmq_store/maintain/orphans.py``).

It can be stopped anywhere; the next vacuum does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store.commit.ctl import Action, Actor, Ctl, Proposal, canonical_json
from rmq_store.errors import BadData, OtherFormat, StaleAttempt, StoreUnusable
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.table.delta_entry import VACUUM, Entry, entry_name, parse_entry
from rmq_store.lake.table.delta_log import CHECKPOINT, ENTRY, LOG_FOLDER
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.parallel import LOG_REQUESTS, in_parallel
from rmq_store.lake.table.shard import Shard
from rmq_store.maintain.orphans import DEFAULT_AGE_MS, NamedFiles, StoredFile, check_age, is_data_file, orphans
from rmq_store.utils.host import Host
from rmq_store.utils.progress import Progress

_DELETED_AT_ONCE = 1000
_TRIES = 8


class _CleanedUp(StoreUnusable):
    """A file of the log that was listed is gone: its clean-up came in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumRequest:
    """Who deletes what."""

    request_id: str
    actor: Actor
    reason: str = "maintenance"
    age_ms: int = DEFAULT_AGE_MS
    """Since a file was written, and since it was removed from the table."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What was deleted from a table's folder, or would be."""

    files: int
    """Data files in the folder before it, live or not."""
    size: int
    """Their bytes."""
    deleted: tuple[StoredFile, ...]


def vacuum(
    shard: Shard, table: LakeTable, request: VacuumRequest, host: Host, progress: Progress | None = None
) -> VacuumReport:
    """Delete the orphans of one table of the shard. Safe beside everything else, and any number of times. It begins again once
    when the log is cleaned up meanwhile. ``progress`` counts files.

    Raises WrongUse for an age that is not allowed; BadData, DerivedTableDamaged and StoreUnusable when what is stored or named
    cannot be read: nothing is deleted then; and the errors of ``commit``.
    """
    check_age(request.age_ms)
    try:
        return _vacuum(shard, table, request, host, progress)
    except _CleanedUp:  # by another maintenance, or while this process was stopped for hours
        return _vacuum(shard, table, request, host, progress)


def _vacuum(
    shard: Shard, table: LakeTable, request: VacuumRequest, host: Host, progress: Progress | None
) -> VacuumReport:
    stored = _listed(table)
    table.refresh()
    candidates = orphans(stored, named_files(shard, table, stored), table.log.view.known_ms, request.age_ms)
    if candidates and not request.dry_run:
        now_ms = _announced(shard, table, request, candidates, host)
        candidates = orphans(stored, named_files(shard, table, stored), now_ms, request.age_ms)
        _delete(table, candidates, progress)
    data = [file for file in stored if is_data_file(file.path)]
    return VacuumReport(len(data), sum(file.size for file in data), tuple(candidates))


def _listed(table: LakeTable) -> list[StoredFile]:
    begin = len(table.path) + 1
    return [StoredFile(name[begin:], size, at_ms) for name, size, at_ms in table.root.list_dated(table.path)]


def _announced(
    shard: Shard, table: LakeTable, request: VacuumRequest, candidates: Sequence[StoredFile], host: Host
) -> int:
    """Put the vacuum's entry into the log; the table's handle has read it then. Returns the store's time of it, UTC ms."""
    if table is shard.commitlog:
        parameters = {
            "older_than_ms": request.age_ms,
            "files": len(candidates),
            "bytes": sum(one.size for one in candidates),
        }
        ctl = Ctl(
            host.new_commit_id(),
            Action.VACUUM,
            request.actor,
            reason=request.reason,
            request_id=request.request_id,
            parameters=canonical_json(parameters),
        )
        commit(shard, Proposal(ctl, {}, {}), host, started_ms=host.now_ms(), quiet=True)
    else:
        _put(table, host)
    return table.root.modified_ms(f"{table.path}/{LOG_FOLDER}/{entry_name(table.version)}")


def _put(table: LakeTable, host: Host) -> None:
    for _ in range(_TRIES):
        try:
            return table.put([], {}, host=host, operation=VACUUM)
        except StaleAttempt:
            table.refresh()
    raise StoreUnusable(
        f"{table.path} could not be written in {_TRIES} tries: another vacuum runs. Nothing was deleted"
    )


def _delete(table: LakeTable, files: Sequence[StoredFile], progress: Progress | None) -> None:
    for start in range(0, len(files), _DELETED_AT_ONCE):
        some = files[start : start + _DELETED_AT_ONCE]
        live = [file.path for file in some if table.is_live(file.path)]
        assert not live, f"live files of {table.path} would be deleted: {live}"
        table.root.delete_all([f"{table.path}/{file.path}" for file in some])
        if progress:
            progress(start + len(some), len(files))


# --- what is named ---------------------------------------------------------------------------------------------------


def named_files(shard: Shard, table: LakeTable, stored: Sequence[StoredFile]) -> NamedFiles:
    """What the table's log names, and the segments of the consume queues: they name files of the commit log also where another
    tool took these out of it. ``stored``: the files in the table's folder; an entry that is not among them is a new one.

    Raises BadData and OtherFormat when something is damaged or not known, StoreUnusable when the log is cleaned up meanwhile.
    """
    kept = set(table.files().column("path").to_pylist())
    removed_ms: dict[str, int] = {}
    written_ms = {file.path: file.modified_ms for file in stored}
    names, _ = table.root.names_in(f"{table.path}/{LOG_FOLDER}")
    entries = [name for name in names if ENTRY.fullmatch(name)]
    read = dict(zip(entries, in_parallel(table.root, partial(_entry, table), entries, LOG_REQUESTS), strict=True))
    # A restart removed every file in the folder. What is before it may be damaged, and says nothing more.
    begin = max(
        (name[:20] for name, entry in read.items() if isinstance(entry, Entry) and entry.is_restart), default=""
    )
    names = [name for name in names if name >= begin]
    for name in filter(CHECKPOINT.fullmatch, names):  # the newest one last
        added, tombstones = _of_checkpoint(table, name)
        kept |= added
        removed_ms |= tombstones
    for name in filter(ENTRY.fullmatch, names):
        entry = read[name]
        if isinstance(entry, BadData):
            raise entry
        kept |= {file.path for file in entry.added}
        at_ms = written_ms.get(f"{LOG_FOLDER}/{name}")
        if at_ms is None:
            kept |= set(entry.removed)
        else:
            removed_ms |= {path: max(at_ms, removed_ms.get(path, 0)) for path in entry.removed}
    if table is shard.commitlog:
        shard.consumequeue.refresh()
        kept |= files_of_segments(shard.consumequeue)
    _refuse_foreign_paths(table, kept)
    return NamedFiles(kept, removed_ms)


def files_of_segments(consumequeue: LakeTable) -> set[str]:
    """The files of the commit log that the segments name, in the version that was read."""
    rows = consumequeue.read(consumequeue.files().column("path").to_pylist(), ["file"])
    return set(rows.column("file").unique().to_pylist())


def _entry(table: LakeTable, name: str) -> Entry | BadData:
    """The entry, or its damage."""
    path = f"{table.path}/{LOG_FOLDER}/{name}"
    where = table.root.uri_of(path)
    try:
        content, _ = table.root.look_at(path)
        if content is not None:
            return parse_entry(content, int(name[:20]), where)
    except BadData as damage:
        return damage
    raise _CleanedUp(f"{where} was deleted meanwhile by a clean-up: run it again")


def _of_checkpoint(table: LakeTable, name: str) -> tuple[set[str], dict[str, int]]:
    """The live files of a checkpoint, and the removed ones with the time of the removal, UTC ms."""
    name = f"{table.path}/{LOG_FOLDER}/{name}"
    where = table.root.uri_of(name)
    try:
        with pq.ParquetFile(BytesIO(table.root.read(name))) as file:
            actions = file.read(columns=["add.path", "remove.path", "remove.deletionTimestamp"])
        live = {unquote(add["path"]) for add in actions.column("add").drop_null().to_pylist()}
        removed = actions.column("remove").drop_null().to_pylist()
        return live, {unquote(one["path"]): int(one["deletionTimestamp"] or 0) for one in removed}
    except FileNotFoundError as error:
        raise _CleanedUp(f"{where} was deleted meanwhile by a clean-up: run it again") from error
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise BadData(f"{where} is damaged ({' '.join(str(error).split())}). Restore it from a backup.") from error


def _refuse_foreign_paths(table: LakeTable, paths: set[str]) -> None:
    """Raise OtherFormat for an absolute path: it may be a file of this folder under another name."""
    if foreign := [path for path in paths if path.startswith("/") or "://" in path]:
        raise OtherFormat(
            f"the table {table.path} names the file {foreign[0]} by its whole address, which another tool did. Nothing was "
            "deleted; restore the table from a backup"
        )
