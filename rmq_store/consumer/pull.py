"""Which rows of which files have the messages of a range of offsets: RocketMQ's pull (rules 7), by segments instead of
consume queue files.

The segments of a queue are known exactly, so nothing is listed or scanned. Offsets in no segment are a hole: the record
was skipped when a damaged log was salvaged, or is gone from the broker (MESSAGE_WAS_REMOVING, rules 7.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import QueueRange
from rmq_store.message.message import MessageQueue


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``[first_row, first_row + end - begin)`` of one file: offsets ``[begin, end)`` of one queue."""

    queue: MessageQueue
    begin: int
    end: int
    file: str
    first_row: int
    """Number of the first row in the file; each row has its number in the column ``rel``."""
    commit_id: str = ""
    part: int = 0
    """Number of the data file in its commit."""
    store_timestamp: int | None = None
    """UTC ms of all rows, where they share one: rows born in the lake have no time of their own."""

    def __len__(self) -> int:
        return self.end - self.begin

    def cut(self, rows: int) -> list[Slice]:
        """The same rows as slices of at most ``rows`` rows."""
        return [
            replace(
                self,
                begin=begin,
                end=min(begin + rows, self.end),
                first_row=self.first_row + begin - self.begin,
            )
            for begin in range(self.begin, self.end, rows)
        ]


LEAST_ROWS_PER_TIME_CHECK = 64


def rows_per_time_check(batch_max_size: int) -> int:
    """How many messages a window with ``max_minutes`` reads between two looks at the clock: whole batches, at least
    ``LEAST_ROWS_PER_TIME_CHECK``."""
    return -(-LEAST_ROWS_PER_TIME_CHECK // batch_max_size) * batch_max_size


def by_file(slices: Sequence[Slice]) -> list[Slice]:
    """The same slices, those of one file together. A queue's slices stay in their order.

    Files are in an order that all queues agree on: every queue names them in the order of their commits. Where the queues
    do not agree, the slices stay as they are.
    """
    files: TopologicalSorter[str] = TopologicalSorter()
    last: dict[MessageQueue, str] = {}
    of_file: dict[str, list[Slice]] = {}
    for slice_ in slices:
        before = last.get(slice_.queue, slice_.file)
        files.add(slice_.file, *(() if before == slice_.file else (before,)))
        last[slice_.queue] = slice_.file
        of_file.setdefault(slice_.file, []).append(slice_)
    try:
        return [slice_ for file in files.static_order() for slice_ in of_file[file]]
    except CycleError:
        return list(slices)


def cover(range_: QueueRange, segments: Iterable[Produced]) -> tuple[list[Slice], list[QueueRange]]:
    """The slices with the messages of ``range_``, in offset order, and the holes between them.

    ``segments``: of this queue, with bases, in any order; they do not overlap.
    """
    slices: list[Slice] = []
    holes: list[QueueRange] = []
    reached = range_.begin
    for segment in sorted(segments, key=lambda s: s.base or 0):
        base = segment.base or 0
        begin, end = max(base, reached), min(base + segment.count, range_.end)
        if begin >= end:
            continue
        if begin > reached:
            holes.append(QueueRange(range_.queue, reached, begin))
        shared_time = segment.min_store_timestamp == segment.max_store_timestamp
        slices.append(
            Slice(
                queue=range_.queue,
                begin=begin,
                end=end,
                file=segment.file,
                first_row=segment.first_row + begin - base,
                commit_id=segment.commit_id,
                part=segment.part,
                store_timestamp=segment.max_store_timestamp if shared_time else None,
            )
        )
        reached = end
    if reached < range_.end:
        holes.append(QueueRange(range_.queue, reached, range_.end))
    return slices, holes
