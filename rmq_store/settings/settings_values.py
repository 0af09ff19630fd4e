"""The allowed values of each key of a group in ``consumers.toml``. Rules between keys are in ``settings.py``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.consumer.allocate_rule import allocate_rule_problems
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import GroupRetryPolicy, retry_policy_problems
from rmq_store.consumer.duplicates import AbsorbRule, absorb_rule_problems
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import WrongUse
from rmq_store.message.validators import check_group
from rmq_store.utils.times import parse_consume_timestamp

MODES = ("concurrently", "orderly")
ENGINES = ("spark", "local", "auto")
ON_OFFSET_OUT_OF_RANGE = ("stop", "skip")

Check = Callable[[Any], str]
"""What is wrong with a value, "" when nothing is."""


def _must(be: str, value: Any, is_right: Any) -> str:
    return "" if is_right else f"must be {be}, it is {_as_written(value)}"


def _as_written(value: Any) -> str:
    """The value in an error: a list as in the file."""
    is_list = isinstance(value, list | tuple)
    return json.dumps(value, ensure_ascii=False, default=str) if is_list else repr(value)


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _between(least: int, most: int) -> Check:
    range_ = f"a whole number from {least} to {most}"
    return lambda value: _must(range_, value, is_int(value) and least <= value <= most)


def _or_none(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def _one_of(known: Iterable[str]) -> Check:
    names = list(known)
    return lambda value: _must(f"one of {', '.join(names)}", value, isinstance(value, str) and value in names)


def _accepted_by(check: Callable[[str], object]) -> Check:
    """Text that a function accepts without raising WrongUse."""

    def problem(value: Any) -> str:
        if not isinstance(value, str):
            return _must("text", value, False)
        try:
            check(value)
        except WrongUse as error:
            return str(error)
        return ""

    return problem


def _flag(value: Any) -> str:
    return _must("true or false", value, isinstance(value, bool))


def _like(pattern: str, be: str) -> Check:
    return lambda value: _must(be, value, isinstance(value, str) and re.fullmatch(pattern, value))


def check_group_name(name: str) -> None:
    """Raise WrongUse unless this can be a group, or ``group@client``."""
    group, at, client = name.partition("@")
    check_group(group)
    if at and not re.fullmatch(r"[\w.@#:-]+", client):
        raise WrongUse(f"client {client!r} has characters other than letters, digits and '_.@#:-', or is empty")


def _check_name(name: str) -> None:
    """Raise WrongUse unless the name can be a group's, and is not that of the delivery: a window would move the positions from
    which 'rmq deliver' goes on."""
    check_group_name(name)
    if name.partition("@")[0] == SCHEDULE_GROUP:
        raise WrongUse(f"group {SCHEDULE_GROUP} is that of 'rmq deliver'; give the group a name of its own")


def _shards(value: Any) -> str:
    are_names = isinstance(value, tuple) and all(isinstance(s, str) and re.fullmatch(r"[\w.@-]+", s) for s in value)
    return _must('a list of shard names, like ["broker-a"]', value, are_names and value)


def _variables(value: Any) -> str:
    are_names = isinstance(value, tuple) and all(isinstance(v, str) and re.fullmatch(r"[A-Za-z_]\w*", v) for v in value)
    return _must('a list of names, like ["SHOP_URL"]', value, are_names)


def _retry_policy(value: Any) -> str:
    """Of the table in a file; a GroupRetryPolicy is always right."""
    if value is None or isinstance(value, GroupRetryPolicy):
        return ""
    if not isinstance(value, dict):
        return _must('a table like { type = "EXPONENTIAL", initial = 5000 }', value, False)
    return "; ".join(retry_policy_problems(value))


def _absorb_duplicates(value: Any) -> str:
    """Of the table in a file; an AbsorbRule is always right."""
    if value is None or isinstance(value, AbsorbRule):
        return ""
    if not isinstance(value, dict):
        return _must('a table like { by = "UNIQ_KEY", horizon = "7d" }', value, False)
    return "; ".join(absorb_rule_problems(value))


_LONG_MAX = 2**63 - 1
_CRON_FIELD = r"[0-9A-Za-z*/,#?-]+"
_CRON = rf"@[a-z]+|{_CRON_FIELD}(?: {_CRON_FIELD}){{4}}"
_CRON_TEXT = 'five cron fields like "*/5 * * * *", a preset like "@hourly"'
PLANNED = "planned"
"""The ``schedule`` of a group that shares its runs with others."""

check_planned_schedule = _like(_CRON, f'{_CRON_TEXT}, or "" for none')

CHECKS: dict[str, Check] = {
    "name": _accepted_by(_check_name),
    "listener": _like(r"[\w.]+:[\w.]+", "text like shop.listeners:Orders (module:attribute)"),
    "subscription_version": _between(1, 2**31 - 1),
    "mode": _one_of(MODES),
    "message_model": _one_of(MessageModel),
    "consume_message_batch_max_size": _between(1, 1024),
    "consume_timeout": _between(1, 2**31 - 1),
    "max_reconsume_times": _between(-1, 2**31 - 1),
    "suspend_tries_per_window": _between(1, 10_000),
    "retry_queue_nums": _between(0, 1024),
    "retry_policy": _retry_policy,
    "consume_from_where": _one_of(ConsumeFromWhere),
    "consume_timestamp": _or_none(_accepted_by(parse_consume_timestamp)),
    "young_topic_starts_at_zero": _flag,
    "later_queues_start_at_min": _flag,
    "all_or_nothing": _flag,
    "listener_process": _flag,
    "listener_timeout": _or_none(_between(1, 2**31 - 1)),
    "listener_memory": _or_none(_between(1, 2**31 - 1)),
    "listener_cpu": _or_none(_between(1, 2**31 - 1)),
    "listener_environment": _or_none(_variables),
    "absorb_duplicates": _absorb_duplicates,
    "on_offset_out_of_range": _one_of(ON_OFFSET_OUT_OF_RANGE),
    "max_messages": _or_none(_between(1, _LONG_MAX)),
    "max_bytes": _or_none(_between(1, _LONG_MAX)),
    "max_minutes": _or_none(_between(1, 23 * 60)),  # a run older than a day cannot commit
    "consumers": _or_none(_between(1, 10_000)),
    "allocate_strategy": lambda value: "; ".join(allocate_rule_problems(value)),
    "engine": _one_of(ENGINES),
    "schedule": _or_none(_like(rf"{PLANNED}|{_CRON}", f'{_CRON_TEXT}, "{PLANNED}", or "" for none')),
    "consume_retries": _flag,
    "shards": _or_none(_shards),
}


def value_problems(values: Mapping[str, Any]) -> list[str]:
    """The problems of values each by itself, as ``key: problem``."""
    problems = ((key, CHECKS[key](value)) for key, value in values.items())
    return [f"{key}: {problem}" for key, problem in problems if problem]
