"""What is said of a range that was chosen by time, and the estimate of how long windows take, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Produced
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.message.message import MessageQueue
from rmq_store.window.estimate import Estimate, Sample, estimate_of, no_estimate, sample_of, time_limit_notes
from rmq_store.window.range_notes import Removed, TimedRange, range_notes, removed_of, until_notes

NOW = 1_717_416_000_000  # 2024-06-03T12:00:00Z
HOUR = 3_600_000
ORDERS = MessageQueue("Orders", "broker-a", 0)


def queue(
    begin: int,
    end: int,
    *,
    least: int = 0,
    most: int = 100,
    first: int = -5,
    last: int = -1,
    removed: Removed | None = None,
) -> TimedRange:
    """``first``, ``last``: when the first readable and the newest message were stored, in hours from now. ``removed``: what the
    range has lost; None: all that the queue has."""
    return TimedRange(
        queue=ORDERS,
        begin=begin,
        end=end,
        least=least,
        most=most,
        first_ms=NOW + first * HOUR,
        last_ms=NOW + last * HOUR,
        removed=removed or Removed(least),
    )


NONE: list[str] = []
ALL, PART, END = queue(0, 100), queue(40, 60), queue(100, 100)
TRIMMED = queue(30, 100, least=30)
FUTURE = "is in the future: the group moves to the end of each queue, as in RocketMQ"
NO_LATER = "no message was stored at 2024-06-03T11:30:00.000Z or later; the newest is of 2024-06-03T11:00:00.000Z"
MISSING = (
    "messages from 2024-06-03T06:00:00.000Z on may be missing: MessageQueue [topic=Orders, brokerName=broker-a, queueId=0] "
    "begins at offset 30, stored at 2024-06-03T07:00:00.000Z"
)
GONE = "30 messages of 1 queue are no longer kept"
EMPTIED = replace(queue(100, 100, least=100), first_ms=None)
SPAN = "from 2024-06-03T06:00:00.000Z to 2024-06-03T07:00:00.000Z"
BEFORE = queue(30, 30, least=30)
NONE_KEPT = "no message from 2024-06-03T06:00:00.000Z on is kept: there is nothing to replay"
HOLDS_NONE = (
    "messages from 2024-06-03T06:00:00.000Z on may be missing: MessageQueue [topic=Orders, brokerName=broker-a, queueId=0] "
    "holds none any more; 100 messages of 1 queue are no longer kept"
)

REPLAYS = [
    # from, until (hours from now), ranges, what the notes begin with
    (-6, None, [ALL], NONE),
    (-6, -1, [PART], NONE),
    (-0.5, None, [END], [f"{NO_LATER}: there is nothing to replay"]),
    (-0.5, None, [END, PART], NONE),
    (
        -3,
        -2,
        [queue(50, 50)],
        ["no message was stored from 2024-06-03T09:00:00.000Z to 2024-06-03T10:00:00.000Z: there is"],
    ),
    (-6, None, [TRIMMED], [f"{MISSING}; {GONE}"]),
    (-6, None, [TRIMMED, TRIMMED], [f"{MISSING}; 60 messages of 2 queues are no longer kept"]),
    (-6, None, [TRIMMED, EMPTIED], [f"{MISSING}; 130 messages of 2 queues are no longer kept"]),
    (-6, None, [ALL, EMPTIED], [HOLDS_NONE]),
    (-6, None, [EMPTIED], [NONE_KEPT, HOLDS_NONE]),
    (-6, None, [replace(TRIMMED, removed=Removed(30, False))], [f"{MISSING}; up to {GONE}"]),
    (
        -6,
        None,
        [TRIMMED, replace(TRIMMED, removed=Removed(5, False))],
        [f"{MISSING}; up to 35 messages of 2 queues are no lo"],
    ),
    (-6, None, [TRIMMED, replace(TRIMMED, removed=Removed(0))], [f"{MISSING}; {GONE}"]),
    (-6, None, [replace(TRIMMED, removed=Removed(0))], NONE),
    (-6, -5, [replace(BEFORE, removed=Removed(0))], [f"no message was stored {SPAN}: there is nothing to replay"]),
    (-6, -5, [BEFORE], [f"no message {SPAN} is kept: there is nothing to replay", f"{MISSING}; {GONE}"]),
    (-6, None, [replace(EMPTIED, removed=Removed(0))], [f"no message was stored at {SPAN[5:29]} or later"]),
    (-0.5, None, [ALL, EMPTIED], NONE),
    (-5, None, [TRIMMED], NONE),
    (-6, None, [queue(31, 100, least=30)], NONE),
    (-6, None, [queue(0, 100, least=0)], NONE),
    (-6, 1, [ALL], ["2024-06-03T13:00:00.000Z is in the future: the request ends with what is stored when its first"]),
]
RESETS = [
    (1, None, [END], [f"2024-06-03T13:00:00.000Z {FUTURE}"]),
    (-0.5, None, [END], [f"{NO_LATER}: the group moves to the end of each queue"]),
    (-6, None, [TRIMMED], [f"{MISSING}; {GONE}"]),
    (-6, None, [ALL], NONE),
]


@pytest.mark.parametrize(
    ("is_reset", "from_h", "until_h", "ranges", "begins"),
    [*((False, *one) for one in REPLAYS), *((True, *one) for one in RESETS)],
)
def test_what_is_unusual_about_a_range_is_said(
    is_reset: bool, from_h: float, until_h: float | None, ranges: list[TimedRange], begins: list[str]
) -> None:
    from_ms = NOW + int(from_h * HOUR)
    until_ms = None if until_h is None else NOW + int(until_h * HOUR)
    notes = range_notes(ranges, from_ms, until_ms, NOW, is_reset=is_reset)
    assert [note[: len(begin)] for note, begin in zip(notes, begins, strict=True)] == begins


def stored(base: int, end: int, first_h: float, last_h: float) -> Produced:
    times = (NOW + int(first_h * HOUR), NOW + int(last_h * HOUR))
    return Produced(
        ORDERS, 0, end - base, 0, "f", base=base, min_store_timestamp=times[0], max_store_timestamp=times[1]
    )


@pytest.mark.parametrize(
    ("until_h", "segments", "removed"),
    [
        (None, [], Removed(30, False)),
        (None, [stored(0, 40, -6, -1)], Removed(30)),
        (None, [stored(0, 10, -9, -8), stored(10, 40, -6, -1)], Removed(20)),
        (None, [stored(0, 10, -9, -8), stored(10, 30, -7, -6)], Removed(20, False)),
        (None, [stored(0, 10, -9, -8), stored(20, 30, -6, -6)], Removed(20, False)),
        (None, [stored(0, 10, -6, -6), stored(10, 30, -9, -8)], Removed(10)),
        (-5, [stored(0, 10, -6, -5.5), stored(10, 30, -4, -4)], Removed(10)),
        (-5, [stored(0, 10, -6, -5.5), stored(20, 30, -4, -4)], Removed(20, False)),
        (-5, [stored(0, 10, -9, -9), stored(10, 20, -4, -4)], Removed(0)),
        (-5, [stored(0, 30, -9, -4)], Removed(30, False)),
    ],
    ids=str,
)
def test_what_a_range_has_lost_is_known_by_the_times_of_the_segments(
    until_h: float | None, segments: list[Produced], removed: Removed
) -> None:
    """Of a range from six hours ago on, in a queue of which 30 messages are removed. Those of no segment were stored between
    their neighbours."""
    until_ms = None if until_h is None else NOW + int(until_h * HOUR)
    assert removed_of(30, segments, NOW - 6 * HOUR, until_ms) == removed


def test_an_end_in_the_future_is_said_and_one_that_is_past_is_not() -> None:
    assert until_notes(NOW, NOW) == []
    assert len(until_notes(NOW + 1, NOW)) == 1


def window(messages: int, took_ms: int) -> Ctl:
    id_ = f"{NOW:012x}" + "0" * 20
    range_ = QueueRange(MessageQueue("Orders", "broker-a", 0), 0, messages)
    consumed = Consumed(range_, 0, {Outcome.ACKED: Tally(messages)})
    return Ctl(id_, Action.CONSUME, Actor("ana", "test"), store_timestamp=NOW + took_ms, consumed=(consumed,))


@pytest.mark.parametrize(
    ("windows", "sample"),
    [
        ([], None),
        ([(0, 500)], None),
        ([(70, 1000)], Sample("orders", 1, 70, 70.0, 70.0, 70.0)),
        ([(70, 0)], Sample("orders", 1, 70, 70_000.0, 70_000.0, 70_000.0)),
        # the rate of the median message: small windows, which mostly wait, do not count for much
        ([(3, 1000), (3, 1000), (3, 1000), (1000, 2000)], Sample("orders", 4, 1009, 500.0, 3.0, 500.0)),
        ([(100, 1000), (100, 2000), (0, 9000)], Sample("orders", 2, 200, 50.0, 50.0, 100.0)),
    ],
)
def test_the_sample_of_an_estimate(windows: list[tuple[int, int]], sample: Sample | None) -> None:
    assert sample_of("orders", [window(*one) for one in windows]) == sample


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (1400, "about 20 s: 1,400 messages at 70/s, the median of the last 10 windows of orders"),
        (7, "about less than a second: 7 messages at 70/s"),
        (70 * 1800, "about 30 min: 126,000 messages at 70/s"),
        (70 * 9000, "about 2.5 h: 630,000 messages at 70/s"),
    ],
)
def test_an_estimate_names_its_sample(messages: int, text: str) -> None:
    estimate = estimate_of(messages, Sample("orders", 10, 900, 70.0, 3.0, 100.0))
    assert isinstance(estimate, Estimate)
    assert str(estimate).startswith(text)


@pytest.mark.parametrize(
    ("messages", "max_minutes", "says"),
    [(70 * 60 * 15, 15, False), (70 * 60 * 16, 15, True), (70 * 60 * 16, None, False), (0, 15, False)],
)
def test_windows_that_their_time_limit_ends_are_said(messages: int, max_minutes: int | None, says: bool) -> None:
    estimate = estimate_of(messages, Sample("orders", 10, 900, 70.0, 3.0, 100.0))
    notes = time_limit_notes(estimate, max_minutes)
    assert bool(notes) == says
    assert not says or "takes about 16 min, and the group's max_minutes is 15" in notes[0]


@pytest.mark.parametrize(
    ("messages", "windows", "text"),
    [
        (4, 0, "the group has no windows yet"),
        (4, 1, "the last window had no messages"),
        (4, 10, "the last 10 windows had no messages"),
        (0, 3, "there are no messages to read"),
    ],
)
def test_a_missing_estimate_has_its_reason(messages: int, windows: int, text: str) -> None:
    assert no_estimate(messages, windows) == f"no estimate: {text}"


def test_without_a_sample_or_messages_there_is_no_estimate() -> None:
    assert estimate_of(5, None) is None
    assert estimate_of(0, Sample("orders", 1, 1, 1.0, 1.0, 1.0)) is None
