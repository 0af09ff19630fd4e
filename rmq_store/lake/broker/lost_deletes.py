"""Whether a broker that lost the end of its log has lost with it that it deleted topics.

An import stores the messages of a topic that was deleted without queue offset. If the broker has lost the delete, they are
alive there again, and no group would read them here (``docs/decisions/0014-diverged-log.md``). A delete has no record in the
log. But it comes before the copy that shows it, so the broker still has it where it has all of that copy's log, and also where
the log has a message of the queue that was made again. Retention in the store leaves the broker's log as it is, so the log says
which message of a queue is the last one before the cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.ctl import Action
from rmq_store.errors import BadData
from rmq_store.lake.broker.imported_records import of_stretch
from rmq_store.lake.broker.log_items import BufferedSource, records_in
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.import_parameters import parameter_of_import
from rmq_store.lake.table.imports import imports_of
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.consume_queue import is_indexed
from rmq_store.message.sys_flag import MessageSysFlag


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an import with messages of deleted topics, at physical offsets [begin, end) of the log."""

    begin: int
    end: int
    deleted: int
    """How many of its messages are of deleted topics."""


@dataclass(frozen=True, slots=True)
class _Queue:
    """What is here of a queue's messages in a part."""

    unplaced: int
    """Without queue offset, of a deleted topic: how many in the whole part."""
    unplaced_before: int
    """How many of them are before the cut."""
    last_unplaced: int
    """The physical offset of the last of them before the cut; -1: there is none."""
    last_placed: int
    """That of the last one before the cut that is in the queue or in the archive; -1: there is none."""


def refuse_lost_deletes(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, end: int
) -> None:
    """Raises BadData where the last message of a queue before the cut, the physical offset ``end``, was imported as one of a
    deleted topic, or may have been: the queue that was made again begins behind the cut, so that the broker has lost the delete
    too, and its groups get these messages again."""
    advice = (
        "Nothing was changed. Import the broker's store into a new store (--root); docs/limits.md, 'A broker that lost the end "
        "of its log', says what that means"
    )
    not_known = (
        f"the log is the same up to {end}, but it is not known whether the broker lost behind it that it deleted topics"
    )
    lost: Counter[QueueKey] = Counter()
    unknown: set[QueueKey] = set()
    for part in _parts_across(shard, broker_name, end):
        queues = _queues(store, shard, broker_name, part, end)
        has_all = sum(one.unplaced for one in queues.values()) == part.deleted
        doubtful = {queue: one.last_unplaced for queue, one in queues.items() if one.last_unplaced > one.last_placed}
        if has_all and not doubtful:
            continue
        if not has_all and part.begin < log.files[0].start_offset:
            raise BadData(
                f"{not_known}: neither this store nor the log has all messages of the import from {part.begin} to {part.end}. "
                f"{advice}"
            )
        begin = min(doubtful.values()) if has_all else part.begin
        for queue, at in _last_of_queues(source, log, begin, min(part.end, end), doubtful).items():
            here = queues.get(queue, _Queue(0, 0, -1, -1))
            if here.last_unplaced >= max(at, here.last_placed):
                lost[queue] += here.unplaced_before
            elif at > max(here.last_unplaced, here.last_placed) and not has_all:
                unknown.add(queue)
    if lost:
        (topic, queue_id), messages = min(lost.items())
        raise BadData(
            f"the log is the same up to {end}, but behind it the broker has lost that it deleted topics. In {len(lost):,} "
            f"queues, first topic {topic!r}, queue {queue_id}, the last {messages:,} messages before that were imported as "
            "those of a deleted topic, without queue offset. They are alive at the broker again, and no group would read them "
            f"here. {advice}"
        )
    if unknown:
        topic, queue_id = min(unknown)
        raise BadData(
            f"{not_known}. In {len(unknown):,} queues, first topic {topic!r}, queue {queue_id}, the last message before that "
            "is not in this store any more, because of retention or a salvage, and it may have been one of a deleted topic. "
            f"{advice}"
        )


def _parts_across(shard: Shard, broker_name: str, cut: int) -> Iterator[_Part]:
    """Those that begin before the cut, and show deletes that may have come behind it."""
    end_of_copy: int | None = None  # of the import that a part belongs to; a later copy has all of an earlier one
    for ctl in reversed(imports_of(shard, broker_name)):
        begin, end = parameter_of_import(ctl, "range")
        if ctl.request_complete and ctl.action is not Action.HAND_BACK:
            end_of_copy = end
        deleted = ctl.parameter("deleted") or 0
        if deleted and begin < cut and (end_of_copy is None or end_of_copy >= cut):
            yield _Part(begin, end, deleted)


def _queues(store: LakeStore, shard: Shard, broker_name: str, part: _Part, cut: int) -> dict[QueueKey, _Queue]:
    where = of_stretch(shard, broker_name, part.begin, part.end)
    where += f" AND (sys_flag & {MessageSysFlag.TRANSACTION_PREPARED_TYPE}) = 0"  # as is_indexed
    text = f"""
        SELECT
            topic, queue_id,
            count(*) FILTER (NOT placed) AS unplaced,
            count(*) FILTER (NOT placed AND place < {cut}) AS unplaced_before,
            coalesce(max(place) FILTER (NOT placed AND place < {cut}), -1) AS last_unplaced,
            coalesce(max(place) FILTER (placed AND place < {cut}), -1) AS last_placed
        FROM (
            SELECT topic, queue_id, commit_log_offset AS place, rel IS NOT NULL AS placed FROM msg WHERE {where}
            UNION ALL SELECT topic, queue_id, commit_log_offset, true FROM archived WHERE {where}
        )
        GROUP BY topic, queue_id
    """
    return {(row.pop("topic"), row.pop("queue_id")): _Queue(**row) for row in query(store, text).to_pylist()}


def _last_of_queues(
    source: FileSource, log: MappedFileQueue, begin: int, end: int, doubtful: Mapping[QueueKey, int]
) -> dict[QueueKey, int]:
    """The physical offset of the last message of each queue that the log has in [begin, end). Of the ``doubtful`` ones also
    where its record is damaged, or the broker has removed it: at the given place."""
    last = dict(doubtful)
    for record in records_in(BufferedSource(source), log, begin, end):
        if is_indexed(record.sys_flag):
            last[record.topic, record.queue_id] = max(
                record.commit_log_offset, last.get((record.topic, record.queue_id), -1)
            )
    return last
