"""Redrives with edits: which dead letters were changed in their copies, and how, by the records of the commits. An audit makes
the edits again, so that a copy must have exactly them (``docs/decisions/0020-edited-redrives.md``)."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.admin.redrive_edits import Content, MessageEdits
from rmq_store.errors import WrongUse
from rmq_store.lake.table.edited_rows import after_edits
from rmq_store.lake.table.tables import queue_of_row
from rmq_store.message.message import MessageQueue

QUERY = """
SELECT c.shard, c.topic, c.broker_name, c.queue_id, c.begin_offset, c.end_offset, t.parameters
FROM ctl_consumed c JOIN ctl t ON t.shard = c.shard AND t.commit_id = c.commit_id
WHERE c.action = 'redrive' AND t.parameters LIKE '%"edits":%'
"""


@dataclass(frozen=True, slots=True)
class EditedRange:
    """Offsets ``[begin, end)`` of a dead-letter queue whose copies have edits of their bodies."""

    queue: MessageQueue
    begin: int
    end: int
    edits: MessageEdits


def edited_ranges(rows: pa.Table) -> dict[MessageQueue, list[EditedRange]]:
    """By queue. ``rows``: the answer to QUERY. Edits that this version does not know are left out: their copies differ then."""
    ranges: dict[MessageQueue, list[EditedRange]] = defaultdict(list)
    for row in rows.to_pylist():
        try:
            edits = MessageEdits.of(json.loads(row["parameters"]).get("edits") or {})
        except WrongUse:
            continue
        if edits.of_body:
            queue = queue_of_row(row)
            ranges[queue].append(EditedRange(queue, row["begin_offset"], row["end_offset"], edits))
    return ranges


def edits_of_file(segments: pa.Table, ranges: Mapping[MessageQueue, Sequence[EditedRange]]) -> tuple[EditedRange, ...]:
    """Those of the ranges that are in the segments of a file."""
    return tuple(
        one
        for segment in (segments.to_pylist() if ranges else ())
        for one in ranges.get(queue_of_row(segment), ())
        if one.begin < segment["end_offset"] and one.end > segment["base_offset"]
    )


def body_sums(rows: pa.Table, edits: MessageEdits) -> Iterable[int]:
    """For each row the sum of its body after the edits, as in ``file_content.ORIGINALS``; -1 where they do not apply."""
    for content in after_edits(rows, edits):
        if isinstance(content, Content):
            body = content.body or b""
            yield len(body) << 32 | zlib.crc32(body)
        else:
            yield -1
