"""``expected/NAME.queues`` and ``timesearch``: the bounds of queues and offsets by time (rules 2.2, 2.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from rmq_store.commit.positions import QueueRange
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.time_search import offset_at
from rmq_store.log.consume_queue import BoundaryType, offset_by_time
from rmq_store.message.message import MessageQueue
from tests.conformance.broker_store import BrokerStore, QueueKey
from tests.conformance.checks import Line, Outcomes, same


def check_queues(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    yield from bounds_in_files(lines, store)
    positions = store.positions
    found = {(q.topic, q.queue_id): (positions.min_offset(q), positions.max_offset(q)) for q in positions.all_queues()}
    for line in lines:
        key = line["topic"], line["queueId"]
        yield same(f"bounds of {key} in the lake", found.get(key), (line["minOffset"], line["maxOffset"]))
    told = {(line["topic"], line["queueId"]) for line in lines}
    # A queue that nothing was ever sent to is known from topics.json only; no file of it is there to be told of.
    there = {key for key, bounds in found.items() if bounds != (0, 0) and not store.is_deleted(key[0])}
    there |= found.keys() & told
    yield same("queues in the lake", sorted(there), sorted(told))


def bounds_in_files(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    for line in lines:
        key = line["topic"], line["queueId"]
        bounds, made = store.bounds(key), store.made.get(key, {})
        yield same(f"bounds of {key}", (bounds.min_offset, bounds.max_offset), (line["minOffset"], line["maxOffset"]))
        last, first = made.get(bounds.max_offset - 1), made.get(bounds.min_offset)
        made_end = last.commit_log_offset + last.store_size if last else 0
        end = max(bounds.max_physical_offset, made_end)
        yield same(f"end of the last record of {key}", end, line["maxPhysicalOffset"])
        time_ms = first.store_timestamp if first else -1
        yield same(f"first store time of {key}", time_ms, line["earliestStoreTime"])
    yield same("queues in the files", sorted(store.on_disk), sorted((line["topic"], line["queueId"]) for line in lines))


def check_time_search(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    yield from time_search_in_files(lines, store)
    shard, positions = store.imported.shard, store.positions
    of_queue: dict[MessageQueue, list[Line]] = defaultdict(list)
    for line in lines:
        of_queue[store.queue(line)].append(line)
    ranges = [QueueRange(q, positions.min_offset(q), positions.max_offset(q)) for q in of_queue]
    segments = segments_of(shard, ranges)
    for range_ in ranges:
        queue = range_.queue
        search = partial(
            offset_at, shard, range_, segments.get(queue, [])
        )  # finding the segments takes most of the time
        for line in of_queue[queue]:
            bounds = search(line["timestamp"]), search(line["timestamp"], upper=True)
            yield same(f"{queue} at {line['timestamp']} in the lake", bounds, _wanted(line))


def time_search_in_files(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """By RocketMQ's binary search, which is the bound over the rows."""
    of_queue: dict[QueueKey, tuple[range, dict[int, int]]] = {}
    for line in lines:
        key, time_ms = (line["topic"], line["queueId"]), line["timestamp"]
        if key not in of_queue:
            bounds, made = store.bounds(key), store.made.get(key, {})
            times = {offset: record.store_timestamp for offset, record in made.items()}
            of_queue[key] = range(bounds.min_offset, bounds.max_offset), times
        readable, times = of_queue[key]
        lower = offset_by_time(readable, times.__getitem__, time_ms)
        upper = offset_by_time(readable, times.__getitem__, time_ms, BoundaryType.UPPER)
        yield same(f"{key} at {time_ms}", (lower, upper), _wanted(line))
        at_or_after = min((offset for offset in readable if times[offset] >= time_ms), default=readable.stop)
        yield same(f"first row of {key} from {time_ms} on", at_or_after, line["default"])


def _wanted(line: Line) -> tuple[int, int]:
    return line["lower"], line["upper"]
