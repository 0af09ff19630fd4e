"""The store of a 5.x broker with ``storeType=defaultRocksDB``: its configurations are read from RocksDB with the package
rocksdict (extra ``rocksdb``), and given on as the JSON files that they replace; consume queues are made from the log.

The databases are copied to a temporary folder and opened there read-only: the broker's own files are never opened by RocksDB.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmq_store.broker_files.broker_json import parse
from rmq_store.broker_files.config_files import LMQ_OFFSETS
from rmq_store.broker_files.file_source import FileSource, small_content
from rmq_store.broker_files.limits import MAX_CONFIG_BYTES
from rmq_store.broker_files.rocks_db import JSON_OF, QUEUES, is_rocksdb_file
from rmq_store.errors import BadData, OverLimit, clause

_TABLE_OF = {
    "config/consumerOffsets": "offsetTable",
    "config/topics": "topicConfigTable",
    "config/subscriptionGroups": "subscriptionGroupTable",
}
"""A RocksDB folder: the object of the JSON file that has its keys and values."""


def with_rocksdb(source: FileSource, max_config_bytes: int = MAX_CONFIG_BYTES) -> FileSource:
    """The source itself, or one that reads a store whose three configurations are in RocksDB, if rocksdict is installed.

    It stays as it is where a JSON file is beside a database, as it is not known which one is newer: ``refuse_rocksdb`` then
    names it.

    :raises BadData: a database cannot be read. :raises OverLimit: one has more than ``max_config_bytes``.
    """
    if importlib.util.find_spec("rocksdict") is None:
        return source
    if not all(source.list(folder) for folder in JSON_OF):
        return source
    beside = {f"config/{name}{end}" for name in (*JSON_OF.values(), LMQ_OFFSETS) for end in ("", ".bak")}
    if beside & {name for name, _ in source.list("config")}:
        return source
    made = {f"config/{JSON_OF[folder]}": _as_json(source, folder, max_config_bytes) for folder in JSON_OF}
    return RocksDbSource(source, made)


@dataclass(frozen=True, slots=True)
class RocksDbSource:
    """A source without the files of RocksDB, and with the JSON files that were made of its configurations."""

    source: FileSource
    made: dict[str, bytes] = field(repr=False)

    def __str__(self) -> str:
        return str(self.source)

    def names(self) -> list[str]:
        return self.source.names()

    def list(self, prefix: str) -> list[tuple[str, int]]:
        if prefix in JSON_OF:
            return []
        if prefix == QUEUES:
            return [(name, size) for name, size in self.source.list(prefix) if not is_rocksdb_file(name)]
        return self.source.list(prefix)

    def read(self, name: str, begin: int, end: int) -> bytes:
        return self.source.read(name, begin, end)

    def whole(self, name: str, most_bytes: int = MAX_CONFIG_BYTES) -> bytes | None:
        if name in self.made:
            return small_content(f"{name} of {self.source}", self.made[name], most_bytes)
        if name == f"{QUEUES}/CURRENT":
            return None
        return self.source.whole(name, most_bytes)


def _as_json(source: FileSource, folder: str, most_bytes: int) -> bytes:
    """The text of the JSON file that a database replaces (``RocksDBConsumerOffsetManager``, ``RocksDBTopicConfigManager``,
    ``RocksDBSubscriptionGroupManager``): a key of it is the table's key, and its value is JSON."""
    with tempfile.TemporaryDirectory(prefix="rmq-rocksdb-") as copy:
        files = source.list(folder)
        if sum(size for _, size in files) > most_bytes:
            raise OverLimit(
                f"{folder} of {source} is larger than {most_bytes:,} bytes. If it is the broker's, import with a higher limit "
                "(--max-config-bytes); nothing was changed"
            )
        for name, file_size in files:
            (Path(copy) / name.rpartition("/")[2]).write_bytes(source.read(name, 0, file_size))
        try:
            table = {key: _value(folder, key, value) for key, value in _rows(copy)}
        except BadData:
            raise
        except Exception as error:  # the library raises Exception itself
            raise BadData(
                f"{folder} of {source} cannot be read as RocksDB: {clause(error)}. If the broker is running, stop it or copy "
                "the store again. Nothing was changed"
            ) from error
    return json.dumps({_TABLE_OF[folder]: table}).encode()


def _value(folder: str, key: str, value: bytes) -> object:
    parsed = parse(value.decode())
    return parsed["offsetTable"] if folder == "config/consumerOffsets" else parsed


def _rows(folder: str) -> Iterator[tuple[str, bytes]]:
    """The rows of the default column family; the others have versions and what a group may not read."""
    from rocksdict import AccessType, Options, Rdict

    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(folder)}
    database = Rdict(folder, Options(raw_mode=True), families, access_type=AccessType.read_only())
    try:
        for key, value in database.items():
            assert isinstance(key, bytes), "so it is in the raw mode"
            yield key.decode(), value
    finally:
        database.close()
