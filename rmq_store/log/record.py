"""A record of the commit log: from bytes to fields; ``record_encoder`` is the other way. ``lake/broker/records.py``
does it in columns and must give the same result.

Layout (``MessageExtEncoder``, rules 1.1), big-endian; an IPv6 host takes 20 bytes instead of 8::

    0 TOTALSIZE 4 | 4 MAGICCODE 4 | 8 BODYCRC 4 | 12 QUEUEID 4 | 16 FLAG 4 | 20 QUEUEOFFSET 8 | 28 PHYSICALOFFSET 8
    36 SYSFLAG 4 | 40 BORNTIMESTAMP 8 | 48 BORNHOST 8 | 56 STORETIMESTAMP 8 | 64 STOREHOSTADDRESS 8
    72 RECONSUMETIMES 4 | 76 PREPARED TRANSACTION OFFSET 8 | 84 BODYLEN 4, BODY
    TOPICLEN 1 (V1) or 2 (V2), TOPIC | PROPSLEN 2, PROPS

Two readers with different rules, as in RocketMQ:

- :func:`check` is the broker's (``CommitLog#checkMessageAndReturnSize``): it compares TOTALSIZE with the fields, and
  the CRC with the stored body. Nothing covers topic, properties and times: a changed byte there is not noticed.
- :func:`decode` is the client's (``MessageDecoder#decode``): it does not compare TOTALSIZE, but refuses a bad port.

Left out: the optional record CRC in the property ``__CRC32#`` (``forceVerifyPropCRC``, off by default).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmq_store.message.java_text import decoded, parse_number
from rmq_store.message.message import MessageExt
from rmq_store.message.message_const import SCHEDULE_TOPIC, MessageConst
from rmq_store.message.message_id import host_text, offset_message_id
from rmq_store.message.properties import parse_properties
from rmq_store.message.sys_flag import ZLIB_ONLY, Decompressors, MessageSysFlag, body_crc, plain_body

MESSAGE_MAGIC_V1: Final = -626843481
MESSAGE_MAGIC_V2: Final = -626843477
BLANK_MAGIC: Final = -875286124

V1_TOPIC_MAX: Final = 127
"""A topic name longer than this (UTF-16 units) makes a record of version 2 (rules 1.2)."""

STORE_TIMES: Final = range(253_402_300_800_000)
"""Epoch ms from 1970-01-01 to 9999-12-31: a message is stored under the day of its store time."""

Bytes = bytes | bytearray | memoryview

RECORD_HEAD: Final = struct.Struct(">iiiiiqqiq")
"""TOTALSIZE to BORNTIMESTAMP."""
RECORD_TAIL: Final = struct.Struct(">iqi")
"""RECONSUMETIMES to BODYLEN."""
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")
_BYTE: Final = struct.Struct(">b")
TOPIC_LENGTH: Final = {MESSAGE_MAGIC_V1: _BYTE, MESSAGE_MAGIC_V2: _SHORT}
"""The form of TOPICLEN by magic code."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record with the values of its fields in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    store_size: int
    magic: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    stored_body: bytes
    """As stored, perhaps compressed; b"" when BODYLEN is 0."""
    properties_text: str

    @property
    def properties(self) -> dict[str, str]:
        """The properties as a map, parsed at each call."""
        return parse_properties(self.properties_text)

    @property
    def offset_msg_id(self) -> str:
        """The offset message id: store host and commit log offset (``MessageDecoder#createMessageId``, rules 1.8)."""
        return offset_message_id(self.store_host, self.commit_log_offset)

    def body(self, decompressors: Decompressors = ZLIB_ONLY) -> bytes | None:
        """The decoded payload; None when BODYLEN is 0.

        :raises BadData: it does not decompress.
        """
        return plain_body(self.stored_body, self.sys_flag, decompressors)


class Refused(NamedTuple):
    """Why a record could not be decoded."""

    reason: str


class Checked(NamedTuple):
    """The result of the broker's check."""

    success: bool
    size: int
    """Bytes to the next record; 0 for the end-of-file marker, -1 when it is not known."""
    reason: str = ""


class _Parts(NamedTuple):
    """Values of the fixed fields, and positions of the others."""

    head: tuple[int, ...]
    born_address: bytes
    born_port: int
    store_timestamp: int
    store_address: bytes
    store_port: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_start: int
    body_length: int
    topic_start: int
    topic_length: int
    properties_start: int
    properties_length: int

    @property
    def end(self) -> int:
        return self.properties_start + max(self.properties_length, 0)


def check(data: Bytes, position: int = 0, *, check_crc: bool = True) -> Checked:
    """The broker's check of the record at ``position``; ``data`` ends where its file ends."""
    remaining = len(data) - position
    if remaining <= 4:
        return Checked(False, -1, f"only {remaining} bytes are left, too few for a record")
    total_size = _INT.unpack_from(data, position)[0]
    if total_size > remaining:
        return Checked(False, -1, f"TOTALSIZE {total_size} reaches beyond the {remaining} bytes that are left")
    if remaining < 8:
        return Checked(False, -1, f"only {remaining} bytes are left, too few for a record")
    magic = _INT.unpack_from(data, position + 4)[0]
    if magic == BLANK_MAGIC:
        return Checked(True, 0)
    if magic not in TOPIC_LENGTH:
        return Checked(False, -1, f"unknown magic code {magic & 0xFFFFFFFF:08X}")
    if total_size < 0:
        return Checked(False, -1, f"TOTALSIZE {total_size} is negative")
    parts = _parts(data, position)
    if isinstance(parts, Refused):
        return Checked(False, -1, parts.reason)
    # RocketMQ copies each part into a scratch array of TOTALSIZE bytes; a part that does not fit ends its check.
    if max(parts.body_length, parts.topic_length, parts.properties_length) > total_size:
        return Checked(False, -1, f"a part is longer than TOTALSIZE {total_size}")
    if check_crc and parts.body_length > 0:
        crc = body_crc(data[parts.body_start : parts.body_start + parts.body_length])
        if crc != parts.head[2]:
            return Checked(False, -1, f"BODYCRC is {parts.head[2]}, the CRC of the stored body is {crc}")
    delay = _schedule_delay(data, parts)
    if delay is not None and parse_level(delay) is None:
        return Checked(False, -1, f"DELAY {delay!r} in {SCHEDULE_TOPIC} is not a number")
    if total_size != parts.end - position:
        return Checked(False, total_size, f"TOTALSIZE is {total_size}, the fields take {parts.end - position} bytes")
    return Checked(True, total_size)


def decode(data: Bytes, position: int = 0, *, check_crc: bool = False) -> Record | Refused:
    """The client's decoding of the record at ``position``; ``store_size`` is its TOTALSIZE, right or wrong."""
    if len(data) - position < 8:
        return Refused("the data ends inside the record")
    if _INT.unpack_from(data, position + 4)[0] not in TOPIC_LENGTH:
        return Refused(f"unknown magic code {_INT.unpack_from(data, position + 4)[0] & 0xFFFFFFFF:08X}")
    parts = _parts(data, position)
    if isinstance(parts, Refused):
        return parts
    for port in (parts.born_port, parts.store_port):
        if not 0 <= port <= 65535:
            return Refused(f"{port} is not a port")
    total_size, magic, crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_timestamp = parts.head
    body = bytes(data[parts.body_start : parts.topic_start - TOPIC_LENGTH[magic].size])
    if check_crc and body and body_crc(body) != crc:
        return Refused(f"BODYCRC is {crc}, the CRC of the stored body is {body_crc(body)}")
    return Record(
        topic=_text(data, parts.topic_start, parts.topic_length),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        store_size=total_size,
        magic=magic,
        body_crc=crc,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=host_text(parts.born_address, parts.born_port),
        store_timestamp=parts.store_timestamp,
        store_host=host_text(parts.store_address, parts.store_port),
        reconsume_times=parts.reconsume_times,
        prepared_transaction_offset=parts.prepared_transaction_offset,
        stored_body=body,
        properties_text=_text(data, parts.properties_start, parts.properties_length),
    )


def message_ext(record: Record, broker_name: str, decompressors: Decompressors = ZLIB_ONLY) -> MessageExt:
    """The message that a client gives to a listener: decompressed, with the compressed bit cleared if there is a body.

    :raises BadData: the body does not decompress.
    """
    return MessageExt(
        topic=record.topic,
        broker_name=broker_name,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.commit_log_offset,
        store_size=record.store_size,
        body=record.body(decompressors),
        flag=record.flag,
        sys_flag=MessageSysFlag.clear_compressed(record.sys_flag) if record.stored_body else record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_crc=record.body_crc,
        properties=record.properties,
        offset_msg_id=record.offset_msg_id,
    )


def parse_level(text: str) -> int | None:
    """Java's ``Integer.parseInt``: the number, or None where Java throws."""
    return parse_number(text, 32)


def _parts(data: Bytes, position: int) -> _Parts | Refused:
    """The parts of a record whose magic code is known."""
    try:
        head = RECORD_HEAD.unpack_from(data, position)
        sys_flag = head[7]
        at = position + RECORD_HEAD.size
        born_address, born_port, at = _read_host(data, at, sys_flag & MessageSysFlag.BORNHOST_V6_FLAG)
        store_timestamp = _LONG.unpack_from(data, at)[0]
        store_address, store_port, at = _read_host(data, at + 8, sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG)
        reconsume_times, prepared, body_length = RECORD_TAIL.unpack_from(data, at)
        body_start = at + RECORD_TAIL.size
        topic_field = body_start + max(body_length, 0)
        topic_length_of = TOPIC_LENGTH[head[1]]
        topic_length = topic_length_of.unpack_from(data, topic_field)[0]
        if topic_length < 0:
            return Refused(f"topic length {topic_length} is negative")
        topic_start = topic_field + topic_length_of.size
        properties_length = _SHORT.unpack_from(data, topic_start + topic_length)[0]
    except struct.error:
        return Refused("the data ends inside the record")
    parts = _Parts(
        head=head,
        born_address=born_address,
        born_port=born_port,
        store_timestamp=store_timestamp,
        store_address=store_address,
        store_port=store_port,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body_start=body_start,
        body_length=body_length,
        topic_start=topic_start,
        topic_length=topic_length,
        properties_start=topic_start + topic_length + 2,
        properties_length=properties_length,
    )
    return parts if parts.end <= len(data) else Refused("the data ends inside the record")


def _read_host(data: Bytes, at: int, is_v6: int) -> tuple[bytes, int, int]:
    size = 16 if is_v6 else 4
    port = _INT.unpack_from(data, at + size)[0]
    return bytes(data[at : at + size]), port, at + size + 4


def _text(data: Bytes, start: int, length: int) -> str:
    """Invalid UTF-8 is replaced, so that a damaged name can still be read."""
    return decoded(bytes(data[start : start + max(length, 0)]))


def _schedule_delay(data: Bytes, parts: _Parts) -> str | None:
    if parts.topic_length != len(SCHEDULE_TOPIC):
        return None
    if _text(data, parts.topic_start, parts.topic_length) != SCHEDULE_TOPIC:
        return None
    return parse_properties(_text(data, parts.properties_start, parts.properties_length)).get(
        MessageConst.DELAY_TIME_LEVEL
    )
