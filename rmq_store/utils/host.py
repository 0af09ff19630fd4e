"""What a job takes from its machine: the clock, randomness, ids, waiting. An argument, so that the rules are pure."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def uuid7(now_ms: int, entropy: bytes) -> str:
    """A version 7 UUID as 32 hex digits: ordered by time, so that file statistics find a commit. ``entropy``: 10
    bytes."""
    value = now_ms << 80 | int.from_bytes(entropy[:10], "big")
    value &= ~(0xF << 76) & ~(0x3 << 62)
    return f"{value | 0x7 << 76 | 0x2 << 62:032x}"


def uuid7_floor(now_ms: int) -> str:
    """The smallest id (as text) of ``now_ms`` (UTC ms) and later."""
    return f"{max(now_ms, 0) << 80:032x}"


def uuid7_ms(id_: str) -> int:
    """When an id was made, UTC ms."""
    return int(id_[:12], 16)


def day_of(ms: int) -> str:
    """The UTC day of a time (UTC ms), ``YYYY-MM-DD``."""
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


def epoch_ms() -> int:
    """The wall clock, UTC ms."""
    return time.time_ns() // 1_000_000


def monotonic_ns() -> int:
    """A clock that is never set, ns from an unknown moment: only differences mean something."""
    return time.monotonic_ns()


def monotonic_ms() -> int:
    """``monotonic_ns`` in ms."""
    return monotonic_ns() // 1_000_000


def random_name() -> str:
    """32 random hex digits, for a name that nothing else uses."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Host:
    """Clock, randomness and waiting; tests pass their own."""

    now_ms: Callable[[], int] = epoch_ms
    """UTC ms."""
    entropy: Callable[[int], bytes] = os.urandom
    """So many random bytes, for ids."""
    sleep: Callable[[float], None] = time.sleep
    """Seconds."""
    uniform: Callable[[float, float], float] = random.uniform
    """Jitter."""

    def new_commit_id(self) -> str:
        return uuid7(self.now_ms(), self.entropy(10))
