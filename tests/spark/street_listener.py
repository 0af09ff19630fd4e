"""Listeners for the windows of ``test_engine.py``; Spark's workers import them by name."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def each(msgs: list[Any], context: Any) -> Iterator[str]:
    """One status a message: what has a plan fails."""
    for message in msgs:
        yield "RECONSUME_LATER" if message.get_property("plan") else "CONSUME_SUCCESS"


def batch(batch: pa.RecordBatch) -> pa.Array:
    """The same over Arrow."""
    return pc.is_null(pc.map_lookup(batch.column("properties"), pa.scalar("plan"), "first"))


batch.columns = ("properties",)  # type: ignore[attr-defined]


def exits(msgs: list[Any], context: Any) -> str:
    if any(message.get_property("plan") for message in msgs):
        os._exit(0)
    sys.exit(0)


def dies(msgs: list[Any], context: Any) -> str:
    if any(message.queue_offset % 4 == 1 for message in msgs):
        os.kill(os.getpid(), signal.SIGKILL)
    return "CONSUME_SUCCESS"


def nonsense(msgs: list[Any], context: Any) -> str:
    return "MAYBE"
