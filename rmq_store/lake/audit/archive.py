"""What the files of the archive must hold, by the records of commits: which messages, and at which rows.

No segment names these rows. A compaction moves removed messages there: those of the files that it replaces up to the end of
what retention archives, sorted by place (``lake/maintain/expired_rows.py``). The segments of these files stay in the records of
commits, so that those of the archive follow from them. The compaction uses the positions that it has read, which may be older
than its own commit: they are the newest with which its numbers of removed and of archived rows agree.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.commit.positions import queue_of
from rmq_store.lake.audit.file_content import PLACE, SEGMENTS, Numbers
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.positions import removals
from rmq_store.lake.table.tables import json_object, queue_of_row
from rmq_store.message.message import MessageQueue

_QUEUE = "shard, topic, broker_name, queue_id"
_ENDS = f"(SELECT {_QUEUE}, value AS archived_to FROM positions WHERE kind = 'arc') e"

_COMMITS = f"""
SELECT {_QUEUE}, base_offset, least(end_offset, archived_to) AS end_offset, first_row, deliver_at, min_store_timestamp,
    max_store_timestamp, commit_id, part
FROM segments JOIN {_ENDS} USING ({_QUEUE})
WHERE action <> 'compact' AND base_offset < archived_to
ORDER BY {_QUEUE}, base_offset
"""
"""Where the commits placed the messages that may be in the archive."""

_REPLACED = f"""
SELECT {_QUEUE}, r.commit_id, base_offset, least(end_offset, archived_to) AS end_offset
FROM (SELECT shard, file, commit_id FROM ctl_replaced) r
JOIN (SELECT {_QUEUE}, file, base_offset, end_offset FROM segments) s USING (shard, file)
JOIN {_ENDS} USING ({_QUEUE})
WHERE base_offset < archived_to
ORDER BY {_QUEUE}, base_offset
"""
"""Those of them that each compaction found in the files that it replaced."""

_KEPT = f"""
SELECT {_QUEUE}, commit_id, CAST(sum(least(end_offset, archived_to) - base_offset) AS BIGINT) AS messages
FROM segments JOIN {_ENDS} USING ({_QUEUE})
WHERE action = 'compact' AND base_offset < archived_to
GROUP BY {_QUEUE}, commit_id
"""
"""How many of these it wrote again for their queues."""

_COMPACTIONS = """
SELECT shard, commit_id, read_version, regexp_replace(parameters, ',?"replaced":\\[[^]]*\\]', '') AS parameters
FROM ctl WHERE action = 'compact' ORDER BY shard, read_version, commit_id
"""

_JOINED = "SELECT shard, commit_id, file FROM ctl_replaced WHERE file LIKE 'kind=archive/%'"
"""The files of the archive that a compaction joined."""

_RETENTIONS = """
SELECT shard, read_version, parameters FROM ctl WHERE action = 'retention' ORDER BY shard, read_version, commit_id
"""

TEXTS = (_COMMITS, _REPLACED, _KEPT, _COMPACTIONS, _JOINED, _RETENTIONS)
"""The statements of ``archive``."""

_ID_CHARACTERS = 32
_Ranges = tuple[Numbers, Numbers]
"""The begins and the ends of ranges of offsets, ascending."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of a shard."""

    segments: Mapping[str, pa.Table]
    """By live file what must be in it (schema SEGMENTS), by row."""
    missing: Sequence[Finding]
    """Messages of which the file is not live."""


def archive(shard: str, answers: Sequence[pa.Table], files: Sequence[str]) -> Archive:
    """``answers``: to TEXTS, of the shard. ``files``: the live files of its archive. Raises one of ``UNREADABLE``
    where a record was changed."""
    commits, replaced, kept, compactions, joined, retentions = answers
    archived = _archived(compactions, _by_commit(replaced), kept, _removed_to(retentions))
    sources: dict[str, list[str]] = defaultdict(list)
    for row in joined.to_pylist():
        sources[row["commit_id"]].append(_commit_of(row["file"]))
    for commit_id in compactions.column("commit_id").to_pylist():
        if commit_id in sources:
            archived[commit_id] = _together(archived.get(source, {}) for source in sources[commit_id])
    placed = _Placed.of_rows(commits)
    segments = {file: placed.segments(archived.get(_commit_of(file), {})) for file in files}
    gone = (
        archived.keys() - set(map(_commit_of, files)) - {source for several in sources.values() for source in several}
    )
    return Archive(
        segments, [one for commit_id in sorted(gone) for one in _missing(shard, commit_id, archived[commit_id])]
    )


def _commit_of(file: str) -> str:
    return file.rpartition("/")[2][:_ID_CHARACTERS]


def _by_commit(replaced: pa.Table) -> dict[str, dict[MessageQueue, _Ranges]]:
    bounds = ("base_offset", "end_offset")
    groups = replaced.group_by(["commit_id", *PLACE], use_threads=False).aggregate([(name, "list") for name in bounds])
    by_commit: dict[str, dict[MessageQueue, _Ranges]] = defaultdict(dict)
    for row in groups.to_pylist():
        begins, ends = (np.array(row[f"{name}_list"], np.int64) for name in bounds)
        by_commit[row["commit_id"]][queue_of_row(row)] = begins, ends
    return by_commit


# --- what a compaction archived ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RemovedTo:
    """How far retention has removed the messages of a queue, and archived them, after each of its commits."""

    versions: list[int]
    """Those that the commits were decided on."""
    ends: list[tuple[int, int]]

    def before(self, version: int) -> tuple[int, int]:
        """By the commits that were decided on versions before this one."""
        at = bisect_left(self.versions, version)
        return self.ends[at - 1] if at else (0, 0)


def _removed_to(retentions: pa.Table) -> dict[MessageQueue, _RemovedTo]:
    """``retentions``: in commit order."""
    of_queues: dict[MessageQueue, _RemovedTo] = {}
    for row in retentions.to_pylist():
        for app_id, end, is_archived in removals(json_object(row["parameters"]) or {}):
            one = of_queues.setdefault(queue_of(app_id), _RemovedTo([], []))
            archived_to = end if is_archived else one.ends[-1][1] if one.ends else 0
            one.versions.append(int(row["read_version"]))
            one.ends.append((operator.index(end), archived_to))
    return of_queues


def _archived(
    compactions: pa.Table,
    replaced: Mapping[str, Mapping[MessageQueue, _Ranges]],
    kept: pa.Table,
    removed_to: Mapping[MessageQueue, _RemovedTo],
) -> dict[str, dict[MessageQueue, _Ranges]]:
    """By compaction what it moved to the archive. ``replaced``: by compaction the messages in the files that it replaced."""
    kept_of = {(row["commit_id"], queue_of_row(row)): row["messages"] for row in kept.to_pylist()}
    archived = {}
    for row in compactions.to_pylist():
        messages = {
            queue: ranges for queue, ranges in replaced.get(row["commit_id"], {}).items() if queue in removed_to
        }
        removed = {
            queue: _count(ranges) - kept_of.get((row["commit_id"], queue), 0) for queue, ranges in messages.items()
        }
        of_commit = _of_compaction(row, messages, removed, removed_to)
        if of_commit:
            archived[row["commit_id"]] = of_commit
    return archived


def _of_compaction(
    row: Mapping[str, Any],
    messages: Mapping[MessageQueue, _Ranges],
    removed: Mapping[MessageQueue, int],
    removed_to: Mapping[MessageQueue, _RemovedTo],
) -> dict[MessageQueue, _Ranges]:
    """The messages before the ends of the newest positions that agree with its numbers. Where none do, so that a record was
    changed: those of its own version. ``removed``: how many of ``messages`` it did not write again."""
    recorded = (json_object(row["parameters"]) or {}).get("archived_rows", 0)
    versions = {
        version for queue in messages for version in removed_to[queue].versions if version < row["read_version"]
    }
    newest: dict[MessageQueue, _Ranges] | None = None
    for version in sorted((row["read_version"], *versions), reverse=True):
        ends = {queue: removed_to[queue].before(version) for queue in messages}
        archived = {queue: before for queue in messages if _count(before := _before(messages[queue], ends[queue][1]))}
        newest = archived if newest is None else newest
        if sum(map(_count, archived.values())) == recorded and all(
            _count(_before(messages[queue], ends[queue][0])) == removed[queue] for queue in messages
        ):
            return archived
    return newest or {}


def _before(ranges: _Ranges, end: int) -> _Ranges:
    begins, ends = ranges
    are_before = begins < end
    return begins[are_before], np.minimum(ends[are_before], end)


def _count(ranges: _Ranges) -> int:
    begins, ends = ranges
    return int((ends - begins).sum())


def _together(several: Iterator[Mapping[MessageQueue, _Ranges]]) -> dict[MessageQueue, _Ranges]:
    by_queue: dict[MessageQueue, list[_Ranges]] = defaultdict(list)
    for one in several:
        for queue, ranges in one.items():
            by_queue[queue].append(ranges)
    together = {}
    for queue, each in by_queue.items():
        begins, ends = map(np.concatenate, zip(*each, strict=True))
        order = np.argsort(begins, kind="stable")
        together[queue] = begins[order], ends[order]
    return together


# --- where it is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where the commits placed the messages: the rows of ``_COMMITS``."""

    rows: pa.Table
    of_queues: Mapping[MessageQueue, tuple[int, int]]
    """Rows ``[begin, end)`` of each queue."""
    begins: Numbers
    ends: Numbers

    @classmethod
    def of_rows(cls, rows: pa.Table) -> _Placed:
        rows = rows.combine_chunks()
        numbered = rows.select(list(PLACE)).append_column("row", pa.array(np.arange(len(rows))))
        groups = numbered.group_by(list(PLACE), use_threads=False).aggregate([("row", "min"), ("row", "max")])
        of_queues = {queue_of_row(group): (group["row_min"], group["row_max"] + 1) for group in groups.to_pylist()}
        begins, ends = (rows.column(name).to_numpy() for name in ("base_offset", "end_offset"))
        return cls(rows, of_queues, begins, ends)

    def segments(self, archived: Mapping[MessageQueue, _Ranges]) -> pa.Table:
        """The rows of a file of the archive (schema SEGMENTS), which are sorted by place."""
        queues = sorted(archived.keys() & self.of_queues.keys(), key=lambda q: (q.topic, q.broker_name, q.queue_id))
        if not queues:
            return SEGMENTS.empty_table()
        parts = [self._parts(self.of_queues[queue], archived[queue]) for queue in queues]
        at, begins, ends = map(np.concatenate, zip(*parts, strict=True))
        counts = ends - begins
        of_commits = self.rows.take(pa.array(at))
        named = (name for name in SEGMENTS.names if name in of_commits.column_names)
        columns = {name: of_commits.column(name) for name in named} | {
            "base_offset": begins,
            "end_offset": ends,
            "first_row": np.cumsum(counts) - counts,
            "rel": of_commits.column("first_row").to_numpy() + begins - self.begins[at],
            "tags_codes": pa.nulls(len(at)),  # no reader goes by them
            "trimmed": np.ones(len(at), np.bool_),  # a part of a segment of its commit
        }
        return pa.table([columns[name] for name in SEGMENTS.names], names=SEGMENTS.names).cast(SEGMENTS)

    def _parts(self, of_queue: tuple[int, int], ranges: _Ranges) -> tuple[Numbers, Numbers, Numbers]:
        """The parts of the ranges by commit: the row of each, its begin and its end."""
        rows, (begins, ends) = slice(*of_queue), ranges
        first = np.searchsorted(self.ends[rows], begins, side="right")
        counts = np.maximum(np.searchsorted(self.begins[rows], ends) - first, 0)
        of_range = np.repeat(np.arange(len(begins)), counts)
        at = of_queue[0] + first[of_range] + np.arange(len(of_range)) - np.repeat(np.cumsum(counts) - counts, counts)
        return at, np.maximum(begins[of_range], self.begins[at]), np.minimum(ends[of_range], self.ends[at])


def _missing(shard: str, commit_id: str, archived: Mapping[MessageQueue, _Ranges]) -> Iterator[Finding]:
    for queue, (begins, ends) in archived.items():
        breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        for begin, end in zip(begins[[0, *breaks]].tolist(), ends[[*(breaks - 1), -1]].tolist(), strict=True):
            detail = f"the compaction {commit_id} archived them"
            yield Finding(
                shard=shard,
                problem=Problem.MESSAGES_MISSING,
                **asdict(queue),
                begin_offset=begin,
                end_offset=end,
                detail=detail,
            )
