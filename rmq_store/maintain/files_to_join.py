"""Which small data files of a table are joined into one.

Each commit leaves a small file or two, and a reader pays for every file that it opens. Files are joined within a partition,
so that a day's files stay the day's. A joined file that is large enough is never touched again, so the cost of maintenance
follows what is new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

TARGET_BYTES = 128 << 20
"""About the size of a joined file. One of half that size is large enough to be left alone."""

LEAST_FILES = 8
"""Fewer files are left alone: joining them leaves a commit, which is a small file too."""

MOST_FILES = 2_000
"""At most so many files are replaced by a commit: it records their names."""

Partition: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, order=True)
class SmallFile:
    """A live data file."""

    path: str
    partition: Partition
    """The values of the table's partition columns."""
    size: int
    """bytes"""
    rows: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a joined file may become."""

    target_bytes: int = TARGET_BYTES
    least_files: int = LEAST_FILES
    most_files: int = MOST_FILES
    target_rows: int | None = None
    """What is joined becomes files of so many rows; None: any number."""
    leaves_large: bool = True
    """Whether large files are left alone."""

    def is_large(self, file: SmallFile) -> bool:
        """Whether the file is left alone."""
        has_many = self.target_rows is not None and 2 * file.rows >= self.target_rows
        return self.leaves_large and (2 * file.size >= self.target_bytes or has_many)


DEFAULT_LIMITS = Limits()


def files_to_join(files: Iterable[SmallFile], limits: Limits = DEFAULT_LIMITS) -> list[tuple[SmallFile, ...]]:
    """Groups of files of one partition to be joined, each into one file or files of the target's rows, by partition and path.

    Every file is in one group at most. Done again with the joined files, it comes to an end: then each partition has fewer
    small files than ``least_files``.
    """
    by_partition: dict[Partition, list[SmallFile]] = defaultdict(list)
    for file in sorted(files):
        if not limits.is_large(file):
            by_partition[file.partition].append(file)
    return [group for _, of_partition in sorted(by_partition.items()) for group in _groups(of_partition, limits)]


def _groups(files: Sequence[SmallFile], limits: Limits) -> Iterator[tuple[SmallFile, ...]]:
    group: list[SmallFile] = []
    for file in files:
        if group and not _fits(group, file, limits):
            if len(group) >= limits.least_files:
                yield tuple(group)
            group = []
        group.append(file)
    if len(group) >= limits.least_files:
        yield tuple(group)


def _fits(group: Sequence[SmallFile], file: SmallFile, limits: Limits) -> bool:
    size = sum(one.size for one in group) + file.size
    return len(group) < limits.most_files and size <= limits.target_bytes
