"""``expected/NAME.admin``: what the admin tools answered (rules 13), and where new groups began (rules 5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rmq_store.admin.clone import CloneRequest, clone_moves
from rmq_store.admin.reset import ResetRequest, ResetTo, reset_moves
from rmq_store.commit.ctl import Actor
from rmq_store.consumer.start import ConsumeFromWhere, QueueToStart, StartSwitches, compute_pull_from_where
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.groups import need_group
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message_const import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rmq_store.utils.times import parse_consume_timestamp
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, by_kind, refused, same
from tests.conformance.consume_stats import check_stats
from tests.conformance.pulls import pull_edge
from tests.conformance.tracks import check_tracks

TO_MAX = (-1, -2)
"""Times that mean the end of the queue (rules 13.1); here ``--to-max`` says it."""

TO_MAX_BY_OLD_TOOL = (-1,)
"""To the old tool -2 is a time before all messages (``DefaultMQAdminExtImpl#resetOffsetConsumeOffset``)."""

WRITTEN_AT_SHUTDOWN = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
"""A broker that stops checks undecided messages once more and writes them again (rules 19.2), after the answer."""

RANGE_IN_WORDS = re.compile(r"not in consume queue range \[[^]]*\]")
OK = "ok"

AS_ROCKETMQ = StartSwitches(young_topic_starts_at_zero=True, later_queues_start_at_min=False)


def _consume_stats(line: Line, store: BrokerStore) -> Outcomes:
    """``consumerProgress`` is our view ``lag``. What else it says is checked in ``consume_stats``."""
    lag = store.lag
    for queue in line["stats"]["queues"]:
        said = f"{line['group']} in {queue['topic']} {queue['queueId']}"
        row = lag.get((line["group"], queue["topic"], queue["queueId"]))
        found = row and (row["max_offset"], row["next_offset"], row["lag"])
        yield same(said, found, (queue["brokerOffset"], queue["consumerOffset"], queue["diff"]))
    told = {(queue["topic"], queue["queueId"]) for queue in line["stats"]["queues"]}
    rows = {(topic, queue_id): row for (group, topic, queue_id), row in lag.items() if group == line["group"]}
    total = sum(row["lag"] for place, row in rows.items() if place in told)
    yield same(f"lag of {line['group']}", total, line["stats"]["diffTotal"])
    # Ours also counts retries before a group's first commit in their topic, and queues that a topic has no more.
    with_offset = {topic for (topic, _), row in rows.items() if row["has_offset"]}
    more = sorted(place for place in rows.keys() - told if place[0] in with_offset and not store.is_left_over(*place))
    yield same(f"queues of {line['group']} only in our view", more, [])


def _all_queues(line: Line, store: BrokerStore) -> Outcomes:
    """Each queue of the topic once; a consumer has those to read only."""
    topic, found = line["topic"], sorted(answer["queueId"] for answer in line["queues"])
    config = store.topics.get(topic)
    to_write = config.write_queue_nums if config and line["kind"] == "topicStats" else 0
    wanted = range(max(config.read_queue_nums, to_write)) if config else ()
    yield same(f"queues of {topic}", list(wanted), found)


def _topic_stats(line: Line, store: BrokerStore) -> Outcomes:
    yield from _all_queues(line, store)
    for answer in line["queues"]:
        queue = store.queue(answer | {"topic": line["topic"]})
        bounds = store.positions.min_offset(queue), store.positions.max_offset(queue)
        if queue.topic in WRITTEN_AT_SHUTDOWN:
            bounds = bounds[0], min(bounds[1], answer["maxOffset"])
        yield same(f"bounds of {queue}", bounds, (answer["minOffset"], answer["maxOffset"]))
        last = store.messages.get((queue.topic, queue.queue_id, answer["maxOffset"] - 1))
        never_or_gone = -1 if answer["maxOffset"] else 0
        yield same(f"last update of {queue}", last["store_timestamp"] if last else never_or_gone, answer["lastUpdate"])


def _clone(line: Line, store: BrokerStore) -> Outcomes:
    """A queue without an offset stands at 0 in RocketMQ's answer. Offsets beyond the end, or none, are refused here."""
    source, topic = line["from"], line["topic"]
    request = CloneRequest(line["to"], source, "2026-01-01-clone", Actor("a", "b"), "asked", topic)
    wanted = {queue["queueId"]: queue["consumerOffset"] for queue in _of_topic(line, line["after"])}
    yield same(f"{line['to']}: answer", line["result"], OK)

    def moves() -> Any:
        return clone_moves(ShardLookup(store.imported.shard), store.positions, request)

    rows = [row for (group, of, _), row in store.lag.items() if (group, of) == (source, topic) and row["has_offset"]]
    if not rows:
        yield same(f"{line['to']} in {topic}", sum(wanted.values()), 0)
        yield refused(f"{line['to']} in {topic}", WrongUse, moves, "nothing to clone")
    elif any(row["next_offset"] > row["max_offset"] for row in rows):
        yield refused(f"{line['to']} in {topic}", WrongUse, moves, "beyond its end")
    else:
        found = {move.queue.queue_id: move.to_offset for move in moves()}
        yield same(f"{line['to']} in {topic}", dict.fromkeys(wanted, 0) | found, wanted)


def _of_topic(line: Line, stats: Line) -> list[Line]:
    return [queue for queue in stats["queues"] if queue["topic"] == line["topic"]]


# --- resets ----------------------------------------------------------------------------------------------------------


def _moves(line: Line, store: BrokerStore, to: ResetTo, value: int | None, queues: tuple[int, ...] = ()) -> Any:
    """Queue id -> offset of what our reset would do, for the queues that a broker serves."""
    asked = tuple(store.queue(line | {"queueId": queue_id}) for queue_id in queues)
    request = ResetRequest(line["group"], line["topic"], to, "2026-01-01-reset", Actor("a", "b"), "asked", value, asked)
    moves = reset_moves(ShardLookup(store.imported.shard), store.positions, request)
    served = [move for move in moves if not store.is_left_over(line["topic"], move.queue.queue_id)]
    return {move.queue.queue_id: move.to_offset for move in served}


def _by_time(line: Line, store: BrokerStore, to_max: Sequence[int] = TO_MAX) -> Any:
    time_ms = line["timestamp"]
    return _moves(line, store, ResetTo.MAX, None) if time_ms in to_max else _moves(line, store, ResetTo.TIME, time_ms)


def _reset(line: Line, store: BrokerStore) -> Outcomes:
    said = f"{line['group']} of {line['topic']} to {line['timestamp']}"
    if "error" not in line:
        moves = _by_time(line, store)
        topics = {answer.get("topic", line["topic"]) for answer in line["result"]}
        yield same(f"{said}: topics", topics, {line["topic"]})
        yield same(said, moves, {answer["queueId"]: answer["offset"] for answer in line["result"]})
        if line["kind"] == "reset" and "after" in line:  # a running consumer goes on from there
            after = {queue["queueId"]: queue["consumerOffset"] for queue in _of_topic(line, line["after"])}
            yield same(f"{said}: afterwards", moves, after)
    elif "does not exist" in line["error"]:
        lake = store.imported.store
        yield refused(said, WrongUse, lambda: need_group(lake, line["group"]), "there is no group")
    else:
        yield refused(said, WrongUse, lambda: _by_time(line, store), "has no topic")


def _reset_old(line: Line, store: BrokerStore) -> Outcomes:
    """The old tool moves forward only with force; without it we only compare where the time leads."""
    moves = _by_time(line, store, TO_MAX_BY_OLD_TOOL)
    said = f"{line['topic']} at {line['timestamp']}"
    for field in ("timestampOffset", "rollbackOffset") if line["force"] else ("timestampOffset",):
        wanted = {answer["queueId"]: answer[field] for answer in line["result"]}
        yield same(f"{said}: {field}", moves, wanted)
    for answer in line["result"]:
        end = store.positions.max_offset(store.queue(line | answer))
        yield same(f"{said}: end of {answer['queueId']}", answer["brokerOffset"] <= end, True)
        if not line["force"]:
            back = min(answer["timestampOffset"], answer["consumerOffset"])
            yield same(f"{said}: never forward in {answer['queueId']}", back, answer["rollbackOffset"])


def _reset_queue(line: Line, store: BrokerStore) -> Outcomes:
    queue_id, offset = line["queueId"], line["offset"]
    said = f"{line['topic']} {queue_id} to {offset}"

    def moves() -> Any:
        return _moves(line, store, ResetTo.OFFSET, offset, (queue_id,))

    end = store.positions.max_offset(store.queue(line))
    # -1 is the beginning there, and one behind the end is taken; here they are refused as what they are.
    if "error" in line or offset < 0 or offset == end + 1:
        told = RANGE_IN_WORDS.search(line.get("error", ""))
        yield refused(said, WrongUse, moves, told[0] if told else "not in consume queue range")
        return
    yield same(f"{said}: answer", line["result"], OK)
    after = {queue["queueId"]: queue["consumerOffset"] for queue in _of_topic(line, line["after"])}
    yield same(said, moves(), {queue_id: after[queue_id]})


# --- where new groups began ------------------------------------------------------------------------------------------


def _start_rule(line: Line, store: BrokerStore) -> Outcomes:
    """Nothing was seen of a queue that was started at its end."""
    where = ConsumeFromWhere(line["where"])
    yield from _all_queues(line, store)
    time_ms = parse_consume_timestamp(f"{line['consumeTimestamp']}Z")
    delivered = 0
    for answer in line["queues"]:
        queue = store.queue(answer | {"topic": line["topic"]})
        yield same(f"beginning of {queue}", store.positions.min_offset(queue), answer["min"])
        yield same(f"end of {queue}", answer["max"] <= store.positions.max_offset(queue), True)
        found = search_offsets(store.imported.shard, store.positions, [queue], time_ms)[queue]
        state = QueueToStart(queue.topic, -1, answer["min"], answer["max"])
        start = compute_pull_from_where(where, state, min(found, answer["max"]), AS_ROCKETMQ)
        wanted = answer["max"] if answer["firstSeen"] is None else answer["firstSeen"]
        yield same(f"{where} of {queue}", start.offset, wanted)
        delivered += answer["max"] - start.offset
    yield same(f"{where} of {line['topic']}: delivered", delivered, line["delivered"])


def _delete(line: Line, store: BrokerStore) -> Outcomes:
    """Retention took whole files from the beginning, and the broker went on writing."""
    left = line["filesBefore"] - line["filesMarkedOld"]
    yield same(f"at least {left} commit log files", len(store.log.files) >= left, True)


_check_lines = by_kind(
    {
        "consumeStats": _consume_stats,
        "topicStats": _topic_stats,
        "directCommit": lambda line, store: iter(()),  # see ``consume_stats``
        "reset": _reset,
        "resetOld": _reset_old,
        "resetQueue": _reset_queue,
        "onlineReset": _reset,
        "startRule": _start_rule,
        "edge": pull_edge,
        "delete": _delete,
        "clone": _clone,
        "messageTrack": lambda line, store: iter(()),  # see ``tracks``
    }
)


def check(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    yield from _check_lines(lines, store)
    yield from check_tracks(lines, store)
    yield from check_stats(lines, store)
