"""``vectors/delays`` and ``retry-policies``: delay levels and the retry policies of groups (rules 10.7, 11.1)."""

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

LONG = range(-(2**63), 2**63)
EXACT_MAX = 2**53
"""Up to here a double holds every whole number."""


def _levels(row: Line) -> Outcomes:
    if not row["parsed"]:
        yield refused(
            row["text"], WrongUse, lambda: DelayLevels(row["text"] or ""), "is not a number with one of the units"
        )
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
    exponential = _exponential_of(row)
    for times, delay_ms in row["delays"]:
        found = policy.next_delay_ms(times)
        wanted = delay_ms if exponential is None else _wanted(*exponential, times, delay_ms, found)
        yield same(f"{row['kind']} after {times} retries", found, wanted)


def _policy_of(row: Line) -> CustomizedRetryPolicy | ExponentialRetryPolicy | GroupRetryPolicy:
    if row["kind"] == "customized":
        return CustomizedRetryPolicy(tuple(row["next"]))
    if row["kind"] == "exponential":
        return ExponentialRetryPolicy(row["initial"], row["max"], row["multiplier"])
    if row["type"] is None:
        return GroupRetryPolicy()
    return GroupRetryPolicy(
        GroupRetryPolicyType(row["type"]),
        ExponentialRetryPolicy(*row["exponential"]) if row["exponential"] else None,
        CustomizedRetryPolicy(tuple(row["customized"])) if row["customized"] else None,
    )


def _exponential_of(row: Line) -> tuple[int, int, int] | None:
    """Initial delay, longest delay and multiplier, if they decide."""
    if row["kind"] == "exponential":
        return row["initial"], row["max"], row["multiplier"]
    if row["kind"] == "group" and row["type"] == "EXPONENTIAL" and row["exponential"]:
        initial, longest, multiplier = row["exponential"]
        return initial, longest, multiplier
    return None


def _wanted(initial: int, longest: int, multiplier: int, times: int, delay_ms: int, found: int) -> int:
    """What we are to answer where RocketMQ answers ``delay_ms``. Its product of 64 bits may wrap around: ours is the
    longest delay then. Its power is a double: above 2^53 it may be off by a rounding, ours is exact."""
    power = multiplier ** min(max(times, 0), 32)
    product = initial * power
    if product in LONG and abs(power) <= EXACT_MAX:
        return delay_ms
    rounding = abs(product) >> 51
    if abs(product) + rounding in LONG:
        return found if abs(found - delay_ms) <= rounding else delay_ms
    return min(product, longest) if product in LONG else longest
