"""Which rows a range of offsets is: RocketMQ's pull (rules 7), by segments instead of consume queue files.

The segments of a queue are known exactly, so nothing is listed or scanned. Offsets that no segment holds are a hole:
the record was skipped when a damaged log was salvaged, or is gone from the broker (MESSAGE_WAS_REMOVING, rules 7.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import QueueRange
from rmq_store.message.message import MessageQueue


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``[first_row, first_row + end - begin)`` of one file hold offsets ``[begin, end)`` of one queue.

    Each of these rows says its number as ``rel``. ``store_timestamp``: that of all rows, where they share one (rows born
    in the lake, which have none of their own).
    """

    queue: MessageQueue
    begin: int
    end: int
    file: str
    first_row: int
    commit_id: str = ""
    part: int = 0
    store_timestamp: int | None = None

    def __len__(self) -> int:
        return self.end - self.begin

    def cut(self, rows: int) -> list[Slice]:
        """The same rows as slices of at most ``rows``."""
        return [
            replace(
                self,
                begin=begin,
                end=min(begin + rows, self.end),
                first_row=self.first_row + begin - self.begin,
            )
            for begin in range(self.begin, self.end, rows)
        ]


LEAST_PIECE_ROWS = 64


def piece_rows(batch_max_size: int) -> int:
    """How many messages a window with an end looks at between two looks at the clock: some whole batches."""
    return -(-LEAST_PIECE_ROWS // batch_max_size) * batch_max_size


def cover(wanted: QueueRange, segments: Iterable[Produced]) -> tuple[list[Slice], list[QueueRange]]:
    """The slices that hold ``wanted``, in offset order, and the holes between them.

    ``segments`` are those of the queue, with bases, in any order; they do not overlap.
    """
    slices: list[Slice] = []
    holes: list[QueueRange] = []
    reached = wanted.begin
    for segment in sorted(segments, key=lambda s: s.base or 0):
        base = segment.base or 0
        begin, end = max(base, reached), min(base + segment.count, wanted.end)
        if begin >= end:
            continue
        if begin > reached:
            holes.append(QueueRange(wanted.queue, reached, begin))
        into = begin - base
        slices.append(
            Slice(
                wanted.queue,
                begin,
                end,
                segment.file,
                segment.first_row + into,
                segment.commit_id,
                segment.part,
                segment.max_store_timestamp if segment.min_store_timestamp == segment.max_store_timestamp else None,
            )
        )
        reached = end
    if reached < wanted.end:
        holes.append(QueueRange(wanted.queue, reached, wanted.end))
    return slices, holes
