"""A batch of messages on the wire: the body of one request, and the messages in it (``MessageDecoder``, rules 1.7)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from rmq_store.errors import BadData, WrongUse
from rmq_store.message.java_text import decoded
from rmq_store.message.message_const import PROPERTIES_MAX_BYTES

_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")


class BatchMessage(NamedTuple):
    """One message in the body of a batch request; topic and queue are those of the request."""

    flag: int
    body: bytes
    properties_text: str


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """The body of a batch (``MessageDecoder#encodeMessages``): TOTALSIZE, MAGIC 0, BODYCRC 0, FLAG, BODYLEN and BODY,
    PROPSLEN (2) and PROPS of each. Raises WrongUse when properties are too long for their length field."""
    parts = []
    for message in messages:
        properties = message.properties_text.encode("utf-8", "surrogatepass")
        if len(properties) > PROPERTIES_MAX_BYTES:
            raise WrongUse(f"properties of {len(properties)} bytes are above the limit of {PROPERTIES_MAX_BYTES}")
        size = _HEAD.size + len(message.body) + _SHORT.size + len(properties)
        head = _HEAD.pack(size, 0, 0, message.flag, len(message.body))
        parts += [head, message.body, _SHORT.pack(len(properties)), properties]
    return b"".join(parts)


def decode_batch(data: bytes | bytearray | memoryview) -> list[BatchMessage]:
    """The messages of a batch body (``MessageDecoder#decodeMessages``). Raises BadData when it ends within a message,
    or a size does not match; RocketMQ uses the lengths of body and properties and does not compare them with the
    size."""
    messages, at = [], 0
    while at < len(data):
        message, size = _batch_message(memoryview(data)[at:], at)
        messages.append(message)
        at += size
    return messages


def _batch_message(data: memoryview, at: int) -> tuple[BatchMessage, int]:
    try:
        size, _, _, flag, body_size = _HEAD.unpack_from(data)
        body_end = _HEAD.size + body_size
        (properties_size,) = _SHORT.unpack_from(data, body_end) if body_size >= 0 else (-1,)
    except struct.error as error:
        raise BadData(f"the batch ends within the message at byte {at}") from error
    begin = body_end + _SHORT.size
    if properties_size < 0 or size != begin + properties_size or size > len(data):
        raise BadData(f"the message at byte {at} of the batch says {size} bytes, its parts or the batch say otherwise")
    text = decoded(bytes(data[begin:size]))
    return BatchMessage(flag, bytes(data[_HEAD.size : body_end]), text), size
