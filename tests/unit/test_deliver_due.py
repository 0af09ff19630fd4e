"""What a delivery chooses, where the stories of ``tests/contract`` do not reach: odd due times and foreign queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Ctl, Produced
from rmq_store.commit.decide import MAX_SKEW_MS
from rmq_store.commit.positions import Positions, QueueRange, cutover_id, max_id, min_id, off_id
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import BadData
from rmq_store.message.message import MessageQueue
from rmq_store.window.deliver import already_delivered, groups_to_start, unread_retries
from rmq_store.window.due import Due, next_due_ms, select_due

NOW = 1_717_416_000_000
LOCAL = "lake-a"


def lane(level: int, broker_name: str = "lake-a~g") -> MessageQueue:
    return MessageQueue("SCHEDULE_TOPIC_XXXX", broker_name, level - 1)


def chosen(
    segments: Sequence[Produced],
    gaps: Sequence[tuple[int, int]] = (),
    /,
    now_ms: int = NOW,
    cap: int = 1000,
    **offsets: int,
) -> tuple[list[Due], list[tuple[str, int, int]]]:
    """The answer, and (queue, begin, end) of what is moved. ``gaps``: of salvages, in each queue; ``offsets``:
    further positions by id."""
    values = {max_id(s.queue): (s.base or 0) + s.count for s in sorted(segments, key=lambda s: s.base or 0)} | offsets
    by_queue = {s.queue: [t for t in segments if t.queue == s.queue] for s in segments}

    def segments_of(ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, Sequence[Produced]]:
        return {range_.queue: by_queue.get(range_.queue, []) for range_ in ranges}

    def gaps_of(queue: MessageQueue) -> list[QueueRange]:
        return [QueueRange(queue, *gap) for gap in gaps]

    due = select_due(Positions(1, values), segments_of, LOCAL, DelayLevels(), now_ms=now_ms, cap=cap, gaps_of=gaps_of)
    moved = [(f"{d.queue.broker_name}:{d.queue.queue_id + 1}", d.range.begin, d.range.end) for d in due if d.slices]
    return due, moved


def waiting(level: int, base: int, count: int, due_in_ms: int, broker_name: str = "lake-a~g") -> Produced:
    return Produced(lane(level, broker_name), 0, count, 0, f"f{base}", base, deliver_at=NOW + due_in_ms)


def test_a_segment_is_due_at_its_moment_and_not_before() -> None:
    due, moved = chosen([waiting(3, 0, 5, 0), waiting(3, 5, 5, 1)])
    assert moved == [("lake-a~g:3", 0, 5)]
    assert next_due_ms(due) == NOW + 1


def test_what_stands_behind_something_that_is_not_due_waits_too() -> None:
    _, moved = chosen([waiting(3, 0, 5, 1), waiting(3, 5, 5, -1)])
    assert moved == []


def test_progress_is_the_offset_of_the_system_group() -> None:
    _, moved = chosen([waiting(3, 0, 5, 0), waiting(3, 5, 5, 0)], **{off_id(SCHEDULE_GROUP, lane(3)): 3})
    assert moved == [("lake-a~g:3", 3, 10)]


@pytest.mark.parametrize("stored", [{}, {off_id(SCHEDULE_GROUP, lane(3)): 2}])
def test_delivery_begins_at_the_first_readable_message(stored: dict[str, int]) -> None:
    """Without an offset, and with one before that message."""
    _, moved = chosen([waiting(3, 4, 5, 0)], **{min_id(lane(3)): 4, **stored})
    assert moved == [("lake-a~g:3", 4, 9)]
    assert chosen([], **{min_id(lane(3)): 4, max_id(lane(3)): 4, **stored}) == ([], [])


def test_a_cap_takes_what_has_been_due_for_longest_over_all_queues() -> None:
    due, moved = chosen([waiting(3, 0, 5, -10), waiting(4, 0, 5, -30), waiting(5, 0, 5, -20)], cap=12)
    assert moved == [("lake-a~g:3", 0, 2), ("lake-a~g:4", 0, 5), ("lake-a~g:5", 0, 5)]
    assert [d.capped for d in due] == [True, False, False]


def test_a_capped_queue_gives_nothing_that_stands_behind() -> None:
    due, moved = chosen([waiting(3, 0, 5, -10), waiting(3, 5, 5, -9), waiting(4, 0, 5, -8)], cap=3)
    assert moved == [("lake-a~g:3", 0, 3)]
    assert [d.capped for d in due] == [True, True]


@pytest.mark.parametrize("cap", [1, 3, 5, 8, 10])
def test_due_times_that_fall_never_make_a_delivery_skip_a_message(cap: int) -> None:
    """A level table that changed, or a broker's clock that stepped back: what stands first is still moved first."""
    _, moved = chosen([waiting(3, 0, 5, -1), waiting(3, 5, 5, -60_000)], cap=cap)
    assert moved == [("lake-a~g:3", 0, cap)]


def test_a_time_beyond_the_levels_delay_counts_as_due() -> None:
    _, moved = chosen([waiting(3, 0, 1, 10_001 + MAX_SKEW_MS), waiting(4, 0, 1, 30_000 + MAX_SKEW_MS)])
    assert moved == [("lake-a~g:3", 0, 1)]


def test_a_living_brokers_own_queues_are_left_to_it_until_its_cut_over() -> None:
    segments = [waiting(3, 0, 1, 0, "broker-a"), waiting(3, 0, 1, 0), waiting(3, 0, 1, 0, "lake-b~g")]
    assert chosen(segments)[1] == [("lake-a~g:3", 0, 1)]
    assert chosen(segments, **{cutover_id("broker-a"): 1})[1] == [("broker-a:3", 0, 1), ("lake-a~g:3", 0, 1)]


def test_a_waiting_message_that_cannot_be_found_stops_the_delivery() -> None:
    with pytest.raises(BadData, match=r"has no message at \[5, 7\): nothing was delivered"):
        chosen([waiting(3, 0, 5, 0), waiting(3, 7, 5, 0)])

    with pytest.raises(BadData, match=r"has no message at \[6, 7\): nothing was delivered"):
        chosen([waiting(3, 0, 5, 0), waiting(3, 7, 5, 0)], [(5, 6)])


def test_the_gaps_of_a_salvage_are_passed_over_with_the_message_behind_them() -> None:
    """A gap may be of any length: no check sum covers a queue offset."""
    gaps = [(0, 2), (5, 10**12), (10**12 + 1, 10**12 + 2)]
    segments = [waiting(3, 2, 3, 0), waiting(3, 10**12, 1, 0), waiting(3, 10**12 + 2, 1, 1)]
    (one,), moved = chosen(segments, gaps)
    assert moved == [("lake-a~g:3", 0, 10**12 + 1)]
    assert [(gap.begin, gap.end) for gap in one.lost] == gaps[:2]
    assert one.next_due_ms == NOW + 1
    (one,), moved = chosen(segments, gaps, cap=3)
    assert (moved, one.capped, len(one.lost)) == ([("lake-a~g:3", 0, 5)], True, 1)


def test_a_hole_behind_what_is_not_due_stops_nothing_yet() -> None:
    _, moved = chosen([waiting(3, 0, 5, 0), waiting(3, 5, 1, 1), waiting(3, 7, 5, 2)])
    assert moved == [("lake-a~g:3", 0, 5)]


@pytest.mark.parametrize(("due", "most"), [(0, 1), (1, 2), (100, 2 * 100)])
def test_of_many_waiting_messages_few_more_than_are_due_are_looked_up(due: int, most: int) -> None:
    segments = [waiting(3, n, 1, 0 if n < due else 1) for n in range(8_000)]
    pieces: list[QueueRange] = []

    def segments_of(ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, Sequence[Produced]]:
        pieces.extend(ranges)
        return {range_.queue: segments[range_.begin : range_.end] for range_ in ranges}

    values = {max_id(lane(3)): len(segments)}
    (one,) = select_due(Positions(1, values), segments_of, LOCAL, DelayLevels(), now_ms=NOW, cap=1000)
    assert len(one.slices) == due
    assert pieces[0] == QueueRange(lane(3), 0, 1)
    assert sum(map(len, pieces)) <= most


def test_a_queue_with_more_than_the_cap_is_not_looked_up_to_its_end() -> None:
    segments = [waiting(3, 10 * n, 10, 0) for n in range(1000)]
    looked_up = 0

    def segments_of(ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, Sequence[Produced]]:
        nonlocal looked_up
        looked_up += sum(map(len, ranges))
        return {lane(3): [s for r in ranges for s in segments[r.begin // 10 : -(-r.end // 10)]]}

    (one,) = select_due(Positions(1, {max_id(lane(3)): 10_000}), segments_of, LOCAL, DelayLevels(), now_ms=NOW, cap=100)
    assert (one.range, one.capped) == (QueueRange(lane(3), 0, 100), True)
    assert looked_up <= 2 * 100


def test_delivering_as_of_a_moment_in_the_past_does_not_take_what_waits_for_a_mistake() -> None:
    """A due time is impossibly far ahead only if it is so by the real clock too (rules 11.3)."""
    segment = waiting(1, 0, 1, 0)
    queue, an_hour_ago = segment.queue, NOW - 3_600_000
    asked = partial(
        select_due,
        Positions(1, {max_id(queue): 1}),
        lambda _: {queue: [segment]},
        LOCAL,
        DelayLevels(),
        now_ms=an_hour_ago,
        cap=10,
    )
    (then,) = asked(clock_ms=NOW + 5)
    assert (then.slices, then.next_due_ms) == ((), NOW)
    (with_a_wrong_clock,) = asked(clock_ms=an_hour_ago)
    assert with_a_wrong_clock.range == QueueRange(queue, 0, 1)


def test_a_repeated_delivery_whose_queues_are_damaged_now_stays_committed() -> None:
    def damaged() -> int | None:
        raise BadData("a hole")

    ctl = Ctl("c", Action.DELIVER, Actor("tests", "tests"), request_id="2026-01-01-d", group=SCHEDULE_GROUP)
    report = already_delivered("a", ctl, damaged)
    assert (report.status, report.next_due_ms) == ("already_committed", None)
    assert report.warnings == ("shard a: committed before, but it is not known when the next message is due: a hole",)


RETRIES = MessageQueue("%RETRY%g", LOCAL, 0)


@pytest.mark.parametrize(
    ("positions", "unread"),
    [
        ({}, {}),
        ({max_id(RETRIES): 3}, {"g": NOW}),
        ({max_id(RETRIES): 3, off_id("g", RETRIES): 2}, {"g": NOW}),
        ({max_id(RETRIES): 3, off_id("g", RETRIES): 3}, {}),
        ({max_id(RETRIES): 3, min_id(RETRIES): 3, off_id("g", RETRIES): 1}, {}),
        ({max_id(RETRIES): 3, off_id("other", RETRIES): 3}, {"g": NOW}),
        ({max_id(MessageQueue("%RETRY%other", LOCAL, 0)): 3}, {}),
        ({max_id(MessageQueue("%RETRY%g", "a", 0)): 3}, {}),
    ],
    ids=["none", "no-offset", "some", "all-read", "removed", "offset-of-another", "of-another", "of-its-broker"],
)
def test_what_of_a_groups_retries_is_unread(positions: Mapping[str, int], unread: Mapping[str, int]) -> None:
    assert unread_retries(Positions(1, positions, dict.fromkeys(positions, NOW)), LOCAL, ["f", "g"]) == unread


def test_the_newest_delivery_of_all_queues_of_a_group_counts() -> None:
    queues = [MessageQueue("%RETRY%g", LOCAL, number) for number in range(3)]
    positions = {max_id(queue): 1 for queue in queues} | {off_id("g", queues[2]): 1}
    times = {max_id(queue): NOW + number for number, queue in enumerate(queues)}
    assert unread_retries(Positions(1, positions, times), LOCAL, ["g"]) == {"g": NOW + 1}


@pytest.mark.parametrize(
    ("asking", "delivered", "unread", "since_ms", "started"),
    [
        ("bac", "ab", {}, NOW, "ba"),  # its own commits, in the order of the settings
        ("a", "ab", {"b": NOW}, NOW, "a"),  # b does not ask for it
        ("a", "", {"a": NOW + 1}, NOW, "a"),  # by a run that failed
        ("a", "", {"a": NOW}, NOW, "a"),
        ("a", "", {"a": NOW - 1}, NOW, ""),  # reported by a run before: its windows fail, or are not over
        ("ab", "b", {"a": NOW + 1, "b": NOW + 1}, NOW, "ab"),
        ("a", "", {}, 0, ""),
        ("a", "", {"a": NOW}, 0, "a"),  # no run was a success before
        ("a", "", {"a": 0}, 0, "a"),  # the log does not say when
        ("ab", "b", {"a": NOW}, None, "b"),  # it is not known which run was before
    ],
)
def test_which_retry_windows_a_delivery_starts(
    asking: str, delivered: str, unread: Mapping[str, int], since_ms: int | None, started: str
) -> None:
    assert groups_to_start([*asking], {*delivered}, unread, since_ms) == [*started]
