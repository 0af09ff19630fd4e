"""Which files in a table's folder may be deleted: no version that a process may still read names them, and no run that can
still commit has staged them.

A run can commit for MAX_RUN_AGE_MS after it began, so a file that is older than that was not staged by it. Readers use the
files of the version that they have read: a file that a commit removed stays as long as one that was never committed. Ages are
those of the store (``docs/decisions/0011-own-log.md``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rmq_store.commit.decide import MAX_RUN_AGE_MS
from rmq_store.errors import WrongUse

_HOUR_MS = 3_600_000
DEFAULT_AGE_MS = 48 * _HOUR_MS
LEAST_AGE_MS = MAX_RUN_AGE_MS + _HOUR_MS
"""The hour is for what a commit does after its age was checked, and for clocks that differ."""
TOMBSTONE_AGE_MS = 7 * 24 * _HOUR_MS
"""For so long a checkpoint records when a file was removed (``delta.deletedFileRetentionDuration``)."""
MOST_AGE_MS = TOMBSTONE_AGE_MS - 24 * _HOUR_MS

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp|\d{20}\.checkpoint\.parquet#\d+")
"""What an interrupted write leaves in a folder: one of this project, or of a checkpoint by the Delta library."""


@dataclass(frozen=True, slots=True, order=True)
class StoredFile:
    """A file in the folder of a table."""

    path: str
    """Relative to that folder."""
    size: int
    """bytes"""
    modified_ms: int
    """When it was written, by the store's clock, UTC ms."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that the log of a table names, or that another table names."""

    kept: Collection[str] = frozenset()
    """Of the newest version, and of every checkpoint and entry that is still in the log: a slow process may open them."""
    removed_ms: Mapping[str, int] = field(default_factory=dict)
    """When files were removed from the table, UTC ms."""


def check_age(age_ms: int) -> None:
    """Raise WrongUse for an age at which a run may still commit, or of which the log does not know what was removed."""
    if not LEAST_AGE_MS <= age_ms <= MOST_AGE_MS:
        raise WrongUse(
            f"a vacuum deletes files of an age from {LEAST_AGE_MS // _HOUR_MS}h to {MOST_AGE_MS // _HOUR_MS}h, not "
            f"{age_ms // _HOUR_MS}h: younger ones may belong to a run that still commits"
        )


def orphans(stored: Iterable[StoredFile], named: NamedFiles, now_ms: int, age_ms: int) -> list[StoredFile]:
    """The files that may be deleted, by path. ``now_ms``: the store's time, UTC ms. ``age_ms``: since they were written, and
    since they were removed from the table."""

    def is_orphan(file: StoredFile) -> bool:
        newest_ms = max(file.modified_ms, named.removed_ms.get(file.path, 0))
        return file.path not in named.kept and now_ms - newest_ms >= age_ms

    return sorted(file for file in stored if (is_data_file(file.path) or is_temporary(file.path)) and is_orphan(file))


def is_data_file(path: str) -> bool:
    """Whether it is a Parquet file in a folder that is not hidden, as Delta calls names that begin with ``_`` or ``.``."""
    return path.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in path.split("/"))


def is_temporary(path: str) -> bool:
    """Whether it is what an interrupted write leaves in a folder: a file, but no object of the store."""
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None
