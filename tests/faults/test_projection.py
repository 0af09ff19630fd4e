"""What the projection sees and what it does not: two good runs are equal, and no difference that matters is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.consumer.allocate_rule import AllocateRule
from rmq_store.errors import BadData
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.settings.settings import GroupSettings
from tests.faults.stores import BROKER, GROUP, MESSAGES, TOPIC, Lake, group_named
from tests.oracle.projection import projection

NewLake = Callable[[str], Lake]


def whole_history(lake: Lake, group: GroupSettings) -> Lake:
    """Windows and deliveries until every chain of retries has ended."""
    for hop in range(3):
        request = f"2026-01-01-r{hop}"
        while not lake.consume(request, group).complete:
            pass
        lake.deliver(f"2026-01-01-d{hop}")
    return lake


@pytest.mark.slow
def test_the_history_of_a_group_is_the_same_on_any_number_of_cores_and_in_any_number_of_commits(
    new_lake: NewLake,
) -> None:
    group = group_named(listener="tests.faults.listeners:fail_others", retry_queue_nums=3, max_reconsume_times=3)
    plain = whole_history(new_lake("plain"), group)
    for name, other in {
        "one consumer": replace(group, consumers=1),
        "in another order": replace(group, consumers=2, allocate_strategy=AllocateRule("AVG_BY_CIRCLE")),
        "capped": replace(group, max_messages=12, consumers=7),
    }.items():
        lake = whole_history(new_lake(name.replace(" ", "-")), other)
        assert lake.projections() == plain.projections(), name
        assert lake.audit() == [], name


def test_every_offset_and_every_copy_is_in_it(new_lake: NewLake) -> None:
    lake = whole_history(new_lake("plain"), group_named())
    of_group, of_deliveries = lake.projections()
    counts: Counter[str] = Counter()
    for done in of_group.ranges:
        if done.queue.topic == TOPIC:
            counts.update({outcome: count for outcome, count, _ in done.outcomes})
    copies = Counter((copy.outcome, copy.attempt, copy.level) for copy in of_group.copies)
    assert sum(counts.values()) == MESSAGES
    assert copies == {
        ("retried", 1, 3): counts["retried"],
        ("dead", 1, 0): counts["dead"],
        ("retried", 2, 4): 2,
        ("dead", 3, 0): 2,
    }
    assert {copy.origin.topic for copy in (*of_group.copies, *of_deliveries.copies)} == {TOPIC}
    assert Counter(copy.attempt for copy in of_deliveries.copies) == {1: counts["retried"], 2: 2}


def test_a_reset_opens_a_pass_of_its_own(lake: Lake) -> None:
    lake.consume()
    before = projection(lake.shard, GROUP)
    lake.reset("2026-01-02-back", 4)
    lake.consume("2026-01-02-again")
    after = projection(lake.shard, GROUP)
    assert set(before.ranges) < set(after.ranges)
    assert set(before.copies) < set(after.copies)
    assert {(done.pass_, done.begin, done.end) for done in set(after.ranges) - set(before.ranges)} == {(1, 4, 10)}


def test_an_offset_that_was_only_filtered_differs_from_one_that_was_acked(new_lake: NewLake) -> None:
    ours, theirs = new_lake("ours"), new_lake("theirs")
    ours.consume()
    theirs.consume(group=group_named(listener="tests.faults.listeners:fail_others"))
    (one,), (other,) = ours.projections(GROUP), theirs.projections(GROUP)
    assert one.offsets == other.offsets
    assert {done.outcomes for done in one.ranges} != {done.outcomes for done in other.ranges}


def test_a_chain_that_leads_nowhere_is_bad_data(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_history(lake, group_named())
    shard = lake.shard
    monkeypatch.setattr(type(shard), "ctls_since", lambda self, ms, *, group=None, action=None: [])
    nowhere = MessageQueue(SCHEDULE_TOPIC, f"lake-s1~{GROUP}", 2)
    with pytest.raises(BadData, match=f"{nowhere.broker_name}.*there is no message".replace("~", ".")):
        projection(shard, SCHEDULE_GROUP)
    assert BROKER not in nowhere.broker_name
