"""The listener's calls against what was committed: what is acked was called and succeeded, what failed is retried, dead or
dropped, and what was never called is filtered.

A range is proven by one attempt of its request, since a request that was cut may have called the listener several times,
with other answers. Which offsets of a range are acked is not stored; their number and the sum of their hashes are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.independent.evidence import Rows
from tests.faults.independent.history import SUCCESS, Call
from tests.faults.independent.problems import Kind, Problem
from tests.faults.independent.records import RETRY, Place, Queue, Range, ShardRecords, hash_sum

Outcomes = Mapping[tuple[Queue, int], set[str]]
"""What the listener answered for a message in one attempt: in order a message has several answers."""

FAILED = ("retried", "dead")


@dataclass(frozen=True, slots=True)
class _Judged:
    """A range against one attempt."""

    never: tuple[int, ...]
    """Acked or filtered, without a call."""
    failed: tuple[int, ...]
    """Acked or filtered, and the listener only failed."""
    succeeded: tuple[int, ...]
    """Acked or filtered, and the listener succeeded."""
    not_failed: tuple[int, ...]
    """Retried or dead, although the listener did not fail."""


def calls_by_request(calls: Iterable[Call]) -> dict[tuple[str, str], dict[str, dict[tuple[Queue, int], set[str]]]]:
    """By request and group, by attempt, the answers for each message."""
    result: dict[tuple[str, str], dict[str, dict[tuple[Queue, int], set[str]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(set))
    )
    for call in calls:
        result[call.request, call.group][call.attempt][call.place].add(call.outcome)
    return result


def call_problems(shard: ShardRecords, rows: Rows, calls: Iterable[Call]) -> Iterator[Problem]:
    by_request = calls_by_request(calls)
    for commit in shard.commits:
        if commit.action != "consume":
            continue
        tags = _tags_by_topic(commit.subscription)
        for range_ in commit.ranges:
            outcomes = _outcomes(range_, rows)
            attempts: Sequence[Outcomes] = list(by_request.get((range_.request, range_.group), {}).values()) or [{}]
            judged = [_judged(range_, outcomes, attempt) for attempt in attempts]
            if not any(_proves(range_, one) for one in judged):
                best = max(judged, key=lambda one: len(one.succeeded) - len(one.failed))
                yield from _problems(range_, best)
            if range_.queue.topic in tags:
                yield from _wrongly_filtered(shard, range_, outcomes, attempts, tags[range_.queue.topic])


def _outcomes(range_: Range, rows: Rows) -> dict[int, str]:
    """The outcomes that have rows or copies."""
    of_range = rows.get((range_.commit_id, range_.group, range_.queue), ())
    return {offset: row.outcome for row in of_range for offset in range(row.begin, row.end)}


def _judged(range_: Range, outcomes: Mapping[int, str], attempt: Outcomes) -> _Judged:
    never: list[int] = []
    failed: list[int] = []
    succeeded: list[int] = []
    for offset in range(range_.begin, range_.end):
        if offset not in outcomes:
            answers = attempt.get((range_.queue, offset), set())
            (succeeded if SUCCESS in answers else failed if answers else never).append(offset)
    not_failed = [
        offset
        for offset, outcome in outcomes.items()
        if outcome in FAILED and attempt.get((range_.queue, offset), set()) <= {SUCCESS}
    ]
    return _Judged(tuple(never), tuple(failed), tuple(succeeded), tuple(not_failed))


def _proves(range_: Range, judged: _Judged) -> bool:
    return (
        not judged.failed
        and not judged.not_failed
        and len(judged.succeeded) == range_.counts["acked"]
        and hash_sum(judged.succeeded) == range_.hashes["acked"]
    )


def _problems(range_: Range, judged: _Judged) -> Iterator[Problem]:
    def of(kind: Kind, what: str, offsets: Sequence[int]) -> Problem:
        begin, end = (min(offsets), max(offsets) + 1) if offsets else (range_.begin, range_.end)
        return Problem(kind, what, range_.queue, begin, end, range_.group, range_.commit_id)

    missing = range_.counts["acked"] - len(judged.succeeded)
    if judged.failed:
        yield of(Kind.DOUBLED, f"{len(judged.failed)} consumed, but the listener failed", judged.failed)
    if missing > len(judged.failed):
        yield of(Kind.LOST, f"{missing} acked, but the listener was not called", judged.never)
    elif missing <= 0 and not judged.failed and not judged.not_failed:
        yield of(Kind.DOUBLED, f"{len(judged.succeeded)} succeeded, acked are others", judged.succeeded)
    if judged.not_failed:
        yield of(
            Kind.DOUBLED, f"{len(judged.not_failed)} retried or dead, but the listener did not fail", judged.not_failed
        )


# --- filters ---------------------------------------------------------------------------------------------------------


def _tags_by_topic(subscription: str | None) -> dict[str, frozenset[str]]:
    """By topic the tags that a subscription lets through, "*" for all. SQL92 expressions are left out."""
    expressions = json.loads(subscription or "{}")
    return {
        topic: frozenset(tag.strip() for tag in of_topic["TAG"].split("||"))
        for topic, of_topic in expressions.items()
        if "TAG" in of_topic
    }


def _wrongly_filtered(
    shard: ShardRecords, range_: Range, outcomes: Mapping[int, str], attempts: Sequence[Outcomes], tags: frozenset[str]
) -> Iterator[Problem]:
    """Messages with a tag of the subscription for which no attempt has called the listener."""
    if range_.queue.topic.startswith(RETRY):
        return
    messages = shard.by_place()
    for offset in range(range_.begin, range_.end):
        if offset in outcomes or any((range_.queue, offset) in attempt for attempt in attempts):
            continue
        for message in messages.get(Place(range_.queue, offset), ()):
            if "*" in tags or message.tags in tags:
                what = "its tag is subscribed, but the listener was never called"
                yield Problem(Kind.LOST, what, range_.queue, offset, offset + 1, range_.group, range_.commit_id)
