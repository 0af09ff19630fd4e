"""Export of consumer offsets: the lake's offsets on a broker's queues, as the broker's own files have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.admin.delete_group import is_gone
from rmq_store.broker_files.config_files import TOPIC_GROUP_SEPARATOR, DataVersion, OffsetTable, split_key
from rmq_store.broker_files.consumer_offset_manager import Table, key_of
from rmq_store.broker_files.log_names import LogNames, Stretch, given_again, offset_at_broker
from rmq_store.broker_files.offsets_to_broker import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    LMQ_OFFSETS,
    KnownOffsets,
    OffsetForm,
)
from rmq_store.broker_files.queue_generations import Generations, QueueKey, WithoutEntries
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.commit.positions import PositionKind, Positions, cutover_id, del_id, group_of, off_id, queue_of
from rmq_store.lake.commit.cursor import refuse_rolled_back
from rmq_store.lake.table.imports import (
    OFFSETS_FILE,
    generations,
    last_configs,
    names_of_log,
    queues_without_entries,
    refuse_continued,
)
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, retry_topic
from rmq_store.message.validators import is_broadcasting_client


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsExport:
    """The offsets for a broker, and the messages in the lake that the broker would not see."""

    offsets: KnownOffsets
    """For ``consumerOffset.json``, or what the broker reads in its place."""
    delays: KnownOffsets
    """For ``delayOffset.json``, by queue of SCHEDULE_TOPIC_XXXX."""
    version: DataVersion
    waiting_retries: Mapping[str, int]
    """Per group, messages that wait in the lake's own retry topic and schedule queues."""
    waiting_messages: Mapping[str, int]
    """Per ``topic@group``, messages in the lake's own queues of the topic; per topic where no group has an offset."""
    waiting_deleted: Mapping[str, int]
    """Per ``topic@group``, messages that the group has not consumed here and that the broker has deleted with their topic."""
    given_again: Mapping[str, int]
    """Per ``topic@group``, messages that the group has consumed here and that the broker gives it again: they are behind the
    end that its log lost, the group has not consumed all before it, and the broker has one offset for both."""
    left_out: Mapping[str, tuple[int, ...]]
    """Per ``topic@group``, the ids of the queues in which the group has an offset here, and of which the newest import found no
    entry: their topic was deleted at the broker, or made again, or the copy was not whole. Where the broker has no message for
    certain, a group that the lake owns has offset 0 instead."""
    clients: tuple[str, ...]
    """Broadcasting clients (``group@client``) with offsets in the broker's queues, which stay here."""
    waiting_levels: int
    """Messages in the broker's own delay levels after ``delays``, which the broker is to deliver."""
    form: OffsetForm = CONSUMER_OFFSETS
    """Of the file that the broker reads."""

    @property
    def text(self) -> str:
        """The file of the groups' offsets with all that is known."""
        return self.form.text(self.offsets.table, self.version)

    @property
    def delay_text(self) -> str:
        """``delayOffset.json`` with all that is known."""
        return DELAY_OFFSETS.text(self.delays.table, self.version)

    @property
    def groups(self) -> int:
        return len({_group_of(key) for key in self.offsets.table})


def export_offsets(shard: Shard, broker_name: str) -> OffsetsExport:
    """What was committed on queues of ``broker_name``, and what its newest import observed. Reads only.

    Where the name continues the log of another one, a group's offset before the cut is in the queue of that one. Raises
    WrongUse for a name whose log another one continues: the broker's offsets are those of that name; and DerivedTableDamaged
    when the commit log lacks its newest commits: the broker would consume again what was consumed here.
    """
    shard.refresh("commitlog", "consumequeue", "offsets")
    refuse_rolled_back(shard)
    refuse_continued(shard, broker_name)
    positions = shard.positions()
    deleted = positions.names(PositionKind.DELETED)
    gone = frozenset(group for group in deleted if is_gone(positions, group))
    stored = [(group_of(app_id), queue_of(app_id), offset) for app_id, offset in positions.of_kind(PositionKind.OFFSET)]
    names, queues = names_of_log(shard, broker_name), generations(shard, broker_name)
    in_log = _InLog(names, queues.base)
    of_clients = [one for one in stored if is_broadcasting_client(one[0])]
    of_groups = [one for one in stored if one[0] not in gone and not is_broadcasting_client(one[0])]
    consumed = in_log.at_broker(of_groups)
    newest = last_configs(shard, broker_name)
    empty = {one.key: one for one in queues_without_entries(newest)}
    is_cut_over = bool(positions.get(cutover_id(broker_name)))

    def known(stored: Iterable[_Stored]) -> list[_Stored]:
        """Without those in queues of which the broker may have no message."""
        return [one for one in stored if (one[1].topic, one[1].queue_id) not in empty]

    def is_begun(queue: MessageQueue) -> bool:
        """Whether the broker begins the queue at offset 0 with its next message, whatever its file has of the queue."""
        one = empty.get((queue.topic, queue.queue_id))
        return is_cut_over and one is not None and one.is_gone

    committed = [(group, q, max(offset - queues.base(q), 0)) for group, q, offset in known(consumed)]
    committed += [(group, q, 0) for group, q, _ in consumed if is_begun(q)]
    seen = [(one.group, one.queue, one.offset) for one in newest.observed] if newest else []
    seen = in_log.at_broker(
        [one for one in seen if positions.get(del_id(one[0])) is None and not is_broadcasting_client(one[0])]
    )
    # A group that has none in the newest generation has none at the broker.
    observed = [(group, q, offset - queues.base(q)) for group, q, offset in known(seen) if offset >= queues.base(q)]
    exported = {(group, queue) for group, queue, _ in (*committed, *observed)}
    deleted_offsets = [one for one in (*consumed, *seen) if one[:2] not in exported]
    left_out = [one for one in deleted_offsets if (one[1].topic, one[1].queue_id) in empty]
    # Until the cut-over the broker owns its groups, also one that was deleted in the lake.
    deleted_at_broker = gone if is_cut_over else frozenset()
    offsets = KnownOffsets(
        _groups(committed),
        _groups(observed),
        deleted_at_broker,
        of_broker=not is_cut_over,
        left_out=_queue_ids(deleted_offsets),
    )
    delays = KnownOffsets(_levels(committed), _levels(observed), never_back=True)
    return OffsetsExport(
        offsets=offsets,
        delays=delays,
        version=DataVersion(timestamp=max((updated_ms for _, (_, updated_ms) in positions.items()), default=0)),
        waiting_retries=_waiting_retries(shard, positions, gone),
        waiting_messages=_waiting_messages(shard, positions, offsets.table, stored, gone),
        waiting_deleted=_waiting_deleted(queues, empty, consumed),
        given_again=in_log.given_again(of_groups),
        left_out=_queue_ids(left_out),
        clients=tuple(sorted({group for group, queue, _ in of_clients if queue.broker_name in names.names})),
        waiting_levels=_waiting_levels(positions, names, queues, delays.table),
        form=LMQ_OFFSETS if newest and newest.parameter(OFFSETS_FILE) == LMQ_OFFSETS.name else CONSUMER_OFFSETS,
    )


_Stored = tuple[str, MessageQueue, int]
"""A group, a queue, and the next offset there."""


@dataclass(frozen=True, slots=True)
class _InLog:
    """The offsets in the queues of all names of a broker's log, as those of its groups at the broker."""

    names: LogNames
    base_of: Callable[[MessageQueue], int]
    """Where the newest generation of a queue of the newest name begins."""

    def at_broker(self, stored: Iterable[_Stored]) -> list[_Stored]:
        """The offset in each queue, as one in the queue of the newest name. One in an older generation only where the group has
        no other."""
        at_broker = []
        for group, stretches, offsets in self._by_queue(stored):
            newest = stretches[-1].queue
            for base in (self.base_of(newest), 0):
                offset = offset_at_broker(stretches, offsets, base)
                if offset is not None:
                    at_broker.append((group, newest, offset))
                    break
        return at_broker

    def given_again(self, stored: Iterable[_Stored]) -> dict[str, int]:
        """Per ``topic@group``."""
        counts: dict[str, int] = defaultdict(int)
        for group, stretches, offsets in self._by_queue(stored):
            newest = stretches[-1].queue
            counts[key_of(newest.topic, group)] += given_again(stretches, offsets, self.base_of(newest))
        return {key: count for key, count in sorted(counts.items()) if count}

    def _by_queue(self, stored: Iterable[_Stored]) -> Iterator[tuple[str, list[Stretch], dict[MessageQueue, int]]]:
        """The offsets of each group in the stretches of a queue."""
        offsets: dict[tuple[str, str, int], dict[MessageQueue, int]] = defaultdict(dict)
        for group, queue, offset in stored:
            if queue.broker_name in self.names.names:
                offsets[group, queue.topic, queue.queue_id][queue] = offset
        for (group, topic, queue_id), by_queue in offsets.items():
            yield group, self.names.stretches(topic, queue_id), by_queue


def _groups(stored: Iterable[_Stored]) -> Table:
    table: Table = defaultdict(dict)
    for group, queue, offset in stored:
        if group != SCHEDULE_GROUP:
            table[key_of(queue.topic, group)][queue.queue_id] = offset
    return table


def _levels(stored: Iterable[_Stored]) -> Table:
    levels = [one for one in stored if one[0] == SCHEDULE_GROUP and one[1].topic == SCHEDULE_TOPIC]
    return {SCHEDULE_TOPIC: {queue.queue_id: offset for _, queue, offset in levels}}


def _group_of(key: str) -> str:
    return key.partition(TOPIC_GROUP_SEPARATOR)[2]


# --- what stays in the lake --------------------------------------------------------------------------------------------------


def _waiting_retries(shard: Shard, positions: Positions, gone: frozenset[str]) -> dict[str, int]:
    """Per group the failed messages that wait for their retry: failed here, or at the broker before the cut-over."""
    waiting: dict[str, int] = defaultdict(int)
    for queue in positions.all_queues():
        if queue.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            group, reader = queue.broker_name.removeprefix(shard.lane("")), SCHEDULE_GROUP
            is_lakes = queue.broker_name == shard.lane(group)
        else:
            group = reader = queue.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
            is_lakes = queue.topic == retry_topic(group) and queue.broker_name == shard.local_broker
        if is_lakes and group and group not in gone:
            waiting[group] += _unread(positions, reader, queue)
    return {group: count for group, count in sorted(waiting.items()) if count}


def _waiting_messages(
    shard: Shard, positions: Positions, table: OffsetTable, stored: Sequence[_Stored], gone: frozenset[str]
) -> dict[str, int]:
    """Messages in the lake's own queues of topics: sent here, or delayed and delivered here. Per ``topic@group`` for groups
    that have an offset of the topic, at the broker or here; per topic where no group has one. What was sent here with a
    delay and still waits is counted per topic of the delay levels and the timer."""
    lakes = [
        queue
        for queue in positions.all_queues()
        if queue.broker_name == shard.local_broker and _is_sent_to(queue.topic)
    ]
    readers: dict[str, set[str]] = {queue.topic: set() for queue in lakes}
    pairs = [split_key(key) for key in table] + [
        (queue.topic, group) for group, queue, _ in stored if queue.broker_name == shard.local_broker
    ]
    for topic, group in filter(None, pairs):
        if topic in readers and group not in gone:
            readers[topic].add(group)
    waiting: dict[str, int] = defaultdict(int)
    for queue in lakes:
        for group in readers[queue.topic]:
            waiting[key_of(queue.topic, group)] += _unread(positions, group, queue)
        if not readers[queue.topic]:
            waiting[queue.topic] += positions.max_offset(queue) - positions.min_offset(queue)
    for queue in positions.all_queues():
        if queue.broker_name == shard.lane(""):
            waiting[queue.topic] += _unread(positions, SCHEDULE_GROUP, queue)
    return {key: count for key, count in sorted(waiting.items()) if count}


def _is_sent_to(topic: str) -> bool:
    """Whether messages are sent to the topic: not one of retries and delays, which ``_waiting_retries`` counts."""
    return topic not in (SCHEDULE_TOPIC, TIMER_TOPIC) and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


def _waiting_deleted(
    queues: Generations, empty: Mapping[QueueKey, WithoutEntries], consumed: Iterable[_Stored]
) -> dict[str, int]:
    waiting: dict[str, int] = defaultdict(int)
    for group, queue, offset in consumed:
        without = empty.get((queue.topic, queue.queue_id))
        end = without.end if without else queues.base(queue)
        waiting[key_of(queue.topic, group)] += max(end - offset, 0)
    return {key: count for key, count in sorted(waiting.items()) if count}


def _queue_ids(stored: Iterable[_Stored]) -> dict[str, tuple[int, ...]]:
    queue_ids: dict[str, set[int]] = defaultdict(set)
    for group, queue, _ in stored:
        queue_ids[key_of(queue.topic, group)].add(queue.queue_id)
    return {key: tuple(sorted(ids)) for key, ids in sorted(queue_ids.items())}


def _waiting_levels(positions: Positions, names: LogNames, generations: Generations, delays: OffsetTable) -> int:
    queues = [queue for queue in positions.queues_of(SCHEDULE_TOPIC) if queue.broker_name == names.names[-1]]
    levels = delays.get(SCHEDULE_TOPIC, {})
    waiting = 0
    for queue in queues:
        level, oldest = levels.get(queue.queue_id), names.stretches(queue.topic, queue.queue_id)[0].queue
        begin = positions.min_offset(oldest) if level is None else level + generations.base(queue)
        waiting += max(positions.max_offset(queue) - begin, 0)
    return waiting


def _unread(positions: Positions, reader: str, queue: MessageQueue) -> int:
    stored = positions.get(off_id(reader, queue))
    return positions.max_offset(queue) - (positions.min_offset(queue) if stored is None else stored)
