"""A second opinion on a store: what was lost, what was doubled, which windows are half.

It imports neither this project nor a Delta library, only the standard library and pyarrow to read Parquet
(``tests/faults/test_checker.py`` checks that), and knows the store as a stranger does who has read docs/architecture.md and
docs/decisions. It compares the tables with each other, and with what was seen outside of the store (``history.py``).

    python -m tests.faults.independent.checker STORE HISTORY

``STORE`` is a folder; a store in S3 is copied into one first. ``HISTORY`` has the folders ``calls``, ``sent`` and ``written``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.independent.absorbed import absorption_problems
from tests.faults.independent.called import call_problems
from tests.faults.independent.copies import copy_problems
from tests.faults.independent.delta_tables import LogBroken
from tests.faults.independent.evidence import evidence_problems, rows_by_queue
from tests.faults.independent.history import Call, Sent, Written, read
from tests.faults.independent.offsets import offset_problems
from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import ShardRecords, read_store
from tests.faults.independent.stored import sent_problems, written_problems


@dataclass(frozen=True, slots=True)
class Report:
    """What the checker says of a store."""

    problems: tuple[Problem, ...]
    commits: int
    windows: int
    messages: int
    """Message rows, copies included."""
    consumed: int
    """Offsets in committed windows."""
    calls: int
    """Messages that listeners were called with."""
    repeated_calls: int
    """Those of them that a listener had seen before at the same place for the same request: a request that was cut calls again.
    That is allowed (docs/invariants.md, "Not promised")."""

    def of(self, kind: Kind) -> int:
        return sum(one.kind is kind for one in self.problems)


def check(store: Path, history: Path) -> Report:
    """``history``: has the folders ``calls``, ``sent`` and ``written``; one that is missing has no lines."""
    calls, sent, written = (
        read(history / "calls", Call),
        read(history / "sent", Sent),
        read(history / "written", Written),
    )
    try:
        shards = read_store(store)
    except (LogBroken, OSError) as error:
        return Report((Problem(Kind.LOST, f"the store cannot be read: {error}"),), 0, 0, 0, 0, len(calls), 0)
    problems = [*_problems(shards, calls), *sent_problems(shards, sent), *written_problems(shards, written)]
    windows = [commit for shard in shards for commit in shard.commits if commit.action == "consume"]
    places = Counter((call.request, call.group, call.place, call.times) for call in calls)
    return Report(
        problems=tuple(problems),
        commits=sum(len(shard.commits) for shard in shards),
        windows=len(windows),
        messages=sum(len(shard.messages) for shard in shards),
        consumed=sum(one.end - one.begin for commit in windows for one in commit.ranges),
        calls=len(calls),
        repeated_calls=sum(number - 1 for number in places.values()),
    )


def _problems(shards: Sequence[ShardRecords], calls: Sequence[Call]) -> Iterator[Problem]:
    for shard in shards:
        rows = rows_by_queue(shard)
        yield from offset_problems(shard)
        yield from evidence_problems(shard, rows)
        yield from copy_problems(shard)
        yield from call_problems(shard, rows, calls)
        yield from absorption_problems(shard, rows, calls)


def main(arguments: Sequence[str]) -> int:
    store, history = map(Path, arguments)
    report = check(store, history)
    for problem in report.problems:
        print(problem)
    print(f"{report.windows} windows, {report.consumed} offsets, {report.calls} calls: {len(report.problems)} problems")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
