"""``rmq upgrade``: brings a store that an earlier version of rmq wrote to the format of this one.

Format 1 was written by the Delta library. Format 2 has the same tables and files, and a log that is written by
``lake/table/delta_log.py`` only (``docs/decisions/0011-own-log.md``): each table gets an entry with this project's writer
feature, which an earlier version and other tools refuse, settings under which nothing else cleans its log up, and the
columns that were added since. Old files lack these; their rows have nulls there. A table of format 2 with other properties,
as a version between the releases wrote them, gets those of this one; that version can still write. A table whose log has a
description that only rmq can read, as such a version wrote it too, gets this again, and a checkpoint from which other readers
begin: the Delta library, when it writes one, refuses the entry also where a later one corrects it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from rmq_store.commit.append import Verdict
from rmq_store.commit.ctl import FORMAT_VERSION
from rmq_store.errors import DerivedTableDamaged, RmqError, StoreUnusable
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.lake.table.delta_entry import entry_bytes, has_list_for_map, may_write, protocol_action
from rmq_store.lake.table.delta_log import Content, LogCleaned
from rmq_store.lake.table.delta_table import CONFIGURATION, LakeTable, schema_text
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import STORE, LakeStore, read_store
from rmq_store.utils.host import Host

_TRIES = 20
_PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """What was done to a store, or would be."""

    from_format: int
    to_format: int
    tables: tuple[str, ...]
    """The tables that got the new format, its properties or a description that all can read, ``<shard>/<table>``."""


def upgrade(root: Root, host: Host, *, dry_run: bool = False) -> UpgradeReport:
    """Bring the store to FORMAT_VERSION. Safe to run beside everything else, and again after an error: running windows of the
    earlier version cannot commit after it.

    Raises StoreUnusable when there is no store, its format is newer, a commit log is gone, or it cannot be written, and
    LogDamaged when the Delta library cannot read a log for another reason than that which is repaired.
    """
    document = read_store(root)
    every = _tables(LakeStore.of(root, document), dry_run=dry_run)
    tables = [table for table in every if not _is_current(table)]
    if not dry_run:
        for table in tables:
            _upgrade(table, host)
        if document["format_version"] != FORMAT_VERSION:
            # Last: as long as it says the old format, an interrupted upgrade is run again.
            root.replace(STORE, json.dumps({**document, "format_version": FORMAT_VERSION}, indent=2).encode())
    return UpgradeReport(document["format_version"], FORMAT_VERSION, tuple(table.path for table in tables))


def _tables(store: LakeStore, *, dry_run: bool) -> Iterator[LakeTable]:
    """The tables of the store. A derived one that is missing is made, a commit log is not: it would be an empty one."""
    for shard in store.shards():
        yield shard.commitlog
        if not dry_run:
            Shard.create(shard.root, shard.name)
        for kind in KINDS:
            with suppress(DerivedTableDamaged) if dry_run else nullcontext():
                yield kind.table(shard)


def _is_current(table: LakeTable) -> bool:
    """Whether the table has the format and the properties of this version, and others can read them."""
    return _has_properties(table) and not _is_only_for_rmq(table)


def _has_properties(table: LakeTable) -> bool:
    configuration = (table.log.view.metadata or {}).get("configuration") or {}
    return may_write(table.log.view.protocol) and configuration.items() >= CONFIGURATION.items()


def _is_only_for_rmq(table: LakeTable) -> bool:
    """Whether an entry behind the checkpoint has a description that other readers refuse."""
    try:
        return any(map(has_list_for_map, table.log.read_again(table.log.view.checkpoint + 1).values()))
    except LogCleaned:  # behind a newer checkpoint, from which they read
        return False


def _upgrade(table: LakeTable, host: Host) -> None:
    for _ in range(_TRIES):
        table.refresh()
        needs_checkpoint = _is_only_for_rmq(table)
        if _has_properties(table) and not needs_checkpoint:
            return
        metadata = table.log.view.metadata or {}
        configuration = {**metadata.get("configuration", {}), **CONFIGURATION}
        changed = {"configuration": configuration, "schemaString": schema_text(table.layout.schema)}
        first = [protocol_action(), {"metaData": {**metadata, **changed}}]
        text = entry_bytes(operation="UPGRADE", now_ms=host.now_ms(), first=first)
        if table.log.append(Content(text, ()), host, deadline_ms=host.now_ms() + _PATIENCE_MS) is Verdict.COMMITTED:
            if needs_checkpoint:
                _write_checkpoint(table)
            return
    raise _busy(table)


def _write_checkpoint(table: LakeTable) -> None:
    try:
        write_checkpoint(table)
    except OSError as error:
        raise StoreUnusable(
            f"{table.path} was corrected, but has no checkpoint from which other tools can read it ({error}). Run 'rmq "
            "upgrade' again"
        ) from error


def _busy(table: LakeTable) -> RmqError:
    return StoreUnusable(
        f"{table.path} could not be upgraded in {_TRIES} tries, because other processes commit to it. Stop them, then run 'rmq "
        "upgrade' again"
    )
