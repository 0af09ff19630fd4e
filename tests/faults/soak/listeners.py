"""Listeners that write each call to the history before they answer.

A listener's answer follows from the message, and for some messages also from the run of the request: another attempt of a
request may answer otherwise, as the listeners of users do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

from rmq_store.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from rmq_store.message.message import MessageExt, MessageQueue
from tests.faults.independent.history import FAILURE, SUCCESS, Call, append

CALLS, REQUEST, ATTEMPT = "SOAK_CALLS", "SOAK_REQUEST", "SOAK_ATTEMPT"
"""Environment variables: the folder of the history, the request id, and the id of this run of it."""


def consume_each(
    msgs: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> Iterator[ConsumeConcurrentlyStatus]:
    """One status per message. A broken message raises, and the messages behind it are retried too."""
    verdicts = [_verdict(message) for message in msgs]
    if "broken" in verdicts:
        first = verdicts.index("broken")
        verdicts[first + 1 :] = ["fails"] * (len(verdicts) - first - 1)
    _write(msgs, context.group, context.message_queue, [verdict == "succeeds" for verdict in verdicts])
    for message, verdict in zip(msgs, verdicts, strict=True):
        if verdict == "broken":
            raise RuntimeError(f"{message.keys} is broken")
        yield (
            ConsumeConcurrentlyStatus.CONSUME_SUCCESS
            if verdict == "succeeds"
            else ConsumeConcurrentlyStatus.RECONSUME_LATER
        )


def consume_in_order(msgs: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """One status for the batch."""
    succeeds = all(_verdict(message) == "succeeds" for message in msgs)
    _write(msgs, context.group, context.message_queue, [succeeds] * len(msgs))
    return ConsumeOrderlyStatus.SUCCESS if succeeds else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def _verdict(message: MessageExt) -> str:
    """Of 100 messages 2 never succeed, 4 fail once, 2 break their first call, and 4 fail in some attempts."""
    number = crc32((message.keys or "").encode()) % 100
    if number < 2:
        return "fails"
    if message.reconsume_times == 0 and number < 8:
        return "fails" if number < 6 else "broken"
    if number < 12 and crc32(f"{message.keys} {os.environ[ATTEMPT]}".encode()) % 2:
        return "fails"
    return "succeeds"


def _write(msgs: Sequence[MessageExt], group: str, queue: MessageQueue, successes: Sequence[bool]) -> None:
    process = os.getpid()
    calls = [
        Call(
            os.environ[REQUEST],
            os.environ[ATTEMPT],
            process,
            group,
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            message.queue_offset,
            message.keys,
            message.reconsume_times,
            SUCCESS if success else FAILURE,
        )
        for message, success in zip(msgs, successes, strict=True)
    ]
    append(Path(os.environ[CALLS]) / f"{process}.jsonl", calls)
