"""What is known of the offsets on a broker's queues, in its own terms, for handing groups back to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rmq_store.broker_files.config_files import TOPIC_GROUP_SEPARATOR, DataVersion
from rmq_store.broker_files.config_texts import consumer_offsets_text
from rmq_store.broker_files.consumer_offset_manager import Table, key_of
from rmq_store.broker_files.offsets_back import KnownOffsets
from rmq_store.delete_group import is_gone
from rmq_store.lake.import_store import last_import
from rmq_store.lake.shard import Shard
from rmq_store.message import SCHEDULE_TOPIC, TIMER_TOPIC, retry_topic
from rmq_store.offsets import Positions, cutover_id, del_id, off_id, queue_of, split_id
from rmq_store.store import SCHEDULE_GROUP


@dataclass(frozen=True, slots=True)
class OffsetsExport:
    """``offsets``: for ``consumerOffset.json``. ``waiting_retries``: per group the messages that still wait in the lake's
    own retry topic and delay levels; a broker that takes these offsets over would not see them."""

    offsets: KnownOffsets
    version: DataVersion
    waiting_retries: Mapping[str, int]

    @property
    def text(self) -> str:
        """``consumerOffset.json`` with all that is known."""
        return consumer_offsets_text(self.offsets.table, self.version)

    @property
    def groups(self) -> int:
        return len({key.partition(TOPIC_GROUP_SEPARATOR)[2] for key in self.offsets.table})


def export_offsets(shard: Shard, broker_name: str) -> OffsetsExport:
    """What was committed on queues of ``broker_name``, and what its newest import observed. Reads only."""
    shard.commitlog.refresh()
    positions = shard.positions()
    committed: Table = defaultdict(dict)
    groups = set()
    deleted = {split_id(app_id)[1] for app_id, _ in positions.prefixed("del/")}
    gone = {group for group in deleted if is_gone(positions, group)}
    for app_id, offset in positions.prefixed("off/"):
        group, queue = split_id(app_id)[1], queue_of(app_id)
        if group == SCHEDULE_GROUP or group in gone:
            continue
        groups.add(group)
        if queue.broker_name == broker_name:
            committed[key_of(queue.topic, group)][queue.queue_id] = offset
    waiting = {group: count for group in sorted(groups) if (count := _waiting(shard, positions, group))}
    version = DataVersion(timestamp=max(positions.updated_ms.values(), default=0))
    # Until the cut-over a group is the broker's, whatever was deleted here.
    not_the_brokers = frozenset(gone) if positions.get(cutover_id(broker_name)) else frozenset()
    known = KnownOffsets(committed, _observed(shard, positions, broker_name), not_the_brokers)
    return OffsetsExport(known, version, waiting)


def _observed(shard: Shard, positions: Positions, broker_name: str) -> Table:
    """Void for a group that was deleted here, as everywhere."""
    table: Table = defaultdict(dict)
    newest = last_import(shard, broker_name)
    for seen in newest.observed if newest else ():
        if seen.group != SCHEDULE_GROUP and positions.get(del_id(seen.group)) is None:
            table[key_of(seen.queue.topic, seen.group)][seen.queue.queue_id] = seen.offset
    return table


def _waiting(shard: Shard, positions: Positions, group: str) -> int:
    """What the group has failed here and not finished."""
    waiting = [*positions.queues_of(SCHEDULE_TOPIC), *positions.queues_of(TIMER_TOPIC)]
    levels = [(SCHEDULE_GROUP, q) for q in waiting if q.broker_name == shard.lane(group)]
    retries = [(group, q) for q in positions.queues_of(retry_topic(group)) if q.broker_name == shard.local_broker]
    return sum(positions.max_offset(q) - (positions.get(off_id(reader, q)) or 0) for reader, q in levels + retries)
