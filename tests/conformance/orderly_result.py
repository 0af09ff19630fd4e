"""``vectors/orderly-result``: what becomes of a batch that was consumed in order (rules 9.2, 9.3)."""

from __future__ import annotations

from typing import Any

from rmq_store.consumer.consume_result_orderly import (
    OrderlyMessage,
    finish,
    messages_over_limit,
    orderly_status_of,
    process_consume_result,
)
from rmq_store.consumer.process_queue import ProcessQueue
from tests.conformance.checks import Line, Outcomes, per_line, same

GIVEN = {
    "maxReconsumeTimes",
    "autoCommit",
    "status",
    "cached",
    "reconsumeTimes",
    "takenEarlier",
    "batch",
    "sendFails",
    "dropped",
    "suspendMs",
}
BODY_BYTES = 1


def played(row: Line) -> dict[str, Any]:
    """What our rules make of one case, under the vector's names."""
    queue = ProcessQueue()
    queue.put_message([(offset, BODY_BYTES) for offset in row["cached"]])
    times = dict(zip(row["cached"], row["reconsumeTimes"], strict=True))
    queue.take_messages(len(row["takenEarlier"]))
    queue.take_messages(len(row["batch"]))
    queue.dropped = row["dropped"]

    status = orderly_status_of(row["status"])
    batch = [OrderlyMessage(offset, times[offset]) for offset in row["batch"]]
    over_limit = messages_over_limit(status, batch, row["maxReconsumeTimes"])
    sent = [offset for offset, _ in over_limit if offset not in row["sendFails"]]
    result = process_consume_result(status, batch, sent, auto_commit=row["autoCommit"], suspend_ms=row["suspendMs"])
    committed = finish(queue, [(message.offset, BODY_BYTES) for message in batch], result)
    for offset in result.tried_again:
        times[offset] += 1
    seen = {
        "continueConsume": result.continue_consume,
        "sent": sent,
        "committed": committed,
        "increaseOnly": None if committed is None else False,
        "waiting": queue.cached,
        "count": queue.message_count,
        "resubmittedAfterMs": [] if result.resubmit_after_ms is None else [result.resubmit_after_ms],
        "reconsumeTimesAfter": [_as_int(count) for count in times.values()],
    }
    return seen | {"takeNext": queue.take_messages(len(row["cached"]))}


def _as_int(number: int) -> int:
    """As RocketMQ's 32 bits say it: there 2^31 tries are less than none (docs/conformance.md)."""
    return (number + 2**31) % 2**32 - 2**31


@per_line
def check(row: Line) -> Outcomes:
    yield same({key: row[key] for key in GIVEN}, played(row), {k: v for k, v in row.items() if k not in GIVEN})
