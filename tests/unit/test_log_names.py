"""The offsets of a broker whose log has several broker names."""

from __future__ import annotations

import pytest

from rmq_store.broker_files.log_names import (
    LogNames,
    Stretch,
    given_again,
    observed_in_log,
    offset_at_broker,
    offsets_in_log,
)
from rmq_store.commit.ctl import Observed
from rmq_store.message.message import MessageQueue

TWICE = LogNames(("a", "a-2", "a-3"), ({("T", 0): 5, ("T", 1): 0}, {("T", 0): 8, ("T", 1): 2, ("T", 2): 3}))
"""Queue 2 is younger than the first cut, queue 3 is younger than both."""
ONCE = LogNames(("a", "a-2"), ({("T", 0): 5},))


def queue(name: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue("T", name, queue_id)


@pytest.mark.parametrize(
    ("queue_id", "stretches"),
    [
        (0, [Stretch(queue("a"), 0, 5), Stretch(queue("a-2"), 5, 8), Stretch(queue("a-3"), 8, None)]),
        (1, [Stretch(queue("a", 1), 0, 0), Stretch(queue("a-2", 1), 0, 2), Stretch(queue("a-3", 1), 2, None)]),
        (2, [Stretch(queue("a-2", 2), 0, 3), Stretch(queue("a-3", 2), 3, None)]),
        (3, [Stretch(queue("a-3", 3), 0, None)]),
    ],
)
def test_each_offset_of_the_broker_is_in_the_queue_of_one_name(queue_id: int, stretches: list[Stretch]) -> None:
    assert TWICE.stretches("T", queue_id) == stretches


@pytest.mark.parametrize(
    ("queue_id", "offset", "name"),
    [(0, 4, "a"), (0, 5, "a-2"), (0, 8, "a-3"), (1, 0, "a-2"), (2, 2, "a-2"), (3, 0, "a-3")],
)
def test_the_message_at_an_offset_is_in_the_queue_of_one_name(queue_id: int, offset: int, name: str) -> None:
    assert TWICE.queue_at("T", queue_id, offset) == queue(name, queue_id)


@pytest.mark.parametrize(
    ("before", "now", "old", "new"),
    [
        (None, 3, 3, 5),  # before the cut
        (None, 5, 5, 5),
        (None, 9, 5, 9),
        (2, 3, 3, 5),
        (4, 3, 4, 5),  # the broker's file is older than what was seen before
        (7, 3, 7, 5),  # it had consumed what was lost
        (7, 9, 7, 9),
        (2, None, 2, 5),  # its offsets were lost too
        (7, None, 7, 5),
    ],
)
def test_a_group_of_the_broker_has_an_offset_in_the_queue_of_each_name(
    before: int | None, now: int | None, old: int, new: int
) -> None:
    earlier = [] if before is None else [Observed("g", queue("a"), before)]
    newest = [] if now is None else [Observed("g", queue("a-2"), now)]
    observed = observed_in_log(ONCE, earlier, newest)
    assert observed == (Observed("g", queue("a"), old), Observed("g", queue("a-2"), new))
    assert observed_in_log(ONCE, observed, newest) == observed


def test_a_log_with_one_name_is_observed_as_it_is() -> None:
    newest = (Observed("g", queue("a"), 3),)
    assert observed_in_log(LogNames(("a",)), (Observed("g", queue("a"), 9),), newest) == newest


@pytest.mark.parametrize(
    ("old", "new", "offset"),
    [(3, 5, 3), (3, 9, 3), (5, 5, 5), (7, 6, 6), (3, None, 3), (7, None, 5), (None, 6, 6), (None, None, None)],
)
def test_the_offset_at_the_broker_is_before_what_the_group_has_not_consumed(
    old: int | None, new: int | None, offset: int | None
) -> None:
    offsets = {queue(name): value for name, value in (("a", old), ("a-2", new)) if value is not None}
    assert offset_at_broker(ONCE.stretches("T", 0), offsets) == offset


@pytest.mark.parametrize(("now", "old", "new"), [(3, 3, 9), (None, 3, 9), (4, 4, 5), (2, 3, 5), (8, 5, 8)])
def test_a_group_that_has_consumed_nothing_since_the_export_keeps_its_offsets(
    now: int | None, old: int, new: int
) -> None:
    """It was before the cut under the older name, and four messages behind it under the newer one."""
    earlier = [Observed("g", queue("a"), 3), Observed("g", queue("a-2"), 9)]
    newest = [] if now is None else [Observed("g", queue("a-2"), now)]
    observed = observed_in_log(ONCE, earlier, newest)
    assert observed == (Observed("g", queue("a"), old), Observed("g", queue("a-2"), new))


@pytest.mark.parametrize(
    ("offsets", "count"),
    [
        ({"a": 3, "a-2": 8, "a-3": 10}, 5),
        ({"a": 3, "a-2": 7}, 2),
        ({"a": 5, "a-2": 7, "a-3": 10}, 2),
        ({"a": 5, "a-2": 8, "a-3": 10}, 0),
        ({"a": 9, "a-2": 9, "a-3": 10}, 0),
        ({"a": 3, "a-2": 5, "a-3": 8}, 0),
        ({"a-3": 10}, 0),
    ],
)
def test_what_the_broker_gives_again_is_counted(offsets: dict[str, int], count: int) -> None:
    assert given_again(TWICE.stretches("T", 0), {queue(name): offset for name, offset in offsets.items()}) == count


@pytest.mark.parametrize(
    ("offset", "before", "after"),
    [
        (3, {}, [3, 5, 8]),
        (3, {"a": 7, "a-2": 8, "a-3": 9}, [3, 5, 8]),
        (6, {"a": 7}, [7, 6, 8]),
        (6, {"a": 2}, [5, 6, 8]),
        (9, {"a": 7, "a-2": 10}, [7, 10, 9]),
        (8, {}, [5, 8, 8]),
    ],
)
def test_an_offset_of_the_broker_is_set_in_the_queues_of_all_names(
    offset: int, before: dict[str, int], after: list[int]
) -> None:
    now = {queue(name): at for name, at in before.items()}
    assert list(offsets_in_log(TWICE.stretches("T", 0), offset, now).values()) == after


@pytest.mark.parametrize(
    ("base", "offsets", "offset", "count"),
    [
        (4, {"a": 3, "a-2": 9}, 3, 4),
        (5, {"a": 3, "a-2": 9}, 9, 0),  # all of the older one is deleted at the broker
        (7, {"a": 3, "a-2": 9}, 9, 0),
        (7, {"a": 3}, None, 0),
    ],
)
def test_what_the_broker_has_deleted_counts_for_nothing_there(
    base: int, offsets: dict[str, int], offset: int | None, count: int
) -> None:
    here = {queue(name): value for name, value in offsets.items()}
    stretches = ONCE.stretches("T", 0)
    assert offset_at_broker(stretches, here, base) == offset
    assert given_again(stretches, here, base) == count
