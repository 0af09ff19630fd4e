"""The demo's listener: it books most payments at once, some at the second attempt, and one never."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.consumer.listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from rmq_store.message.message import MessageExt

POISON_SEQ = "2"
"""The ``seq`` property of the payment whose account was closed."""


class PriceMissing(Exception):
    """The price is not known yet; the next attempt will have it."""


class AccountClosed(Exception):
    """Trying again will not help."""


class Payments:
    """RocketMQ's own form: messages and a context in, one status per message out."""

    def consume_message(
        self, msgs: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> Iterator[ConsumeConcurrentlyStatus]:
        for message in msgs:
            if message.topic == "PaymentFlow":
                book(message)
            yield ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def book(payment: MessageExt) -> None:
    """Raises PriceMissing or AccountClosed; the views show type and text of the error."""
    if payment.get_property("seq") == POISON_SEQ:
        raise AccountClosed(f"payment {payment.get_property('UNIQ_KEY')}: the account is closed")
    if payment.get_property("price") == "n/a" and payment.reconsume_times == 0:
        raise PriceMissing(f"payment {payment.get_property('UNIQ_KEY')}: no price yet")
