"""The offsets of a broadcasting consumer, in a file of its own: RocketMQ's ``LocalFileOffsetStore`` (rules 4).

The file is an argument (``broker_files.local_offsets`` has the one that RocketMQ writes), so nothing here touches a
disk. If neither the file nor its ``.bak`` can be read, persisting raises; RocketMQ logs that and continues without
persisting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from rmq_store.message.java_hash import in_hash_map_order
from rmq_store.message.message import MessageQueue
from tests.oracle.offset_store import NOT_FOUND, OffsetStore


class OffsetsFile(Protocol):
    """Where the offsets are stored. Reading raises BadData when the file exists and cannot be read."""

    def read(self) -> Mapping[MessageQueue, int]: ...

    def write(self, offsets: Mapping[MessageQueue, int]) -> None: ...


class LocalFileOffsetStore(OffsetStore):
    """Offsets of one client and group. If the file cannot be read, ``read_offset`` returns -1, never -2."""

    _unreadable = NOT_FOUND

    def __init__(self, file: OffsetsFile) -> None:
        super().__init__()
        self._file = file

    def load(self) -> None:
        """Read the file's offsets into memory.

        :raises BadData: neither the file nor its ``.bak`` can be read; RocketMQ's client does not start then.
        """
        for queue, offset in self._file.read().items():
            self.update_offset(queue, offset, increase_only=False)

    def persist(self, queue: MessageQueue) -> None:
        if queue in self._offsets:
            self._write([queue])

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Other queues, and queues that memory does not have, keep their offset in the file: two clients may share
        it."""
        if queues:
            self._write([queue for queue in in_hash_map_order(self._offsets) if queue in queues])

    def _write(self, queues: Collection[MessageQueue]) -> None:
        self._file.write({**self._file.read(), **{queue: self._offsets[queue].value for queue in queues}})

    def _read_store(self, queue: MessageQueue) -> int | None:
        return self._file.read().get(queue)
