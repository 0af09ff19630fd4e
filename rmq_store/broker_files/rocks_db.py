"""What a 5.x broker may keep in RocksDB instead of files: recognised and refused, so that it is not taken for missing.

With ``storeType=defaultRocksDB`` the consume queues and three configurations are RocksDB databases (``RocksDBMessageStore``,
``broker/config/v1``), with ``configManagerVersion=v2`` the configurations are one (``broker/config/v2``). With
``rocksdbCQDoubleWriteEnable`` a broker writes its consume queues in both forms.
"""

from __future__ import annotations

import re
from typing import Final

from rmq_store.broker_files.file_source import FileSource
from rmq_store.errors import BadData

QUEUES: Final = "consumequeue"
_OWN_FOLDER: Final = "consumequeue_r"
"""The folder of the queues with ``useSeparateStorePathForRocksdbCQ``."""

JSON_OF: Final = {
    "config/consumerOffsets": "consumerOffset.json",
    "config/topics": "topics.json",
    "config/subscriptionGroups": "subscriptionGroup.json",
}
"""A RocksDB folder: the JSON file that it replaces."""
EXTRA: Final = "the package rocksdict is installed (pip install 'rocketmq-lakehouse[rocksdb]')"
_OF_ALL: Final = ("config/metadata", "config/rdb")
_FILE: Final = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old.*)?|(MANIFEST|OPTIONS)-[0-9]+.*|[0-9]+\.(log|sst|blob)")


def is_rocksdb_file(name: str) -> bool:
    """Whether the last part of a name is one that RocksDB gives to its files."""
    return _FILE.fullmatch(name.rpartition("/")[2]) is not None


def queues_in_rocksdb(source: FileSource, name: str) -> BadData:
    """The error for a store whose consume queues, ``name`` among them, are in RocksDB."""
    return BadData(
        f"{source} has its consume queues in RocksDB ({name}), as a broker with storeType=defaultRocksDB keeps them. Such a "
        "store can be imported, with or without --salvage, only if its topics, groups and offsets are in RocksDB too, no JSON "
        f"file of them is beside, and {EXTRA}. Nothing was changed. Leave the files as they are: they are the broker's queues"
    )


def refuse_rocksdb(source: FileSource) -> None:
    """Raises BadData for a store whose configuration or consume queues are in RocksDB, also when there is a JSON file beside
    it: which of the two is newer is not known. ``lake/broker/rocksdb_source.py`` reads others where it can."""
    if source.whole(f"{QUEUES}/CURRENT") is not None:
        raise queues_in_rocksdb(source, f"{QUEUES}/CURRENT")
    if source.list(_OWN_FOLDER) and not source.list(QUEUES):
        raise queues_in_rocksdb(source, _OWN_FOLDER)
    for folder in (*JSON_OF, *_OF_ALL):
        if source.list(folder):
            raise _config_in_rocksdb(source, folder)


def _config_in_rocksdb(source: FileSource, folder: str) -> BadData:
    what = folder.rpartition("/")[2]
    way = (
        f"To read it, stop the broker or copy the folder, and let RocketMQ write {JSON_OF[folder]} (mqadmin "
        f"rocksDBConfigToJson -p CONFIG_FOLDER -t {what} -e FILE); then import a copy of the store that has this file and "
        f"not {folder}"
        if folder in JSON_OF
        else "Only the store of a broker that keeps them as JSON can be imported"
    )
    return BadData(
        f"{source} has topics, groups or offsets in RocksDB ({folder}/), which cannot be read here. Without them its groups "
        "would start at wrong offsets, and a JSON file beside them may be older. Nothing was changed; leave the folder as it "
        f"is. Without a JSON file beside them they can be read if {EXTRA}. "
        f"{way}"
    )
