"""The offsets of a consumer in its own memory, what both of RocketMQ's offset stores have in common (rules 4).

A store's own file says what lies behind the memory: ``local_offset_store`` a file of this client (broadcasting),
``remote_offset_store`` the broker (clustering).
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
"""It is not known whether there is one: nothing may start from here."""


class ReadOffsetType(StrEnum):
    READ_FROM_MEMORY = "READ_FROM_MEMORY"
    READ_FROM_STORE = "READ_FROM_STORE"
    MEMORY_FIRST_THEN_STORE = "MEMORY_FIRST_THEN_STORE"


@dataclass(slots=True)
class ControllableOffset:
    """One queue's offset. ``frozen``: it takes no update any more, only another freeze."""

    value: int
    frozen: bool = False

    def update(self, offset: int, increase_only: bool = False) -> None:
        if not self.frozen:
            self.value = max(self.value, offset) if increase_only else offset

    def update_and_freeze(self, offset: int) -> None:
        self.value, self.frozen = offset, True


class OffsetStore(ABC):
    """RocketMQ's ``OffsetStore``; offsets are the next to consume."""

    _unreadable: ClassVar[int] = READ_FAILED
    """What reading answers when the store cannot be read."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, ControllableOffset] = {}

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool) -> None:
        """Set the offset, or raise it only. A frozen queue stays as it is."""
        known = self._offsets.setdefault(queue, ControllableOffset(offset))
        known.update(offset, increase_only)

    def update_and_freeze_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset and take no update of this queue until it is removed (after OFFSET_ILLEGAL)."""
        self._offsets.setdefault(queue, ControllableOffset(offset)).update_and_freeze(offset)

    def read_offset(self, queue: MessageQueue, kind: ReadOffsetType) -> int:
        """The offset, ``NOT_FOUND`` or ``READ_FAILED``. What is read from the store goes into memory as well."""
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
        """Forget the queue in memory; what is stored stays."""
        self._offsets.pop(queue, None)

    @abstractmethod
    def persist(self, queue: MessageQueue) -> None:
        """Store the offset of one queue; one that memory does not know is left as it is."""

    @abstractmethod
    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues; without queues nothing happens."""

    @abstractmethod
    def _read_store(self, queue: MessageQueue) -> int | None:
        """What is stored, None without an offset. Raises RmqError or OSError when that cannot be said."""
