"""``vectors/concurrent-result``: what becomes of a batch that was consumed concurrently (rules 9.1)."""

from __future__ import annotations

from typing import Any

from rmq_store.consumer.consume_result import MessageModel, process_consume_result
from rmq_store.consumer.listener import ConsumeConcurrentlyContext, judge
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import ListenerError
from rmq_store.message.message import MessageQueue
from tests.conformance.checks import Line, Outcomes, per_line, same
from tests.oracle.settlement import offset_to_commit, settle

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


@per_line
def check(row: Line) -> Outcomes:
    yield same({key: row[key] for key in GIVEN}, _played(row), {k: v for k, v in row.items() if k not in GIVEN})


def _played(row: Line) -> dict[str, Any]:
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
        commit = offset_to_commit(settlement, queue.remove_message(settlement.finished), queue.dropped)
        if commit is not None:
            seen |= {"committed": commit, "increaseOnly": True}
    return seen | {"stillCached": queue.cached, "reconsumeTimesAfter": list(times.values())}
