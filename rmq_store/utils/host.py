"""What a job takes from the machine it runs on: the time, new ids, waiting. Passed in, so that rules never ask."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def uuid7(now_ms: int, entropy: bytes) -> str:
    """A version 7 UUID as 32 hex digits: time-ordered, so that statistics find the files of a commit. ``entropy``: 10 bytes."""
    value = now_ms << 80 | int.from_bytes(entropy[:10], "big")
    value &= ~(0xF << 76) & ~(0x3 << 62)
    return f"{value | 0x7 << 76 | 0x2 << 62:032x}"


def uuid7_floor(now_ms: int) -> str:
    """No id made at ``now_ms`` or later is smaller (as text)."""
    return f"{max(now_ms, 0) << 80:032x}"


def uuid7_ms(id_: str) -> int:
    """When an id was made."""
    return int(id_[:12], 16)


def day_of(ms: int) -> str:
    """The UTC day of a time, ``YYYY-MM-DD``."""
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


def epoch_ms() -> int:
    """The wall clock, UTC ms."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Host:
    """The clock (UTC ms), the source of ids and of jitter, and how to wait (seconds)."""

    now_ms: Callable[[], int] = epoch_ms
    entropy: Callable[[int], bytes] = os.urandom
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def new_commit_id(self) -> str:
        return uuid7(self.now_ms(), self.entropy(10))
