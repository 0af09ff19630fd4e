"""What follows from a listener's answer in orderly consumption: RocketMQ's ``processConsumeResult`` and
``checkReconsumeTimes`` of ``ConsumeMessageOrderlyService`` (rules 9.2, 9.3).

Three steps, in order: ``messages_over_limit`` says which messages must be sent away first, ``process_consume_result``
what becomes of the messages that were taken, and ``finish`` does that to the ProcessQueue and returns the offset to
store. One thread consumes a queue, so the taken offsets are always without a gap.

Differences from concurrent consumption: a failed message is tried again in its place and blocks its queue; the tries
are counted in the client's memory only; the offset is stored as it is, even if it is lower.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rmq_store.consumer.delay import retry_level
from rmq_store.consumer.listener import ConsumeOrderlyStatus, quoted, status_in
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.consumer.retry import limit_in_order
from rmq_store.errors import ListenerError

DEFAULT_SUSPEND_MS: Final = 1000
"""RocketMQ's ``suspendCurrentQueueTimeMillis``."""

SUSPEND_MS: Final = (10, 30_000)
"""The shortest and the longest suspension of a queue; other values are clamped."""


class Taken(StrEnum):
    """What becomes of the messages that were taken from the ProcessQueue."""

    COMMIT = "commit"
    """All taken messages are finished, also those of earlier batches."""
    ROLLBACK = "rollback"
    """All taken messages go back, also those of earlier batches."""
    CONSUME_AGAIN = "make_message_to_consume_again"
    """The messages of this batch go back."""
    KEEP = "keep"
    """They stay taken until a later batch commits or rolls back."""


@dataclass(frozen=True, slots=True)
class OrderlyMessage:
    """One message of a batch."""

    offset: int
    reconsume_times: int = 0
    """The failed tries of this client."""


@dataclass(frozen=True, slots=True)
class OrderlyResult:
    """The result of one batch."""

    taken: Taken
    tried_again: tuple[int, ...] = ()
    """The offsets whose ``reconsume_times`` grow by one."""
    resubmit_after_ms: int | None = None
    """How long the queue is suspended; None when the next batch is taken at once."""

    @property
    def continue_consume(self) -> bool:
        return self.resubmit_after_ms is None


_S: Final = ConsumeOrderlyStatus
_TAKEN: Final = {
    # (auto commit, status): with auto commit RocketMQ logs a warning for COMMIT and ROLLBACK and treats both as SUCCESS
    (True, _S.SUCCESS): Taken.COMMIT,
    (True, _S.COMMIT): Taken.COMMIT,
    (True, _S.ROLLBACK): Taken.COMMIT,
    (True, _S.SUSPEND_CURRENT_QUEUE_A_MOMENT): Taken.CONSUME_AGAIN,
    (False, _S.SUCCESS): Taken.KEEP,
    (False, _S.COMMIT): Taken.COMMIT,
    (False, _S.ROLLBACK): Taken.ROLLBACK,
    (False, _S.SUSPEND_CURRENT_QUEUE_A_MOMENT): Taken.CONSUME_AGAIN,
}
_ALL_SENT: Final = {True: Taken.COMMIT, False: Taken.KEEP}
"""By auto commit: a SUSPEND after which every message of the batch was sent away."""


def orderly_status_of(value: Any) -> ConsumeOrderlyStatus:
    """A status from its enum member or its name; None, which also means an exception, suspends the queue.

    :raises ListenerError: any other value.
    """
    if value is None:
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    status = status_in(ConsumeOrderlyStatus, value)
    if status is None:
        known = ", ".join(ConsumeOrderlyStatus)
        raise ListenerError(
            f"the listener answered {quoted(value)}; known in orderly consumption are {known}: one of them for the whole batch"
        )
    return status


def messages_over_limit(
    status: ConsumeOrderlyStatus, batch: Sequence[OrderlyMessage], max_reconsume_times: int
) -> tuple[tuple[int, int], ...]:
    """What a SUSPEND has to send to ``%RETRY%group`` as new messages, as (offset, delay level)
    (``ConsumeMessageOrderlyService#sendMessageBack``, rules 10.5).

    ``max_reconsume_times``: of the group (``limit_in_order``).
    """
    if status is not ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
        return ()
    most = limit_in_order(max_reconsume_times)
    return tuple((m.offset, retry_level(m.reconsume_times)) for m in batch if m.reconsume_times >= most)


def process_consume_result(
    status: ConsumeOrderlyStatus,
    batch: Sequence[OrderlyMessage],
    sent: Collection[int] = (),
    *,
    auto_commit: bool = True,
    suspend_ms: int = -1,
    consumer_suspend_ms: int = DEFAULT_SUSPEND_MS,
) -> OrderlyResult:
    """What becomes of a batch.

    ``sent``: the offsets of ``messages_over_limit`` that were sent. If one message of the batch was not sent, the whole
    batch goes back, with those that were: they will be consumed and sent again. ``suspend_ms``: of the context, -1
    means ``consumer_suspend_ms``.
    """
    suspended = status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    tried_again = tuple(message.offset for message in batch if suspended and message.offset not in sent)
    taken = _TAKEN[auto_commit, status] if tried_again or not suspended else _ALL_SENT[auto_commit]
    goes_back = taken in (Taken.ROLLBACK, Taken.CONSUME_AGAIN)
    return OrderlyResult(taken, tried_again, suspend_time_ms(suspend_ms, consumer_suspend_ms) if goes_back else None)


def suspend_time_ms(suspend_ms: int, consumer_suspend_ms: int = DEFAULT_SUSPEND_MS) -> int:
    """How long a queue is suspended (``submitConsumeRequestLater``), clamped to ``SUSPEND_MS``."""
    least, most = SUSPEND_MS
    return min(max(consumer_suspend_ms if suspend_ms == -1 else suspend_ms, least), most)


def finish(queue: ProcessQueue, batch: Sequence[tuple[int, int]], result: OrderlyResult) -> int | None:
    """Apply the result of ``batch``, (queue offset, body bytes) of each message, to the queue.

    Returns the offset to store as it is; None when nothing was committed, or when the queue was dropped meanwhile.

    :raises WrongUse: a commit when nothing is taken.
    """
    match result.taken:
        case Taken.COMMIT:
            committed = queue.commit()
            return None if queue.dropped else committed
        case Taken.ROLLBACK:
            queue.rollback()
        case Taken.CONSUME_AGAIN:
            queue.make_message_to_consume_again(batch)
        case Taken.KEEP:
            pass
    return None
