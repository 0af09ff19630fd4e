"""The broker's own entries next to the messages of a chunk of its log: what was written must agree with the log.

What was not written is made from the log, as the broker's recovery does (rules 19.1). Messages of a topic that was deleted
and made again have no entry. Where a queue has no entries at all, the order of the log tells its generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmq_store.broker_files.commit_log_file import FOLDER as LOG_FOLDER
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import FileSource, LocalFileSource
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.errors import BadData
from rmq_store.log.commit_log import record_at
from rmq_store.log.consume_queue import UNIT_BYTES, ConsumeQueueEntry
from rmq_store.log.record import Record
from rmq_store.message.message import MessageQueue

ENTRY = np.dtype([("commit_log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert ENTRY.itemsize == UNIT_BYTES

Entries = npt.NDArray[np.void]

_BLOCK_BYTES = 8 << 20
"""The largest block of a queue that is kept for the next chunks of a task."""
_BLOCKS_BYTES = 64 << 20
"""All blocks of a task."""
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


class EntryReader:
    """Reads the entries of one task, whose chunks come in log order: the first read of a queue takes what the task's later
    chunks may need of it, so that a queue costs about one read a task."""

    def __init__(self, source: FileSource, queues: Mapping[QueueKey, ConsumeQueueFiles]) -> None:
        self._source = source
        self._queues = queues
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


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of a queue whose queue offsets follow one another, from ``begin`` on, with one or more rows."""

    queue: MessageQueue
    begin: int
    physical: npt.NDArray[np.int64]
    """Commit log offsets."""
    sizes: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int64]
    """Tags codes."""

    @property
    def slots(self) -> Slots:
        return Slots(self.queue, self.begin, len(self.physical))


def of_a_deleted_topic(
    source: FileSource, file_bytes: int, files: ConsumeQueueFiles | None, run: Run, entries: Entries
) -> npt.NDArray[np.bool_]:
    """Mask of the messages of a run that belong to a topic which was deleted and made again: the broker's entry at their
    offset points further on in the log, or the queue ends before that offset with an entry that does. An entry that is missing
    in front of others was lost: its message is that of the log. ``file_bytes``: of each file of the log."""
    newest = entries.copy()
    slots = np.arange(run.begin, run.slots.end)
    missing = newest["size"] == 0
    if files and missing.any():
        written = files.written()
        last = files.entry(written.stop - 1) if written else ConsumeQueueEntry(0, 0, 0)
        behind = missing & (slots >= written.stop)
        newest[behind] = (last.commit_log_offset, last.size, last.tags_code)
        slots[behind] = written.stop - 1
    orphaned = newest["commit_log_offset"] > run.physical
    if orphaned.any() and not _has_record(source, file_bytes, run.queue, int(slots[orphaned][0]), newest[orphaned][0]):
        orphaned[:] = False  # the entries are wrong, not the messages: compare raises
    return orphaned


@dataclass(frozen=True, slots=True)
class LogOrder:
    """What a piece of the log shows of a queue that has no entries."""

    first: int
    """Commit log offset of the queue's first message."""
    begin: int
    """That of its last message with queue offset 0, at which its newest generation begins; -1: no message has it."""

    @classmethod
    def of(cls, physical: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> LogOrder:
        """``physical``, ``offsets``: commit log offset and the broker's queue offset of each message, at least one."""
        return cls(int(physical.min()), int(physical[offsets == 0].max(initial=-1)))

    def with_piece(self, other: LogOrder) -> LogOrder:
        return LogOrder(min(self.first, other.first), max(self.begin, other.begin))


def newest_begins(pieces: Iterable[Mapping[QueueKey, LogOrder]]) -> dict[QueueKey, int]:
    """The commit log offsets at which the newest generation of queues begins, where messages of an older one are before it.

    Only a later message with offset 0 proves that a topic was deleted. That a queue has no entries proves nothing: the broker
    may not have written them yet, or a power failure took them and left those of other queues.
    """
    orders: dict[QueueKey, LogOrder] = {}
    for key, order in (item for piece in pieces for item in piece.items()):
        orders[key] = orders.get(key, order).with_piece(order)
    return {key: order.begin for key, order in orders.items() if order.first < order.begin}


def _has_record(source: FileSource, file_bytes: int, queue: MessageQueue, queue_offset: int, entry: np.void) -> bool:
    """Whether the log has the record of this queue offset where the entry points."""
    at, size = int(entry["commit_log_offset"]), int(entry["size"])
    start = at - at % file_bytes
    try:
        data = source.read(f"{LOG_FOLDER}/{start:020}", at - start, at - start + size)
    except BadData:
        return False
    record = record_at(data, 0, at)
    if not isinstance(record, Record):
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, queue_offset)


def take_delivery_times(codes: npt.NDArray[np.int64], entries: Entries) -> bool:
    """The tags code of a schedule entry is its delivery time, by the broker's level table, which is in none of its files.
    So the entry counts, and the store's level table only where there is no entry. Returns whether the last entry says
    another time than the store's table."""
    written = np.flatnonzero(entries["size"] > 0)
    differs = bool(len(written) and codes[written[-1]] != entries["tags_code"][written[-1]])
    codes[written] = entries["tags_code"][written]
    return differs


def compare(run: Run, entries: Entries) -> None:
    """Raises BadData when a written entry differs from the log."""
    same = (entries["commit_log_offset"] == run.physical) & (entries["size"] == run.sizes)
    wrong = np.flatnonzero((entries["size"] > 0) & ~(same & (entries["tags_code"] == run.codes)))
    if len(wrong):
        at = int(wrong[0])
        entry = tuple(int(value) for value in entries[at])
        raise BadData(
            f"{run.queue} offset {run.begin + at}: the broker's entry has (offset, size, tags code) {entry}, its log has "
            f"{(int(run.physical[at]), int(run.sizes[at]), int(run.codes[at]))}. To have the entries made from the log, "
            f"import a copy of the store without consumequeue/{run.queue.topic}/{run.queue.queue_id}."
        )
