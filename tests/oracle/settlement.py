"""How RocketMQ's client ends a concurrent batch (``ConsumeMessageConcurrentlyService#processConsumeResult``, rules
9.1).
 A client sends each failed message back by itself, and each send-back can fail. ``settle`` says which messages are
finished then, ``offset_to_commit`` whether the offset moves. A window has no such step: all send-backs are part of its
one commit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rmq_store.consumer.consume_result import ConcurrentResult

RESUBMIT_AFTER_MS = 5000
"""After a failed send-back the client calls its listener again, without limit."""


@dataclass(frozen=True, slots=True)
class Settlement:
    finished: tuple[int, ...]
    """Queue offsets that leave the ProcessQueue."""
    resubmit: tuple[int, ...] = ()
    """Queue offsets that stay in it: one try more in this client's memory, and the listener gets them again."""
    resubmit_after_ms: int = RESUBMIT_AFTER_MS


def settle(result: ConcurrentResult, send_back_failed: Collection[int] = ()) -> Settlement:
    """What is finished, and what the client tries again by itself. ``send_back_failed``: offsets of failed
    send-backs."""
    resubmit = tuple(offset for offset, _ in result.send_back if offset in send_back_failed)
    return Settlement(tuple(offset for offset in result.offsets if offset not in resubmit), resubmit)


def offset_to_commit(settlement: Settlement, removed: int, queue_dropped: bool) -> int | None:
    """The offset to store, only ever upwards; None for none: the batch was empty, or the queue was dropped meanwhile.

    ``removed``: the answer of ``ProcessQueue.remove_message``.
    """
    is_empty = not (settlement.finished or settlement.resubmit)
    return None if is_empty or removed < 0 or queue_dropped else removed
