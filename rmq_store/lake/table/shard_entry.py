"""The entry of a shard: the file ``shards/<name>.json``, which is written once.

It says of which shard it is, of which store, and what the id of its commit log is. A folder that another shard has left its
name to, or a copy of one, would give a group messages of the other shard, or the same messages twice. So a commit log is
compared with its entry when it is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.object_store import Root

SHARDS = "shards"
"""The folder with an entry for each shard."""
TABLE_ID = "commitlog"
"""What an entry calls the id of the commit log's table."""

Entry = Mapping[str, Any]
"""What an entry has."""


class DescriptionDamaged(StoreUnusable):
    """``store.json`` or the entry of a shard is gone, or is wrong. ``file``: which one."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file = file


class ShardOfAnother(DescriptionDamaged):
    """The folder of a shard has the tables of another shard, or of another store."""


def entry_path(shard: str) -> str:
    """The path of a shard's entry below the root."""
    return f"{SHARDS}/{shard}.json"


def new_entry(shard: str, document: Mapping[str, Any], table_id: Any) -> dict[str, Any]:
    """The entry of a new shard. ``table_id``: that of its commit log, by which its folder is known. The rest repeats what its
    messages rely on of ``document``, which is ``store.json``. Entries of earlier versions have the name only, or no id."""
    return {
        "name": shard,
        "store_id": document["store_id"],
        "delay_levels": document["delay_levels"],
        TABLE_ID: table_id,
    }


def read_entry(root: Root, shard: str) -> Entry | str:
    """The entry of a shard; a text says why it cannot be read. Raises StoreUnusable."""
    try:
        entry = json.loads(root.read(entry_path(shard)))
    except FileNotFoundError:
        return "it is gone"
    except (ValueError, RecursionError) as error:
        return str(error)
    return entry if isinstance(entry, dict) else "it is no object"


def refuse_damaged_entry(root: Root, shard: str) -> None:
    """Raises DescriptionDamaged where the entry cannot be read. Commands do without it; a backup must not have it."""
    if isinstance(reason := read_entry(root, shard), str):
        path = entry_path(shard)
        raise DescriptionDamaged(f"{path} is no entry of a shard ({reason}): restore it from a backup", path)


def name_in_entry(root: Root, shard: str) -> str:
    """The shard's name by its entry; the shard's own where there is no entry, or no name in it."""
    entry = read_entry(root, shard)
    return shard if isinstance(entry, str) else _text_of(entry, "name", shard)


def refuse_another(entry: Entry | str, shard: str, store_id: str, table_id: str) -> None:
    """Raises ShardOfAnother where the entry is that of another shard or of another store, or names another commit log than the
    one in the shard's folder (``table_id``). What an entry does not have, or one that is damaged, proves nothing."""
    if isinstance(entry, str):
        return
    path = entry_path(shard)
    if (name := _text_of(entry, "name", shard)) != shard:
        raise ShardOfAnother(
            f"{path} is the entry of shard {name}. If the folder {shard} is a copy, each of its messages would be there twice: "
            f"move the folder {shard} and {path} out of the store. If {name} was renamed, give folder and file that name again",
            path,
        )
    if (other := _text_of(entry, "store_id", store_id)) != store_id:
        raise ShardOfAnother(
            f"shard {shard} is one of the store {other}, and this is the store {store_id}: move the folder {shard} and {path} "
            "out of it, or restore store.json from a backup if that was replaced",
            path,
        )
    if (named := _text_of(entry, TABLE_ID, table_id)) != table_id:
        raise ShardOfAnother(
            f"the folder {shard} has the commit log {table_id}, and {path} names {named}: it is the folder of another shard, "
            "or was replaced. Give each folder the name of its shard again ('rmq audit' names them), or restore the shard from "
            "a backup",
            path,
        )


def _text_of(entry: Entry, key: str, expected: str) -> str:
    """What the entry has; what is ``expected`` where it has no text."""
    value = entry.get(key)
    return value if isinstance(value, str) else expected
