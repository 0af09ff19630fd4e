"""Batch consume queues (``BatchConsumeQueue``): how their topics are recognised. They are not supported.

In a topic with the attribute ``queue.type=BatchCQ`` one record of the log holds several messages of its queue: INNER_NUM has
their number, by which the queue offset of the next record is higher. The queues are in a separate folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.broker_files.config_files import TopicConfig
from rmq_store.broker_files.file_source import FileSource
from rmq_store.errors import BadData
from rmq_store.message.message_const import MessageConst
from rmq_store.message.sys_flag import MessageSysFlag

FOLDER: Final = "batchconsumequeue"
INNER_BATCH_FLAGS: Final = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG
ADVICE: Final = (
    "BatchCQ topics are not supported, with or without --salvage. Do not remove any of the broker's files: read such a topic "
    "with a RocketMQ consumer, send its messages to the lake with 'rmq send', and import this broker once it has no such "
    "topic and its log holds no message of one"
)
_NAMED: Final = 5


def is_inner_batch(sys_flag: int, properties: Mapping[str, str]) -> bool:
    """Whether a record holds several messages: by a flag or by INNER_NUM."""
    return bool(sys_flag & INNER_BATCH_FLAGS) or MessageConst.INNER_NUM in properties


def refuse_batch_topics(source: FileSource, topics: Mapping[str, TopicConfig]) -> None:
    """Raises BadData when the broker has a BatchCQ topic, by its attribute or by its queues."""
    named = {name for name, topic in topics.items() if (topic.attributes or {}).get("queue.type") == "BatchCQ"}
    named |= {name.split("/")[1] for name, _ in source.list(FOLDER)}
    if named:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        raise BadData(
            f"{source} has topics whose records hold several messages (queue.type=BatchCQ, {FOLDER}): "
            f"{', '.join(sorted(named)[:_NAMED])}{more}. Nothing was changed. {ADVICE}"
        )
