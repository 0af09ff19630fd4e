"""Checks holes of ``consumequeue`` against the commit log.

The table is derived, so a hole in it proves nothing: before offsets are reported as lost, the ctl rows are searched for
what was stored there. That is slow, and only done where there is a hole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow.compute as pc

from rmq_store.commit.ctl import Action, is_born_here
from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.errors import DerivedTableDamaged
from rmq_store.lake.commit.cursor import ctl_files
from rmq_store.lake.commit.tail import ONE_ACTION
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue

_LISTED = 5


def refuse_missing(shard: Shard, holes: Iterable[QueueRange]) -> None:
    """Raise DerivedTableDamaged when the commit log has messages at readable offsets of these ranges, for which
    ``consumequeue`` has no segment."""
    readable = _readable(shard.positions(), holes)
    if readable and (missing := produced_in_log(shard, readable)):
        listed = ", ".join(f"[{one.begin}, {one.end}) of {one.queue}" for one in missing[:_LISTED])
        more = f" and {len(missing) - _LISTED} more ranges" if len(missing) > _LISTED else ""
        table, log = shard.consumequeue.path, shard.commitlog.path
        raise DerivedTableDamaged(f"the table {table} lacks {listed}{more}, which {log} has.")


def _readable(positions: Positions, ranges: Iterable[QueueRange]) -> list[QueueRange]:
    """The parts of the ranges at or after the queues' first readable offsets."""
    begins = ((range_, max(range_.begin, positions.min_offset(range_.queue))) for range_ in ranges)
    return [QueueRange(range_.queue, begin, range_.end) for range_, begin in begins if begin < range_.end]


def produced_in_log(shard: Shard, ranges: Sequence[QueueRange]) -> list[QueueRange]:
    """The parts of the ranges that were stored, by the ctl rows of the handle."""
    ranges_of: dict[MessageQueue, list[QueueRange]] = defaultdict(list)
    for range_ in ranges:
        ranges_of[range_.queue].append(range_)
    stored = [
        QueueRange(segment.queue, max(range_.begin, base), min(range_.end, base + segment.count))
        for ctl in shard.ctls_in(_files_about(shard, ranges_of))
        for segment in ctl.produced
        for base in [segment.base or 0]
        for range_ in ranges_of.get(segment.queue, ())
        if base < range_.end and base + segment.count > range_.begin
    ]
    return sorted(stored, key=lambda one: (one.queue, one.begin))


def _files_about(shard: Shard, queues: Iterable[MessageQueue]) -> list[str]:
    """The ctl files that may say what was stored in the queues. A broker's own queues are
    filled only by imports, which are few."""
    files = ctl_files(shard.commitlog)
    if not any(is_born_here(queue.broker_name) for queue in queues):
        imports = [str(Action.IMPORT), str(Action.SALVAGE)]
        files = files.filter(~ONE_ACTION | pc.field("min.action").isin(imports))
    return list(files.column("path").to_pylist())
