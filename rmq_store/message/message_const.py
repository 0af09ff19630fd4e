"""Names that RocketMQ gives to properties, topics and topic prefixes.

Source: ``MessageConst``, ``MixAll``, ``TopicValidator``, ``TimerMessageStore`` (rules 1.5, 11, 14).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "
"""Of the keys in KEYS (rules 13.5). An empty key between two of them is not indexed: no search finds it."""
PROPERTIES_MAX_BYTES: Final = 32767


class MessageConst:
    """Property names, spelt as on the wire; the attribute is RocketMQ's constant without ``PROPERTY_``."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT_STORE_MSG_OK: Final = "WAIT"
    DELAY_TIME_LEVEL: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    BUYER_ID: Final = "BUYER_ID"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG: Final = "TRANSFER_FLAG"
    CORRECTION_FLAG: Final = "CORRECTION_FLAG"
    MQ2_FLAG: Final = "MQ2_FLAG"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MSG_REGION: Final = "MSG_REGION"
    TRACE_SWITCH: Final = "TRACE_ON"
    UNIQ_CLIENT_MESSAGE_ID_KEYIDX: Final = "UNIQ_KEY"
    EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIMESTAMP: Final = "CONSUME_START_TIME"
    TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    TRANSACTION_ID: Final = "__transactionId__"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    MESSAGE_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    MESSAGE_TTL: Final = "TTL"
    REPLY_MESSAGE_ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    POP_CK: Final = "POP_CK"
    POP_CK_OFFSET: Final = "POP_CK_OFFSET"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
    DUP_INFO: Final = "DUP_INFO"
    CRC32: Final = "__CRC32#"
    TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
    ORIGIN_GROUP: Final = "ORIGIN_GROUP"
    DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
    BORN_HOST: Final = "__BORNHOST"
    BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
    LITE_TOPIC: Final = "__LITE_TOPIC"
    PRIORITY: Final = "_SYS_MSG_PRIORITY_"


# MessageConst.STRING_HASH_SET of 5.5.0: what putUserProperty refuses. Users may set the seven names removed here.
RESERVED_PROPERTY_NAMES: Final = frozenset(
    value for name, value in vars(MessageConst).items() if name.isupper() and isinstance(value, str)
) - {
    MessageConst.SHARDING_KEY,
    MessageConst.TRANSACTION_ID,
    MessageConst.TRANSACTION_CHECK_TIMES,
    MessageConst.CHECK_IMMUNITY_TIME_IN_SECONDS,
    MessageConst.INNER_NUM,
    MessageConst.INNER_BASE,
    MessageConst.INNER_MULTI_DISPATCH,
}


def retry_topic(group: str) -> str:
    """The group's retry topic (``MixAll.getRetryTopic``)."""
    return RETRY_GROUP_TOPIC_PREFIX + group


def group_of_retry_topic(topic: str) -> str | None:
    """The group whose retry topic it is; None: it is another topic."""
    return topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX) if topic.startswith(RETRY_GROUP_TOPIC_PREFIX) else None


def first_topic(topic: str, properties: Mapping[str, str]) -> str:
    """The topic that a message of this topic was first delivered from: of a retry copy that of RETRY_TOPIC
    (``DefaultMQPushConsumerImpl#resetRetryAndNamespace``, rules 10.6). ``lake/read/first_topics.py`` has it over columns."""
    is_retry = topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    return (properties.get(MessageConst.RETRY_TOPIC) or topic) if is_retry else topic


def dlq_topic(group: str) -> str:
    """The group's dead-letter topic (``MixAll.getDLQTopic``)."""
    return DLQ_GROUP_TOPIC_PREFIX + group


# --- retry topics of pop consumption (rules 12): a topic for each pair of group and topic -----------------------------

_POP_RETRY_SEPARATOR_V1: Final = "_"
_POP_RETRY_SEPARATOR_V2: Final = "+"


def pop_retry_topic_v1(topic: str, group: str) -> str:
    """``KeyBuilder.buildPopRetryTopicV1``, the default; a group with ``_`` cannot be parsed from it."""
    return RETRY_GROUP_TOPIC_PREFIX + group + _POP_RETRY_SEPARATOR_V1 + topic


def pop_retry_topic_v2(topic: str, group: str) -> str:
    """``KeyBuilder.buildPopRetryTopicV2``, since 5.2.0: unambiguous, because no name may contain ``+``."""
    return RETRY_GROUP_TOPIC_PREFIX + group + _POP_RETRY_SEPARATOR_V2 + topic


def pop_retry_group(name: str) -> str | None:
    """The group of a pop retry topic (``KeyBuilder.parseGroup``): the part before ``+`` in form V2, else everything
    after the first seven characters, whatever they are. None for a shorter name, where RocketMQ throws."""
    parts = _parts_v2(name)
    if parts is not None:
        return parts[0].removeprefix(RETRY_GROUP_TOPIC_PREFIX)
    units = name.encode("utf-16-be", "surrogatepass")
    begin = 2 * len(RETRY_GROUP_TOPIC_PREFIX)  # Java counts UTF-16 units
    return units[begin:].decode("utf-16-be", "surrogatepass") if len(units) >= begin else None


def pop_normal_topic(name: str) -> str:
    """The topic behind ``+`` in a retry topic of form V2, else the name itself (``KeyBuilder.parseNormalTopic``)."""
    parts = _parts_v2(name)
    return name if parts is None else parts[1]


def _parts_v2(name: str) -> list[str] | None:
    if not name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return None
    parts = name.rstrip(_POP_RETRY_SEPARATOR_V2).split(_POP_RETRY_SEPARATOR_V2)
    return parts if len(parts) == 2 else None
