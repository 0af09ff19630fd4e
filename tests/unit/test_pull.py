from __future__ import annotations

from typing import Any

import pytest

from rmq_store.commit.ctl import Produced
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.pull import Slice, cover
from rmq_store.message.message import MessageQueue

Q = MessageQueue("Orders", "broker-a", 0)


def segment(base: int, count: int, file: str = "f", **more: int) -> Produced:
    fields: dict[str, Any] = {"first_row": 0} | more
    return Produced(Q, 0, count, base=base, file=file, commit_id="c", **fields)


def covered(begin: int, end: int, *segments: Produced) -> tuple[list[tuple[int, int, str, int]], list[tuple[int, int]]]:
    slices, holes = cover(QueueRange(Q, begin, end), segments)
    return [(s.begin, s.end, s.file, s.first_row) for s in slices], [(hole.begin, hole.end) for hole in holes]


def test_a_range_is_cut_out_of_the_segments_that_hold_it_in_offset_order() -> None:
    segments = (segment(20, 10, "c"), segment(0, 10, "a"), segment(10, 10, "b", first_row=100))
    assert covered(5, 25, *segments) == ([(5, 10, "a", 5), (10, 20, "b", 100), (20, 25, "c", 0)], [])


@pytest.mark.parametrize(
    ("begin", "end", "holes"),
    [
        (0, 5, [(0, 5)]),
        (0, 12, [(0, 10)]),
        (15, 32, [(20, 30)]),
        (32, 50, [(40, 50)]),
        (0, 50, [(0, 10), (20, 30), (40, 50)]),
        (12, 18, []),
        (10, 10, []),
    ],
)
def test_offsets_that_no_segment_holds_are_holes(begin: int, end: int, holes: list[tuple[int, int]]) -> None:
    slices, found = covered(begin, end, segment(10, 10), segment(30, 10))
    assert found == holes
    assert sum(e - b for b, e, *_ in slices) + sum(e - b for b, e in holes) == end - begin


def test_a_slice_knows_its_rows_and_the_place_they_come_from() -> None:
    (found,), _ = cover(
        QueueRange(Q, 12, 15),
        [segment(10, 10, first_row=40, min_store_timestamp=5, max_store_timestamp=5)],
    )
    assert found == Slice(Q, 12, 15, "f", 42, "c", 0, 5)
    assert len(found) == 3


def test_rows_of_different_times_have_no_time_in_common() -> None:
    (found,), _ = cover(QueueRange(Q, 0, 2), [segment(0, 2, min_store_timestamp=5, max_store_timestamp=6)])
    assert found.store_timestamp is None


def test_a_slice_can_be_cut_into_pieces_of_the_same_rows() -> None:
    whole = Slice(Q, 10, 15, "f", 100)
    assert [(p.begin, p.end, p.first_row) for p in whole.cut(2)] == [
        (10, 12, 100),
        (12, 14, 102),
        (14, 15, 104),
    ]
    assert whole.cut(5) == whole.cut(500) == [whole]
