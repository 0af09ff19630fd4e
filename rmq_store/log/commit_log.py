"""Walking the bytes of a commit log file: records in order, then one value that says why the walk ended (rules 1.7).

As in RocketMQ's recovery (rules 19.1), a record that fails the broker's check cuts the log there. The bytes behind it
are not read, because nothing says where the next record begins; with ``Damage.size`` a salvage can try.

- a record never spans two files; an end-of-file marker (:class:`Blank`) stands before the unused rest of a file
- TOTALSIZE 0 means that nothing was written there yet

Three checks are this project's own, RocketMQ does not make them:

- a record must be at the commit log offset in its own field, else the file was copied wrongly. Its queue id, its queue
  offset and its store time must be in the range of ids, offsets and dates, because no checksum covers them
- an end-of-file marker says how many bytes its file has left. If the number is wrong and something was written behind
  the marker, it is damage: otherwise those records would be lost silently
- the last record of a log that has a zero in its topic or properties may be half written: no checksum covers them, and a
  page of it may have been copied before the broker wrote it. It is read when something follows it
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rmq_store.log.record import (
    BLANK_MAGIC,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_TIMES,
    Bytes,
    Record,
    check,
    decode,
)

_SIZE_AND_MAGIC: Final = struct.Struct(">ii")
_KNOWN_MAGIC: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, BLANK_MAGIC)
_CHUNK_BYTES: Final = 1 << 20

BEHIND_BYTES: Final = _SIZE_AND_MAGIC.size
"""Bytes behind a record that show whether the log ends with it."""

QUEUE_IDS: Final = range(1 << 31)
QUEUE_OFFSETS: Final = range(1 << 62)
"""Valid queue offsets: the sum of two of them still fits into a Java long."""


@dataclass(frozen=True, slots=True)
class Blank:
    """The end-of-file marker."""

    commit_log_offset: int
    marked_size: int
    """The bytes to the file's end as the marker says."""
    skipped: int
    """The bytes to the file's end."""


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The file is full to its last byte; the log goes on in the next one."""

    commit_log_offset: int


@dataclass(frozen=True, slots=True)
class NothingWritten:
    """TOTALSIZE 0: the log ends here, unless a later file holds records."""

    commit_log_offset: int


@dataclass(frozen=True, slots=True)
class MoreBytes:
    """The slice ends inside a record, or shows too little of what follows it; read again from here, at least ``needed``
    bytes."""

    commit_log_offset: int
    needed: int


@dataclass(frozen=True, slots=True)
class Damage:
    """The record here fails its check: the log is cut here."""

    commit_log_offset: int
    reason: str
    size: int
    """Bytes to the next record if the record's own TOTALSIZE is right, 0 when it cannot be."""
    torn: bool
    """It fails the broker's own check, or has a zero in its topic or properties, and only zeros follow it as far as the data
    reaches. It is a write that a broker has not ended, or the last one of a broker that was killed, which cuts its log there
    when it is started (rules 19.1)."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The record here passes RocketMQ's checks, but cannot be imported as it is. :func:`walk` yields none."""

    commit_log_offset: int
    reason: str


Stop = Blank | FileEnd | NothingWritten | MoreBytes | Damage | Unsupported


def walk(data: Bytes, start_offset: int, file_end: int, *, check_crc: bool = True) -> Iterator[Record | Stop]:
    """The records of a file or of a slice of one, in log order; the last item, and only that, is a :data:`Stop`.

    :param data: bytes of one file, beginning at a record.
    :param start_offset: commit log offset of the first byte of ``data``.
    :param file_end: commit log offset at which the file ends (start of the next file), not below the end of ``data``.
    """
    position = 0
    while True:
        item = item_at(data, position, start_offset, file_end, check_crc=check_crc)
        yield item
        if not isinstance(item, Record):
            return
        position += item.store_size


def item_at(data: Bytes, position: int, start_offset: int, file_end: int, *, check_crc: bool = True) -> Record | Stop:
    """The record at ``position`` of ``data``, or why there is none; the other parameters are those of :func:`walk`. What
    follows a record is looked at as well, see :func:`record_at`."""
    offset = start_offset + position
    remaining = len(data) - position
    reaches_file_end = start_offset + len(data) >= file_end
    if offset >= file_end:
        return FileEnd(offset)
    if remaining < _SIZE_AND_MAGIC.size:
        if not reaches_file_end:
            return MoreBytes(offset, _SIZE_AND_MAGIC.size)
        if only_zeros(data, position):
            return NothingWritten(offset)
    else:
        total_size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
        if total_size == 0:
            return NothingWritten(offset)
        if magic == BLANK_MAGIC and total_size <= file_end - offset:
            return _blank_at(data, position, start_offset, file_end)
        if remaining < total_size <= file_end - offset and magic in _KNOWN_MAGIC:
            return MoreBytes(offset, total_size)
    record = record_at(data, position, start_offset, check_crc=check_crc)
    if isinstance(record, Record) and ("\0" in record.properties_text or "\0" in record.topic):
        return _if_whole(record, data, position, start_offset, file_end)
    return record


def record_at(data: Bytes, position: int, start_offset: int, *, check_crc: bool = True) -> Record | Damage:
    """The record at ``position`` of ``data``, whatever follows it. ``data`` has all its bytes, or it is damaged."""
    offset = start_offset + position
    checked = check(data, position, check_crc=check_crc)
    if not checked.success:
        damage = damage_at(data, position, start_offset, checked.reason)
        return replace(damage, torn=only_zeros(data, position + max(damage.size, _SIZE_AND_MAGIC.size)))
    record = decode(data, position)
    if not isinstance(record, Record):
        return damage_at(data, position, start_offset, record.reason)
    if record.commit_log_offset != offset:
        reason = f"its PHYSICALOFFSET is {record.commit_log_offset}, but it is at {offset}"
        return damage_at(data, position, start_offset, reason)
    if record.queue_id not in QUEUE_IDS:
        return damage_at(data, position, start_offset, f"its QUEUEID {record.queue_id} is negative")
    if record.queue_offset not in QUEUE_OFFSETS:
        reason = f"its QUEUEOFFSET {record.queue_offset} is not in [0, {QUEUE_OFFSETS.stop})"
        return damage_at(data, position, start_offset, reason)
    if record.store_timestamp not in STORE_TIMES:
        reason = (
            f"STORETIMESTAMP {record.store_timestamp} of topic {record.topic}, queue {record.queue_id}, offset "
            f"{record.queue_offset} is not from 1970-01-01 to 9999-12-31"
        )
        return damage_at(data, position, start_offset, reason)
    return record


def _if_whole(
    record: Record, data: Bytes, position: int, start_offset: int, file_end: int
) -> Record | MoreBytes | Damage:
    """The record, which has a zero in its topic or properties, if something follows it. Further on is not enough: a page that
    is missing may have its end and the begin of the next record. Without room for the end-of-file marker, nothing can follow:
    a broker leaves that room, so it is not a record that one is writing."""
    end = position + record.store_size
    behind = data[end : end + BEHIND_BYTES]
    if any(behind) or file_end - start_offset - end < BEHIND_BYTES:
        return record
    if len(behind) < BEHIND_BYTES:
        return MoreBytes(start_offset + position, record.store_size + BEHIND_BYTES)
    reason = "its topic or properties have a zero byte, and nothing is written right behind it"
    return replace(damage_at(data, position, start_offset, reason), torn=only_zeros(data, end))


def _blank_at(data: Bytes, position: int, start_offset: int, file_end: int) -> Blank | MoreBytes | Damage:
    """The end-of-file marker at ``position``; its number is not larger than the rest of the file."""
    offset = start_offset + position
    (marked_size, _), rest = _SIZE_AND_MAGIC.unpack_from(data, position), file_end - offset
    if marked_size != rest:
        if not only_zeros(data, position + _SIZE_AND_MAGIC.size):
            reason = (
                f"the end-of-file marker says that {marked_size} bytes are left, but {rest} are, and data follows it"
            )
            return damage_at(data, position, start_offset, reason)
        if start_offset + len(data) < file_end:
            return MoreBytes(offset, rest)
    return Blank(offset, marked_size, rest)


def damage_at(data: Bytes, position: int, start_offset: int, reason: str) -> Damage:
    """The damage at ``position``, with its size as far as the bytes show it; it is not torn."""
    remaining = len(data) - position
    size = 0
    if remaining >= _SIZE_AND_MAGIC.size:
        total_size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
        if _SIZE_AND_MAGIC.size < total_size <= remaining and magic in _KNOWN_MAGIC:
            size = total_size
    return Damage(start_offset + position, reason, size, torn=False)


def only_zeros(data: Bytes, start: int) -> bool:
    """Whether nothing was written from ``start`` on. In chunks: the unused end of a file may be a gigabyte."""
    zeros = bytes(_CHUNK_BYTES)
    return all(zeros.startswith(bytes(data[at : at + _CHUNK_BYTES])) for at in range(start, len(data), _CHUNK_BYTES))
