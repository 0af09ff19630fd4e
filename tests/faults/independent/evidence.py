"""The evidence of each range: its counts and hash sums add up, and its rows and copies are those that it counts
(docs/invariants.md, P1 and P2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import OutcomeRow, Queue, Range, ShardRecords, hash_sum

WITH_ROWS = ("retried", "dead", "duplicate", "dropped", "lost", "skipped")
_COPIED = ("retried", "dead", "delivered", "redriven")
_Key = tuple[str, str, Queue]

Rows = Mapping[_Key, Sequence[OutcomeRow]]


def rows_by_queue(shard: ShardRecords) -> Rows:
    """Outcome rows and copies by commit, group and origin queue."""
    rows: dict[_Key, list[OutcomeRow]] = defaultdict(list)
    for row in shard.evidence():
        if (
            row.outcome != "redrive_failed"
        ):  # it was not sent, so no range has it (docs/decisions/0020-edited-redrives.md)
            rows[row.commit_id, row.group, row.queue].append(row)
    return rows


def evidence_problems(shard: ShardRecords, rows: Rows) -> Iterator[Problem]:
    ranges: dict[_Key, list[Range]] = defaultdict(list)
    for commit in shard.commits:
        for range_ in commit.ranges:
            ranges[range_.commit_id, range_.group, range_.queue].append(range_)
            yield from _sum_problems(range_)
    for key, several in ranges.items():
        yield from _row_problems(several, rows.get(key, ()))
    for (commit_id, group, queue), of_key in rows.items():
        outside = [row for row in of_key if not _is_in(row, ranges.get((commit_id, group, queue), ()))]
        for row in outside:
            kind = Kind.COPY_WITHOUT_ORIGIN if row.outcome in _COPIED else Kind.HALF_WINDOW
            yield Problem(
                kind, f"{row.outcome}, but in no range of its commit", queue, row.begin, row.end, group, commit_id
            )
    known = {commit.commit_id for commit in shard.commits}
    for commit_id in {message.commit_id for message in shard.messages} - known:
        yield Problem(Kind.HALF_WINDOW, "message rows of a commit that has no ctl row", commit_id=commit_id)


def _sum_problems(range_: Range) -> Iterator[Problem]:
    count, hashes = sum(range_.counts.values()), sum(range_.hashes.values()) % (1 << 64)
    if count != range_.end - range_.begin:
        yield _of(range_, Kind.HALF_WINDOW, f"its outcomes are {count} offsets")
    elif hashes != hash_sum(range(range_.begin, range_.end)):
        yield _of(range_, Kind.HALF_WINDOW, "the hash sums are not those of its offsets")


def _row_problems(ranges: Sequence[Range], rows: Sequence[OutcomeRow]) -> Iterator[Problem]:
    """``ranges``: of one commit, group and queue. Only a redrive has several of a queue."""
    first = ranges[0]
    for outcome in (*WITH_ROWS, "delivered", "redriven"):
        offsets = [offset for row in rows if row.outcome == outcome for offset in range(row.begin, row.end)]
        if len(set(offsets)) < len(offsets):
            twice = sorted(offset for offset in set(offsets) if offsets.count(offset) > 1)
            yield Problem(
                Kind.DOUBLED, f"{outcome} twice", first.queue, twice[0], twice[-1] + 1, first.group, first.commit_id
            )
        counted = _counted_as(outcome, first.action)
        count = sum(one.counts[counted] for one in ranges) if counted else 0
        hashes = sum(one.hashes[counted] for one in ranges) % (1 << 64) if counted else 0
        if count > len(offsets):
            is_copy = outcome in _COPIED
            kind = Kind.RETRY_WITHOUT_COPY if is_copy else Kind.HALF_WINDOW
            yield _of(first, kind, f"{count} {outcome}, but {len(offsets)} {'copies' if is_copy else 'in rows'}")
        elif count < len(offsets) or hashes != hash_sum(offsets):
            kind = Kind.COPY_WITHOUT_ORIGIN if outcome in _COPIED else Kind.HALF_WINDOW
            yield _of(first, kind, f"the {outcome} ones are not those that it counts")
    yield from _two_outcomes(first, rows)


def _counted_as(outcome: str, action: str) -> str | None:
    """The count of a range that an outcome with rows belongs to, None: a commit of this action has no such rows."""
    if outcome == "delivered":
        return "acked" if action == "deliver" else None
    if outcome == "redriven":
        return "acked" if action == "redrive" else None
    return outcome


def _two_outcomes(first: Range, rows: Iterable[OutcomeRow]) -> Iterator[Problem]:
    outcomes: dict[int, str] = {}
    for row in rows:
        for offset in range(row.begin, row.end):
            if outcomes.setdefault(offset, row.outcome) != row.outcome:
                what = f"both {outcomes[offset]} and {row.outcome}"
                yield Problem(Kind.DOUBLED, what, first.queue, offset, offset + 1, first.group, first.commit_id)


def _is_in(row: OutcomeRow, ranges: Iterable[Range]) -> bool:
    return any(one.begin <= row.begin and row.end <= one.end for one in ranges)


def _of(range_: Range, kind: Kind, what: str) -> Problem:
    return Problem(kind, what, range_.queue, range_.begin, range_.end, range_.group, range_.commit_id)
