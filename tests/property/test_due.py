"""The law of what is due: ``select_due`` looks at few segments, and chooses what a plain version chooses that looks at all
messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.commit.ctl import SCHEDULE_GROUP, Produced
from rmq_store.commit.positions import Positions, QueueRange, max_id, off_id
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.pull import cover
from rmq_store.message.message import MessageQueue
from rmq_store.window.due import select_due

NOW = 1_717_416_000_000
QUEUES = [MessageQueue("SCHEDULE_TOPIC_XXXX", "lake-a~g", 17), MessageQueue("SCHEDULE_TOPIC_XXXX", "lake-a~h", 17)]
Runs = list[tuple[int, int]]
"""The segments of a queue: (count, due in ms)."""

RUNS = st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 1)), min_size=1, max_size=25)


def segments_in(queue: MessageQueue, runs: Runs) -> list[Produced]:
    segments, base = [], 0
    for count, due_in_ms in runs:
        segments.append(Produced(queue, 0, count, 0, f"f{base}", base, deliver_at=NOW + due_in_ms))
        base += count
    return segments


def plainly(
    starts: Mapping[MessageQueue, int], runs: Mapping[MessageQueue, Runs], cap: int
) -> dict[MessageQueue, object]:
    """Per queue: the messages that move as (offset, due time), the next due time, and whether the cap left some."""
    due, next_due = [], dict[MessageQueue, int | None].fromkeys(runs)
    for queue, of_queue in runs.items():
        times = [NOW + due_in_ms for count, due_in_ms in of_queue for _ in range(count)]
        waiting = list(enumerate(times))[starts[queue] :]
        until = next((n for n, (_, due_at) in enumerate(waiting) if due_at > NOW), len(waiting))
        due += [(max(at for _, at in waiting[: n + 1]), queue, *waiting[n]) for n in range(until)]
        if until < len(waiting) and until <= cap:
            next_due[queue] = waiting[until][1]
    moved = sorted(due)[:cap]
    return {
        queue: (
            [(offset, due_at) for _, q, offset, due_at in moved if q == queue],
            next_due[queue],
            any(item[1] == queue for item in sorted(due)[cap:]),
        )
        for queue in runs
        if starts[queue] < sum(count for count, _ in runs[queue])
    }


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.tuples(RUNS, RUNS), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(1, 40))
def test_what_is_due_is_what_looking_at_every_message_chooses(
    runs: tuple[Runs, Runs], starts: tuple[int, int], cap: int
) -> None:
    segments = {queue: segments_in(queue, of_queue) for queue, of_queue in zip(QUEUES, runs, strict=True)}
    ends = {queue: sum(segment.count for segment in segments[queue]) for queue in QUEUES}
    begins = {queue: min(start, ends[queue]) for queue, start in zip(QUEUES, starts, strict=True)}

    def segments_of(ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, Sequence[Produced]]:
        covered = {range_.queue: {s.file for s in cover(range_, segments[range_.queue])[0]} for range_ in ranges}
        return {queue: [s for s in segments[queue] if s.file in files] for queue, files in covered.items()}

    positions = {max_id(queue): end for queue, end in ends.items()}
    positions |= {off_id(SCHEDULE_GROUP, queue): begin for queue, begin in begins.items()}
    due = select_due(Positions(1, positions), segments_of, "lake-a", DelayLevels(), now_ms=NOW, cap=cap)
    chosen = {
        one.queue: (
            [(offset, due_at) for due_at, s in one.slices for offset in range(s.begin, s.end)],
            one.next_due_ms,
            one.capped,
        )
        for one in due
    }
    assert chosen == plainly(begins, dict(zip(QUEUES, runs, strict=True)), cap)
