"""``range_notes`` for a topic in shards of the lake."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import QueueRange, max_id
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest, Scope
from rmq_store.window.range_notes import TimedRange, range_notes, removed_notes, removed_of


def notes_of_times(
    shards: Sequence[tuple[Shard, Sequence[MessageQueue]]],
    from_ms: int,
    until_ms: int | None,
    now_ms: int,
    *,
    is_reset: bool = False,
) -> list[str]:
    """What is unusual about ``[from_ms, until_ms)`` (UTC ms) in these queues of these shards."""
    ranges = [one for shard, queues in shards for one in _ranges(shard, queues, from_ms, until_ms)]
    return range_notes(ranges, from_ms, until_ms, now_ms, is_reset=is_reset)


def removed_of_replay(shard: Shard, group: GroupSettings, request: ConsumeRequest, scope: Scope) -> list[str]:
    """What the time range of a replay has lost in the shard, in words; of any other request nothing."""
    if scope.from_ms is None:
        return []
    queues = queues_of_topics(shard, group)
    return removed_notes(_ranges(shard, queues, scope.from_ms, request.until_ms), scope.from_ms)


def queues_of_topics(shard: Shard, group: GroupSettings) -> list[MessageQueue]:
    """The queues of the topics of a group in the shard."""
    positions = shard.positions()
    return [queue for subscription in group.subscriptions for queue in positions.queues_of(subscription.topic)]


def _ranges(shard: Shard, queues: Sequence[MessageQueue], from_ms: int, until_ms: int | None) -> list[TimedRange]:
    positions = shard.positions()
    begins = search_offsets(shard, positions, queues, from_ms)
    ends = None if until_ms is None else search_offsets(shard, positions, queues, until_ms)
    # The time of the first message matters only where messages before it are not kept, and the range begins at it.
    firsts = [
        QueueRange(queue, least, least + 1)
        for queue in queues
        if 0 < (least := positions.min_offset(queue)) < positions.max_offset(queue) and begins[queue] == least
    ]
    segments = segments_of(shard, firsts)
    # Likewise what was before it: segments of removed messages stay known until a compaction leaves their rows out.
    removed = {
        queue: QueueRange(queue, 0, least)
        for queue in queues
        if (least := positions.min_offset(queue)) and begins[queue] <= least
    }
    before = segments_of(shard, [*removed.values()])
    return [
        TimedRange(
            queue=queue,
            begin=begins[queue],
            end=positions.max_offset(queue) if ends is None else ends[queue],
            least=positions.min_offset(queue),
            most=positions.max_offset(queue),
            first_ms=next((_stored_ms(shard, one, begins[queue]) for one in segments.get(queue, ())), None),
            last_ms=positions.updated_ms(max_id(queue)) or None,
            removed=removed_of(len(removed.get(queue, ())), before.get(queue, ()), from_ms, until_ms),
        )
        for queue in queues
    ]


def _stored_ms(shard: Shard, segment: Produced, offset: int) -> int | None:
    """When a message of the segment was stored (UTC ms)."""
    if segment.min_store_timestamp == segment.max_store_timestamp:
        return segment.min_store_timestamp
    row = segment.first_row + offset - (segment.base or 0)
    times = shard.commitlog.rows(segment.file, row, 1, ["store_timestamp"]).column("store_timestamp")
    stored_ms: int | None = times[0].as_py()
    return stored_ms
