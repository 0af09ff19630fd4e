"""Messages and their copies: every offset of a queue holds one message, every retry is delivered once and only then passed,
every dead letter is redriven at most once, and what a copy names as its origin was there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import SCHEDULE_GROUP, WAITING, Place, Queue, ShardRecords


def copy_problems(shard: ShardRecords) -> Iterator[Problem]:
    yield from _places(shard)
    yield from _deliveries(shard)
    yield from _redrives(shard)
    yield from _origins(shard)


def _places(shard: ShardRecords) -> Iterator[Problem]:
    """Readable offsets ``[min, max)`` of each queue: one row each."""
    offsets: dict[Queue, list[int]] = defaultdict(list)
    for place, messages in shard.by_place().items():
        offsets[place.queue].append(place.offset)
        if len(messages) > 1:
            yield Problem(Kind.DOUBLED, "two messages with one offset", place.queue, place.offset, place.offset + 1)
    for message in shard.messages:
        if message.place is None:
            yield Problem(Kind.HALF_WINDOW, "a message row in no segment", commit_id=message.commit_id)
    least, most = shard.queue_positions("min"), shard.queue_positions("max")
    for (_, queue), end in most.items():
        begin = least.get(("", queue), 0)
        missing = set(range(begin, end)).difference(offsets[queue])
        if missing:
            yield Problem(Kind.LOST, f"{len(missing)} offsets without a message", queue, min(missing), max(missing) + 1)
        if offsets[queue] and max(offsets[queue]) >= end:
            yield Problem(Kind.JUMP, "messages behind the end of their queue", queue, end, max(offsets[queue]) + 1)
    for queue in offsets.keys() - {queue for _, queue in most}:
        yield Problem(
            Kind.JUMP, "messages in a queue without an end", queue, min(offsets[queue]), max(offsets[queue]) + 1
        )


def _deliveries(shard: ShardRecords) -> Iterator[Problem]:
    times = Counter(
        Place(row.queue, offset)
        for row in shard.evidence()
        if row.outcome == "delivered"
        for offset in range(row.begin, row.end)
    )
    for place, number in times.items():
        if number > 1:
            what = f"a waiting message was delivered {number} times"
            yield Problem(Kind.DOUBLED, what, place.queue, place.offset, place.offset + 1, SCHEDULE_GROUP)
    passed = {queue: end for (group, queue), end in shard.queue_positions("off").items() if group == SCHEDULE_GROUP}
    for (_, queue), end in shard.queue_positions("max").items():
        if queue.topic not in WAITING:
            continue
        for offset in range(end):
            is_passed, number = offset < passed.get(queue, 0), times[Place(queue, offset)]
            if is_passed and not number:
                yield Problem(Kind.LOST, "passed, but not delivered", queue, offset, offset + 1, SCHEDULE_GROUP)
            elif number and not is_passed:
                yield Problem(Kind.JUMP, "delivered, but not passed", queue, offset, offset + 1, SCHEDULE_GROUP)


def _redrives(shard: ShardRecords) -> Iterator[Problem]:
    sent: Counter[tuple[str, Place]] = Counter()
    for row in shard.evidence():
        if row.outcome == "redriven":
            sent.update((row.group, Place(row.queue, offset)) for offset in range(row.begin, row.end))
    ranges: Counter[tuple[str, Place]] = Counter()
    for commit in shard.commits:
        if commit.action == "redrive":
            for one in commit.ranges:
                ranges.update((one.group, Place(one.queue, offset)) for offset in range(one.begin, one.end))
    for (group, place), number in (sent | ranges).items():
        if number > 1:
            what = f"a dead letter was redriven {number} times"
            yield Problem(Kind.DOUBLED, what, place.queue, place.offset, place.offset + 1, group)


def _origins(shard: ShardRecords) -> Iterator[Problem]:
    """A copy's origin is a message that is there, or that retention has removed."""
    least, most = shard.queue_positions("min"), shard.queue_positions("max")
    messages = shard.by_place()
    for copy in shard.messages:
        if copy.origin is None:
            continue
        queue, offset = copy.origin
        is_removed = offset < least.get(("", queue), 0)
        if offset >= most.get(("", queue), 0) or not (is_removed or copy.origin in messages):
            what = "the message that it is a copy of is not there"
            yield Problem(Kind.COPY_WITHOUT_ORIGIN, what, queue, offset, offset + 1, copy.group, copy.commit_id)
