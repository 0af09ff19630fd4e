"""A message as a producer sends it: the checks of client and broker, its queue, what is stored (rules 14, 1.5).

Nothing is sent here: ``send.py`` makes a commit of it. Differences from a broker, on purpose:

- the separators of the stored form (U+0001, U+0002) are refused in a property; a broker stores them and reads another
  text
- a tag with ``||`` is refused, because no subscription can select it
- a message has at most one delay; of several a broker uses the level
- a time of delivery in seconds since 1970 is refused; a broker delivers such a message at once
- retry topics, dead-letter topics and RocketMQ's own topics are refused; a broker allows some of them
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

from rmq_store.consumer import timer
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import (
    DLQ_GROUP_TOPIC_PREFIX,
    KEY_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageConst,
)
from rmq_store.message.properties import check_user_property, tags_code
from rmq_store.message.validators import check_body, check_properties, check_topic, is_system_topic, may_be_sent_to
from rmq_store.utils.arguments import check_types
from rmq_store.utils.times import Time, ms_of

DEFAULT_TOPIC_QUEUE_NUMS = 4
"""Queues of a new topic: ``DefaultMQProducer#defaultTopicQueueNums``; the broker allows 8."""

BORN_HOST = "127.0.0.1|0"
"""BORNHOST of messages that are sent here: there is no producer on another host."""

BROKER_PROPERTIES: Mapping[str, str] = {
    MessageConst.MSG_REGION: "DefaultRegion",
    MessageConst.TRACE_SWITCH: "true",
    MessageConst.CLUSTER: "DefaultCluster",
}
"""What a broker adds before it measures the properties. Not stored here: there is no cluster."""

_ANY_UNIQUE_KEY = "0" * 32
_SEPARATORS = (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
_NO_TAG = "||"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. At most one of the three delays is set, and at most one of queue and sharding key; without
    either the queues take turns."""

    topic: str
    body: bytes
    """1 byte to 4 MiB."""
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """User properties."""
    delay_level: int = 0
    """0 or below: no delay; a level above the highest means the highest."""
    delay_ms: int | None = None
    """Up to three days; 0 or below: no delay."""
    deliver_at: Time | None = None
    """Up to three days ahead; a time in the past means no delay."""
    queue_id: int | None = None
    sharding_key: str | None = None
    """Messages with one key go to one queue and keep their order."""

    @property
    def deliver_at_ms(self) -> int | None:
        """``deliver_at`` in UTC ms. Raises WrongUse as ``ms_of`` does."""
        return None if self.deliver_at is None else ms_of(self.deliver_at)


@dataclass(frozen=True, slots=True)
class Placed:
    """A message and how it is stored. All messages of one send in one queue have the same ``delay_ms`` and
    ``deliver_at``, those of ``Produced``."""

    message: Message
    queue: MessageQueue
    """Where it is stored: a queue of the sending lane while it waits."""
    properties: Mapping[str, str]
    delay_ms: int | None = None
    """The delay of its level."""
    deliver_at: int | None = None
    """When the timer delivers it, UTC ms."""

    @property
    def waits(self) -> bool:
        return self.delay_ms is not None or self.deliver_at is not None

    @property
    def tags_code(self) -> int:
        return tags_code(self.message.tags)


# --- what is checked -------------------------------------------------------------------------------------------------


def problems_of(message: Message, now_ms: int) -> list[str]:
    """Everything that is wrong with a message, as sentences; if empty, it can be sent at ``now_ms`` (UTC ms). A field of
    another type is the only problem of its message."""
    if problem := _problem(lambda: _check_types(message)):
        return [problem]
    checks: list[Callable[[], None]] = [
        lambda: _check_topic(message.topic),
        lambda: check_body(message.body),
        lambda: _check_tags(message.tags),
        lambda: _check_keys(message.keys),
        *(_property_check(name, value) for name, value in message.properties.items()),
        lambda: _check_one_delay(message),
        lambda: _check_queue(message),
        lambda: _check_as_stored(message, now_ms),
    ]
    return [problem for problem in map(_problem, checks) if problem is not None]


def check_messages(messages: Sequence[Message], now_ms: int) -> None:
    """Raise WrongUse unless all can be sent; it names every problem (the first 20) with the message's number from 1."""
    numbered = enumerate(messages, 1)
    problems = [f"message {n}: {problem}" for n, message in numbered for problem in problems_of(message, now_ms)]
    if problems:
        more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise WrongUse(f"{'; '.join(problems[:20])}{more}. Nothing was sent.")
    if not messages:
        raise WrongUse("there is no message to send")


def _problem(check: Callable[[], None]) -> str | None:
    try:
        check()
    except WrongUse as error:
        return str(error)
    return None


def _check_types(message: Message) -> None:
    check_types(str, topic=message.topic)
    check_types(bytes | bytearray | memoryview, body=message.body)
    check_types(str | None, tags=message.tags, sharding_key=message.sharding_key)
    check_types(int, delay_level=message.delay_level)
    check_types(int | None, delay_ms=message.delay_ms, queue_id=message.queue_id)
    if isinstance(message.keys, str):  # its characters would be the keys
        raise WrongUse(f"the keys are one text, {message.keys!r:.80}: give a tuple of keys")
    check_types(list | tuple, keys=message.keys)
    for key in message.keys:
        check_types(str, **{"a key": key})
    check_types(Mapping, properties=message.properties)
    for name, value in message.properties.items():
        check_types(str, **{"the name of a property": name})
        check_types(str, **{f"the property {name}": value})


def _check_topic(topic: str) -> None:
    check_topic(topic)
    if not may_be_sent_to(topic):
        raise WrongUse(f"sending to topic {topic} is forbidden")
    if is_system_topic(topic):
        raise WrongUse(f"topic {topic} is a system topic: send to a topic of your own")
    if topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)):
        raise WrongUse(
            f"topic {topic} is for the failed messages of its group: send to a topic that the group subscribes"
        )


def _check_tags(tags: str | None) -> None:
    if tags is None:
        return
    if not tags.strip():
        raise WrongUse("the tag is blank: leave it out")
    if _NO_TAG in tags:
        raise WrongUse(f"the tag {tags!r} contains {_NO_TAG!r}, so no subscription can select it")
    _check_text("the tag", tags)


def _check_keys(keys: Sequence[str]) -> None:
    for key in keys:
        if not key.strip():
            raise WrongUse("a key is blank: leave it out")
        _check_text("the key", key)


def _property_check(name: str, value: str) -> Callable[[], None]:
    def check() -> None:
        check_user_property(name, value)
        _check_text("the name of the property", name)
        _check_text(f"the property {name}", value)

    return check


def _check_text(what: str, text: str) -> None:
    """The stored form has no escaping."""
    if any(separator in text for separator in _SEPARATORS):
        raise WrongUse(f"{what} {text!r} contains U+0001 or U+0002, which end a property in the stored form")


def _check_one_delay(message: Message) -> None:
    is_set = {
        "delay_level": message.delay_level > 0,
        "delay_ms": message.delay_ms is not None,
        "deliver_at": message.deliver_at is not None,
    }
    if sum(is_set.values()) > 1:
        raise WrongUse(f"a message has one delay, this one has {' and '.join(name for name in is_set if is_set[name])}")


def _check_queue(message: Message) -> None:
    if message.queue_id is not None and message.sharding_key is not None:
        raise WrongUse("a message has a queue or a sharding key, not both")
    if message.queue_id is not None and message.queue_id < 0:
        raise WrongUse(f"queue {message.queue_id} does not exist: queue ids begin at 0")
    if message.sharding_key == "":
        raise WrongUse("the sharding key is empty: leave it out")


def _check_as_stored(message: Message, now_ms: int) -> None:
    """The time of delivery, and the size of the properties as a broker measures it: with those that it adds and those
    of a delayed message."""
    stored = timer.place(message.topic, 0, stored_properties(message, _ANY_UNIQUE_KEY), now_ms, DelayLevels())
    check_properties({**stored.properties, **BROKER_PROPERTIES})


# --- where it goes ---------------------------------------------------------------------------------------------------


def select_queue(message: Message, queues: int, turn: int) -> int:
    """The queue id, in ``[0, queues)``: the message's own, that of its key (``SelectMessageQueueByHash``), else by
    turn.

    Raises WrongUse for a queue that does not exist, as a broker answers INVALID_PARAMETER.
    """
    if message.queue_id is not None:
        if message.queue_id >= queues:
            raise WrongUse(f"topic {message.topic} has no queue {message.queue_id}, only 0 to {queues - 1}")
        return message.queue_id
    if message.sharding_key is not None:
        return abs(tags_code(message.sharding_key)) % queues
    return turn % queues


def place(
    message: Message, queue: MessageQueue, unique_key: str, now_ms: int, *, levels: DelayLevels, lane: str
) -> Placed:
    """The message as it is stored. ``queue``: where consumers read it; ``lane``: the broker name of the queues in which
    a delayed one waits (rules 11.2, 11.4). Raises WrongUse as ``timer.place`` does."""
    placement = timer.place(queue.topic, queue.queue_id, stored_properties(message, unique_key), now_ms, levels)
    stored_in = MessageQueue(placement.topic, lane if placement.waits else queue.broker_name, placement.queue_id)
    return Placed(message, stored_in, placement.properties, placement.delay_ms, placement.deliver_at)


# --- what is stored --------------------------------------------------------------------------------------------------


def stored_properties(message: Message, unique_key: str) -> dict[str, str]:
    """The user's properties and those that a client adds."""
    properties = dict(message.properties)
    if message.tags is not None:
        properties[MessageConst.TAGS] = message.tags
    if message.keys:
        properties[MessageConst.KEYS] = KEY_SEPARATOR.join(message.keys)
    if message.delay_level:
        properties[MessageConst.DELAY_TIME_LEVEL] = str(message.delay_level)
    if message.delay_ms is not None:
        properties[MessageConst.TIMER_DELAY_MS] = str(message.delay_ms)
    if message.deliver_at is not None:
        properties[MessageConst.TIMER_DELIVER_MS] = str(message.deliver_at_ms)
    properties[MessageConst.WAIT_STORE_MSG_OK] = "true"
    properties[MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = unique_key
    return properties


def unique_keys(entropy: bytes, now_ms: int) -> Iterator[str]:
    """UNIQ_KEYs for one send (``MessageClientIDSetter``, rules 1.8). ``entropy``: 10 bytes, in place of address,
    process and class loader; then the milliseconds of the month in UTC, and a counter. When the counter is used up, the
    next millisecond is taken."""
    month = datetime.fromtimestamp(now_ms // 1000, UTC).replace(day=1, hour=0, minute=0, second=0)
    since_ms = now_ms - int(month.timestamp()) * 1000
    for n in count():
        tail = struct.pack(">IH", since_ms + (n >> 16) & 0xFFFFFFFF, n & 0xFFFF)
        yield (entropy[:10] + tail).hex().upper()
