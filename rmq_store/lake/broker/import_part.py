"""One part of a broker's log: where it begins, what its tasks find in it, and where it ends.

An import is committed in parts of whole files, about 1 to 4 GiB each: what was imported before a crash or an error stays,
and a commit's row stays small. Only the last part may end inside a file, where the log ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile, MappedFileQueue
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.ctl import Ctl, Produced
from rmq_store.errors import BadData, DamagedRecord, UnsupportedRecord
from rmq_store.lake.broker.import_entries import newest_begins
from rmq_store.lake.broker.import_job import ImportJob, ImportResult, ImportTask
from rmq_store.lake.broker.import_tasks import run_tasks, tasks_of
from rmq_store.lake.broker.last_records import FINGERPRINT_BYTES, Written, has_recorded, hash_of
from rmq_store.lake.broker.salvage import CHUNK_BYTES, HOLE, Skipped
from rmq_store.lake.table.import_parameters import parameter_of_import
from rmq_store.lake.table.imports import LAST_RECORDS
from rmq_store.lake.window.engine import Engine
from rmq_store.log.commit_log import Damage

LEAST_PART_BYTES = 1 << 30
MOST_PART_BYTES = 4 << 30
_SEGMENTS = 100_000
"""Of a part: its row is read back in seconds. There is one for each queue and chunk."""
_PARTS = 10
"""How many parts a log should have at least."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """The part ``[begin, end)`` of the broker's log that was read, and what each task found in it."""

    log: MappedFileQueue
    results: Sequence[ImportResult]
    begin: int
    end: int
    is_last: bool
    """Whether it is the log's last part: no file follows that was not read."""

    @property
    def produced(self) -> tuple[Produced, ...]:
        return tuple(segment for result in self.results for segment in result.produced)

    @property
    def messages(self) -> int:
        return sum(result.messages for result in self.results)

    @property
    def deleted(self) -> int:
        """How many of the messages are of topics that were deleted and made again at the broker before this read."""
        return sum(result.deleted for result in self.results)

    @property
    def without_entry(self) -> int:
        """How many of the messages have no entry that shows their place."""
        return sum(result.without_entry for result in self.results)

    @property
    def begins(self) -> dict[QueueKey, int]:
        """Of queues without entries the commit log offset at which their newest generation begins, where messages of an older
        one are before it in the part."""
        return newest_begins(result.orders for result in self.results)

    @property
    def delays(self) -> dict[int, int]:
        """By delay level the broker's delay (ms), as its last message shows it, where the store's levels have another one."""
        return {level: delay_ms for result in self.results for level, delay_ms in result.delays.items()}

    @property
    def last(self) -> Written | None:
        """The last record of the part; None: it has none."""
        return next((result.last for result in reversed(self.results) if result.last), None)

    @property
    def note(self) -> str | None:
        """What the operator should know of the log's end. It is not damage: a running broker may just be writing there."""
        ends = [result for result in self.results if result.end == self.end and not result.full]
        torn = next((result.torn for result in ends if result.torn), None)
        if not torn and not any(result.has_bytes_after for result in ends):
            return None
        file = self.log.file_at(self.end)
        place = f"the log ends at byte {self.end - file.start_offset} of {file.name} (commit log offset {self.end})"
        if torn:
            return (
                f"{place} before a record that is not whole: {torn.reason}. No record follows it. If the broker is running, "
                "import again: the record is whole then. If it was killed, start it: it cuts its log there and goes on. "
                "Only if it was stopped cleanly, the record is damaged, and the copy of the store must be restored"
            )
        return (
            f"{place}, where nothing is written, but other bytes follow. If the next import reports this again, the copy has "
            "a hole: restore the file, or import with --salvage to continue after it"
        )


def read_part(
    job: ImportJob, log: MappedFileQueue, begin: int, engine: Engine, progress: Callable[[int], None]
) -> LogRead:
    """Read the next part of the log, from the physical offset ``begin`` on. ``progress(read_bytes)`` is called as tasks are
    finished.

    Where the part's last file ends early, the next one is read too, because only that tells the end of the log from a hole.
    A file that ends early before records is read again: a running broker may have written both after it was read.
    Raises DamagedRecord and UnsupportedRecord, and the errors of the tasks: of the first file that has any.
    """
    files = [file for file in log.files if file.end_offset > begin]
    to_import = files[-1].end_offset - begin if files else 0
    count = files_of_part(files, begin, part_bytes(len(job.queues), to_import))
    try:
        results = run_tasks(job, tasks_of(job, files[:count], begin), engine, progress)
    except BadData:
        _refuse_damage_before(job, log, files[:count], begin, engine)
        raise
    while count < len(files) and not results[-1].full and not results[-1].stopped_by:
        (task,) = tasks_of(job, files[count : count + 1], begin, cut=False)
        results += run_tasks(job, [replace(task, number=results[-1].number + 1)], engine)
        count += 1
    results = _read_again(job, log, results, engine)
    results = _over_holes(log, results) if job.salvage else results
    return LogRead(log, results, begin, _checked_end(log, results, begin), count == len(files))


def _refuse_damage_before(
    job: ImportJob, log: MappedFileQueue, files: Sequence[MappedFile], begin: int, engine: Engine
) -> None:
    """Raises as ``read_part`` for the first of the files that has something wrong, where a task that read one of them failed.
    What is behind damage may contradict the consume queues because of it: as old records of a log that was cut."""
    results: list[ImportResult] = []
    for task in tasks_of(job, files, begin, cut=False):
        results += run_tasks(job, [task], engine)
        _checked_end(log, results, begin)


def part_bytes(queues: int, log_bytes: int) -> int:
    """How many bytes of the log a part should have, for a broker with so many queues, of which ``log_bytes`` are to be
    imported. A tenth of them: after a crash not much more is done again."""
    most = min(_SEGMENTS // max(queues, 1) * CHUNK_BYTES, log_bytes // _PARTS, MOST_PART_BYTES)
    return max(most, LEAST_PART_BYTES)


def files_of_part(files: Sequence[MappedFile], begin: int, most_bytes: int) -> int:
    """How many of the files a part takes that begins at the physical offset ``begin``: at least one if there are any."""
    sizes = accumulate(file.end_offset - max(begin, file.start_offset) for file in files)
    return max(sum(size <= most_bytes for size in sizes), min(len(files), 1))


class OtherLog(BadData):
    """The bytes before the position are not those that were imported. ``first_other``: the physical offset of the first
    imported message in whose place another one is; None: it is to be looked for."""

    def __init__(self, message: str, first_other: int | None = None) -> None:
        super().__init__(message)
        self.first_other = first_other


def begin_of(source: FileSource, log: MappedFileQueue, imported: int | None, before: Ctl | None, salvage: bool) -> int:
    """The physical offset to read from. Raises OtherLog when the log is not the one that was imported, BadData when it has a
    gap, or when the record of the import ``before`` does not say what was imported."""
    first, end = log.files[0].start_offset, log.files[-1].end_offset
    if not salvage:
        refuse_missing_files(log, imported or 0)
    if imported is None or before is None:
        return first
    if imported < first:
        if not salvage:
            raise BadData(
                f"the broker removed [{imported}, {first}) of its log before it was imported. Nothing was changed; "
                "import with --salvage to continue and record the loss."
            )
        return first
    at, digest = parameter_of_import(before, "fingerprint")
    gap = next((gap for gap in log.missing if gap.end_offset == imported), None)
    if at >= first and digest and gap:
        raise BadData(
            f"{gap.last} is missing, so it cannot be checked that this is the log that was imported up to {imported}. Nothing "
            "was changed. Restore the file"
        )
    is_same = has_recorded(source, log, before.parameter(LAST_RECORDS))
    if is_same is None:
        is_same = at < first or fingerprint(source, log, imported) == [at, digest]
    if imported > end or not is_same:
        raise OtherLog(f"the log of {source} is not the one that was imported up to {imported}")
    return imported


def refuse_missing_files(log: MappedFileQueue, begin: int) -> None:
    """Raises BadData where a file is missing that would have what an import from ``begin`` on has to read."""
    log.refuse_missing(
        begin, advice="Restore them, or import with --salvage to continue without them and record the loss"
    )


def fingerprint(source: FileSource, log: MappedFileQueue, end: int) -> list[Any]:
    """Where the last bytes before ``end`` begin, and their hash."""
    file = next((f for f in log.files if f.start_offset < end <= f.end_offset), None)
    if file is None:
        return [end, ""]
    begin = max(file.start_offset, end - FINGERPRINT_BYTES)
    return [begin, hash_of(source, log, begin, end)]


def _is_before_records(results: Sequence[ImportResult], number: int) -> bool:
    """Whether this result's file ends early, and a later file has records, or what should be some."""
    result, later = results[number], results[number + 1 :]
    has_later = any(one.messages or one.stopped_by or one.torn for one in later)
    return not result.full and not result.stopped_by and has_later


def _read_again(
    job: ImportJob, log: MappedFileQueue, results: Sequence[ImportResult], engine: Engine
) -> list[ImportResult]:
    """The results, where files that end early before records were read again: after a second read it is a hole."""
    newest = list(results)
    for number, result in enumerate(newest):
        if _is_before_records(newest, number):
            file = log.file_at(result.begin)
            (newest[number],) = run_tasks(job, [ImportTask(result.number, file, result.begin, file.end_offset)], engine)
    return newest


def _over_holes(log: MappedFileQueue, results: list[ImportResult]) -> list[ImportResult]:
    """The results of a salvage, which continues with the next file where one ends early and a later one has records."""
    continued = []
    for number, result in enumerate(results):
        file = log.file_at(result.begin)
        if _is_before_records(results, number):
            hole = Skipped(result.end, file.end_offset, result.torn.reason if result.torn else HOLE)
            result = replace(result, end=file.end_offset, full=True, skipped=(*result.skipped, hole))
        continued.append(result)
    return continued


def _checked_end(log: MappedFileQueue, results: Sequence[ImportResult], begin: int) -> int:
    """Where the log ends. Raises DamagedRecord or UnsupportedRecord for the first such record, DamagedRecord also when a
    file ends early and a later one has records."""
    end = begin
    for number, result in enumerate(results):
        file = log.file_at(result.begin)
        if result.stopped_by:
            offset = result.stopped_by.commit_log_offset
            kind = DamagedRecord if isinstance(result.stopped_by, Damage) else UnsupportedRecord
            raise kind(file.name, offset - file.start_offset, offset, result.stopped_by.reason)
        end = result.end
        if not result.full:
            if _is_before_records(results, number):
                reason = result.torn.reason if result.torn else "nothing is written here"
                raise DamagedRecord(file.name, end - file.start_offset, end, f"{reason}, but a later file has records")
            return end
    return end
