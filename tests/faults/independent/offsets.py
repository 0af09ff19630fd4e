"""Offsets: each range of a group begins where the step before it ended, and only recorded actions move an offset elsewhere
(docs/invariants.md, P2 and P3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import Commit, Queue, ShardRecords


class _Step(NamedTuple):
    """A range or a move of one group's offset in one queue."""

    commit_id: str
    begin: int | None
    end: int
    pass_: int | None
    """None: it is a move."""
    start_rule: str


def offset_problems(shard: ShardRecords) -> Iterator[Problem]:
    steps: dict[tuple[str, Queue], list[_Step]] = defaultdict(list)
    for commit in shard.commits:
        for group, queue, step in _steps(commit):
            steps[group, queue].append(step)
    positions = shard.queue_positions("off")
    for (group, queue), history in steps.items():
        at: int | None = None
        for step in history:
            yield from _problems_of_step(group, queue, step, at)
            at = None if step.end < 0 else step.end
        if positions.get((group, queue)) != at:
            what = f"the position is {positions.get((group, queue))}, the history ends at {at}"
            yield Problem(Kind.JUMP, what, queue, at or 0, at or 0, group)
        yield from _doubled_in_a_pass(group, queue, history)
    for (group, queue), offset in positions.items():
        if (group, queue) not in steps:
            yield Problem(Kind.JUMP, "a position without any history", queue, 0, offset, group)
    yield from _unexplained_changes(shard)


def _steps(commit: Commit) -> Iterator[tuple[str, Queue, _Step]]:
    if commit.action != "redrive":  # it consumes dead letters anywhere in their queue, and moves no offset
        for one in commit.ranges:
            yield one.group, one.queue, _Step(one.commit_id, one.begin, one.end, one.pass_, one.start_rule)
    for move in commit.moves:
        yield move.group, move.queue, _Step(commit.commit_id, move.from_offset, move.to_offset, None, "")


def _problems_of_step(group: str, queue: Queue, step: _Step, at: int | None) -> Iterator[Problem]:
    if step.pass_ is None:
        if step.begin != at:
            what = f"an action moved the offset from {step.begin}, where it was not, but at {at}"
            yield Problem(Kind.JUMP, what, queue, at or 0, step.begin or 0, group, step.commit_id)
    elif at is None:
        if step.start_rule == "stored":
            yield Problem(
                Kind.JUMP, "a range without a recorded start", queue, step.begin or 0, step.end, group, step.commit_id
            )
    elif step.begin != at:
        begin = step.begin or 0
        what = f"a range begins at {begin}, the one before ended at {at}"
        yield Problem(Kind.JUMP, what, queue, min(at, begin), max(at, begin), group, step.commit_id)


def _doubled_in_a_pass(group: str, queue: Queue, history: list[_Step]) -> Iterator[Problem]:
    """Offsets with two committed outcomes in one pass, whatever lies between their ranges."""
    ends: dict[int, int] = {}
    for step in sorted((one for one in history if one.pass_ is not None), key=lambda one: one.begin or 0):
        begin, pass_ = step.begin or 0, step.pass_ or 0
        if begin < ends.get(pass_, 0) and begin < step.end:
            what = f"committed twice in pass {pass_}"
            yield Problem(Kind.DOUBLED, what, queue, begin, min(step.end, ends[pass_]), group, step.commit_id)
        ends[pass_] = max(ends.get(pass_, 0), step.end)


def _unexplained_changes(shard: ShardRecords) -> Iterator[Problem]:
    """Entries of the log that change an offset, for which no commit of the entry has a range or a move."""
    commits = {commit.commit_id: commit for commit in shard.commits}
    for entry in shard.table.entries:
        of_entry = [commits[commit_id] for commit_id in entry.commit_ids if commit_id in commits]
        for commit_id in entry.commit_ids:
            if commit_id not in commits:
                yield Problem(
                    Kind.HALF_WINDOW, f"entry {entry.version} names a commit without a ctl row", commit_id=commit_id
                )
        steps = [named for commit in of_entry for named in _steps(commit)]
        explained = {(group, queue, step.end) for group, queue, step in steps}
        for app_id, value in entry.changes.items():
            kind, *parts = map(unquote, app_id.split("/"))
            if kind != "off":
                continue
            group, queue = parts[0], Queue(parts[1], parts[2], int(parts[3]))
            if (group, queue, value) not in explained:
                what = f"entry {entry.version} moves the offset to {value} without an action"
                yield Problem(Kind.JUMP, what, queue, value, value, group)
