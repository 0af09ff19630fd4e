"""A task of an import reads the broker's entries once a queue, whatever number of chunks it has, and reads them right."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import pytest

from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import mapped_file_queue
from rmq_store.lake.broker import entry_reader
from rmq_store.lake.broker.entry_reader import EntryReader, Slots
from rmq_store.message.message import MessageQueue

FILE_ENTRIES = 50
QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]


@dataclass
class CountedSource(FileSource):
    """Files in memory; every read is counted."""

    files: dict[str, bytes] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return []

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return [(name, len(data)) for name, data in sorted(self.files.items()) if name.startswith(prefix + "/")]

    def read(self, name: str, begin: int, end: int) -> bytes:
        self.reads.append(name)
        return self.files[name][begin:end]

    def whole(self, name: str, most_bytes: int = 1 << 26) -> bytes | None:
        return self.files.get(name)


def source_of(written: int, first_file: int = 0, files: int = 4) -> CountedSource:
    """Three queues, whose entry at offset n is (n, 100, n), if n is below ``written``."""
    source = CountedSource()
    for queue in QUEUES:
        for number in range(first_file, files):
            slots = range(number * FILE_ENTRIES, (number + 1) * FILE_ENTRIES)
            data = b"".join(struct.pack(">qiq", n, 100, n) if n < written else bytes(20) for n in slots)
            source.files[f"consumequeue/T/{queue.queue_id}/{number * FILE_ENTRIES * 20:020}"] = data
    return source


def reader_of(source: CountedSource) -> EntryReader:
    queues = {}
    for queue in QUEUES:
        folder = f"consumequeue/T/{queue.queue_id}"
        files = mapped_file_queue(folder, source.list(folder)).files
        queues["T", queue.queue_id] = ConsumeQueueFiles(source, "T", queue.queue_id, files)
    return EntryReader(source, queues, 1 << 20)


def offsets(reader: EntryReader, begin: int, count: int, chunks: int = 1) -> list[list[int]]:
    several = [Slots(queue, begin, count) for queue in QUEUES]
    return [entries["commit_log_offset"].tolist() for entries in reader.read(several, chunks)]


def test_later_chunks_of_a_task_take_what_the_first_one_read() -> None:
    source = source_of(written=200)
    reader = reader_of(source)
    for chunk in range(16):
        assert offsets(reader, 3 + 3 * chunk, 3, 16 - chunk) == [list(range(3 + 3 * chunk, 6 + 3 * chunk))] * 3
    assert len(source.reads) == 2 * len(QUEUES)  # the block of a queue lies in two files
    source.reads.clear()
    assert offsets(reader_of(source), 3, 3) == [[3, 4, 5]] * 3
    assert len(source.reads) == len(QUEUES)


def test_what_was_not_written_when_the_block_was_read_is_read_again() -> None:
    source = source_of(written=4)
    reader = reader_of(source)
    assert offsets(reader, 0, 3, 4) == [[0, 1, 2]] * 3
    source.files.update(source_of(written=8).files)
    assert offsets(reader, 3, 3, 3) == [[3, 4, 5]] * 3


def test_slots_before_and_after_the_files_have_no_entry() -> None:
    reader = reader_of(source_of(written=200, first_file=1))
    (first, *_) = reader.read([Slots(QUEUES[0], 48, 4)])
    assert (first["size"].tolist(), first["commit_log_offset"].tolist()) == ([0, 0, 100, 100], [0, 0, 50, 51])
    (last, *_) = reader.read([Slots(QUEUES[0], 199, 2)])
    assert last["size"].tolist() == [100, 0]
    (none,) = reader.read([Slots(MessageQueue("Other", "broker-a", 0), 0, 2)])
    assert not np.any(none["size"])


def test_a_block_is_not_larger_than_the_share_of_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_reader, "_BLOCKS_BYTES", 3 * 10 * 20)
    source = source_of(written=200)
    reader = reader_of(source)
    for chunk in range(4):
        offsets(reader, 5 * chunk, 5, 4 - chunk)
    assert len(source.reads) == 2 * len(QUEUES)


def test_two_runs_of_a_queue_in_one_chunk_each_have_their_own_entries() -> None:
    reader = reader_of(source_of(written=200))
    several = [Slots(QUEUES[0], 0, 5), Slots(QUEUES[0], 0, 2), Slots(QUEUES[0], 90, 20)]
    read = [entries["commit_log_offset"].tolist() for entries in reader.read(several, 2)]
    assert read == [[*range(5)], [0, 1], [*range(90, 110)]]
