"""Messages and queues as a consumer sees them, under RocketMQ's names.

- a queue offset counts messages of one queue, a commit log offset counts bytes of one broker's log
- ``body`` is the decoded payload: None when the record has none, b"" when it is empty after decompression
- times are epoch milliseconds in UTC; hosts are ``address|port``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import total_ordering

from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import check_user_property


@total_ordering
@dataclass(frozen=True, slots=True)
class MessageQueue:
    """One queue of a topic on a broker. Order of ``MessageQueue#compareTo``: topic, broker name, queue id (rules
    6.1)."""

    topic: str
    broker_name: str
    queue_id: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, MessageQueue):
            return NotImplemented
        return _java_order(self) < _java_order(other)

    @property
    def label(self) -> str:
        """``topic broker:queue``, as answers and notes name it."""
        return f"{self.topic} {self.broker_name}:{self.queue_id}"

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


def _java_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    """Java compares strings by UTF-16 units; Python by code points, which differs above U+FFFF."""
    return (
        queue.topic.encode("utf-16-be", "surrogatepass"),
        queue.broker_name.encode("utf-16-be", "surrogatepass"),
        queue.queue_id,
    )


@dataclass(slots=True)
class MessageExt:
    """A delivered message. Not frozen, because listeners may set properties, and a window makes millions of them."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int = -1
    store_size: int = 0
    body: bytes | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = ""
    store_timestamp: int = 0
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    offset_msg_id: str = ""

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(MessageConst.TAGS)

    @property
    def keys(self) -> str | None:
        """The index keys, separated by spaces, or None."""
        return self.properties.get(MessageConst.KEYS)

    @property
    def unique_key(self) -> str | None:
        """The producer's id (UNIQ_KEY): the same along a retry chain; or None."""
        return self.properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)

    @property
    def msg_id(self) -> str:
        """What ``MessageClientExt#getMsgId`` answers: UNIQ_KEY, else the offset message id."""
        return self.unique_key or self.offset_msg_id

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that the message was read from."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def get_property(self, name: str) -> str | None:
        """A property's value, or None."""
        return self.properties.get(name)

    def get_user_property(self, name: str) -> str | None:
        """The same as :meth:`get_property`, since RocketMQ returns reserved names too."""
        return self.properties.get(name)

    def put_user_property(self, name: str, value: str) -> None:
        """Set a user property (``Message#putUserProperty``, rules 1.5).

        :raises WrongUse: the name is reserved, or name or value is blank.
        """
        check_user_property(name, value)
        self.properties[name] = value
