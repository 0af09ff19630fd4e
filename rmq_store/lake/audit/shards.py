"""The shards of the store: each table is under one name, and is as it was made.

``store.json``, the entries in ``shards/`` and the first action of each table's log are written once. What they say decides
which rows a query reads, when a retry is due, and what other tools may do with a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rmq_store.errors import RmqError
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.table.delta_entry import may_write
from rmq_store.lake.table.delta_table import CONFIGURATION, LakeTable
from rmq_store.lake.table.shard import SHARDS, Shard
from rmq_store.lake.table.store import LakeStore, read_store, shard_entry, unnamed_shards


def shards(store: LakeStore) -> Iterator[Finding]:
    """Shards without an entry, two shards that are one, and descriptions that were changed."""
    for name in unnamed_shards(store.root):
        yield Finding(
            shard=name, problem=Problem.SHARD_NOT_NAMED, detail=f"{SHARDS}/{name}.json is missing, the tables are there"
        )
    document = read_store(store.root)
    first_of: dict[str, str] = {}
    for shard in store.shards():
        yield from _entry(shard, document)
        for name in ("commitlog", *(kind.name for kind in KINDS)):
            try:
                table: LakeTable = getattr(shard, name)
            except (RmqError, OSError):
                continue  # the audit of its files says so
            yield from _settings(shard, name, table)
            if name == "commitlog":
                other = first_of.setdefault(_id(table), shard.name)
                if other != shard.name:
                    detail = f"its tables are those of shard {other}: one of the two folders is a copy"
                    yield Finding(shard=shard.name, problem=Problem.SHARD_TWICE, detail=detail)


def _entry(shard: Shard, document: Mapping[str, Any]) -> Iterator[Finding]:
    """``document``: ``store.json``."""
    name = f"{SHARDS}/{shard.name}.json"
    try:
        entry: dict[str, Any] = json.loads(shard.root.read(name))
        expected = shard_entry(shard.name, document)
        levels = entry.get("delay_levels")
        if isinstance(levels, list):  # store.json may have newer versions than when the shard was made
            expected["delay_levels"] = expected["delay_levels"][: len(levels)]
        # The entry of an earlier version has the name only.
        wrong = [key for key in {"name", *entry} if entry.get(key) != expected.get(key)]
    except (ValueError, AttributeError, RecursionError) as error:
        wrong = [str(error)]
    if wrong:
        detail = f"{name}, beside store.json: {', '.join(sorted(wrong))}"
        yield Finding(shard=shard.name, problem=Problem.DESCRIPTION_DIFFERS, detail=detail)


def _settings(shard: Shard, name: str, table: LakeTable) -> Iterator[Finding]:
    """What the log says to other tools about the table."""
    view = table.log.view
    changed = [] if may_write(view.protocol) else ["the writer features of its protocol"]
    configuration = (view.metadata or {}).get("configuration") or {}
    changed += [key for key, value in CONFIGURATION.items() if configuration.get(key) != value]
    if changed:
        yield Finding(
            shard=shard.name, problem=Problem.TABLE_PROPERTIES_DIFFER, file=name, detail=f"of {', '.join(changed)}"
        )


def _id(table: LakeTable) -> str:
    return str((table.log.view.metadata or {}).get("id"))
