"""What follows from a listener's answer in orderly consumption: RocketMQ's ``processConsumeResult`` and
``checkReconsumeTimes`` of ``ConsumeMessageOrderlyService`` (rules 9.2, 9.3).

Three steps, in order: ``messages_over_limit`` says what has to be sent away before anything is decided,
``process_consume_result`` what becomes of what was taken, and ``finish`` does that to the ProcessQueue and answers the
offset to store. One queue is consumed by one thread, so what was taken is always one stretch of offsets.

Other than in concurrent consumption: a message that failed is tried again in its place and holds up its queue; the
tries are counted in the client's memory only; the stored offset is put as it is, also downwards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rmq_store.consumer.delay import FIRST_RETRY_LEVEL
from rmq_store.consumer.listener import INT_MAX, ConsumeOrderlyStatus, quoted, status_in
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import ListenerError

DEFAULT_SUSPEND_MS: Final = 1000
"""RocketMQ's ``suspendCurrentQueueTimeMillis``."""

SUSPEND_MS: Final = (10, 30_000)
"""The least and the most time a queue is suspended; anything else is taken as the nearer of the two."""


class Taken(StrEnum):
    """What becomes of the messages that were taken from the ProcessQueue."""

    COMMIT = "commit"
    """All of them are finished, also those of earlier batches that were kept."""
    ROLLBACK = "rollback"
    """All of them go back, also those of earlier batches."""
    CONSUME_AGAIN = "make_message_to_consume_again"
    """This batch goes back."""
    KEEP = "keep"
    """They stay taken until a later batch commits or rolls back."""


@dataclass(frozen=True, slots=True)
class OrderlyMessage:
    """One message of a batch. ``reconsume_times``: how often this client has tried it in vain."""

    offset: int
    reconsume_times: int = 0


@dataclass(frozen=True, slots=True)
class OrderlyResult:
    """Of one batch.

    ``tried_again``: the offsets whose ``reconsume_times`` grow by one. ``resubmit_after_ms``: how long the queue rests;
    None when the next batch is taken at once.
    """

    taken: Taken
    tried_again: tuple[int, ...] = ()
    resubmit_after_ms: int | None = None

    @property
    def continue_consume(self) -> bool:
        return self.resubmit_after_ms is None


_S: Final = ConsumeOrderlyStatus
_TAKEN: Final = {
    # (auto commit, status): with auto commit a COMMIT and even a ROLLBACK are warned about and taken for SUCCESS
    (True, _S.SUCCESS): Taken.COMMIT,
    (True, _S.COMMIT): Taken.COMMIT,
    (True, _S.ROLLBACK): Taken.COMMIT,
    (True, _S.SUSPEND_CURRENT_QUEUE_A_MOMENT): Taken.CONSUME_AGAIN,
    (False, _S.SUCCESS): Taken.KEEP,
    (False, _S.COMMIT): Taken.COMMIT,
    (False, _S.ROLLBACK): Taken.ROLLBACK,
    (False, _S.SUSPEND_CURRENT_QUEUE_A_MOMENT): Taken.CONSUME_AGAIN,
}
_NOBODY_WAITS: Final = {True: Taken.COMMIT, False: Taken.KEEP}
"""By auto commit: a SUSPEND of which every message could be sent away."""


def orderly_status_of(value: Any) -> ConsumeOrderlyStatus:
    """A status from its enum member or its name; None, which also stands for an exception, suspends.

    :raises ListenerError: it is none of these.
    """
    if value is None:
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    status = status_in(ConsumeOrderlyStatus, value)
    if status is None:
        known = ", ".join(ConsumeOrderlyStatus)
        raise ListenerError(f"the listener answered {quoted(value)}; known in orderly consumption are {known}")
    return status


def messages_over_limit(
    status: ConsumeOrderlyStatus, batch: Sequence[OrderlyMessage], max_reconsume_times: int
) -> tuple[tuple[int, int], ...]:
    """What a SUSPEND has to send to ``%RETRY%group`` as new messages, as (offset, delay level)
    (``ConsumeMessageOrderlyService#sendMessageBack``, rules 10.5).

    ``max_reconsume_times``: -1 is no limit (2^31 - 1), any other number is taken as it is.
    """
    if status is not ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
        return ()
    most = INT_MAX if max_reconsume_times == -1 else max_reconsume_times
    return tuple((m.offset, FIRST_RETRY_LEVEL + m.reconsume_times) for m in batch if m.reconsume_times >= most)


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

    ``sent``: the offsets of ``messages_over_limit`` whose sending worked. One message that was not sent holds back the
    whole batch, sent ones included: they will be consumed and sent again. ``suspend_ms``: the context's, -1 for
    ``consumer_suspend_ms``.
    """
    suspended = status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    tried_again = tuple(message.offset for message in batch if suspended and message.offset not in sent)
    taken = _TAKEN[auto_commit, status] if tried_again or not suspended else _NOBODY_WAITS[auto_commit]
    rests = taken in (Taken.ROLLBACK, Taken.CONSUME_AGAIN)
    return OrderlyResult(taken, tried_again, suspend_time_ms(suspend_ms, consumer_suspend_ms) if rests else None)


def suspend_time_ms(suspend_ms: int, consumer_suspend_ms: int = DEFAULT_SUSPEND_MS) -> int:
    """How long a queue rests (``submitConsumeRequestLater``), in ``SUSPEND_MS``."""
    least, most = SUSPEND_MS
    return min(max(consumer_suspend_ms if suspend_ms == -1 else suspend_ms, least), most)


def finish(queue: ProcessQueue, batch: Sequence[tuple[int, int]], result: OrderlyResult) -> int | None:
    """Do to the queue what was decided about ``batch`` (queue offset, body bytes).

    The answer is the offset to store, put as it is; None when there is none, or when the queue was dropped meanwhile.

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
