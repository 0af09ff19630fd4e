"""Listeners of the fault tests: what they answer follows from the message alone, so every rerun answers the same."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.consumer.listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from rmq_store.message.message import MessageExt

POISON, LATE, BROKEN = 5, 7, 4


def fail_some(msgs: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
    """Order n is dead at once, retried for ever, retried once, or done."""
    (message,) = msgs
    number = int((message.body or b"").split()[-1])
    if number % POISON == 3:
        context.delay_level_when_next_consume = -1
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    if number % LATE == 2:
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    if number % BROKEN == 1 and message.reconsume_times == 0:
        raise RuntimeError(f"order {number} is broken")
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def fail_others(msgs: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
    """As many failures as never mind, but other ones."""
    (message,) = msgs
    number = int((message.body or b"").split()[-1])
    return ConsumeConcurrentlyStatus.RECONSUME_LATER if number % 4 == 0 else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
