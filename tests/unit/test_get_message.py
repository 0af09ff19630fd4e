"""Where a broker's answer to a pull ends (rules 7.2). The conformance run compares it with a real store's answers."""

from __future__ import annotations

import pytest

from rmq_store.log.get_message_status import GetMessageStatus
from tests.oracle.get_message import IN_MEMORY, ON_DISK, Entry, GetMessageResult, TransferLimits, get_message

FOUND, NONE = GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE


def entries(count: int, *, size: int = 100, every: int = 1, first: int = 0) -> list[Entry]:
    """``every``: only each so many-th passes the filter."""
    return [Entry(n, size, n % every == 0) for n in range(first, first + count)]


def test_an_answer_has_what_was_asked_for_and_at_most_what_the_broker_transfers() -> None:
    assert get_message(entries(50), 0, 7) == GetMessageResult(FOUND, 7, tuple(range(7)))
    assert get_message(entries(50), 0, 40, IN_MEMORY).next_begin_offset == 32
    assert get_message(entries(50), 0, 40, ON_DISK).next_begin_offset == 8


@pytest.mark.parametrize(("limits", "size", "count"), [(IN_MEMORY, 64 << 10, 4), (ON_DISK, 16 << 10, 4)])
def test_the_bytes_count_too_but_never_for_the_first_message(limits: TransferLimits, size: int, count: int) -> None:
    assert len(get_message(entries(32, size=size), 0, 32, limits).offsets) == count
    assert get_message(entries(32, size=4 << 20), 0, 32, limits).offsets == (0,)


def test_a_filter_looks_at_eight_hundred_entries_and_goes_on_behind_the_last() -> None:
    assert get_message(entries(2000, every=10_000, first=1), 1) == GetMessageResult(NONE, 801)
    assert get_message(entries(2000, every=10_000, first=1), 1, 1000) == GetMessageResult(NONE, 1001)
    assert get_message(entries(30, every=10_000, first=1), 1) == GetMessageResult(NONE, 31)


def test_what_does_not_pass_uses_up_no_place_in_the_answer() -> None:
    assert get_message(entries(500, every=10), 0) == GetMessageResult(FOUND, 311, tuple(range(0, 320, 10)))


def test_an_answer_ends_with_the_consume_queue_file() -> None:
    assert get_message(entries(50, first=3), 3, 32, entries_per_file=20) == GetMessageResult(
        FOUND, 20, tuple(range(3, 20))
    )
    assert get_message(entries(50, first=20), 20, 32, entries_per_file=20).next_begin_offset == 40
    assert get_message(entries(50, every=10_000, first=1), 1, 32, entries_per_file=20) == GetMessageResult(NONE, 20)
