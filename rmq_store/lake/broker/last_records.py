"""The last records of an import, which show later that a log is the one that was imported.

The bytes right before the import's end do not, where they are the rest of a file behind its end-of-file marker: zeros, as in
every log. Nor do the last bytes of a large record, which may be the same in another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.log.commit_log import BEHIND_BYTES, only_zeros

FINGERPRINT_BYTES = 4096

TAIL_BYTES = 64 << 20
"""So many bytes before the end of an import are compared as well. A broker whose machine fails loses what it had not flushed,
and writes new records there; behind these it leaves the old ones as they are, the last one too. It flushes at least every ten
seconds (``flushCommitLogThoroughInterval``)."""

_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """Physical offsets ``[begin, end)`` of the last record that was read, with the head of an end-of-file marker that follows
    it."""

    begin: int
    end: int


def over_marker(last: Written | None, marker: int, task_begin: int, file_begin: int) -> Written | None:
    """The last record and the head of the marker at the physical offset ``marker``, if nothing is between them. ``last`` None:
    the task has read no record; then the one before its begin, if the file has one. Behind damage the marker does not count.
    """
    end = marker + BEHIND_BYTES
    if last is not None:
        return replace(last, end=end) if last.end == marker else last
    return Written(marker, end) if file_begin < marker == task_begin else None


def window(last: Written, file_begin: int) -> tuple[int, int]:
    """The bytes ``[begin, end)`` that show the log: the last record, and at least FINGERPRINT_BYTES if its file has them."""
    return max(file_begin, min(last.begin, last.end - FINGERPRINT_BYTES)), last.end


def last_records(source: FileSource, log: MappedFileQueue, last: Written, fingerprinted: int) -> list[Any] | None:
    """What an import records of its last records: where they begin and end, and their hash. None: they are in the fingerprint,
    which begins at the physical offset ``fingerprinted``."""
    file = log.file_at(last.begin)
    begin, end = window(last, file.start_offset)
    return [begin, end, hash_of(source, log, begin, end)] if begin < fingerprinted else None


def tail(source: FileSource, log: MappedFileQueue, last: Written) -> list[Any]:
    """What an import records of its tail: where it begins and ends, and its hash."""
    begin = max(log.files[0].start_offset, last.end - TAIL_BYTES)
    return [begin, last.end, hash_of(source, log, begin, last.end)]


def has_recorded(source: FileSource, log: MappedFileQueue, recorded: list[Any] | None) -> bool | None:
    """Whether the log has what ``last_records`` or ``tail`` has recorded. None: the broker has removed the file in which it
    begins, or nothing was recorded, as by an import of an earlier version."""
    if not recorded:
        return None
    begin, end, digest = recorded
    file = next((file for file in log.files if file.start_offset <= begin < file.end_offset), None)
    return None if file is None else hash_of(source, log, begin, end) == digest


def hash_of(source: FileSource, log: MappedFileQueue, begin: int, end: int) -> str:
    """The hash of the bytes ``[begin, end)`` of the log, physical offsets."""
    digest = hashlib.sha256()
    for file in log.files:
        last = min(file.end_offset, end)
        for at in range(max(file.start_offset, begin), last, _READ_BYTES):
            to = min(at + _READ_BYTES, last)
            digest.update(source.read(file.name, at - file.start_offset, to - file.start_offset))
    return digest.hexdigest()


def shows_last_records(source: FileSource, log: MappedFileQueue, recorded: list[Any]) -> bool:
    """Whether the log has what ``last_records_of`` answers for an import: then it is the log of that one. An import of an
    earlier version may have recorded only the rest of a file behind its last record: zeros, which show nothing."""
    if not has_recorded(source, log, recorded):
        return False
    begin, end, _ = recorded
    file = log.file_at(begin)
    return not only_zeros(source.read(file.name, begin - file.start_offset, end - file.start_offset), 0)
