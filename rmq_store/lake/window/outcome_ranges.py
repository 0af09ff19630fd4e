"""The rows of offsets with an exceptional outcome and no message of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from rmq_store.commit.positions import Outcome, QueueRange
from rmq_store.lake.table import tables
from rmq_store.message.message import MessageQueue

NO_MESSAGE = "no message is there"
"""The reason of lost offsets."""


def outcome_ranges(
    commit_id: str,
    group: str,
    passes: Mapping[MessageQueue, int],
    window_id: str | None,
    exceptions: Sequence[tuple[QueueRange, Outcome, str]],
) -> pa.Table:
    """The rows (schema OUTCOME_RANGE) of ranges that are lost or dropped, each with its reason. ``passes``: of the group, by
    queue; ``window_id``: None for a delivery."""
    count = len(exceptions)
    ranges = [range_ for range_, _, _ in exceptions]
    columns: dict[str, Sequence[object]] = {
        "commit_id": [commit_id] * count,
        "part": [None] * count,
        "rel": [None] * count,
        "topic": [range_.queue.topic for range_ in ranges],
        "broker_name": [range_.queue.broker_name for range_ in ranges],
        "queue_id": [range_.queue.queue_id for range_ in ranges],
        "group_name": [group] * count,
        "pass": [passes[range_.queue] for range_ in ranges],
        "window_id": [window_id] * count,
        "begin_offset": [range_.begin for range_ in ranges],
        "end_offset": [range_.end for range_ in ranges],
        "outcome": [str(outcome) for _, outcome, _ in exceptions],
        "reason": [reason for _, _, reason in exceptions],
    }
    return pa.table(columns, schema=tables.OUTCOME_RANGE)
