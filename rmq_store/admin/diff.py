"""Which messages ended differently in two attempts of a replay.

An attempt is a pass of the replay's queues (``replay.py``), so the pass says which ranges and which failures are its own.
A success has no row: ranges are compared, cut where something failed, so the cost follows the failures. What failed is
followed from copy to copy through deliveries and the replay's follow-up windows. A dead letter that was sent again stays
dead here: its new life is no part of the attempt.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, Protocol

from rmq_store.admin.replay import first_window
from rmq_store.commit.ctl import Action, Consumed, Ctl
from rmq_store.commit.positions import Outcome, QueueRange
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.message.message import RETRY_GROUP_TOPIC_PREFIX, MessageQueue, dlq_topic

ACKED_LATER = "acked_later"
"""Failed at first, and a retry of it was acked."""

UNREAD = "unread"
"""The attempt has not come so far: it is not finished, or in order its queue waits at a message."""

HANDLED = "acked or filtered"
"""Nothing says which of the two, and the other attempt does not either."""

LISTED = 100
"""Messages that are listed unless another limit is given; all are counted."""

_WANTED = (Outcome.ACKED, ACKED_LATER, Outcome.RETRIED, Outcome.DEAD, Outcome.DROPPED, Outcome.DUPLICATE)
"""What only a message comes to that the subscription wants."""


class Place(NamedTuple):
    """Where a message stands."""

    queue: MessageQueue
    offset: int


# --- what an engine tells --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailedCopy:
    """What the group made of the message at ``origin``: a copy that waits, or a dead letter, ``at`` another place."""

    origin: Place
    pass_: int
    at: Place
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
    """What the rows of a group say. ``deliveries``: from where a copy waited to where it was delivered."""

    copies: Sequence[FailedCopy]
    ranges: Sequence[WithoutCopy]
    deliveries: Mapping[Place, Place]


class Named(NamedTuple):
    """What a person knows a message by; None where it cannot be read any more."""

    offset_msg_id: str | None = None
    unique_key: str | None = None
    keys: str | None = None


class ReplayRows(Protocol):
    """What a comparison asks of a shard, besides the commits."""

    def failures(self, group: str) -> Failures: ...

    def filtered(self, range_: QueueRange, subscription: SubscriptionData) -> Iterable[tuple[int, int]]:
        """The offsets ``[begin, end)`` that a subscription does not want, in pieces that ascend."""

    def named(self, ranges: Sequence[QueueRange]) -> Mapping[Place, Named]:
        """The messages of some ranges that can still be read."""


# --- what is reported ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptDone:
    """An attempt in one shard. ``pass_``: of the topic's queues in it. ``begun``: the commit that began it, of the first
    one its first window; None: the shard has no such attempt. ``windows``: those of its request."""

    number: int
    pass_: int = 0
    begun: Ctl | None = None
    windows: tuple[Ctl, ...] = ()

    @property
    def complete(self) -> bool:
        return any(ctl.request_complete for ctl in self.windows)

    @property
    def consumed(self) -> list[tuple[Ctl, Consumed]]:
        """What it has read of the topic, each range with its window. A part may have read retries of an earlier part."""
        return [
            (ctl, consumed)
            for ctl in self.windows
            for consumed in ctl.consumed
            if consumed.pass_ == self.pass_ and not _is_retry(consumed.range.queue)
        ]

    def count(self, outcome: Outcome) -> int:
        """Messages that its own windows made this of; what became of their retries is not in it."""
        return sum(consumed.tally(outcome).count for _, consumed in self.consumed)


@dataclass(frozen=True, slots=True)
class End:
    """How a message ended. ``tries``: how often the listener was asked about it. The error is its last one."""

    outcome: str
    tries: int = 0
    error_type: str | None = None
    error_text: str | None = None

    def differs(self, other: End) -> bool:
        """Texts of errors often name a time or an id: they are shown, and only the classes are compared."""
        return (self.outcome, self.error_type) != (other.outcome, other.error_type)


class Pair(NamedTuple):
    """So many messages ended like this in the two attempts. ``differing``: by the outcome, or the class of error."""

    first: str
    second: str
    messages: int
    differing: int


@dataclass(frozen=True, slots=True)
class MessageDiff:
    """A message that ended differently."""

    queue: MessageQueue
    offset: int
    named: Named
    first: End
    second: End


@dataclass(frozen=True, slots=True)
class DiffReport:
    """Two attempts in one shard. ``listed``: the first messages that ended differently, by queue and offset."""

    shard: str
    group: str
    first: AttemptDone
    second: AttemptDone
    table: tuple[Pair, ...]
    listed: tuple[MessageDiff, ...]

    @property
    def differing(self) -> int:
        return sum(pair.differing for pair in self.table)


def _is_retry(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


# --- which attempts --------------------------------------------------------------------------------------------------


def attempts_of(name: str, commits: Sequence[Ctl]) -> list[AttemptDone]:
    """The attempts of a replay in one shard. ``commits``: those of the replay group there, oldest first.

    Raises WrongUse for a group that has replayed nothing there.
    """
    begun = [(0, first_window(name, commits))]
    begun += [(ctl.epoch or 0, ctl) for ctl in commits if ctl.action is Action.REPLAY]
    windows = [ctl for ctl in commits if ctl.action is Action.CONSUME]
    return [
        AttemptDone(number, pass_, ctl, tuple(w for w in windows if w.request_id == ctl.request_id))
        for number, (pass_, ctl) in enumerate(begun, 1)
    ]


def chosen(name: str, asked: tuple[int, int] | None, count: int) -> tuple[int, int]:
    """The two attempts to compare: the last two of so many unless others are asked for. Raises WrongUse."""
    again = f"'rmq replay --group {name} --reprocess REASON' makes the next one"
    if count < 2:
        raise WrongUse(f"{name} has one attempt, and nothing to compare it with; {again}")
    numbers = asked or (count - 1, count)
    if numbers[0] == numbers[1] or not all(1 <= number <= count for number in numbers):
        raise WrongUse(f"{name} has the attempts 1 to {count}: choose two of them, not {numbers[0]} and {numbers[1]}")
    return numbers


# --- the comparison --------------------------------------------------------------------------------------------------

Ending = tuple[int, int, End]
"""Offsets ``[begin, end)`` of a queue that ended alike."""


def compare(
    shard: str, name: str, commits: Sequence[Ctl], rows: ReplayRows, first: AttemptDone, second: AttemptDone, limit: int
) -> DiffReport:
    """Two attempts of a replay in one shard; of the messages that ended differently at most ``limit`` are listed."""
    ends = _Ends(name, commits, rows.failures(name))
    # One subscription filters the same messages twice. Of two each has to be asked, which reads what it looks at.
    several = len({_wanted(*of_window) for attempt in (first, second) for of_window in attempt.consumed}) > 1
    of_first, of_second = (ends.of(attempt, rows if several else None) for attempt in (first, second))
    counts: Counter[tuple[str, str]] = Counter()
    differing: Counter[tuple[str, str]] = Counter()
    listed: list[tuple[QueueRange, End, End]] = []
    left = limit
    for queue in sorted({*of_first, *of_second}):
        for begin, end, one, other in _side_by_side(of_first.get(queue, []), of_second.get(queue, [])):
            a, b = one or End(UNREAD), other or End(UNREAD)
            a, b = _resolved(a, b), _resolved(b, a)
            counts[a.outcome, b.outcome] += end - begin
            if a.differs(b):
                differing[a.outcome, b.outcome] += end - begin
                if left:
                    listed.append((QueueRange(queue, begin, min(end, begin + left)), a, b))
                    left -= len(listed[-1][0])
    named = rows.named([range_ for range_, _, _ in listed])
    return DiffReport(
        shard,
        name,
        first,
        second,
        tuple(Pair(*pair, count, differing[pair]) for pair, count in sorted(_split(counts, first, second).items())),
        tuple(
            MessageDiff(range_.queue, offset, named.get(Place(range_.queue, offset), Named()), a, b)
            for range_, a, b in listed
            for offset in range(range_.begin, range_.end)
        ),
    )


def _wanted(window: Ctl, consumed: Consumed) -> SubscriptionData:
    """The subscription by which a window has read a queue."""
    topic = consumed.range.queue.topic
    ((type_, expression),) = json.loads(window.subscription or "{}")[topic].items()
    return build_subscription_data(topic, expression, type_)


def _side_by_side(
    first: Sequence[Ending], second: Sequence[Ending]
) -> Iterator[tuple[int, int, End | None, End | None]]:
    """Both, cut where one of them begins, changes or ends. Each ascends."""
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
    """The endings, with the exceptions among them."""
    both = _side_by_side(endings, exceptions)
    return [(begin, end, of) for begin, end, usual, exception in both if (of := exception or usual)]


def _resolved(end: End, other: End) -> End:
    """Both attempts have filtered the same messages, so the other one may tell whether this one was wanted."""
    if end.outcome != HANDLED:
        return end
    if other.outcome in _WANTED:
        return _ACKED
    return _FILTERED if other.outcome == Outcome.FILTERED else end


def _split(counts: Counter[tuple[str, str]], first: AttemptDone, second: AttemptDone) -> Mapping[tuple[str, str], int]:
    """What both attempts have handled, as acked and filtered, by what one of them has counted. Left as it is where
    neither can tell, because something that it has handled was lost to the other one."""
    handled, acked, filtered = ((name, name) for name in (HANDLED, str(Outcome.ACKED), str(Outcome.FILTERED)))
    for side, attempt in enumerate((first, second)):
        told: Counter[str] = Counter()
        for pair, count in counts.items():
            told[pair[side]] += count
        if counts[handled] and told[HANDLED] == counts[handled]:
            rest = attempt.count(Outcome.FILTERED) - told[Outcome.FILTERED]
            split = counts + Counter({filtered: rest, acked: counts[handled] - rest})
            return {pair: count for pair, count in split.items() if pair != handled}
    return counts


# --- how messages ended ----------------------------------------------------------------------------------------------

_ACKED = End(Outcome.ACKED, 1)
_FILTERED = End(Outcome.FILTERED)
_Pass = tuple[MessageQueue, int]


class _Ends:
    """How everything ended that a replay group has read in a shard."""

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
            ranges.sort(key=itemgetter(0))  # what was read again begins no earlier in the list

    def of(self, attempt: AttemptDone, ask: ReplayRows | None) -> dict[MessageQueue, list[Ending]]:
        """Per queue how the messages ended that an attempt has read; ascends. ``ask``: whom the subscription wants,
        where it is not enough that both attempts wanted the same."""
        found: dict[MessageQueue, list[Ending]] = defaultdict(list)
        for window, consumed in attempt.consumed:
            found[consumed.range.queue] += _successes(window, consumed, ask)
        return {
            queue: _over(sorted(of, key=itemgetter(0)), self._failed(queue, attempt)) for queue, of in found.items()
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


def _successes(window: Ctl, consumed: Consumed, ask: ReplayRows | None) -> list[Ending]:
    """A range as if nothing in it had failed."""
    range_, acked = consumed.range, consumed.tally(Outcome.ACKED).count
    filtered = consumed.tally(Outcome.FILTERED).count
    if filtered and acked and ask is not None:
        pieces = [(begin, end, _FILTERED) for begin, end in ask.filtered(range_, _wanted(window, consumed))]
        return _over([(range_.begin, range_.end, _ACKED)], pieces)
    end = End(HANDLED) if acked and filtered else _FILTERED if filtered else _ACKED
    return [(range_.begin, range_.end, end)] if len(range_) else []
