"""The entries of a table's log are as Delta's protocol says ("Actions"), and have nothing that readers understand differently.

``rmq`` reads few values of them. A wrong one among the others shows only where the Delta library reads the log: other engines
cannot read the table, or read other files, and no checkpoint can be written. What else they may read differently,
``second_reader.py`` finds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.table.checkpoint import damaged_covered_entries
from rmq_store.lake.table.delta_entry import DELETION_VECTOR, encoded
from rmq_store.lake.table.delta_log import LOG_FOLDER, LogCleaned
from rmq_store.lake.table.delta_table import LakeTable

Is: TypeAlias = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_long(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_encoded(value: Any) -> bool:
    """Whether it is a path as this project writes it: readers that compare texts take another encoding for another file."""
    return isinstance(value, str) and encoded(unquote(value)) == value


def _is_absent(value: Any) -> bool:
    return value is None


def _are_texts(value: Any) -> bool:
    """A map of texts, of which each may be null."""
    return isinstance(value, dict) and all(isinstance(one, str | None) for one in value.values())


def _are_values(value: Any) -> bool:
    """A map of texts, of which none may be null."""
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _is_format(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("provider")) and _are_values(value.get("options"))


_FILE: Mapping[str, Is] = {
    "path": _is_encoded,
    "partitionValues": _are_texts,
    "size": _is_long,
    "dataChange": _is_boolean,
    "stats": _is_text,
    DELETION_VECTOR: _is_absent,
    "tags": _are_texts,
    "baseRowId": _is_long,
    "defaultRowCommitVersion": _is_long,
}
_TYPES: Mapping[str, Mapping[str, Is]] = {
    "add": {**_FILE, "modificationTime": _is_long, "clusteringProvider": _is_text},
    "remove": {**_FILE, "deletionTimestamp": _is_long, "extendedFileMetadata": _is_boolean},
    "txn": {"appId": _is_text, "version": _is_long, "lastUpdated": _is_long},
    "metaData": {
        "name": _is_text,
        "description": _is_text,
        "format": _is_format,
        "createdTime": _is_long,
        "configuration": _are_values,
    },
}
"""By action and value. ``shards.py`` compares the others of ``metaData``, and ``protocol``, with what they must be."""
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange"),
    "remove": ("path", "dataChange"),
    "txn": ("appId", "version"),
    "metaData": ("format",),
}
"""Any other value may be null or absent."""


_BLANK = " \t\r"
"""The blanks of JSON. Python has more."""


def log_actions(shard: str, name: str, table: LakeTable) -> Iterator[Finding]:
    """The entries of a table's log with wrong values. ``name``: of the table. Only those behind the checkpoint are compared:
    the others the Delta library has read, and of these the damaged ones are named."""
    for entry, damage in damaged_covered_entries(table).items():
        file = f"{name}/{LOG_FOLDER}/{entry}"
        yield Finding(shard=shard, problem=Problem.COVERED_ENTRY_DAMAGED, file=file, detail=damage)
    try:
        entries = table.log.read_again(table.log.view.checkpoint + 1)
    except LogCleaned:  # a newer checkpoint has them
        return
    for entry, content in entries.items():
        if wrong := _wrong_of_entry(content.decode(), table.layout.partition_by):
            file = f"{name}/{LOG_FOLDER}/{entry}"
            detail = f"of {', '.join(sorted(wrong))}"
            yield Finding(shard=shard, problem=Problem.LOG_ENTRY_NOT_VALID, file=file, detail=detail)


def _wrong_of_entry(text: str, partition_by: Collection[str]) -> set[str]:
    try:
        actions = [_parsed(line) for line in text.split("\n") if line.strip(_BLANK)]
    except ValueError as error:
        return {f"a line that other readers refuse ({error})"}
    kinds = Counter(kind for action in actions for kind in action)
    wrong = {f"{kind}, more than once" for kind in ("metaData", "protocol") if kinds[kind] > 1}
    paths = {kind: {action[kind]["path"] for action in actions if kind in action} for kind in ("add", "remove")}
    if paths["add"] & paths["remove"]:
        wrong.add("add.path, which it also removes")
    return wrong.union(*(_wrong(action, partition_by) for action in actions))


def _wrong(action: Mapping[str, Any], partition_by: Collection[str]) -> Iterator[str]:
    ((kind, values),) = action.items()
    for name, is_valid in _TYPES.get(kind, {}).items():
        value = values.get(name)
        if name in _REQUIRED[kind] if value is None else not is_valid(value):
            yield f"{kind}.{name}"
        if name == "partitionValues" and isinstance(value, dict) and not value.keys() <= {*partition_by}:
            yield f"{kind}.{name}"


def _parsed(line: str) -> Any:
    """Raises ValueError for what ``json`` reads and other readers refuse."""
    action = json.loads(line, parse_constant=_refused)
    json.dumps(action, ensure_ascii=False).encode()  # half of a surrogate pair
    return action


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")
