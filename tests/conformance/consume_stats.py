"""Every ``consumeStats`` in ``expected/NAME.admin``, whenever it was asked (S13.3): what it says of itself and of the store,
and how the offsets of a group follow from one answer to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.conformance.broker_store import BrokerStore, QueueKey
from tests.conformance.checks import Line, Outcomes, same

Offsets = Mapping[QueueKey, int]


def check_stats(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """All of them, in the order in which they were asked for."""
    known: dict[str, Offsets] = {}
    for number, line in enumerate(lines, 1):
        group = line.get("group", line.get("to"))
        if group is None:
            continue
        said = f"line {number}: {group}"
        if "result" in line or "delivered" in line:
            yield same(f"{said} is a group of the broker", group in store.groups, True)
        for stats in _stats_of(line):
            yield from _holds(said, stats, store)
        yield from _follows(said, line, known, store)
    for group, offsets in known.items():
        for (topic, queue_id), offset in offsets.items():
            row = store.lag.get((group, topic, queue_id))
            yield same(f"{group} at last in {topic} {queue_id}", row and row["next_offset"], offset)


def _stats_of(line: Line) -> Iterator[Line]:
    yield from _before(line)
    yield from (line[name] for name in ("after", "stats") if name in line)


def _before(line: Line) -> list[Line]:
    """A list where it was asked for more than once."""
    before = line.get("before", [])
    return before if isinstance(before, list) else [before]


def _holds(said: str, stats: Line, store: BrokerStore) -> Outcomes:
    """The sums, and what the store has: its queues, the messages before the offsets. A topic may have grown since."""
    queues: dict[str, list[int]] = {}
    for row in stats["queues"]:
        queues.setdefault(row["topic"], []).append(row["queueId"])
        queue, consumed = store.queue(row), row["consumerOffset"]
        yield same(f"{said}, {queue}: diff", row["brokerOffset"] - consumed, row["diff"])
        yield same(f"{said}, {queue}: end", 0 <= row["brokerOffset"] <= store.positions.max_offset(queue), True)
        last = store.messages.get((row["topic"], row["queueId"], consumed - 1))
        time_ms = last["store_timestamp"] if last and consumed <= row["brokerOffset"] else 0
        yield same(f"{said}, {queue}: time of the last message", time_ms, row["lastTimestamp"])
    for topic, queue_ids in queues.items():
        wanted = list(range(store.topics[topic].read_queue_nums)) if topic in store.topics else None
        yield same(f"{said}: queues of {topic}", wanted, sorted(queue_ids))
    yield same(f"{said}: total of diff", sum(row["diff"] for row in stats["queues"]), stats["diffTotal"])
    if "inflightTotal" in stats:
        inflight = sum(max(0, row["pullOffset"] - row["consumerOffset"]) for row in stats["queues"])
        yield same(f"{said}: total in flight", inflight, stats["inflightTotal"])


def _offsets(stats: Line) -> dict[QueueKey, int]:
    return {(row["topic"], row["queueId"]): row["consumerOffset"] for row in stats["queues"]}


def _follows(said: str, line: Line, known: dict[str, Offsets], store: BrokerStore) -> Outcomes:
    """Nobody but the operator moves these groups, so one answer begins where the one before it ended. A running consumer
    (``onlineReset``) goes on from where it was put."""
    group = line.get("group", line.get("to"))
    before = known.get(group, {})
    for stats in _before(line):
        seen = _offsets(stats)
        yield same(f"{said}: before", {key: seen.get(key) for key in before}, dict(before))
        before = seen
    put = dict(before) | _put(line, known, store)
    runs = line["kind"] == "onlineReset"
    if "after" in line:
        after = _offsets(line["after"])
        if runs:
            moved = {key: offset for key, offset in put.items() if key in after and not offset <= after[key]}
            yield same(f"{said}: queues behind where they were put", moved, {})
        else:
            yield same(f"{said}: after", {key: put.get(key, 0) for key in after.keys() | put.keys()}, after)
        put = after
    if put and not runs:
        known[group] = put


def _put(line: Line, known: Mapping[str, Offsets], store: BrokerStore) -> Offsets:
    """Where the request brings the queues that it names."""
    if "error" in line:
        return {}
    topic = line.get("topic")
    match line["kind"]:
        case "directCommit":
            return {(commit["topic"], commit["queueId"]): commit["readBack"] for commit in line["commits"]}
        case "reset" | "onlineReset":
            return {(topic, answer["queueId"]): answer["offset"] for answer in line["result"]}
        case "resetOld":
            return {(topic, answer["queueId"]): answer["rollbackOffset"] for answer in line["result"]}
        case "resetQueue":
            return {(topic, line["queueId"]): max(0, line["offset"])}
        case "clone":
            return {key: offset for key, offset in _stands(line["from"], known, store).items() if key[0] == topic}
        case _:
            return {}


def _stands(group: str, known: Mapping[str, Offsets], store: BrokerStore) -> Offsets:
    """Where no line has told of a group's queue, it stands where it did at last."""
    at_last = {(topic, queue_id): row["next_offset"] for (of, topic, queue_id), row in store.lag.items() if of == group}
    return at_last | dict(known.get(group, {}))
