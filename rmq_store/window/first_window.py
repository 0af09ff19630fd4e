"""A group's first window chooses where its queues start, also in the other shards of the store.

A group is one group in all shards, as it is one at all brokers. Its first window records the starts that ConsumeFromWhere
gives to the queues of the other shards, as they are when it is planned (``docs/decisions/0006-claim-per-queue.md``). A queue
that no such window knew appeared later. So no clock decides what was there first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rmq_store.commit.ctl import Ctl
from rmq_store.commit.positions import del_id, grp_id
from rmq_store.consumer.start import Start, StartRule
from rmq_store.message.message import MessageQueue
from rmq_store.window.shard_view import ShardView

STARTS_ELSEWHERE = "starts_elsewhere"
"""The parameter of a group's first window: a list of ``[topic, broker_name, queue_id, offset, rule, deleted]``."""


@dataclass(frozen=True, slots=True)
class StartElsewhere:
    """Where a queue of another shard starts."""

    queue: MessageQueue
    start: Start | None
    """None: where ConsumeFromWhere says when its own shard's first window comes."""
    deleted: int | None
    """The group's epoch at its last delete in that shard. A later delete makes the start void."""


def first_windows(shards: Iterable[ShardView], group: str) -> list[Ctl]:
    """The group's first window in each of the shards that had one, not counting those before a delete of the group."""
    windows = []
    for shard in shards:
        positions = shard.positions()
        if positions.get(grp_id(group)) is None:
            continue
        window = shard.first_window(group, positions.get(del_id(group)) or 0)
        if window is not None:
            windows.append(window)
    return windows


def starts_parameter(starts: Iterable[StartElsewhere]) -> list[list[Any]]:
    """What a first window records of them."""
    return [
        [
            one.queue.topic,
            one.queue.broker_name,
            one.queue.queue_id,
            one.start and one.start.offset,
            one.start and str(one.start.rule),
            one.deleted,
        ]
        for one in sorted(starts, key=lambda one: one.queue)
    ]


def starts_chosen(windows: Iterable[Ctl], deleted: int | None) -> dict[MessageQueue, Start | None]:
    """What the first windows among these chose for the queues of a shard. There are several if they ran at once: then a queue
    that one of them did not know is left out, and of two starts the earlier one counts.

    ``deleted``: the group's epoch at its last delete in the shard.
    """
    records = [
        _recorded(rows, deleted) for window in windows if (rows := window.parameter(STARTS_ELSEWHERE)) is not None
    ]
    queues = set.intersection(*(set(record) for record in records)) if records else set[MessageQueue]()
    return {queue: _earliest(record[queue] for record in records) for queue in queues}


def _recorded(rows: Iterable[list[Any]], deleted: int | None) -> dict[MessageQueue, Start | None]:
    return {
        MessageQueue(topic, broker, queue_id): (
            None if offset is None or deleted_then != deleted else Start(offset, StartRule(rule))
        )
        for topic, broker, queue_id, offset, rule, deleted_then in rows
    }


def _earliest(starts: Iterable[Start | None]) -> Start | None:
    return min((start for start in starts if start is not None), key=lambda start: start.offset, default=None)
