"""The messages of one queue that a consumer has: cached, or being consumed in order (``ProcessQueue``, rules 8).

It knows the smallest offset that is not finished, which every commit needs. Orderly windows use it. A concurrent window
reads a range and commits all of it, so it needs no cache; tests compare it with this rule.

For example, with the offsets 10 to 14 cached, ``remove_message([12])`` returns 10, ``remove_message([10])`` 11, and
``remove_message([11, 13, 14])`` 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rmq_store.errors import WrongUse


@dataclass(slots=True)
class ProcessQueue:
    """RocketMQ's ``ProcessQueue``. Sizes are body sizes in bytes."""

    dropped: bool = False
    """A rebalance gave the queue to another consumer; results no longer count."""
    consuming: bool = False
    message_count: int = 0
    message_bytes: int = 0
    behind: int = 0
    """How many messages the broker has behind the last fetched one, by its MAX_OFFSET."""
    _queue_offset_max: int = 0
    _cached: dict[int, int] = field(default_factory=dict)
    _taken: dict[int, int] = field(default_factory=dict)

    def put_message(self, messages: Sequence[tuple[int, int]], max_offset: int | None = None) -> bool:
        """Add messages (queue offset, body bytes); True when consumption must be started.

        ``max_offset``: the queue's max offset, from the property MAX_OFFSET of the last message.
        """
        for offset, size in messages:
            if offset not in self._cached:
                self.message_count += 1
                self.message_bytes += size
                self._queue_offset_max = offset
            self._cached[offset] = size
        if messages and max_offset is not None and max_offset > messages[-1][0]:
            self.behind = max_offset - messages[-1][0]
        start = bool(self._cached) and not self.consuming
        self.consuming = self.consuming or start
        return start

    def remove_message(self, offsets: Iterable[int]) -> int:
        """Finish messages of concurrent consumption. Returns the offset to commit: the smallest that is still cached,
        else the next one behind all; -1 when nothing was cached before.
        """
        if not self._cached:
            return -1
        sizes = [size for offset in offsets if (size := self._cached.pop(offset, None)) is not None]
        self._forget(len(sizes), sum(sizes))
        return min(self._cached) if self._cached else self._queue_offset_max + 1

    def take_messages(self, count: int) -> list[int]:
        """Take up to ``count`` of the smallest offsets for consumption in order."""
        taken = sorted(self._cached)[:count]
        for offset in taken:
            self._taken[offset] = self._cached.pop(offset)
        if not taken:
            self.consuming = False
        return taken

    def commit(self) -> int:
        """Finish what was taken. Returns the offset behind it. Raises WrongUse when nothing is taken, where RocketMQ
        throws NoSuchElementException."""
        if not self._taken:
            raise WrongUse("cannot commit: no message of the queue is being consumed")
        offset = max(self._taken) + 1
        self._forget(len(self._taken), sum(self._taken.values()))
        self._taken.clear()
        return offset

    def rollback(self) -> None:
        """Put back everything that was taken."""
        self._cached.update(self._taken)
        self._taken.clear()

    def make_message_to_consume_again(self, messages: Sequence[tuple[int, int]]) -> None:
        """Put back these messages (queue offset, body bytes)."""
        for offset, size in messages:
            self._taken.pop(offset, None)
            self._cached[offset] = size

    def contains_message(self, offset: int) -> bool:
        """Whether the message is cached; one that was taken in order is not."""
        return offset in self._cached

    @property
    def max_span(self) -> int:
        """Last cached offset minus the first."""
        return max(self._cached) - min(self._cached) if self._cached else 0

    @property
    def cached(self) -> list[int]:
        return sorted(self._cached)

    def _forget(self, count: int, size: int) -> None:
        """Lower the counts. As in RocketMQ the size is 0 without messages, whatever was counted wrong before."""
        self.message_count -= count
        self.message_bytes = self.message_bytes - size if self.message_count else 0
