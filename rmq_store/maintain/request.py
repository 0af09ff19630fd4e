"""A request to maintain a store, and when it should be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from rmq_store.commit.ctl import REPLACED, Action, Actor, Ctl
from rmq_store.maintain.orphans import DEFAULT_AGE_MS, StoredFile
from rmq_store.maintain.retention import Removal
from rmq_store.settings.retention_settings import RetentionRule

MOST_FILES = 10_000
"""A table with more live files should be maintained."""
MOST_ENTRIES = 1_000
"""So should one with more log entries since its checkpoint."""


class Step(StrEnum):
    """What maintenance does, in this order."""

    RETENTION = "retention"
    """Move the min offsets of queues, by the tables ``[[retention]]`` of the settings."""
    MESSAGES = "messages"
    """Join the small files of the commit log, without what retention has removed. Derived tables follow."""
    DERIVED = "derived"
    """Join the small files of the derived tables."""
    CHECKPOINT = "checkpoint"
    """Write checkpoints, and delete the log entries that no process needs."""
    VACUUM = "vacuum"
    """Delete the data files that nothing names."""


ACTION_OF: Mapping[Step, Action] = {
    Step.RETENTION: Action.RETENTION,
    Step.MESSAGES: Action.COMPACT,
    Step.VACUUM: Action.VACUUM,
}
"""The action of a step's commits. The other steps make none, so nothing says what an earlier try of a request has done."""
PARTLY_RECORDED = frozenset(Step) - {Step.RETENTION, Step.MESSAGES}
"""The steps of which no commit says all: a vacuum has a commit in the commit log only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainRequest:
    """Who maintains a store, and how."""

    request_id: str
    actor: Actor
    reason: str = "maintenance"
    steps: frozenset[Step] = frozenset(Step)
    rules: tuple[RetentionRule, ...] = ()
    age_ms: int = DEFAULT_AGE_MS
    """Of the files that a vacuum deletes: since they were written, and since they were removed from their table."""
    dry_run: bool = False


@dataclass(slots=True, kw_only=True)
class TableReport:
    """What was done to a table, or would be."""

    shard: str
    table: str
    files_before: int
    """Live data files."""
    bytes_before: int
    files_after: int
    bytes_after: int
    removals: tuple[Removal, ...] = ()
    """By queue what retention removed, and what groups held back."""
    joined: int = 0
    """Small files that were replaced by larger ones, and files whose messages retention has removed."""
    removed_rows: int = 0
    """Rows of removed messages that are in no file of the queues any more."""
    archived_rows: int = 0
    """Those of them that are in the archive now."""
    checkpoint: bool = False
    """Whether one was written."""
    log_files_deleted: int = 0
    """Log entries and checkpoints that no process needs."""
    deleted: tuple[StoredFile, ...] = ()
    """Data files that nothing named."""
    before: Mapping[str, int] = field(default_factory=dict)
    """What earlier tries of the same request have done to it: the counts of ``done_before``."""
    warnings: tuple[str, ...] = ()

    def answer(self) -> dict[str, Any]:
        """What a command or a task answers: counts instead of the deleted files and of the ranges that retention removed."""
        counts = {
            "messages_removed": sum(len(one.range) for one in self.removals),
            "messages_held": sum(one.held_to - one.range.end for one in self.removals),
            "messages_lost": sum(len(range_) for one in self.removals for range_ in one.lost.values()),
            "files_deleted": len(self.deleted),
            "bytes_deleted": sum(file.size for file in self.deleted),
        }
        listed = {"deleted", "removals"}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in listed} | counts


def done_before(commits: Iterable[Ctl]) -> dict[str, int]:
    """What commits of maintenance have done, as counts with the names of ``TableReport.answer``; none without a commit.

    ``files_to_delete`` instead of ``files_deleted``: the commit of a vacuum comes before it deletes them, so it has deleted so
    many at most.
    """
    counts: Counter[str] = Counter()
    for ctl in commits:
        match ctl.action:
            case Action.RETENTION:
                lost = (range_ for of_group in ctl.parameter("lost").values() for range_ in of_group.values())
                counts["messages_removed"] += sum(end - begin for begin, end in ctl.parameter("removed").values())
                counts["messages_lost"] += sum(end - begin for begin, end in lost)
            case Action.COMPACT:
                counts["joined"] += len(ctl.parameter(REPLACED))
                counts["removed_rows"] += ctl.parameter("removed_rows") or 0
                counts["archived_rows"] += ctl.parameter("archived_rows") or 0
            case Action.VACUUM:
                counts["files_to_delete"] += ctl.parameter("files")
            case _:
                raise AssertionError(f"not of maintenance: {ctl.action}")
    return dict(counts)


def due_for_maintenance(files: int, entries: int) -> str:
    """Why a table should be maintained; "" if it need not. ``files``: live ones. ``entries``: since its checkpoint."""
    reasons = []
    if files > MOST_FILES:
        reasons.append(f"{files:,} data files (more than {MOST_FILES:,})")
    if entries > MOST_ENTRIES:
        reasons.append(f"{entries:,} log entries since its checkpoint (more than {MOST_ENTRIES:,})")
    return " and ".join(reasons)
