"""The offsets of a consumer in its own memory, what both of RocketMQ's offset stores have in common (rules 4).

``local_offset_store`` persists them to a file of this client (broadcasting), ``remote_offset_store`` to the broker
(clustering).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from rmq_store.errors import RmqError
from rmq_store.message.message import MessageQueue

NOT_FOUND: Final = -1
"""There is no offset: ConsumeFromWhere decides."""
READ_FAILED: Final = -2
"""It is not known whether there is one, so consumption must not start."""


class ReadOffsetType(StrEnum):
    READ_FROM_MEMORY = "READ_FROM_MEMORY"
    READ_FROM_STORE = "READ_FROM_STORE"
    MEMORY_FIRST_THEN_STORE = "MEMORY_FIRST_THEN_STORE"


@dataclass(slots=True)
class ControllableOffset:
    """One queue's offset."""

    value: int
    frozen: bool = False
    """Updates are ignored; only another freeze changes the value."""

    def update(self, offset: int, increase_only: bool = False) -> None:
        if not self.frozen:
            self.value = max(self.value, offset) if increase_only else offset

    def update_and_freeze(self, offset: int) -> None:
        self.value, self.frozen = offset, True


class OffsetStore(ABC):
    """RocketMQ's ``OffsetStore``. An offset is that of the next message to consume."""

    _unreadable: ClassVar[int] = READ_FAILED
    """What ``read_offset`` returns when the store cannot be read."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, ControllableOffset] = {}

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool) -> None:
        """Set the offset, with ``increase_only`` only to a higher one. A frozen queue keeps its offset."""
        known = self._offsets.setdefault(queue, ControllableOffset(offset))
        known.update(offset, increase_only)

    def update_and_freeze_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset and ignore updates of this queue until it is removed (after OFFSET_ILLEGAL)."""
        self._offsets.setdefault(queue, ControllableOffset(offset)).update_and_freeze(offset)

    def read_offset(self, queue: MessageQueue, kind: ReadOffsetType) -> int:
        """The offset, ``NOT_FOUND`` or ``READ_FAILED``. An offset that is read from the store also goes into memory."""
        known = self._offsets.get(queue)
        if known is not None and kind is not ReadOffsetType.READ_FROM_STORE:
            return known.value
        if kind is ReadOffsetType.READ_FROM_MEMORY:
            return NOT_FOUND
        try:
            stored = self._read_store(queue)
        except (RmqError, OSError):
            return self._unreadable
        if stored is None:
            return NOT_FOUND
        self.update_offset(queue, stored, increase_only=False)
        return stored

    def remove_offset(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the store keeps its offset."""
        self._offsets.pop(queue, None)

    @abstractmethod
    def persist(self, queue: MessageQueue) -> None:
        """Store the offset of one queue; nothing happens if memory does not have the queue."""

    @abstractmethod
    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues; without queues nothing happens."""

    @abstractmethod
    def _read_store(self, queue: MessageQueue) -> int | None:
        """The stored offset, None without one. Raises RmqError or OSError when the store cannot be read."""
