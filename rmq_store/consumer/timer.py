"""Messages that wait for a moment of their own: the timer topic (``TimerMessageStore``, rules 11.4; retry policies,
rules 10.7). ``docs/decisions/0003-timers.md`` says why it is built so.

Every queue of ``rmq_sys_wheel_timer`` is in due order, as a level queue is, so that one offset says how far it has been
delivered. The queue id says which of three kinds it is:

- 0 to 511, one per second: messages due within 256 s, in the queue of their second modulo 512
- 512 to 1535, one per 256 s: messages further ahead, in the queue of their slot modulo 1024. When the slot begins, they
  move to the queue of their second; RocketMQ calls that a roll
- 1536 + n: retries that wait n ms, as the retry policy of their group says; 1536 also those of a level without a delay

As in RocketMQ, times are rounded to seconds: a message is due at ``TIMER_OUT_MS`` + 1000, never before the requested
time and less than a second after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rmq_store.consumer.delay import DelayLevels, delay_level_to_queue_id, queue_id_to_delay_level
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.java_text import parse_number
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, MessageConst

MAX_DELAY_MS = 3 * 24 * 3_600_000
"""RocketMQ's ``timerMaxDelaySec``. The wheel has more room than this, for clocks that differ."""

TICK_MS = 1000
SECONDS = 512
SLOT_MS = 256 * TICK_MS
SLOTS = 1024
WHEEL_QUEUES = SECONDS + SLOTS

TIMER_REQUESTS = (MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS, MessageConst.TIMER_DELIVER_MS)
"""In the order of their priority. A delay level overrides and removes them (``HookUtils#checkIfTimerMessage``)."""

TIMER_PROPERTIES = (
    *TIMER_REQUESTS,
    MessageConst.TIMER_OUT_MS,
    MessageConst.TIMER_ENQUEUE_MS,
    MessageConst.TIMER_DEQUEUE_MS,
    MessageConst.TIMER_ROLL_TIMES,
)
"""What a delivered message keeps of its timer; a retry by the policy of its group loses them."""


# --- the wheel -------------------------------------------------------------------------------------------------------


class Slot(NamedTuple):
    """A queue of the wheel."""

    queue_id: int
    due_ms: int
    """When all messages that are put there now are due (UTC ms): ``Produced.deliver_at``."""


def wheel_slot(deliver_at: int, now_ms: int) -> Slot:
    """Where a message waits that is due at ``deliver_at`` (UTC ms, a full second), at most MAX_DELAY_MS from now."""
    if deliver_at - now_ms < SLOT_MS:
        return Slot(deliver_at // TICK_MS % SECONDS, deliver_at)
    slot = deliver_at // SLOT_MS
    return Slot(SECONDS + slot % SLOTS, slot * SLOT_MS)


def is_coarse(queue: MessageQueue) -> bool:
    """Whether it is a queue of 256 s, whose messages move to the queue of their second when they leave it."""
    return queue.topic == TIMER_TOPIC and SECONDS <= queue.queue_id < WHEEL_QUEUES


def rolls(deliver_at: int, now_ms: int) -> bool:
    """Whether a message of a slot that has begun moves to the queue of its second. One due further ahead than its slot
    can only come from a wrong clock and is delivered (``ScheduleMessageService#correctDeliverTimestamp``, rules
    11.3)."""
    return now_ms < deliver_at < now_ms + SLOT_MS


def deliver_at_of(timer_out: str | None) -> int:
    """When a message of the wheel is due (UTC ms). Raises BadData when its TIMER_OUT_MS does not say it."""
    timer_out_ms = None if timer_out is None else parse_number(timer_out, 64)
    if timer_out_ms is None:
        raise BadData(f"its TIMER_OUT_MS is {timer_out!r:.80}, it must be a time in ms")
    return timer_out_ms + TICK_MS


def policy_queue_id(delay_ms: int) -> int:
    """The queue of retries that wait exactly so long."""
    return WHEEL_QUEUES + delay_ms


def longest_wait_ms(queue: MessageQueue, levels: DelayLevels) -> int:
    """How far ahead (ms) a message of the queue can be due unless a clock was wrong."""
    if queue.topic == SCHEDULE_TOPIC:
        return levels.delay_ms(queue_id_to_delay_level(queue.queue_id))
    return MAX_DELAY_MS if queue.queue_id < WHEEL_QUEUES else queue.queue_id - WHEEL_QUEUES


# --- what is sent ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sent message is stored, and with which properties. All messages that are put into one queue at one time
    have the same ``delay_ms`` and ``deliver_at``, those of ``Produced``; at most one of the two is set."""

    topic: str
    queue_id: int
    properties: Mapping[str, str]
    delay_ms: int | None = None
    """The delay of its level."""
    deliver_at: int | None = None
    """When the timer delivers it, UTC ms."""

    @property
    def waits(self) -> bool:
        """Whether it is stored on the shard's sending lane, ``lane("")``, not on the local broker."""
        return self.delay_ms is not None or self.deliver_at is not None


def place(topic: str, queue_id: int, properties: Mapping[str, str], now_ms: int, levels: DelayLevels) -> Placement:
    """The broker's choice (``HookUtils#handleScheduleMessage``): a delay level first, then the timer, else no delay.

    Raises WrongUse for what a broker refuses as WHEEL_TIMER_MSG_ILLEGAL: not a number, or more than MAX_DELAY_MS ahead;
    also for a request to delete a waiting message.
    """
    real = {MessageConst.REAL_TOPIC: topic, MessageConst.REAL_QUEUE_ID: str(queue_id)}
    level_text = properties.get(MessageConst.DELAY_TIME_LEVEL)
    level = 0 if level_text is None else _number(MessageConst.DELAY_TIME_LEVEL, level_text, 32)
    if level > 0:
        level = levels.clamp(level)
        kept = {name: value for name, value in properties.items() if name not in TIMER_REQUESTS}
        stored = kept | real | {MessageConst.DELAY_TIME_LEVEL: str(level)}
        return Placement(SCHEDULE_TOPIC, delay_level_to_queue_id(level), stored, delay_ms=levels.delay_ms(level))
    requested_ms = None if MessageConst.TIMER_OUT_MS in properties else _requested_ms(properties, now_ms)
    if requested_ms is not None and MessageConst.TIMER_DEL_UNIQKEY in properties:
        raise WrongUse(f"{MessageConst.TIMER_DEL_UNIQKEY} is not supported: a delayed message cannot be deleted")
    if requested_ms is None or requested_ms <= now_ms:
        return Placement(topic, queue_id, properties)
    if requested_ms - now_ms > MAX_DELAY_MS:
        days = MAX_DELAY_MS // 86_400_000
        raise WrongUse(f"a delay of {(requested_ms - now_ms) // 1000} s is too long, the maximum is {days} days")
    deliver_at = -(-requested_ms // TICK_MS) * TICK_MS
    slot = wheel_slot(deliver_at, now_ms)
    stored = {**properties, **real, MessageConst.TIMER_OUT_MS: str(deliver_at - TICK_MS)}
    return Placement(TIMER_TOPIC, slot.queue_id, stored, deliver_at=slot.due_ms)


def _number(name: str, text: str, bits: int = 64) -> int:
    number = parse_number(text, bits)
    if number is None:
        raise WrongUse(f"{name} must be a whole number, it is {text!r:.80}")
    return number


def _requested_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """The requested time of delivery (UTC ms), None for none."""
    for name in TIMER_REQUESTS:
        if (text := properties.get(name)) is not None:
            number = _number(name, text)
            return {
                MessageConst.TIMER_DELAY_SEC: now_ms + number * 1000,
                MessageConst.TIMER_DELAY_MS: now_ms + number,
                MessageConst.TIMER_DELIVER_MS: number,
            }[name]
    return None
