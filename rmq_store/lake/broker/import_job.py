"""What all tasks of an import have in common, one task, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_store.broker_files.batch_consume_queue import BatchConsumeQueueFiles
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.ctl import Produced, StagedFile
from rmq_store.consumer.delay import DelayLevels
from rmq_store.lake.broker.entry_reader import newest_entries
from rmq_store.lake.broker.import_entries import LogOrder
from rmq_store.lake.broker.last_records import Written
from rmq_store.lake.broker.rocksdb_source import RocksDbSource
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.lake.table.object_store import Root
from rmq_store.log.commit_log import Damage, Unsupported
from rmq_store.message.message import MessageQueue
from rmq_store.message.sys_flag import MAX_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportJob:
    """What all tasks of an import have in common."""

    source: FileSource
    root: Root
    table: str
    """Path of the commit log's table below ``root``."""
    commit_id: str
    broker_name: str
    levels: DelayLevels
    queues: Mapping[QueueKey, ConsumeQueueFiles]
    """The broker's consume queue files."""
    batch_queues: Mapping[QueueKey, BatchConsumeQueueFiles]
    """Those of BatchCQ topics. Their entries are made from the log; those of the files tell where queues end, and what a
    salvage leaves out."""
    file_bytes: int
    """Size of each file of the broker's log."""
    salvage: bool
    max_body_bytes: int = MAX_BODY_BYTES
    """How large a body may become when it is decompressed."""
    bases: Mapping[QueueKey, int] = field(default_factory=dict)
    """What is added to the broker's queue offsets: the base of the queue's newest generation."""
    begins: Mapping[QueueKey, int] = field(default_factory=dict)
    """Of queues ``without_entries`` the commit log offset at which the newest generation begins: the messages before it in the
    part have no queue offset."""
    misplaced: Mapping[int, str] = field(default_factory=dict)
    """Why the records at these commit log offsets are left out: they say a wrong place (``misplaced_records``)."""

    def base(self, queue: MessageQueue) -> int:
        """What is added to the broker's offsets of the queue."""
        return self.bases.get((queue.topic, queue.queue_id), 0)

    def without_entries(self, queue: MessageQueue) -> bool:
        """Whether the broker has no entry of the queue, so that only the order of the log tells its generations. Never so for
        a BatchCQ topic, which has other entries, and with RocksDB, where offsets may come again without a delete."""
        key = (queue.topic, queue.queue_id)
        if key in self.batch_queues or isinstance(self.source, RocksDbSource):
            return False
        return not self.written(queue)

    def written(self, queue: MessageQueue) -> range:
        """The queue offsets that have entries of messages that the log has."""
        files = self.queues.get((queue.topic, queue.queue_id))
        return newest_entries(self.source, files, self.file_bytes).written if files else range(0)


@dataclass(frozen=True, slots=True)
class ImportTask:
    """Bytes ``[begin, end)`` of the broker's log, all in one file. The file's first task begins at a record."""

    number: int
    file: MappedFile
    begin: int
    end: int

    is_cut: bool = False
    """Whether it begins where a consume queue says that a record does."""


class WithoutEntry(NamedTuple):
    """A message of which the broker has no entry."""

    queue_offset: int
    """The broker's."""
    commit_log_offset: int
    store_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of a task."""

    number: int
    """The task's."""
    begin: int
    end: int
    """Physical offset up to which the file was read (exclusive)."""
    full: bool
    """Whether the log continues there: in the next file, or with the task's next neighbour in the same file."""
    messages: int
    files: tuple[StagedFile, ...]
    produced: tuple[Produced, ...]
    deleted: int = 0
    """How many of the messages are of topics that were deleted and made again: they have no queue offset."""
    delays: Mapping[int, int] = field(default_factory=dict)
    """By delay level the delay (ms) that the broker's entries show, where the store's levels have another one."""
    stopped_by: Damage | Unsupported | None = None
    """What stopped the task; None: nothing."""
    skipped: tuple[Skipped, ...] = ()
    torn: Damage | None = None
    """The record at ``end``, if the log ends at a torn one."""
    has_bytes_after: bool = False
    """Whether bytes other than 0 follow ``end``, where no record begins, in the next CHUNK_BYTES: the rest of a file, which may
    be a gigabyte, is not read for that."""
    orders: Mapping[QueueKey, LogOrder] = field(default_factory=dict)
    """What the task shows of the queues without entries, as far as they have messages in it."""
    without_entry: int = 0
    """How many of the messages have no entry that shows their place, but those of BatchCQ topics."""
    last_without: Mapping[QueueKey, WithoutEntry] = field(default_factory=dict)
    """The one with the highest queue offset of them in each queue."""
    last: Written | None = None
    """The last record; None: the task has read none."""
    failed: bool = False
    """Whether an error ended a task that may not have begun at a record; a task for the whole file finds out which."""
