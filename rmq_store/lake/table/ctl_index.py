"""Which files hold the ctl rows of a commit, of a request, of a moment, of the last minutes: found without reading all.

The files of the checkpoint from which the log was opened are filtered by their statistics; those that came since are kept in
dictionaries, so that a process that commits for days does not become slower with each commit.

A file of which the log does not say its values may have any (``LiveFiles``): a commit that is not found is made again.
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.lake.table.delta_entry import LiveFile
from rmq_store.lake.table.live_files import LiveFiles
from rmq_store.utils.host import uuid7_floor

IS_CTL = pc.field("partition.kind") == "ctl"
_LONGEST_STATISTIC = 32
_AFTER_ALL_IDS = "g"
"""Ids are hexadecimal."""
_OF_ONE = ("commit_id", "request_id", "store_timestamp")
"""By these the file of one commit is found."""


def rows_in(files: pa.Table) -> int | None:
    """How many rows the files have together; None where the log does not say it of one of them."""
    counts = files.column("num_records")
    return None if counts.null_count else pc.sum(counts).as_py() or 0


class CtlIndex:
    """The ctl files of a view of the commit log. Call ``catch_up`` after the view has moved."""

    def __init__(self, files: LiveFiles) -> None:
        self._files = files
        self._removals = files.removals
        self._loaded = files.table.filter(IS_CTL) if len(files) else files.table
        self._next = len(files.recent)
        self._rows = rows_in(self._loaded)
        self._recent: list[LiveFile] = []
        self._newest: list[str] = []
        self._of_commit: dict[str, list[str]] = defaultdict(list)
        self._of_request: dict[str, list[str]] = defaultdict(list)
        self._of_time: dict[int, list[str]] = defaultdict(list)
        self._of_several: list[LiveFile] = []
        self._first: set[str] = set()

    def is_of(self, files: LiveFiles) -> bool:
        """Whether it can catch up with these files: the same ones, and none was removed since."""
        return self._files is files and self._removals == files.removals

    def catch_up(self) -> None:
        recent = self._files.recent
        for file in recent[self._next :]:
            if file.partition["kind"] == "ctl":
                self._add(file)
        self._next = len(recent)

    @property
    def rows(self) -> int | None:
        """How many commits the log has; None where it does not say how many a file has."""
        return self._rows

    def with_commit(self, first: str, last: str) -> list[str]:
        """The files that may have a commit id of ``[first, last]``, which begin with the same 16 digits; those of few commits
        first."""
        paths = [*self._of_commit.get(first[:16], ()), *self._paths(self._may_have("commit_id", first, last))]
        return paths + [file.path for file in self._of_several if _overlaps(file, "commit_id", first, last)]

    def begins_with(self, first_half: str) -> bool:
        """Whether the smallest commit id of a file begins with these 16 digits, as the first one of an entry does."""
        smallest = self._loaded.column("min.commit_id")
        return first_half in self._first or bool(pc.any(pc.starts_with(smallest, first_half)).as_py())

    def with_request(self, request_id: str, first_day: str) -> list[str]:
        """The files that may have a commit of the request, none older than a day (``YYYY-MM-DD``)."""
        days = pc.greater_equal(self._loaded.column("partition.store_day").cast(pa.string()), first_day)
        days = pc.fill_null(days, True)
        paths = self._paths(pc.and_(self._may_have("request_id", request_id, request_id), days))
        paths += self._of_request.get(request_id[:_LONGEST_STATISTIC], ())
        return paths + [file.path for file in self._of_several if _overlaps(file, "request_id", request_id, request_id)]

    def at(self, ms: int) -> tuple[list[str], list[str]]:
        """The files that may have a commit with the store timestamp ``ms``: those of one commit, and those of several, of
        which there are many after a compaction."""
        mask = self._may_have("store_timestamp", ms, ms)
        is_single = pc.fill_null(pc.equal(self._loaded.column("num_records"), 1), False)
        single = [*self._paths(pc.and_(mask, is_single)), *self._of_time.get(ms, ())]
        several = [file.path for file in self._of_several if _overlaps(file, "store_timestamp", ms, ms)]
        return single, [*self._paths(pc.and_(mask, pc.invert(is_single))), *several]

    def since(self, ms: int, **values: str | None) -> list[str]:
        """The files that may have a commit whose id was made at ``ms`` or later, and with these values of columns (None:
        any)."""
        floor, given = uuid7_floor(ms), {column: value for column, value in values.items() if value is not None}
        mask = pc.greater_equal(self._loaded.column("max.commit_id"), floor)
        for column, value in given.items():
            mask = pc.and_(mask, self._may_have(column, value, value))
        paths = self._paths(mask)
        for file, newest in zip(reversed(self._recent), reversed(self._newest), strict=True):
            if newest < floor:
                break
            may_have = all(_overlaps(file, column, value, value) for column, value in given.items())
            if may_have and _newest_id(file) >= floor:
                paths.append(file.path)
        return paths

    def _add(self, file: LiveFile) -> None:
        rows = file.stats.get("numRecords")
        self._rows = None if self._rows is None or rows is None else self._rows + rows
        self._recent.append(file)
        # Of all files up to this one: in a folder a host's clock may be wrong by any time, so ids need not be in commit order.
        self._newest.append(max([_newest_id(file), *self._newest[-1:]]))
        commit_id, request, ms = (file.stats["minValues"].get(column) for column in _OF_ONE)
        if commit_id is not None:
            self._first.add(commit_id[:16])
        most = file.stats["maxValues"].get("request_id") or ""
        is_known = None not in (commit_id, request, ms)
        if rows == 1 and is_known and most.startswith(request[:_LONGEST_STATISTIC]):
            self._of_commit[commit_id[:16]].append(file.path)
            self._of_request[request[:_LONGEST_STATISTIC]].append(file.path)
            self._of_time[ms].append(file.path)
        else:
            self._of_several.append(file)

    def _may_have(self, column: str, first: str | int, last: str | int) -> pa.ChunkedArray:
        """Whether a loaded file may have a value of ``[first, last]`` (text statistics are cut to 32 characters)."""
        least, most = self._loaded.column(f"min.{column}"), self._loaded.column(f"max.{column}")
        return pc.and_(pc.less_equal(least, last), pc.greater_equal(most, first))

    def _paths(self, mask: pa.ChunkedArray) -> list[str]:
        # A mask, not an expression: that starts a query engine for each of these few rows.
        files = self._loaded.select(["path", "num_records"]).filter(mask)
        if len(files) > 1:
            files = files.sort_by("num_records")
        paths: list[str] = files.column("path").to_pylist()
        return paths


def _overlaps(file: LiveFile, column: str, first: str | int, last: str | int) -> bool:
    least, most = file.stats["minValues"].get(column), file.stats["maxValues"].get(column)
    if least is None or most is None:
        return bool(file.stats["nullCount"].get(column) != file.rows)
    return bool(least <= last and most >= first)


def _newest_id(file: LiveFile) -> str:
    """No commit of the file has a later id."""
    return file.stats["maxValues"].get("commit_id") or _AFTER_ALL_IDS
