"""A store: ``store.json`` and the shards below a root.

``store.json`` is made by a conditional write, so of two ``init`` at once one makes the store and both use it. Shards are
added to it by writing a file each (``shards/<name>.json``), which needs no change of anything that is there.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass

from rmq_store.commit.ctl import FORMAT_VERSION
from rmq_store.consumer.delay import MESSAGE_DELAY_LEVEL, DelayLevels, check_delays
from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard

_STORE = "store.json"
_SHARDS = "shards"
_SHARD_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class LakeStore:
    """An opened store. ``levels``: the newest delay level table."""

    root: Root
    store_id: str
    levels: DelayLevels

    @classmethod
    def init(cls, root: Root, *, levels: str | None = None) -> tuple[LakeStore, bool]:
        """Make the store unless it is there; True when this call made it.

        ``levels``: as a broker's ``messageDelayLevel``; None: RocketMQ's default, or those of the store that is there.
        Raises StoreUnusable when the root cannot be written or does not create exclusively, WrongUse for no delay
        levels, for delays that are none or longer than a year, and for others than those of the store that is there.
        """
        asked = DelayLevels(MESSAGE_DELAY_LEVEL if levels is None else levels)
        if not asked.max_level:
            raise WrongUse("a store needs delay levels, retries wait in them")
        check_delays(asked.text)
        root.check_exclusive_create()
        made = root.create_exclusively(
            _STORE,
            json.dumps(
                {
                    "format_version": FORMAT_VERSION,
                    "store_id": str(uuid.uuid4()),
                    "delay_levels": [{"version": 1, "levels": asked.text}],
                },
                indent=2,
            ).encode(),
        )
        store = cls.open(root)
        if levels is not None and store.levels.delays_ms != asked.delays_ms:
            raise WrongUse(
                f"the store at {root.location} has the delay levels {store.levels.text!r}, not {levels!r}: they are chosen "
                "when a store is made, and what waits in it is due by them. Make another store, or leave the levels out"
            )
        return store, made

    @classmethod
    def open(cls, root: Root) -> LakeStore:
        """Raises StoreUnusable: no store there, one that is not readable, or one that newer code wrote."""
        root.check_reachable()
        try:
            found = json.loads(root.read(_STORE))
        except FileNotFoundError as error:
            raise StoreUnusable(
                f"no store at {root.location}: make one with 'rmq --root {root.location} init'"
            ) from error
        except ValueError as error:
            raise StoreUnusable(
                f"{root.location}/{_STORE} is not JSON ({error}): restore it; the tables are not touched"
            ) from error
        if found.get("format_version", 0) > FORMAT_VERSION:
            raise StoreUnusable(
                f"{root.location} has format {found['format_version']}, this code knows {FORMAT_VERSION}: use a newer rmq"
            )
        newest = found["delay_levels"][-1]
        return cls(root, found["store_id"], DelayLevels(newest["levels"], newest["version"]))

    def shard_names(self) -> list[str]:
        """All shards, sorted."""
        return [name.rsplit("/", 1)[-1].removesuffix(".json") for name, _ in self.root.list(_SHARDS)]

    def shards(self, name: str | None = None) -> list[Shard]:
        """All shards, or the one named. Raises WrongUse for a name that is none."""
        names = self.shard_names()
        if name is not None and name not in names:
            raise WrongUse(f"no shard {name} in {self.root.location}; there are: {', '.join(names) or 'none'}")
        return [Shard(self.root, known) for known in names if name in (None, known)]

    def create_shard(self, name: str) -> Shard:
        """The shard's tables, made where they are missing, and its entry."""
        if not _SHARD_NAME.fullmatch(name):
            raise WrongUse(f"shard {name!r}: use letters, digits, - and _, at most 100 (--shard)")
        shard = Shard.create(self.root, name)
        self.root.create_exclusively(f"{_SHARDS}/{name}.json", json.dumps({"name": name}).encode())
        return shard
