"""Reads entries of a broker's consume queues, and the records of its log to which they point."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.broker_files.commit_log_file import FOLDER as LOG_FOLDER
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import FileSource, LocalFileSource
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.errors import BadData
from rmq_store.lake.broker.salvage import HEAD_BYTES, last_head
from rmq_store.log.commit_log import record_at
from rmq_store.log.consume_queue import UNIT_BYTES, ConsumeQueueEntry
from rmq_store.log.record import Record
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import LMQ_PREFIX

ENTRY = np.dtype([("commit_log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert ENTRY.itemsize == UNIT_BYTES

Entries = npt.NDArray[np.void]

NO_ENTRY = np.zeros(1, ENTRY)[0]

_BLOCK_BYTES = 8 << 20
"""The largest block of a queue that is kept for the next chunks of a task."""
_BLOCKS_BYTES = 64 << 20
"""All blocks of a task."""
_LOST_IN_FRONT = 1024
"""Among so many entries of a queue the first one is looked for that is not lost."""
_SIZE_BYTES = 4
"""TOTALSIZE of a record: zeros where nothing is written."""
_ENTRIES_IN_A_ROW = 16
"""Of a queue: one of them should have a record that says its place."""
_WINDOWS = (1 << 12, 1 << 16, 1 << 20, 1 << 26)
"""Bytes before a place in which the last record is looked for. No record is longer than the last of them."""
_THREADS = 16
"""Reads from an object store at once."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Queue offsets ``[begin, begin + count)`` of a queue, at least one."""

    queue: MessageQueue
    begin: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.count


@dataclass(frozen=True, slots=True)
class Newest:
    """The entries of a queue whose messages the log has: all are of its newest generation."""

    written: range
    """Queue offsets, as ``ConsumeQueueFiles.written``."""
    first: tuple[int, np.void] | None
    """Queue offset and entry of the first one that is not lost; None: not found."""
    last: np.void
    log_end: int
    """Entries that point here or further on are of messages that the log does not have yet."""


def newest_entries(source: FileSource, files: ConsumeQueueFiles, file_bytes: int) -> Newest:
    """``file_bytes``: of each file of the log. The entries of a broker that is running, or of a copy of it, may be newer than
    its log."""
    written, log_end = files.written(), sys.maxsize

    def is_ahead(slot: int) -> bool:
        entry = files.entry(slot)
        return entry.is_written and not any(_log_bytes(source, file_bytes, entry.commit_log_offset, _SIZE_BYTES))

    if written and is_ahead(written[-1]):
        stop = written.start + bisect_left(written, True, key=is_ahead)
        written, log_end = range(written.start, stop), files.entry(stop).commit_log_offset
    if not written:
        return Newest(written, None, NO_ENTRY, log_end)
    in_front = files.entries(written.start, min(written.start + _LOST_IN_FRONT, written.stop))
    firsts = ((slot, _as_entry(entry)) for slot, entry in enumerate(in_front, written.start) if entry.is_written)
    return Newest(written, next(firsts, None), _as_entry(files.entry(written[-1])), log_end)


def _as_entry(entry: ConsumeQueueEntry) -> np.void:
    item: np.void = np.array([(entry.commit_log_offset, entry.size, entry.tags_code)], ENTRY)[0]
    return item


def _log_bytes(source: FileSource, file_bytes: int, at: int, size: int) -> bytes:
    """Of the log, as far as its file has them."""
    start = at - at % file_bytes
    try:
        return source.read(f"{LOG_FOLDER}/{start:020}", at - start, at - start + size)
    except BadData:
        return b""


class Place(NamedTuple):
    """Of a message, in the broker's numbers."""

    topic: str
    queue_id: int
    queue_offset: int

    @classmethod
    def said_by(cls, record: Record) -> Place:
        return cls(record.topic, record.queue_id, record.queue_offset)

    @property
    def reason(self) -> str:
        """Why a record is damaged that is at another one."""
        return f"the broker's entry of {self} points to it"

    def __str__(self) -> str:
        return f"{self.topic}:{self.queue_id} offset {self.queue_offset}"


class EntryReader:
    """Reads the entries of one task, whose chunks come in log order: the first read of a queue takes what the task's later
    chunks may need of it, so that a queue costs about one read a task."""

    def __init__(self, source: FileSource, queues: Mapping[QueueKey, ConsumeQueueFiles], file_bytes: int) -> None:
        """``file_bytes``: of each file of the log."""
        self._source = source
        self._queues = queues
        self._file_bytes = file_bytes
        self._newest: dict[MessageQueue, Newest] = {}
        self._blocks: dict[MessageQueue, tuple[int, Entries]] = {}
        self._block_entries = min(_BLOCK_BYTES, _BLOCKS_BYTES // max(len(queues), 1)) // UNIT_BYTES

    def files(self, queue: MessageQueue) -> ConsumeQueueFiles | None:
        return self._queues.get((queue.topic, queue.queue_id))

    def read(self, several: Sequence[Slots], chunks: int = 1) -> list[Entries]:
        """The entries of each, all zeros where there is none. ``chunks``: how many the task has, this one included."""
        answers = [self._kept(slots) for slots in several]
        missing = [number for number, answer in enumerate(answers) if answer is None]
        blocks = [self._block(several[number], chunks) for number in missing]
        if isinstance(self._source, LocalFileSource) or len(blocks) < 2:
            entries = list(map(self._entries, blocks))
        else:
            with ThreadPoolExecutor(_THREADS) as pool:
                entries = list(pool.map(self._entries, blocks))
        for number, block, read in zip(missing, blocks, entries, strict=True):
            self._blocks[block.queue] = (block.begin, read)
            answers[number] = read[: several[number].count]
        return [answer for answer in answers if answer is not None]

    def entry(self, queue: MessageQueue, queue_offset: int) -> np.void:
        """That of a place; zeros: it has none."""
        ((entry,),) = self.read([Slots(queue, queue_offset, 1)])
        item: np.void = entry
        return item

    def newest(self, queue: MessageQueue) -> Newest:
        """What the queue's files have, as they were when the task first asked."""
        if queue not in self._newest:
            self._newest[queue] = newest_entries(
                self._source, self._queues[queue.topic, queue.queue_id], self._file_bytes
            )
        return self._newest[queue]

    def record(self, entry: np.void) -> Record | None:
        """The record where the entry points; None: the log has no whole one there."""
        at, size = int(entry["commit_log_offset"]), int(entry["size"])
        record = record_at(_log_bytes(self._source, self._file_bytes, at, size), 0, at)
        return record if isinstance(record, Record) else None

    def has_record(self, queue: MessageQueue, queue_offset: int, entry: np.void) -> bool | None:
        """Whether the log has the record of this queue offset where the entry points; None: it has no whole record there."""
        record = self.record(entry)
        return None if record is None else Place.said_by(record) == (queue.topic, queue.queue_id, queue_offset)

    def is_inside_a_record(self, entry: np.void) -> bool:
        """Whether the entry points into a record, behind its first byte: it is left over from an end that the log lost."""
        at = int(entry["commit_log_offset"])
        file_begin = at - at % self._file_bytes
        for window in _WINDOWS:
            begin = max(at - window, file_begin)
            # The head of a record that begins before the place may end behind it.
            data = _log_bytes(self._source, self._file_bytes, begin, at + HEAD_BYTES - 1 - begin)
            if head := last_head(data, begin):
                return sum(head) > at
            if begin == file_begin:
                break
        return False

    def goes_on_behind(self, queue: MessageQueue, commit_log_offset: int) -> bool:
        """Whether the queue has the entry of a message that is further on in the log."""
        if self.files(queue) is None:
            return False
        last = self.newest(queue).written[-_ENTRIES_IN_A_ROW:]
        (entries,) = self.read([Slots(queue, last.start, len(last))]) if last else ((),)
        behind = [at for at, entry in zip(last, entries, strict=True) if entry["commit_log_offset"] > commit_log_offset]
        return any(self.has_record(queue, at, entries[at - last.start]) for at in reversed(behind))

    def begins_behind(self, queue: MessageQueue, commit_log_offset: int) -> bool:
        """Whether the queue's first message is further on in the log: those before it are of a topic that was deleted."""
        first = self.newest(queue).first if self.files(queue) else None
        return first is not None and bool(first[1]["commit_log_offset"] > commit_log_offset)

    def is_between_true_ones(self, queue: MessageQueue, queue_offset: int, *, or_first: bool) -> bool:
        """Whether the entry of a place is one of those, in log order, between two near entries whose records say their places.
        ``or_first``: the queue's first entry counts as one of these before it."""
        written = self.newest(queue).written
        begin = max(queue_offset - _ENTRIES_IN_A_ROW, written.start)
        around = range(begin, min(queue_offset + 1 + _ENTRIES_IN_A_ROW, written.stop))
        if queue_offset not in around:
            return False
        (entries,) = self.read([Slots(queue, around.start, len(around))])

        def is_true(slot: int) -> bool:
            return self.has_record(queue, slot, entries[slot - begin]) is True

        first = begin if or_first and begin == written.start else None
        before = next(filter(is_true, range(queue_offset - 1, begin - 1, -1)), first)
        after = next(filter(is_true, range(queue_offset + 1, around.stop)), None)
        if before is None or after is None:
            return False
        between = entries[before - begin : after - begin + 1]
        ends = between["commit_log_offset"] + between["size"]
        return bool(between["size"].all() and (ends[:-1] <= between["commit_log_offset"][1:]).all())

    def place_of(self, topic: str, commit_log_offset: int) -> Place | None:
        """The place whose entry points to a record that names this topic: that of the topic's queues, else of any. None: no
        entry points there, but maybe those of LMQ queues, which have copies of the entries of others."""
        for (of_topic, queue_id), files in sorted(
            self._queues.items(), key=lambda item: (item[0][0] != topic, item[0])
        ):
            if not of_topic.startswith(LMQ_PREFIX):
                for queue_offset in files.offsets_in(commit_log_offset, commit_log_offset + 1):
                    return Place(of_topic, queue_id, queue_offset)
        return None

    def is_followed(self, queue: MessageQueue, slot: int) -> bool:
        """Whether the next entry points to where the record of this one has ended, or further on."""
        written = self.newest(queue).written
        if slot not in written or slot + 1 not in written:
            return False
        entry, after = self._queues[queue.topic, queue.queue_id].entries(slot, slot + 2)
        return entry.commit_log_offset + entry.size <= after.commit_log_offset

    def _block(self, slots: Slots, chunks: int) -> Slots:
        return Slots(slots.queue, slots.begin, max(slots.count, min(slots.count * chunks, self._block_entries)))

    def _kept(self, slots: Slots) -> Entries | None:
        """From the block of the queue; None also where something was not written yet when the block was read."""
        begin, block = self._blocks.get(slots.queue, (0, np.empty(0, ENTRY)))
        entries = block[slots.begin - begin : slots.end - begin] if begin <= slots.begin else block[:0]
        return entries if len(entries) == slots.count and entries["size"].all() else None

    def _entries(self, slots: Slots) -> Entries:
        entries = np.zeros(slots.count, ENTRY)
        files = self.files(slots.queue)
        for file in files.files if files else ():
            first = max(slots.begin * UNIT_BYTES, file.start_offset)
            last = min(slots.end * UNIT_BYTES, file.end_offset)
            if first < last:
                data = self._source.read(file.name, first - file.start_offset, last - file.start_offset)
                read = np.frombuffer(data, ENTRY, len(data) // UNIT_BYTES)
                at = first // UNIT_BYTES - slots.begin
                entries[at : at + len(read)] = read
        return entries
