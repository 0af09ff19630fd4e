"""``rmq upgrade``: brings a store that an earlier version of rmq wrote to the format of this one.

Format 1 was written by the Delta library. Format 2 has the same tables and files, and a log that is written by
``lake/table/delta_log.py`` only (``docs/decisions/0011-own-log.md``): each table gets an entry with this project's writer
feature, which an earlier version and other tools refuse, settings under which nothing else cleans its log up, and the
columns that were added since. Old files lack these; their rows have nulls there. A table of format 2 with other properties,
as a version between the releases wrote them, gets those of this one.
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
from rmq_store.lake.table.delta_entry import entry_bytes, may_write, protocol_action
from rmq_store.lake.table.delta_log import Content
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
    """The tables that got the new format or its properties, ``<shard>/<table>``."""


def upgrade(root: Root, host: Host, *, dry_run: bool = False) -> UpgradeReport:
    """Bring the store to FORMAT_VERSION. Safe to run beside everything else, and again after an error: running windows of the
    earlier version cannot commit after it.

    Raises StoreUnusable when there is no store, its format is newer, a commit log is gone, or it cannot be written.
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
    """Whether the table has the format and the properties of this version."""
    configuration = (table.log.view.metadata or {}).get("configuration") or {}
    return may_write(table.log.view.protocol) and configuration.items() >= CONFIGURATION.items()


def _upgrade(table: LakeTable, host: Host) -> None:
    for _ in range(_TRIES):
        table.refresh()
        if _is_current(table):
            return
        metadata = table.log.view.metadata or {}
        configuration = {**metadata.get("configuration", {}), **CONFIGURATION}
        changed = {"configuration": configuration, "schemaString": schema_text(table.layout.schema)}
        first = [protocol_action(), {"metaData": {**metadata, **changed}}]
        text = entry_bytes(operation="UPGRADE", now_ms=host.now_ms(), first=first)
        if table.log.append(Content(text, ()), host, deadline_ms=host.now_ms() + _PATIENCE_MS) is Verdict.COMMITTED:
            return
    raise _busy(table)


def _busy(table: LakeTable) -> RmqError:
    return StoreUnusable(
        f"{table.path} could not be upgraded in {_TRIES} tries, because other processes commit to it. Stop them, then run 'rmq "
        "upgrade' again"
    )
