"""Every message has one place: the segments of a file name each of its rows once, and those of a queue each offset once.

Nothing but the log is read for it: the segments in the records of commits, the numbers of rows in the statistics, positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_store.commit.positions import max_id
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.written_files import without_record
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import Ask
from rmq_store.lake.table.import_parameters import misshaped
from rmq_store.lake.table.imports import CONTINUES
from rmq_store.lake.table.tables import json_object
from rmq_store.message.message import MessageQueue
from rmq_store.utils.times import format_time

Row = Mapping[str, Any]

_QUEUE = ("topic", "broker_name", "queue_id")

_FILES = """
SELECT f.shard, f.file, f.placed_rows, coalesce(n.placed, 0) AS named_rows, coalesce(n.breaks, 0) AS breaks,
    n.topic, n.broker_name, n.queue_id, n.begin_offset, n.end_offset
FROM live_files f
LEFT JOIN (
    SELECT shard, file, sum(end_offset - base_offset) AS placed,
        count(*) FILTER (WHERE first_row IS DISTINCT FROM coalesce(end_row, 0)) AS breaks,
        CASE WHEN min(topic) = max(topic) THEN min(topic) END AS topic,
        CASE WHEN min(broker_name) = max(broker_name) THEN min(broker_name) END AS broker_name,
        CASE WHEN count(DISTINCT (topic, broker_name, queue_id)) = 1 THEN min(queue_id) END AS queue_id,
        CASE WHEN count(DISTINCT (topic, broker_name, queue_id)) = 1 THEN min(base_offset) END AS begin_offset,
        CASE WHEN count(DISTINCT (topic, broker_name, queue_id)) = 1 THEN max(end_offset) END AS end_offset
    FROM (
        SELECT *, lag(first_row + end_offset - base_offset) OVER (
            PARTITION BY shard, file ORDER BY first_row, base_offset
        ) AS end_row
        FROM segments
    ) ordered
    GROUP BY shard, file
) n ON n.shard = f.shard AND n.file = f.file
WHERE f.kind = 'msg' AND (f.placed_rows <> coalesce(n.placed, 0) OR n.breaks > 0)
"""
"""A file whose rows the log does not say is a finding of ``files.py``."""

_REPLACED = """
SELECT f.shard, f.file, max(r.commit_id) AS commit_id FROM live_files f
JOIN ctl_replaced r ON r.shard = f.shard AND r.file = f.file
GROUP BY f.shard, f.file
"""
"""A compaction removes what it replaces in its own entry of the log, and no commit gives a file its name again. So no version
has a file that is both, whenever it is read. The segments from before the compaction name all rows of such a file."""

_NOT_LIVE = """
SELECT w.shard, w.path AS file, max(w.commit_id) AS commit_id FROM ctl_files w
ANTI JOIN live_files f ON f.shard = w.shard AND f.file = w.path
ANTI JOIN ctl_replaced r ON r.shard = w.shard AND r.file = w.path
ANTI JOIN segments s ON s.shard = w.shard AND s.file = w.path
GROUP BY w.shard, w.path
"""
"""Only a compaction takes files out of the table, also those that retention has emptied. A commit of an earlier version
recorded no files. What has segments is a finding of the view ``audit``."""

_NOT_RECORDED = f"""
SELECT DISTINCT shard, file, commit_id FROM ({without_record("ctl_files")}) n
WHERE kind IS DISTINCT FROM 'msg' OR placed_rows = 0
"""
"""What has rows in queues, or should have, is a finding of ``_FILES``."""

_RECORDED = f"""
SELECT f.shard, f.file, w.commit_id, TRUE AS listed, w.rows, w.size, f.num_rows, f.size_bytes FROM live_files f
JOIN ctl_files w ON w.shard = f.shard AND w.path = f.file
WHERE w.rows <> f.num_rows OR w.size <> f.size_bytes
    OR regexp_extract(f.file, '^kind=ctl/.*-([0-9a-f]{{32}})\\.parquet$', 1) NOT IN ('', left(w.sha256, 32))
UNION ALL
SELECT shard, file, commit_id, FALSE, NULL, NULL, NULL, NULL FROM ({without_record("ctl_files")}) n
WHERE (shard, file, commit_id) IN (SELECT (shard, file, commit_id) FROM segments)
"""
"""A file of records has the begin of its digest in its name (``digest_name.py``). A record without a value is a finding of
``files.py``, and so is a file of which the log says no number of rows. A file with segments is in the list of its commit."""

_CURRENT = """
SELECT *, max(end_offset) OVER (
    PARTITION BY shard, topic, broker_name, queue_id ORDER BY base_offset, end_offset, commit_id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
) AS covered_to
FROM segments ANTI JOIN ctl_replaced USING (shard, file)
"""

_OVERLAPS = f"""
SELECT shard, topic, broker_name, queue_id, file, base_offset AS begin_offset,
    least(end_offset, covered_to) AS end_offset, commit_id
FROM ({_CURRENT}) c WHERE base_offset < covered_to
"""

_FIRST = "(SELECT * FROM positions WHERE kind = 'min')"

_HOLES = f"""
SELECT * FROM (
    SELECT c.shard, c.topic, c.broker_name, c.queue_id,
        greatest(coalesce(c.covered_to, 0), coalesce(p.value, 0)) AS begin_offset, c.base_offset AS end_offset
    FROM ({_CURRENT}) c LEFT JOIN {_FIRST} p ON p.shard = c.shard AND p.topic = c.topic
        AND p.broker_name = c.broker_name AND p.queue_id = c.queue_id
) h WHERE begin_offset < end_offset
"""

_QUEUES = f"""
SELECT q.shard, q.topic, q.broker_name, q.queue_id, coalesce(max_offset, 0) AS max_offset,
    coalesce(p.value, 0) AS min_offset, first_base, last_end, current_end, coalesce(removed, FALSE) AS removed,
    coalesce(q.newest_ms, 0) AS newest_ms, written_ms, last_commit_id
FROM (
    SELECT shard, topic, broker_name, queue_id, max(max_offset) AS max_offset, min(first_base) AS first_base,
        max(last_end) AS last_end, max(current_end) AS current_end, bool_or(removed) AS removed,
        max(newest_ms) AS newest_ms, max(written_ms) AS written_ms, max(last_commit_id) AS last_commit_id
    FROM (
        SELECT shard, topic, broker_name, queue_id, value AS max_offset, NULL AS first_base, NULL AS last_end,
            NULL AS current_end, FALSE AS removed, updated_ms AS newest_ms, NULL AS written_ms, NULL AS last_commit_id
        FROM positions WHERE kind = 'max'
        UNION ALL
        SELECT shard, topic, broker_name, queue_id, NULL, min(base_offset), max(end_offset),
            max(CASE WHEN r.file IS NULL THEN end_offset END), FALSE, NULL,
            max_by(max_store_timestamp, CASE WHEN action <> 'compact' THEN end_offset END),
            max_by(commit_id, CASE WHEN action <> 'compact' THEN end_offset END)
        FROM segments s LEFT JOIN (SELECT DISTINCT shard, file FROM ctl_replaced) r USING (shard, file)
        GROUP BY shard, topic, broker_name, queue_id
        UNION ALL
        SELECT DISTINCT shard, topic, broker_name, queue_id, NULL, NULL, NULL, NULL, TRUE, NULL, NULL, NULL
        FROM ctl_removed
    ) each
    GROUP BY shard, topic, broker_name, queue_id
) q
LEFT JOIN {_FIRST} p ON p.shard = q.shard AND p.topic = q.topic AND p.broker_name = q.broker_name
    AND p.queue_id = q.queue_id
"""

_TIMES = """
SELECT shard, topic, broker_name, queue_id, commit_id, list(DISTINCT max_store_timestamp) AS times
FROM segments WHERE commit_id IN ({commits}) GROUP BY ALL
"""
"""An import cuts a queue by days, and the times of its messages may go back: any of its segments may have set the time."""

_DAYS = """
SELECT DISTINCT f.shard, f.file FROM (
    SELECT shard, file, store_day, unnest([min_commit_id, max_commit_id]) AS commit_id
    FROM live_files WHERE kind IN ('msg', 'outcome', 'key')
) f JOIN ctl c ON c.shard = f.shard AND c.commit_id = f.commit_id
WHERE c.action NOT IN ('import', 'salvage') AND CAST(epoch_ms(c.store_timestamp) AS DATE) <> f.store_day
"""
"""A commit gives its files its day, which a compaction keeps. An import has a file for each day of its messages. ``files.py``
finds a file without a day."""

_IMPORTS = "SELECT shard, action, parameters FROM ctl WHERE action IN ('import', 'salvage')"

_COPIES = """
SELECT shard, group_name, topic, broker_name, queue_id, origin_topic, origin_broker_name, origin_queue_id,
    origin_queue_offset, origin_queue_offset + 1 AS end_offset,
    substr(origin_broker_name, strpos(origin_broker_name, '~') + 1) AS waited_for
FROM msg
WHERE group_name = 'CID_RMQ_SYS_SCHEDULE' AND cause = 'deliver' AND origin_broker_name LIKE 'lake-%~_%'
    AND topic NOT IN ('SCHEDULE_TOPIC_XXXX', 'rmq_sys_wheel_timer')
    AND topic <> '%RETRY%' || substr(origin_broker_name, strpos(origin_broker_name, '~') + 1)
"""


TEXTS = (_FILES, _REPLACED, _NOT_LIVE, _NOT_RECORDED, _RECORDED, _OVERLAPS, _HOLES, _QUEUES, _DAYS, _IMPORTS, _COPIES)
"""The statements of ``segments``."""


def segments(ask: Ask) -> Iterator[Finding]:
    """Where rows have no place or several, where offsets have no message or several, where queues begin and end elsewhere
    than their messages, files that are of another day than their commits, those that a compaction had replaced, those that
    left the table otherwise, those that no commit wrote, and those that are not as their commits recorded them."""
    files, replaced, not_live, not_recorded, recorded, overlaps, holes, queues, days, imports, copies = (
        answer.to_pylist() for answer in ask(TEXTS)
    )
    yield from map(_of_file, files)
    for problem, verb, rows in (
        (Problem.REPLACED_FILE_LIVE, "replaced", replaced),
        (Problem.RECORDED_FILE_NOT_LIVE, "written", not_live),
    ):
        for row in rows:
            file, detail = f"commitlog/{row['file']}", f"{verb} by commit {row['commit_id']}"
            yield Finding(shard=row["shard"], problem=problem, file=file, detail=detail)
    for row in not_recorded:
        file = f"commitlog/{row['file']}"
        detail = (
            f"commit {row['commit_id']} wrote no such file" if row["commit_id"] else "its name is of no known commit"
        )
        yield Finding(shard=row["shard"], problem=Problem.FILE_NOT_RECORDED, file=file, detail=detail)
    yield from map(_of_recorded, recorded)
    for row in overlaps:
        yield _of_queue(row, Problem.SEGMENTS_OVERLAP, row["begin_offset"], row["end_offset"], row["file"])
    for row in days:
        file = f"commitlog/{row['file']}"
        yield Finding(shard=row["shard"], problem=Problem.STATISTICS_DIFFER, file=file, detail="of store_day")
    known = _known(imports)
    for row in holes:
        if not known.explain(row, row["begin_offset"], row["end_offset"]):
            yield _of_queue(row, Problem.MESSAGES_MISSING, row["begin_offset"], row["end_offset"])
    for row in queues:
        yield from of_queue(row, known)
    yield from _times(queues, ask)
    for row in copies:
        yield Finding(
            shard=row["shard"],
            problem=Problem.COPY_IN_ANOTHER_TOPIC,
            group_name=row["waited_for"],
            topic=row["origin_topic"],
            broker_name=row["origin_broker_name"],
            queue_id=row["origin_queue_id"],
            begin_offset=row["origin_queue_offset"],
            end_offset=row["end_offset"],
            detail=f"delivered to {row['topic']}",
        )


Queue = tuple[str, str, str, int]
"""Shard, topic, broker name, queue id."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the records of imports say of queues besides their messages."""

    gaps: Mapping[Queue, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """The offsets ``[begin, end)`` in which a salvage found no message."""
    cuts: Mapping[Queue, int] = field(default_factory=dict)
    """Where the queues of a broker name begin that continues the log of another one."""

    def explain(self, row: Row, begin: int, end: int) -> bool:
        """Whether salvages recorded that ``[begin, end)`` has no message."""
        reached = begin
        for first, last in sorted(self.gaps.get(_key(row), ())):
            if first <= reached:
                reached = max(reached, last)
        return begin < end <= reached


def _key(row: Row) -> Queue:
    return row["shard"], row["topic"], row["broker_name"], row["queue_id"]


def _known(imports: Sequence[Row]) -> Known:
    gaps: dict[Queue, list[tuple[int, int]]] = {}
    cuts: dict[Queue, int] = {}
    for row in imports:
        parameters = json_object(row["parameters"]) or {}
        if misshaped(row["action"], parameters):
            continue  # a finding of ``positions.py``
        name = str(parameters.get("broker_name"))
        for topic, queue_id, begin, end, _ in parameters.get("queue_gaps") or ():
            gaps.setdefault((row["shard"], topic, name, queue_id), []).append((begin, end))
        for topic, queue_id, cut in (parameters.get(CONTINUES) or {}).get("cuts") or ():
            cuts[row["shard"], topic, name, queue_id] = cut
    return Known(gaps, cuts)


def of_queue(row: Row, known: Known) -> Iterator[Finding]:
    """The bounds of one queue, compared with those of its segments. ``row``: of the statement ``_QUEUES``."""
    least, most, cut = row["min_offset"], row["max_offset"], known.cuts.get(_key(row), 0)
    if row["last_end"] is None and not cut:
        # Without messages: one that a user made, or of which the broker had removed all before the import, or a salvage left
        # out the rest.
        if most and least != most and not known.explain(row, least, most):
            yield _of_queue(row, Problem.QUEUE_END_DIFFERS, least, most)
        return
    end = max(row["last_end"] or 0, cut)
    if end != most:
        yield _of_queue(row, Problem.QUEUE_END_DIFFERS, end, most)
    begin = cut or row["first_base"] or 0
    if not row["removed"] and least != begin and not known.explain(row, least, begin):
        yield _of_queue(row, Problem.FIRST_OFFSET_DIFFERS, begin, least)
    last = max(row["current_end"] or 0, least)
    if last < min(most, end) and not known.explain(row, last, end):
        yield _of_queue(row, Problem.MESSAGES_MISSING, last, min(most, end))


def _times(queues: Sequence[Row], ask: Ask) -> Iterator[Finding]:
    """Queues of which the position has another time than that of the newest message. A commit does not write a message that
    is older than it, and refuses a time that is ahead of the clock. The records of commits stay when retention removes the
    message, so that they have its time. A queue that has no record of its end has none: ``of_queue`` says what is wrong."""
    differing = {
        (_key(row), row["last_commit_id"]): row
        for row in queues
        if row["last_commit_id"] and row["last_end"] == row["max_offset"] and row["newest_ms"] != row["written_ms"]
    }
    commits = sorted({commit_id for _, commit_id in differing})
    (times,) = ask((_TIMES.format(commits=", ".join(map(quoted, commits))),)) if commits else (None,)
    of_commit = {(_key(row), row["commit_id"]): row["times"] for row in times.to_pylist()} if times else {}
    for key, row in differing.items():
        if row["newest_ms"] not in of_commit.get(key, ()):
            name = max_id(MessageQueue(*(row[name] for name in _QUEUE)))
            newest, written = (format_time(row[name]) for name in ("newest_ms", "written_ms"))
            yield Finding(
                shard=row["shard"],
                problem=Problem.POSITION_NOT_RECORDED,
                **{name: row[name] for name in _QUEUE},
                detail=f"the time of the newest message: {newest}, by the commits {written} ({name})",
            )


def _of_queue(row: Row, problem: Problem, begin: int, end: int, file: str | None = None) -> Finding:
    place = {name: row[name] for name in _QUEUE}
    return Finding(shard=row["shard"], problem=problem, begin_offset=begin, end_offset=end, file=file, **place)


def _of_recorded(row: Row) -> Finding:
    """``row``: of the statement ``_RECORDED``."""
    pairs = ((row["size"], row["size_bytes"], "bytes"), (row["rows"], row["num_rows"], "rows"))
    differing = [f"{one} {unit}, by the log {log}" for one, log, unit in pairs if None not in (one, log) and one != log]
    record = f"the record of commit {row['commit_id']}"
    detail = f"by {record} {'; '.join(differing) or 'another SHA-256 than in its name'}"
    if not row["listed"]:
        detail = f"{record} has segments of it, and does not list it"
    file = f"commitlog/{row['file']}"
    return Finding(shard=row["shard"], problem=Problem.RECORDED_FILE_DIFFERS, file=file, detail=detail)


def _of_file(row: Row) -> Finding:
    place = {name: row[name] for name in (*_QUEUE, "begin_offset", "end_offset")}
    problem = Problem.SEGMENT_ROWS_DIFFER if row["named_rows"] else Problem.FILE_IN_NO_SEGMENT
    detail = f"{row['placed_rows']} rows of messages in queues, and segments of {row['named_rows']}"
    if row["breaks"]:
        detail += ", which do not follow one another"
    return Finding(shard=row["shard"], problem=problem, file=f"commitlog/{row['file']}", detail=detail, **place)
