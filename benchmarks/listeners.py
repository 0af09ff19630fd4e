"""Listeners for the benchmarks: the minimum that a user's listener does, and failures whose number is known."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

NAMED = ("body", "keys", "queue_offset")
_FAILING_REMAINDER = 5
FAILING_QUEUE = 3


def failing(end: int, every: int) -> range:
    """The offsets below ``end`` of a queue whose messages fail: one of ``every``; 0: none."""
    return range(_FAILING_REMAINDER, end, every) if every else range(0)


def answered(batch: pa.RecordBatch, every: int) -> pa.Array:
    """Read every body and key; fail one message of ``every``, 0: none."""
    good = pc.and_(pc.greater(pc.binary_length(batch.column("body")), 0), pc.is_valid(batch.column("keys")))
    if not every:
        return good
    remainder = batch.column("queue_offset").to_numpy(zero_copy_only=False) % every
    return pc.and_(good, pa.array(remainder != _FAILING_REMAINDER))


class Named:
    """Three columns."""

    columns: tuple[str, ...] | None = NAMED
    every = 0

    def consume_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return answered(batch, self.every)


class NamedFails83(Named):
    """1.2 % fail."""

    every = 83


class NamedFails10(Named):
    """10 % fail."""

    every = 10


class QueueFails(Named):
    """All messages of queue ``FAILING_QUEUE`` fail."""

    columns = ("body", "queue_id")

    def consume_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.not_equal(batch.column("queue_id"), FAILING_QUEUE)


class Keyed(Named):
    """Three columns, and the key by which duplicates are absorbed."""

    columns = (*NAMED, "unique_key")


class Everything(Named):
    """All columns of a message."""

    columns = None


class EverythingFails83(Everything):
    """1.2 % fail."""

    every = 83


class EverythingFails10(Everything):
    """10 % fail."""

    every = 10


class JsonBodies:
    """Python for every message: the body is parsed, a field of it decides."""

    columns = ("body",)

    def consume_batch(self, batch: pa.RecordBatch) -> pa.Array:
        bodies = batch.column(0).cast(pa.string()).to_pylist()  # all at once: json would decode them one by one
        return pa.array([json.loads(body)["state"] != "lost" for body in bodies])


def message_fields(msgs: list[Any], context: Any) -> str:
    """RocketMQ's own form; reads six fields of every message."""
    for message in msgs:
        if not (
            message.body
            and message.keys
            and message.tags
            and message.get_property("CLUSTER")
            and message.queue_offset >= 0
            and message.store_timestamp
        ):
            return "RECONSUME_LATER"
    return "CONSUME_SUCCESS"


class AllFail:
    """Everything is retried."""

    columns = ("queue_offset",)

    def consume_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(False), batch.num_rows)
