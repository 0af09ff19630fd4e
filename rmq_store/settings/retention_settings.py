"""How long messages are kept: the tables ``[[retention]]`` of ``consumers.toml``.

    [[retention]]
    topic = "OrderEvents"
    max_age = "30d"
    max_bytes = 500_000_000_000
    max_unconsumed_age = "90d"

Without a table for its topic a message is kept forever. ``rmq maintain`` applies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_store.errors import WrongUse
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.message.validators import check_topic, is_user_topic
from rmq_store.settings.settings_values import is_int
from rmq_store.utils.suggestions import did_you_mean
from rmq_store.utils.times import parse_duration

WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Their messages wait for a delivery."""
NO_GROUP_READS = "holds delayed messages: no group reads it, and 'rmq deliver' delivers them"
"""Of such a topic, in errors."""

_AGES = ("max_age", "max_unconsumed_age")
_KEYS = ("topic", "max_bytes", "archive", *_AGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """How long the messages of a topic are kept. At least one of the first two limits is set."""

    topic: str
    """A topic; or a prefix and ``*``: the topics that begin with it. ``*`` alone: all topics that users made."""
    max_age_ms: int | None = None
    """Since a message was stored."""
    max_bytes: int | None = None
    """Of the topic's messages in a shard, as they are stored."""
    max_unconsumed_age_ms: int | None = None
    """As ``max_age_ms``, of messages that a group has not consumed; None: those stay."""
    archive: bool = False
    """Removed messages go to the archive: no group can consume them any more, but queries and searches find them."""

    def covers(self, topic: str) -> bool:
        if not self.topic.endswith("*"):
            return self.topic == topic
        prefix = self.topic[:-1]
        return topic.startswith(prefix) if prefix else is_user_topic(topic)


def rule_of(topic: str, rules: Iterable[RetentionRule]) -> RetentionRule | None:
    """The rule that names the topic, else the one with the longest prefix of it; None: its messages stay."""
    covering = [rule for rule in rules if rule.covers(topic)]
    return max(covering, key=lambda rule: (not rule.topic.endswith("*"), len(rule.topic)), default=None)


def retention_tables(tables: Any) -> tuple[tuple[RetentionRule, ...], list[str]]:
    """The rules of the tables ``[[retention]]``, and their problems; None is a file without one."""
    if tables is None:
        return (), []
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return (), ["retention must be a table [[retention]]"]
    rules, problems = [], []
    for number, table in enumerate(tables, 1):
        name = table.get("topic") if isinstance(table.get("topic"), str) else f"number {number}"
        of_table = [f"[[retention]] {name}: {problem}" for problem in _problems(table)]
        problems += of_table
        if not of_table:
            rules.append(_rule(table))
    for topic, count in Counter(rule.topic for rule in rules).items():
        if count > 1:
            problems.append(f"[[retention]] {topic}: {count} tables are for this topic")
    return tuple(rules), problems


def _rule(table: Mapping[str, Any]) -> RetentionRule:
    ages = {f"{key}_ms": parse_duration(table[key]) for key in _AGES if key in table}
    return RetentionRule(
        topic=table["topic"], max_bytes=table.get("max_bytes"), archive=table.get("archive", False), **ages
    )


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"unknown key {key!r}{did_you_mean(key, _KEYS)}" for key in table if key not in _KEYS)
    yield from _topic_problems(table.get("topic"))
    ages: dict[str, int] = {}
    for key in _AGES:
        if key in table:
            try:
                ages[key] = parse_duration(table[key]) if isinstance(table[key], str) else 0
            except WrongUse as error:
                yield f"{key}: {error}"
                continue
            if not ages[key]:
                yield f'{key} must be a duration like "30d", it is {table[key]!r}'
    size = table.get("max_bytes")
    if size is not None and not (is_int(size) and size > 0):
        yield f"max_bytes must be a whole number of bytes above 0, it is {size!r}"
    if not isinstance(table.get("archive", False), bool):
        yield f"archive must be true or false, it is {table['archive']!r}"
    if "max_age" not in table and "max_bytes" not in table:
        yield "it needs max_age, max_bytes or both"
    if "max_unconsumed_age" in table and table.get("topic") in WAITING_TOPICS:
        yield "max_unconsumed_age does not apply: a message that waits for its delivery is never removed"
    if len(ages) == len(_AGES) and all(ages.values()) and ages["max_unconsumed_age"] < ages["max_age"]:
        yield "max_unconsumed_age must not be less than max_age"


def _topic_problems(topic: Any) -> Iterator[str]:
    if not isinstance(topic, str) or not topic:
        yield 'topic is missing: name one, or write "*" for all, or a prefix with * such as "%DLQ%*"'
    elif topic != "*":
        try:
            check_topic(topic.removesuffix("*"))
        except WrongUse as error:
            yield str(error)
