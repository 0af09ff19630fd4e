"""The consume queues of a broker's store directory: which there are, their bounds, their entries (rules 2.2).

The commit log is the truth and these files are derived from it; a broker that was killed makes missing entries from the
log. The log alone does not give the max offset of a queue whose messages retention has removed; these files do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile, mapped_file_queue
from rmq_store.broker_files.rocks_db import is_rocksdb_file, queues_in_rocksdb
from rmq_store.errors import BadData
from rmq_store.log.consume_queue import FILLER, UNIT_BYTES, ConsumeQueueEntry, decode_entries, max_offset, min_offset
from rmq_store.utils.numbers import whole_number

FOLDER: Final = "consumequeue"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The readable offsets ``[min_offset, max_offset)`` of a queue."""

    min_offset: int
    max_offset: int
    max_physical_offset: int
    """Where the record of the last entry ends in the commit log, also when it was removed; 0: there is none."""

    def with_log(self, made: range) -> QueueBounds:
        """The bounds after recovery, which makes missing entries from the log.

        :param made: the queue offsets (half-open) of this queue's indexed records in the log.
        """
        if not made:
            return self
        is_readable = self.min_offset < self.max_offset
        return replace(
            self,
            min_offset=min(self.min_offset, made.start) if is_readable else made.start,
            max_offset=max(self.max_offset, made.stop),
        )


@dataclass(frozen=True, slots=True)
class ConsumeQueueFiles:
    """One queue's files. Entries are read when they are needed: bounds cost a few reads, not the whole queue."""

    source: FileSource
    topic: str
    queue_id: int
    files: tuple[MappedFile, ...]

    def written(self) -> range:
        """The queue offsets that have entries: without the fillers before them and the zeros after."""
        slots = range(self.files[0].start_offset // UNIT_BYTES, self.files[-1].end_offset // UNIT_BYTES)
        end = slots.start + bisect_left(slots, True, key=lambda slot: not self.entry(slot).is_written)
        begin = slots.start + bisect_left(range(slots.start, end), True, key=lambda slot: self.entry(slot) != FILLER)
        return range(begin, end)

    def offsets_in(self, begin: int, end: int) -> range:
        """The queue offsets of the entries whose records begin in the bytes ``[begin, end)`` of the commit log. Where there is
        none it is empty, and begins with the first entry behind them."""
        written = self.written()
        return range(min_offset(written, self.entry, begin), min_offset(written, self.entry, end))

    def entry(self, queue_offset: int) -> ConsumeQueueEntry:
        """The slot of a queue offset, written or not.

        :raises BadData: no file of the queue holds it.
        """
        (entry,) = self.entries(queue_offset, queue_offset + 1)
        return entry

    def entries(self, begin: int, end: int) -> list[ConsumeQueueEntry]:
        """The slots of a half-open range of queue offsets.

        :raises BadData: the range reaches beyond the files.
        """
        entries: list[ConsumeQueueEntry] = []
        for file in self.files:
            first = max(begin * UNIT_BYTES, file.start_offset)
            last = min(end * UNIT_BYTES, file.end_offset)
            if first < last:
                data = self.source.read(file.name, first - file.start_offset, last - file.start_offset)
                entries += decode_entries(data)
        if len(entries) != end - begin:
            raise BadData(f"{FOLDER}/{self.topic}/{self.queue_id} has {len(entries)} of the entries [{begin}, {end})")
        return entries

    def max_offset(self, log_max_offset: int) -> int:
        """That of the ``bounds``, wherever the log begins."""
        return self.bounds(0, log_max_offset).max_offset

    def bounds(self, log_min_offset: int, log_max_offset: int) -> QueueBounds:
        """What is readable with a commit log of the bytes ``[log_min_offset, log_max_offset)``."""
        written = self.written()
        written = range(written.start, max_offset(written, self.entry, log_max_offset))
        last = self.entry(written.stop - 1) if written else ConsumeQueueEntry(0, 0, 0)
        return QueueBounds(
            min_offset(written, self.entry, log_min_offset), written.stop, last.commit_log_offset + last.size
        )


def list_consume_queues(source: FileSource) -> list[ConsumeQueueFiles]:
    """The queues that have files, by topic and queue id; none when the folder is missing: they can be made from the log.

    :raises BadData: a path is not ``consumequeue/TOPIC/QUEUE/20 digits``, a queue's files do not fit together, or they are
        those of RocksDB.
    """
    return [ConsumeQueueFiles(source, *queue) for queue in queue_files(source, FOLDER, UNIT_BYTES)]


def queue_files(source: FileSource, folder: str, unit_bytes: int) -> Iterator[tuple[str, int, tuple[MappedFile, ...]]]:
    """Topic, queue id and files of the queues below a folder, whose entries have ``unit_bytes``.

    :raises BadData: as ``list_consume_queues``.
    """
    listings: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for name, size in source.list(folder):
        parts = name.split("/")
        queue_id = whole_number(parts[2]) if len(parts) == 4 else None
        if len(parts) == 2 and is_rocksdb_file(name):
            raise queues_in_rocksdb(source, name)
        if queue_id is None:
            raise BadData(
                f"{name} in {source} is not of the form {folder}/TOPIC/QUEUE/FILE, so it is not a consume queue file. "
                "Import a copy of the store without it"
            )
        listings[parts[1], queue_id].append((name, size))
    for (topic, queue_id), listing in sorted(listings.items()):
        own_folder = f"{folder}/{topic}/{queue_id}"
        without = f"import a copy of the store without {own_folder}: entries are then made from the log"
        advice = f"Restore the files, or {without}"
        queue = mapped_file_queue(
            own_folder, listing, advice=f"Copy the store again, or, where the broker's own file is like that, {without}"
        )
        queue.refuse_missing(advice=advice)
        if partial := [file for file in queue.files if file.size_bytes % unit_bytes or file.start_offset % unit_bytes]:
            raise BadData(
                f"{partial[0].name} has {partial[0].size_bytes} bytes; a consume queue file begins and ends with a whole entry "
                f"of {unit_bytes} bytes. {advice}"
            )
        if queue.files:
            yield topic, queue_id, queue.files
