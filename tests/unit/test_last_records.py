"""Which bytes of a log show later that it is the one that was imported."""

from __future__ import annotations

import pytest

from rmq_store.lake.broker.last_records import Written, over_marker, window

FILE = 10_000
"""Begin of the file."""


@pytest.mark.parametrize(
    ("last", "bytes_"),
    [
        (Written(FILE, FILE + 100), (FILE, FILE + 100)),
        (Written(FILE + 100, FILE + 4096), (FILE, FILE + 4096)),
        (Written(FILE + 4000, FILE + 4200), (FILE + 104, FILE + 4200)),
        (Written(FILE + 300, FILE + 9000), (FILE + 300, FILE + 9000)),
    ],
)
def test_the_last_record_and_at_least_4096_bytes_of_its_file(last: Written, bytes_: tuple[int, int]) -> None:
    assert window(last, FILE) == bytes_


@pytest.mark.parametrize(
    ("last", "marker", "task_begin", "over"),
    [
        (Written(FILE, FILE + 100), FILE + 100, FILE, Written(FILE, FILE + 108)),
        (Written(FILE, FILE + 100), FILE + 200, FILE, Written(FILE, FILE + 100)),
        (None, FILE + 100, FILE + 100, Written(FILE + 100, FILE + 108)),
        (None, FILE + 100, FILE, None),
        (None, FILE, FILE, None),
    ],
    ids=["behind a record", "behind damage", "where the task begins", "behind only damage", "alone in its file"],
)
def test_a_marker_belongs_to_the_record_before_it(
    last: Written | None, marker: int, task_begin: int, over: Written | None
) -> None:
    assert over_marker(last, marker, task_begin, FILE) == over
