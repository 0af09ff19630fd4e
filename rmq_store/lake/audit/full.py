"""``rmq audit --full``: reads every file once, and proves what the rows hold (docs/decisions/0018-digests.md).

- The bytes of each file are those that its commit wrote, and recorded once.
- Each row is at the place that its segment says, or of the archive what was moved there; its body has its CRC, its tags code is
  that of its tags and one of those of its segment, and its single keys are those of its KEYS.
- Each row has what its commit gave it: of a message when it was stored, where it was born here, and when it is due, of a copy
  also the pass, the window and the epoch. Each segment has the times of its rows: of a removed part it keeps them.
- A copy is the copy of the message that it names, with the edits of its redrive and the attempts that follow, and went
  where that message says.
- A window filtered the messages that do not match its subscription, and no others.
- The hash of an acked key is that of its text.
- The Delta library reads the logs of the tables as ``rmq`` does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import RmqError
from rmq_store.lake.audit import edits
from rmq_store.lake.audit.archive import TEXTS as OF_ARCHIVE
from rmq_store.lake.audit.archive import Archive, archive
from rmq_store.lake.audit.audit import UNREADABLE, passing_over, with_named_shards
from rmq_store.lake.audit.copies import COMMITS, compare_copies
from rmq_store.lake.audit.file_content import (
    BIRTHS,
    MESSAGE_KINDS,
    ORIGIN,
    PLACE,
    SEGMENTS,
    ContentJob,
    ContentTask,
    FileContent,
    Numbers,
    read_content,
    read_origins,
)
from rmq_store.lake.audit.filters import Filters
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.second_reader import second_reader
from rmq_store.lake.audit.segment_times import GIVES_TIME
from rmq_store.lake.audit.written_files import without_record
from rmq_store.lake.sql.sql import queries
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.table.tables import origin_of_row, queue_of_row
from rmq_store.lake.window.engine import Engine
from rmq_store.message.message import MessageQueue
from rmq_store.utils.progress import Progress

Task = TypeVar("Task")
Result = TypeVar("Result")


_FILES = """
SELECT f.shard, f.file, f.kind, f.num_rows, f.min_commit_id, f.max_commit_id, w.sha256, w.commit_id
FROM live_files f LEFT JOIN ctl_files w ON w.shard = f.shard AND w.path = f.file
WHERE f.kind IS DISTINCT FROM 'ctl' OR w.sha256 IS NOT NULL
ORDER BY f.shard, f.file
"""

_DIGESTS = f"""
SELECT f.shard, f.file, w.records FROM live_files f
JOIN (SELECT shard, path, count(*) AS records FROM ctl_files GROUP BY shard, path) w ON w.shard = f.shard AND w.path = f.file
WHERE w.records > 1
UNION ALL
SELECT DISTINCT shard, file, CAST(0 AS BIGINT) AS records
FROM ({without_record("(SELECT * FROM ctl_files WHERE sha256 IS NOT NULL)")}) n
"""
"""The files that several records name, and those without a digest that must have one. A file of records has its digest in its
name."""

_OF_COMMIT = (
    f"CASE WHEN action <> 'compact' THEN {column} END AS {name}"
    for column, name in (("commit_id", "commit_id"), ("part", "part"), ("first_row", "rel"))
)

_QUEUE = "shard, topic, broker_name, queue_id"
_TRIMMED = f"""coalesce(
    action = 'compact' AND ({_QUEUE}, base_offset) IN (SELECT ({_QUEUE}, end_offset) FROM ctl_removed), FALSE
)"""
"""A compaction leaves out the messages before the first offset of their queue, and the segment keeps its times."""

_SEGMENTS = f"""
SELECT shard, file, {", ".join(SEGMENTS.names[:-3])}, {", ".join(_OF_COMMIT)}
FROM (SELECT *, {_TRIMMED} AS trimmed FROM segments) s
WHERE (shard, file) IN (SELECT (shard, file) FROM live_files)
ORDER BY shard, file, first_row
"""

_BIRTHS = f"""
SELECT DISTINCT shard, {", ".join(BIRTHS.names)} FROM segments WHERE {GIVES_TIME} AND commit_id IS NOT NULL
ORDER BY shard, commit_id
"""

_LEAST = "SELECT shard, topic, broker_name, queue_id, value FROM positions WHERE kind = 'min'"


@dataclass(slots=True)
class FullReport:
    """What was read, and what it does not prove."""

    findings: list[Finding]
    files: int = 0
    rows: int = 0
    size: int = 0
    """bytes"""
    without_digest: int = 0
    """Files whose commits recorded no digest: those of an earlier version."""
    copies: int = 0
    copies_without_message: int = 0
    """Copies of messages that retention has removed."""
    ranges: int = 0
    """Ranges of windows with a known subscription."""
    ranges_not_checked: int = 0
    """Those of them whose messages are not all there any more, or whose filter is not known here."""

    def add(self, other: FullReport) -> None:
        for name in self.__slots__:
            value = getattr(other, name)
            setattr(self, name, getattr(self, name) + value)


def full(store: LakeStore, engine: Engine, progress: Progress | None = None) -> FullReport:
    """Read every file. Memory: per slot of the engine a file and 10,000 of its rows; and here about 170 bytes for each copy
    and 50 for each commit that made messages. ``progress`` counts bytes.

    What cannot be read is a finding. Raises only what ``engine`` raises for tasks that could not run.
    """
    report, store = FullReport([]), with_named_shards(store)
    report.findings += second_reader(store)
    try:
        texts = (
            _FILES, _DIGESTS, _SEGMENTS, _BIRTHS, Filters.QUERY, _LEAST, edits.COMMITS, edits.RANGES, COMMITS, *OF_ARCHIVE
        )  # fmt: skip
        answers = passing_over(store, report.findings, lambda: queries(store, texts))
        files, digests, segments, births, ranges, least, redrives, redriven, commits, *of_archive = answers
    except (RmqError, OSError, ValueError) as error:
        report.findings.append(Finding(shard="", problem=Problem.NOT_AUDITED, detail=f"contents of files: {error}"))
        return report
    sizes = {shard.name: _sizes(shard) for shard in store.shards()}
    total = sum(sum(of_shard.values()) for of_shard in sizes.values())
    for shard in store.shards():
        of_shard = pc.field("shard") == shard.name
        of_files = files.filter(of_shard).to_pylist()
        names = [row["file"] for row in of_files if row["kind"] == "archive"]
        try:
            archived = archive(shard.name, [answer.filter(of_shard) for answer in of_archive], names)
        except UNREADABLE as error:
            detail = f"the archive, as a record of a compaction or of retention was changed: {error}"
            report.findings.append(Finding(shard=shard.name, problem=Problem.NOT_AUDITED, detail=detail))
            archived, of_files = Archive({}, ()), [row for row in of_files if row["kind"] != "archive"]
        report.findings += archived.missing
        part = _ShardContent(
            shard,
            of_files,
            {**segments_by_file(segments.filter(of_shard)), **archived.segments},
            births.filter(of_shard).select(BIRTHS.names).cast(BIRTHS).combine_chunks(),
            _origins(shard, engine),
            Filters(ranges.filter(of_shard)),
            edits.edited_letters(redrives.filter(of_shard), redriven.filter(of_shard)),
            commits.filter(of_shard),
            {queue_of_row(row): row["value"] for row in least.filter(of_shard).to_pylist()},
            sizes[shard.name],
        )
        report.add(part.audited(engine, report.size, total, progress))
    for row in digests.to_pylist():
        report.without_digest -= not row["records"]  # not for the reason that the report gives
        report.findings.append(_of_digest(row))
    return report


def _of_digest(row: Mapping[str, Any]) -> Finding:
    """``row``: of the statement ``_DIGESTS``."""
    detail = f"{row['records']} records of it" if row["records"] else "no digest, and no earlier version wrote it"
    file = f"commitlog/{row['file']}"
    return Finding(shard=row["shard"], problem=Problem.DIGEST_NOT_RECORDED_ONCE, file=file, detail=detail)


def _sizes(shard: Shard) -> dict[str, int]:
    shard.commitlog.refresh_unless_fresh()
    files = shard.commitlog.files()
    return dict(zip(*(files.column(name).to_pylist() for name in ("path", "size_bytes")), strict=True))


def segments_by_file(segments: pa.Table) -> dict[str, pa.Table]:
    """The segments (schema SEGMENTS) by file. ``segments``: sorted by it, then by row. Each part is a copy: a task is pickled,
    and Arrow pickles a slice with the whole table."""
    files = segments.column("file").combine_chunks()
    runs = pc.run_end_encode(files) if len(files) else None
    ends = [] if runs is None else runs.run_ends.to_pylist()
    columns = segments.select(SEGMENTS.names).cast(SEGMENTS).combine_chunks()
    return {
        file: columns.take(pa.array(range(begin, end)))
        for file, begin, end in zip([] if runs is None else runs.values.to_pylist(), [0, *ends], ends, strict=False)
    }


def births_of(file: Mapping[str, Any], segments: pa.Table, births: pa.Table) -> pa.Table:
    """Those of the commits (schema BIRTHS, sorted) that the rows of a file can name, a copy: none where its segments say whose
    they are. ``file``: ``min_commit_id`` and ``max_commit_id`` by its statistics, None: not known."""
    if not segments.column("commit_id").null_count:
        return BIRTHS.empty_table()
    ids, least, greatest = births.column("commit_id"), file["min_commit_id"], file["max_commit_id"]
    begin = bisect_left(ids, least, key=pa.StringScalar.as_py) if least is not None else 0
    end = bisect_right(ids, greatest, key=pa.StringScalar.as_py) if greatest is not None else len(births)
    return births.take(pa.array(range(begin, end), pa.int64()))


def origins_of(segments: pa.Table, origins: Mapping[MessageQueue, Numbers]) -> dict[MessageQueue, Numbers]:
    """Those of the offsets that are in the segments of a file. ``origins``: by queue, ascending."""
    of_file: dict[MessageQueue, list[Numbers]] = {}
    for row in segments.to_pylist() if origins else ():
        offsets = origins.get(queue_of_row(row))
        if offsets is None:
            continue
        begin, end = np.searchsorted(offsets, [row["base_offset"], row["end_offset"]])
        if begin < end:
            of_file.setdefault(queue_of_row(row), []).append(offsets[begin:end])
    return {queue: np.concatenate(several) for queue, several in of_file.items()}


def _origins(shard: Shard, engine: Engine) -> dict[MessageQueue, Numbers]:
    """The offsets of each queue that copies name, ascending. Few columns of the files that have copies are read."""
    has_copies = pc.field("min.group_name").is_valid()
    kinds = pc.field("partition.kind").cast(pa.string()).isin(pa.array(MESSAGE_KINDS))
    paths = shard.commitlog.files(kinds & has_copies).column("path").to_pylist()
    job = ContentJob(root=shard.root, table=shard.commitlog.path)
    every = pa.concat_tables([ORIGIN.empty_table(), *(rows for rows in _in_rounds(engine, read_origins, job, paths))])
    *queue, offset = ORIGIN.names
    groups = every.group_by(queue).aggregate([(offset, "list")])
    return {origin_of_row(row): np.unique(row["origin_queue_offset_list"]) for row in groups.to_pylist()}


@dataclass(slots=True)
class _ShardContent:
    """The files of a shard, and what they must hold."""

    shard: Shard
    files: Sequence[Mapping[str, object]]
    segments: Mapping[str, pa.Table]
    births: pa.Table
    """Of the shard, as ``_BIRTHS``."""
    origins: Mapping[MessageQueue, Numbers]
    filters: Filters
    edited: Sequence[edits.EditedLetters]
    commits: pa.Table
    """As ``copies.COMMITS``."""
    least: Mapping[MessageQueue, int]
    sizes: Mapping[str, int]

    def audited(self, engine: Engine, before: int, total: int, progress: Progress | None) -> FullReport:
        """``before``: the bytes that were read of other shards, of ``total``."""
        report = FullReport([])
        copies: list[pa.Table] = []
        originals: list[pa.Table] = []
        failed: set[MessageQueue] = set()
        passed = 0
        job = ContentJob(root=self.shard.root, table=self.shard.commitlog.path)
        # Each file once, also if two commits list it: that is a finding of another part.
        tasks = list({str(row["file"]): self._task(row) for row in self.files}.values())
        for content in _in_rounds(engine, read_content, job, tasks):
            size = self.sizes.get(content.path, 0)
            passed += size
            if not content.missing:
                report.files += 1
                report.size += size
            report.rows += content.rows
            copies += content.copies
            originals += content.originals
            self.filters.add(content.filtered)
            findings = list(self._of_file(content))
            report.findings += findings
            if findings and content.path in self.segments:
                failed.update(map(queue_of_row, self.segments[content.path].to_pylist()))
            if progress:
                progress(before + passed, total)
        report.without_digest = sum(task.sha256 is None for task in tasks)
        compared = compare_copies(self.shard, copies, originals, self.commits, self.least, failed)
        report.findings += compared.findings
        report.copies, report.copies_without_message = compared.copies, compared.without_message
        report.findings += self.filters.findings(self.shard.name, self.least, failed)
        report.ranges, report.ranges_not_checked = len(self.filters), self.filters.not_checked(self.least)
        return report

    def _task(self, row: Mapping[str, object]) -> ContentTask:
        path, kind = str(row["file"]), str(row["kind"])
        segments = self.segments.get(path, SEGMENTS.empty_table())
        return ContentTask(
            path=path,
            kind=kind,
            sha256=None if row["sha256"] is None else str(row["sha256"]),
            segments=segments,
            births=births_of(row, segments, self.births),
            origins=origins_of(segments, self.origins),
            filters=() if kind == "archive" else self.filters.of_file(segments),  # of removed messages none is checked
            edits=edits.letters_of_file(segments, self.edited),
        )

    def _of_file(self, content: FileContent) -> Iterator[Finding]:
        shard, file = self.shard.name, f"commitlog/{content.path}"
        if content.missing:
            yield Finding(shard=shard, problem=Problem.FILE_MISSING, file=file)
        if content.error:
            yield Finding(shard=shard, problem=Problem.FILE_UNREADABLE, file=file, detail=content.error)
        if content.changed:
            detail = f"SHA-256 {content.changed}"
            yield Finding(
                shard=shard, problem=Problem.FILE_CHANGED, file=file, detail=detail, **self._only_place(content)
            )
        for one in content.problems:
            place: dict[str, Any] = {} if one.queue is None else asdict(one.queue)
            place |= {"group_name": one.group, "begin_offset": one.begin, "end_offset": one.end}
            yield Finding(shard=shard, problem=one.problem, file=file, detail=one.detail, **place)

    def _only_place(self, content: FileContent) -> dict[str, Any]:
        """The queue and the offsets of a file of one segment."""
        segments = self.segments.get(content.path)
        if segments is None or len(segments) != 1:
            return {}
        (row,) = segments.to_pylist()
        bounds = {"begin_offset": row["base_offset"], "end_offset": row["end_offset"]}
        return {name: row[name] for name in PLACE} | bounds


def _in_rounds(
    engine: Engine, read: Callable[[ContentJob, Task, str], Result], job: ContentJob, tasks: Sequence[Task]
) -> Iterator[Result]:
    """The results, round by round, so that progress can be shown and little is kept."""
    size = 1 if engine.slots == 1 else 4 * engine.slots
    for at in range(0, len(tasks), size):
        yield from engine(read, job, tasks[at : at + size])
