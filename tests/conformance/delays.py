"""``vectors/delays`` and ``retry-policies``: delay levels and the retry policies of groups (S10.7, S11.1)."""

from __future__ import annotations

from rmq_store.consumer.delay import (
    CustomizedRetryPolicy,
    DelayLevels,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    GroupRetryPolicyType,
    delay_level_to_queue_id,
    queue_id_to_delay_level,
)
from rmq_store.errors import WrongUse
from tests.conformance.checks import Line, Outcomes, by_kind, per_line, refused, same

LONG_MAX = 2**63 - 1


def _levels(row: Line) -> Outcomes:
    if not row["parsed"]:
        yield refused(row["text"], WrongUse, lambda: DelayLevels(row["text"]), "is not a number with one of the units")
        return
    levels = DelayLevels(row["text"])
    yield same(f"levels of {row['text']!r}", levels.max_level, row["maxDelayLevel"])
    for level, delay_ms in row["delayMs"]:
        yield same(f"level {level} of {row['text']!r}", levels.delay_ms(level), delay_ms)


def _queue_of_level(row: Line) -> Outcomes:
    yield same(f"queue of level {row['level']}", delay_level_to_queue_id(row["level"]), row["queueId"])
    yield same(f"level of queue {row['queueId']}", queue_id_to_delay_level(row["queueId"]), row["back"])


check = by_kind({"levels": _levels, "queueOfLevel": _queue_of_level})


@per_line
def check_policies(row: Line) -> Outcomes:
    policy = _policy_of(row)
    for times, delay_ms in row["delays"]:
        wanted = _longest(row) if _overflows(row, times) else delay_ms
        yield same(f"{row['kind']} after {times} retries", policy.next_delay_ms(times), wanted)


def _policy_of(row: Line) -> CustomizedRetryPolicy | ExponentialRetryPolicy | GroupRetryPolicy:
    if row["kind"] == "customized":
        return CustomizedRetryPolicy(tuple(row["next"]))
    if row["kind"] == "exponential":
        return ExponentialRetryPolicy(row["initial"], row["max"], row["multiplier"])
    return GroupRetryPolicy(
        GroupRetryPolicyType(row["type"]),
        ExponentialRetryPolicy(*row["exponential"]) if row["exponential"] else None,
        CustomizedRetryPolicy(tuple(row["customized"])) if row["customized"] else None,
    )


def _overflows(row: Line, reconsume_times: int) -> bool:
    """Whether RocketMQ's 64-bit product wraps around: its answer is then negative, ours the longest delay."""
    if row["kind"] == "exponential":
        initial, multiplier = row["initial"], row["multiplier"]
    elif row["kind"] == "group" and row["type"] == "EXPONENTIAL" and row["exponential"]:
        initial, _, multiplier = row["exponential"]
    else:
        return False
    return bool(initial * multiplier ** min(max(reconsume_times, 0), 32) > LONG_MAX)


def _longest(row: Line) -> int:
    return int(row["max"] if row["kind"] == "exponential" else row["exponential"][1])
