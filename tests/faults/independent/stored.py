"""What producers and the broker wrote against what the store has: each message once, at its place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.faults.independent.history import Sent, Written
from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import Place, Queue, ShardRecords


def sent_problems(shards: Sequence[ShardRecords], sent: Iterable[Sent]) -> Iterator[Problem]:
    """``sent``: the requests that have an answer. Each is stored once: by its commits, and by the keys of its rows, as far
    as retention has left them."""
    counts: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    for shard in shards:
        for commit in shard.commits:
            if commit.action == "send":
                counts[commit.request] += sum(one["count"] for one in commit.segments)
        rows.update(row.keys or "" for row in shard.messages if row.group is None)
        for (_, queue), end in shard.queue_positions("min").items():
            removed[queue.topic] += end
    sent = list(sent)
    expected = Counter(key for request in sent for key in request.keys)
    missing: dict[str, list[str]] = defaultdict(list)
    for request in sent:
        if counts[request.request] != len(request.keys):
            kind = Kind.LOST if counts[request.request] < len(request.keys) else Kind.DOUBLED
            yield Problem(kind, f"send {request.request} of {len(request.keys)}, stored {counts[request.request]}")
        for key in set(request.keys):
            if rows[key] > expected[key]:
                what = f"messages with key {key}, of send {request.request}, are stored {rows[key]} times"
                yield Problem(Kind.DOUBLED, f"{what}, sent {expected[key]} times")
            elif rows[key] < expected[key]:
                missing[request.topic].append(key)
    for topic, keys in missing.items():
        if not any(queue_topic == topic or queue_topic in _DELAYED for queue_topic, count in removed.items() if count):
            yield Problem(Kind.LOST, f"messages {keys[:5]} ... of topic {topic} are not stored, {len(keys)} in all")


_DELAYED = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")


def written_problems(shards: Sequence[ShardRecords], written: Iterable[Written]) -> Iterator[Problem]:
    """``written``: what was in the broker's log when it was imported last."""
    ends: dict[Queue, int] = {}
    least: dict[Queue, int] = {}
    keys: dict[Place, str | None] = {}
    for shard in shards:
        ends |= {queue: end for (_, queue), end in shard.queue_positions("max").items()}
        least |= {queue: begin for (_, queue), begin in shard.queue_positions("min").items()}
        keys |= {row.place: row.keys for row in shard.messages if row.place and row.group is None}
    most: dict[Queue, int] = {}
    for one in written:
        queue = Queue(one.topic, one.broker, one.queue)
        most[queue] = max(most.get(queue, 0), one.offset + 1)
        if one.offset < least.get(queue, 0):
            continue  # removed by retention
        key = keys.get(Place(queue, one.offset))
        if key != one.key:
            yield Problem(Kind.LOST, f"the broker wrote {one.key}, stored is {key}", queue, one.offset, one.offset + 1)
    for queue, end in most.items():
        if ends.get(queue, 0) > end:
            yield Problem(Kind.DOUBLED, "more messages than the broker wrote", queue, end, ends[queue])
