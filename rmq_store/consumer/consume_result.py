"""What follows from a listener's answers in concurrent consumption
(``ConsumeMessageConcurrentlyService#processConsumeResult``, rules 9.1).

Before it, ``clean_expired_msg`` looks at how long the listener took (rules 8); then ``process_consume_result`` says
which messages are sent back. A window stores all send-backs in its one commit: none of them can fail alone, so every
message of a batch is finished and the offset always moves behind it.

For example, a listener gets the batch 10..13 and answers CONSUME_SUCCESS with ``ack_index`` 1:

    answers = judge("CONSUME_SUCCESS", 4, context)   # 10 and 11 acked, 12 and 13 failed with delay level 0
    process_consume_result(MessageModel.CLUSTERING, [10, 11, 12, 13], answers)
        # offsets (10, 11, 12, 13), send_back ((12, 0), (13, 0)), dropped ()
    process_consume_result(MessageModel.BROADCASTING, [10, 11, 12, 13], answers)
        # offsets (10, 11, 12, 13), send_back (), dropped (12, 13)

Either way the next offset is 14. ``retry.route`` says where 12 and 13 go. Orderly consumption has other rules (rules
9.2), in ``consume_result_orderly``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.listener import Answer
from rmq_store.message.message import MessageQueue

EXPIRED_DELAY_LEVEL = 3
CONSUME_TIMEOUT = "ConsumeTimeout"
"""The ``error_type`` of messages whose listener took too long."""


class MessageModel(StrEnum):
    """Whether a group's consumers share the messages or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True)
class ConcurrentResult:
    """The result of one batch, by queue offsets."""

    offsets: tuple[int, ...]
    """The whole batch."""
    send_back: tuple[tuple[int, int], ...] = ()
    """(offset, delay level) of each message that is sent back."""
    dropped: tuple[int, ...] = ()
    """What failed in a broadcasting consumer, which retries nothing."""


def is_expired(took_ms: int, consume_timeout_ms: int | None) -> bool:
    """Whether a call of the listener took longer than the timeout; None: there is no timeout."""
    return consume_timeout_ms is not None and took_ms > consume_timeout_ms


def clean_expired_msg(answers: Sequence[Answer], took_ms: int, consume_timeout_ms: int | None) -> Sequence[Answer]:
    """The answers with the timeout applied: after a call that took too long all its messages are sent back at level 3,
    whatever the listener answered (``ProcessQueue#cleanExpiredMsg``, rules 8). They were consumed, and are consumed
    again.

    RocketMQ's client checks once every consumeTimeout, and only the first 16 messages of a queue; here every call is
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
    """What becomes of the failed messages of a batch. ``answers``: one per message, from ``listener.judge``.

    ``waiting``: the offsets that are still in the ProcessQueue, None for all. The client's clean-up has already sent
    back what expired; that is not sent again.
    """
    failed = [(offset, a.delay_level) for offset, a in zip(offsets, answers, strict=True) if not a.acked]
    if model is MessageModel.BROADCASTING:
        return ConcurrentResult(tuple(offsets), dropped=tuple(offset for offset, _ in failed))
    send_back = tuple(pair for pair in failed if waiting is None or pair[0] in waiting)
    return ConcurrentResult(tuple(offsets), send_back)


GROUP_DELETED = "it is a retry from before its group was deleted"
"""The reason of a dropped retry that is older than the last deletion of its group."""


def is_void(epoch: int | None, deleted: int | None) -> bool:
    """Whether a message of a group's retry topic is from before the group was last deleted: no listener gets it.
    Most waited then. Others were consumed, and an operator has reset the new group to an offset before them.

    ``epoch``: of the group when the message was sent back or redriven; None for one that a broker or an older version
    of this software stored, which counts as older than every deletion. ``deleted``: the group's epoch at its last
    deletion.
    """
    return deleted is not None and (epoch or 0) < deleted


@dataclass(frozen=True, slots=True)
class DroppedRange:
    """Messages that a broadcasting consumer dropped, or whose group was deleted, and the reason."""

    range: QueueRange
    reason: str


def dropped_ranges(queue: MessageQueue, failed: Iterable[tuple[int, Answer]]) -> list[DroppedRange]:
    """What a broadcasting consumer drops, neighbours with one reason as one range; ``failed`` is in offset order."""
    return _together(
        queue, ((o, f"{a.error_type}: {a.error_text}" if a.error_type else "RECONSUME_LATER") for o, a in failed)
    )


def void_ranges(queue: MessageQueue, offsets: Iterable[int]) -> list[DroppedRange]:
    """What is dropped because the group was deleted; offsets ascend."""
    return _together(queue, ((offset, GROUP_DELETED) for offset in offsets))


def _together(queue: MessageQueue, reasons: Iterable[tuple[int, str]]) -> list[DroppedRange]:
    ranges: list[DroppedRange] = []
    for offset, reason in reasons:
        begin = offset
        if ranges and ranges[-1].range.end == offset and ranges[-1].reason == reason:
            begin = ranges.pop().range.begin
        ranges.append(DroppedRange(QueueRange(queue, begin, offset + 1), reason))
    return ranges
