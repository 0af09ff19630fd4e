"""A store in memory: shards by name, and the delay levels they share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import WrongUse
from tests.oracle.memory.shard import MemoryShard


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """A store. ``clock``: its own, UTC ms."""

    levels: DelayLevels = field(default_factory=DelayLevels)
    clock: Callable[[], int] = _now_ms
    _shards: dict[str, MemoryShard] = field(default_factory=dict, repr=False)

    def create_shard(self, name: str) -> MemoryShard:
        """The shard, created if it does not exist."""
        return self._shards.setdefault(name, MemoryShard(name, self.clock, self._shards))

    def shards(self, name: str | None = None) -> list[MemoryShard]:
        """All shards, or the one with this name. Raises WrongUse for an unknown name."""
        if name is not None and name not in self._shards:
            raise WrongUse(f"no shard {name}; shards: {', '.join(sorted(self._shards)) or 'none'}")
        return [shard for known, shard in sorted(self._shards.items()) if name in (None, known)]
