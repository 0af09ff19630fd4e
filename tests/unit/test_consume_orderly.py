"""Windows in order against the calls that a real broker's orderly consumers got (``behaviour/market-clean.trace``).

Of the groups whose batches are of one message every call can be foretold: the same listener is asked by us, in one
window or in as many as there were pauses, and must be asked the same.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.commit.ctl import Blocked
from rmq_store.commit.positions import tally
from rmq_store.consumer.consume_orderly import OrderlyDone, OrderlyRules, consume_orderly, orderly_call
from rmq_store.consumer.listener import Listener, ListenerKind
from rmq_store.message.message import MessageExt, MessageQueue

BEHAVIOUR = Path(__file__).parents[1] / "data" / "rocketmq" / "behaviour"
MOST = 10_000

Line = dict[str, Any]


def lines(name: str) -> list[Line]:
    with gzip.open(BEHAVIOUR / f"market-clean.{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


GROUPS = {row["group"]: row for row in lines("groups")}
TRACE = lines("trace")


def queues_of(group: str) -> dict[MessageQueue, list[Line]]:
    """The calls of a group by queue, in the order in which they were made."""
    found: dict[MessageQueue, list[Line]] = defaultdict(list)
    for line in sorted(TRACE, key=lambda line: line["at"]):
        if line["group"] == group:
            queue = line["queue"]
            found[MessageQueue(queue["topic"], queue["brokerName"], queue["queueId"])].append(line)
    return found


def scripted(calls: list[Line], heard: list[tuple[int, int]]) -> Listener:
    """Answers as the scripted listener did, call by call."""
    answers = iter(calls)

    def answer(msgs: list[MessageExt], context: Any) -> str | None:
        heard.extend((message.queue_offset, message.reconsume_times) for message in msgs)
        call = next(answers)
        context.auto_commit = call.get("more", {}).get("autoCommit", True)
        if call["returned"] == "throw":
            raise RuntimeError("scripted")
        return None if call["returned"] == "null" else str(call["returned"])

    return Listener(ListenerKind.MESSAGE, answer, None, "tests:scripted")


def windows(queue: MessageQueue, calls: list[Line], rules: OrderlyRules) -> Iterator[OrderlyDone]:
    """Window after window, each from where the one before waits."""
    offsets = sorted({message["queueOffset"] for call in calls for message in call["messages"]})
    heard: list[tuple[int, int]] = []
    listener = scripted(calls, heard)
    tried: tuple[Blocked, ...] = ()
    begin = offsets[0]
    while True:
        messages = [MessageExt(queue.topic, queue.broker_name, queue.queue_id, o) for o in offsets if o >= begin]
        done = consume_orderly(orderly_call(listener, queue, rules.group), queue, messages, rules, tried)
        yield done
        if done.waits_at is None or len(heard) == len(calls):
            break
        begin, tried = done.waits_at, done.blocked
    assert heard == [(m["queueOffset"], m["reconsumeTimes"]) for call in calls for m in call["messages"]]


@pytest.mark.parametrize("tries", [1, 2, MOST])
@pytest.mark.parametrize("name", ["gm_ordered", "gm_ordered_manual"])
def test_windows_ask_as_the_brokers_consumers_were_asked(name: str, tries: int) -> None:
    group = GROUPS[name]
    rules = OrderlyRules(name, group["batchMax"], group["maxReconsumeTimes"], tries)
    most = rules.max_reconsume_times if rules.max_reconsume_times >= 0 else MOST
    asked = 0
    for queue, calls in queues_of(name).items():
        over = [
            call["messages"][0]["queueOffset"]
            for call in calls
            if call["returned"] not in ("SUCCESS", "COMMIT", "ROLLBACK")
            and call["messages"][0]["reconsumeTimes"] >= most
        ]
        done = list(windows(queue, calls, rules))
        assert [letter.offset for window in done for letter in window.dead] == over
        left = done[-1].waits_at
        every = {call["messages"][0]["queueOffset"] for call in calls}
        finished = sum(window.acked.count + len(window.dead) for window in done)
        assert finished == len([offset for offset in every if left is None or offset < left])
        assert len(done) == 1 if tries == MOST else tries > 1 or len(done) > 1
        asked += len(calls)
    assert asked == {"gm_ordered": 1581, "gm_ordered_manual": 1795}[name]


# --- whatever a listener answers -------------------------------------------------------------------------------------

QUEUE = MessageQueue("T", "b", 0)
SAID = st.tuples(st.sampled_from(["SUCCESS", "COMMIT", "ROLLBACK", "SUSPEND_CURRENT_QUEUE_A_MOMENT"]), st.booleans())


@given(
    offsets=st.sets(st.integers(0, 60), min_size=1, max_size=12).map(sorted),
    said=st.lists(SAID, min_size=1, max_size=30),
    size=st.integers(1, 4),
    limit=st.integers(-1, 3),
    tries=st.integers(1, 3),
)
def test_every_message_is_finished_once_in_order_or_waits(
    offsets: list[int], said: list[tuple[str, bool]], size: int, limit: int, tries: int
) -> None:
    answers, begin, highest = iter(said * 3), 0, -1
    asked: list[list[int]] = []
    tried: tuple[Blocked, ...] = ()

    def answer(msgs: list[MessageExt], context: Any) -> str:
        asked.append([message.queue_offset for message in msgs])
        status, context.auto_commit = next(answers, ("COMMIT", True))
        return status

    listener = Listener(ListenerKind.MESSAGE, answer, None, "tests:answer")
    for _ in range(100):
        messages = [MessageExt("T", "b", 0, offset) for offset in offsets if offset >= begin]
        call = orderly_call(listener, QUEUE, "g")
        done = consume_orderly(call, QUEUE, messages, OrderlyRules("g", size, limit, tries), tried)
        below = [o for o in offsets if o >= begin and (done.waits_at is None or o < done.waits_at)]
        dead = [letter.offset for letter in done.dead]
        assert done.acked + tally(dead) == tally(below)
        assert dead == sorted({*dead} & {*below})
        assert (done.waits_at is None) == (not done.blocked)
        if done.waits_at is None:
            break
        assert done.blocked[0].range.begin == done.waits_at
        assert all(a.range.end <= b.range.begin for a, b in pairwise(done.blocked))
        begin, tried = done.waits_at, done.blocked
    else:
        pytest.fail("the queue never ended")
    for batch in asked:
        assert batch == [offset for offset in offsets if batch[0] <= offset <= batch[-1]]
        assert batch[0] <= highest or batch[0] == next(o for o in offsets if o > highest)
        highest = max(highest, batch[-1])
    assert highest == offsets[-1]
