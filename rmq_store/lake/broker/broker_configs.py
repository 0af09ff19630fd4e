"""What an import sees of a broker's configuration: offsets, topics and groups, kept as observations (rules 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rmq_store.broker_files.config_files import (
    EMPTY_TABLE,
    FOLDER,
    LMQ_OFFSETS,
    ConfigFile,
    SubscriptionGroupConfig,
    TopicConfig,
    has_abort_file,
    read_consumer_offsets,
    read_delay_offsets,
    read_pop_groups,
    read_subscription_groups,
    read_topics,
)
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.limits import MAX_CONFIG_BYTES, MAX_QUEUES
from rmq_store.commit.ctl import SCHEDULE_GROUP, Ctl, Observed
from rmq_store.consumer.delay import delay_level_to_queue_id
from rmq_store.errors import OverLimit
from rmq_store.lake.table.imports import KV_STORE, OFFSETS_FILE, POP_GROUPS, WITHOUT_ENTRIES
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.message.perm_name import is_inherited, is_readable
from rmq_store.message.validators import is_user_topic

_TOPICS = 4
"""So many times the limit is that of the readable queues of all topics that users made: each becomes a position."""

_STAYS = ": what the import before recorded of it stays; without one, nothing of it is known"
"""The end of the note where a file of offsets is missing: it may only be missing in this copy of the store."""


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    """The content of the broker's config files."""

    observed: tuple[Observed, ...]
    """Consumer offsets, and the offsets of the delay levels under SCHEDULE_GROUP."""
    topics: Mapping[str, TopicConfig]
    parameters: dict[str, Any]
    """What the import's ctl row records of them."""
    notes: tuple[str, ...]
    """What the operator should know, such as a ``.bak`` that was used."""
    has_groups: bool
    """Whether a file of the groups' offsets is there."""
    has_levels: bool
    """Whether a file of how far the delay levels are delivered is there."""


def read_configs(
    source: FileSource, broker_name: str, *, max_config_bytes: int = MAX_CONFIG_BYTES, max_queues: int = MAX_QUEUES
) -> BrokerConfigs:
    """Raises BadData for a file that cannot be read, OverLimit for one of more than ``max_config_bytes``, a topic or retry
    topic of more than ``max_queues`` queues, and more than four times as many in all."""
    offsets, delays = read_consumer_offsets(source, max_config_bytes), read_delay_offsets(source, max_config_bytes)
    topics, groups = read_topics(source, max_config_bytes), read_subscription_groups(source, max_config_bytes)
    _check_queue_nums(topics.value, groups.value, max_queues)
    observed = [
        Observed(group, MessageQueue(topic, broker_name, queue_id), offset)
        for topic, group, queue_id, offset in offsets.value.commits()
        if offset >= 0 and queue_id >= 0  # the broker answers "not found" for a negative one (rules 5.4)
    ]
    observed += [
        Observed(SCHEDULE_GROUP, MessageQueue(SCHEDULE_TOPIC, broker_name, delay_level_to_queue_id(level)), offset)
        for level, offset in delays.value.items()
        if level > 0
    ]
    observed.sort(key=lambda o: (o.group, o.queue))
    parameters: dict[str, Any] = {
        "topics": {name: asdict(topic) for name, topic in topics.value.items()},
        "groups": {name: asdict(group) for name, group in groups.value.items()},
    }
    if has_abort_file(source):
        parameters["abort"] = True
    if pop_groups := read_pop_groups(source, max_config_bytes).value:
        parameters[POP_GROUPS] = sorted(map(list, pop_groups))
    if source.list("kvStore"):
        parameters[KV_STORE] = True
    if (offsets.used or "").startswith(f"{FOLDER}/{LMQ_OFFSETS}"):
        parameters[OFFSETS_FILE] = LMQ_OFFSETS
    of_offsets = tuple(note.replace(EMPTY_TABLE, _STAYS) for note in _notes(offsets, delays))
    return BrokerConfigs(
        tuple(observed),
        topics.value,
        parameters,
        (*of_offsets, *_notes(topics, groups)),
        has_groups=offsets.used is not None,
        has_levels=delays.used is not None,
    )


def _notes(*files: ConfigFile[Any]) -> tuple[str, ...]:
    return tuple(file.note for file in files if file.used is None or file.used.endswith(".bak"))


def _check_queue_nums(
    topics: Mapping[str, TopicConfig], groups: Mapping[str, SubscriptionGroupConfig], most: int
) -> None:
    """Raises OverLimit for more queues than ``most``: each queue would become a position."""
    advice = (
        "Correct it at the broker (mqadmin updateTopic, updateSubGroup), or, if it really has so many, import with a higher "
        "limit (--max-queues)"
    )
    numbers = [(f"topic {name!r}", "readQueueNums", topic.read_queue_nums) for name, topic in topics.items()]
    numbers += [(f"topic {name!r}", "writeQueueNums", topic.write_queue_nums) for name, topic in topics.items()]
    numbers += [(f"group {name!r}", "retryQueueNums", group.retry_queue_nums) for name, group in groups.items()]
    for owner, field, number in numbers:
        if number > most:
            raise OverLimit(f"{owner} has {field} {number}; an import takes up to {most}. {advice}")
    users = dict(_of_users(topics))
    if (count := sum(users.values())) > _TOPICS * most:
        largest = sorted(users, key=lambda name: (-users[name], name))[:5]
        listed = ", ".join(f"{name!r} ({users[name]})" for name in largest)
        raise OverLimit(
            f"the topics of config/topics.json have {count} queues to read; an import takes up to {_TOPICS * most}. The "
            f"largest: {listed}. {advice}"
        )


def same_configs(before: Ctl, now: Ctl) -> bool:
    """Whether two imports observed the same configuration."""
    names = ("topics", "groups", "abort", OFFSETS_FILE, POP_GROUPS, KV_STORE, WITHOUT_ENTRIES)
    same = all(before.parameter(name) == now.parameter(name) for name in names)
    return same and before.observed == now.observed


def queues_of_users(topics: Mapping[str, TopicConfig], broker_name: str) -> list[MessageQueue]:
    """The readable queues of topics that users made, with or without messages. Other queues, such as those of a retry
    topic, are made when something is stored in them."""
    return [MessageQueue(name, broker_name, queue_id) for name, count in _of_users(topics) for queue_id in range(count)]


def queues_of_others(topics: Mapping[str, TopicConfig], broker_name: str) -> list[MessageQueue]:
    """The queues of system topics, retry topics and topics that may not be read: without messages the lake does not list
    them."""
    users = dict(_of_users(topics))
    others = {name: max(topic.read_queue_nums, 0) for name, topic in sorted(topics.items()) if name not in users}
    return [MessageQueue(name, broker_name, queue_id) for name, count in others.items() for queue_id in range(count)]


def _of_users(topics: Mapping[str, TopicConfig]) -> list[tuple[str, int]]:
    """The topics that users made and may read, by name, and their numbers of queues."""
    return [
        (name, max(topic.read_queue_nums, 0))
        for name, topic in sorted(topics.items())
        if is_readable(topic.perm) and not is_inherited(topic.perm) and is_user_topic(name)
    ]
