"""Where a failed message goes, and what its copy carries (S10.2, S10.3, S11.2, S11.3).

``route`` decides: again after a delay, by way of the schedule topic, or the group's dead letters. ``SendBack`` says it
as data, and so does ``property_edits``: failures of one queue have few different (level, retries, retry queue), so the
hot path asks once for each and applies the answer to whole columns.

Differences from a broker, on purpose:

- the retry queue follows from the message's origin (``retry_queue_id``), not from chance, so a rerun does the same;
- without retry queues (``retry_queue_nums`` 0) a message is dead; the broker answers success and drops it;
- DELAY, REAL_TOPIC and REAL_QID are taken away when the copy leaves the schedule topic. The broker's stored copy keeps
  them, so that a dead letter that is sent again may be delayed again.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.consumer.delay import FIRST_RETRY_LEVEL, DelayLevels, delay_level_to_queue_id
from rmq_store.message import RETRY_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, MessageConst, MessageExt, dlq_topic, retry_topic
from rmq_store.offsets import offset_hash

DEFAULT_MAX_RECONSUME_TIMES = 16
"""What ``max_reconsume_times`` -1 means for concurrent consumption."""

_MASK_64 = (1 << 64) - 1


class Cause(StrEnum):
    """Why the copy is where it is."""

    RETRY = "retry"
    MAX_RECONSUME_TIMES = "max_reconsume_times"
    DELAY_LEVEL = "negative_delay_level"
    NO_RETRY_QUEUE = "no_retry_queue"


@dataclass(frozen=True, slots=True)
class PropertyEdits:
    """What to change in a properties map. ``put_if_absent`` holds only where the name is not there yet."""

    put: Mapping[str, str]
    put_if_absent: Mapping[str, str]
    remove: tuple[str, ...] = ()

    def apply(self, properties: Mapping[str, str]) -> dict[str, str]:
        """An edited copy."""
        kept = {name: value for name, value in properties.items() if name not in self.remove}
        return {**self.put_if_absent, **kept, **self.put}


@dataclass(frozen=True, slots=True)
class SendBack:
    """The copy of a failed message.

    ``topic``, ``queue_id``: where it is stored. ``real_topic``, ``real_queue_id``: where it goes when due; for a dead
    letter the same. ``delay_level``: 0 for a dead letter. ``reconsume_times``: the copy's, one more than before.
    """

    topic: str
    queue_id: int
    real_topic: str
    real_queue_id: int
    delay_level: int
    reconsume_times: int
    cause: Cause

    @property
    def dead(self) -> bool:
        return self.cause is not Cause.RETRY


def route(
    group: str,
    *,
    delay_level: int,
    reconsume_times: int,
    max_reconsume_times: int,
    retry_queue: int | None,
    levels: DelayLevels,
) -> SendBack:
    """``consumerSendMsgBack`` for concurrent consumption (S10.2 rows 4, 8 and 9).

    ``delay_level``: what the listener asked for. ``reconsume_times``: the failed message's own.
    ``max_reconsume_times``: the group's; -1 is 16, any other number is taken as it is.
    ``retry_queue``: from ``retry_queue_id``, None when the group has no retry queue.
    """
    cause = _cause(delay_level, reconsume_times, max_reconsume_times, retry_queue)
    if cause is not Cause.RETRY or retry_queue is None:
        dead_letters = dlq_topic(group)
        return SendBack(dead_letters, 0, dead_letters, 0, 0, reconsume_times + 1, cause)
    level = levels.clamp(delay_level or FIRST_RETRY_LEVEL + reconsume_times)
    schedule_queue = delay_level_to_queue_id(level)
    return SendBack(SCHEDULE_TOPIC, schedule_queue, retry_topic(group), retry_queue, level, reconsume_times + 1, cause)


def _cause(delay_level: int, reconsume_times: int, max_reconsume_times: int, retry_queue: int | None) -> Cause:
    most = DEFAULT_MAX_RECONSUME_TIMES if max_reconsume_times == -1 else max_reconsume_times
    if retry_queue is None:
        return Cause.NO_RETRY_QUEUE
    if delay_level < 0:
        return Cause.DELAY_LEVEL
    return Cause.MAX_RECONSUME_TIMES if reconsume_times >= most else Cause.RETRY


def retry_queue_id(topic: str, broker_name: str, queue_id: int, queue_offset: int, retry_queue_nums: int) -> int | None:
    """The retry queue of a message that was read at this place; None when there are no retry queues.

    ``offset_hash`` (splitmix64) of the offset and the queue's ``retry_seed``, modulo ``retry_queue_nums``. A message that
    comes from a retry queue goes back to that one: its offset there depends on what else failed with it.
    """
    if retry_queue_nums <= 0:
        return None
    if retry_queue_nums == 1:
        return 0
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return queue_id % retry_queue_nums
    return offset_hash(queue_offset ^ retry_seed(topic, broker_name, queue_id)) % retry_queue_nums


def retry_seed(topic: str, broker_name: str, queue_id: int) -> int:
    """The queue's part of the hash: CRC-32 of "topic NUL broker NUL queue" in UTF-8, in the upper 32 bits of 64."""
    text = f"{topic}\0{broker_name}\0{queue_id}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) << 32 & _MASK_64


def origin_message_id(message: MessageExt) -> str:
    """The id of the first copy of a retry chain: the same for every retry of a message."""
    return message.properties.get(MessageConst.ORIGIN_MESSAGE_ID) or message_id(
        message.offset_msg_id, message.topic, message.broker_name, message.queue_id, message.queue_offset
    )


def message_id(offset_msg_id: str | None, topic: str, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """The offset message id; a message born in the lake has none and is named by its place."""
    return offset_msg_id or f"{topic}/{broker_name}/{queue_id}/{queue_offset}"


def property_edits(send_back: SendBack, topic: str, own_id: str) -> PropertyEdits:
    """What changes in the properties of a failed message when its copy is stored (S10.3, S11.2).

    ``topic`` and ``own_id`` (``message_id``) are the failed message's own and count at its first failure only. For all
    messages of one queue with one route only ``own_id`` differs.
    """
    put = {MessageConst.WAIT_STORE_MSG_OK: "false", MessageConst.DELAY_TIME_LEVEL: str(send_back.delay_level)}
    first = {MessageConst.RETRY_TOPIC: topic, MessageConst.ORIGIN_MESSAGE_ID: own_id}
    if send_back.dead:
        return PropertyEdits(put, first, remove=(MessageConst.REAL_TOPIC, MessageConst.REAL_QUEUE_ID))
    put[MessageConst.REAL_TOPIC] = send_back.real_topic
    put[MessageConst.REAL_QUEUE_ID] = str(send_back.real_queue_id)
    return PropertyEdits(put, first, remove=TIMER_REQUESTS)


TIMER_REQUESTS = (MessageConst.TIMER_DELIVER_MS, MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS)
"""A delay level overrules them and they are taken away (``HookUtils.checkIfTimerMessage``)."""

DELIVERED_EDITS = PropertyEdits(
    put={},
    put_if_absent={},
    remove=(MessageConst.DELAY_TIME_LEVEL, MessageConst.REAL_TOPIC, MessageConst.REAL_QUEUE_ID),
)
"""What changes when a due message is copied from the schedule topic to its real one."""
