"""Messages of a record batch as ``MessageExt`` objects that look up a value when it is read.

A listener reads a few of a message's twenty fields; making Python objects of all of them would cost more than its own
work. A column becomes a list when its first value is read, a property when it is first read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.lake.read.first_topics import first_topics, has_first_topics
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.sys_flag import MessageSysFlag

_STORED = (
    "commit_log_offset", "store_size", "body", "flag", "sys_flag", "born_timestamp", "born_host", "store_host",
    "reconsume_times", "prepared_transaction_offset", "body_crc", "offset_msg_id", "tags", "keys", "unique_key",
)  # fmt: skip
_DERIVED = ("topic", "broker_name", "queue_id", "queue_offset", "store_timestamp", "properties")

_SETTABLE = ("reconsume_times",)
"""In order the client counts the tries itself: ``ConsumeMessageOrderlyService#processConsumeResult`` (rules 9.2)."""


class MessageColumns:
    """The columns of one batch as lists, each made when it is first read and then kept as an attribute."""

    def __init__(self, queue: MessageQueue, offsets: npt.NDArray[np.int64], batch: pa.RecordBatch) -> None:
        self._queue = queue
        self._offsets = offsets
        self._batch = batch
        self._by_property: dict[str, list[str | None]] = {}

    @property
    def rows(self) -> tuple[MessageQueue, npt.NDArray[np.int64], pa.RecordBatch]:
        """The queue, the offset of each row, and the rows."""
        return self._queue, self._offsets, self._batch

    def __getattr__(self, name: str) -> list[Any]:
        values = self._list_of(name)
        setattr(self, name, values)
        return values

    def _list_of(self, name: str) -> list[Any]:
        rows = self._batch.num_rows
        match name:
            case "queue_offset":
                return list(self._offsets.tolist())
            case "broker_name" | "queue_id":
                return [getattr(self._queue, name)] * rows
            case "topic":
                return self._topics()
            case "sys_flag":  # the body is plain here
                return [MessageSysFlag.clear_compressed(flag) for flag in self._read(name)]
            case "properties":
                return [dict(pairs or ()) for pairs in self._read(name)]
        return self._read(name)

    def _topics(self) -> list[str]:
        topic = self._queue.topic
        if not has_first_topics(topic):
            return [topic] * self._batch.num_rows
        return list(first_topics(topic, self._column("properties")).to_pylist())

    def by_property(self, name: str) -> list[str | None]:
        values = self._by_property.get(name)
        if values is None:
            values = pc.map_lookup(self._column("properties"), pa.scalar(name), "last").to_pylist()
            self._by_property[name] = values
        return values

    def _read(self, name: str) -> list[Any]:
        return list(self._column(name).to_pylist())

    def _column(self, name: str) -> pa.Array:
        if name not in self._batch.schema.names:
            raise AttributeError(f"{name} was not read: name it in the listener's columns ({self._batch.schema.names})")
        return self._batch.column(name)


class MessageView(MessageExt):
    """One row of a batch. Reads like any MessageExt; only ``reconsume_times`` can be set."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: MessageColumns, row: int) -> None:
        self._columns = columns
        self._row = row

    @property
    def place(self) -> tuple[MessageColumns, int]:
        """The columns of its batch, and its row there."""
        return self._columns, self._row

    def get_property(self, name: str) -> str | None:
        return self._columns.by_property(name)[self._row]

    def get_user_property(self, name: str) -> str | None:
        return self._columns.by_property(name)[self._row]

    def __repr__(self) -> str:
        return f"MessageExt({self._columns._queue} offset {self.queue_offset})"


def _looked_up(name: str) -> property:
    def value(self: MessageView) -> Any:
        return getattr(self._columns, name)[self._row]

    def put(self: MessageView, value: Any) -> None:
        getattr(self._columns, name)[self._row] = value

    return property(value, put if name in _SETTABLE else None, doc=f"``{name}`` of the row.")


for _name in (*_STORED, *_DERIVED):
    setattr(MessageView, _name, _looked_up(_name))


class MessageViews:
    """All messages of a batch of a queue; ``offsets`` are their queue offsets."""

    def __init__(self, queue: MessageQueue, offsets: npt.NDArray[np.int64], batch: pa.RecordBatch) -> None:
        self._columns = MessageColumns(queue, offsets, batch)

    def messages(self, begin: int, end: int) -> list[MessageExt]:
        """Rows ``[begin, end)``."""
        columns = self._columns
        return [MessageView(columns, row) for row in range(begin, end)]
