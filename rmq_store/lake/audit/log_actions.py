"""The values in the entries of a table's log are of the types that Delta's protocol says ("Actions").

``rmq`` reads few of them. A wrong one among the others shows only where the Delta library reads the log: other engines cannot
read the table, and no checkpoint can be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.table.delta_log import LOG_FOLDER, LogCleaned
from rmq_store.lake.table.delta_table import LakeTable

Is: TypeAlias = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_long(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    """A map of texts, of which each may be null."""
    return isinstance(value, dict) and all(isinstance(one, str | None) for one in value.values())


_FILE: Mapping[str, Is] = {
    "path": _is_text,
    "partitionValues": _are_texts,
    "size": _is_long,
    "dataChange": _is_boolean,
    "stats": _is_text,
    "tags": _are_texts,
    "baseRowId": _is_long,
    "defaultRowCommitVersion": _is_long,
}
_TYPES: Mapping[str, Mapping[str, Is]] = {
    "add": {**_FILE, "modificationTime": _is_long, "clusteringProvider": _is_text},
    "remove": {**_FILE, "deletionTimestamp": _is_long, "extendedFileMetadata": _is_boolean},
    "txn": {"appId": _is_text, "version": _is_long, "lastUpdated": _is_long},
    "metaData": {"name": _is_text, "description": _is_text, "createdTime": _is_long, "configuration": _are_texts},
}
"""By action and value. ``shards.py`` compares the others of ``metaData``, and ``protocol``, with what they must be."""
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange"),
    "remove": ("path", "dataChange"),
    "txn": ("appId", "version"),
    "metaData": (),
}
"""Any other value may be null or absent."""


def log_actions(shard: str, name: str, table: LakeTable) -> Iterator[Finding]:
    """The entries of a table's log with wrong values. ``name``: of the table. Only those behind the checkpoint are read: before
    it the Delta library has read them."""
    try:
        entries = table.log.read_again(table.log.view.checkpoint + 1)
    except LogCleaned:  # a newer checkpoint has them
        return
    for entry, content in entries.items():
        wrong = {fact for line in content.decode().split("\n") if line.strip() for fact in _wrong(json.loads(line))}
        if wrong:
            file = f"{name}/{LOG_FOLDER}/{entry}"
            detail = f"of {', '.join(sorted(wrong))}"
            yield Finding(shard=shard, problem=Problem.LOG_ENTRY_NOT_VALID, file=file, detail=detail)


def _wrong(action: Mapping[str, Any]) -> Iterator[str]:
    ((kind, values),) = action.items()
    for name, is_valid in _TYPES.get(kind, {}).items():
        value = values.get(name)
        if name in _REQUIRED[kind] if value is None else not is_valid(value):
            yield f"{kind}.{name}"
