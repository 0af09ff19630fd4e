from __future__ import annotations

from rmq_store.consumer.process_queue import ProcessQueue
from tests.conformance.checks import passed
from tests.conformance.process_queue import check
from tests.unit import vectors


def test_sequences_on_a_process_queue_answer_as_in_rocketmq() -> None:
    assert passed(check(vectors.read("process-queue"))) == 9890


def test_one_slow_message_holds_the_offset_until_it_is_done() -> None:
    queue = ProcessQueue()
    queue.put_message([(offset, 1) for offset in range(10, 15)])
    removed = [queue.remove_message(offsets) for offsets in ([12], [10], [10], [11, 13, 14], [11])]
    assert removed == [10, 11, 11, 15, -1]
