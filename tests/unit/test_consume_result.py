from __future__ import annotations

from rmq_store.consumer.consume_result import MessageModel, process_consume_result
from rmq_store.consumer.listener import ACKED, Answer
from tests.conformance.checks import passed
from tests.conformance.concurrent_result import check
from tests.oracle.settlement import Settlement, offset_to_commit, settle
from tests.unit import vectors


def test_results_of_concurrent_consumption_lead_where_rocketmq_leads() -> None:
    assert passed(check(vectors.read("concurrent-result"))) == 1368


def test_in_a_window_everything_is_finished_whatever_failed() -> None:
    answers = (ACKED, Answer(False, 0), Answer(False, -1))
    result = process_consume_result(MessageModel.CLUSTERING, [5, 6, 7], answers)
    assert result.send_back == ((6, 0), (7, -1))
    assert settle(result).finished == (5, 6, 7)


def test_an_empty_batch_moves_no_offset() -> None:
    empty = settle(process_consume_result(MessageModel.CLUSTERING, [], ()))
    assert offset_to_commit(empty, 5, False) is None
    assert offset_to_commit(Settlement((), resubmit=(7,)), 7, False) == 7


def test_a_broadcasting_consumer_drops_what_failed() -> None:
    result = process_consume_result(MessageModel.BROADCASTING, [5, 6], (ACKED, Answer(False)))
    assert (result.send_back, result.dropped) == ((), (6,))
