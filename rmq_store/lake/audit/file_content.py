"""The content of one data file, read once: its bytes, and for files of messages and of acked keys each row.

A file is judged by itself here. What needs two files (a copy and its message, a window and its messages) is returned as
small sums, which ``full.py`` compares.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.admin.redrive_edits import OWNED
from rmq_store.commit.ctl import is_born_here
from rmq_store.consumer.timer import SECONDS, SLOT_MS, TICK_MS, WHEEL_QUEUES
from rmq_store.errors import RmqError
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.audit.edits import EditedLetters, edited_contents
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.read.filter import matching
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import MapLookup
from rmq_store.lake.table.edited_rows import columns_of
from rmq_store.lake.table.evidence import hashes
from rmq_store.lake.table.key_filters import KEYS, WORDS, key_words
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.tags_codes import tags_codes
from rmq_store.lake.window.window_keys import text_hashes
from rmq_store.log.record import MESSAGE_MAGIC_V1
from rmq_store.message.java_text import parse_number
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import KEY_SEPARATOR, SCHEDULE_TOPIC, TIMER_TOPIC, MessageConst
from rmq_store.message.sys_flag import MessageSysFlag
from rmq_store.window.deliver import CAUSE as DELIVERED

Column = TypeVar("Column", pa.Array, pa.ChunkedArray)
Numbers = npt.NDArray[np.int64]
Sums = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_WORDS_TYPE = pa.list_(pa.string())
BATCH_ROWS = 10_000
MESSAGE_KINDS = ("msg", "archive")
_MOST_PLACES = 10
"""So many ranges of messages are named for a kind of problem in a file; one more counts the rest."""
_CRC_BITS = 0x7FFFFFFF
"""A broker stores a CRC without its sign (``UtilAll#crc32``)."""

PLACE = ("topic", "broker_name", "queue_id")
_TIMES = ("min_store_timestamp", "max_store_timestamp")
SEGMENTS = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_name", pa.string()),
        ("queue_id", pa.int32()),
        ("base_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("first_row", pa.int64()),
        *(tables.CONSUMEQUEUE.field(name) for name in ("deliver_at", *_TIMES, "tags_codes")),
        ("trimmed", pa.bool_()),
        *tables.KEYS[:3],
    ]
)
"""The segments of a file, by row. ``trimmed``: messages may have been removed from its begin, so that its times may be those of
more messages. ``commit_id``, ``part`` and ``rel``, of its first row, are null in one that a compaction has written: its rows
keep those of the commits before. Of an archive they are known (``archive.py``)."""

BIRTHS = pa.schema([tables.CTL.field(name) for name in ("commit_id", "store_timestamp")])
"""When commits were made that gave their messages their own time, by commit id."""

_SUMS = (
    pa.field("key", pa.int64()),
    pa.field("body", pa.int64()),
    pa.field("properties", pa.uint64()),
    pa.field("kept", pa.uint64()),
)
"""``key``: the CRC of the unique key, -1 without one; ``body``: that of the body, and in the upper bits its size;
``properties``: as ``property_sums``; ``kept``: of the columns ``_KEPT``."""

ORIGINALS = pa.schema(
    [
        *(tables.MSG.field(name) for name in PLACE),
        ("queue_offset", pa.int64()),
        *_SUMS,
        *(tables.MSG.field(name) for name in ("reconsume_times", "epoch")),
        ("edited_body", pa.int64()),
        ("edited_properties", pa.uint64()),
        ("edited_kept", pa.uint64()),
        ("real_topic", pa.string()),
        ("real_queue_id", pa.string()),
    ]
)
"""Messages that copies name. ``edited_*``: the sums after the edits of a redrive, null where these do not apply; ``real_*``:
the properties REAL_TOPIC and REAL_QID."""

_ORIGIN = ("origin_topic", "origin_broker_name", "origin_queue_id", "origin_queue_offset")
COPIES = pa.schema(
    [
        *(tables.MSG.field(name) for name in (*_ORIGIN, "cause", "group_name", *PLACE)),
        ("queue_offset", pa.int64()),
        *_SUMS,
        *(tables.MSG.field(name) for name in ("reconsume_times", "attempt", "epoch")),
        ("of_commit", pa.uint64()),
        ("tries", pa.string()),
    ]
)
"""Copies, with the place of the message that each names, and the same sums. ``of_commit``: the sum of the columns OF_COMMIT, of
a delivered one OF_DELIVERY; ``tries``: the property RECONSUME_TIME."""

OF_DELIVERY = ("group_name", "pass", "window_id")
OF_COMMIT = (*OF_DELIVERY, "epoch", "commit_id", *_ORIGIN[:-1])
"""What a commit gives its copies of the messages of a queue. A delivery gives less: its copies keep their epoch."""

_KEPT = ("magic", "sys_flag", "flag", "born_timestamp")
"""What a copy has of its message, besides what its body and its properties show."""
_OF_COPIES = ("group_name", "pass", *_ORIGIN, "cause", "attempt", "window_id", "epoch")
"""What other messages do not have."""
_AS_SENT = {"magic": MESSAGE_MAGIC_V1, "sys_flag": 0, "flag": 0, "reconsume_times": 0}
"""What every message has that was sent here."""

_COLUMNS = [
    "commit_id", "part", "rel", *PLACE, "queue_offset", "unique_key", "keys", "tags", "tags_code",
    "stored_body_size", "body_crc", *_KEPT, "reconsume_times", "store_timestamp", "deliver_at", *_OF_COPIES,
    "properties", "body", WORDS,
]  # fmt: skip

_OF_PROPERTIES = {
    "unique_key": MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    "keys": MessageConst.KEYS,
    "tags": MessageConst.TAGS,
}
"""Columns that repeat a property."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter, as the record of a window has it."""

    topic: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """Rows ``[begin, end)`` of a file to which windows applied one filter. ``numbers``: those of the windows' ranges."""

    expression: Expression
    begins: Numbers
    ends: Numbers
    numbers: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentJob:
    """What all tasks have in common."""

    root: Root
    table: str
    """The path of the commit log below the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentTask:
    """A file to read."""

    path: str
    kind: str
    sha256: str | None
    """By the commit that wrote it, hex; None: it recorded none."""
    segments: pa.Table = field(default_factory=SEGMENTS.empty_table)
    births: pa.Table = field(default_factory=BIRTHS.empty_table)
    """The commits of the rows that a compaction has moved here (schema BIRTHS)."""
    origins: Mapping[MessageQueue, Numbers] = field(default_factory=dict)
    """The offsets that copies name, ascending."""
    filters: tuple[FilteredRows, ...] = ()
    edits: tuple[EditedLetters, ...] = ()
    """What redrives have changed in the copies of its messages."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Messages of a queue whose rows are wrong; without a queue: rows that are in none."""

    problem: Problem
    queue: MessageQueue | None
    begin: int | None = None
    end: int | None = None
    detail: str | None = None
    group: str | None = None
    """That acked the messages, where the rows are their keys."""


_Kind = tuple[Problem, str | None]
"""A problem, and the column that shows it where the problem does not say so."""
_OF_TAGS_CODES: _Kind = (Problem.PROPERTIES_DIFFER, "tags_codes")
_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True, kw_only=True)
class FileContent:
    """What a file has."""

    path: str
    rows: int = 0
    changed: str | None = None
    """The SHA-256 of the bytes, where the commit recorded another one."""
    error: str | None = None
    """Why not all could be read."""
    missing: bool = False
    problems: list[RowProblem] = field(default_factory=list)
    copies: list[pa.Table] = field(default_factory=list)
    originals: list[pa.Table] = field(default_factory=list)
    filtered: list[tuple[Numbers, Numbers, Sums]] = field(default_factory=list)
    """For ranges of windows, by their numbers: how many of the file's messages do not match, and their hash sum."""


ORIGIN = pa.schema([tables.MSG.field(name) for name in _ORIGIN])
"""The place of the message that a copy names."""


def read_origins(job: ContentJob, path: str, attempt: str) -> pa.Table:
    """Which messages the copies of a file name, each once; none where the file cannot be read, which ``read_content`` says. A
    copy that lacks a part of the place names none: ``compare_copies`` reports it."""
    try:
        with pq.ParquetFile(job.root.open_file(f"{job.table}/{path}")) as file:
            rows = file.read(columns=ORIGIN.names, use_threads=False)
        return rows.drop_null().group_by(ORIGIN.names).aggregate([]).cast(ORIGIN)
    except (pa.ArrowException, RmqError, OSError, ValueError, KeyError):
        return ORIGIN.empty_table()


def read_content(job: ContentJob, task: ContentTask, attempt: str) -> FileContent:
    """Read the file. A file that cannot be read is a result too."""
    content = FileContent(path=task.path)
    try:
        data = job.root.read(f"{job.table}/{task.path}")
        sha256 = hashlib.sha256(data).hexdigest()
        if task.sha256 not in (None, sha256):
            content.changed = sha256
        _read_rows(task, data, content)
    except FileNotFoundError:
        content.missing = True
    except (pa.ArrowException, RmqError, OSError, ValueError, KeyError) as error:
        # Damaged bytes raise what they happen to mean.
        content.error = f"{type(error).__name__}: {error}"
    return content


def _read_rows(task: ContentTask, data: bytes, content: FileContent) -> None:
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        names = file.schema_arrow.names
        if task.kind not in MESSAGE_KINDS:
            _read_others(task, file, content)
            return
        wrong: dict[_Kind, list[tuple[Numbers, Numbers]]] = {}
        columns = [name for name in _COLUMNS if name in names]
        has_filters, values = _has_filters(file.metadata), _SegmentValues(task.segments)
        for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
            rows = _Rows(batch, content.rows, task, has_filters)
            for kind, mask in (*rows.problems(), *values.problems(rows)):
                wrong.setdefault(kind, []).append((rows.numbers[mask], rows.offsets[mask]))
            content.copies += rows.copies()
            content.originals += rows.originals()
            content.filtered += rows.filtered()
            content.rows += batch.num_rows
        for kind, numbers, offsets in values.of_all_rows(content.rows):
            wrong.setdefault(kind, []).append((numbers, offsets))
        if task.kind == "archive":
            content.problems += _other_number(task, content.rows)
        for kind, parts in wrong.items():
            content.problems += _places(task, kind, *map(np.concatenate, zip(*parts, strict=True)))


def _read_others(task: ContentTask, file: pq.ParquetFile, content: FileContent) -> None:
    """Rows that are no messages."""
    wrong = 0
    for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
        content.rows += batch.num_rows
        if task.kind == "key":
            rows = batch.filter(pa.array(_other_hashes(batch)))
            wrong += rows.num_rows
            content.problems += map(_of_key, rows.slice(0, _MOST_PLACES - len(content.problems)).to_pylist())
    if wrong > _MOST_PLACES:
        detail = f"and {wrong - _MOST_PLACES:,} more acked keys of the file"
        content.problems.append(RowProblem(Problem.KEY_DIFFERS, None, detail=detail))


def _other_hashes(keys: pa.RecordBatch) -> Mask:
    """Acked keys of which the hash is not that of the text. Windows find a key by its hash, and then compare the texts."""
    texts, stored = keys.column("key_text"), keys.column("key_hash")
    wrong: Mask = text_hashes(pc.fill_null(texts, "")) != np.asarray(pc.fill_null(stored, 0), np.int64)
    wrong |= np.asarray(pc.or_(pc.is_null(texts), pc.is_null(stored)))
    return wrong


def _of_key(row: Mapping[str, Any]) -> RowProblem:
    """``row``: of an acked key."""
    offset = row["queue_offset"]
    end = None if offset is None else offset + 1
    detail = f"acked by the window {row['commit_id']}"
    return RowProblem(Problem.KEY_DIFFERS, tables.queue_of_row(row), offset, end, detail, row["group_name"])


def _has_filters(metadata: pq.FileMetaData) -> bool:
    """Whether a search for a key looks into the filters of the file: then it passes over single keys that are not there."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return any(chunk.path_in_schema == KEYS and chunk.bloom_filter_offset is not None for chunk in chunks)


class _Rows:
    """Neighbouring rows of a file. ``has_filters``: as ``_has_filters``."""

    def __init__(self, batch: pa.RecordBatch, first: int, task: ContentTask, has_filters: bool) -> None:
        self.batch = batch
        self._task = task
        self._has_words = has_filters or WORDS in batch.schema.names
        segments = task.segments
        self.numbers: Numbers = np.arange(first, first + batch.num_rows)
        firsts = segments.column("first_row").to_numpy()
        bases, ends = segments.column("base_offset").to_numpy(), segments.column("end_offset").to_numpy()
        self.of_segment: Numbers = np.searchsorted(firsts, self.numbers, side="right") - 1
        if len(firsts):
            at = np.maximum(self.of_segment, 0)
            self.offsets: Numbers = bases[at] + self.numbers - firsts[at]
            self.placed: Mask = (self.of_segment >= 0) & (self.offsets < ends[at])
        else:
            self.offsets = np.asarray(pc.fill_null(self.column("queue_offset"), -1), np.int64)
            self.placed = np.zeros(batch.num_rows, np.bool_)
        names = self.column("broker_name").dictionary_encode()
        of_names = pa.array([is_born_here(name) for name in names.dictionary.to_pylist()], pa.bool_())
        self._born_here: Mask = np.asarray(pc.fill_null(of_names.take(names.indices), False))
        self._copied: Mask = np.asarray(pc.is_valid(self.column("origin_topic")))
        self._sent: Mask = self._born_here & ~self._copied
        self._property = MapLookup(self.column("properties"))
        self._crcs: Numbers = np.fromiter(
            (zlib.crc32(body or b"") for body in self.column("body").to_pylist()), np.int64, batch.num_rows
        )

    def column(self, name: str) -> pa.Array:
        """A column; files of older versions lack some, and those without several keys in a row the single keys."""
        if name in self.batch.schema.names:
            return self.batch.column(name)
        return pa.nulls(self.batch.num_rows, _WORDS_TYPE if name == WORDS else tables.MSG.field(name).type)

    # --- what is wrong with a row ---

    def problems(self) -> Iterator[tuple[_Kind, Mask]]:
        for problem, column, mask in (
            (Problem.MESSAGE_ELSEWHERE, None, self._elsewhere()),
            (Problem.BODY_DIFFERS, None, self._bodies()),
            (Problem.PROPERTIES_DIFFER, None, self._properties()),
            *((Problem.MESSAGE_DIFFERS_FROM_COMMIT, *differing) for differing in self._of_commit()),
        ):
            if mask.any():
                yield (problem, column), mask

    def _elsewhere(self) -> Mask:
        """Rows whose queue or offset is not that of their segment. Until a message that was born here is moved to another file,
        it has no offset but its row number."""
        wrong = np.zeros(self.batch.num_rows, np.bool_)
        if not self.placed.any():
            return wrong
        for name in PLACE:
            wrong |= _differ(self.column(name), self._by_segment(name))
        offsets, firsts = self.column("queue_offset"), self._by_segment("rel")
        is_known = np.asarray(pc.is_valid(firsts))
        by_number = np.asarray(pc.is_null(offsets)) & is_known & (self._task.kind != "archive")
        wrong |= (np.asarray(pc.fill_null(offsets, -1), np.int64) != self.offsets) & ~by_number
        numbers = self.numbers - self._task.segments.column("first_row").to_numpy()[np.maximum(self.of_segment, 0)]
        wrong |= _differ(self.column("rel"), pc.add(firsts, pa.array(numbers))) & is_known
        return wrong & self.placed

    def _by_segment(self, name: str) -> pa.Array:
        """What the segment of each row says."""
        at = pa.array(np.maximum(self.of_segment, 0))
        return self._task.segments.column(name).combine_chunks().take(at)

    def _of_commit(self) -> Iterator[tuple[str, Mask]]:
        """The columns that differ from what the commit of the row says. What it says of copies is compared in ``copies.py``."""
        if self.placed.any():
            for name in ("commit_id", "part"):
                expected = self._by_segment(name)
                if expected.null_count < len(expected):
                    is_known = np.asarray(pc.is_valid(expected))
                    yield name, _differ(self.column(name), expected) & is_known & self.placed
            of_another, at_another_time = self._of_other_births()
            yield "commit_id", of_another
            yield "store_timestamp", self._stored() & self.placed | at_another_time
            yield "deliver_at", self._due() & self.placed
        for name in _OF_COPIES:
            if self.column(name).null_count < self.batch.num_rows:
                yield name, np.asarray(pc.is_valid(self.column(name))) & ~self._copied
        if self._sent.any():
            for name, value in _AS_SENT.items():
                yield name, np.asarray(pc.fill_null(pc.not_equal(self.column(name), value), True)) & self._sent

    def _stored(self) -> Mask:
        """Rows that were stored before or after their segment. Until a message that was born here is moved to another file,
        only the segment has the time."""
        stored, moved = self.column("store_timestamp"), pc.is_valid(self.column("queue_offset"))
        least, greatest = (self._by_segment(name) for name in _TIMES)
        outside = pc.fill_null(pc.or_(pc.less(stored, least), pc.greater(stored, greatest)), False)
        return np.asarray(pc.or_(outside, pc.and_(moved, pc.is_null(stored))))

    def _of_other_births(self) -> tuple[Mask, Mask]:
        """Rows that a compaction has moved here and that were born here: those whose commit made no messages, and those that
        were stored at another time than their commit. Their segment has only the least and the greatest time of several
        commits."""
        nowhere = np.zeros(self.batch.num_rows, np.bool_)
        moved = pc.and_(pc.is_valid(self.column("queue_offset")), pc.is_null(self._by_segment("commit_id")))
        checked = np.asarray(moved) & self._born_here & self.placed
        if not checked.any():
            return nowhere, nowhere
        births = self._task.births.combine_chunks()
        at = pc.index_in(self.column("commit_id"), births.column("commit_id"))
        differs = pc.not_equal(
            self.column("store_timestamp"), births.column("store_timestamp").combine_chunks().take(at)
        )
        return np.asarray(pc.is_null(at)) & checked, np.asarray(pc.fill_null(differs, False)) & checked

    def _due(self) -> Mask:
        """Rows that are due at another time than their segment. Until a message that was born here is moved to another file,
        only the segment has the time. Those of a broker's level queue have times of their own, the segment has the least."""
        due, of_segment = self.column("deliver_at"), self._by_segment("deliver_at")
        if due.null_count == of_segment.null_count == len(due):
            return np.zeros(len(due), np.bool_)
        moved = pc.is_valid(self.column("queue_offset"))
        wrong = _differ(due, pc.if_else(moved, of_segment, None))
        in_level = self._in_level_queue & ~self._born_here
        early = np.asarray(pc.fill_null(pc.less(due, of_segment), pc.is_valid(of_segment)))
        return np.where(in_level, early, wrong) | self._in_another_slot(of_segment)

    def _in_another_slot(self, of_segment: pa.Array) -> Mask:
        """Messages in the wheel of the timer that are due outside the second, or the 256 s, of their segment. ``of_segment``:
        when it is due."""
        wrong = np.zeros(self.batch.num_rows, np.bool_)
        is_timed = pc.and_(pc.equal(self.column("topic"), TIMER_TOPIC), pc.less(self.column("queue_id"), WHEEL_QUEUES))
        rows = np.flatnonzero(np.asarray(pc.fill_null(is_timed, False)) & self._born_here)
        if len(rows):
            texts = self._property.last(MessageConst.TIMER_OUT_MS).take(pa.array(rows)).dictionary_encode()
            numbers = [None if text is None else parse_number(text, 64) for text in texts.dictionary.to_pylist()]
            due = np.asarray(pc.fill_null(pa.array(numbers, pa.int64()).take(texts.indices), 0), np.int64) + TICK_MS
            queue_ids = np.asarray(self.column("queue_id"))[rows]
            slots = due - due % np.where(queue_ids < SECONDS, TICK_MS, SLOT_MS)
            wrong[rows] = slots != np.asarray(pc.fill_null(of_segment, -1), np.int64)[rows]
        return wrong

    @property
    def _in_level_queue(self) -> Mask:
        return np.asarray(pc.fill_null(pc.equal(self.column("topic"), SCHEDULE_TOPIC), False))

    def _bodies(self) -> Mask:
        """Bodies of which the CRC is not that of the message. That of a compressed body is of other bytes."""
        flags = np.asarray(pc.fill_null(self.column("sys_flag"), 0), np.int64)
        stored = np.asarray(pc.fill_null(self.column("stored_body_size"), 0), np.int64)
        expected = np.asarray(pc.fill_null(self.column("body_crc"), -1), np.int64)
        checked = (flags & MessageSysFlag.COMPRESSED_FLAG == 0) & (stored > 0) & (expected >= 0) | self._sent
        wrong: Mask = checked & (self._crcs & _CRC_BITS != expected)
        return wrong

    def _properties(self) -> Mask:
        wrong = np.zeros(self.batch.num_rows, np.bool_)
        for name, key in _OF_PROPERTIES.items():
            for value in (self._property.first(key), self._property.last(key)):  # nothing writes a name twice
                wrong |= _differ(self.column(name), value)
        return wrong | self._tags_codes() | self._key_words()

    def _key_words(self) -> Mask:
        """Single keys that are not those of KEYS: of the same text as many."""
        wrong = np.zeros(self.batch.num_rows, np.bool_)
        if self._has_words:
            stored, expected = self.column(WORDS), key_words(self.column("keys"))
            for value in (pc.list_value_length, lambda words: pc.binary_join(words, KEY_SEPARATOR)):
                wrong |= _differ(value(stored), value(expected))
        return wrong

    def _tags_codes(self) -> Mask:
        """Tags codes that are not those of the tags, or of an entry in a broker's level queue not the time of its delivery."""
        codes = self.column("tags_code")
        wrong = _differ(codes, tags_codes(self.column("tags")))
        in_level = self._in_level_queue & ~self._born_here
        if in_level.any():
            due = pc.fill_null(pc.not_equal(codes, self.column("deliver_at")), False)
            wrong = np.where(in_level, np.asarray(due), wrong)
        return wrong

    # --- what is compared with other files ---

    def copies(self) -> list[pa.Table]:
        mask = self._copied & self.placed
        if not mask.any():
            return []
        rows = pa.array(np.flatnonzero(mask))
        columns = {name: self.column(name).take(rows) for name in COPIES.names if name in tables.MSG.names}
        columns["tries"] = self._property.last(MessageConst.RECONSUME_TIME).take(rows)
        of_commit, of_delivery = (
            sums_of([self.column(name).take(rows) for name in names]) for names in (OF_COMMIT, OF_DELIVERY)
        )
        is_delivered = np.asarray(pc.fill_null(pc.equal(columns["cause"], DELIVERED), False))
        columns["of_commit"] = pa.array(np.where(is_delivered, of_delivery, of_commit))
        return [pa.table(columns | self._sums(mask), schema=COPIES)]

    def originals(self) -> list[pa.Table]:
        mask = self._named()
        if not mask.any():
            return []
        rows = pa.array(np.flatnonzero(mask))
        columns = {name: self.column(name).take(rows) for name in (*PLACE, "reconsume_times", "epoch")}
        columns["real_topic"] = self._property.last(MessageConst.REAL_TOPIC).take(rows)
        columns["real_queue_id"] = self._property.last(MessageConst.REAL_QUEUE_ID).take(rows)
        columns |= self._sums(mask)
        columns |= self._after_edits(np.flatnonzero(mask), columns)
        return [pa.table([columns[name] for name in ORIGINALS.names], schema=ORIGINALS)]

    def _after_edits(self, rows: Numbers, sums: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The sums of some rows after the edits of a redrive. ``sums``: before them."""
        bodies, properties = np.array(sums["body"], np.int64), np.array(sums["properties"], np.uint64)
        kept, applies = np.array(sums["kept"], np.uint64), np.ones(len(rows), np.bool_)
        for one in self._task.edits:
            is_edited = one.has(self.offsets[rows])
            for name in PLACE:
                of_queue = pc.fill_null(pc.equal(self.column(name), getattr(one.queue, name)), False)
                is_edited &= np.asarray(of_queue)[rows]
            if is_edited.any():
                messages = pa.table({name: self.column(name) for name in columns_of(one.edits)})
                edited = edited_contents(messages.take(pa.array(rows[is_edited])), one.edits)
                applies[is_edited] = [content is not None for content in edited]
                maps = [content and list(content.properties.items()) for content in edited]
                properties[is_edited] = property_sums(pa.array(maps, tables.MSG.field("properties").type))
                if one.edits.of_body:
                    texts = [(content and content.body) or b"" for content in edited]
                    before = bodies[is_edited]
                    bodies[is_edited] = [len(text) << 32 | zlib.crc32(text) for text in texts]
                    plain = pc.bit_wise_and(self.column("sys_flag"), ~MessageSysFlag.COMPRESSED_FLAG)
                    kept[is_edited] = np.where(
                        bodies[is_edited] != before, self._kept(rows[is_edited], plain), kept[is_edited]
                    )
        return {
            "edited_body": pa.array(bodies, mask=~applies),
            "edited_properties": pa.array(properties, mask=~applies),
            "edited_kept": pa.array(kept, mask=~applies),
        }

    def _named(self) -> Mask:
        """Rows of messages that copies name."""
        named = np.zeros(self.batch.num_rows, np.bool_)
        origins = self._task.origins
        if not origins:
            return named
        keys = pa.table({name: self.column(name) for name in PLACE}).append_column("row", pa.array(self.numbers))
        for group in keys.group_by(list(PLACE)).aggregate([("row", "list")]).to_pylist():
            offsets = origins.get(tables.queue_of_row(group))
            if offsets is not None:
                rows = np.array(group["row_list"]) - self.numbers[0]
                named[rows] = np.isin(self.offsets[rows], offsets)
        return named & self.placed

    def _sums(self, mask: Mask) -> dict[str, pa.Array]:
        rows = pa.array(np.flatnonzero(mask))
        sizes = np.asarray(pc.fill_null(pc.binary_length(self.column("body")), 0), np.int64)
        texts = self.column("unique_key").take(rows).to_pylist()
        return {
            "queue_offset": pa.array(self.offsets[mask]),
            "key": pa.array([-1 if text is None else zlib.crc32(text.encode()) for text in texts], pa.int64()),
            "body": pa.array((sizes << 32 | self._crcs)[mask]),
            "properties": pa.array(property_sums(self.column("properties").take(rows))),
            "kept": pa.array(self._kept(np.flatnonzero(mask), self.column("sys_flag"))),
        }

    def _kept(self, rows: Numbers, flags: pa.Array) -> Sums:
        """The sums of the columns ``_KEPT``. ``flags``: of all rows, as ``sys_flag``."""
        columns = (flags if name == "sys_flag" else self.column(name) for name in _KEPT)
        return sums_of([column.take(pa.array(rows)) for column in columns])

    def filtered(self) -> Iterator[tuple[Numbers, Numbers, Sums]]:
        first, count = int(self.numbers[0]), self.batch.num_rows
        for several in self._task.filters:
            begins, ends = (np.clip(rows - first, 0, count) for rows in (several.begins, several.ends))
            touched = begins < ends
            if not touched.any():
                continue
            expression = several.expression
            mask = matching(self.batch, build_subscription_data(expression.topic, expression.text, expression.kind))
            others = np.zeros(count, np.bool_) if mask is None else ~mask
            counts = np.concatenate([[0], np.cumsum(others)])
            sums = np.concatenate([[np.uint64(0)], np.cumsum(np.where(others, hashes(self.offsets), np.uint64(0)))])
            begins, ends = begins[touched], ends[touched]
            yield several.numbers[touched], counts[ends] - counts[begins], sums[ends] - sums[begins]


class _SegmentValues:
    """What the segments of a file say of all their rows: from when to when these were stored, when the first is due, and which
    tags codes they have. ``segments``: of the file."""

    def __init__(self, segments: pa.Table) -> None:
        self._segments = segments
        codes = segments.column("tags_codes").combine_chunks()
        self._has_codes: Mask = np.asarray(pc.is_valid(codes))
        pairs = pc.list_parent_indices(codes).to_pylist(), pc.list_flatten(codes).to_pylist()
        self._codes = set(zip(*pairs, strict=True))
        self._least, self._due = (np.full(len(segments), _NEVER) for _ in range(2))
        self._greatest = np.full(len(segments), -_NEVER)

    def problems(self, rows: _Rows) -> Iterator[tuple[_Kind, Mask]]:
        """What is wrong with rows that are the next ones of the file: a tags code that their segment does not list, so that
        readers of this tag pass over them."""
        if not rows.placed.any():
            return
        placed = rows.of_segment[rows.placed]
        for reduce_at, values, name in (
            (np.minimum.at, self._least, "store_timestamp"),
            (np.maximum.at, self._greatest, "store_timestamp"),
            (np.minimum.at, self._due, "deliver_at"),
        ):
            column = rows.column(name).filter(pa.array(rows.placed))
            if column.null_count < len(column):
                is_known = np.asarray(pc.is_valid(column))
                reduce_at(values, placed[is_known], np.asarray(column.drop_null(), np.int64))
        listed = rows.placed & self._has_codes[np.maximum(rows.of_segment, 0)]
        if listed.any():
            pairs = pa.table({"segment": rows.of_segment, "code": rows.column("tags_code")})
            distinct = pairs.filter(pa.array(listed)).group_by(pairs.column_names, use_threads=False).aggregate([])
            others = set(zip(*distinct.to_pydict().values(), strict=True)) - self._codes
            if others:
                each = zip(*pairs.to_pydict().values(), strict=True)
                yield _OF_TAGS_CODES, np.array([pair in others for pair in each]) & listed

    def of_all_rows(self, rows: int) -> Iterator[tuple[_Kind, Numbers, Numbers]]:
        """The row numbers and the offsets of segments that begin or end at another time than their rows, once all were read; a
        trimmed one may. One that was born here is due as a whole, which the rows show. ``rows``: of the file."""
        segments = self._segments
        trimmed = np.asarray(pc.fill_null(segments.column("trimmed"), False))
        names = segments.column("broker_name").to_pylist()
        in_level = np.asarray(pc.fill_null(pc.equal(segments.column("topic"), SCHEDULE_TOPIC), False))
        waits = in_level & ~np.array([is_born_here(name or "") for name in names], np.bool_)
        for name, values, checked in (
            (_TIMES[0], self._least, ~trimmed),
            (_TIMES[1], self._greatest, ~trimmed),
            ("deliver_at", self._due, ~trimmed & waits),
        ):
            recorded = np.asarray(pc.fill_null(segments.column(name), 0), np.int64)
            wrong = np.flatnonzero(checked & (np.abs(values) != _NEVER) & (values != recorded))
            if len(wrong):
                bounds = (
                    segments.column(column).to_numpy()[wrong] for column in ("first_row", "base_offset", "end_offset")
                )
                firsts, bases, ends = bounds
                counts = np.clip(ends - bases, 0, rows)  # a record that was changed may name more
                each = [np.arange(count) for count in counts.tolist()]
                starts = (np.repeat(of_first, counts) for of_first in (firsts, bases))
                numbers, offsets = (start + np.concatenate(each) for start in starts)
                yield (Problem.MESSAGE_DIFFERS_FROM_COMMIT, name), numbers, offsets


def sums_of(columns: Sequence[pa.Array]) -> Sums:
    """A hash of the values of each row, texts or numbers."""
    sums = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        if pa.types.is_string(column.type):
            encoded = column.dictionary_encode()  # neighbours often have the same
            column = pa.array(text_hashes(encoded.dictionary)).take(encoded.indices)
        sums = hashes(sums ^ np.asarray(pc.fill_null(column, -1), np.int64).view(np.uint64))
    return sums


def property_sums(maps: pa.Array) -> Sums:
    """For each message a hash of the properties that users set, in whatever order; 0 without one."""
    lists = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    entries = pc.list_flatten(lists)
    names = pc.struct_field(entries, "key").dictionary_encode()  # many messages have few names
    of_users = pc.invert(pc.is_in(names.dictionary, pa.array(sorted(OWNED)))).take(names.indices)
    keys = text_hashes(names.dictionary).view(np.uint64)[names.indices.filter(of_users)]
    values = text_hashes(pc.fill_null(pc.struct_field(entries, "value").filter(of_users), "")).view(np.uint64)
    sums = np.zeros(len(maps), np.uint64)
    np.add.at(sums, pc.list_parent_indices(lists).filter(of_users), hashes(keys ^ hashes(values)))
    return sums


def differ(left: Column, right: Column) -> Column:
    """Where two columns differ; two nulls do not."""
    return pc.or_(pc.fill_null(pc.not_equal(left, right), False), pc.xor(pc.is_null(left), pc.is_null(right)))


def _differ(left: pa.Array, right: pa.Array) -> Mask:
    return np.asarray(differ(left, right))


def _places(task: ContentTask, kind: _Kind, rows: Numbers, offsets: Numbers) -> list[RowProblem]:
    """The messages of some rows, as ranges of offsets."""
    problem, column = kind
    detail = f"of {column}" if column else None
    firsts, ends = task.segments.column("first_row").to_numpy(), task.segments.column("end_offset").to_numpy()
    of_segment = np.searchsorted(firsts, rows, side="right") - 1
    if not len(firsts):
        return [RowProblem(problem, None, detail=_joined(detail, f"{len(rows):,} rows, the first is row {rows[0]}"))]
    of_segment = np.where((of_segment < 0) | (offsets >= ends[of_segment]), -1, of_segment)
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(of_segment) != 0)) + 1
    runs = list(zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True))
    problems = []
    for begin, end in runs[:_MOST_PLACES]:
        number = int(of_segment[begin])
        if number < 0:
            problems.append(
                RowProblem(problem, None, detail=_joined(detail, f"rows [{rows[begin]}, {rows[end - 1] + 1})"))
            )
            continue
        segment = task.segments.slice(number, 1).to_pylist()[0]
        queue = tables.queue_of_row(segment)
        problems.append(RowProblem(problem, queue, int(offsets[begin]), int(offsets[end - 1]) + 1, detail))
    if len(runs) > _MOST_PLACES:
        rest = sum(end - begin for begin, end in runs[_MOST_PLACES:])
        problems.append(RowProblem(problem, None, detail=_joined(detail, f"and {rest:,} more messages of the file")))
    return problems


def _other_number(task: ContentTask, rows: int) -> Iterator[RowProblem]:
    """Of a file of the archive; that of another one is in the log, and ``segments.py`` compares it."""
    expected = pc.sum(pc.subtract(task.segments.column("end_offset"), task.segments.column("base_offset"))).as_py() or 0
    if rows != expected:
        detail = f"{rows:,} rows, by the records of commits {expected:,}"
        yield RowProblem(Problem.MESSAGE_ELSEWHERE, None, detail=detail)


def _joined(*facts: str | None) -> str:
    return "; ".join(filter(None, facts))
