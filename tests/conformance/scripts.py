"""The scripted consumers of ``behaviour/`` (README of the data) as listeners, by the name of their script.

A message's property ``plan`` says how often it fails, and how. In a batch the first message that fails decides. Workers of
Spark import these by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rmq_store.message.message import MessageExt, MessageQueue

NO_PLAN = "ok"
LEVEL_ON_FAILURE = re.compile(r"level (\d+) on failure\b")
_LATER = re.compile(r"later(\d+)")
_LEVEL = re.compile(r"level(\d+)")


def plan_of(message: MessageExt) -> str:
    return message.get_property("plan") or NO_PLAN


def first_failing(msgs: Sequence[MessageExt]) -> int | None:
    """The position of the first message that fails now."""
    return next(
        (n for n, message in enumerate(msgs) if message.reconsume_times < _times_to_fail(plan_of(message))), None
    )


def _times_to_fail(plan: str) -> int:
    later = _LATER.fullmatch(plan)
    return int(later[1]) if later else int(plan != NO_PLAN)


def _level(plan: str) -> int:
    asked = _LEVEL.fullmatch(plan)
    return -1 if plan == "dlq" else int(asked[1]) if asked else 0


def _fail(plan: str, status: str) -> str | None:
    if plan.startswith("throw"):
        raise RuntimeError("scripted")
    return None if plan.startswith("null") else status


def one(msgs: Sequence[MessageExt], context: Any) -> Any:
    failing = first_failing(msgs)
    if failing is None:
        return "CONSUME_SUCCESS"
    plan = plan_of(msgs[failing])
    context.delay_level_when_next_consume = _level(plan)
    return _fail(plan, "RECONSUME_LATER")


def level_on_failure(level: int) -> Callable[[Sequence[MessageExt], Any], Any]:
    """Every failure asks for this level."""

    def consume(msgs: Sequence[MessageExt], context: Any) -> Any:
        if first_failing(msgs) is None:
            return "CONSUME_SUCCESS"
        context.delay_level_when_next_consume = level
        return "RECONSUME_LATER"

    consume.__name__ = f"level_{level}_on_failure"
    return consume


def __getattr__(name: str) -> Callable[[Sequence[MessageExt], Any], Any]:
    """That of a level by its name, for Spark."""
    level = re.fullmatch(r"level_(\d+)_on_failure", name)
    if level is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return level_on_failure(int(level[1]))


def ack_index(msgs: Sequence[MessageExt], context: Any) -> Any:
    failing = first_failing(msgs)
    if failing is not None:
        context.ack_index = failing - 1
        context.delay_level_when_next_consume = _level(plan_of(msgs[failing]))
    return "CONSUME_SUCCESS"


def whole_batch(msgs: Sequence[MessageExt], context: Any) -> Any:
    if first_failing(msgs) is None:
        return "CONSUME_SUCCESS"
    context.ack_index = 0  # counts only with CONSUME_SUCCESS
    return "RECONSUME_LATER"


def ordered(msgs: Sequence[MessageExt], context: Any) -> Any:
    """How it fails is the affair of the batch's first message."""
    return "SUCCESS" if first_failing(msgs) is None else _fail(plan_of(msgs[0]), "SUSPEND_CURRENT_QUEUE_A_MOMENT")


MANUAL_COMMIT_EVERY, MANUAL_ROLLBACK_EVERY = 5, 17
_BEGINS: dict[tuple[str, MessageQueue], int] = {}
_CALLS: Counter[tuple[str, MessageQueue]] = Counter()


def manual(msgs: Sequence[MessageExt], context: Any) -> Any:
    """Counts the calls of a queue in its process, anew from the first message that it got of it, which the first COMMIT
    finishes."""
    queue, offset = (context.group, context.message_queue), msgs[0].queue_offset
    if offset <= _BEGINS.setdefault(queue, offset):
        _BEGINS[queue], _CALLS[queue] = offset, 0
    _CALLS[queue] += 1
    context.auto_commit = False
    if _CALLS[queue] % MANUAL_ROLLBACK_EVERY == 0:
        return "ROLLBACK"
    return "COMMIT" if _CALLS[queue] % MANUAL_COMMIT_EVERY == 0 else "SUCCESS"


def always(msgs: Sequence[MessageExt], context: Any) -> Any:
    return "CONSUME_SUCCESS"


SCRIPTS: dict[str, Callable[[Sequence[MessageExt], Any], Any]] = {
    "one": one,
    "ackIndex": ack_index,
    "wholeBatch": whole_batch,
    "ordered": ordered,
    "manual": manual,
    "always": always,
}
ORDERLY_SCRIPTS = ("ordered", "manual")


def script_named(name: str) -> Callable[[Sequence[MessageExt], Any], Any]:
    """:raises KeyError: no such script."""
    if level := LEVEL_ON_FAILURE.match(name):
        return level_on_failure(int(level[1]))
    return SCRIPTS[name]
