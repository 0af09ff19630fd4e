"""What RocketMQ says of a group and a message (rules 13.5, ``DefaultMQAdminExtImpl#messageTrackDetail``)."""

from __future__ import annotations

import pytest

from rmq_store.admin.track import ConsumerConnection, TrackType, message_track_type, track_type
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data

TAGGED = build_subscription_data("Orders", "new || paid")
STARRED = build_subscription_data("Orders", "new || *")
ALL = build_subscription_data("Orders", "*")
SQL92 = build_subscription_data("Orders", "price > 3", "SQL92")
OTHER = build_subscription_data("Payments", "new")


def connection(*data: SubscriptionData, model: MessageModel = MessageModel.CLUSTERING) -> ConsumerConnection:
    return ConsumerConnection(model, {each.topic: each for each in data})


@pytest.mark.parametrize(
    ("data", "tag", "type_"),
    [
        (TAGGED, "new", TrackType.CONSUMED),
        (TAGGED, "old", TrackType.CONSUMED_BUT_FILTERED),
        (TAGGED, None, TrackType.CONSUMED_BUT_FILTERED),
        (STARRED, "old", TrackType.CONSUMED),
        (ALL, "old", TrackType.CONSUMED),
        (SQL92, "old", TrackType.CONSUMED),
        (OTHER, "old", TrackType.CONSUMED),
    ],
)
def test_a_message_before_the_offset_is_consumed_or_filtered_by_its_tag(
    data: SubscriptionData, tag: str | None, type_: TrackType
) -> None:
    assert message_track_type(connection(data), "Orders", tag, 6, 7) is type_


@pytest.mark.parametrize("next_offset", [None, 0, 6])
def test_a_message_at_or_behind_the_offset_is_not_consumed_yet(next_offset: int | None) -> None:
    assert message_track_type(connection(TAGGED), "Orders", "old", 6, next_offset) is TrackType.NOT_CONSUME_YET


def test_the_state_of_the_consumers_comes_before_the_offset() -> None:
    broadcasting = connection(TAGGED, model=MessageModel.BROADCASTING)
    pulling = ConsumerConnection(MessageModel.BROADCASTING, {}, actively=True)
    assert message_track_type(None, "Orders", "new", 6, 7) is TrackType.NOT_ONLINE
    assert message_track_type(broadcasting, "Orders", "new", 6, 7) is TrackType.CONSUME_BROADCASTING
    assert message_track_type(pulling, "Orders", "new", 6, 7) is TrackType.PULL


@pytest.mark.parametrize(
    ("observed", "type_"), [(7, TrackType.CONSUMED), (6, TrackType.SKIPPED), (None, TrackType.SKIPPED)]
)
def test_what_a_broker_was_seen_behind_was_consumed_there_also_after_the_cut_over(
    observed: int | None, type_: TrackType
) -> None:
    assert track_type(6, "lake", 9, (), observed) is type_
    assert track_type(6, "lake", 6, (), observed) is TrackType.NOT_CONSUME_YET


@pytest.mark.parametrize(("next_offset", "type_"), [(6, TrackType.NOT_CONSUME_YET), (7, TrackType.CONSUMED)])
def test_a_group_that_only_its_broker_knows_is_judged_by_its_offset(next_offset: int, type_: TrackType) -> None:
    assert track_type(6, "broker", next_offset, ()) is type_
