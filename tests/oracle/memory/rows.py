"""The rows of the commit log, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_store.commit.ctl import lake_message_id
from rmq_store.commit.positions import Outcome, QueueRange
from rmq_store.consumer.pull import Slice
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import MessageConst, first_topic
from rmq_store.message.properties import tags_code
from rmq_store.message.sys_flag import MessageSysFlag


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a copy comes from."""

    group: str
    pass_: int
    queue: MessageQueue
    """The queue of the message that it was made from."""
    offset: int
    cause: str
    attempt: int
    error_type: str | None = None
    error_text: str | None = None
    window_id: str | None = None
    epoch: int | None = None
    """The epoch of the group that the copy is for, when the message failed or was redriven; a delivery keeps it."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message without its place. Rows born here have neither ``store_timestamp`` (epoch ms) nor ``offset_msg_id``:
    both follow from their commit."""

    body: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    reconsume_times: int = 0
    store_timestamp: int | None = None
    offset_msg_id: str | None = None
    born_timestamp: int = 0
    born_host: str = ""
    flag: int = 0
    sys_flag: int = 0
    provenance: Provenance | None = None

    @property
    def tags(self) -> str | None:
        return self.properties.get(MessageConst.TAGS)

    @property
    def tags_code(self) -> int:
        return tags_code(self.tags)


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """A range of offsets with an exceptional outcome and no message of its own."""

    range: QueueRange
    group: str
    pass_: int
    outcome: Outcome | str
    reason: str
    window_id: str


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The key of an acked message, in a group that absorbs duplicates."""

    key: str
    queue: MessageQueue
    offset: int
    group: str
    epoch: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in its place."""

    queue: MessageQueue
    queue_offset: int
    store_timestamp: int
    offset_msg_id: str
    row: MessageRow

    def message(self) -> MessageExt:
        """What a listener gets."""
        row, queue, properties = self.row, self.queue, dict(self.row.properties)
        return MessageExt(
            first_topic(queue.topic, properties),
            queue.broker_name,
            queue.queue_id,
            self.queue_offset,
            body=row.body,
            flag=row.flag,
            sys_flag=MessageSysFlag.clear_compressed(row.sys_flag),  # the body is plain here
            born_timestamp=row.born_timestamp,
            born_host=row.born_host,
            store_timestamp=self.store_timestamp,
            reconsume_times=row.reconsume_times,
            properties=properties,
            offset_msg_id=self.offset_msg_id,
        )


def stored_rows(slice_: Slice, rows: list[MessageRow]) -> list[Stored]:
    """The messages of a slice; ``rows`` is the whole file."""
    return [
        Stored(
            slice_.queue,
            slice_.begin + n,
            (slice_.store_timestamp if row.store_timestamp is None else row.store_timestamp) or 0,
            row.offset_msg_id or lake_message_id(slice_.commit_id, slice_.part, slice_.first_row + n),
            row,
        )
        for n, row in enumerate(rows[slice_.first_row : slice_.first_row + len(slice_)])
    ]
