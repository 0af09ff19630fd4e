"""Consumption in order: what RocketMQ's class decides. The calls that a real broker's consumers got are followed by
tests/conformance (``trace``)."""

from __future__ import annotations

import pytest

from rmq_store.consumer.consume_result_orderly import (
    OrderlyMessage,
    OrderlyResult,
    Taken,
    finish,
    messages_over_limit,
    orderly_status_of,
    process_consume_result,
    suspend_time_ms,
)
from rmq_store.consumer.listener import ConsumeOrderlyStatus
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import ListenerError, WrongUse
from tests.conformance.checks import passed
from tests.conformance.orderly_result import check
from tests.unit import vectors

SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT = ConsumeOrderlyStatus.COMMIT


def test_results_of_orderly_consumption_lead_where_rocketmq_leads() -> None:
    assert passed(check(vectors.read("orderly-result"))) == 1549


def test_a_message_that_cannot_be_sent_away_holds_back_those_that_could() -> None:
    batch = [OrderlyMessage(10, 2), OrderlyMessage(11, 2), OrderlyMessage(12, 2), OrderlyMessage(13, 0)]
    sent = messages_over_limit(SUSPEND, batch, 2)
    assert sent == ((10, 5), (11, 5), (12, 5))
    result = process_consume_result(SUSPEND, batch, [offset for offset, _ in sent], suspend_ms=20)
    assert result == OrderlyResult(Taken.CONSUME_AGAIN, tried_again=(13,), resubmit_after_ms=20)


def test_only_a_suspension_sends_anything_away() -> None:
    tired = [OrderlyMessage(10, 99)]
    assert [messages_over_limit(status, tired, 0) for status in ConsumeOrderlyStatus if status is not SUSPEND] == [
        ()
    ] * 3


def test_without_a_limit_a_message_is_tried_for_ever() -> None:
    assert messages_over_limit(SUSPEND, [OrderlyMessage(10, 1_000_000)], -1) == ()


def test_the_level_of_what_is_sent_away_is_a_java_int() -> None:
    assert messages_over_limit(SUSPEND, [OrderlyMessage(10, 2**31 - 1)], -1) == ((10, 2 - 2**31),)


def test_the_suspend_time_is_the_contexts_then_the_consumers_and_never_out_of_range() -> None:
    asked = [(-1, 1000), (0, 1000), (500, 1000), (40_000, 1000), (-1, 5), (-2, 1000)]
    assert [suspend_time_ms(*pair) for pair in asked] == [1000, 10, 500, 30_000, 10, 10]


def test_a_null_answer_suspends_and_anything_unknown_is_refused() -> None:
    assert (orderly_status_of(None), orderly_status_of("COMMIT")) == (SUSPEND, COMMIT)
    with pytest.raises(ListenerError, match=r"'CONSUME_SUCCESS'.*ROLLBACK"):
        orderly_status_of("CONSUME_SUCCESS")


def test_a_queue_that_was_given_away_finishes_its_messages_but_stores_no_offset() -> None:
    queue = ProcessQueue(dropped=True)
    queue.put_message([(10, 1), (11, 1)])
    queue.take_messages(1)
    assert finish(queue, [(10, 1)], OrderlyResult(Taken.COMMIT)) is None
    assert (queue.cached, queue.message_count) == ([11], 1)


def test_a_commit_without_anything_taken_is_refused() -> None:
    with pytest.raises(WrongUse, match="no message of the queue is being consumed"):
        finish(ProcessQueue(), [], OrderlyResult(Taken.COMMIT))


def test_a_suspension_puts_back_its_own_batch_and_a_rollback_also_what_was_kept_before() -> None:
    cached = {}
    for status in (SUSPEND, ConsumeOrderlyStatus.ROLLBACK):
        queue = ProcessQueue()
        queue.put_message([(offset, 1) for offset in range(10, 14)])
        for answer in (ConsumeOrderlyStatus.SUCCESS, status):
            batch = [OrderlyMessage(offset) for offset in queue.take_messages(2)]
            result = process_consume_result(answer, batch, auto_commit=False)
            assert finish(queue, [(message.offset, 1) for message in batch], result) is None
        cached[status] = queue.cached
    assert list(cached.values()) == [[12, 13], [10, 11, 12, 13]]


def test_with_auto_commit_too_a_suspension_leaves_alone_what_was_kept_before() -> None:
    assert process_consume_result(SUSPEND, [OrderlyMessage(12)]).taken is Taken.CONSUME_AGAIN
