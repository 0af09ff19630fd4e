"""Checkpoints of a Delta log, and the clean-up of the entries behind them.

The Delta library writes a checkpoint. What may be deleted is this project's own rule (``docs/decisions/0011-own-log.md``): a
process trusts a view of the log for ``VIEW_TRUST_MS``, and while it does, a name that it finds absent must mean that the log
ends there. So an entry is deleted only behind a checkpoint that is itself twice as old and can be read, and a checkpoint only
if a newer one is.
"""

from __future__ import annotations

from contextlib import suppress

from rmq_store.commit.append import VIEW_TRUST_MS, is_young
from rmq_store.errors import BadData
from rmq_store.lake.table.delta_log import CHECKPOINT, ENTRY, LAST_CHECKPOINT, LOG_FOLDER
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.request_counter import note_uncounted

CHECKPOINT_EVERY = 100
"""A process that opens the table reads at most about as many entries."""
CHECKPOINT_EVERY_IN_S3 = 20
"""There an entry costs a request, also when several are read at once."""
LEAST_AGE_MS = 2 * VIEW_TRUST_MS


def checkpoint_if_due(table: LakeTable) -> bool:
    """Write a checkpoint, and clean up, if the table has as many entries since the last one as it should at most. Raises
    OSError and StoreUnusable; the table is as it was then."""
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
    """A checkpoint of the newest version. Raises OSError when it could not be written."""
    from deltalake import DeltaTable  # 60 ms, needed once in CHECKPOINT_EVERY commits
    from deltalake.exceptions import DeltaError

    root, (_, began_ms) = table.root, table.root.look_at(f"{table.path}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
    if not root.is_local:
        note_uncounted("a checkpoint, which the Delta library writes")
    try:
        handle = DeltaTable(root.uri_of(table.path), storage_options=root.storage_options or None)
        handle.create_checkpoint()
    except DeltaError as error:
        raise OSError(f"no checkpoint of {table.path} was written: {error}") from error
    version = handle.version()
    _, ended_ms = root.look_at(f"{table.path}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
    if not is_young(began_ms, ended_ms):
        # The library may have slept between its list and its reads, and have read a name that was filled again.
        root.delete(f"{table.path}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
        root.delete(checkpoint_name(table, version))
        raise OSError(f"the checkpoint of {table.path} took too long to be trusted")
    table.log.view.known_checkpoint = version


def _hinted_checkpoint(table: LakeTable) -> int:
    """The version of the newest checkpoint, by the hint; -1 without one. A hint at a checkpoint that is not there, for example
    of a log that was restored from a backup, is deleted: the Delta library does not open a table that has one."""
    version = table.log.last_checkpoint()
    if version >= 0 and not table.root.exists(checkpoint_name(table, version)):
        table.root.delete(f"{table.path}/{LOG_FOLDER}/{LAST_CHECKPOINT}")
        return -1
    return version


def checkpoint_name(table: LakeTable, version: int) -> str:
    return f"{table.path}/{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def clean_up(table: LakeTable) -> int:
    """Delete the entries and checkpoints that no process needs. Returns how many."""
    root, folder = table.root, f"{table.path}/{LOG_FOLDER}"
    names, now_ms = root.names_in(folder)
    checkpoints = [int(match[1]) for name in names if (match := CHECKPOINT.fullmatch(name))]
    for checkpoint in sorted(checkpoints, reverse=True):
        with suppress(FileNotFoundError, BadData):
            age_ms = now_ms - root.modified_ms(checkpoint_name(table, checkpoint))
            if age_ms >= LEAST_AGE_MS and table.log.can_read_checkpoint(checkpoint):
                break
    else:
        return 0
    numbers = ((name, CHECKPOINT.fullmatch(name) or ENTRY.fullmatch(name)) for name in names)
    # The checkpoint's own entry stays. Oldest first: a reader that comes in between finds no hole.
    behind = sorted((int(match[1]), name) for name, match in numbers if match and int(match[1]) < checkpoint)
    root.delete_all([f"{folder}/{name}" for _, name in behind])
    return len(behind)
