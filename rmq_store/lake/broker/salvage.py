"""What a salvage leaves out of a broker's commit log, and where its records continue after damage or a hole."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.errors import DamagedRecord
from rmq_store.lake.broker.records import record_batches
from rmq_store.log.commit_log import BEHIND_BYTES, Damage, MoreBytes, Unsupported, item_at, only_zeros
from rmq_store.log.record import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, Record

CHUNK_BYTES = 64 << 20
"""Bytes of the log that are read at once."""

HOLE = "nothing is written here, but records follow"

_MAGIC = re.compile(
    b"|".join(re.escape(code.to_bytes(4, "big", signed=True)) for code in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2))
)
_SIZE_BYTES = 4
_OWN_OFFSET_AT = 28  # where a record says its own physical offset

HEAD_BYTES = _OWN_OFFSET_AT + 8
"""Of a record: without them ``next_record`` does not find it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Bytes ``[begin, end)`` of the commit log that a salvage left out, and why."""

    begin: int
    end: int
    reason: str

    def as_error(self, file: MappedFile) -> DamagedRecord:
        """The error of an import that is no salvage. ``file``: that of the record."""
        return DamagedRecord(file.name, self.begin - file.start_offset, self.begin, self.reason)


def place_after_damage(source: FileSource, file: MappedFile, damage: Damage) -> int | None:
    """The physical offset where the log continues after the damaged record: at the next good record of the file; behind the
    damaged one, if that is the last one written; at the end of a file that is full. None: nothing tells, so the log may end at
    the damaged record, and a broker writes on there or nearby. The damaged record's size is used last: it may be what is wrong.
    """
    at = begin = damage.commit_log_offset
    while True:
        end = min(at + CHUNK_BYTES, file.end_offset)
        data = source.read(file.name, at - file.start_offset, end - file.start_offset)
        if (offset := next_record(data, at, file.end_offset, max(begin, at - 1))) is not None:
            return offset
        if end == file.end_offset:
            if damage.size and is_unwritten(source, file, begin + damage.size):
                return begin + damage.size
            return None if is_unwritten(source, file, end - BEHIND_BYTES) else end
        at = end - HEAD_BYTES + 1  # the bytes may end in the head of a record


def record_after_hole(source: FileSource, file: MappedFile, hole: int) -> int | None:
    """The physical offset where records continue in the file after unwritten bytes at ``hole``; None: nowhere, so the log
    may end there. It is ``hole`` itself if a running broker has written there meanwhile: it writes in order."""
    at = hole
    while at < file.end_offset:
        end = min(at + CHUNK_BYTES, file.end_offset)
        data = source.read(file.name, at - file.start_offset, end - file.start_offset)
        if not only_zeros(data, 0) and (offset := next_record(data, at, file.end_offset, max(hole, at - 1))):
            size = source.read(file.name, hole - file.start_offset, hole - file.start_offset + _SIZE_BYTES)
            return offset if only_zeros(size, 0) else hole
        # A record may lie across the end of a chunk.
        at = end if end == file.end_offset else end - CHUNK_BYTES // 4
    return None


def is_unwritten(source: FileSource, file: MappedFile, begin: int, end: int | None = None) -> bool:
    """Whether only zeros are in the file from the physical offset ``begin`` on, up to ``end`` or to its own end."""
    end = file.end_offset if end is None else min(end, file.end_offset)
    pieces = (
        (at - file.start_offset, min(at + CHUNK_BYTES, end) - file.start_offset)
        for at in range(begin, end, CHUNK_BYTES)
    )
    reads = (source.read(file.name, *piece) for piece in pieces)
    return all(only_zeros(data, 0) for data in reads)


def is_last_written(source: FileSource, file: MappedFile, damage: Damage, end: int) -> bool:
    """Whether a torn record is the last of its file, of which the bytes up to the physical offset ``end`` were looked at: a
    good one in the bytes that it claims shows that its size is wrong, and that the log goes on."""
    begin = damage.commit_log_offset
    data = source.read(file.name, begin - file.start_offset, begin + damage.size - file.start_offset)
    return next_record(data, begin, file.end_offset, begin) is None and is_unwritten(source, file, end)


def is_whole_now(source: FileSource, file: MappedFile, damage: Damage) -> bool:
    """Whether the record that was damaged is good when it is read again: a running broker has ended its write. Its body
    must decompress too, as in the import, which would otherwise find the same damage again and again."""
    begin = damage.commit_log_offset
    size = damage.size + BEHIND_BYTES if damage.size else CHUNK_BYTES
    end = min(begin + size, file.end_offset)
    data = source.read(file.name, begin - file.start_offset, end - file.start_offset)
    first = next(record_batches(data, begin, file.end_offset, delay_levels={}, batch_rows=1))
    return isinstance(first, pa.RecordBatch | Unsupported)


def next_record(data: bytes, start: int, file_end: int, damaged: int) -> int | None:
    """The physical offset of the next good record after the damaged one at ``damaged``, or of one that ``data`` ends in, which
    must be read whole to tell. None if ``data`` has none. ``data`` begins at the physical offset ``start``."""
    for match in _MAGIC.finditer(data, damaged - start + 5):
        at = match.start() - 4
        if _has_own_offset(data, at, start) and isinstance(item_at(data, at, start, file_end), Record | MoreBytes):
            return start + at
    return None


def last_head(data: bytes, start: int) -> tuple[int, int] | None:
    """The physical offset and TOTALSIZE of the last record whose head ``data`` has whole. None: it has none. ``data`` begins at
    the physical offset ``start``."""
    heads = (match.start() - _SIZE_BYTES for match in _MAGIC.finditer(data, _SIZE_BYTES))
    own = [at for at in heads if _has_own_offset(data, at, start)]
    return (start + own[-1], int.from_bytes(data[own[-1] : own[-1] + _SIZE_BYTES], "big")) if own else None


def _has_own_offset(data: bytes, position: int, start: int) -> bool:
    """Whether a record at ``position`` would name its own offset; quicker to check than the CRC of its body."""
    at = position + _OWN_OFFSET_AT
    return data[at : at + 8] == (start + position).to_bytes(8, "big")
