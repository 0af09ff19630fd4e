"""Batch consume queues (``BatchConsumeQueue``): the queues of topics with the attribute ``queue.type=BatchCQ``.

They are in a folder of their own. An entry has 46 bytes: commit log offset (8), size of the record (4), tags code (8), store
time (8), queue offset of its first message (8), number of messages (2), compaction offset (4), 4 unused ones. The log says
all of it but where a queue ends whose messages retention has removed, and what was in damaged records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from rmq_store.broker_files.consume_queue_file import queue_files
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile

FOLDER: Final = "batchconsumequeue"
UNIT_BYTES: Final = 46
_UNIT: Final = struct.Struct(">qiqqqhi4x")
assert _UNIT.size == UNIT_BYTES


@dataclass(frozen=True, slots=True)
class BatchConsumeQueueFiles:
    """The files of one batch queue."""

    source: FileSource
    topic: str
    queue_id: int
    files: tuple[MappedFile, ...]

    def max_offset(self, log_max_offset: int) -> int:
        """The queue offset behind the last entry whose record ends at or before a place in the log; 0: there is none."""
        begin = self.files[0].start_offset // UNIT_BYTES
        slots = range(begin, self.files[-1].end_offset // UNIT_BYTES)

        def is_behind(slot: int) -> bool:
            commit_log_offset, size, *_ = self._entry(slot)
            return size == 0 or commit_log_offset + size > log_max_offset

        return self._offset_behind(begin, begin + bisect_left(slots, True, key=is_behind))

    def offsets_in(self, begin: int, end: int) -> range:
        """As ``ConsumeQueueFiles.offsets_in``: of the messages whose records begin in the bytes ``[begin, end)`` of the log."""
        first = self.files[0].start_offset // UNIT_BYTES
        slots = range(first, self.files[-1].end_offset // UNIT_BYTES)

        def offset_at(place: int) -> int:
            def is_behind(slot: int) -> bool:
                commit_log_offset, size, *_ = self._entry(slot)
                return size == 0 or commit_log_offset >= place

            slot = first + bisect_left(slots, True, key=is_behind)
            if slot < slots.stop and self._entry(slot)[1]:
                return self._entry(slot)[4]
            return self._offset_behind(first, slot)

        return range(offset_at(begin), offset_at(end))

    def _offset_behind(self, begin: int, end: int) -> int:
        """The queue offset behind the last message of the slots ``[begin, end)``; 0: there is none."""
        if end == begin:
            return 0
        *_, base, number, _ = self._entry(end - 1)
        return base + number

    def _entry(self, slot: int) -> tuple[int, ...]:
        at = slot * UNIT_BYTES
        file = next(file for file in self.files if file.start_offset <= at < file.end_offset)
        begin = at - file.start_offset
        return _UNIT.unpack(self.source.read(file.name, begin, begin + UNIT_BYTES))


def list_batch_consume_queues(source: FileSource) -> list[BatchConsumeQueueFiles]:
    """The batch queues that have files, by topic and queue id.

    :raises BadData: a path is not ``batchconsumequeue/TOPIC/QUEUE/20 digits``, or a queue's files do not fit together.
    """
    return [BatchConsumeQueueFiles(source, *queue) for queue in queue_files(source, FOLDER, UNIT_BYTES)]
