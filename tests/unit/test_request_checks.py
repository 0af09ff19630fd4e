"""What a broker refuses before it reads or commits (rules 3.3, 7.3): the first check that fails is the answer."""

from __future__ import annotations

import pytest

from rmq_store.broker_files.config_files import SubscriptionGroupConfig, TopicConfig
from rmq_store.message.perm_name import PERM_READ, PERM_WRITE
from tests.oracle.request_checks import ResponseCode, check_commit, check_pull

GROUP, OFF = SubscriptionGroupConfig("g"), SubscriptionGroupConfig("g", consume_enable=False)
TOPIC, WRITE_ONLY = TopicConfig("T", 4, 8, PERM_READ), TopicConfig("T", 4, 8, PERM_WRITE)


@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "code"),
    [
        (GROUP, TOPIC, 0, ResponseCode.SUCCESS),
        (GROUP, TOPIC, 3, ResponseCode.SUCCESS),
        (GROUP, TOPIC, 4, ResponseCode.INVALID_PARAMETER),
        (GROUP, TOPIC, -1, ResponseCode.INVALID_PARAMETER),
        (GROUP, WRITE_ONLY, 4, ResponseCode.NO_PERMISSION),
        (GROUP, None, 4, ResponseCode.TOPIC_NOT_EXIST),
        (OFF, None, 4, ResponseCode.NO_PERMISSION),
        (None, None, 4, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_pull_is_checked_in_the_brokers_order(
    group: SubscriptionGroupConfig | None, topic: TopicConfig | None, queue_id: int, code: ResponseCode
) -> None:
    assert check_pull(group, topic, queue_id) is code


@pytest.mark.parametrize(
    ("group", "topic", "code"),
    [
        (OFF, WRITE_ONLY, ResponseCode.SUCCESS),
        (GROUP, None, ResponseCode.TOPIC_NOT_EXIST),
        (None, None, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_commit_needs_a_group_and_a_topic_only(
    group: SubscriptionGroupConfig | None, topic: TopicConfig | None, code: ResponseCode
) -> None:
    assert check_commit(group, topic) is code
