"""The first messages of a topic from an offset or a time, over all its queues, in the order in which they were stored."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.commit.positions import QueueRange
from rmq_store.lake.read.message_search import Message, messages_at
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue


def first_messages(
    topic: str,
    chosen: Sequence[tuple[Shard, Sequence[MessageQueue]]],
    most: int,
    *,
    from_offset: int | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    body: bool = True,
) -> list[Message]:
    """The oldest ``most`` readable messages of the topic, by store time and place.

    ``chosen``: shards with their queues; none of a shard: all that it has of the topic. ``from_offset``: in each queue;
    ``[begin_ms, end_ms)``: store times, UTC ms. ``begin_ms`` takes precedence over ``from_offset``. At most ``most`` messages
    of each queue are read.
    """
    rows: list[Message] = []
    for shard, of_shard in chosen:
        positions = shard.positions()
        queues = of_shard or positions.queues_of(topic)
        begins = search_offsets(shard, positions, queues, begin_ms) if begin_ms is not None else {}
        ends = search_offsets(shard, positions, queues, end_ms) if end_ms is not None else {}
        for queue in queues:
            begin = max(begins.get(queue, from_offset or 0), positions.min_offset(queue))
            end = min(ends.get(queue, positions.max_offset(queue)), begin + most)
            if begin < end:
                rows += messages_at(shard, QueueRange(queue, begin, end), body=body)
    rows.sort(key=lambda row: (row["store_timestamp"], row["broker_name"], row["queue_id"], row["queue_offset"]))
    return rows[:most]
