"""Dispatch: RocketMQ's reput. Derives ``consumequeue`` and ``offsets`` from the commit log's ctl rows.

Each derived table has its own cursor, committed with its rows: the commit log version up to which everything is in it.
The normal road reads the log entries after the cursor. When these have been cleaned away, the ctl rows of the days since
a low-water mark are compared with the rows that are there, by commit id; nothing older can appear, since a run older
than ``MAX_RUN_AGE_MS`` cannot commit. Racing dispatchers are harmless: the cursor is a position, one of them wins.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from rmq_store.host import Host, day_of
from rmq_store.lake import tables
from rmq_store.lake.commit import MAX_RUN_AGE_MS
from rmq_store.lake.delta_log import LogCleaned
from rmq_store.lake.delta_table import LakeTable
from rmq_store.lake.shard import ABOUT_CLAIMS, Shard
from rmq_store.lake.stage import derived
from rmq_store.message import MessageQueue
from rmq_store.store import Ctl

CURSOR = "dispatch/version"
LOW_WATER = "dispatch/low-water-ms"
_QUIET_VERSIONS = 32
"""A tail without rows is left alone until it is this long: an empty commit is not worth its file."""


@dataclass(frozen=True, slots=True)
class Derived:
    """How one derived table is made."""

    table: Callable[[Shard], LakeTable]
    rows: Callable[[Ctl], list[dict[str, Any]]]
    schema: pa.Schema
    stats: list[str]


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
        (ctl.group, c.range.queue, c.range.begin, c.range.end, c.pass_) for c in ctl.consumed
    ]
    spans += [(m.group, m.queue, m.from_offset, m.to_offset, m.pass_) for m in ctl.moved]
    return [
        common
        | {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}
        | {"group_name": group, "from_offset": begin, "to_offset": end, "pass": pass_}
        for group, queue, begin, end, pass_ in spans
    ]


DERIVED = (
    Derived(lambda shard: shard.consumequeue, consumequeue_rows, tables.CONSUMEQUEUE, tables.CONSUMEQUEUE_STATS),
    Derived(lambda shard: shard.offsets, offsets_rows, tables.OFFSETS, tables.OFFSETS_STATS),
)


def undispatched(shard: Shard, table: LakeTable) -> list[Ctl]:
    """The commits of the commit log's handle that are not in ``table``'s handle, in commit order."""
    positions = table.log.positions(table.version)
    cursor = positions.get(CURSOR)
    if cursor is not None:
        if cursor >= shard.commitlog.version:
            return []
        try:
            added = _ctl_files_after(shard.commitlog, cursor)
        except LogCleaned:
            pass
        else:
            live = shard.commitlog.files().column("path")
            if not added or pc.all(pc.is_in(pa.array(added), value_set=live)).as_py():
                return shard.ctls_in(added)
    return _by_commit_id(shard, table, positions.get(LOW_WATER) or 0)


def _ctl_files_after(commitlog: LakeTable, version: int) -> list[str]:
    added = (
        action["add"]
        for _, actions in commitlog.log.actions(version, commitlog.version)
        for action in actions
        if "add" in action
    )
    return [
        add["path"]
        for add in added
        if add["dataChange"] and add["partitionValues"]["kind"] == "ctl" and not _about_a_claim(add["stats"])
    ]


def _about_a_claim(stats: str) -> bool:
    """Claims neither produce nor move anything; the statistics of their one-row files say so."""
    bounds = json.loads(stats)
    least, most = bounds["minValues"].get("action"), bounds["maxValues"].get("action")
    return least == most and least in ABOUT_CLAIMS


def _by_commit_id(shard: Shard, table: LakeTable, low_water_ms: int) -> list[Ctl]:
    """The rebuild: every ctl row since the low-water mark whose commit is not in the table."""
    there = set()
    if table.files().num_rows:
        since = pc.field("partition.store_day").cast("string") >= day_of(low_water_ms)
        paths = table.files(since).column("path").to_pylist()
        there = set(table.read(paths, ["commit_id"]).column("commit_id").to_pylist())
    return [ctl for ctl in shard.ctls_since(max(0, low_water_ms - MAX_RUN_AGE_MS)) if ctl.commit_id not in there]


def dispatch(shard: Shard, host: Host, *, fresh: bool = True) -> int:
    """Bring both derived tables up to the newest commit; returns how many commits were taken. Safe to run anywhere,
    any number of times, at once. ``fresh`` False: the handles have just been refreshed."""
    if fresh:
        shard.commitlog.refresh()
    return sum(_dispatch(shard, kind, host) for kind in DERIVED)


def _dispatch(shard: Shard, kind: Derived, host: Host) -> int:
    table = kind.table(shard)
    for _ in range(8):
        table.refresh()
        ctls = undispatched(shard, table)
        files = _stage(shard, table, kind, ctls, host)
        cursor = table.log.positions(table.version).get(CURSOR)
        behind = shard.commitlog.version - (-1 if cursor is None else cursor)
        if not files and behind < _QUIET_VERSIONS:
            return 0
        now_ms = host.now_ms()
        try:
            positions = {CURSOR: shard.commitlog.version, LOW_WATER: now_ms - MAX_RUN_AGE_MS}
            table.put(files, positions, metadata={"action": "dispatch"}, now_ms=now_ms)
        except (DeltaError, OSError):
            # Somebody else dispatched, or the answer was lost: the cursor tells.
            host.sleep(host.uniform(0, 0.05))
            continue
        table.refresh()
        return len(ctls)
    return 0


def _stage(shard: Shard, table: LakeTable, kind: Derived, ctls: Iterable[Ctl], host: Host) -> list[Any]:
    by_day: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for ctl in ctls:
        by_day[day_of(ctl.store_timestamp)].extend(kind.rows(ctl))
    return [
        derived(shard.root, table.path, host.new_commit_id(), rows, kind.schema, kind.stats, day)
        for day, rows in sorted(by_day.items())
        if rows
    ]
