"""The tables that are derived from the commit log, and the rows that a commit has in each: ``consumequeue``, ``offsets``,
``commits``.

``commits`` has few files on purpose: with a file for every commit it would be as slow to read as the log itself. It is
updated every COMMITS_EVERY commits, and its readers take the rest from the log (``tail.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_store.commit.ctl import Ctl
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.table_layout import TableLayout
from rmq_store.message.message import MessageQueue

COMMITS_EVERY = 256
"""About how many ctl rows of ``commits`` are in one file, and about that many are read from files of their own."""


@dataclass(frozen=True, slots=True)
class Derived:
    """How one derived table is made."""

    name: str
    """Its folder in the shard's folder."""
    table: Callable[[Shard], LakeTable]
    rows: Callable[[Ctl], list[dict[str, Any]]]
    """The rows that a commit has in the table."""
    layout: TableLayout
    """The columns with statistics together name a row."""
    claims: bool = False
    """Whether commits about claims have rows in it."""
    every: int = 1
    """It is updated when the number of commits in the log has passed a multiple of this."""


def consumequeue_rows(ctl: Ctl) -> list[dict[str, Any]]:
    """The segments that a commit produced."""
    rows = []
    for segment in ctl.produced:
        row = tables.produced_to_row(segment)
        row["end_offset"] = row["base_offset"] + row.pop("count")
        rows.append(
            row | {"commit_id": ctl.commit_id, "action": str(ctl.action), "store_timestamp": ctl.store_timestamp}
        )
    return rows


def offsets_rows(ctl: Ctl) -> list[dict[str, Any]]:
    """The offsets that a commit moved."""
    common = {
        "read_version": ctl.read_version,
        "commit_id": ctl.commit_id,
        "store_timestamp": ctl.store_timestamp,
        "action": str(ctl.action),
        "window_id": ctl.window_id,
        "request_id": ctl.request_id,
        "actor": ctl.actor.name,
        "actor_source": ctl.actor.source,
        "reason": ctl.reason,
    }
    spans: list[tuple[str | None, MessageQueue, int | None, int, int]] = [
        (ctl.group, c.range.queue, c.range.begin, c.range.end, c.pass_) for c in ctl.consumed if ctl.moves_offsets
    ]
    spans += [(m.group, m.queue, m.from_offset, m.to_offset, m.pass_) for m in ctl.moved]
    return [
        common
        | {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
        | {"group_name": group, "from_offset": begin, "to_offset": end, "pass": pass_}
        for group, queue, begin, end, pass_ in spans
    ]


def commits_rows(ctl: Ctl) -> list[dict[str, Any]]:
    """The commit itself."""
    return [tables.ctl_to_row(ctl)]


QUEUES = Derived("consumequeue", lambda shard: shard.consumequeue, consumequeue_rows, tables.CONSUMEQUEUE_LAYOUT)
MOVES = Derived("offsets", lambda shard: shard.offsets, offsets_rows, tables.OFFSETS_LAYOUT)
COMMITS = Derived(
    "commits",
    lambda shard: shard.commits,
    commits_rows,
    tables.COMMITS_LAYOUT,
    claims=True,
    every=COMMITS_EVERY,
)

KINDS = (COMMITS, QUEUES, MOVES)
