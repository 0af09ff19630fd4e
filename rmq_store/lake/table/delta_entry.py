"""One entry of a Delta log, ``_delta_log/<20 digits>.json``: its actions, read and written.

An entry has one action in a line (Delta protocol, "Delta Log Entries" and "Actions"). What this project does not know it does
not skip: an action that could change what a reader sees is refused, with the name of the tool that wrote it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote
from zlib import crc32

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import LogDamaged, OtherFormat

READER_VERSION = 1
WRITER_VERSION = 7
FEATURE = "rmqStore"
"""A writer feature of this project. A tool that writes to Delta tables must refuse a table with a feature that it does not
know, so an OPTIMIZE or DELETE of another tool fails. Readers need not know it."""
_FEATURES = ("appendOnly", "invariants", FEATURE)
"""``appendOnly`` and ``invariants`` are what writer version 2, which a new table would have, means in version 7."""
ENGINE = "rmq-store"
VACUUM = "VACUUM"
"""The operation of an entry behind which files are deleted that no version names."""
RESTART = "RESTART"
"""The operation of an entry that makes a table empty, whatever the log before it holds."""
END_BYTES = 64 << 10
"""By so many bytes at its end, and its size, a file of the log is known again."""
_SAFE = "/=~-_."
_COMMIT_IDS = "commit_ids"
_READ_COMMIT = "read_commit"
_COMMIT_ID = "commit_id"
_ACTIONS = "actions"
_parsed = json.JSONDecoder().decode
"""``json.loads`` looks for the encoding of each text; an entry is UTF-8."""
DELETION_VECTOR = "deletionVector"
"""The value of an ``add`` action that names deleted rows of the file."""
_COLUMN_MAPPING = "delta.columnMapping.mode"
STATS_COLUMNS = "delta.dataSkippingStatsColumns"
"""The property of a table that names the columns with statistics."""
_LIST_FOR_MAP = b'"format":{"provider":"parquet","options":[]}'
"""What ``rmq upgrade`` of a version between the releases wrote into the ``metaData`` of a table that it had read from a
checkpoint: no other reader takes it. In a text of JSON the quotes would be escaped."""
_MAP = b'"format":{"provider":"parquet","options":{}}'
_WITHOUT_EFFECT = frozenset({"cdc", "domainMetadata"})
"""Actions that change nothing that is read here."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file, as an ``add`` action names it."""

    path: str
    size: int
    """bytes"""
    partition: Mapping[str, str | None]
    stats: Mapping[str, Any]
    """Delta's statistics: numRecords, minValues, maxValues, nullCount."""
    version: int
    """The entry that added it."""
    data_change: bool = True

    @property
    def rows(self) -> int:
        return int(self.stats.get("numRecords") or 0)

    def only(self, column: str) -> Any:
        """The value of every row, or None when the statistics do not show one. Texts are cut to 32 characters."""
        least, most = self.stats["minValues"].get(column), self.stats["maxValues"].get(column)
        return least if least == most else None


@dataclass(frozen=True, slots=True)
class Entry:
    """The actions of one version."""

    version: int
    added: tuple[LiveFile, ...] = ()
    removed: tuple[str, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    """The ``txn`` actions: application id to version."""
    updated_ms: Mapping[str, int] = field(default_factory=dict)
    """Their ``lastUpdated``."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The ``commitInfo`` action."""
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    end: tuple[bytes, int] = field(default=(b"", 0), compare=False, repr=False)
    """As ``end_of``, of its file."""
    checksum: int = field(default=0, compare=False, repr=False)
    """CRC-32 of its file."""

    @property
    def is_vacuum(self) -> bool:
        """Whether staged files that were not committed before it may be deleted."""
        return self.info.get("operation") == VACUUM

    @property
    def is_restart(self) -> bool:
        """Whether the table is empty at it, and each file in its folder removed."""
        return self.info.get("operation") == RESTART

    @property
    def commit_ids(self) -> tuple[str, ...]:
        """The commits of this project that the entry holds. Stores from before format 2 have one, under another name."""
        ids = self.info.get(_COMMIT_IDS) or self.info.get(_COMMIT_ID) or ""
        return tuple(ids.split(",")) if ids else ()

    @property
    def read_commit(self) -> str:
        """The first commit of the version on which those of the entry were decided; "": that version has none, or it is not
        known, as in entries of earlier versions of this project."""
        return self.info.get(_READ_COMMIT) or ""


def entry_name(version: int) -> str:
    return f"{version:020d}.json"


def encoded(path: str) -> str:
    """As an entry of this project names a file. Delta's paths are URIs, and a path has several encodings."""
    return quote(path, safe=_SAFE)


def end_of(content: bytes) -> tuple[bytes, int]:
    """The last ``END_BYTES`` of a file of the log, and its size in bytes: as ``Root.tail`` returns them."""
    return content[-END_BYTES:], len(content)


def entry_bytes(
    *,
    operation: str,
    now_ms: int,
    commit_ids: Sequence[str] = (),
    read_commit: str = "",
    files: Sequence[StagedFile] = (),
    partition_by: Sequence[str] = (),
    removed: Sequence[LiveFile] = (),
    positions: Mapping[str, int] | None = None,
    updated_ms: Mapping[str, int] | None = None,
    first: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """An entry that adds files, removes some and sets positions. ``read_commit``: as ``Entry.read_commit``. ``first``: further
    actions, before these."""
    updated = updated_ms or {}
    actions: list[Mapping[str, Any]] = list(first)
    actions += [{"remove": _remove_action(file, now_ms)} for file in removed]
    actions += [{"add": _add_action(file, partition_by, now_ms)} for file in files]
    for app_id, number in (positions or {}).items():
        txn = {"appId": app_id, "version": number}
        actions.append({"txn": txn if updated.get(app_id) is None else txn | {"lastUpdated": updated[app_id]}})
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": ENGINE,
        _ACTIONS: len(actions),
        _COMMIT_IDS: ",".join(commit_ids),
    }
    if read_commit:
        info[_READ_COMMIT] = read_commit
    lines = [{"commitInfo": info}, *actions]
    return "\n".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines).encode() + b"\n"


def _add_action(file: StagedFile, partition_by: Sequence[str], now_ms: int) -> dict[str, Any]:
    values = {"kind": file.kind, "store_day": file.store_day}
    return {
        "path": encoded(file.path),
        "partitionValues": {name: values[name] for name in partition_by},
        "size": file.size,
        "modificationTime": now_ms,
        "dataChange": file.data_change,
        "stats": file.stats,
    }


def remove_action(path: str, now_ms: int) -> dict[str, Any]:
    """Of a file of which nothing but its name is known."""
    return {"path": encoded(path), "deletionTimestamp": now_ms, "dataChange": True}


def _remove_action(file: LiveFile, now_ms: int) -> dict[str, Any]:
    extended = {"extendedFileMetadata": True, "partitionValues": dict(file.partition), "size": file.size}
    return remove_action(file.path, now_ms) | extended | {"dataChange": file.data_change}


def protocol_action() -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": READER_VERSION,
            "minWriterVersion": WRITER_VERSION,
            "writerFeatures": list(_FEATURES),
        }
    }


def may_write(protocol: Mapping[str, Any] | None) -> bool:
    """Whether a table with this protocol is written as this project writes it, and by nothing else."""
    features = protocol and protocol.get("writerFeatures")
    return isinstance(features, list) and FEATURE in features


def parse_entry(content: bytes, version: int, where: str) -> Entry:
    """``where``: the entry's address, for errors.

    Raises LogDamaged when the entry is damaged, OtherFormat when it has an action that is not known here.
    """
    try:
        actions = [_parsed(line) for line in content.decode().split("\n") if line and not line.isspace()]
        entry = replace(_entry(actions, version, where), end=end_of(content), checksum=crc32(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LogDamaged(f"{where} is damaged ({error})") from error
    if not actions or entry.info.get(_ACTIONS, len(actions) - 1) != len(actions) - 1:
        raise LogDamaged(f"{where} is damaged: it does not have all its lines")
    if path := twice([file.path for file in entry.added]):
        raise LogDamaged(f"{where} is damaged: it adds the file {path} twice")
    return entry


def twice(paths: Sequence[str]) -> str | None:
    """A path that is there more than once. No version may add a file twice (Delta protocol)."""
    if len(set(paths)) == len(paths):
        return None
    return Counter(paths).most_common(1)[0][0]


def _entry(actions: Sequence[Mapping[str, Any]], version: int, where: str) -> Entry:
    added, removed, positions, updated_ms = [], [], {}, {}
    single: dict[str, Mapping[str, Any]] = {}
    for action in actions:
        ((kind, value),) = action.items()
        match kind:
            case "add":
                added.append(live_file(value, _parsed(value.get("stats") or "{}"), version, where))
            case "remove":
                removed.append(unquote(value["path"]))
            case "txn":
                app_id = _text(value["appId"])
                positions[app_id] = _long(value["version"])
                updated_ms[app_id] = _long(value.get("lastUpdated") or 0)
            case "commitInfo":
                for name in (_COMMIT_IDS, _COMMIT_ID, _READ_COMMIT):
                    _text(value.get(name) or "")
                single[kind] = value
            case "metaData":
                single[kind] = plain_metadata(value)
            case "protocol":
                single[kind] = without_nulls(value)
            case _ if kind not in _WITHOUT_EFFECT:
                raise _foreign(f"an action {kind!r}", _named(where, actions))
    protocol, metadata = single.get("protocol"), single.get("metaData")
    check_readable(protocol, metadata, _named(where, actions))
    return Entry(
        version,
        tuple(added),
        tuple(removed),
        positions,
        updated_ms,
        single.get("commitInfo", {}),
        protocol,
        metadata,
    )


def without_nulls(action: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an action. A checkpoint has a null for each that its entry lacks."""
    return {name: value for name, value in action.items() if value is not None}


def plain_metadata(action: Mapping[str, Any]) -> dict[str, Any]:
    """A ``metaData`` action, the same whether it was read in an entry or in a checkpoint, whose maps are lists of pairs. Raises
    ValueError or TypeError for what is no map."""
    plain = without_nulls(action)
    plain["configuration"] = dict(plain.get("configuration") or ())
    format_ = plain.get("format")
    if isinstance(format_, dict) and isinstance(format_.get("options"), list):
        plain["format"] = {**format_, "options": dict(format_["options"])}
    return plain


def has_list_for_map(content: bytes) -> bool:
    """Whether an entry has a ``metaData`` action that other readers refuse, as a version between the releases wrote it."""
    return _LIST_FOR_MAP in content


def with_maps(content: bytes) -> bytes:
    """An entry as other readers take it, whatever version of this project wrote it."""
    return content.replace(_LIST_FOR_MAP, _MAP)


def _long(value: Any) -> int:
    """A number of 64 bits, as the Delta protocol has them. Raises ValueError for anything else, such as a text of digits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a whole number of 64 bits")
    return value


def _text(value: Any) -> str:
    """Raises ValueError for anything but a text."""
    if type(value) is not str:
        raise ValueError(f"{value!r} is not a text")
    return value


def live_file(add: Mapping[str, Any], stats: Mapping[str, Any], version: int, where: str) -> LiveFile:
    """The file of an ``add`` action. Raises OtherFormat for a deletion vector: rows of the file were deleted."""
    if add.get(DELETION_VECTOR):
        raise deleted_rows(add["path"], where)
    complete = {"minValues": {}, "maxValues": {}, "nullCount": {}} | dict(stats)
    partition = dict(add.get("partitionValues") or {})
    return LiveFile(
        unquote(add["path"]), _long(add["size"]), partition, complete, version, bool(add.get("dataChange", True))
    )


def deleted_rows(path: str, where: str) -> OtherFormat:
    """The error for a deletion vector of a file. ``where``: the address of the entry or the checkpoint."""
    return OtherFormat(
        f"{where} deletes rows of {path} by a deletion vector, which rmq does not read. Restore the table from a backup, and "
        "do not change it with another tool"
    )


def check_readable(protocol: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None, where: str) -> None:
    """Raises OtherFormat when these actions allow what is not read here, KeyError or ValueError when they are damaged."""
    if protocol is not None and protocol["minReaderVersion"] > READER_VERSION:
        raise _foreign(f"reader version {protocol['minReaderVersion']}", where)
    if metadata is not None:
        columns_and_partitions(metadata)
        if (metadata.get("configuration") or {}).get(_COLUMN_MAPPING, "none") != "none":
            raise _foreign("column mapping", where)


def columns_and_partitions(metadata: Mapping[str, Any]) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
    """The names and types of a table's columns, and its partition columns."""
    columns = json.loads(metadata["schemaString"])["fields"]
    partition_by = metadata["partitionColumns"]
    if not isinstance(partition_by, list):
        raise ValueError(f"partitionColumns {partition_by!r} is not a list")
    return {(column["name"], str(column["type"])) for column in columns}, tuple(map(_text, partition_by))


def _named(where: str, actions: Sequence[Mapping[str, Any]]) -> str:
    """An entry, and the tool that wrote it."""
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return f"{where}, written by {info.get('engineInfo') or 'an unknown tool'},"


def _foreign(what: str, where: str) -> OtherFormat:
    return OtherFormat(
        f"{where} has {what}, which this version of rmq does not know. Use a newer version of rmq; if another tool has changed "
        "the table, restore it from a backup"
    )
