"""The offsets of a clustering consumer, kept by the broker: RocketMQ's ``RemoteBrokerOffsetStore`` (rules 4)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from rmq_store.message.message import MessageQueue
from tests.oracle.offset_store import OffsetStore


class OffsetBroker(Protocol):
    """QUERY_CONSUMER_OFFSET (None: not found) and UPDATE_CONSUMER_OFFSET of one group."""

    def query_offset(self, queue: MessageQueue) -> int | None: ...

    def update_offset(self, queue: MessageQueue, offset: int) -> None: ...


class RemoteBrokerOffsetStore(OffsetStore):
    """Offsets of one group. Every round sends the whole table again, so the next round replaces a lost update."""

    def __init__(self, broker: OffsetBroker) -> None:
        super().__init__()
        self._broker = broker

    def persist(self, queue: MessageQueue) -> None:
        if queue in self._offsets:
            self._broker.update_offset(queue, self._offsets[queue].value)

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Other queues belong to another consumer by now: they are removed from memory and not sent.

        An error of the broker ends the round; RocketMQ logs it and continues with the next queue.
        """
        if not queues:
            return
        self._offsets = {queue: offset for queue, offset in self._offsets.items() if queue in queues}
        for queue in self._offsets:
            self.persist(queue)

    def _read_store(self, queue: MessageQueue) -> int | None:
        return self._broker.query_offset(queue)
