"""Names and sizes that RocketMQ accepts (``Validators``, ``TopicValidator``, ``MessageExtEncoder``; rules 14).

``*_problem`` returns which rule a name breaks, None for none; ``check_*`` raises WrongUse. Client and broker differ:
the client checks the length first and has one limit, the broker allows longer retry and dead-letter topics. What a user
writes must follow the client's rules, what is stored the broker's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from rmq_store.errors import WrongUse
from rmq_store.message.java_text import is_blank, utf16_length
from rmq_store.message.message_const import (
    DLQ_GROUP_TOPIC_PREFIX,
    PROPERTIES_MAX_BYTES,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rmq_store.message.properties import properties_text

TOPIC_MAX_LENGTH = 127
RETRY_OR_DLQ_TOPIC_MAX_LENGTH = 255
GROUP_MAX_LENGTH = 120
BODY_MAX_BYTES = 4_194_304

DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
REPLY_TOPIC_POSTFIX = "_REPLY_TOPIC"

FORBIDDEN_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_TOPICS = FORBIDDEN_TO_SEND | {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


class NameProblem(StrEnum):
    BLANK = "is blank"
    CHARACTERS = "has characters other than letters, digits, '_', '-', '%' and '|'"
    LENGTH = "is too long"


def topic_problem(topic: str | None) -> NameProblem | None:
    """The client's check of a topic, ``Validators#checkTopic``."""
    return _client_problem(topic, TOPIC_MAX_LENGTH)


def group_problem(group: str | None) -> NameProblem | None:
    """The client's check of a group, ``Validators#checkGroup``."""
    return _client_problem(group, GROUP_MAX_LENGTH)


def stored_topic_problem(topic: str | None) -> NameProblem | None:
    """The broker's check, ``TopicValidator#validateTopic``: retry and dead-letter topics may have 255 characters."""
    return _broker_problem(topic, _stored_topic_limit(topic))


def stored_group_problem(group: str | None) -> NameProblem | None:
    """The broker's check of a group, ``TopicValidator#validateGroup``."""
    return _broker_problem(group, GROUP_MAX_LENGTH)


def check_broker_name(name: str) -> None:
    """RocketMQ does not check a broker's name; here it is also the name of a folder of exports and a part of texts.

    Raises WrongUse for an empty name, one of more than 255 characters or of dots only, and one with a slash, a backslash or
    a character that cannot be printed.
    """
    if not name.strip(".") or len(name) > 255 or not name.isprintable() or not {"/", "\\"}.isdisjoint(name):
        raise WrongUse(
            f"invalid broker name {name[:300]!r}: use 1 to 255 characters that can be printed, not only dots, and no / or \\"
        )


def is_system_topic(topic: str) -> bool:
    """Whether it is a system topic, which users may not create (``TopicValidator#isSystemTopic``)."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_user_topic(topic: str) -> bool:
    """Whether a user made it: it is neither a retry nor a dead-letter topic nor one that the broker made for itself,
    such as ``RMQ_SYS_ROCKSDB_...`` and ``<cluster>_REPLY_TOPIC`` of 5.5.0. RocketMQ has no single rule for that."""
    made_for_a_group = topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))
    made_by_the_broker = topic.lower().startswith(SYSTEM_TOPIC_PREFIX) or topic.endswith(REPLY_TOPIC_POSTFIX)
    return not (made_for_a_group or made_by_the_broker or is_system_topic(topic))


def is_system_group(group: str) -> bool:
    """Whether it is one of RocketMQ's own groups (``MixAll#isSysConsumerGroup``)."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def may_be_sent_to(topic: str) -> bool:
    """Whether users may send to it (``TopicValidator#isNotAllowedSendTopic``); some system topics allow it."""
    return topic not in FORBIDDEN_TO_SEND


def check_topic(topic: str | None) -> None:
    """Raise WrongUse unless a user may name this topic."""
    _refuse("topic", topic, topic_problem(topic), TOPIC_MAX_LENGTH)


def is_broadcasting_client(name: str) -> bool:
    """Whether the name of a group is that of one client of a broadcasting group, ``group@client``. A broker never has the
    offsets of one: they are in a file of the client (``LocalFileOffsetStore``)."""
    return "@" in name


def check_group(group: str | None) -> None:
    """Raise WrongUse unless this can be a consumer group (DEFAULT_CONSUMER cannot)."""
    _refuse("group", group, group_problem(group), GROUP_MAX_LENGTH)
    if group == DEFAULT_CONSUMER_GROUP:
        raise WrongUse(f"group {group} is RocketMQ's placeholder; give the group a name of its own")


def check_body(body: bytes | None) -> None:
    """``Validators#checkMessage``: the body of a sent message has 1 byte to 4 MiB, before compression."""
    if not body:
        raise WrongUse(f"a message needs a body of at least one byte, this one has {'none' if body is None else 0}")
    if len(body) > BODY_MAX_BYTES:
        raise WrongUse(f"a body of {len(body)} bytes is above the limit of {BODY_MAX_BYTES}")


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise WrongUse when the properties do not fit into a record (32,767 bytes as text)."""
    size = len(properties_text(properties).encode("utf-8", "replace"))
    if size > PROPERTIES_MAX_BYTES:
        raise WrongUse(f"properties of {size} bytes are above the limit of {PROPERTIES_MAX_BYTES}")


def _stored_topic_limit(topic: str | None) -> int:
    made_for_a_group = (topic or "").startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))
    return RETRY_OR_DLQ_TOPIC_MAX_LENGTH if made_for_a_group else TOPIC_MAX_LENGTH


def _client_problem(name: str | None, limit: int) -> NameProblem | None:
    if name is None or is_blank(name):
        return NameProblem.BLANK
    if utf16_length(name) > limit:
        return NameProblem.LENGTH
    return None if _ALLOWED.fullmatch(name) else NameProblem.CHARACTERS


def _broker_problem(name: str | None, limit: int) -> NameProblem | None:
    problem = _client_problem(name, limit)
    if problem is NameProblem.LENGTH and not _ALLOWED.fullmatch(name or ""):
        return NameProblem.CHARACTERS  # the broker looks at the characters first
    return problem


def _refuse(what: str, name: str | None, problem: NameProblem | None, limit: int) -> None:
    if problem is NameProblem.LENGTH:
        raise WrongUse(f"{what} {str(name)[:40]}… {problem}: {len(name or '')} characters, the limit is {limit}")
    if problem is not None:
        raise WrongUse(f"{what} {name!r} {problem}")
