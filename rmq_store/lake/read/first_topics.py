"""The topics that messages were first delivered from: ``first_topic`` of ``message/message_const.py`` over columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX, MessageConst


def has_first_topics(topic: str) -> bool:
    """Whether messages of the topic were first delivered from others, which their properties name."""
    return topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


def first_topics(topic: str, properties: pa.Array) -> pa.Array:
    """``topic``: for which ``has_first_topics`` is true."""
    named = pc.map_lookup(properties, pa.scalar(MessageConst.RETRY_TOPIC), "last")
    return pc.if_else(pc.fill_null(pc.not_equal(named, ""), False), named, topic)
