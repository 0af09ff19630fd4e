"""The lake's side of the round trip: the rule of ``RoundTrip.java``, so a message may be retried by both."""

from __future__ import annotations

from rmq_store.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from rmq_store.message.message import MessageExt


def concurrently(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if _succeeds(msgs) else ConsumeConcurrentlyStatus.RECONSUME_LATER


def orderly(msgs: list[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS if _succeeds(msgs) else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def _succeeds(msgs: list[MessageExt]) -> bool:
    """A message succeeds once it was retried as often as its property ``fails`` says; one is in each call."""
    (message,) = msgs
    return message.reconsume_times >= int(message.get_property("fails") or 0)
