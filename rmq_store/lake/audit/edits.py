"""Redrives with edits: which dead letters were changed in their copies, and how, by the records of the commits. An audit makes
the edits again, so that a copy must have exactly them (``docs/decisions/0020-edited-redrives.md``)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.admin.redrive_edits import Content, MessageEdits
from rmq_store.errors import WrongUse
from rmq_store.lake.table.edited_rows import after_edits
from rmq_store.lake.table.tables import queue_of_row
from rmq_store.message.message import MessageQueue

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_EDITED = "action = 'redrive' AND parameters LIKE '%\"edits\":%'"

COMMITS = f"SELECT shard, commit_id, parameters FROM ctl WHERE {_EDITED}"
RANGES = f"""
SELECT c.shard, c.commit_id, c.topic, c.broker_name, c.queue_id, c.begin_offset, c.end_offset
FROM ctl_consumed c JOIN (SELECT shard, commit_id FROM ctl WHERE {_EDITED}) t
    ON t.shard = c.shard AND t.commit_id = c.commit_id
ORDER BY c.shard, c.commit_id, c.topic, c.broker_name, c.queue_id, c.begin_offset
"""
"""Two queries, as a commit may have many ranges and long parameters."""


@dataclass(frozen=True, slots=True)
class EditedLetters:
    """Dead letters of a queue whose copies have edits: ranges ``[begin, end)`` of offsets, ascending."""

    queue: MessageQueue
    begins: Numbers
    ends: Numbers
    edits: MessageEdits

    def has(self, offsets: Numbers) -> Mask:
        """For each offset of the queue whether it is one of them."""
        at = np.searchsorted(self.begins, offsets, side="right") - 1
        mask: Mask = (at >= 0) & (offsets < self.ends[at])
        return mask


def edited_letters(commits: pa.Table, ranges: pa.Table) -> list[EditedLetters]:
    """By commit and queue. ``commits``, ``ranges``: the answers to COMMITS and RANGES, of one shard. Edits that this version
    does not know are left out: their copies differ then."""
    edits: dict[str, MessageEdits] = {}
    for commit in commits.to_pylist():
        with suppress(WrongUse, ValueError, TypeError, AttributeError, RecursionError):
            edits[commit["commit_id"]] = MessageEdits.of_parameter(json.loads(commit["parameters"]).get("edits"))
    letters: list[EditedLetters] = []
    for (commit_id, queue), rows in groupby(ranges.to_pylist(), key=lambda row: (row["commit_id"], queue_of_row(row))):
        of_queue = [(row["begin_offset"], row["end_offset"]) for row in rows]
        of_commit = edits.get(commit_id)
        if of_commit is not None:
            begins, ends = np.array(of_queue, np.int64).T
            letters.append(EditedLetters(queue, begins, ends, of_commit))
    return letters


def letters_of_file(segments: pa.Table, letters: Sequence[EditedLetters]) -> tuple[EditedLetters, ...]:
    """Those of the dead letters that are in the segments of a file."""
    bounds: dict[MessageQueue, list[tuple[int, int]]] = defaultdict(list)
    for segment in segments.to_pylist() if letters else ():
        bounds[queue_of_row(segment)].append((segment["base_offset"], segment["end_offset"]))
    of_file = []
    for one in letters:
        inside = np.zeros(len(one.begins), np.bool_)
        for base, end in bounds.get(one.queue, ()):
            inside |= (one.begins < end) & (one.ends > base)
        if inside.any():
            of_file.append(EditedLetters(one.queue, one.begins[inside], one.ends[inside], one.edits))
    return tuple(of_file)


def edited_contents(rows: pa.Table, edits: MessageEdits) -> list[Content | None]:
    """The messages of the rows (``columns_of``) after the edits; None for one to which they do not apply."""
    return [one if isinstance(one, Content) else None for one in after_edits(rows, edits)]
