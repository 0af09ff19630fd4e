"""Every ``consumeStats`` in ``expected/NAME.admin`` (rules 13.3), at any time: what it says of itself and of the store,
and how the offsets of a group follow from one answer to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rmq_store.broker_files.consumer_offset_manager import ConsumerOffsetManager, key_of
from tests.conformance.broker_store import BrokerStore, QueueKey
from tests.conformance.checks import Line, Outcomes, same

Offsets = Mapping[QueueKey, int]


def check_stats(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """All of them, in the order in which they were asked for."""
    manager = ConsumerOffsetManager()
    for number, line in enumerate(lines, 1):
        group = line.get("group", line.get("to"))
        if group is None:
            continue
        said = f"line {number}: {group}"
        if "result" in line or "delivered" in line:
            yield same(f"{said} is a group of the broker", group in store.groups, True)
        for stats in _stats_of(line):
            yield from _holds(said, stats, store)
        if line["kind"] == "onlineReset":
            yield from _goes_on(said, line)
        else:
            yield from _follows(said, line, group, manager, store)
    for key, offsets in manager.offset_table.items():
        topic, _, group = key.partition("@")
        for queue_id, offset in offsets.items():
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


def _goes_on(said: str, line: Line) -> Outcomes:
    """A running consumer goes on from where it was put."""
    before: Offsets = {}
    for stats in _before(line):
        seen = _offsets(stats)
        yield same(f"{said}: before", {key: seen.get(key) for key in before}, before)
        before = seen
    put = {(line["topic"], answer["queueId"]): answer["offset"] for answer in line["result"]}
    after = _offsets(line["after"]) if "after" in line else {}
    behind = {key: offset for key, offset in (dict(before) | put).items() if key in after and not offset <= after[key]}
    yield same(f"{said}: queues behind where they were put", behind, {})


def _follows(said: str, line: Line, group: str, manager: ConsumerOffsetManager, store: BrokerStore) -> Outcomes:
    """Nobody but the operator moves these groups, so one answer begins where the one before it ended."""
    for stats in _before(line):
        seen, known = _offsets(stats), _known(group, manager)
        yield same(f"{said}: before", {key: seen.get(key) for key in known}, known)
        for (topic, queue_id), offset in seen.items():
            if (topic, queue_id) not in known:
                manager.commit_offset(group, topic, queue_id, offset)
    if "error" not in line:
        yield from _done(said, line, group, manager, store)
    if "after" in line:
        after, known = _offsets(line["after"]), _known(group, manager)
        yield same(f"{said}: after", {key: known.get(key, 0) for key in after.keys() | known.keys()}, after)


def _known(group: str, manager: ConsumerOffsetManager) -> Offsets:
    """What a broker answers of a group."""
    return {
        (topic, queue_id): manager.query_offset(group, topic, queue_id)
        for topic in manager.which_topic_by_consumer(group)
        for queue_id in manager.offset_table[key_of(topic, group)]
    }


def _done(said: str, line: Line, group: str, manager: ConsumerOffsetManager, store: BrokerStore) -> Outcomes:
    """The request, as a broker does it. A reset waits for the group's next pull: until then it answers queries, and what
    is committed is dropped (``ConsumerManageProcessor``)."""

    def commit(topic: str, queue_id: int, offset: int) -> None:
        if not manager.has_offset_reset(group, topic, queue_id):
            manager.commit_offset(group, topic, queue_id, offset)

    match line["kind"]:
        case "directCommit":
            for sent in line["commits"]:
                place = sent["topic"], sent["queueId"]
                commit(*place, sent["committed"])
                yield same(f"{said}: read back of {place}", manager.query_offset(group, *place), sent["readBack"])
        case "reset":
            for answer in line["result"]:
                manager.assign_reset_offset(group, line["topic"], answer["queueId"], answer["offset"])
        case "resetOld":
            known = _known(group, manager)
            for answer in line["result"]:
                stood = known.get((line["topic"], answer["queueId"]), answer["consumerOffset"])
                yield same(f"{said}: stood in {answer['queueId']} at", stood, answer["consumerOffset"])
                if line["force"] or answer["timestampOffset"] <= answer["consumerOffset"]:
                    commit(line["topic"], answer["queueId"], answer["rollbackOffset"])
        case "resetQueue":
            least = store.positions.min_offset(store.queue(line))  # -1 goes there
            offset = least if line["offset"] < 0 else line["offset"]
            manager.assign_reset_offset(group, line["topic"], line["queueId"], offset)
        case "clone":
            known = _known(line["from"], manager)
            for (of, topic, queue_id), row in store.lag.items():  # what no line has told stands where it did at last
                if of == line["from"] and row["has_offset"] and (topic, queue_id) not in known:
                    manager.commit_offset(of, topic, queue_id, row["next_offset"])
            manager.clone_offset(line["from"], group, line["topic"])
