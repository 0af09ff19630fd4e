"""What follows from a listener's answers in concurrent consumption
(``ConsumeMessageConcurrentlyService#processConsumeResult``, rules 9.1).

Before it, ``clean_expired_msg`` looks at how long the listener took (rules 8). Then three small decisions, in order:
``process_consume_result`` says who is sent back, ``settle`` what is finished when some send-backs failed,
``offset_to_commit`` whether the offset moves. A window of the lake stores all send-backs in its one commit: none of them
can fail alone, so everything is finished and the second step has nothing to do.

Consumption in order has other rules (rules 9.2), in ``consume_result_orderly``.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.listener import Answer
from rmq_store.message.message import MessageQueue

RESUBMIT_AFTER_MS = 5000
"""After a failed send-back the client asks its listener again, without limit."""

EXPIRED_DELAY_LEVEL = 3
CONSUME_TIMEOUT = "ConsumeTimeout"


class MessageModel(StrEnum):
    """Whether a group's consumers share the messages or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True)
class ConcurrentResult:
    """Of one batch: ``send_back`` as (offset, delay level), ``dropped`` what a broadcasting consumer gives up."""

    offsets: tuple[int, ...]
    send_back: tuple[tuple[int, int], ...] = ()
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """``finished`` leaves the ProcessQueue. ``resubmit`` stays in it, is counted as one more try by this client, and is
    handed over again after ``resubmit_after_ms``."""

    finished: tuple[int, ...]
    resubmit: tuple[int, ...] = ()
    resubmit_after_ms: int = RESUBMIT_AFTER_MS


def is_expired(took_ms: int, consume_timeout_ms: int | None) -> bool:
    """Whether a call of the listener lasted too long; None: it may last as long as it likes."""
    return consume_timeout_ms is not None and took_ms > consume_timeout_ms


def clean_expired_msg(answers: Sequence[Answer], took_ms: int, consume_timeout_ms: int | None) -> Sequence[Answer]:
    """The answers as they count: after a call that lasted too long all its messages are sent back at level 3, whatever the
    listener says of them (``ProcessQueue#cleanExpiredMsg``, rules 8). They were consumed, and are consumed again.

    RocketMQ's client looks once every consumeTimeout, and only at the first 16 messages of a queue; here every call is
    measured, from its beginning to its end.
    """
    if not is_expired(took_ms, consume_timeout_ms):
        return answers
    minutes = (consume_timeout_ms or 0) / 60_000
    text = f"the listener took longer than consume_timeout, {minutes:g} minutes"
    expired = Answer(False, EXPIRED_DELAY_LEVEL, CONSUME_TIMEOUT, text)
    return tuple(replace(a, delay_level=EXPIRED_DELAY_LEVEL) if a.error_type else expired for a in answers)


def process_consume_result(
    model: MessageModel, offsets: Sequence[int], answers: Sequence[Answer], waiting: Container[int] | None = None
) -> ConcurrentResult:
    """What to do with the failed ones of a batch; ``answers`` comes from ``listener.judge``.

    ``waiting``: the offsets that still wait in the ProcessQueue, None for all. One that has expired was already sent
    back by the client's own clean-up and is not sent again.
    """
    failed = [(offset, a.delay_level) for offset, a in zip(offsets, answers, strict=True) if not a.acked]
    if model is MessageModel.BROADCASTING:
        return ConcurrentResult(tuple(offsets), dropped=tuple(offset for offset, _ in failed))
    send_back = tuple(pair for pair in failed if waiting is None or pair[0] in waiting)
    return ConcurrentResult(tuple(offsets), send_back)


GROUP_DELETED = "its group was deleted while it waited"
"""Why a retry is dropped that is older than its group's last delete."""


def is_void(epoch: int | None, deleted: int | None) -> bool:
    """Whether a message of a group's retry topic waited when the group was deleted last: nobody is asked about it.

    ``epoch``: the group's when the message was sent back or redriven; None for one that a broker stored, or an older
    version of this software: it is older than every delete. ``deleted``: the group's epoch at its last delete.
    """
    return deleted is not None and (epoch or 0) < deleted


@dataclass(frozen=True, slots=True)
class DroppedRange:
    """Messages that a broadcasting consumer gave up, or whose group was deleted, and why."""

    range: QueueRange
    reason: str


def dropped_ranges(queue: MessageQueue, failed: Iterable[tuple[int, Answer]]) -> list[DroppedRange]:
    """What a broadcasting consumer gives up, neighbours with one reason together; ``failed`` is in offset order."""
    return _together(
        queue, ((o, f"{a.error_type}: {a.error_text}" if a.error_type else "RECONSUME_LATER") for o, a in failed)
    )


def void_ranges(queue: MessageQueue, offsets: Iterable[int]) -> list[DroppedRange]:
    """What is dropped because the group was deleted; offsets ascend."""
    return _together(queue, ((offset, GROUP_DELETED) for offset in offsets))


def _together(queue: MessageQueue, told: Iterable[tuple[int, str]]) -> list[DroppedRange]:
    found: list[DroppedRange] = []
    for offset, reason in told:
        begin = offset
        if found and found[-1].range.end == offset and found[-1].reason == reason:
            begin = found.pop().range.begin
        found.append(DroppedRange(QueueRange(queue, begin, offset + 1), reason))
    return found


def settle(result: ConcurrentResult, send_back_failed: Collection[int] = ()) -> Settlement:
    """What is finished when these send-backs failed, and what is tried again by the client itself."""
    resubmit = tuple(offset for offset, _ in result.send_back if offset in send_back_failed)
    return Settlement(tuple(offset for offset in result.offsets if offset not in resubmit), resubmit)


def offset_to_commit(settlement: Settlement, removed: int, queue_dropped: bool) -> int | None:
    """The offset to store, only ever upwards, or None; an empty batch moves nothing.

    ``removed``: the answer of ``ProcessQueue.remove_message``.
    """
    is_empty = not (settlement.finished or settlement.resubmit)
    return None if is_empty or removed < 0 or queue_dropped else removed
