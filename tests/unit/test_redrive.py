"""Which letters wait: what is asked, without what was sent, told as offsets one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.admin.dead_letters import DeadLetterFilter, Place
from rmq_store.admin.redrive import RedriveRequest, plan_redrive
from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Observed
from rmq_store.commit.positions import Positions, QueueRange, max_id, min_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.offset_ranges import runs

LETTERS = MessageQueue("%DLQ%billing", "broker-a", 0)
ANA = Actor("ana", "test")
Offsets = st.frozensets(st.integers(0, 30))


@dataclass(frozen=True, slots=True)
class Shard:
    """One dead-letter queue, ``[3, 31)``; the letter at n died at n ms."""

    name: str = "broker-a"
    local_broker: str = "lake-broker-a"
    held: Positions = field(default_factory=lambda: Positions(0, {max_id(LETTERS): 31, min_id(LETTERS): 3}))

    def positions(self) -> Positions:
        return self.held

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        return {queue: min(max(time_ms, 3), 31) for queue in queues}

    def others(self) -> list[Shard]:
        return []

    def body_sizes(self, range_: QueueRange) -> Iterator[tuple[int, int]]:
        raise AssertionError("a redrive reads no bodies")

    def incomplete_imports(self) -> dict[str, int]:
        return {}

    def observed(self) -> list[Observed]:
        return []

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        raise AssertionError("there is one shard")

    def delete_epochs(self, group: str) -> list[int]:
        return []

    def windows_since(self, group: str | None, ms: int) -> list[Ctl]:
        return []

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        return False


def redrive(offsets: frozenset[int]) -> Ctl:
    ranges = [QueueRange(LETTERS, begin, end) for begin, end in runs(sorted(offsets))]
    return Ctl("c", Action.REDRIVE, ANA, group="billing", consumed=tuple(Consumed(range_, 0, {}) for range_ in ranges))


def waiting(letters: DeadLetterFilter, redrives: Sequence[Ctl]) -> list[int]:
    request = RedriveRequest(group="billing", dead_letters=letters, request_id="2026-11-20-r", actor=ANA, reason="why")
    pieces = plan_redrive(Shard(), request, (), redrives).waiting.get(LETTERS, ())
    assert all(first[1] <= second[0] for first, second in pairwise(pieces))
    return [offset for begin, end in pieces for offset in range(begin, end)]


@given(st.lists(Offsets, max_size=3), st.integers(0, 35), st.integers(0, 35))
def test_what_waits_is_what_is_asked_without_what_was_sent(sent: list[frozenset[int]], since: int, until: int) -> None:
    gone = frozenset().union(*sent)
    asked = range(max(since, 3), min(until, 31)) if since < until else range(3, 31)
    letters = DeadLetterFilter(from_ms=since, until_ms=until) if since < until else DeadLetterFilter(all=True)
    assert waiting(letters, [redrive(offsets) for offsets in sent]) == [o for o in asked if o not in gone]


@given(st.frozensets(st.integers(3, 30), min_size=1), Offsets)
def test_letters_that_are_named_wait_unless_they_were_sent(named: frozenset[int], sent: frozenset[int]) -> None:
    letters = DeadLetterFilter(places=tuple(Place("broker-a", 0, offset) for offset in named))
    assert waiting(letters, [redrive(sent)]) == sorted(named - sent)


@given(Offsets)
def test_runs_hold_each_offset_once_and_do_not_touch(offsets: frozenset[int]) -> None:
    pieces = runs(sorted(offsets))
    assert [offset for begin, end in pieces for offset in range(begin, end)] == sorted(offsets)
    assert all(first[1] < second[0] for first, second in pairwise(pieces))


@pytest.mark.parametrize("name", ["from_ms", "until_ms"])
def test_a_time_of_a_filter_in_seconds_is_refused_since_it_would_be_in_1970(name: str) -> None:
    times: dict[str, Any] = {name: 1_795_000_000}
    with pytest.raises(WrongUse, match="the time 1795000000 looks like seconds"):
        DeadLetterFilter(**times)


def test_a_time_of_a_filter_may_be_a_datetime_with_a_zone() -> None:
    letters = DeadLetterFilter(from_ms=datetime(1970, 1, 1, 0, 0, 0, 10_000, tzinfo=UTC), until_ms=20)
    assert waiting(letters, []) == list(range(10, 20))
    assert letters.parameters() == {"from_ms": 10, "until_ms": 20}


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"keys": frozenset({"a", ""})}, r"^a key \(--key\) is empty$"),
        ({"keys": frozenset({" "})}, r"^a key \(--key\) is empty$"),
        ({"keys": frozenset({1})}, "^a key must be a text, it is of the type int$"),
        ({"keys": frozenset({"\ud800"})}, "a key .* contains an unpaired surrogate"),
        ({"keys": frozenset(), "original_topic": "T"}, "^keys is empty: give at least one"),
        ({"places": (), "original_topic": "T"}, "^places is empty: give at least one"),
        ({"places": (Place("broker-a", False, 1),)}, "^queue_id must be a whole number"),
        ({"original_topic": ""}, r"^the original topic \(--original-topic\) is empty$"),
        ({"original_topic": "\ud800"}, "original_topic .* contains an unpaired surrogate"),
    ],
)
def test_a_condition_without_a_value_is_refused_and_selects_nothing(condition: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        DeadLetterFilter(**condition)


def test_keys_are_told_apart_by_spaces_and_by_nothing_else_as_in_the_index() -> None:
    letters = DeadLetterFilter(keys=frozenset({"a", "b\tc"}))
    told = [letters.matches(None, keys, "U") for keys in ("x a y", "b\tc", "a\tb", "b c", "a  c", " ", "", None)]
    assert told == [True, True, False, False, True, False, False, False]
