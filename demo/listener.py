"""The demo's listener: most payments are booked at once, some only at the second try, and one can never be."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.consumer.listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from rmq_store.message.message import MessageExt

POISON_SEQ = "2"
"""The ``seq`` property of the payment whose account was closed."""


class PriceMissing(Exception):
    """The price has not been looked up yet; it will be there the next time."""


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
    """Raises what is wrong with the payment; its type and text stand in the tables."""
    if payment.get_property("seq") == POISON_SEQ:
        raise AccountClosed(f"payment {payment.get_property('UNIQ_KEY')}: the account is closed")
    if payment.get_property("price") == "n/a" and payment.reconsume_times == 0:
        raise PriceMissing(f"payment {payment.get_property('UNIQ_KEY')}: no price yet")
