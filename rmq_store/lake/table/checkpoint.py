"""Checkpoints of a Delta log, and the clean-up of the entries behind them.

The Delta library writes a checkpoint, of a log that it reads as this project does (``second_reader.py``). What may be deleted
is this project's own rule (``docs/decisions/0011-own-log.md``): a process trusts a view of the log for ``VIEW_TRUST_MS``, and
while it does, a name that it finds absent must mean that the log ends there. So an entry is deleted only behind a checkpoint
that is itself twice as old and can be read, and a checkpoint only if a newer one is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq

from rmq_store.commit.append import VIEW_TRUST_MS
from rmq_store.errors import BadData, LogDamaged, MissingFile, OtherFormat
from rmq_store.lake.table.delta_entry import Entry, entry_name, parse_entry, with_maps
from rmq_store.lake.table.delta_log import CHECKPOINT, ENTRY, LAST_CHECKPOINT, LOG_FOLDER, LogCleaned, numbers_of
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.parallel import LOG_REQUESTS, in_parallel
from rmq_store.lake.table.second_reader import check_files, second_reading

CHECKPOINT_EVERY = 100
"""A process that opens the table reads at most about as many entries."""
CHECKPOINT_EVERY_IN_S3 = 20
"""There an entry costs a request, also when several are read at once."""
LEAST_AGE_MS = 2 * VIEW_TRUST_MS


def entries_since_checkpoint(table: LakeTable) -> int:
    """How many entries of the log a process reads that opens the table."""
    return table.version - max(_hinted_checkpoint(table), 0)


def checkpoint_if_due(table: LakeTable) -> bool:
    """Write a checkpoint, and clean up, if the table has as many entries since the last one as it should at most. Raises
    OSError, LogDamaged and StoreUnusable; the table is as it was then."""
    view, most = table.log.view, CHECKPOINT_EVERY if table.root.is_local else CHECKPOINT_EVERY_IN_S3
    if view.version - view.known_checkpoint < most:
        return False
    view.known_checkpoint = _hinted_checkpoint(table)
    if view.version - view.known_checkpoint < most:  # another process was faster
        return False
    write_checkpoint(table)
    clean_up(table)
    return True


def write_checkpoint(table: LakeTable) -> None:
    """A checkpoint of the version that the table's handle has read. Raises OSError when it could not be written, LogDamaged
    when the Delta library cannot read the log, or has other files by it.

    The Delta library makes it, in a copy of what the log has since the checkpoint before: in S3 it would ask for each entry
    several times, one after the other. Where this version has a sound one, only a hint that names none, or an older one, is
    written.
    """
    root, version = table.root, table.version
    try:
        before, log = _log_of(table)
    except LogCleaned as error:
        raise OSError(f"no checkpoint of {table.path} was written: {error}") from error
    if before < version:
        reading = second_reading(log, root.uri_of(table.path))
        check_files(table, reading.files, log)
        root.replace(checkpoint_name(table, version), reading.checkpoint)
        _write_hint(table, reading.hint)
    elif _hinted_checkpoint(table) < version:
        content = log[_file_name(version)]
        _write_hint(table, {"version": version, "size": pq.read_metadata(BytesIO(content)).num_rows})
    table.log.view.known_checkpoint = version


def check_log(table: LakeTable) -> None:
    """As ``write_checkpoint`` of the version that the table's handle has read, but nothing is written. Raises LogDamaged and
    OSError as it, also where this version has a checkpoint, and LogCleaned when a clean-up came in between."""
    _, log = _log_of(table)
    check_files(table, second_reading(log, table.root.uri_of(table.path)).files, log)


def damaged_covered_entries(table: LakeTable, first: int = 0) -> dict[str, str]:
    """The damaged entries of the log that are not read because the checkpoint of the table's handle has what they said: by
    name, the damage in words. What is before a restart of a derived table is why it was restarted, and does not count.
    ``first``: the version from which on they are read."""
    names, _ = table.root.names_in(f"{table.path}/{LOG_FOLDER}", f"{first:020d}")
    versions = [version for version in numbers_of(ENTRY, names) if first <= version <= table.log.view.checkpoint]
    read = in_parallel(table.root, partial(_covered_entry, table), versions, LOG_REQUESTS)
    damage: dict[str, str] = {}
    for version, entry in zip(versions, read, strict=True):
        if isinstance(entry, str):
            damage[entry_name(version)] = entry
        elif entry is not None and entry.is_restart:
            damage.clear()
    return damage


def _covered_entry(table: LakeTable, version: int) -> Entry | str | None:
    """The entry, or its damage in words; None when a clean-up has deleted it."""
    name = f"{table.path}/{LOG_FOLDER}/{entry_name(version)}"
    where = table.root.uri_of(name)
    try:
        content, _ = table.root.look_at(name)
        return None if content is None else parse_entry(content, version, where)
    except MissingFile:
        return f"{where} is not a file"
    except LogDamaged as error:
        return error.facts
    except OtherFormat:  # a checkpoint that had it would not be read
        return f"{where} is damaged: it has an action that is not known"


def _log_of(table: LakeTable) -> tuple[int, dict[str, bytes]]:
    """The newest sound checkpoint up to the version that the table's handle has read, -1 for none, and by name its file and the
    entries after it, as other readers take them. Raises LogCleaned when one of these is gone."""
    names, _ = table.root.names_in(f"{table.path}/{LOG_FOLDER}")
    before, content = _newest_sound(table, [one for one in numbers_of(CHECKPOINT, names) if one <= table.version])
    log = {name: with_maps(entry) for name, entry in table.log.read_again(before + 1).items()}
    if content is not None:
        log[_file_name(before)] = content
    return before, log


def _newest_sound(table: LakeTable, checkpoints: Sequence[int]) -> tuple[int, bytes | None]:
    """The version and the file of the newest of these checkpoints, which ascend; (-1, None) without one. The Delta library
    would take what is damaged into the next checkpoint."""
    for checkpoint in reversed(checkpoints):
        with suppress(FileNotFoundError, BadData):
            return checkpoint, table.log.sound_checkpoint(checkpoint)
    return -1, None


def _hinted_checkpoint(table: LakeTable) -> int:
    """The version of the newest checkpoint, by the hint; -1 without one, and where the checkpoint is not there, for example in
    a log that was restored from a backup."""
    version = table.log.last_checkpoint()
    return version if version >= 0 and table.root.exists(checkpoint_name(table, version)) else -1


def _write_hint(table: LakeTable, hint: Mapping[str, Any]) -> None:
    """``hint``: a ``lastCheckpoint`` of Delta's protocol ("Last Checkpoint File"). ``size``: the actions of the checkpoint."""
    table.root.replace(f"{table.path}/{LOG_FOLDER}/{LAST_CHECKPOINT}", json.dumps(hint).encode())


def checkpoint_name(table: LakeTable, version: int) -> str:
    return f"{table.path}/{LOG_FOLDER}/{_file_name(version)}"


def _file_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def clean_up(table: LakeTable) -> int:
    """Delete the entries and checkpoints that no process needs. Returns how many."""
    root, folder = table.root, f"{table.path}/{LOG_FOLDER}"
    names, now_ms = root.names_in(folder)
    for checkpoint in reversed(numbers_of(CHECKPOINT, names)):
        with suppress(FileNotFoundError, BadData):
            age_ms = now_ms - root.modified_ms(checkpoint_name(table, checkpoint))
            if age_ms >= LEAST_AGE_MS:
                table.log.sound_checkpoint(checkpoint)
                break
    else:
        return 0
    numbers = ((name, CHECKPOINT.fullmatch(name) or ENTRY.fullmatch(name)) for name in names)
    # The checkpoint's own entry stays. Oldest first: a reader that comes in between finds no hole.
    behind = sorted((int(match[1]), name) for name, match in numbers if match and int(match[1]) < checkpoint)
    root.delete_all([f"{folder}/{name}" for _, name in behind])
    return len(behind)
