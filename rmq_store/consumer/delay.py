"""Delay levels (``ScheduleMessageService``, rules 11.1 to 11.3) and the retry delays of a group (``GroupRetryPolicy``,
rules 10.7).

Level n is the n-th item of a text like "1s 5s 10s". A message of level n waits in queue n - 1 of SCHEDULE_TOPIC_XXXX.
All messages of one queue wait equally long, so the queue is in due order. A level table never changes: a change makes a
new version, and messages that wait under the old version are delivered by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rmq_store.errors import WrongUse
from rmq_store.log.consume_queue import UNLISTED_LEVEL_MS
from rmq_store.message.java_text import parse_number, wrapped

MESSAGE_DELAY_LEVEL = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's default table."""

FIRST_RETRY_LEVEL = 3
"""Level 0 of a send-back means this level plus the number of retries so far."""

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_level(text: str) -> tuple[int, ...]:
    """The delays of level 1, 2, … in ms (``parseDelayLevel``).

    Items are a number and one of s, m, h, d, separated by single spaces. Number and delay are Java longs: the number
    may have a sign, and a delay of more than 64 bits wraps around. Raises WrongUse with the first invalid item.
    """
    items = text.split(" ")
    while text and items and not items[-1]:  # Java's split drops empty parts at the end
        items.pop()
    delays = []
    for item in items:
        number, unit_ms = parse_number(item[:-1], 64), _UNITS_MS.get(item[-1:])
        if number is None or unit_ms is None:
            raise WrongUse(f"delay levels {text!r}: {item!r} is not a number with one of the units s, m, h, d")
        delays.append(wrapped(number * unit_ms, 64))
    return tuple(delays)


MAX_LEVEL_DAYS = 365
"""The longest delay of a level for a new store; RocketMQ has no limit."""


def check_delays(text: str) -> None:
    """Raises WrongUse naming the first level with a delay that no store should have: none, negative, or so long that a
    due time may lie outside the years of a date."""
    for item, delay_ms in zip(text.split(" "), parse_delay_level(text), strict=False):
        if not 0 < delay_ms <= MAX_LEVEL_DAYS * _UNITS_MS["d"]:
            raise WrongUse(
                f"delay levels {text!r}: {item!r} is a delay of {delay_ms} ms, it must be in (0, {MAX_LEVEL_DAYS}d]"
            )


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """One version of the level table. Raises WrongUse for a text that RocketMQ cannot parse."""

    text: str = MESSAGE_DELAY_LEVEL
    version: int = 1
    delays_ms: tuple[int, ...] = field(init=False, repr=False)
    """Of level 1, 2, …"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays_ms", parse_delay_level(self.text))

    @property
    def max_level(self) -> int:
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of a level; 1000 ms for one that the table does not have."""
        return self.delays_ms[level - 1] if 1 <= level <= self.max_level else UNLISTED_LEVEL_MS

    def clamp(self, level: int) -> int:
        """The level as it is stored: at most the highest one (``HookUtils#transformDelayLevelMessage``)."""
        return min(level, self.max_level)

    def compute_deliver_timestamp(self, level: int, store_timestamp: int) -> int:
        """When a message stored at ``store_timestamp`` (ms) with this level is due (ms)."""
        return store_timestamp + self.delay_ms(level)

    def is_due(self, deliver_at: int, level: int, now_ms: int) -> bool:
        """Whether to deliver at ``now_ms`` what is due at ``deliver_at``, in UTC ms
        (``ScheduleMessageService#correctDeliverTimestamp``).

        A time further ahead than the level's delay can only come from a wrong clock or another table. It counts as due,
        so that no message waits for ever.
        """
        return deliver_at <= now_ms or deliver_at > now_ms + self.delay_ms(level)


def delay_level_to_queue_id(level: int) -> int:
    return level - 1


def queue_id_to_delay_level(queue_id: int) -> int:
    return queue_id + 1


def retry_level(reconsume_times: int) -> int:
    """The level of a send-back that names none. A Java int: it is negative from 2^31 - 3 retries on."""
    return wrapped(FIRST_RETRY_LEVEL + reconsume_times, 32)


# --- policies of a group ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CustomizedRetryPolicy:
    """A list of delays (ms). The first retry takes the third one, as level 3 does; behind the end the last one is
    used."""

    next_ms: tuple[int, ...] = parse_delay_level(MESSAGE_DELAY_LEVEL)

    def __post_init__(self) -> None:
        if not self.next_ms:
            raise WrongUse("a customized retry policy needs at least one delay")

    def next_delay_ms(self, reconsume_times: int) -> int:
        index = max(reconsume_times, 0) + FIRST_RETRY_LEVEL - 1
        return self.next_ms[min(index, len(self.next_ms) - 1)]


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy:
    """``initial_ms * multiplier ** retries``, with at most 32 retries, and at most ``max_ms``.

    RocketMQ multiplies in 64 bits and returns a wrong number when that overflows; here the result is then ``max_ms``.
    """

    initial_ms: int = 5000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def next_delay_ms(self, reconsume_times: int) -> int:
        exponent: int = min(max(reconsume_times, 0), 32)
        delay_ms = self.initial_ms * int(self.multiplier**exponent)
        return min(delay_ms, self.max_ms) if wrapped(delay_ms, 64) == delay_ms else self.max_ms


class GroupRetryPolicyType(StrEnum):
    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy:
    """The retry delays of a group; the default list where the policy of its type is missing."""

    type: GroupRetryPolicyType = GroupRetryPolicyType.CUSTOMIZED
    exponential: ExponentialRetryPolicy | None = None
    customized: CustomizedRetryPolicy | None = None

    def next_delay_ms(self, reconsume_times: int) -> int:
        """The delay (ms) before the delivery that follows ``reconsume_times`` retries."""
        policy = self.exponential if self.type is GroupRetryPolicyType.EXPONENTIAL else self.customized
        return (policy or CustomizedRetryPolicy()).next_delay_ms(reconsume_times)


MAX_RETRY_DELAY_MS = 3 * 24 * 3_600_000
"""The longest delay in settings: RocketMQ's ``timerMaxDelaySec``."""

_POLICY_KEYS = {
    GroupRetryPolicyType.CUSTOMIZED: ("next",),
    GroupRetryPolicyType.EXPONENTIAL: ("initial", "max", "multiplier"),
}


def retry_policy_problems(table: Mapping[str, Any]) -> list[str]:
    """The problems of a policy in a settings file: ``type`` and the keys of that type, delays in ms."""
    problems = []
    type_ = table.get("type", str(GroupRetryPolicyType.CUSTOMIZED))
    if type_ not in list(GroupRetryPolicyType):
        problems.append(f"type must be {' or '.join(GroupRetryPolicyType)}, it is {type_!r}")
    known = {key: owner for owner, keys in _POLICY_KEYS.items() for key in keys}
    for key, value in table.items():
        if key == "type":
            continue
        if key not in known:
            problems.append(f"it has an unknown key {key!r}; known: type, {', '.join(known)}")
        elif type_ in list(GroupRetryPolicyType) and known[key] != type_:
            problems.append(f"{key} applies only with type {known[key]}")
        elif problem := _POLICY_VALUES[key](value):
            problems.append(f"{key} {problem}")
    return problems


def retry_policy_of(table: Mapping[str, Any]) -> GroupRetryPolicy:
    """The policy of a table without problems; what the table leaves out is RocketMQ's default (rules 10.7).

    ``{ type = "CUSTOMIZED", next = [1000, 5000] }`` or
    ``{ type = "EXPONENTIAL", initial = 5000, max = 7200000, multiplier = 2 }``, delays in ms.
    """
    type_ = GroupRetryPolicyType(table.get("type", GroupRetryPolicyType.CUSTOMIZED))
    if type_ is GroupRetryPolicyType.CUSTOMIZED:
        customized = CustomizedRetryPolicy(tuple(table["next"])) if "next" in table else None
        return GroupRetryPolicy(type_, customized=customized)
    values = {name: table[key] for key, name in _EXPONENTIAL_FIELDS.items() if key in table}
    return GroupRetryPolicy(type_, exponential=ExponentialRetryPolicy(**values))


_EXPONENTIAL_FIELDS = {"initial": "initial_ms", "max": "max_ms", "multiplier": "multiplier"}


def _delay_problem(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RETRY_DELAY_MS:
        return ""
    return f"must be milliseconds, a whole number from 0 to {MAX_RETRY_DELAY_MS}, it is {value!r}"


def _delays_problem(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return f"must be a list of delays in ms, like [1000, 5000], it is {value!r}"
    return next((f"has an item that {problem}" for problem in map(_delay_problem, value) if problem), "")


def _multiplier_problem(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000:
        return ""
    return f"must be a whole number from 1 to 1000, it is {value!r}"


_POLICY_VALUES = {
    "next": _delays_problem,
    "initial": _delay_problem,
    "max": _delay_problem,
    "multiplier": _multiplier_problem,
}
