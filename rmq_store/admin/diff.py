"""Which messages ended differently in two attempts of a replay.

An attempt is a pass of the replay's queues (``replay.py``), so the pass says which ranges and which failures belong to it.
A success has no row. Ranges are compared and split where something failed, so the cost grows with the failures only. What
failed is followed from copy to copy through deliveries and the replay's follow-up windows. A dead letter that was redriven
still counts as dead: what happens to it later is not part of the attempt.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from shlex import quote
from typing import NamedTuple, Protocol

from rmq_store.admin.replay import first_window
from rmq_store.commit.ctl import Action, Consumed, Ctl
from rmq_store.commit.positions import Outcome, QueueRange
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX, dlq_topic

ACKED_LATER = "acked_later"
"""Failed at first, and a retry of it was acked."""

UNREAD = "unread"
"""The attempt has not read it: it is not finished, its queue is blocked (orderly groups), or it came into the interval of a
backfill after the attempt began."""

HANDLED = "acked or filtered"
"""Neither attempt says which of the two."""

LISTED = 100
"""Messages that are listed by default; all are counted."""

_SELECTED = (Outcome.ACKED, ACKED_LATER, Outcome.RETRIED, Outcome.DEAD, Outcome.DROPPED, Outcome.DUPLICATE)
"""Outcomes that only a message can have that the subscription selects."""


class Place(NamedTuple):
    """Where a message is stored."""

    queue: MessageQueue
    offset: int


# --- what an engine reads --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailedCopy:
    """The copy that the group made of a failed message: a retry copy or a dead letter."""

    origin: Place
    """Where the failed message was read."""
    pass_: int
    at: Place
    """Where the copy is stored."""
    error_type: str | None = None
    error_text: str | None = None


@dataclass(frozen=True, slots=True)
class WithoutCopy:
    """A range with an exceptional outcome and no message of its own."""

    range: QueueRange
    pass_: int
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failures:
    """What failed in a group."""

    copies: Sequence[FailedCopy]
    ranges: Sequence[WithoutCopy]
    deliveries: Mapping[Place, Place]
    """From the place where a copy waited to the one where it was delivered."""


class Named(NamedTuple):
    """The ids and keys of a message; None where it cannot be read any more."""

    offset_msg_id: str | None = None
    unique_key: str | None = None
    keys: str | None = None


class ReplayRows(Protocol):
    """What a comparison reads of a shard, besides the commits."""

    def failures(self, group: str) -> Failures: ...

    def filtered(self, range_: QueueRange, subscription: SubscriptionData) -> Iterable[tuple[int, int]]:
        """The offset ranges ``[begin, end)`` that a subscription does not select, ascending."""

    def named(self, ranges: Sequence[QueueRange]) -> Mapping[Place, Named]:
        """The messages of some ranges that can still be read."""


# --- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptDone:
    """An attempt in one shard."""

    number: int
    pass_: int = 0
    """The pass of the topic's queues in it."""
    begun: Ctl | None = None
    """The commit that began it; of the first attempt its first window. None: the shard has no such attempt."""
    windows: tuple[Ctl, ...] = ()
    """The windows of its request."""

    @property
    def complete(self) -> bool:
        return any(ctl.request_complete for ctl in self.windows)

    @property
    def consumed(self) -> list[tuple[Ctl, Consumed]]:
        """The ranges of the topic that it has read, each with its window. Retries of an earlier part are left out."""
        return [
            (ctl, consumed)
            for ctl in self.windows
            for consumed in ctl.consumed
            if consumed.pass_ == self.pass_ and not _is_retry(consumed.range.queue)
        ]

    def count(self, outcome: Outcome) -> int:
        """Messages with this outcome in its own windows, not counting the outcomes of their retries."""
        return sum(consumed.tally(outcome).count for _, consumed in self.consumed)


@dataclass(frozen=True, slots=True)
class End:
    """How a message ended."""

    outcome: str
    tries: int = 0
    """How often the listener got it."""
    error_type: str | None = None
    """Of the last error."""
    error_text: str | None = None

    def differs(self, other: End) -> bool:
        """Whether outcome or class of error differ. Error texts often contain a time or an id, so they are not compared."""
        return (self.outcome, self.error_type) != (other.outcome, other.error_type)


class Pair(NamedTuple):
    """How many messages had these two outcomes in the first and the second attempt."""

    first: str
    second: str
    messages: int
    differing: int
    """How many of them differ by the outcome or the class of error."""


@dataclass(frozen=True, slots=True)
class MessageDiff:
    """A message that ended differently."""

    queue: MessageQueue
    offset: int
    named: Named
    first: End
    second: End


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """Two attempts in one shard."""

    shard: str
    group: str
    first: AttemptDone
    second: AttemptDone
    table: tuple[Pair, ...]
    listed: tuple[MessageDiff, ...]
    """The first messages that ended differently, by queue and offset."""

    @property
    def differing(self) -> int:
        return sum(pair.differing for pair in self.table)


def _is_retry(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


# --- which attempts --------------------------------------------------------------------------------------------------


def attempts_of(name: str, commits: Sequence[Ctl]) -> list[AttemptDone]:
    """The attempts of a replay in one shard. ``commits``: those of the replay group there, oldest first.

    Raises WrongUse for a group without a replay there.
    """
    begun = [(0, first_window(name, commits))]
    begun += [(ctl.epoch or 0, ctl) for ctl in commits if ctl.action is Action.REPLAY]
    windows = [ctl for ctl in commits if ctl.action is Action.CONSUME]
    return [
        AttemptDone(number, pass_, ctl, tuple(w for w in windows if w.request_id == ctl.request_id))
        for number, (pass_, ctl) in enumerate(begun, 1)
    ]


def chosen(name: str, numbers: tuple[int, int] | None, count: int) -> tuple[int, int]:
    """The numbers of the attempts to compare, of ``count``; None: the last two. Raises WrongUse."""
    again = f"'rmq replay --group {quote(name)} --reprocess REASON' makes the next one"
    if count < 2:
        raise WrongUse(f"{name} has one attempt, and nothing to compare it with; {again}")
    numbers = numbers or (count - 1, count)
    if numbers[0] == numbers[1] or not all(1 <= number <= count for number in numbers):
        raise WrongUse(f"{name} has the attempts 1 to {count}: choose two of them, not {numbers[0]} and {numbers[1]}")
    return numbers


# --- the comparison --------------------------------------------------------------------------------------------------

Ending = tuple[int, int, End]
"""Offsets ``[begin, end)`` of a queue with the same end."""


def compare(
    shard: str,
    name: str,
    commits: Sequence[Ctl],
    rows: ReplayRows,
    *,
    first: AttemptDone,
    second: AttemptDone,
    limit: int,
) -> DiffReport:
    """Two attempts of a replay in one shard; of the messages that ended differently at most ``limit`` are listed."""
    ends = _Ends(name, commits, rows.failures(name))
    # One subscription filters the same messages in both attempts. Two have to be applied, which reads messages.
    several = len({_subscription(*of_window) for attempt in (first, second) for of_window in attempt.consumed}) > 1
    of_first, of_second = (ends.of(attempt, rows if several else None) for attempt in (first, second))
    counts: Counter[tuple[str, str]] = Counter()
    differing: Counter[tuple[str, str]] = Counter()
    listed: list[tuple[QueueRange, End, End]] = []
    room = limit
    for queue in sorted({*of_first, *of_second}):
        for begin, end, one, other in _side_by_side(of_first.get(queue, []), of_second.get(queue, [])):
            a, b = one or End(UNREAD), other or End(UNREAD)
            a, b = _resolved(a, b), _resolved(b, a)
            counts[a.outcome, b.outcome] += end - begin
            if a.differs(b):
                differing[a.outcome, b.outcome] += end - begin
                if room:
                    listed.append((QueueRange(queue, begin, min(end, begin + room)), a, b))
                    room -= len(listed[-1][0])
    named = rows.named([range_ for range_, _, _ in listed])
    return DiffReport(
        shard=shard,
        group=name,
        first=first,
        second=second,
        table=tuple(
            Pair(*pair, count, differing[pair]) for pair, count in sorted(_split(counts, first, second).items())
        ),
        listed=tuple(
            MessageDiff(range_.queue, offset, named.get(Place(range_.queue, offset), Named()), a, b)
            for range_, a, b in listed
            for offset in range(range_.begin, range_.end)
        ),
    )


def _subscription(window: Ctl, consumed: Consumed) -> SubscriptionData:
    """The subscription by which a window has read a queue."""
    topic = consumed.range.queue.topic
    ((type_, expression),) = json.loads(window.subscription or "{}")[topic].items()
    return build_subscription_data(topic, expression, type_)


def _side_by_side(
    first: Sequence[Ending], second: Sequence[Ending]
) -> Iterator[tuple[int, int, End | None, End | None]]:
    """Both, split where one of them begins, changes or ends. Each ascends."""
    at_first = at_second = 0
    for begin, end in pairwise(sorted({cut for ending in (*first, *second) for cut in ending[:2]})):
        while at_first < len(first) and first[at_first][1] <= begin:
            at_first += 1
        while at_second < len(second) and second[at_second][1] <= begin:
            at_second += 1
        one = first[at_first][2] if at_first < len(first) and first[at_first][0] <= begin else None
        other = second[at_second][2] if at_second < len(second) and second[at_second][0] <= begin else None
        if one or other:
            yield begin, end, one, other


def _over(endings: Sequence[Ending], exceptions: Sequence[Ending]) -> list[Ending]:
    """The endings, overlaid with the exceptions."""
    both = _side_by_side(endings, exceptions)
    return [(begin, end, of) for begin, end, usual, exception in both if (of := exception or usual)]


def _resolved(end: End, other: End) -> End:
    """Both attempts have filtered the same messages, so the other one may show whether the message was selected."""
    if end.outcome != HANDLED:
        return end
    if other.outcome in _SELECTED:
        return _ACKED
    return _FILTERED if other.outcome == Outcome.FILTERED else end


def _split(counts: Counter[tuple[str, str]], first: AttemptDone, second: AttemptDone) -> Mapping[tuple[str, str], int]:
    """Splits HANDLED in both attempts into acked and filtered, by the counts of one of them. It stays where neither attempt's
    counts suffice, because a message that one has handled was lost in the other."""
    handled, acked, filtered = ((name, name) for name in (HANDLED, str(Outcome.ACKED), str(Outcome.FILTERED)))
    for side, attempt in enumerate((first, second)):
        of_attempt: Counter[str] = Counter()
        for pair, count in counts.items():
            of_attempt[pair[side]] += count
        if counts[handled] and of_attempt[HANDLED] == counts[handled]:
            rest = attempt.count(Outcome.FILTERED) - of_attempt[Outcome.FILTERED]
            split = counts + Counter({filtered: rest, acked: counts[handled] - rest})
            return {pair: count for pair, count in split.items() if pair != handled}
    return counts


# --- how messages ended ----------------------------------------------------------------------------------------------

_ACKED = End(Outcome.ACKED, 1)
_FILTERED = End(Outcome.FILTERED)
_Pass = tuple[MessageQueue, int]


class _Ends:
    """How the messages ended that a replay group has read in a shard."""

    def __init__(self, name: str, commits: Sequence[Ctl], failures: Failures) -> None:
        self._dead_letters = dlq_topic(name)
        self._deliveries = failures.deliveries
        self._copies: dict[_Pass, dict[int, FailedCopy]] = defaultdict(dict)
        for copy in failures.copies:
            self._copies[copy.origin.queue, copy.pass_][copy.origin.offset] = copy
        self._ranges: dict[_Pass, list[Ending]] = defaultdict(list)
        for row in failures.ranges:
            end = End(row.outcome, 1 if row.outcome == Outcome.DROPPED else 0, error_text=row.reason)
            self._ranges[row.range.queue, row.pass_].append((row.range.begin, row.range.end, end))
        self._follow_ups: dict[MessageQueue, list[tuple[int, int, int]]] = defaultdict(list)
        for range_, pass_ in ((consumed.range, consumed.pass_) for ctl in commits for consumed in ctl.consumed):
            if _is_retry(range_.queue):
                self._follow_ups[range_.queue].append((range_.begin, range_.end, pass_))
        for ranges in self._follow_ups.values():
            ranges.sort(key=itemgetter(0))  # stable: of equal begins the later read stays last

    def of(self, attempt: AttemptDone, rows: ReplayRows | None) -> dict[MessageQueue, list[Ending]]:
        """Per queue how the messages ended that an attempt has read, ascending. ``rows``: to apply the subscription; None
        where both attempts have the same one."""
        successes: dict[MessageQueue, list[Ending]] = defaultdict(list)
        for window, consumed in attempt.consumed:
            successes[consumed.range.queue] += _successes(window, consumed, rows)
        return {
            queue: _over(sorted(endings, key=itemgetter(0)), self._failed(queue, attempt))
            for queue, endings in successes.items()
        }

    def _failed(self, queue: MessageQueue, attempt: AttemptDone) -> list[Ending]:
        of_pass = queue, attempt.pass_
        failed = [(offset, offset + 1, self._followed(copy)) for offset, copy in self._copies[of_pass].items()]
        return sorted([*failed, *self._ranges[of_pass]], key=itemgetter(0))

    def _followed(self, copy: FailedCopy) -> End:
        """How the chain of retries ended that begins with a copy."""
        tries = 1
        while copy.at.queue.topic != self._dead_letters:
            at = copy.at
            while at in self._deliveries:  # from a timer queue into the one of its second, and then to the group
                at = self._deliveries[at]
            pass_ = self._read_in(at)
            if pass_ is None:
                return End(Outcome.RETRIED, tries, copy.error_type, copy.error_text)
            again = self._copies[at.queue, pass_].get(at.offset)
            if again is None:
                ranges = self._ranges[at.queue, pass_]
                lost = next((end for begin, behind, end in ranges if begin <= at.offset < behind), None)
                return lost or End(ACKED_LATER, tries + 1, copy.error_type, copy.error_text)
            copy, tries = again, tries + 1
        return End(Outcome.DEAD, tries, copy.error_type, copy.error_text)

    def _read_in(self, at: Place) -> int | None:
        """The pass in which a place of a retry queue was read last, None: not yet."""
        ranges = self._follow_ups.get(at.queue, [])
        before = bisect_right(ranges, at.offset, key=itemgetter(0))
        _, end, pass_ = ranges[before - 1] if before else (0, 0, 0)
        return pass_ if at.offset < end else None


def _successes(window: Ctl, consumed: Consumed, rows: ReplayRows | None) -> list[Ending]:
    """A range as if nothing in it had failed."""
    range_, acked = consumed.range, consumed.tally(Outcome.ACKED).count
    filtered = consumed.tally(Outcome.FILTERED).count
    if filtered and acked and rows is not None:
        ranges = [(begin, end, _FILTERED) for begin, end in rows.filtered(range_, _subscription(window, consumed))]
        return _over([(range_.begin, range_.end, _ACKED)], ranges)
    end = End(HANDLED) if acked and filtered else _FILTERED if filtered else _ACKED
    return [(range_.begin, range_.end, end)] if len(range_) else []
