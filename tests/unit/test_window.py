from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_store.commit.positions import Positions, QueueRange, grp_id, max_id, min_id, off_id, pas_id
from rmq_store.consumer.start import Start, StartRule
from rmq_store.errors import BadData, OffsetOutOfRange
from rmq_store.message.message import MessageQueue
from rmq_store.window.ranges import PlannedRange, capped_by_bytes, plan_ranges, stored_starts, window_id

Q = [MessageQueue("Orders", "broker-a", n) for n in range(4)]


def positions(*ends: int, **more: int) -> Positions:
    """Queues that end at these offsets; ``min0=3``: queue 0 begins at 3, ``pas0``: its pass, ``epoch``: the group's."""
    values = {max_id(queue): end for queue, end in zip(Q, ends, strict=False)}
    for name, value in more.items():
        ids: dict[str, Callable[[MessageQueue], str]] = {
            "min": min_id,
            "pas": lambda queue: pas_id("g", queue),
            "off": lambda queue: off_id("g", queue),
        }
        values[grp_id("g") if name == "epoch" else ids[name[:3]](Q[int(name[3:])])] = value
    return Positions(1, values)


def planned(
    at: Positions,
    begins: dict[int, int],
    bounds: dict[int, int] | None = None,
    rule: StartRule = StartRule.STORED,
    **more: object,
) -> list[tuple[int, int, int]]:
    """(queue, begin, end) of the planned ranges."""
    start_of = {Q[n]: Start(offset, rule) for n, offset in begins.items()}
    resolved = {Q[n]: end for n, end in (bounds or {}).items()}
    found = plan_ranges("g", at, start_of, resolved, **more)  # type: ignore[arg-type]
    return [(p.queue.queue_id, p.range.begin, p.range.end) for p in found]


def test_stored_offsets_are_starts_and_the_others_are_unknown() -> None:
    known, unknown = stored_starts("g", Q[:3], positions(9, 9, 9, off0=4, off2=0))
    assert known == {Q[0]: Start(4, StartRule.STORED), Q[2]: Start(0, StartRule.STORED)}
    assert unknown == [Q[1]]


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (7, [(0, 4, 7)]),
        (10, [(0, 4, 10)]),
        (99, [(0, 4, 10)]),
        (4, []),
        (2, []),
    ],
)
def test_a_window_ends_at_its_bound_but_within_the_queue_and_never_before_its_start(
    bound: int, expected: list[tuple[int, int, int]]
) -> None:
    assert planned(positions(10), {0: 4}, {0: bound}) == expected


def test_without_a_bound_a_queue_is_read_to_its_end() -> None:
    assert planned(positions(10, 3), {0: 4, 1: 0}) == [(0, 4, 10), (1, 0, 3)]


def test_a_first_start_is_kept_even_when_there_is_nothing_to_read() -> None:
    assert planned(positions(10), {0: 10}, rule=StartRule.LAST_OFFSET) == [(0, 10, 10)]
    assert planned(positions(10), {0: 10}) == []


def test_ranges_come_in_queue_order() -> None:
    assert planned(positions(5, 5, 5), {2: 0, 0: 0, 1: 0}) == [(0, 0, 5), (1, 0, 5), (2, 0, 5)]


def test_a_start_beyond_the_end_is_refused_with_the_command_that_repairs_it() -> None:
    with pytest.raises(BadData, match=r"is 11, beyond the queue's end 10 .*--topic Orders --queue broker-a:0 --to-max"):
        planned(positions(10), {0: 11})


def test_a_start_below_the_first_readable_offset_is_refused_or_the_range_between_is_lost() -> None:
    at = positions(10, min0=6)
    with pytest.raises(
        OffsetOutOfRange, match=r" is 4, but retention removed \[4, 6\).*on_offset_out_of_range.*--to-min"
    ):
        planned(at, {0: 4})
    (found,) = plan_ranges("g", at, {Q[0]: Start(4, StartRule.STORED)}, {}, lost_is_skipped=True)
    assert found == PlannedRange(QueueRange(Q[0], 6, 10), QueueRange(Q[0], 4, 6), 0, StartRule.STORED)
    assert found.begin == 4


def test_lost_ranges_are_recorded_even_when_nothing_is_left_to_read() -> None:
    (found,) = plan_ranges("g", positions(6, min0=6), {Q[0]: Start(4, StartRule.STORED)}, {}, lost_is_skipped=True)
    assert (found.begin, found.range.begin, found.range.end) == (4, 6, 6)


@pytest.mark.parametrize(
    ("sizes", "cap", "shares"),
    [
        (((10, 10, 10), (10, 10, 10)), 60, [3, 3]),
        (((10, 10, 10), (10, 10, 10)), 40, [2, 2]),
        (((10,), (10, 10, 10, 10)), 40, [1, 3]),
        (((99, 1), (99, 1)), 10, [1, 1]),
        (((0, 0, 0), (0, 50)), 1, [3, 1]),
        (((), (5, 5)), 10, [0, 2]),
    ],
)
def test_bytes_are_shared_fairly_and_each_queue_has_its_first_message(
    sizes: tuple[tuple[int, ...], ...], cap: int, shares: list[int]
) -> None:
    ranges = [PlannedRange(QueueRange(Q[n], 7, 7 + len(of)), None, 0, StartRule.STORED) for n, of in enumerate(sizes)]
    found = capped_by_bytes(ranges, cap, lambda r: enumerate(sizes[r.queue.queue_id], 7))
    assert [len(planned.range) for planned in found] == shares


@pytest.mark.parametrize(
    ("lengths", "cap", "shares"),
    [
        ((10, 10), 100, [10, 10]),
        ((10, 10), 10, [5, 5]),
        ((10, 10), 9, [5, 4]),
        ((1, 10, 10), 7, [1, 3, 3]),
        ((10, 1, 10), 9, [4, 1, 4]),
        ((3, 3, 3, 3), 2, [1, 1]),
        ((5,), 0, []),
    ],
)
def test_a_cap_is_shared_fairly_and_what_small_queues_leave_goes_to_the_others(
    lengths: tuple[int, ...], cap: int, shares: list[int]
) -> None:
    found = planned(positions(*lengths), dict.fromkeys(range(len(lengths)), 0), max_messages=cap)
    assert [end - begin for _, begin, end in found] == shares
    assert sum(shares) == min(cap, sum(lengths))


def test_a_cap_keeps_first_starts_and_lost_ranges() -> None:
    assert planned(positions(5, 5), {0: 0, 1: 0}, rule=StartRule.FIRST_OFFSET, max_messages=1) == [(0, 0, 1), (1, 0, 0)]
    lost = planned(positions(9, 9, min0=2), {0: 0, 1: 0}, max_messages=0, lost_is_skipped=True)
    assert lost == [(0, 2, 2)]


def test_a_stored_start_has_the_queues_pass_and_a_first_one_that_of_the_last_action() -> None:
    at = positions(5, 5, pas0=2, epoch=3)
    found = plan_ranges("g", at, {Q[0]: Start(0, StartRule.STORED), Q[1]: Start(0, StartRule.LATER_QUEUE)}, {})
    assert [p.pass_ for p in found] == [2, 3]


def test_a_window_is_named_by_its_group_epoch_and_ranges_alone() -> None:
    one = [PlannedRange(QueueRange(Q[0], 0, 5), None, 0, StartRule.STORED)]
    lost_first = [PlannedRange(QueueRange(Q[0], 2, 5), QueueRange(Q[0], 0, 2), 1, "observed")]
    assert window_id("g", 1, one) == window_id("g", 1, lost_first)
    assert window_id("g", 1, one).startswith("g-1-")
    others = [window_id("g", 2, one), window_id("h", 1, one), window_id("g", 1, [])]
    assert window_id("g", 1, one) not in others
