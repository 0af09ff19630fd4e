"""``expected/NAME.get`` and ``pull``: the answer to a request at an offset, and to a filter (rules 7.1, 7.7, 7.8).

We have no pull requests: a window takes what lies between a group's offset and the end of the queue. Where RocketMQ
answers with a status, a window reads from there, has nothing to do, or refuses, because an offset never moves silently:

- FOUND: it reads from the offset on, and its first messages are those that were found
- OFFSET_OVERFLOW_ONE, NO_NEW_MSG: there is nothing to do
- OFFSET_TOO_SMALL: OffsetOutOfRange; when lost messages may be skipped it reads from the corrected offset on
- OFFSET_OVERFLOW_BADLY: BadData, which names the corrected offset

How many messages a broker puts into one answer (rules 7.2) is the rule ``get_message``; a window has no such limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_store.admin.reset import ResetRequest, ResetTo, reset_moves
from rmq_store.broker_files.config_files import SubscriptionGroupConfig
from rmq_store.commit.ctl import Actor
from rmq_store.consumer.start import Start, StartRule
from rmq_store.errors import BadData, OffsetOutOfRange, RmqError, WrongUse
from rmq_store.filter.subscription import SUB_ALL, ExpressionType, build_subscription_data
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.log.get_message_status import GetMessageStatus, get_message_status
from rmq_store.message.message import MessageQueue
from rmq_store.window.ranges import PlannedRange, plan_ranges
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, NotChecked, Outcomes, by_kind, refused, same
from tests.conformance.filters import Filter, Row, filter_of
from tests.oracle import request_checks
from tests.oracle.get_message import Entry, GetMessageResult, get_message, pull_status

REFUSED_WITH: dict[str, type[RmqError] | None] = {
    "OFFSET_TOO_SMALL": OffsetOutOfRange,
    "OFFSET_OVERFLOW_BADLY": BadData,
    "OFFSET_ILLEGAL": None,  # the client's word for both
    "NO_MESSAGE_IN_QUEUE": None,
    "NO_MATCHED_LOGIC_QUEUE": None,
}
NOTHING = ("OFFSET_OVERFLOW_ONE", "NO_NEW_MSG")
REFUSALS = ("offset < 0", "queueId[")
EMPTY = ("NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE")


def _plan(store: BrokerStore, queue: MessageQueue, offset: int, *, skip: bool = False) -> list[PlannedRange]:
    """What a window of a group at ``offset`` would read."""
    bounds = {queue: store.positions.max_offset(queue)}
    return plan_ranges("g", store.positions, {queue: Start(offset, StartRule.STORED)}, bounds, lost_is_skipped=skip)


def _answered(store: BrokerStore, line: Line) -> Outcomes:
    """One request, by its status and the next offset that it was told."""
    queue, offset, status = store.queue(line), line["offset"], line["status"]
    said = f"{queue} at {offset}, {status}"
    least, most = store.positions.min_offset(queue), store.positions.max_offset(queue)
    yield from _by_the_rule(said, line, least, most)
    if status != "FOUND":
        yield same(f"{said}: found, bytes", (line["found"], line.get("bytes", 0)), ([], 0))
    if status in NOTHING or (status in EMPTY and offset == 0):
        yield same(said, _plan(store, queue, offset), [])
        yield same(f"{said}: next", offset, line["next"])
    elif status in REFUSED_WITH:
        below = offset < least
        error = REFUSED_WITH[status] or (OffsetOutOfRange if below else BadData)
        yield refused(said, error, lambda: _plan(store, queue, offset), str(offset))
        yield same(f"{said}: next", least if below else most, line["next"])
        if below and offset >= 0:
            begins = [planned.range.begin for planned in _plan(store, queue, offset, skip=True)]
            yield same(f"{said}: where a window goes on", begins, [line["next"]])
    elif status == "FOUND":
        (planned,) = _plan(store, queue, offset)
        if "maxNums" in line:  # else nobody says how many were asked for
            answer = _answer(store, store.by_queue[queue.topic, queue.queue_id], offset, line, lambda row: True)
            yield same(
                f"{said}: answer", (list(answer.offsets), answer.next_begin_offset), (line["found"], line["next"])
            )
        count = len(line["found"])
        found = [store.messages.get((queue.topic, queue.queue_id, offset + n)) for n in range(count)]
        offsets = [row["queue_offset"] for row in found if row and row["queue_offset"] < planned.range.end]
        yield same(f"{said}: begin", planned.range.begin, offset)
        yield same(f"{said}: messages", offsets, line["found"])
        yield same(f"{said}: next", offset + count, line["next"])
        if "bytes" in line:
            yield same(f"{said}: bytes", sum(row["store_size"] for row in found if row), line["bytes"])
    else:
        yield NotChecked(f"status {status}: no rule for what a window does there")


def _by_the_rule(said: str, line: Line, least: int, most: int) -> Outcomes:
    """The store's status or the client's, and the corrected offset."""
    status, corrected = get_message_status(line["offset"], least, most)
    names = {status, pull_status(status, line["offset"])}
    if line["status"] == "NO_MATCHED_LOGIC_QUEUE":  # a queue that was never written to is no queue for a broker
        names = {line["status"] if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE else status}
    yield same(f"{said}: by the rule", line["status"] if line["status"] in names else sorted(names), line["status"])
    if status is not GetMessageStatus.FOUND:
        yield same(f"{said}: corrected by the rule", corrected, line["next"])


def _get_edge(line: Line, store: BrokerStore) -> Outcomes:
    yield from _bounds(store, line, "min", "max")
    yield from _answered(store, line)


def _bounds(store: BrokerStore, line: Line, least: str, most: str) -> Outcomes:
    queue = store.queue(line)
    found = store.positions.min_offset(queue), store.positions.max_offset(queue)
    yield same(f"bounds of {queue}", found, (line[least], line[most]))


def _get_walk(line: Line, store: BrokerStore) -> Outcomes:
    """The broker's half of a filter by tags: hash codes only."""
    data = build_subscription_data(line["topic"], line["expression"])
    said = f"{line['topic']} {line['queueId']} by {line['expression']!r}"
    rows = store.by_queue.get((line["topic"], line["queueId"]), [])
    passed = [row["queue_offset"] for row in rows if data.matches_code(row["tags_code"])]
    yield same(f"{said}: codes", sorted(data.codes), sorted(line["codes"]))
    yield same(f"{said}: passed", passed, line["passed"])
    key = line["topic"], line["queueId"]
    yield same(f"{said}: is a queue", key in store.on_disk or key in store.made, True)
    yield from _walks_on(said, line, store)
    for asked, status, then, left in line["steps"]:
        answer = _answer(store, rows, asked, line, lambda row: data.matches_code(row["tags_code"]))
        yield same(f"{said}: step {asked} ends", (answer.status, answer.next_begin_offset), (status, then))
        of_step = [offset for offset in passed if asked <= offset < then]
        yield same(f"{said}: step {asked}", (len(of_step), bool(of_step)), (left, status == "FOUND"))


def _answer(
    store: BrokerStore, rows: Sequence[Row], asked: int, line: Line, passes: Callable[[Row], bool]
) -> GetMessageResult:
    """What a broker answers that has it all in memory; a walk asks for 32 messages at a time."""
    entries = (
        Entry(row["queue_offset"], row["store_size"], passes(row)) for row in rows if row["queue_offset"] >= asked
    )
    return get_message(entries, asked, line.get("maxNums", 32), entries_per_file=store.entries_per_file)


def _walks_on(said: str, line: Line, store: BrokerStore) -> Outcomes:
    """Each step begins where the one before it ended, the first at the queue's beginning, the last ends at its end."""
    queue, steps = store.queue(line), line["steps"]
    begin, end = store.positions.min_offset(queue), store.positions.max_offset(queue)
    found = [begin, *(then for _, _, then, _ in steps)] if steps else [begin]
    yield same(f"{said}: steps", found, [*(asked for asked, *_ in steps), end])


check_get = by_kind({"edge": _get_edge, "walk": _get_walk})


# --- what a real pull consumer was given -----------------------------------------------------------------------------


def pull_edge(line: Line, store: BrokerStore) -> Outcomes:
    if not store.is_left_over(line["topic"], line["queueId"]):
        yield from _bounds(store, line, "minOffset", "maxOffset")
    if "error" in line:
        yield from _nobody_gets_there(line, store)
        return
    yield from _bounds(store, line, "answerMin", "answerMax")
    yield from _answered(store, line)


def _nobody_gets_there(line: Line, store: BrokerStore) -> Outcomes:
    """A negative offset, which the client refuses itself (rules 7.1), or a queue that the topic does not have: no
    group can be brought to it."""
    queue, offset, error = store.queue(line), line["offset"], line["error"]
    if isinstance(error, dict):
        code = request_checks.check_pull(SubscriptionGroupConfig("g"), store.topics.get(queue.topic), queue.queue_id)
        yield same(f"{queue} at {offset}: code", code, error["code"])
    if not any(words in str(error) for words in REFUSALS):
        yield f"{queue} at {offset}: unknown error {error}"
        return
    if store.is_left_over(queue.topic, queue.queue_id):  # here it is a queue while it has messages
        return
    request = ResetRequest(
        "g", queue.topic, ResetTo.OFFSET, "2026-01-01-edge", Actor("a", "b"), "edge", offset, (queue,)
    )
    view = ShardLookup(store.imported.shard)
    known = store.positions.queues_of(queue.topic)
    words = "not in consume queue range" if queue in known else "does not exist" if known else "has no topic"
    yield refused(f"{queue} at {offset}", WrongUse, lambda: reset_moves(view, store.positions, request), words)


def _pull_walk(line: Line, store: BrokerStore) -> Outcomes:
    said = f"{line['topic']} {line['queueId']} by {line['type']} {line['expression']!r}"
    yield from _bounds(store, line, "minOffset", "maxOffset")
    rows = store.by_queue.get((line["topic"], line["queueId"]), [])
    try:
        wanted = filter_of(line["topic"], line["expression"], line["type"])
    except WrongUse:
        if line["steps"]:
            raise
        yield same(f"{said}: rows, delivered", (rows, line["delivered"]), ([], []))  # nobody has read the expression
        return
    if wanted is None or wanted.data is None:
        yield refused(said, WrongUse, lambda: build_subscription_data(line["topic"], line["expression"], line["type"]))
    if wanted is None:
        # Carried in a pull request, what cannot be parsed filters nothing (rules 7.3).
        yield same(f"{said}: delivered", [row["queue_offset"] for row in rows], line["delivered"])
        yield from _walks_on(said, line, store)
        yield from _steps(said, line, store, rows, filter_of(line["topic"], SUB_ALL, ExpressionType.TAG))
        return
    yield from _walks_on(said, line, store)
    delivered = [row["queue_offset"] for row in rows if wanted.delivers(row)]
    yield same(f"{said}: delivered", delivered, line["delivered"])
    batch = store.batches.get((line["topic"], line["queueId"]))
    if wanted.data is not None and batch is not None:
        yield same(f"{said}: delivered by a window", wanted.delivered_in_lake(batch), line["delivered"])
    yield from _steps(said, line, store, rows, wanted)


def _steps(said: str, line: Line, store: BrokerStore, rows: list[Line], wanted: Filter | None) -> Outcomes:
    """FOUND says that the broker let something pass, ``left`` how much of it the client kept."""
    assert wanted is not None
    for asked, status, then, left in line["steps"]:
        answer = _answer(store, rows, asked, line, wanted.passes)
        yield same(f"{said}: step {asked} ends", answer.next_begin_offset, then)
        if status not in ("FOUND", "NO_MATCHED_MSG", "NO_NEW_MSG"):
            yield f"{said}: step {asked} has status {status!r}"
            continue
        of_step = [row for row in rows if asked <= row["queue_offset"] < then]
        found = sum(map(wanted.delivers, of_step)), any(map(wanted.passes, of_step))
        yield same(f"{said}: step {asked}", found, (left, status == "FOUND"))


check_pull = by_kind({"edge": pull_edge, "walk": _pull_walk})
