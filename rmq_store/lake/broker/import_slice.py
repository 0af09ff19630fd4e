"""The import stage: one commit log file of a broker, in chunks (``import_chunk.py``).

Queues without entries get the place at which the newest generation begins when the whole part was read (``begins``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Produced, StagedFile
from rmq_store.errors import BadData
from rmq_store.lake.broker.entry_reader import EntryReader
from rmq_store.lake.broker.import_chunk import Chunks, staged, without_misplaced
from rmq_store.lake.broker.import_job import ImportJob, ImportResult, ImportTask
from rmq_store.lake.broker.inner_batches import with_inner_messages
from rmq_store.lake.broker.last_records import Written, over_marker
from rmq_store.lake.broker.records import record_batches
from rmq_store.lake.broker.salvage import (
    CHUNK_BYTES,
    HOLE,
    Skipped,
    is_last_written,
    is_unwritten,
    is_whole_now,
    place_after_damage,
    record_after_hole,
)
from rmq_store.log.commit_log import (
    BEHIND_BYTES,
    Blank,
    Damage,
    FileEnd,
    MoreBytes,
    NothingWritten,
    Stop,
    Unsupported,
    only_zeros,
)

PART_BYTES = 256 << 20
"""Of a table in memory; a chunk becomes larger than CHUNK_BYTES only by decompression."""

PARTS_PER_FILE = 4096
"""At most so many staged files for one commit log file."""


def import_file(job: ImportJob, task: ImportTask, attempt: str) -> ImportResult:
    """Read, check and stage one file, or a chunk of it. Raises BadData when the broker's consume queue contradicts its log."""
    try:
        return _imported(job, task, attempt)
    except BadData:
        if not task.is_cut:
            raise
        begin = task.begin
        return ImportResult(
            number=task.number, begin=begin, end=begin, full=False, messages=0, files=(), produced=(), failed=True
        )


def _imported(job: ImportJob, task: ImportTask, attempt: str) -> ImportResult:
    at, chunk_bytes, read_end = task.begin, CHUNK_BYTES, task.end
    files: list[StagedFile] = []
    produced: list[Produced] = []
    messages = deleted = 0
    torn: Damage | None = None
    last: Written | None = None
    reader = EntryReader(job.source, job.queues, job.file_bytes)
    chunks = Chunks(reader, task.file)
    skipped = chunks.skipped
    while True:
        end = min(at + chunk_bytes, read_end)
        data = job.source.read(task.file.name, at - task.file.start_offset, end - task.file.start_offset)
        if len(data) < end - at:
            raise BadData(f"{task.file.name} became shorter while it was read: import again once its copy is complete")
        chunks.left = -(-(task.end - at) // max(len(data), 1))
        stop: Stop = NothingWritten(at)
        for item in _parsed(job, data, at, task.file.end_offset, skipped):
            if not isinstance(item, pa.Table):
                stop = item
                break
            last = _last_of(item)
            item = without_misplaced(job, chunks, item)
            messages += item.num_rows
            part = task.number * PARTS_PER_FILE + len(files)
            before = chunks.misplaced
            for file, segments in staged(job, chunks, item, part, attempt):
                if len(files) == PARTS_PER_FILE:
                    raise BadData(_too_many_files(task))
                files.append(file)
                produced += segments
                deleted -= sum(segment.count for segment in segments)
            left_out = chunks.misplaced - before
            messages -= left_out
            deleted += (pc.sum(item.column("indexed")).as_py() or 0) - left_out
        match stop:
            case MoreBytes(offset, needed) if end < task.end:
                at, chunk_bytes = offset, max(CHUNK_BYTES, needed)
                continue
            # The task's last record may need the first bytes of the next task, which tell whether it is whole.
            case MoreBytes(offset, needed) if offset < task.end < offset + needed <= task.end + BEHIND_BYTES:
                at, chunk_bytes, read_end = offset, needed, offset + needed
                continue
            case Damage() if stop.torn and is_last_written(job.source, task.file, stop, end):
                torn = stop
            # A running broker writes in order: what was followed by something is whole by now, or it is damage.
            case Damage(offset) if is_whole_now(job.source, task.file, stop):
                at, chunk_bytes = offset, CHUNK_BYTES
                continue
            case Damage() if job.salvage:
                place = place_after_damage(job.source, task.file, stop)
                if place is None:
                    torn = stop
                else:
                    skipped.append(Skipped(stop.commit_log_offset, place, stop.reason))
                    if place < task.file.end_offset:
                        at, chunk_bytes = place, CHUNK_BYTES
                        continue
                    stop = FileEnd(task.file.end_offset)
            case NothingWritten(hole) if (
                job.salvage and (record_at := record_after_hole(job.source, task.file, hole)) is not None
            ):
                skipped += [Skipped(hole, record_at, HOLE)] if record_at > hole else []
                at, chunk_bytes = record_at, CHUNK_BYTES
                continue
            case _:
                pass
        if isinstance(stop, Blank):
            last = over_marker(last, stop.commit_log_offset, task.begin, task.file.start_offset)
        is_file_end = isinstance(stop, Blank | FileEnd)
        stopped_by = stop if isinstance(stop, Damage | Unsupported) and not torn else None
        has_bytes_after = isinstance(stop, NothingWritten) and not (
            only_zeros(data, stop.commit_log_offset - at)
            and is_unwritten(job.source, task.file, end, stop.commit_log_offset + CHUNK_BYTES)
        )
        reached = task.file.end_offset if is_file_end else stop.commit_log_offset
        return ImportResult(
            number=task.number,
            begin=task.begin,
            end=reached,
            full=is_file_end or reached == task.end,
            messages=messages,
            deleted=deleted,
            delays=chunks.delays,
            orders=chunks.orders,
            without_entry=chunks.without_entry,
            last_without=chunks.last_without,
            files=tuple(files),
            produced=tuple(produced),
            stopped_by=stopped_by,
            skipped=tuple(skipped),
            torn=torn,
            has_bytes_after=has_bytes_after,
            last=last,
        )


def _last_of(rows: pa.Table) -> Written:
    """The last record. The rows are in log order, but for those of inner batches, which come last."""
    places = rows.column("commit_log_offset")
    begin = pc.max(places).as_py()
    return Written(begin, begin + rows.column("store_size")[pc.index(places, begin).as_py()].as_py())


def _too_many_files(task: ImportTask) -> str:
    return (
        f"{task.file.name} would become more than {PARTS_PER_FILE} files: its store times fall on too many days, or it is "
        "damaged in too many places. Nothing was changed; restore the file, or import a copy of the store without it with "
        "--salvage"
    )


def _parsed(
    job: ImportJob, data: bytes, start: int, file_end: int, skipped: list[Skipped]
) -> Iterator[pa.Table | Stop]:
    """The records of some bytes, in tables of about PART_BYTES, and as the last item why they end. ``skipped`` gets those of
    several messages that a salvage leaves out, because no client takes them apart."""
    delays_ms = dict(enumerate(job.levels.delays_ms, 1))
    batches: list[pa.RecordBatch] = []
    part_bytes = 0
    for item in record_batches(data, start, file_end, delay_levels=delays_ms, max_body_bytes=job.max_body_bytes):
        if isinstance(item, pa.RecordBatch):
            item, refused = with_inner_messages(item, delays_ms)
            if refused and not job.salvage:  # the records before it are not imported either
                hint = "No checksum covers its flags and properties; --salvage leaves it out"
                yield Unsupported(refused[0].begin, f"{refused[0].reason}. {hint}")
                return
            skipped += refused
            if item.num_rows:
                batches.append(item)
                part_bytes += item.nbytes
        if batches and (part_bytes >= PART_BYTES or not isinstance(item, pa.RecordBatch)):
            table = pa.Table.from_batches(batches)
            batches, part_bytes = [], 0
            yield table
    yield item
