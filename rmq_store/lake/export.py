"""The offsets of a broker's queues in RocketMQ's own ``consumerOffset.json`` form, for handing groups back to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rmq_store.broker_files.config_files import TOPIC_GROUP_SEPARATOR, DataVersion
from rmq_store.broker_files.config_texts import consumer_offsets_text
from rmq_store.delete_group import is_gone
from rmq_store.lake.shard import Shard
from rmq_store.message import SCHEDULE_TOPIC, TIMER_TOPIC, retry_topic
from rmq_store.offsets import Positions, off_id, queue_of, split_id
from rmq_store.store import SCHEDULE_GROUP


@dataclass(frozen=True, slots=True)
class OffsetsExport:
    """``text``: the file. ``waiting_retries``: per group the messages that still wait in the lake's own retry topic and
    delay levels; a broker that takes these offsets over would not see them."""

    text: str
    groups: int
    waiting_retries: Mapping[str, int]


def export_offsets(shard: Shard, broker_name: str) -> OffsetsExport:
    """All committed offsets on queues of ``broker_name``, in sorted order. Reads only."""
    shard.commitlog.refresh()
    positions = shard.positions()
    table: dict[str, dict[int, int]] = defaultdict(dict)
    groups = set()
    deleted = {split_id(app_id)[1] for app_id, _ in positions.prefixed("del/")}
    gone = {group for group in deleted if is_gone(positions, group)}
    for app_id, offset in positions.prefixed("off/"):
        group, queue = split_id(app_id)[1], queue_of(app_id)
        if group == SCHEDULE_GROUP or group in gone:
            continue
        groups.add(group)
        if queue.broker_name == broker_name:
            table[f"{queue.topic}{TOPIC_GROUP_SEPARATOR}{group}"][queue.queue_id] = offset
    waiting = {group: count for group in sorted(groups) if (count := _waiting(shard, positions, group))}
    version = DataVersion(timestamp=max(positions.updated_ms.values(), default=0))
    exported = {key.split(TOPIC_GROUP_SEPARATOR)[-1] for key in table}
    return OffsetsExport(consumer_offsets_text(table, version), len(exported), waiting)


def _waiting(shard: Shard, positions: Positions, group: str) -> int:
    """What the group has failed here and not finished."""
    waiting = [*positions.queues_of(SCHEDULE_TOPIC), *positions.queues_of(TIMER_TOPIC)]
    levels = [(SCHEDULE_GROUP, q) for q in waiting if q.broker_name == shard.lane(group)]
    retries = [(group, q) for q in positions.queues_of(retry_topic(group)) if q.broker_name == shard.local_broker]
    return sum(positions.max_offset(q) - (positions.get(off_id(reader, q)) or 0) for reader, q in levels + retries)
