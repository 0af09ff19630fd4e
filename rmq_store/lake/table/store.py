"""A store: ``store.json`` and the shards below a root.

``store.json`` is made by a conditional write, so of two concurrent ``init`` one makes the store and both use it. A shard is
added by writing a file (``shards/<name>.json``), which changes no existing file.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from rmq_store.commit.ctl import FORMAT_VERSION
from rmq_store.consumer.delay import MESSAGE_DELAY_LEVEL, DelayLevels, check_delays
from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.table.delta_entry import entry_name
from rmq_store.lake.table.delta_log import LOG_FOLDER
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.shard_entry import SHARDS, DescriptionDamaged, entry_path, new_entry
from rmq_store.utils.host import Host

STORE = "store.json"
_COMMITLOG = f"commitlog/{LOG_FOLDER}"
"""The folder of the commit log's entries, in that of a shard."""
_MOST_NAMES = 1_000
"""So many names at the top level of the root are looked at for shards without an entry."""
_OWN_FOLDERS = (SHARDS, "_probe")
"""What is no shard at the top level of the root: the entries, and what ``Root.check_exclusive_create`` writes."""
_HOST = Host()
_NAMES_IN_S3 = 32
"""So many where there is no store: in S3 each costs a request."""
_SHARD_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ENTRY = re.compile(rf"{SHARDS}/({_SHARD_NAME.pattern})\.json")


@dataclass(frozen=True, slots=True)
class LakeStore:
    """An opened store."""

    root: Root
    store_id: str
    levels: DelayLevels
    """The newest delay level table."""

    @classmethod
    def init(cls, root: Root, *, levels: str | None = None, host: Host = _HOST) -> tuple[LakeStore, bool]:
        """Make the store unless it is there; True when this call made it.

        ``levels``: as a broker's ``messageDelayLevel``; None: RocketMQ's default, or those of an existing store. Raises
        StoreUnusable when the root cannot be written or does not create exclusively, or has shards and no ``store.json``;
        WrongUse for empty delay levels, for delays that cannot be read or are longer than a year, and for levels that differ
        from those of an existing store, or for a root that is not UTF-8.
        """
        chosen = DelayLevels(MESSAGE_DELAY_LEVEL if levels is None else levels)
        if not chosen.max_level:
            raise WrongUse("a store needs delay levels, because retries wait in them: give at least one (--levels)")
        check_delays(chosen.text)
        root.check_utf8()
        root.make_private()
        root.check_exclusive_create()
        if not root.exists(STORE):
            _refuse_shards_without_store(root)
            _refuse_other_folder(root)
        made = root.create_exclusively(
            STORE,
            json.dumps(
                {
                    "format_version": FORMAT_VERSION,
                    "store_id": str(uuid.UUID(bytes=host.entropy(16), version=4)),
                    "delay_levels": [{"version": 1, "levels": chosen.text}],
                },
                indent=2,
            ).encode(),
        )
        store = cls.open(root)
        if levels is not None and store.levels.delays_ms != chosen.delays_ms:
            raise WrongUse(
                f"the store at {root.location} has the delay levels {store.levels.text!r}, not {levels!r}. They "
                "are set when a store is made and cannot be changed. Make another store, or omit the levels"
            )
        return store, made

    @classmethod
    def open(cls, root: Root) -> LakeStore:
        """Open the store. Raises StoreUnusable when there is none, it cannot be read, or it has not this code's format."""
        return cls.of(root, _read_current(root))

    @classmethod
    def of(cls, root: Root, document: Mapping[str, Any]) -> LakeStore:
        """The store that ``store.json`` describes."""
        newest = document["delay_levels"][-1]
        return cls(root, document["store_id"], DelayLevels(newest["levels"], newest["version"]))

    def shard_names(self) -> list[str]:
        """All shards, sorted."""
        return _named_shards(self.root)

    def named_shards(self) -> list[Shard]:
        """All shards with an entry, for what looks for damage; everything else uses ``shards``."""
        return [Shard(self.root, name) for name in self.shard_names()]

    def shards(self, name: str | None = None) -> list[Shard]:
        """All shards, or the one named. Each is compared with its entry when it is opened (``refuse_another``).

        Raises WrongUse when there is no such shard, and StoreUnusable when the tables of a shard have no entry. In S3 that is
        looked for only where no shard has one: it takes a request, which each command would make.
        """
        names = self.shard_names()
        if self.root.is_local or not names:
            refuse_unnamed_shards(self.root)
        if name is not None and name not in names:
            raise WrongUse(f"no shard {name} in {self.root.location}; shards: {', '.join(names) or 'none'}")
        return [Shard(self.root, known, self.store_id) for known in names if name in (None, known)]

    def create_shard(self, name: str) -> Shard:
        """The shard; its tables and its entry are made where they are missing.

        Raises WrongUse for an invalid name, and StoreUnusable when the commit log of a shard with an entry is gone, when a
        shard with commits has no entry, and when the store was deleted or replaced since it was opened: tables beside no
        ``store.json`` could not be opened again.
        """
        check_shard_name(name)
        document = _read_current(self.root)
        if document["store_id"] != self.store_id:
            raise StoreUnusable(f"the store at {self.root.location} was replaced since it was opened: open it again")
        entry = entry_path(name)
        if self.root.exists(entry):
            _ = Shard(self.root, name, self.store_id).commitlog  # one that is gone is not made again: it would be empty
        else:
            refuse_unnamed_shards(self.root)
        shard = Shard.create(self.root, name)
        self.root.create_exclusively(entry, json.dumps(new_entry(name, document, shard.commitlog.id)).encode())
        return shard


def check_shard_name(name: str) -> None:
    """Raises WrongUse for a name that a new shard cannot have."""
    if not _SHARD_NAME.fullmatch(name):
        raise WrongUse(f"invalid shard name {name!r}: use at most 100 letters, digits, - and _ (--shard)")
    if name in _OWN_FOLDERS:
        raise WrongUse(f"a shard cannot have the name {name!r}: the store has a folder of its own with it (--shard)")


def read_store(root: Root) -> Mapping[str, Any]:
    """``store.json``. Raises StoreUnusable when there is none, it cannot be read, or its format is newer than this code."""
    try:
        document: Mapping[str, Any] = json.loads(root.read(STORE))
        version, levels = int(document["format_version"]), document["delay_levels"][-1]
        _ = document["store_id"], DelayLevels(levels["levels"], levels["version"])
        if version < 1:
            raise ValueError(f"format_version is {version}")
    except FileNotFoundError as error:
        root.check_reachable()
        _refuse_shards_without_store(root)
        _refuse_other_folder(root)
        raise StoreUnusable(
            f"no store at {root.location}. If there was one, look first why it is not there, for instance whether its disk is "
            f"mounted. A new one is made with 'rmq --root {quote(root.location)} init'"
        ) from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, WrongUse) as error:
        raise DescriptionDamaged(
            f"{root.location}/{STORE} does not describe a store ({error}): restore it from a backup. The tables are not "
            "affected",
            STORE,
        ) from error
    if version > FORMAT_VERSION:
        raise StoreUnusable(
            f"{root.location} has format {version}, but this version of rmq reads up to {FORMAT_VERSION}: use a newer one"
        )
    return {**document, "format_version": version}


def _read_current(root: Root) -> Mapping[str, Any]:
    """``read_store``, of this code's format. Raises StoreUnusable for an older one too."""
    document = read_store(root)
    if document["format_version"] < FORMAT_VERSION:
        raise StoreUnusable(
            f"{root.location} has format {document['format_version']}, which an earlier version of rmq wrote: 'rmq --root "
            f"{quote(root.location)} upgrade' brings it to format {FORMAT_VERSION}. Nothing is copied; the earlier version "
            "cannot use it afterwards"
        )
    return document


def _refuse_other_folder(root: Root) -> None:
    """Raises StoreUnusable for the folder of a shard, or of a broker."""
    if root.names_in(_COMMITLOG)[0]:
        raise StoreUnusable(f"{root.location} is the folder of a shard: name the store that it is in")
    if root.names_in("commitlog")[0]:
        raise StoreUnusable(
            f"{root.location} is the store directory of a broker: name another folder for a store of rmq"
        )


def _named_shards(root: Root) -> list[str]:
    return sorted(match[1] for name, _ in root.list(SHARDS) if (match := _ENTRY.fullmatch(name)))


def stray_files(root: Root) -> list[str]:
    """What lies between the entries of shards and is none, sorted: files of an editor, which nothing reads."""
    return [name for name, _ in root.list(SHARDS) if not _ENTRY.fullmatch(name)]


def unnamed_shards(root: Root, most_names: int | None = None) -> list[str]:
    """The folders with the commits of a shard for which there is no entry, sorted: a query leaves out their messages.
    ``most_names``: how many of the root's names are looked at; None: all that are listed.

    A shard without commits does not count: its tables are made before its entry.
    """
    named = {SHARDS, *_named_shards(root)}
    others = [name for name in root.names(_MOST_NAMES) if name not in named and _SHARD_NAME.fullmatch(name)][
        :most_names
    ]
    folders = [name for name in others if root.names_in(f"{name}/{_COMMITLOG}", after=entry_name(0))[0]]
    return sorted({*folders} - {*_named_shards(root)}) if folders else []  # another process may have made one meanwhile


def refuse_unnamed_shards(root: Root) -> None:
    """Raises DescriptionDamaged when there are ``unnamed_shards``."""
    if lost := unnamed_shards(root):
        raise DescriptionDamaged(
            f"{', '.join(lost)}: these folders in {root.location} have the tables of a shard, and no file in {SHARDS}/ names "
            f"them, so that their messages would be left out. Restore {SHARDS}/NAME.json from a backup, or move a copy out of "
            "the store",
            entry_path(lost[0]),
        )


def _refuse_shards_without_store(root: Root) -> None:
    """Raises DescriptionDamaged when there are shards: another ``store.json`` would give them other delay levels.

    Tables without an entry are looked for in few folders in S3: that is a request for each name, maybe of a whole bucket.
    """
    if _named_shards(root) or unnamed_shards(root, None if root.is_local else _NAMES_IN_S3):
        raise DescriptionDamaged(
            f"{root.location}/{STORE} is gone, but the shards of a store are there: restore it from a backup. The tables are "
            "not affected. If this is the target of a backup that was broken off, run that backup again",
            STORE,
        )
