"""The generations of a broker's queues, and the offsets of its groups in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest

from rmq_store.broker_files.log_names import LogNames
from rmq_store.broker_files.queue_generations import (
    AtBroker,
    Generations,
    WithoutEntries,
    observed_here,
    without_entries,
)
from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.message.message import MessageQueue

ONE_NAME = LogNames(("a",))
QUEUE = MessageQueue("T", "a", 0)
OTHER = MessageQueue("U", "a", 0)
TWICE = Generations({("T", 0): (5, 12)})
"""Queue 0 of T had 5 messages, then 7, and has begun again at offset 12."""


def at_broker(
    newest: Iterable[Observed] = (), topics: Collection[str] = (), empty: Iterable[WithoutEntries] = ()
) -> AtBroker:
    return AtBroker(tuple(newest), topics, tuple(empty))


def empty(*, is_gone: bool) -> WithoutEntries:
    """Queue 0 of U."""
    return WithoutEntries("U", 0, 7, None if is_gone else 100, is_gone)


@pytest.mark.parametrize(("offset", "at_broker"), [(0, 0), (4, 4), (5, 0), (11, 6), (12, 0), (30, 18)])
def test_each_message_has_the_offset_of_its_generation_at_the_broker(offset: int, at_broker: int) -> None:
    assert TWICE.broker_offset("T", 0, offset) == at_broker
    assert TWICE.broker_offset("U", 0, offset) == offset


def test_the_newest_generation_has_the_last_base() -> None:
    assert (TWICE.base(QUEUE), TWICE.base(OTHER), TWICE.newest) == (12, 0, {("T", 0): 12})
    more = TWICE.with_new({("T", 0): 20, ("U", 0): 3})
    assert more == Generations({("T", 0): (5, 12, 20), ("U", 0): (3,)})
    assert Generations.of_rows(more.rows()) == more


@pytest.mark.parametrize(("cut", "bases"), [(0, None), (5, None), (6, (5,)), (12, (5,)), (13, (5, 12))])
def test_a_log_that_lost_its_end_has_the_generations_before_the_cut(cut: int, bases: tuple[int, ...] | None) -> None:
    assert TWICE.before({("T", 0): cut}) == Generations({("T", 0): bases} if bases else {})


@pytest.mark.parametrize(
    ("before", "now", "observed"),
    [
        (None, None, None),
        (None, 2, 14),
        (9, 2, 14),
        (9, None, 9),  # it has not begun the newest generation
        (12, None, 12),
        (13, None, None),  # its offset was deleted at the broker
        (9, 19, 9),  # beyond the end: one that a broker of version 4 has left there
        (9, 18, 30),
        (13, 19, 31),  # the generation before had 7 messages: the log may have lost its end
        (9, 0, 9),  # it has consumed nothing of the newest generation
        (12, 0, 12),
        (13, 0, 12),  # it was reset at the broker
    ],
)
def test_a_group_of_the_broker_has_its_offset_in_the_newest_generation_or_keeps_its_last_one(
    before: int | None, now: int | None, observed: int | None
) -> None:
    earlier = [] if before is None else [Observed("g", QUEUE, before)]
    newest = [] if now is None else [Observed("g", QUEUE, now)]
    result = observed_here(ONE_NAME, TWICE, at_broker(newest, ("T", "U")), {QUEUE: 30}, earlier)
    assert result == (() if observed is None else (Observed("g", QUEUE, observed),))


def test_a_group_keeps_its_offset_in_a_topic_that_was_deleted() -> None:
    earlier = (Observed("g", OTHER, 3),)
    assert observed_here(ONE_NAME, Generations(), at_broker(topics=("T",)), {}, earlier) == earlier
    assert observed_here(ONE_NAME, Generations(), at_broker(topics=("T", "U")), {}, earlier) == ()
    assert observed_here(ONE_NAME, Generations(), at_broker(), {}, earlier) == ()


@pytest.mark.parametrize("kind", ["gone", "without entries", "no consume queues"])
def test_a_group_keeps_its_offset_where_its_queue_may_have_been_made_again(kind: str) -> None:
    earlier = (Observed("g", OTHER, 3),)
    queues = () if kind == "no consume queues" else (empty(is_gone=kind == "gone"),)
    broker = replace(at_broker((), ("T", "U"), queues), has_queues=kind != "no consume queues")
    assert observed_here(ONE_NAME, Generations(), broker, {}, earlier) == earlier


@pytest.mark.parametrize(
    ("kind", "now", "offset"),
    [
        ("gone", 0, 5),
        ("gone", 3, 5),  # no reset: the queue has no message
        ("without entries", 0, 5),
        ("without entries", 3, 3),  # the copy is not whole, and the group was reset at the broker
        ("written", 0, 0),
        ("gone", 7, 7),
    ],
)
def test_an_offset_in_a_queue_that_was_made_again_does_not_lower_the_one_before(
    kind: str, now: int, offset: int
) -> None:
    queues = () if kind == "written" else (empty(is_gone=kind == "gone"),)
    broker = at_broker((Observed("g", OTHER, now),), ("U",), queues)
    (seen,) = observed_here(ONE_NAME, Generations(), broker, {}, (Observed("g", OTHER, 5),))
    assert seen.offset == offset


@pytest.mark.parametrize(
    ("has_entries", "topics", "log_begin", "earlier", "found"),
    [
        (True, ("U",), 0, None, None),
        (True, (), 101, empty(is_gone=True), None),  # it has begun again
        (False, ("U",), 0, None, empty(is_gone=False)),
        (False, ("U",), 100, None, empty(is_gone=False)),
        (False, ("U",), 101, None, WithoutEntries("U", 0, 7, 100, is_gone=True)),  # retention removed its messages
        (False, ("T",), 0, None, empty(is_gone=True)),  # its topic was deleted
        (True, ("T",), 0, None, None),
        (None, ("T",), 0, None, empty(is_gone=True)),
        (None, (), 0, None, None),
        (None, ("U",), 101, None, None),
        # A copy without consume queues says nothing of it.
        (None, ("U",), 0, empty(is_gone=False), empty(is_gone=False)),
        (None, ("U",), 0, empty(is_gone=True), empty(is_gone=True)),
        (None, ("U",), 101, empty(is_gone=False), WithoutEntries("U", 0, 7, 100, is_gone=True)),
        (None, ("U",), 0, WithoutEntries("U", 0, 6, None, is_gone=True), None),  # a message came since
        (False, ("U",), 0, WithoutEntries("U", 0, 6, None, is_gone=True), empty(is_gone=False)),
    ],
)
def test_the_queues_of_which_a_broker_has_no_entry(
    has_entries: bool | None,
    topics: Collection[str],
    log_begin: int,
    earlier: WithoutEntries | None,
    found: WithoutEntries | None,
) -> None:
    """The last message of the queue is at offset 6, and at 100 in the log."""
    recorded = () if earlier is None else (earlier,)
    queues = without_entries(
        lambda queue: has_entries,
        topics,
        log_begin,
        {OTHER: 7},
        lambda offsets: {queue: 94 + offset for queue, offset in offsets.items()},
        recorded,
    )
    assert queues == (() if found is None else (found,))


@pytest.mark.parametrize("has_entries", [False, None])
def test_no_broker_deletes_the_queues_of_its_delay_levels(has_entries: bool | None) -> None:
    level = MessageQueue("SCHEDULE_TOPIC_XXXX", "a", 2)
    assert without_entries(lambda queue: has_entries, ("T",), 9, {level: 7}, lambda offsets: {level: 1}) == ()


def test_where_the_last_message_is_not_kept_nothing_proves_that_a_queue_is_gone() -> None:
    (queue,) = without_entries(lambda queue: False, ("U",), 9_999, {OTHER: 7}, lambda offsets: {})
    assert queue == WithoutEntries("U", 0, 7, None, is_gone=False)


@pytest.mark.parametrize(("before", "now", "observed"), [(3, 5, 5), (5, 3, 5), (5, None, None), (None, 3, 3)])
def test_how_far_a_delay_level_is_delivered_never_falls(
    before: int | None, now: int | None, observed: int | None
) -> None:
    level = MessageQueue("SCHEDULE_TOPIC_XXXX", "a", 2)
    earlier, newest, result = (
        () if offset is None else (Observed(SCHEDULE_GROUP, level, offset),) for offset in (before, now, observed)
    )
    assert observed_here(ONE_NAME, Generations(), at_broker(newest), {}, earlier) == result


@pytest.mark.parametrize("kind", ["groups", "levels"])
def test_where_the_broker_has_no_file_of_them_the_offsets_of_before_stay(kind: str) -> None:
    group, level = Observed("g", QUEUE, 7), Observed(SCHEDULE_GROUP, MessageQueue("SCHEDULE_TOPIC_XXXX", "a", 2), 5)
    broker = replace(at_broker(), has_groups=kind != "groups", has_levels=kind != "levels")
    kept = {"groups": (group,), "levels": (level,)}[kind]
    assert observed_here(ONE_NAME, Generations(), broker, {}, (level, group)) == kept


def test_in_a_log_with_two_names_a_group_keeps_its_offsets_under_both() -> None:
    """The log was cut at offset 4. Then the topic was deleted, and made again."""
    names = LogNames(("a", "b"), ({("T", 0): 4},))
    newer = MessageQueue("T", "b", 0)
    earlier = (Observed("g", QUEUE, 2), Observed("g", newer, 4))
    again = Generations({("T", 0): (6,)})
    for newest in ((), (Observed("g", newer, 9),)):
        for topics in (("T",), ("U",)):
            assert observed_here(names, again, at_broker(newest, topics), {newer: 8}, earlier) == earlier
    begun = observed_here(names, again, at_broker((Observed("g", newer, 1),), ("T",)), {newer: 8}, earlier)
    assert begun == (Observed("g", QUEUE, 4), Observed("g", newer, 7))


@pytest.mark.parametrize(("now", "observed"), [(0, (2, 8)), (2, (2, 8)), (1, (8, 8))])
def test_a_group_that_is_in_an_older_generation_stays_there_in_a_log_with_two_names(
    now: int, observed: tuple[int, int]
) -> None:
    """Its topic had 7 messages, was deleted and made again, and had one new message when the log lost its end. At offset 0 the
    group has not consumed it. A broker of version 4 keeps the offset 2 of the deleted topic."""
    names = LogNames(("a", "b"), ({("T", 0): 8},))
    newer = MessageQueue("T", "b", 0)
    earlier = (Observed("g", QUEUE, 2), Observed("g", newer, 8))
    newest = at_broker((Observed("g", newer, now),), ("T",))
    seen = observed_here(names, Generations({("T", 0): (7,)}), newest, {newer: 8}, earlier)
    assert tuple(one.offset for one in seen) == observed


@pytest.mark.parametrize(
    ("now", "is_gone", "observed"), [(0, False, (3, 7)), (0, True, (3, 7)), (2, False, (3, 3)), (2, True, (3, 7))]
)
def test_a_queue_that_was_made_again_lowers_no_offset_under_any_name(
    now: int, is_gone: bool, observed: tuple[int, int]
) -> None:
    """The log was cut at offset 3. A whole copy has offset 0 of a queue without messages; 2 is a reset there, to before the
    cut."""
    names = LogNames(("a", "b"), ({("U", 0): 3},))
    newer = MessageQueue("U", "b", 0)
    earlier = (Observed("g", OTHER, 3), Observed("g", newer, 7))
    broker = at_broker((Observed("g", newer, now),), ("U",), (empty(is_gone=is_gone),))
    seen = observed_here(names, Generations(), broker, {newer: 7}, earlier)
    assert tuple(one.offset for one in seen) == observed


@pytest.mark.parametrize(
    ("before", "now", "observed"),
    [
        (14, 7, 14),  # the group has consumed 2 of 5
        (14, 8, 20),
        # It is seen for the first time.
        (None, 5, 17),
        (None, 6, 11),
        (None, 7, 12),
        (None, 8, 12),  # also messages that no import has seen, or this log lost its end
    ],
)
def test_an_offset_beyond_the_end_that_an_older_generation_can_have_is_its_own(
    before: int | None, now: int, observed: int
) -> None:
    """The older one had 7 messages, the newest one has 5."""
    newest = at_broker((Observed("g", QUEUE, now),), ("T",))
    earlier = [] if before is None else [Observed("g", QUEUE, before)]
    (seen,) = observed_here(ONE_NAME, TWICE, newest, {QUEUE: 17}, earlier)
    assert seen.offset == observed


@pytest.mark.parametrize(
    ("before", "now", "observed"),
    [(7, 7, (7, 7)), (9, 7, (9, 7)), (5, 7, (5, 7)), (None, 7, (7, 7)), (None, 5, (5, 7))],
)
def test_a_left_over_offset_is_known_by_the_import_that_continues_a_log(
    before: int | None, now: int, observed: tuple[int, int]
) -> None:
    """The log was cut at offset 7. Then the topic was deleted, made again, and had 2 messages."""
    names = LogNames(("a", "b"), ({("T", 0): 7},))
    newer = MessageQueue("T", "b", 0)
    earlier = [] if before is None else [Observed("g", QUEUE, before)]
    broker = at_broker((Observed("g", newer, now),), ("T",))
    seen = observed_here(names, Generations({("T", 0): (7,)}), broker, {newer: 9}, earlier)
    assert tuple(one.offset for one in seen) == observed


def test_a_delay_level_never_falls_under_any_name() -> None:
    names = LogNames(("a", "b"), ({("SCHEDULE_TOPIC_XXXX", 2): 4},))
    older, newer = (MessageQueue("SCHEDULE_TOPIC_XXXX", name, 2) for name in names.names)
    recorded = (Observed(SCHEDULE_GROUP, older, 2), Observed(SCHEDULE_GROUP, newer, 4))
    for delivered, result in ((1, (2, 4)), (3, (3, 4)), (5, (4, 5))):
        newest = (Observed(SCHEDULE_GROUP, newer, delivered),)
        observed = observed_here(names, Generations(), at_broker(newest), {}, recorded)
        assert tuple(one.offset for one in observed) == result
