"""Copies a store, while it is in use, to another root. There it is a store as it was when the copy began.

A version of a table is its log up to there, and the data files that this part of the log names. Neither ever changes. So:

1. read the logs: of a shard the derived tables first, then the commit log, so that no derived table is ahead of it;
2. copy the data files that the target lacks;
3. copy the logs, of a shard the commit log first: the newest checkpoint, then the entries behind it, in order. The entry of
   the checkpoint is left out where it is damaged: nothing needs it;
4. copy the entries of the shards, and last ``store.json``.

At each moment the target has, of each table, a version with all its files: that of the last backup, or a later one. So a
backup can be stopped anywhere, and the next one does the rest. Nothing is deleted at the target.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from urllib.parse import unquote
from zlib import crc32

import pyarrow.parquet as pq

from rmq_store.errors import BadData, LogDamaged, MissingFile, StoreUnusable, WrongUse
from rmq_store.lake.commit.cursor import HALF, ctl_files, holds, refuse_other_history
from rmq_store.lake.maintain.vacuum import files_of_segments
from rmq_store.lake.table.checkpoint import checkpoint_name, damaged_covered_entries
from rmq_store.lake.table.delta_entry import entry_name, parse_entry
from rmq_store.lake.table.delta_log import CHECKPOINT, ENTRY, LOG_FOLDER, LogCleaned, numbers_of
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.shard_entry import SHARDS, entry_path, refuse_damaged_entry
from rmq_store.lake.table.store import STORE, LakeStore, read_store, unnamed_shards
from rmq_store.utils.progress import Progress

_FILES_AT_ONCE = 4
"""When one of the roots is in S3; so many are in memory then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """What a backup copied of a table, or would copy."""

    shard: str
    table: str
    version: int
    """Of the table, in the backup."""
    files: int
    """Data files that the backup has."""
    copied_files: int
    """Those of them that the target lacked."""
    copied_bytes: int
    copied_entries: int
    """Entries of the table's log that the target lacked."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    target: str
    store_id: str
    tables: tuple[TableCopy, ...]
    copied_descriptions: tuple[str, ...]
    """``store.json`` and the entries of shards that the target lacked, or had otherwise."""
    left_out: tuple[str, ...] = ()
    """Damaged entries of logs that are not copied, by name below the root: a checkpoint has what they said."""

    @property
    def is_new(self) -> bool:
        """Whether the target lacked anything."""
        return bool(self.copied_descriptions) or any(
            table.copied_files or table.copied_entries for table in self.tables
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """A version of a table: its part of the log, and the files that this part names."""

    shard: Shard
    table: LakeTable
    log: Mapping[str, bytes]
    """The contents by name below the root: the checkpoint, then its entry and those behind it, in order."""
    needed: Mapping[str, int]
    """The sizes in bytes by path below the table: of the live files, and of those that segments name."""
    earlier: Mapping[str, int]
    """The same of other files that were live between the checkpoint and this version. One that is gone is not needed."""
    left_out: tuple[str, ...]
    """As in ``BackupReport``."""


@dataclass(slots=True)
class _Copy:
    """What the target lacks of a version."""

    version: _Version
    files: Mapping[str, int] = field(default_factory=dict)
    """The sizes in bytes by path below the table."""
    log: Mapping[str, bytes] = field(default_factory=dict)

    def report(self) -> TableCopy:
        return TableCopy(
            shard=self.version.shard.name,
            table=self.version.table.path.rpartition("/")[2],
            version=self.version.table.version,
            files=len(self.version.needed) + len(self.version.earlier),
            copied_files=len(self.files),
            copied_bytes=sum(self.files.values()),
            copied_entries=sum(_number_of(name) >= 0 for name in self.log),
        )


def backup(store: LakeStore, target: Root, *, dry_run: bool = False, progress: Progress | None = None) -> BackupReport:
    """Copy the store to ``target``, which is empty or has an earlier backup of it. Nothing is written to the store.
    ``progress`` counts bytes.

    Raises WrongUse when the target is something else, has commits of its own or lies in the store; BadData, MissingFile,
    DescriptionDamaged and DerivedTableDamaged when the store is damaged, and StoreUnusable when one of the roots does not
    answer. An earlier backup at the target can still be used then, unless it lacks a shard whose tables are only copied in
    part.
    """
    _check_apart(store.root, target)
    names = store.shard_names()
    if lost := unnamed_shards(store.root):
        raise BadData(
            f"{', '.join(lost)} in {store.root.location} has the tables of a shard, and no file in {SHARDS}/ names it: the "
            f"backup would lack it. Restore {SHARDS}/NAME.json from an earlier backup, or move the folder out of the store"
        )
    for name in names:
        refuse_damaged_entry(store.root, name)
    stored = dict(target.list())
    _check_target(store, target, stored, names)
    versions = [version for name in names for version in _versions(Shard(store.root, name, store.store_id))]
    for version in versions:
        _check_history(version, target, stored)
    copies = [_lacking(version, stored) for version in versions]
    described = _lacking_descriptions(store.root, target, stored, names)
    if not dry_run:
        target.make_private()
        _copy_files(copies, target, progress)
        for copy in copies:
            _copy_log(copy, target)
        for name, content in described.items():
            target.replace(name, content)
    left_out = tuple(name for version in versions for name in version.left_out)
    tables = tuple(copy.report() for copy in copies)
    return BackupReport(target.location, store.store_id, tables, tuple(described), left_out)


def _lacking_descriptions(
    source: Root, target: Root, stored: Mapping[str, int], names: Sequence[str]
) -> dict[str, bytes]:
    """The contents by name of the entries of shards, and last of ``store.json``, that the target lacks or has otherwise."""
    contents = {name: source.read(name) for name in [*(entry_path(name) for name in names), STORE]}
    return {name: content for name, content in contents.items() if name not in stored or target.read(name) != content}


# --- the target ------------------------------------------------------------------------------------------------------


def _check_apart(source: Root, target: Root) -> None:
    one, other = f"{_place(source)}/", f"{_place(target)}/"
    if one.startswith(other) or other.startswith(one):
        raise WrongUse(
            f"{target.location} cannot have a backup of {source.location}: choose a target outside of the store"
        )


def _place(root: Root) -> str:
    """Where a root is when links are followed, also where its end is not there yet."""
    return os.path.realpath(root.location) if root.is_local else root.location


def _check_target(store: LakeStore, target: Root, stored: Mapping[str, int], shards: Sequence[str]) -> None:
    """``stored``: the sizes of the files at the target, by name."""
    if STORE in stored:
        store_id = read_store(target)["store_id"]
        if store_id != store.store_id:
            raise WrongUse(
                f"{target.location} has another store ({store_id}) than {store.root.location} ({store.store_id}): choose "
                "another target"
            )
        return
    # A first backup that was stopped has left folders of shards, and maybe their entries.
    entries = {entry_path(shard) for shard in shards}
    others = {name if name.startswith(f"{SHARDS}/") else name.partition("/")[0] for name in {*stored} - entries}
    if foreign := others - {*shards}:
        raise WrongUse(
            f"{target.location} is not empty and has no backup; it has {min(foreign)}: choose an empty target"
        )


def _check_history(version: _Version, target: Root, stored: Mapping[str, int]) -> None:
    """Raise WrongUse when the table at the target is not an earlier version of this one."""
    table = version.table
    folder = f"{table.path}/{LOG_FOLDER}/"
    names = [name.removeprefix(folder) for name in stored if name.startswith(folder)]
    newest = max([*numbers_of(ENTRY, names), *numbers_of(CHECKPOINT, names)], default=-1)
    if newest < 0:
        return
    name, view = f"{folder}{entry_name(newest)}", table.log.view
    if newest > view.checkpoint:
        is_same = name in stored and crc32(target.read(name)) == view.checksums.get(newest)
    elif table is version.shard.commitlog:
        # The entry may be cleaned up, and its name filled again, but its commits are still there.
        is_same = all(holds(version.shard, commit_id[:HALF]) for commit_id in _newest_commits(version, target, newest))
    else:  # a reader of the copy begins at this checkpoint, or at a later one, which the copy gets
        is_same = all(target.read(one) == content for one, content in version.log.items() if one in stored)
    if is_same:
        return
    advice, rebuilt = "Choose another target", ""
    if table is not version.shard.commitlog:
        rebuilt = "the table was made again since ('rmq dispatch --rebuild'), "
        advice += f", or remove {target.uri_of(table.path)} and run this again: the table is then copied as a whole"
    raise WrongUse(
        f"{target.uri_of(name)} is not an entry of {table.root.uri_of(table.path)}: {rebuilt}something has written to the "
        f"backup, or the store was replaced by an older copy since. {advice}"
    )


def _newest_commits(version: _Version, target: Root, newest: int) -> Iterable[str]:
    """The commits in the newest entry of the commit log at the target. Where this was left out of the backup, or is damaged,
    one for each file of records that the checkpoint of that version has."""
    name = f"{version.table.path}/{LOG_FOLDER}/{entry_name(newest)}"
    try:
        return parse_entry(target.read(name), newest, target.uri_of(name)).commit_ids
    except (FileNotFoundError, LogDamaged):
        theirs = Shard(target, version.shard.name).commitlog
        if theirs.log.view.checkpoint != newest:
            raise
    ids = ctl_files(theirs).column("min.commit_id").to_pylist()
    known = {*ctl_files(version.table).column("min.commit_id").to_pylist()}
    return [commit_id for commit_id in ids if commit_id and commit_id not in known]


def _lacking(version: _Version, stored: Mapping[str, int]) -> _Copy:
    path, files = version.table.path, {**version.earlier, **version.needed}
    return _Copy(
        version,
        files={file: size for file, size in files.items() if stored.get(f"{path}/{file}") != size},
        log={name: content for name, content in version.log.items() if name not in stored},
    )


# --- the store -------------------------------------------------------------------------------------------------------


def _versions(shard: Shard) -> list[_Version]:
    """Of the tables of a shard, the commit log first."""
    derived = [shard.consumequeue, shard.offsets, shard.commits]
    segments = files_of_segments(shard.consumequeue)
    commitlog = shard.commitlog  # opened behind the derived tables
    for table in derived:
        refuse_other_history(shard, table)
    return [_version(shard, commitlog, segments), *(_version(shard, table) for table in derived)]


def _version(shard: Shard, table: LakeTable, segments: frozenset[str] | set[str] = frozenset()) -> _Version:
    """The version that the table's handle has read. ``segments``: files that are needed, live or not."""
    view, root = table.log.view, table.root
    log = dict[str, bytes]()
    left_out: tuple[str, ...] = ()
    earlier = {file.path: file.size for file in view.files.recent}
    live = table.files()
    needed = dict(zip(live.column("path").to_pylist(), live.column("size_bytes").to_pylist(), strict=True))
    folder, checkpoint = f"{table.path}/{LOG_FOLDER}", checkpoint_name(table, view.checkpoint)
    try:
        if view.checkpoint >= 0:
            name = f"{folder}/{entry_name(view.checkpoint)}"
            left_out = tuple(f"{folder}/{one}" for one in damaged_covered_entries(table, view.checkpoint))
            own, _ = (None, 0) if name in left_out else root.look_at(name)  # a clean-up deletes the checkpoint first
            log[checkpoint] = root.read(checkpoint)
            earlier |= _files_of(log[checkpoint])
            if own is not None:
                log[name] = own
        log |= {f"{folder}/{name}": content for name, content in table.log.read_again(view.checkpoint + 1).items()}
    except FileNotFoundError as error:
        raise StoreUnusable(f"{root.uri_of(checkpoint)} was deleted meanwhile by a clean-up: run it again") from error
    except LogCleaned as error:
        raise StoreUnusable(f"{error}: run it again") from error
    needed |= {path: _size(table, path) for path in sorted(segments - needed.keys())}
    return _Version(
        shard=shard,
        table=table,
        log=log,
        needed=needed,
        earlier={path: size for path, size in earlier.items() if path not in needed},
        left_out=left_out,
    )


def _size(table: LakeTable, path: str) -> int:
    try:
        return table.root.size(f"{table.path}/{path}")
    except FileNotFoundError as error:
        raise _missing(table, path) from error


def _missing(table: LakeTable, path: str) -> MissingFile:
    return MissingFile(
        f"{table.root.uri_of(table.path)}/{path} is missing, and the store names it. Restore it from an earlier backup, then "
        "run this one again"
    )


def _files_of(checkpoint: bytes) -> dict[str, int]:
    """The sizes in bytes of the files that were live at a checkpoint, by path."""
    with pq.ParquetFile(BytesIO(checkpoint)) as file:
        adds = file.read(columns=["add.path", "add.size"]).column("add").drop_null().to_pylist()
    return {unquote(add["path"]): int(add["size"]) for add in adds}


def _number_of(name: str) -> int:
    """Of a log entry, by its name; -1 for another file."""
    match = ENTRY.fullmatch(name.rpartition("/")[2])
    return int(match[1]) if match else -1


# --- copying ---------------------------------------------------------------------------------------------------------


def _copy_files(copies: Sequence[_Copy], target: Root, progress: Progress | None) -> None:
    files = [(copy.version, path, size) for copy in copies for path, size in copy.files.items()]
    total, count = sum(size for *_, size in files), 0

    def copy_one(file: tuple[_Version, str, int]) -> int:
        version, path, size = file
        _copy_file(version, path, size, target)
        return size

    remote = next((copy.version.table.root for copy in copies if not copy.version.table.root.is_local), target)
    for size in in_parallel(remote, copy_one, files, _FILES_AT_ONCE):
        count += size
        if progress:
            progress(count, total)


def _copy_file(version: _Version, path: str, size: int, target: Root) -> None:
    table, name = version.table, f"{version.table.path}/{path}"
    try:
        content = table.root.read(name)
    except FileNotFoundError as error:
        if path not in version.needed:
            return
        raise _missing(table, path) from error
    if len(content) != size:
        raise BadData(
            f"{table.root.uri_of(name)} is damaged: it has {len(content)} bytes, not {size}. Restore it from an earlier "
            "backup, then run this one again"
        )
    target.replace(name, content)


def _copy_log(copy: _Copy, target: Root) -> None:
    for name, content in copy.log.items():
        if not target.create_exclusively(name, content) and _number_of(name) >= 0 and target.read(name) != content:
            raise StoreUnusable(f"{target.uri_of(name)} was written by something else meanwhile: choose another target")
