"""The shards of the store: each table is under one name, and is as it was made.

``store.json``, the entries in ``shards/`` and the first action of each table's log are written once. What they say decides
which rows a query reads, when a retry is due, and what other tools may do with a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from rmq_store.errors import RmqError
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.log_actions import log_actions
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.table.delta_entry import STATS_COLUMNS, may_write, protocol_action
from rmq_store.lake.table.delta_table import CONFIGURATION, LakeTable, schema_text
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.shard_entry import TABLE_ID, Entry, entry_path, new_entry, read_entry
from rmq_store.lake.table.store import LakeStore, read_store, unnamed_shards

_DELTA = "delta."
_PROPERTIES = frozenset({*CONFIGURATION, STATS_COLUMNS, "delta.checkpointInterval"})
"""The properties that tell an engine how to read and write a table; the last one is of stores of format 1. Any other name says
nothing to an engine, so a user or a catalogue may have added it."""


def shards(store: LakeStore) -> Iterator[Finding]:
    """Shards without an entry, two shards that are one, tables in the folder of another shard, and descriptions that were
    changed."""
    for name in unnamed_shards(store.root):
        yield Finding(
            shard=name, problem=Problem.SHARD_NOT_NAMED, detail=f"{entry_path(name)} is missing, the tables are there"
        )
    document = read_store(store.root)
    entries = {shard.name: read_entry(shard.root, shard.name) for shard in store.shards()}
    ids = {
        name: str(entry[TABLE_ID])
        for name, entry in entries.items()
        if not isinstance(entry, str) and TABLE_ID in entry
    }
    named = {id_: name for name, id_ in ids.items()}
    first_of: dict[str, str] = {}
    for shard in store.shards():
        yield from _entry(shard, entries[shard.name], document)
        for name in ("commitlog", *(kind.name for kind in KINDS)):
            try:
                table: LakeTable = getattr(shard, name)
            except (RmqError, OSError):
                continue  # the audit of its files says so
            differs = name == "commitlog" and ids.get(shard.name, table.id) != table.id
            yield from _settings(shard, name, table, ["its id"] if differs and table.id not in named else [])
            yield from log_actions(shard.name, name, table)
            if name == "commitlog":
                yield from _of_another(shard, named.get(table.id) if differs else None)
                first = first_of.setdefault(table.id, shard.name)
                if first != shard.name:
                    detail = f"its tables are those of shard {first}: one of the two folders is a copy"
                    yield Finding(shard=shard.name, problem=Problem.SHARD_TWICE, detail=detail)


def _entry(shard: Shard, entry: Entry | str, document: Mapping[str, Any]) -> Iterator[Finding]:
    """``document``: ``store.json``."""
    name = entry_path(shard.name)
    if isinstance(entry, str):
        wrong = [entry]
    else:
        expected = new_entry(shard.name, document, entry.get(TABLE_ID))  # the id is compared with the table
        levels = entry.get("delay_levels")
        if isinstance(levels, list) and levels:  # store.json may have newer versions than when the shard was made
            expected["delay_levels"] = expected["delay_levels"][: len(levels)]
        # The entry of an earlier version has the name only.
        wrong = [key for key in {"name", *entry} if entry.get(key) != expected.get(key)]
    if wrong:
        detail = f"{name}, beside store.json: {', '.join(sorted(wrong))}"
        yield Finding(shard=shard.name, problem=Problem.DESCRIPTION_DIFFERS, detail=detail)


def _of_another(shard: Shard, other: str | None) -> Iterator[Finding]:
    """``other``: another shard whose entry has the id of this one's commit log. Entries of earlier versions have none, but
    queues that were born here are named for their shard."""
    names = [name for name in shard.named_by_queues() if name != shard.name]
    facts = [f"its commit log is that of {entry_path(other)}"] if other else []
    facts += [f"it has queues that were born in shard {name}" for name in names]
    if facts:
        yield Finding(shard=shard.name, problem=Problem.SHARD_ELSEWHERE, detail="; ".join(facts))


# --- what the log says to other tools about a table ------------------------------------------------------------------


def _settings(shard: Shard, name: str, table: LakeTable, changed: Sequence[str]) -> Iterator[Finding]:
    """``changed``: what is known to differ."""
    view = table.log.view
    metadata = view.metadata or {}
    wrong = [*changed, *_wrong_of_protocol(view.protocol or {})]
    id_ = metadata.get("id")
    if not (id_ and isinstance(id_, str)) and not changed:
        wrong.append("its id")
    if not _is_parquet(metadata.get("format")):
        wrong.append("the format of its files")
    configuration = metadata.get("configuration") or {}
    wrong += [key for key, value in CONFIGURATION.items() if configuration.get(key) != value]
    wrong += sorted(key for key in configuration if key.lower().startswith(_DELTA) and key not in _PROPERTIES)
    if metadata.get("partitionColumns") != [*table.layout.partition_by]:
        wrong.append("its partition columns")
    if not {*table.layout.stats} <= {*str(configuration.get(STATS_COLUMNS)).split(",")}:
        wrong.append(STATS_COLUMNS)
    try:
        wrong += [f"column {column}" for column in _columns(table.layout.schema, metadata)]
    except (LookupError, TypeError, ValueError):  # what a damaged text happens to mean
        wrong.append("the fields of its columns")
    if wrong:
        yield Finding(
            shard=shard.name, problem=Problem.TABLE_PROPERTIES_DIFFER, file=name, detail=f"of {', '.join(wrong)}"
        )


def _wrong_of_protocol(protocol: Mapping[str, Any]) -> Iterator[str]:
    if not may_write(protocol):
        yield "the writer features of its protocol"
    expected = protocol_action()["protocol"]
    for name in ("minReaderVersion", "minWriterVersion", "readerFeatures"):
        if not _is_same(protocol.get(name), expected.get(name)):
            yield f"{name} of its protocol"


def _is_parquet(format_: object) -> bool:
    """Whether the ``format`` of a table's description is that of Delta's files, without options."""
    return isinstance(format_, dict) and format_.get("provider") == "parquet" and not format_.get("options")


def _columns(schema: pa.Schema, metadata: Mapping[str, Any]) -> list[str]:
    """The columns that have another type by the log. Another version of this project may have made the table, with more columns
    or fewer. Raises ValueError and others for a text that is no schema."""
    document = json.loads(metadata["schemaString"])
    if document["type"] != "struct":
        raise ValueError("the schema is no struct")
    expected, stored = _fields(_expected(schema)), _fields(document)
    if len({name.lower() for name in stored}) < len(document["fields"]):
        raise ValueError("two columns are one to engines that do not tell a from A")
    return [name for name, field in stored.items() if name in expected and not _is_same(field, expected[name])]


@cache
def _expected(schema: pa.Schema) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(schema_text(schema))
    return document


def _fields(struct: Mapping[str, Any]) -> dict[str, Any]:
    return {field["name"]: field for field in struct["fields"]}


def _is_same(stored: Any, expected: Any) -> bool:
    """Whether two types of Delta's JSON, or fields, are the same in what both have."""
    if not (isinstance(stored, dict) and isinstance(expected, dict)):
        return type(stored) is type(expected) and bool(stored == expected)
    return stored.keys() == expected.keys() and all(_is_same_value(key, stored[key], expected[key]) for key in expected)


def _is_same_value(key: str, stored: Any, expected: Any) -> bool:
    match key:
        case "metadata":  # what a user or a catalogue may have added, such as a comment
            return isinstance(stored, dict)
        case "fields":
            ours = _fields({key: expected})
            return all(_is_same(field, ours[name]) for name, field in _fields({key: stored}).items() if name in ours)
        case _:
            return _is_same(stored, expected)
