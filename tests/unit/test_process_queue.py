from __future__ import annotations

from typing import Any

from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import WrongUse
from tests.unit import vectors


def play(queue: ProcessQueue, sizes: dict[int, int], step: dict[str, Any]) -> Any:
    """One step of a vector; the answer, None where RocketMQ answers nothing."""
    match step["op"]:
        case "put":
            messages = [(offset, size) for offset, size in step["messages"]]
            sizes.update(messages)
            return queue.put_message(messages, None if step["maxOffsetProperty"] == -1 else step["maxOffsetProperty"])
        case "remove":
            return queue.remove_message(step["offsets"])
        case "take":
            return queue.take_messages(step["max"])
        case "span":
            return queue.max_span
        case "contains":
            return queue.contains_message(step["offset"])
        case "rollback":
            return queue.rollback()
        case "again":
            return queue.make_message_to_consume_again([(offset, sizes[offset]) for offset in step["offsets"]])
        case "commit":
            try:
                return queue.commit()
            except WrongUse:
                return "NoSuchElementException"
    raise AssertionError(step)


def test_sequences_on_a_process_queue_answer_as_in_rocketmq() -> None:
    rows = vectors.read("process-queue")
    steps = 0
    for row in rows:
        queue, sizes = ProcessQueue(), dict[int, int]()
        for step in row["steps"]:
            answer = play(queue, sizes, step)
            found = (answer, queue.cached, queue.message_count, queue.message_bytes, queue.behind, bool(queue.cached))
            wanted = (step.get("answer"), *(step[key] for key in ("cached", "count", "size", "behind", "temp")))
            assert found == wanted, (step, found)
            steps += 1
    assert (len(rows), steps) == (400, 9890)


def test_one_slow_message_holds_the_offset_until_it_is_done() -> None:
    queue = ProcessQueue()
    queue.put_message([(offset, 1) for offset in range(10, 15)])
    removed = [queue.remove_message(offsets) for offsets in ([12], [10], [10], [11, 13, 14], [11])]
    assert removed == [10, 11, 11, 15, -1]
