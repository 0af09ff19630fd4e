"""Groups that absorb duplicates: no key is acked twice, and no message is absorbed without an earlier ack of its key
(docs/decisions/0005-duplicates.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.faults.independent.called import Outcomes, calls_by_request
from tests.faults.independent.evidence import Rows
from tests.faults.independent.history import SUCCESS, Call
from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import RETRY, Place, ShardRecords


def absorption_problems(shard: ShardRecords, rows: Rows, calls: Iterable[Call]) -> Iterator[Problem]:
    """An ack of epoch e counts for a queue whose pass is e or less; in the retry topic, for windows of epoch e."""
    calls = list(calls)
    by_request = calls_by_request(calls)
    keys = {Place(*call.place): call.key for call in calls}
    acked: dict[tuple[str, str], int] = {}
    for commit in shard.commits:
        if commit.action != "consume" or "key_rows" not in commit.parameters:
            continue
        group, epoch = commit.group or "", commit.epoch or 0
        attempts = list(by_request.get((commit.request, group), {}).values())
        of_commit: dict[str, Place] = {}
        duplicates: list[Place] = []
        for one in commit.ranges:
            of_range = rows.get((one.commit_id, one.group, one.queue), ())
            outcomes = {offset: row.outcome for row in of_range for offset in range(row.begin, row.end)}
            since = epoch if one.queue.topic.startswith(RETRY) else one.pass_
            for offset in range(one.begin, one.end):
                place = Place(one.queue, offset)
                key = keys.get(place)
                if outcomes.get(offset) == "duplicate":
                    duplicates.append(place)
                if offset in outcomes or not key or not _has_succeeded(attempts, place):
                    continue
                earlier = acked.get((group, key))
                if key in of_commit or (earlier is not None and earlier >= since):
                    what = f"key {key} was acked before"
                    yield Problem(Kind.DOUBLED, what, one.queue, offset, offset + 1, group, commit.commit_id)
                of_commit[key] = place
        acked |= {(group, key): epoch for key in of_commit}
        yield from _absorbed_without_ack(shard, duplicates, {key for name, key in acked if name == group}, group)


def _has_succeeded(attempts: Iterable[Outcomes], place: Place) -> bool:
    return any(SUCCESS in attempt.get((place.queue, place.offset), ()) for attempt in attempts)


def _absorbed_without_ack(
    shard: ShardRecords, duplicates: Iterable[Place], acked: set[str], group: str
) -> Iterator[Problem]:
    messages = shard.by_place()
    for place in duplicates:
        for message in messages.get(place, ()):
            if message.keys not in acked:
                what = f"absorbed, but key {message.keys} was never acked"
                yield Problem(Kind.LOST, what, place.queue, place.offset, place.offset + 1, group)
