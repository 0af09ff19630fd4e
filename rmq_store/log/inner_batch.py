"""Inner batches: records of the commit log that hold several messages of their queue, as in topics of the type BatchCQ.

The body is the messages one after the other, as a producer encodes a batch; INNER_NUM has their number. Message ``i`` of the
record has the queue offset of the record plus ``i``, so the next record's is higher by INNER_NUM. A consumer's client takes the
record apart (``MessageDecoder#decodeMessage``, ``PullAPIWrapper#processPullResult``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmq_store.errors import BadData
from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import parse_properties
from rmq_store.message.sys_flag import MessageSysFlag
from rmq_store.utils.numbers import whole_number

_HEAD: Final = struct.Struct(">iiiii")
"""Size of the message, magic code and CRC (a client ignores both), flag, size of the body."""
_PROPERTIES_SIZE: Final = struct.Struct(">h")

_FLAGS: Final = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG


@dataclass(frozen=True, slots=True)
class InnerMessage:
    """One message of a record; what is not here is the record's."""

    flag: int
    body: bytes
    properties: Mapping[str, str]


def is_inner_batch(sys_flag: int, properties: Mapping[str, str]) -> bool:
    """Whether a record may take more than one queue offset: by a flag or by INNER_NUM."""
    return bool(sys_flag & _FLAGS) or MessageConst.INNER_NUM in properties


def unwrap(sys_flag: int, properties: Mapping[str, str], body: bytes | None) -> tuple[InnerMessage, ...]:
    """The messages of a record with ``is_inner_batch``, in the order of their queue offsets.

    :param body: decompressed.
    :raises BadData: a client would not take the record apart, or it does not hold as many messages as INNER_NUM says.
    """
    if sys_flag & _FLAGS != _FLAGS:
        raise BadData(
            f"sysFlag {sys_flag} and INNER_NUM do not belong together: a client would take it for one message"
        )
    text = properties.get(MessageConst.INNER_NUM, "")
    number = whole_number(text)
    messages: list[InnerMessage] = []
    data, at = body or b"", 0
    try:
        while at < len(data):
            size, _, _, flag, body_size = _HEAD.unpack_from(data, at)
            body_end = at + _HEAD.size + body_size
            (properties_size,) = _PROPERTIES_SIZE.unpack_from(data, body_end)
            end = body_end + _PROPERTIES_SIZE.size + properties_size
            if min(body_size, properties_size) < 0 or end != at + size or end > len(data):
                raise BadData(f"message {len(messages)} in it has the size {size}, and not that of its parts")
            written = data[body_end + _PROPERTIES_SIZE.size : end].decode("utf-8", "replace")
            messages.append(InnerMessage(flag, data[at + _HEAD.size : body_end], parse_properties(written)))
            at = end
    except struct.error:
        raise BadData(f"message {len(messages)} in it is cut off") from None
    if number != len(messages) or not messages:
        raise BadData(f"it has {len(messages)} messages, INNER_NUM is {text!r}")
    return tuple(messages)
