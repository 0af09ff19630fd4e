"""``vectors/process-queue``: sequences of calls on a ProcessQueue (rules 8)."""

from __future__ import annotations

from typing import Any

from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import WrongUse
from tests.conformance.checks import Line, Outcomes, per_line, same


@per_line
def check(row: Line) -> Outcomes:
    queue, sizes = ProcessQueue(), dict[int, int]()
    for number, step in enumerate(row["steps"]):
        answer = _play(queue, sizes, step)
        found = (answer, queue.cached, queue.message_count, queue.message_bytes, queue.behind, bool(queue.cached))
        wanted = (step.get("answer"), *(step[key] for key in ("cached", "count", "size", "behind", "temp")))
        yield same(f"step {number}, {step['op']}", found, wanted)


def _play(queue: ProcessQueue, sizes: dict[int, int], step: Line) -> Any:
    """One step; the answer, None where RocketMQ answers nothing."""
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
    raise ValueError(f"unknown step {step['op']!r}")
