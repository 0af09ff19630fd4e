"""The broker's ``config/*.json`` as texts in the spelling of 5.5.0, in a fixed order (rules 3).

The broker writes its tables in the order of Java's hash maps; here topics, groups and keys are sorted as texts and
queues and levels as numbers, so that equal tables are equal files. Fields of an object are in alphabetical order, as the
broker has them. What is None is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from rmq_store.broker_files.broker_json import number_of, parse, render, render_compact
from rmq_store.broker_files.config_files import (
    ConsumerFilterData,
    DataVersion,
    OffsetTable,
    SubscriptionGroupConfig,
    TopicConfig,
    java_name,
    split_key,
)
from rmq_store.errors import BadData
from rmq_store.utils.numbers import whole_number


def consumer_offsets_text(offset_table: OffsetTable, data_version: DataVersion) -> str:
    """``consumerOffset.json``. ``pullOffsetTable`` is empty."""
    return _text(**_tables_of_offsets(offset_table, data_version))


def lmq_offsets_text(offset_table: OffsetTable, lmq_table: Mapping[str, int], data_version: DataVersion) -> str:
    """``lmqConsumerOffset.json``."""
    return _text(**_tables_of_offsets(offset_table, data_version), lmqOffsetTable=lmq_table)


def _tables_of_offsets(offset_table: OffsetTable, data_version: DataVersion) -> dict[str, Any]:
    topics_of_group: dict[str, set[str]] = defaultdict(set)
    for topic, group in filter(None, map(split_key, offset_table)):
        topics_of_group[group].add(topic)
    return {
        "dataVersion": _java_fields(data_version),
        "groupTopicMap": {group: sorted(topics) for group, topics in topics_of_group.items()},
        "offsetTable": offset_table,
        "pullOffsetTable": {},
    }


def delay_offsets_text(offsets: Mapping[int, int], data_version: DataVersion) -> str:
    """``delayOffset.json``: delay level -> next offset to deliver."""
    return _text(dataVersion=_java_fields(data_version), offsetTable=offsets)


def topics_text(topics: Iterable[TopicConfig], data_version: DataVersion) -> str:
    """``topics.json``."""
    table = {topic.topic_name: _java_fields(topic) for topic in topics}
    return _text(dataVersion=_java_fields(data_version), topicConfigTable=table)


def subscription_groups_text(
    groups: Iterable[SubscriptionGroupConfig],
    data_version: DataVersion,
    forbidden_table: Mapping[str, Mapping[str, int]] | None = None,
) -> str:
    """``subscriptionGroup.json``."""
    return _text(
        dataVersion=_java_fields(data_version),
        forbiddenTable=forbidden_table or {},
        subscriptionGroupTable={group.group_name: _java_fields(group) for group in groups},
    )


def consumer_filters_text(filters: Iterable[ConsumerFilterData]) -> str:
    """``consumerFilter.json``."""
    by_topic: dict[str, dict[str, Any]] = {}
    for data in filters:
        of_topic = by_topic.setdefault(data.topic, {"topic": data.topic, "groupFilterData": {}})
        of_topic["groupFilterData"][data.consumer_group] = _java_fields(data) | {"dead": data.dead}
    return _text(filterDataByTopic=by_topic)


def topic_line(topic: TopicConfig) -> str:
    """A topic on one line (``TopicConfig#encode``): name, read and write queues, perm, filter type, attributes."""
    attributes = render_compact(_in_order(topic.attributes))
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    return f"{topic.topic_name} {numbers} {topic.topic_filter_type} {attributes}"


def parse_topic_line(line: str) -> TopicConfig:
    """The topic of a line (``TopicConfig#decode``). Attributes that cannot be read are left out, as RocketMQ does.

    :raises BadData: it has fewer than five parts, or a number cannot be read.
    """
    name, *parts = line.split(" ")
    try:
        read, write, perm, filter_type, *rest = parts
        numbers = _int(read), _int(write), _int(perm)
    except (ValueError, BadData) as error:
        raise BadData(f"{line!r:.200} is not a topic line: expected a name, three numbers and a filter type") from error
    try:
        attributes = parse(rest[0]) if rest else {}
    except BadData:
        attributes = {}
    known = attributes if isinstance(attributes, dict) else {}
    return TopicConfig(name, *numbers, topic_filter_type=filter_type, attributes=known)


def _int(text: str) -> int:
    return number_of(whole_number(text, signed=True), 32)


def _text(**tables: Any) -> str:
    return render(_in_order(tables))


def _in_order(value: Any) -> Any:
    """The same value with the keys of every mapping sorted; lists stay as they are."""
    if isinstance(value, Mapping):
        return {key: _in_order(item) for key, item in sorted(value.items())}
    return value


def _java_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass under their Java names."""
    named = {java_name(field.name): getattr(value, field.name) for field in fields(value)}
    return {name: item for name, item in named.items() if item is not None}
