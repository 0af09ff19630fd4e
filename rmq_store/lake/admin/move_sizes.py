"""``rmq_store/admin/move_sizes.py`` for shards of the lake."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.move_sizes import MoveSize, StateBefore
from rmq_store.commit.ctl import Moved
from rmq_store.consumer.pull import cover
from rmq_store.lake.read.body_sizes import bytes_of_slices
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.shard_view import observed_offsets


def state_before(shard: Shard, group: str, settings: GroupSettings | None) -> StateBefore:
    """``settings``: those of the group, None when there are none."""
    positions = shard.positions()
    at_min = settings is None or settings.later_queues_start_at_min
    return StateBefore(positions, observed_offsets(ShardLookup(shard), positions, group), at_min)


def move_sizes(shard: Shard, before: StateBefore, moves: Sequence[Moved]) -> tuple[MoveSize, ...]:
    """Per queue the messages that a move gives back or skips, exactly, and the bytes of their bodies; without the queues of
    which the start is not known. Reads that one column of them."""
    known = [between for move in moves if (between := before.between(move)) is not None]
    segments = segments_of(shard, [range_ for _, range_ in known])
    slices = {range_.queue: cover(range_, segments.get(range_.queue, ()))[0] for _, range_ in known}
    several = [slice_ for of_queue in slices.values() for slice_ in of_queue]
    bytes_ = bytes_of_slices(shard.root, shard.commitlog.path, several)
    return tuple(
        MoveSize(
            queue=range_.queue,
            direction=direction,
            messages=sum(map(len, slices[range_.queue])),
            bytes=bytes_.get(range_.queue, 0),
        )
        for direction, range_ in known
    )
