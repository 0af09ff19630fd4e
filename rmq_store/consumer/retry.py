"""Where a failed message goes, and what its copy carries (``AbstractSendMessageProcessor#consumerSendMsgBack``,
rules 10.2 and 10.3; ``HookUtils#transformDelayLevelMessage``, rules 11.2).

``route`` decides: a retry after a delay, through the schedule topic (or the timer topic, where the group has a retry
policy), or the group's dead letters. Its answer and that of ``property_edits`` are data: the failures of one queue have
few different combinations of level, retries and retry queue, so a window calls the rule once for each combination and
applies the answer to whole columns.

For example, a message of topic Orders fails for the first time, and its listener names no level:

    copy = route(
        "orders", delay_level=0, reconsume_times=0, max_reconsume_times=-1, retry_queue=0, levels=DelayLevels()
    )
        # topic SCHEDULE_TOPIC_XXXX, queue 2, delay level 3: it waits 10,000 ms
        # real topic %RETRY%orders, real queue 0, reconsume_times 1, cause "retry"
    property_edits(copy, "Orders", "7F00000100002A9F0000000000000400")
        # put WAIT false, DELAY 3, REAL_TOPIC %RETRY%orders, REAL_QID 0
        # put if absent RETRY_TOPIC Orders, ORIGIN_MESSAGE_ID 7F00000100002A9F0000000000000400

At its 17th failure, with ``reconsume_times`` 16, it goes to ``%DLQ%orders``, queue 0, with ``reconsume_times`` 17.

Differences from a broker, on purpose:

- the retry queue is computed from the message's origin (``retry_queue_id``), not random, so a rerun chooses the same;
- without retry queues (``retry_queue_nums`` 0) a failed message becomes a dead letter; the broker answers success and
  drops it;
- a copy that leaves the schedule topic loses DELAY, REAL_TOPIC and REAL_QID. The broker's copy keeps them, so a dead
  letter that is sent again may be delayed again there;
- a message over the limit of an orderly group becomes a dead letter at once and keeps its born host and timestamp; the
  client sends a new message, which also has the MIN_OFFSET and MAX_OFFSET of the client's pull;
- where the level is 0 or below, as of a message that was sent with ``reconsume_times`` -3 or less, there is no delay: the
  copy is due at once and goes to the retry topic with the next delivery. The broker puts it there in the same step;
- the retry policy of a group is applied; ``consumerSendMsgBack`` ignores it, only pop consumers and the proxy use it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rmq_store.commit.positions import offset_hash
from rmq_store.consumer.delay import DelayLevels, GroupRetryPolicy, delay_level_to_queue_id, retry_level
from rmq_store.consumer.timer import TIMER_PROPERTIES, TIMER_REQUESTS, policy_queue_id
from rmq_store.message.java_text import wrapped
from rmq_store.message.message import MessageExt
from rmq_store.message.message_const import (
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    MessageConst,
    dlq_topic,
    retry_topic,
)

DEFAULT_MAX_RECONSUME_TIMES = 16
"""What ``max_reconsume_times`` -1 means for concurrent consumption."""

NOT_DELAYED = "-1"
"""DELAY of a dead letter that a broker makes of a sent message; that of a send-back has 0
(``SendMessageProcessor#handleRetryAndDLQ``, rules 10.5)."""

_MASK_64 = (1 << 64) - 1


class Cause(StrEnum):
    """Why the copy is stored where it is."""

    RETRY = "retry"
    MAX_RECONSUME_TIMES = "max_reconsume_times"
    DELAY_LEVEL = "negative_delay_level"
    NO_RETRY_QUEUE = "no_retry_queue"
    KILLED = "killed"
    """A dead letter whose last attempt ended the listener's process (``listener_death``)."""
    TIMEOUT = "timeout"
    """A dead letter whose last attempt did not end in time."""


@dataclass(frozen=True, slots=True)
class PropertyEdits:
    """What to change in a map of properties."""

    put: Mapping[str, str]
    put_if_absent: Mapping[str, str]
    """Only for names that the map does not have."""
    remove: tuple[str, ...] = ()

    def apply(self, properties: Mapping[str, str]) -> dict[str, str]:
        """An edited copy."""
        kept = {name: value for name, value in properties.items() if name not in self.remove}
        return {**self.put_if_absent, **kept, **self.put}


@dataclass(frozen=True, slots=True)
class SendBack:
    """The copy of a failed message."""

    topic: str
    """Where it is stored, with ``queue_id``."""
    queue_id: int
    real_topic: str
    """Where it goes when it is due, with ``real_queue_id``; the same place for a dead letter."""
    real_queue_id: int
    delay_level: int
    """0 for a dead letter, and where a retry policy decided the delay or there is none."""
    reconsume_times: int
    """Of the copy: one more than the failed message's. A Java int: after 2^31 - 1 comes -2^31."""
    cause: Cause
    delay_ms: int | None = None
    """How long it waits from its commit on; None for a dead letter."""

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
    policy: GroupRetryPolicy | None = None,
) -> SendBack:
    """``consumerSendMsgBack`` for concurrent consumption (rules 10.2, rows 4, 8 and 9).

    ``delay_level``: the listener's; where it is 0, ``policy`` decides the delay, if the group has one (rules 10.7).
    ``reconsume_times``: of the failed message; -3 or less, and 2^31 - 3 or more, lead to a level that does not delay.
    ``max_reconsume_times``: of the group; -1 means 16, any other number is used as it is. ``retry_queue``: from
    ``retry_queue_id``, None when the group has no retry queue.
    """
    cause = _cause(delay_level, reconsume_times, max_reconsume_times, retry_queue)
    times = wrapped(reconsume_times + 1, 32)
    if cause is not Cause.RETRY or retry_queue is None:
        return SendBack(
            topic=dlq_topic(group),
            queue_id=0,
            real_topic=dlq_topic(group),
            real_queue_id=0,
            delay_level=0,
            reconsume_times=times,
            cause=cause,
        )
    if policy is not None and delay_level == 0:
        level, delay_ms = 0, policy.next_delay_ms(reconsume_times)
    else:
        level = max(levels.clamp(delay_level or retry_level(reconsume_times)), 0)
        delay_ms = levels.delay_ms(level) if level else 0
    if level:
        topic, queue_id = SCHEDULE_TOPIC, delay_level_to_queue_id(level)
    else:
        topic, queue_id = TIMER_TOPIC, policy_queue_id(delay_ms)
    return SendBack(
        topic=topic,
        queue_id=queue_id,
        real_topic=retry_topic(group),
        real_queue_id=retry_queue,
        delay_level=level,
        reconsume_times=times,
        cause=cause,
        delay_ms=delay_ms,
    )


def _cause(delay_level: int, reconsume_times: int, max_reconsume_times: int, retry_queue: int | None) -> Cause:
    most = DEFAULT_MAX_RECONSUME_TIMES if max_reconsume_times == -1 else max_reconsume_times
    if retry_queue is None:
        return Cause.NO_RETRY_QUEUE
    if delay_level < 0:
        return Cause.DELAY_LEVEL
    return Cause.MAX_RECONSUME_TIMES if reconsume_times >= most else Cause.RETRY


def retry_queue_id(topic: str, broker_name: str, queue_id: int, queue_offset: int, retry_queue_nums: int) -> int | None:
    """The retry queue of a message that was read at this place; None when there are no retry queues.

    It is ``offset_hash`` (splitmix64) of the offset and the queue's ``retry_seed``, modulo ``retry_queue_nums``. A
    message from a retry queue goes back to the same one, since its offset there depends on what else failed with it.
    """
    if retry_queue_nums <= 0:
        return None
    if retry_queue_nums == 1:
        return 0
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return queue_id % retry_queue_nums
    return offset_hash(queue_offset ^ retry_seed(topic, broker_name, queue_id)) % retry_queue_nums


def retry_seed(topic: str, broker_name: str, queue_id: int) -> int:
    """The queue's part of the hash: the CRC-32 of "topic NUL broker NUL queue" in UTF-8, in the upper 32 of 64 bits."""
    text = f"{topic}\0{broker_name}\0{queue_id}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) << 32 & _MASK_64


def origin_message_id(message: MessageExt) -> str:
    """The id of the first copy of a retry chain: the same for every retry of a message."""
    return message.properties.get(MessageConst.ORIGIN_MESSAGE_ID) or message_id(
        message.offset_msg_id, message.topic, message.broker_name, message.queue_id, message.queue_offset
    )


def message_id(offset_msg_id: str | None, topic: str, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """The offset message id; for a message born in the lake, which has none, ``topic/broker/queue/offset``."""
    return offset_msg_id or f"{topic}/{broker_name}/{queue_id}/{queue_offset}"


def property_edits(send_back: SendBack, topic: str, own_id: str) -> PropertyEdits:
    """What changes in the properties of a failed message when its copy is stored (rules 10.3, 11.2).

    ``topic`` and ``own_id`` (its ``message_id``) are those of the failed message; they matter at its first failure
    only. Among messages of one queue with the same route only ``own_id`` differs.
    """
    put = {MessageConst.WAIT_STORE_MSG_OK: "false"}
    first = {MessageConst.RETRY_TOPIC: topic, MessageConst.ORIGIN_MESSAGE_ID: own_id}
    real = {MessageConst.REAL_TOPIC: send_back.real_topic, MessageConst.REAL_QUEUE_ID: str(send_back.real_queue_id)}
    if send_back.topic == TIMER_TOPIC:
        return PropertyEdits(put | real, first, remove=(MessageConst.DELAY_TIME_LEVEL, *TIMER_PROPERTIES))
    put[MessageConst.DELAY_TIME_LEVEL] = str(send_back.delay_level)
    if send_back.dead:
        return PropertyEdits(put, first, remove=tuple(real))
    return PropertyEdits(put | real, first, remove=TIMER_REQUESTS)


def limit_in_order(max_reconsume_times: int) -> int:
    """A group's limit in orderly consumption (``ConsumeMessageOrderlyService#getMaxReconsumeTimes``): -1 means 2^31 - 1, any
    other number is used as it is."""
    return 2**31 - 1 if max_reconsume_times == -1 else max_reconsume_times


def sent_away_edits(send_back: SendBack, topic: str, own_key: str, max_reconsume_times: int) -> PropertyEdits:
    """``property_edits`` for a dead letter of an orderly group, which RocketMQ's client sends as a new message
    (``ConsumeMessageOrderlyService#sendMessageBack``, rules 10.5).

    ``own_key``: the message's UNIQ_KEY, its ``message_id`` where it has none. WAIT stays as the producer set it.
    """
    put = {
        MessageConst.RECONSUME_TIME: str(send_back.reconsume_times),
        MessageConst.MAX_RECONSUME_TIMES: str(limit_in_order(max_reconsume_times)),
        MessageConst.DELAY_TIME_LEVEL: NOT_DELAYED,
    }
    first = {MessageConst.ORIGIN_MESSAGE_ID: own_key}
    origin = {MessageConst.RETRY_TOPIC: topic}
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):  # the topic of the first failure stays, as a listener sees it
        first |= origin
    else:
        put |= origin
    remove = (MessageConst.TRANSACTION_PREPARED, MessageConst.REAL_TOPIC, MessageConst.REAL_QUEUE_ID)
    return PropertyEdits(put, first, remove)


DELIVERED_EDITS = PropertyEdits(
    put={},
    put_if_absent={},
    remove=(MessageConst.DELAY_TIME_LEVEL, MessageConst.REAL_TOPIC, MessageConst.REAL_QUEUE_ID),
)
"""What changes when a due message is copied from the schedule topic to its real topic."""


def delivered_edits(topic: str, store_timestamp: int, now_ms: int) -> PropertyEdits:
    """``DELIVERED_EDITS``; a copy out of the timer topic also gets the times (UTC ms) when it was stored there and when
    it left (rules 11.4)."""
    if topic != TIMER_TOPIC:
        return DELIVERED_EDITS
    times = {MessageConst.TIMER_DEQUEUE_MS: str(now_ms)}
    return PropertyEdits(times, {MessageConst.TIMER_ENQUEUE_MS: str(store_timestamp)}, DELIVERED_EDITS.remove)


def rolled_edits(store_timestamp: int) -> PropertyEdits:
    """What changes when a message moves once within the timer topic, from a queue of a longer span to that of its second."""
    enqueued = {MessageConst.TIMER_ENQUEUE_MS: str(store_timestamp)}
    return PropertyEdits({MessageConst.TIMER_ROLL_TIMES: "1"}, enqueued)
