"""What a broker's log has at a physical offset, read from its files record by record. An import reads whole files instead
(``import_slice.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.limits import MAX_CONFIG_BYTES
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.lake.broker.last_records import FINGERPRINT_BYTES
from rmq_store.lake.broker.salvage import place_after_damage, record_after_hole
from rmq_store.log.commit_log import BEHIND_BYTES, Blank, Damage, MoreBytes, NothingWritten, Stop, item_at, record_at
from rmq_store.log.record import Record

_READ_BYTES = 8 << 20


class BufferedSource:
    """A source of which the records of a log are read one after the other."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._name, self._begin, self._data = "", 0, b""

    def __str__(self) -> str:
        return str(self._source)

    def names(self) -> list[str]:
        return self._source.names()

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return self._source.list(prefix)

    def whole(self, name: str, most_bytes: int = MAX_CONFIG_BYTES) -> bytes | None:
        return self._source.whole(name, most_bytes)

    def read(self, name: str, begin: int, end: int) -> bytes:
        if name != self._name or not self._begin <= begin <= end <= self._begin + len(self._data):
            self._data = self._source.read(name, begin, max(end, begin + _READ_BYTES))
            self._name, self._begin = name, begin
        return self._data[begin - self._begin : end - self._begin]


def place_behind_damage(source: FileSource, log: MappedFileQueue, offset: int) -> int | None:
    """Where the log goes on with a good record behind the damaged one at the physical offset; None: nowhere, or there is no
    damage."""
    if not isinstance(item_of(source, log, offset), Damage):
        return None
    record = next_good_record(source, log, offset)
    return record.commit_log_offset if record else None


def next_good_record(source: FileSource, log: MappedFileQueue, offset: int) -> Record | None:
    """The first good record from a physical offset on, over damage and what is not written; None: there is none."""
    item = item_of(source, log, offset, FINGERPRINT_BYTES)
    while not isinstance(item, Record):
        at, place = item.commit_log_offset, None
        if isinstance(item, Damage):
            place = place_after_damage(source, log.file_at(at), item)
        if place is None:
            place = next((file.start_offset for file in log.files if file.start_offset > at), None)
        if place is None:
            return None
        item = item_of(source, log, place)
    return item


def records_in(source: FileSource, log: MappedFileQueue, begin: int, end: int) -> Iterator[Record]:
    """The good records that begin in [begin, end), over damage, holes and missing files, as a salvage goes on. ``begin`` may be
    inside a record, which is then left out."""
    files = (file for file in log.files if begin < file.end_offset)
    for file in files:
        at: int | None = max(begin, file.start_offset)
        if begin > file.start_offset and not isinstance(item_of(source, log, begin, FINGERPRINT_BYTES), Record | Blank):
            at = place_after_damage(source, file, Damage(begin, "", 0, torn=False))
        while at is not None and at < min(file.end_offset, end):
            match item_of(source, log, at, FINGERPRINT_BYTES):
                case Record() as record:
                    yield record
                    at += record.store_size
                case Damage() as damage:
                    at = place_after_damage(source, file, damage)
                case NothingWritten():
                    at = record_after_hole(source, file, at)
                case _:  # the end of the file
                    at = None


def goes_on(source: FileSource, log: MappedFileQueue, offset: int) -> bool:
    """Whether the log has a good record from the physical offset on, in what is written right there. Not behind a record that
    is not whole, as where a copy ends."""
    at = over_blank(source, log, offset)
    return not isinstance(item_of(source, log, at), NothingWritten) and next_good_record(source, log, at) is not None


def over_blank(source: FileSource, log: MappedFileQueue, offset: int) -> int:
    """The offset, or the begin of the next file where the log's file ends there."""
    item = item_of(source, log, offset)
    return offset + item.skipped if isinstance(item, Blank) else offset


def item_of(source: FileSource, log: MappedFileQueue, offset: int, size: int = BEHIND_BYTES) -> Record | Stop:
    """What the log has at a physical offset, by at least ``size`` bytes. Behind its files nothing is written."""
    data = bytes_at(source, log, offset, size)
    item = item_at(data, 0, offset, log.file_at(offset).end_offset) if data else NothingWritten(offset)
    return item_of(source, log, offset, item.needed) if isinstance(item, MoreBytes) and item.needed > size else item


def record_of(source: FileSource, log: MappedFileQueue, offset: int, size: int) -> Record | Damage:
    """The record of ``size`` bytes at a physical offset, whatever follows it."""
    return record_at(bytes_at(source, log, offset, size), 0, offset)


def bytes_at(source: FileSource, log: MappedFileQueue, offset: int, size: int) -> bytes:
    """Bytes of the log, as many as the file has there; none behind its files."""
    file = next((file for file in log.files if file.start_offset <= offset < file.end_offset), None)
    if file is None:
        return b""
    begin = offset - file.start_offset
    return source.read(file.name, begin, begin + size)
