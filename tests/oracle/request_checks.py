"""The checks of a broker before it serves a request, in its order; the first that fails is the answer
(``ConsumerManageProcessor``, rules 3.3; ``PullMessageProcessor``, rules 7.3).

A config is None where the broker has none of that name.
"""

from __future__ import annotations

from enum import IntEnum

from rmq_store.broker_files.config_files import SubscriptionGroupConfig, TopicConfig
from rmq_store.message.perm_name import is_readable


class ResponseCode(IntEnum):
    """RocketMQ's response codes (``ResponseCode``), as far as the rules need them."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    MESSAGE_ILLEGAL = 13
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    NO_MESSAGE = 208


def check_pull(group: SubscriptionGroupConfig | None, topic: TopicConfig | None, queue_id: int) -> ResponseCode:
    """Whether a consumer may read from a queue (``PullMessageProcessor#processRequest``)."""
    if group is None:
        return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    if not group.consume_enable:
        return ResponseCode.NO_PERMISSION
    if topic is None:
        return ResponseCode.TOPIC_NOT_EXIST
    if not is_readable(topic.perm):
        return ResponseCode.NO_PERMISSION
    if not 0 <= queue_id < topic.read_queue_nums:
        return ResponseCode.INVALID_PARAMETER
    return ResponseCode.SUCCESS


def check_commit(group: SubscriptionGroupConfig | None, topic: TopicConfig | None) -> ResponseCode:
    """Whether an offset may be committed (``ConsumerManageProcessor#updateConsumerOffset``); queue and offset are
    free."""
    if group is None:
        return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    return ResponseCode.TOPIC_NOT_EXIST if topic is None else ResponseCode.SUCCESS
