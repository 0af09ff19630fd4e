from __future__ import annotations

from typing import Any

from rmq_store.consumer.consume_result import MessageModel, offset_to_commit, process_consume_result, settle
from rmq_store.consumer.listener import ACKED, Answer, ConsumeConcurrentlyContext, judge
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import ListenerError
from rmq_store.message import MessageQueue
from tests.unit import vectors

GIVEN = {
    "model",
    "status",
    "ackIndex",
    "delayLevel",
    "batch",
    "otherCached",
    "sendBackFails",
    "alreadyExpired",
    "dropped",
}
QUEUE = MessageQueue("T", "broker-a", 0)


def play(row: dict[str, Any]) -> dict[str, Any]:
    """What our rules make of one case, under the vector's names."""
    batch, expired = row["batch"], row["alreadyExpired"]
    queue = ProcessQueue()
    queue.put_message([(offset, 1) for offset in sorted({*batch, *row["otherCached"]})])
    queue.remove_message(expired)
    queue.dropped = row["dropped"]
    times = dict.fromkeys(batch, 0)
    seen: dict[str, Any] = {"sentBack": [], "committed": None, "increaseOnly": None, "resubmittedAfterMs": []}

    context = ConsumeConcurrentlyContext(QUEUE, "g", row["ackIndex"], row["delayLevel"])
    try:
        answers = judge(row["status"], len(batch), context)
    except ListenerError:
        seen["thrown"] = "IndexOutOfBoundsException"
    else:
        result = process_consume_result(MessageModel(row["model"]), batch, answers, queue.cached)
        settlement = settle(result, row["sendBackFails"])
        seen["sentBack"] = [[offset, level] for offset, level in result.send_back if offset not in settlement.resubmit]
        if settlement.resubmit:
            seen["resubmittedAfterMs"] = [settlement.resubmit_after_ms]
        for offset in settlement.resubmit:
            times[offset] += 1
        commit = offset_to_commit(queue.remove_message(settlement.finished), queue.dropped)
        if commit is not None:
            seen |= {"committed": commit, "increaseOnly": True}
    return seen | {"stillCached": queue.cached, "reconsumeTimesAfter": list(times.values())}


def test_results_of_concurrent_consumption_lead_where_rocketmq_leads() -> None:
    rows = vectors.read("concurrent-result")
    assert len(rows) == 1368
    for row in rows:
        assert play(row) == {key: value for key, value in row.items() if key not in GIVEN}, row


def test_in_a_window_everything_is_finished_whatever_failed() -> None:
    answers = (ACKED, Answer(False, 0), Answer(False, -1))
    result = process_consume_result(MessageModel.CLUSTERING, [5, 6, 7], answers)
    assert result.send_back == ((6, 0), (7, -1))
    assert settle(result).finished == (5, 6, 7)


def test_a_broadcasting_consumer_drops_what_failed() -> None:
    result = process_consume_result(MessageModel.BROADCASTING, [5, 6], (ACKED, Answer(False)))
    assert (result.send_back, result.dropped) == ((), (6,))
